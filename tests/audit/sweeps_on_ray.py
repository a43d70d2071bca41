"""Sweeps and audits on a cluster of two workers: the same rows as here, bit for bit."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.tree import DecisionTreeRegressor

import checkpoints as zoo
from farfield import data
from farfield.audit import audit_all
from farfield.engine import ray
from farfield.learn import StableMLPRegressor, sweep
from farfield.papers import run_seeds
from farfield.papers._experiment import result_folder
from ray_tests import require_namespace


@pytest.fixture(scope="module")
def cluster():
    require_namespace()
    torch.set_num_threads(1)
    with ray(workers=2) as engine:
        yield engine


def wave(seed):
    draw = np.random.default_rng(3)
    x = draw.normal(size=(120, 2))
    y = np.sin(2 * x[:, 0]) + x[:, 1] + 0.1 * draw.normal(size=120)
    parts = data.far_field_split(x, y, far=x[:, 0] > 1.0, share=0.8, seed=seed)
    return data.Dataset("wave", *parts, ("a", "b"), ("y",), "", "", "")


def test_estimators_datasets_seeds(cluster, tmp_path):
    models = {
        "line": Ridge(),
        "tree": DecisionTreeRegressor(random_state=0),
        "network": StableMLPRegressor((8, 8), max_epochs=15, random_state=0),
    }
    sources = {"wave": wave, "nowhere": lambda seed: 1 / 0}
    here, there = (
        [
            {**dataclasses.asdict(run), "fit_cpu_seconds": 0}
            for run in sweep(models, sources, seeds=range(3), engine=engine).runs
        ]
        for engine in ("local", cluster)
    )
    assert repr(here) == repr(there) and len(here) == 18  # by text: nan is nan
    assert sum(run["error"] is not None for run in here) == 9
    assert len({run["near"] for run in here if run["error"] is None}) == 9


def test_experiments_with_seeds(cluster, tmp_path):
    here, there = (
        run_seeds(["p3.fig1", "p3.fig2"], tmp_path / name, seeds=[0, 1], quick=True, engine=engine)
        for name, engine in (("here", "local"), ("there", cluster))
    )
    assert here.rows == there.rows and not [row for row in here.rows if row.error]
    for seed in (0, 1):
        one, other = (
            json.loads((result_folder(tmp_path / name, quick=True, seed=seed) / "p3/fig1.json").read_text())
            for name in ("here", "there")
        )
        assert one["numbers"] == other["numbers"] and one["provenance"]["seed"] == seed


def test_audits(cluster, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)  # where the builder is
    expected, failures = zoo.write_checkpoints(
        tmp_path, 12, ["truncated", "raises", "wrong_shapes"], built=0.1
    )
    here, there = (
        audit_all(tmp_path / "models" / "registry.jsonl", out=tmp_path / name, engine=engine)
        for name, engine in (("here", "local"), ("there", cluster))
    )
    rows = []
    for name in ("here", "there"):
        text = (tmp_path / name / "audits.jsonl").read_text(encoding="utf-8")
        rows.append([json.loads(line) for line in text.splitlines()])
        assert zoo.disagreements(rows[-1], expected, failures) == []
    untimed = [[{k: v for k, v in row.items() if "seconds" not in k} for row in some] for some in rows]
    assert untimed[0] == untimed[1] and len(untimed[0]) == 12
    assert len(here.errors) == len(there.errors) == 3
