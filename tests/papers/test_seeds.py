"""Experiments with several seeds: every claim's row, failures that stop nothing, going on after a stop."""

import contextlib
import dataclasses
import json

import pytest

from farfield.engine import Engine, local
from farfield.errors import InvalidValueError, UnknownNameError
from farfield.papers import ClaimVerdict, Experiment, ExperimentResult, _seeds, run_seeds

CALLS = []


def toss(*, progress, seed, wanted):
    CALLS.append(seed)
    if seed == 13:
        raise ValueError("unlucky")
    return ExperimentResult(
        (
            ClaimVerdict(f"seed {seed} is even", seed % 2 == 0, str(seed)),
            ClaimVerdict("one is two", False, "1", expected=False),
        ),
        {},
    )


@pytest.fixture
def made_up(monkeypatch):
    CALLS.clear()
    item = Experiment("p2.toss", "A toss.", {"wanted": 1}, toss)
    known = {"p2.toss": item, "p2.other": dataclasses.replace(item, name="p2.other")}
    monkeypatch.setattr(_seeds, "experiment", known.__getitem__)


@pytest.mark.usefixtures("made_up")
def test_every_claim_has_a_row_and_is_counted(tmp_path):
    found = run_seeds(["p2.toss", "p2.other"], tmp_path, seeds=[0, 1, 2])
    assert [(r.experiment, r.seed, r.holds) for r in found.rows[:4]] == [
        ("p2.toss", 0, True), ("p2.toss", 0, False), ("p2.toss", 1, False), ("p2.toss", 1, False),
    ]  # fmt: skip
    assert [r.surprising for r in found.rows[:4]] == [False, False, True, False]
    first, second, *_ = found.summary()
    # The words of the first claim name the seed: it is one claim nevertheless.
    assert (first["holds"], first["seeds"], first["claim"]) == (2, 3, "seed 0 is even")
    assert (second["holds"], second["seeds"], second["expected"]) == (0, 3, False)
    assert json.loads((tmp_path / "seed1" / "p2" / "toss.json").read_text())["provenance"]["seed"] == 1
    stored = json.loads(found.save(tmp_path / "all" / "seeds.json").read_text())
    assert len(stored["rows"]) == 12 and stored["provenance"]["settings"]["seeds"] == [0, 1, 2]


@pytest.mark.usefixtures("made_up")
def test_what_fails_is_a_row_and_only_that_runs_again(tmp_path):
    found = run_seeds(["p2.toss"], tmp_path, seeds=[12, 13, 14], engine=local(workers=2))
    assert [(r.seed, r.error) for r in found.rows if r.error] == [(13, "ValueError: unlucky")]
    assert {r.seed for r in found.rows} == {12, 13, 14} and found.rows[2].surprising
    line = next(line for line in found.summary() if line["error"])
    assert line["seeds"] == 1 and line["claim"] is None
    CALLS.clear()
    assert run_seeds(["p2.toss"], tmp_path, seeds=[12, 13, 14]).rows == found.rows
    assert CALLS == [13]
    run_seeds(["p2.toss"], tmp_path, seeds=[12], force=True)
    assert CALLS == [13, 12]


@pytest.mark.usefixtures("made_up")
def test_parquet_has_one_row_a_claim(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    found = run_seeds(["p2.toss"], tmp_path, seeds=[13, 14])
    table = parquet.read_table(found.save(tmp_path / "seeds.parquet")).to_pylist()
    assert [row["holds"] for row in table] == [None, True, False]
    assert [row["error"] for row in table] == ["ValueError: unlucky", None, None]


def test_unknown_and_empty(tmp_path):
    with pytest.raises(UnknownNameError):
        run_seeds(["p2.nothing"], tmp_path, seeds=[0])
    with pytest.raises(InvalidValueError, match="at least one experiment"):
        run_seeds([], tmp_path, seeds=[0])
    assert not list(tmp_path.iterdir())


class Elsewhere(Engine):
    """Workers that run in another directory."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, task, items):
        for item in items:
            with contextlib.chdir(self.folder):
                result = task(item)
            yield result


@pytest.mark.usefixtures("made_up")
def test_results_are_where_the_caller_is_and_nothing_counts_twice(tmp_path, monkeypatch):
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path)
    found = run_seeds(["p2.toss", "p2.toss"], "out", seeds=[0, 2, 2], engine=Elsewhere(tmp_path / "away"))
    assert (tmp_path / "out" / "p2" / "toss.json").exists()
    assert (tmp_path / "out" / "seed2" / "p2" / "toss.json").exists()
    assert [(line["holds"], line["seeds"]) for line in found.summary()] == [(2, 2), (0, 2)]
