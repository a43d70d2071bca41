"""The papers' experiments: every one runs, says what it measured, and is found under its name."""

import dataclasses
import json

import pytest

import farfield.papers._experiment as experiments
from farfield.errors import InvalidValueError, MissingExtraError, UnknownNameError
from farfield.papers import experiment, experiment_names, experiment_titles, run_experiment
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, missing
from farfield.report import Figure, Panel, Series

IN_EVERY_RUN = ("p1.parts", "p2.fig8", "p3.fig5")
"""One cheap experiment of each paper; the others run each night."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in IN_EVERY_RUN else pytest.mark.nightly) for n in experiment_names()],
)
def test_every_experiment_runs_quickly_and_writes_everything(name, tmp_path):
    calls = []
    reason = missing(experiment(name))
    if reason:
        pytest.skip(reason)
    record = run_experiment(
        experiment(name), tmp_path, quick=True, progress=lambda done, total: calls.append((done, total))
    )
    paper, item = name.split(".")
    folder = tmp_path / "quick" / paper
    stored = json.loads((folder / f"{item}.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(record))
    assert stored["verdicts"] and all(v["measured"] for v in stored["verdicts"])
    assert stored["figure"] or stored["table"]
    assert (folder / f"{item}.png").exists() == bool(stored["figure"])
    assert set(stored["size"]) == set(stored["paper_size"])
    assert calls and calls[-1][0] == calls[-1][1], "progress must end at its total"
    assert {"settings", "seed", "versions", "commit"} <= set(stored["provenance"])


@pytest.mark.parametrize("name", experiment_names())
def test_names_and_titles_agree_with_the_modules(name):
    found = experiment(name)
    assert found.name == name and experiment_titles()[name].lower().startswith(name.partition(".")[0])
    assert set(found.quick) <= set(found.settings) >= set(found.paper_size)


def test_prefix_selects_a_paper():
    papers = [experiment_names(paper) for paper in ("p1", "p2", "p3")]
    assert sum(papers, ()) == experiment_names() and all(papers)
    assert all(name.startswith("p2.") for name in papers[1])
    assert experiment_names("p2.fig3") == ("p2.fig3",)
    assert experiment_names("p") == ()
    with pytest.raises(UnknownNameError, match=r"p2\.fig3"):
        experiment("p2.fig31")


def test_a_stored_result_is_kept_only_if_settings_and_seed_agree(tmp_path):
    runs = []

    def run(*, progress, seed, size):
        runs.append((seed, size))
        return ExperimentResult((ClaimVerdict("c", True, "m"),), {"seed": seed})

    first = Experiment("p9.x", "d", {"size": 1}, run)
    for _ in range(2):
        run_experiment(first, tmp_path)
    run_experiment(first, tmp_path, seed=1)
    run_experiment(Experiment("p9.x", "d", {"size": 2}, run), tmp_path, seed=1)
    assert runs == [(0, 1), (1, 1), (1, 2)]


def test_a_claim_that_is_written_later_is_judged_without_a_new_run(tmp_path):
    plain = experiment("p2.table2")
    first = run_experiment(plain, tmp_path)
    calls = []

    def claims(record):
        return [ClaimVerdict("the record has numbers", bool(record["numbers"]), "some")]

    def run(**options):
        calls.append(options)
        return plain.run(**options)

    later = dataclasses.replace(plain, claims=claims, run=run)
    for _ in range(2):
        found = run_experiment(later, tmp_path)
        assert [v["claim"] for v in found["verdicts"]][len(first["verdicts"]) :] == ["the record has numbers"]
        assert json.loads((tmp_path / "p2" / "table2.json").read_text()) == found
    assert not calls
    again = run_experiment(later, tmp_path, force=True)
    assert calls and again["verdicts"][-1]["claim"] == "the record has numbers"


def test_quick_results_and_other_seeds_never_replace_a_full_result(tmp_path):
    def run(*, progress, seed, size):
        return ExperimentResult((ClaimVerdict("c", True, "m"),), {"seed": seed, "size": size})

    tried = Experiment("p9.x", "d", {"size": 9}, run, quick={"size": 1}, paper_size={"size": 9})
    full = run_experiment(tried, tmp_path)
    for quick, seed in ((True, 0), (False, 1), (True, 1)):
        other = run_experiment(tried, tmp_path, quick=quick, seed=seed)
        assert other["numbers"] == {"seed": seed, "size": 1 if quick else 9}
    found = {str(path.relative_to(tmp_path).parent) for path in tmp_path.rglob("x.json")}
    assert found == {"p9", "quick/p9", "seed1/p9", "quick/seed1/p9"}
    assert json.loads((tmp_path / "p9" / "x.json").read_text()) == full
    assert run_experiment(tried, tmp_path) == full


def test_a_finished_run_is_kept_without_matplotlib_and_drawn_later(tmp_path, monkeypatch):
    runs, said = [], []

    def run(*, progress, seed):
        runs.append(seed)
        panel = Panel("p", "x", "y", (Series("s", (1.0, 2.0), (1.0, float("nan"))),))
        return ExperimentResult((ClaimVerdict("c", True, "m"),), {}, Figure("f", (panel,)))

    def absent(*_):
        raise MissingExtraError("Drawing a figure", "matplotlib", "plot")

    tried = Experiment("p9.x", "d", {}, run)
    draw = experiments.save_figure
    monkeypatch.setattr(experiments, "save_figure", absent)
    record = run_experiment(tried, tmp_path, warn=said.append)
    assert json.loads((tmp_path / "p9" / "x.json").read_text())["verdicts"] == record["verdicts"]
    assert len(said) == 1 and "farfield[plot]" in said[0] and not (tmp_path / "p9" / "x.png").exists()
    monkeypatch.setattr(experiments, "save_figure", draw)
    assert run_experiment(tried, tmp_path) == json.loads(json.dumps(record)) and runs == [0]
    assert (tmp_path / "p9" / "x.png").exists() and (tmp_path / "p9" / "x.svg").exists()


def test_a_record_from_before_the_papers_numbering_is_run_again(tmp_path):
    runs = []

    def run(*, progress, seed):
        runs.append(seed)
        return ExperimentResult((ClaimVerdict("c", True, "m"),), {})

    tried = Experiment("p9.x", "d", {}, run)
    record = run_experiment(tried, tmp_path)
    del record["paper_size"]
    (tmp_path / "p9" / "x.json").write_text(json.dumps(record))
    run_experiment(tried, tmp_path)
    assert runs == [0, 0]


@pytest.mark.parametrize("old", ["p2.order", "p2.selfnorm"])
def test_old_names_are_refused_with_the_new_one(old):
    with pytest.raises(InvalidValueError, match=r"now p2\.fig8 \(P2 Figure 8"):
        experiment(old)


def test_an_interrupted_experiment_leaves_no_result(tmp_path):
    def run(*, progress, seed):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(Experiment("p9.x", "d", {}, run), tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_a_resumable_experiment_finds_what_it_left(tmp_path):
    seen = []

    def run(*, progress, seed, size, scratch):
        seen.append(sorted(path.name for path in scratch.glob("*")))
        scratch.mkdir(parents=True, exist_ok=True)
        (scratch / "half").touch()
        if len(seen) < 3:
            raise KeyboardInterrupt
        return ExperimentResult((ClaimVerdict("c", True, "m"),), {})

    for size in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            run_experiment(Experiment("p9.x", "d", {"size": size}, run, resumable=True), tmp_path)
    run_experiment(Experiment("p9.x", "d", {"size": 1}, run, resumable=True), tmp_path)
    assert seen == [[], [], ["half"]]
    assert sorted(path.name for path in (tmp_path / "p9").iterdir()) == ["x.json"]


def test_what_is_missing_is_said_with_the_way_to_get_it(monkeypatch):
    def needs(**what):
        return missing(Experiment("p9.x", "d", {}, lambda: None, **what))

    assert needs() is None and needs(packages=("torch",), data=("sinusoid",)) is None
    assert "pip install no-such-package" in needs(packages=("torch", "no_such_package"))
    monkeypatch.setattr("farfield.papers._experiment.is_here", lambda name: name != "protein")
    assert "farfield data fetch protein" in needs(data=("sinusoid", "protein"))
