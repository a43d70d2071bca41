"""Sweeps: numbers against a plain loop, failures that stop nothing, going on after a stop."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from farfield import data
from farfield.engine import local
from farfield.errors import InvalidValueError, UnknownNameError
from farfield.learn import Sweep, sweep


def wave(seed):
    draw = np.random.default_rng(3)
    x = draw.normal(size=(120, 2)) * [1.0, 50.0] + [0.0, 1e3]
    y = np.sin(x[:, 0]) + 0.02 * x[:, 1] + 0.1 * draw.normal(size=120)
    parts = data.far_field_split(x, y, far=x[:, 0] > 1.0, share=0.8, seed=seed)
    return data.Dataset("wave", *parts, ("a", "b"), ("y",), "", "", "")


class Broken(RegressorMixin, BaseEstimator):
    def fit(self, X, y):
        raise ValueError("it never fits")


class Counted(Ridge):
    """Says on disk that it was fitted."""

    def __init__(self, alpha=1.0, log=""):
        super().__init__(alpha=alpha)
        self.log = log

    def fit(self, X, y, sample_weight=None):
        with open(self.log, "a") as lines:
            lines.write("fitted\n")
        return super().fit(X, y)


MODELS = {
    "tree": make_pipeline(StandardScaler(), DecisionTreeRegressor(splitter="random")),
    "line": LinearRegression(),
}


def test_the_numbers_are_those_of_a_plain_loop():
    found = sweep(MODELS, {"wave": wave}, seeds=[4, 7], blown_up=10.0)
    assert [(r.dataset, r.seed, r.model) for r in found.runs] == [
        ("wave", s, m) for s in (4, 7) for m in ("tree", "line")
    ]
    for run in found.runs:
        split = wave(run.seed)
        model = clone(MODELS[run.model])
        if run.model == "tree":
            model.set_params(decisiontreeregressor__random_state=run.seed)
        model.fit(split.train.x, split.train.y)
        unit, middle = split.train.y.std(), split.train.y.mean()
        for part, error, score in ((split.id, run.near, run.near_r2), (split.ood, run.far, run.far_r2)):
            away = model.predict(part.x) - part.y
            assert error == pytest.approx(np.sqrt(np.mean(away**2)) / unit, rel=1e-12)
            assert score == pytest.approx(model.score(part.x, part.y), rel=1e-9)
        held_out = np.concatenate([split.id.x, split.ood.x])
        center = split.train.x.mean(0)
        blown = center + 10.0 * (held_out - center)
        assert run.worst == pytest.approx(np.abs(model.predict(held_out) - middle).max() / unit, rel=1e-12)
        assert run.worst_blown_up == pytest.approx(
            np.abs(model.predict(blown) - middle).max() / unit, rel=1e-12
        )
        assert run.rows == len(split.train) and run.error is None
    assert found.runs[0].near != found.runs[2].near  # another seed, another split


def numbers(found):
    return [{**vars(run), "fit_cpu_seconds": 0} for run in found.runs]


def test_the_engine_does_not_show():
    one, many = (sweep(MODELS, {"wave": wave}, seeds=range(3), engine=local(workers=w)) for w in (1, 3))
    assert numbers(one) == numbers(many)


def test_what_fails_is_a_row_and_stops_nothing(tmp_path):
    found = sweep({"broken": Broken(), **MODELS}, {"wave": wave, "nowhere": lambda seed: 1 / 0}, seeds=[0])
    errors = {(run.dataset, run.model): run.error for run in found.runs}
    assert errors["wave", "broken"] == "ValueError: it never fits"
    assert errors["wave", "line"] is None and errors["wave", "tree"] is None
    assert {v for (name, _), v in errors.items() if name == "nowhere"} == {
        "ZeroDivisionError: division by zero"
    }
    assert len(found.failed) == 4
    stored = json.loads(found.save(tmp_path / "made" / "sweep.json").read_text())
    assert stored["numbers"]["runs"][0]["near"] is None and stored["provenance"]["settings"]["seeds"] == [0]
    assert len(stored["numbers"]["runs"]) == len(found.columns()["error"]) == 6
    assert [line["seeds"] for line in stored["numbers"]["summary"]] == [0, 1, 1, 0, 0, 0]


class Flaky(Ridge):
    """Fails for want of something, as often as the file says."""

    def __init__(self, alpha=1.0, file="", kind="OSError"):
        super().__init__(alpha)
        self.file, self.kind = file, kind

    def fit(self, x, y):
        left = int(Path(self.file).read_text())
        Path(self.file).write_text(str(left - 1))
        if left > 0:
            raise {"OSError": OSError, "MemoryError": MemoryError, "ValueError": ValueError}[self.kind](
                "not now"
            )
        return super().fit(x, y)


@pytest.mark.parametrize("kind", ["OSError", "MemoryError", "ValueError"])
def test_what_fails_for_a_passing_reason_is_tried_again(tmp_path, kind):
    file, options = tmp_path / "left", {"seeds": [0], "checkpoint": tmp_path / "runs"}
    models = {"flaky": Flaky(file=str(file), kind=kind)}
    file.write_text("2")
    passing = kind != "ValueError"
    assert (sweep(models, {"wave": wave}, seeds=[0]).runs[0].error is None) == passing
    file.write_text(
        "5"
    )  # more often than it is tried: a row with the error, which the next run computes again
    assert sweep(models, {"wave": wave}, **options).runs[0].error == f"{kind}: not now"
    file.write_text("0")
    assert (sweep(models, {"wave": wave}, **options).runs[0].error is None) == passing


def test_only_what_is_missing_is_computed(tmp_path):
    log = tmp_path / "log"
    models = {"counted": Counted(log=str(log))}
    options = {"checkpoint": tmp_path / "runs"}
    first = sweep(models, {"wave": wave}, seeds=[0, 1], **options)
    again = sweep(models, {"wave": wave}, seeds=[0, 1, 2], **options)
    assert log.read_text().count("fitted") == 3
    assert again.runs[:2] == first.runs  # to the second of processor time: they were read
    sweep({"counted": Counted(alpha=2.0, log=str(log))}, {"wave": wave}, seeds=[0], **options)
    assert log.read_text().count("fitted") == 4
    with pytest.raises(InvalidValueError):  # a parameter that no other process could compare
        sweep({"ridge": Ridge(alpha=object())}, {"wave": wave}, **options)


def test_summary_has_means_and_intervals():
    found = sweep({"line": LinearRegression()}, {"wave": wave}, seeds=range(4))
    (line,) = found.summary()
    near = np.array([run.near for run in found.runs])
    stats = pytest.importorskip("scipy.stats")
    half = stats.t.ppf(0.975, 3) * near.std(ddof=1) / 2
    assert line["near"] == pytest.approx([near.mean(), half], rel=1e-9)
    assert line["worst"] == max(run.worst for run in found.runs)


def test_two_outputs_no_far_rows_and_a_constant_target():
    x = np.linspace(0, 1, 40)[:, None]
    y = np.concatenate([x, np.ones_like(x)], 1)
    parts = data.far_field_split(x, y, far=np.zeros(40, dtype=bool))
    whole = data.Dataset("pair", *parts, ("x",), ("a", "b"), "", "", "")
    (run,) = sweep({"line": LinearRegression()}, {"pair": whole}, seeds=[0]).runs
    assert run.error is None and run.near < 1e-12 and math.isnan(run.far) and math.isnan(run.far_r2)


def test_names_and_emptiness():
    with pytest.raises(InvalidValueError, match="at least one model"):
        sweep({}, {"wave": wave})
    found = sweep({"line": LinearRegression()}, ["no such table"], seeds=[0])
    assert UnknownNameError.__name__ in (found.failed[0].error or "")
    assert isinstance(found, Sweep)


def test_parquet_has_every_run_and_where_it_came_from(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    found = sweep({"broken": Broken(), "line": LinearRegression()}, {"wave": wave}, seeds=[0, 1])
    table = parquet.read_table(found.save(tmp_path / "sweep.parquet"))
    assert table.column("error").to_pylist() == [run.error for run in found.runs]
    assert table.column("far").to_pylist()[1] == found.runs[1].far
    assert json.loads(table.schema.metadata[b"farfield"]) == found.origin
