"""P1's protein experiments, on data of the same form made up here: parts against references, claims that can fail."""

import copy
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from farfield import data
from farfield._intervals import mean_interval, student_quantile
from farfield.errors import MissingExtraError, UnknownNameError
from farfield.papers import run_experiment
from farfield.papers._experiment import missing
from farfield.papers.p1 import _far, _protein, scaling, table1
from farfield.papers.p1._trees import boosted_trees

SMALL = {
    "variants": {"standard": "none", "LN second": "second"}, "seeds": 2, "rows": 200, "epochs": 20, "width": 16,
    "rounds": 5, "directions": 30, "time_budget": 0.0, "judge_scores": False,
}  # fmt: skip
NETWORK = {
    "width": 8, "depth": 2, "activation": "relu", "weight_var": 2.0, "bias_var": 0.01, "norm_affine": False,
    "lr": 1e-2, "precision": "float32", "progress": lambda done, total: None,
}  # fmt: skip


def made_up(name, *, seed=0, shift=0.0):
    """Rows like those of the protein data: an area first, eight more columns of very different sizes."""
    draw = np.random.default_rng(7)
    x = draw.standard_normal((400, 9)) * 10.0 ** np.arange(-4, 5) + 1.0
    x[:, 0] = draw.uniform(3_000, 30_000, 400)
    far = x[:, 0] >= 20_000
    x[far] += shift
    y = 5.0 + np.sin(x[:, 0] / 4_000) + x[:, 4] + 0.1 * draw.standard_normal(400)
    parts = data.far_field_split(x, y, far=far, share=0.9, seed=seed)
    return data.Dataset("protein", *parts, tuple("abcdefghi"), ("y",), "", "", "")


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr(data, "load", made_up)


def experiment(**changes):
    return dataclasses.replace(
        table1.EXPERIMENT, settings={**table1.EXPERIMENT.settings, **SMALL, **changes}, quick={}
    )


# ------------------------------------------------------------------ intervals and scores


def test_quantiles_of_students_t():
    stats = pytest.importorskip("scipy.stats")
    for degrees in (1, 2, 3, 9, 29, 249, 2000):
        for probability in (0.6, 0.95, 0.975, 0.995):
            truth = stats.t.ppf(probability, degrees)
            assert student_quantile(probability, degrees) == pytest.approx(truth, rel=1e-10)
            assert stats.norm.ppf(probability) != pytest.approx(truth, rel=1e-6)


def test_the_interval_of_a_mean():
    stats = pytest.importorskip("scipy.stats")
    values = torch.tensor([[0.2, 3.0], [0.5, 4.0], [0.1, -1.0]], dtype=torch.float64)
    mean, half = mean_interval(values)
    low, high = stats.t.interval(0.95, 2, values.mean(0), stats.sem(values, axis=0))
    np.testing.assert_allclose(mean - half, low, rtol=1e-10)
    np.testing.assert_allclose(mean + half, high, rtol=1e-10)
    assert mean_interval(values[:1])[1].isinf().all()


def test_r_squared_is_the_usual_one():
    metrics = pytest.importorskip("sklearn.metrics")
    draw = torch.Generator().manual_seed(0)
    target, predicted = torch.randn(2, 3, 50, generator=draw, dtype=torch.float64)
    truth = [metrics.r2_score(t, p) for t, p in zip(target, predicted, strict=True)]
    np.testing.assert_allclose(_protein.r_squared(predicted, target), truth, rtol=1e-12)


# ------------------------------------------------------------------ data


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("name", _protein.SCALINGS)
def test_scalings_do_what_they_say_on_the_training_rows(name):
    (case,) = _protein.load_cases([3], name, 150)
    assert case.sizes[0] == 150 and len(case.x) == sum(case.sizes) and case.x.dtype == torch.float64
    x = case.x[case.part("train")].numpy()
    zero, one = {
        "standard": (x.mean(0), x.std(0)),
        "robust": (np.median(x, 0), np.quantile(x, 0.75, axis=0) - np.quantile(x, 0.25, axis=0)),
        "minmax": (x.min(0), np.ptp(x, axis=0)),
        "none": (x - made_up("protein", seed=3).train.x[:150], 1.0),
    }[name]
    np.testing.assert_allclose(zero, 0.0, atol=1e-10)
    np.testing.assert_allclose(one, 1.0, rtol=1e-10)
    y = case.y[case.part("train")]
    assert abs(float(y.mean())) < 1e-12 and float(y.std(correction=0)) == pytest.approx(1.0)
    truth = made_up("protein", seed=3)
    np.testing.assert_allclose(
        case.center + case.spread * case.y[case.part("ood"), 0], truth.ood.y, rtol=1e-10
    )
    np.testing.assert_array_equal(case.area[case.part("id")], truth.id.x[:, 0])
    assert case.area[case.part("ood")].min() >= 20_000 > case.area[case.part("id")].max()


@pytest.mark.parametrize("name", _protein.SCALINGS)
def test_rows_beyond_the_region_have_no_say_in_the_scaling(name, monkeypatch):
    found = []
    for shift in (0.0, 1e6):
        monkeypatch.setattr(data, "load", functools.partial(made_up, shift=shift))
        (case,) = _protein.load_cases([0], name, None)
        found.append(case.x[: sum(case.sizes[:2])])
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.usefixtures("rows")
def test_an_unknown_scaling_is_refused():
    with pytest.raises(UnknownNameError, match="minmax"):
        _protein.load_cases([0], "minimax", None)


# ------------------------------------------------------------------ training


@pytest.mark.usefixtures("rows")
def test_every_network_learns_from_its_own_rows(tmp_path):
    """Those of two seeds trained together are those of each seed alone; with the rows exchanged they are not."""
    cases = _protein.load_cases([0, 1], "standard", None)
    variants = {"standard": "none", "LN first": "first"}

    def trained(chosen, folder):
        return _protein.train_variants(chosen, variants, epochs=15, scratch=tmp_path / folder, **NETWORK)

    together = trained(cases, "both")
    exchanged = trained([cases[0], dataclasses.replace(cases[0], seed=1)], "exchanged")
    for k, case in enumerate(cases):
        alone = trained([case], f"{k}")
        for name in variants:
            x = case.x[case.part("id")]
            truth = alone.models[name][0](x)
            torch.testing.assert_close(together.models[name][k](x), truth, rtol=1e-4, atol=1e-5)
            mean = _protein.predictions(together.models[name], cases, "id")[k]
            torch.testing.assert_close(mean[:, None], together.models[name][k](x), rtol=1e-12, atol=1e-12)
            assert together.losses[name][k] == pytest.approx(alone.losses[name][0], rel=1e-4)
    wrong = exchanged.models["standard"][1](cases[1].x)
    assert (wrong - together.models["standard"][1](cases[1].x)).abs().max() > 1e-2


def test_trees_are_those_of_the_packages_defaults():
    xgboost = pytest.importorskip("xgboost")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(300, 9, generator=draw, dtype=torch.float64)
    y = (x[:, 0] * x[:, 1]).sin()[:, None]
    truth = xgboost.XGBRegressor(n_estimators=100).fit(x.numpy(), y.numpy()).predict(x.numpy())
    np.testing.assert_allclose(boosted_trees(x, y, x, rounds=100), truth, rtol=1e-5, atol=1e-6)
    assert np.abs(boosted_trees(x, y, x, rounds=20).numpy() - truth).max() > 1e-3


@pytest.mark.data
def test_table1_goes_on_without_xgboost(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    if reason := missing(table1.EXPERIMENT):
        pytest.skip(reason)
    record = run_experiment(table1.EXPERIMENT, tmp_path, quick=True)
    assert "farfield[trees]" in record["numbers"]["XGBoost"]["not run"]
    assert [row[0] for row in record["table"]["rows"]] == list(table1.VARIANTS)
    assert "Without XGBoost" in record["figure"]["caption"] and record["verdicts"]


def test_without_xgboost_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    x = torch.zeros(2, 1)
    with pytest.raises(MissingExtraError, match=r"farfield\[trees\]"):
        boosted_trees(x, x, x, rounds=1)


# ------------------------------------------------------------------ claims


@pytest.mark.usefixtures("rows")
def test_far_field_claims_hold_and_can_fail(tmp_path, monkeypatch):
    record = run_experiment(experiment(), tmp_path / "right")
    assert len(record["verdicts"]) == 2 and not any(v["surprising"] for v in record["verdicts"])
    far = record["numbers"]["LN second"]["far_field"]
    assert all(
        a < b < c < d
        for a, b, c, d in zip(
            *(far[k] for k in ("certified_lower", "lowest", "highest", "certified_upper")), strict=True
        )
    )
    right_bounds, right_slopes = _far.bounds, _far.slopes

    def narrow(*args, **options):
        found = right_bounds(*args, **options)
        return dataclasses.replace(found, lower=found.lower / 1e3, upper=found.upper / 1e3)

    def steep(*args, **options):
        found = right_slopes(*args, **options)
        return dataclasses.replace(found, exact=1.001 * found.exact)

    monkeypatch.setattr(table1, "bounds", narrow)
    monkeypatch.setattr(table1, "slopes", steep)
    record = run_experiment(experiment(), tmp_path / "wrong")
    assert all(v["surprising"] for v in record["verdicts"])


def scored(name, inside, outside):
    noise = 0.01 * torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    return table1._Model(name, {}, {"id": inside + noise, "ood": outside + noise})


def test_claims_about_scores_can_fail():
    printed = {n: scored(n, p["id"][0], p["ood"][0]) for n, p in table1._PRINTED.items() if n != table1.TREES}
    assert all(v.holds for v in table1._scores_agree(printed))
    for changed in (
        scored("LN first", 0.62, 0.50),
        scored("LN first", 0.59, 0.40),
        scored("standard", 0.55, 0.31),
    ):
        failed = [v for v in table1._scores_agree({**printed, changed.name: changed}) if not v.holds]
        assert len(failed) == 1 and failed[0].claim.startswith(changed.name)
    # Far above, but so scattered that the intervals overlap.
    wide = table1._Model(
        "LN first", {}, {"id": printed["LN first"].scores["id"], "ood": torch.tensor([0.2, 0.5, 0.8])}
    )
    assert sum(not v.holds for v in table1._scores_agree({**printed, "LN first": wide})) == 1


@pytest.mark.usefixtures("rows")
def test_scalings_claims_hold_and_can_fail(tmp_path):
    settings = {
        **scaling.EXPERIMENT.settings, "scalings": ["standard", "none"], "seeds": 2, "rows": 100, "epochs": 3,
        "width": 8, "directions": 10, "variants": SMALL["variants"],
    }  # fmt: skip
    options = {"progress": lambda done, total: None, "seed": 0}
    found = scaling.run(scratch=tmp_path / "right", **settings, **options)
    assert [v.holds for v in found.verdicts[2:]] == [True, True]
    assert found.numbers.keys() == {"standard", "none"} and len(found.table.rows) == 4
    # Raw inputs of size 10⁴ without a norm: far off after three epochs.
    assert max(found.numbers["none"]["standard"]["ood"]) < min(found.numbers["none"]["LN second"]["ood"])
    assert found.verdicts[1].holds
    models = {"standard": torch.nn.Linear(9, 1), "LN second": torch.nn.Linear(9, 1)}
    rays = _far.unit_directions(5, 9, 0)
    assert not scaling._far("none", models, SMALL["variants"], rays).holds


# ------------------------------------------------------------------ stopping and going on

KILLED = """
import functools, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(int(sys.argv[2]))
from papers import test_p1_protein as here
from farfield import data
from farfield.learn import train
from farfield.papers import run_experiment
from farfield.papers.p1 import _protein
data.load = here.made_up
_protein.train = functools.partial(train, checkpoint_seconds=0.0)
def progress(done, total):
    if done == 11:
        os.kill(os.getpid(), signal.SIGKILL)
run_experiment(here.experiment(), Path(sys.argv[1]), progress=progress)
"""


@pytest.mark.usefixtures("rows")
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_run_that_was_killed_goes_on_to_the_same_numbers(tmp_path):
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed"), str(torch.get_num_threads())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "killed" / "p1" / "table1.json").exists()
    assert list((tmp_path / "killed" / "p1" / "table1").glob("*/training/*.result"))

    epochs = []
    resumed = run_experiment(experiment(), tmp_path / "killed", progress=lambda done, _: epochs.append(done))
    assert epochs[0] in (10, 11) and epochs[-1] == 24
    whole = run_experiment(experiment(), tmp_path / "whole")
    for part in ("numbers", "table", "verdicts", "figure"):
        assert json.dumps(resumed[part]) == json.dumps(whole[part])
    assert not (tmp_path / "killed" / "p1" / "table1").exists()


FULL_SIZE = {"epochs": 12, "directions": 20, "time_budget": 0.0, "judge_scores": False}
LONG = """
import dataclasses, functools, sys
from pathlib import Path
import torch
torch.set_num_threads(int(sys.argv[2]))
from papers import test_p1_protein as here
from farfield.learn import train
from farfield.papers import run_experiment
from farfield.papers.p1 import _protein
_protein.train = functools.partial(train, checkpoint_seconds=2.0)
run_experiment(here.full_size(), Path(sys.argv[1]))
"""


def full_size():
    """All rows, seeds and variants of the paper, for a few epochs."""
    settings = {**table1.EXPERIMENT.settings, **FULL_SIZE}
    return dataclasses.replace(table1.EXPERIMENT, settings=settings, quick={})


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
@pytest.mark.skipif(not data.is_here("protein"), reason="farfield data fetch protein")
def test_all_rows_and_seeds_killed_at_any_moment(tmp_path):
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", LONG, str(tmp_path / "killed"), str(torch.get_num_threads())]
    running = subprocess.Popen(command, env=environment)
    stored = tmp_path / "killed" / "p1" / "table1"
    while not list(stored.glob("*/training/*.result")):
        assert running.poll() is None
        time.sleep(0.05)
    time.sleep(float(np.random.default_rng().uniform(0.0, 15.0)))
    running.kill()
    assert running.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "p1" / "table1.json").exists()

    epochs = []
    resumed = run_experiment(full_size(), tmp_path / "killed", progress=lambda done, _: epochs.append(done))
    assert epochs[0] >= 1
    whole = run_experiment(full_size(), tmp_path / "whole")
    for part in ("numbers", "table", "verdicts", "figure"):
        assert json.dumps(resumed[part]) == json.dumps(whole[part])


def test_claims_of_the_text_are_read_from_the_record_and_can_fail():
    path = Path(__file__).parents[2] / "docs" / "reproductions" / "p1" / "table1.json"
    record = json.loads(path.read_text())
    held = table1._claims(record)
    assert len(held) == 5 and all(v.holds for v in held)
    assert {v.claim for v in held} <= {v["claim"] for v in record["verdicts"]}
    worse = copy.deepcopy(record)
    worse["numbers"]["LN first"]["ood"]["mean_and_half_width"] = [0.31, 0.02]
    tails, errors = worse["figure"]["panels"][:2]
    for panel, label in ((tails, "LN every"), (errors, "XGBoost")):
        series = next(s for s in panel["series"] if s["label"] == label)
        series["y"] = [0.1] * len(series["y"]) if panel is tails else [99.0, *series["y"][1:-1][::-1], 50.0]
    assert [v.holds for v in table1._claims(worse)] == [False] * 5
    record["provenance"]["settings"]["judge_scores"] = False
    assert table1._claims(record) == []
