"""Small regions by cells, with more inputs than cells can cover everywhere."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import farfield as ff
from certify.regions import attack
from farfield.certify import _local, verify_certificate
from farfield.certify._checks import Checks
from farfield.certify._solve import published
from farfield.certify._task import Task
from farfield.certify.cells import branch
from farfield.certify.checker import proof_reader
from farfield.certify.checker._cells import CellsCheck
from farfield.graph import capture

F64 = torch.float64


def net(kind, dim=7, seed=0):
    torch.manual_seed(seed)
    first = [nn.LayerNorm(16)] if kind in ("every", "first") else []
    second = [nn.LayerNorm(16)] if kind in ("every", "late") else []
    return (
        nn.Sequential(
            nn.Linear(dim, 16), *first, nn.GELU(), nn.Linear(16, 16), *second, nn.ReLU(), nn.Linear(16, 2)
        )
        .double()
        .eval()
    )  # fmt: skip


def box(size, dim=7):
    center = torch.linspace(-1.0, 1.0, dim, dtype=F64)
    return {"kind": "box", "lower": (center - size).tolist(), "upper": (center + size).tolist()}


@pytest.mark.parametrize("kind", ["every", "late", "plain"])
def test_a_small_region_is_tight_whatever_the_network(kind):
    model, domain = net(kind), box(1e-3)
    made = ff.certify(model, torch.zeros(1, 7, dtype=F64), domain=domain, time_budget=ff.Budget(steps=300))
    assert float(made.tightness.max()) < 1.1
    assert {p["kind"] for p in made.proofs} == {"cells"}
    assert verify_certificate(model, json.loads(json.dumps(made.to_dict())))
    low, high = attack(model, made.domain, 7, 0)
    assert bool((made.lower.reshape(-1) <= low).all())
    assert bool((high <= made.upper.reshape(-1)).all())


def test_a_large_region_is_left_to_the_others():
    model, domain = net("every"), box(3.0)
    made = ff.certify(model, torch.zeros(1, 7, dtype=F64), domain=domain, time_budget=ff.Budget(steps=60))
    assert "cells" not in {p["kind"] for p in made.proofs}
    assert verify_certificate(model, made)


def test_behind_two_norms_cells_are_what_makes_it_tight(monkeypatch):
    model, domain, x = net("every"), box(0.01), torch.zeros(1, 7, dtype=F64)
    both = ff.certify(model, x, domain=domain, time_budget=ff.Budget(steps=200))
    monkeypatch.setattr(_local, "MOST_DIMENSIONS", 0)
    others = ff.certify(model, x, domain=domain, time_budget=ff.Budget(steps=200))
    assert verify_certificate(model, both)
    assert 10 * float(both.tightness.max()) < float(others.tightness.max())


def test_between_tiny_and_large_a_late_norm_is_bounded_by_cells(monkeypatch):
    """The checker's bounds of these cells are coarse: it halves them as far as the budget goes."""
    model, domain, x = net("late"), box(0.05), torch.zeros(1, 7, dtype=F64)
    made = ff.certify(model, x, domain=domain, time_budget=ff.Budget(steps=200))
    assert {p["kind"] for p in made.proofs} == {"cells"}
    assert verify_certificate(model, json.loads(json.dumps(made.to_dict())))
    monkeypatch.setattr(_local, "MOST_DIMENSIONS", 0)
    others = ff.certify(model, x, domain=domain, time_budget=ff.Budget(steps=200))
    assert 5 * float(made.tightness.max()) < float(others.tightness.max())


@pytest.mark.parametrize(
    ("kind", "plan"),
    [("first", _local.USUAL), ("plain", _local.USUAL), ("late", _local.LATE), ("every", _local.LATE)],
)
def test_cells_get_most_of_the_time_only_where_a_norm_stands_behind_other_layers(kind, plan, monkeypatch):
    seen = []
    monkeypatch.setattr(_local, "_lines", lambda case, made, plan: seen.append(plan) or {})
    monkeypatch.setattr(_local, "_check", lambda *_: None)
    ff.certify(net(kind), torch.zeros(1, 7, dtype=F64), domain=box(0.05), time_budget=ff.Budget(steps=20))
    assert seen == [plan]


def searched(size=0.05):
    """A task, and cells of its first entry that the checker does not follow at once."""
    program = capture(net("late"), torch.zeros(1, 7, dtype=F64), dynamic_batch=False)
    task = Task.over(program, program.outputs[0], box(size))
    network = task.network
    proof, _ = branch(network, 0, 1, time_budget=ff.Budget(steps=20), tolerance=0.0)
    return task, proof


class Ends:
    """A clock that is over once it was asked so many times."""

    def __init__(self, asked):
        self.asked = asked

    @property
    def seconds_left(self):
        self.asked -= 1
        return float(self.asked >= 0)


def test_cells_are_published_with_what_the_checker_has_proved_by_then(monkeypatch):
    monkeypatch.setattr(CellsCheck, "batch", property(lambda _: 16, lambda *_: None), raising=False)
    task, proof = searched()
    checks = Checks(task, ff.Budget(steps=1).start())
    checks.run_cells((0, 1), proof, math.inf, Ends(0))
    assert checks.proofs[0, 1].bound == math.inf, "not every cell was looked at once"
    once, part, whole = (Checks(task, ff.Budget(steps=1).start()) for _ in range(3))
    once.run_cells((0, 1), proof, math.inf, Ends(10**9))
    part.run_cells((0, 1), proof, proof.bound, Ends(30))
    whole.run_cells((0, 1), proof, proof.bound, Ends(10**9))
    first, some, least = (made.proofs[0, 1].bound for made in (once, part, whole))
    assert proof.bound <= least < some < first < math.inf
    whole.run_cells((0, 1), proof, math.inf, Ends(10**9))
    assert whole.proofs[0, 1].bound == least, "a shorter check takes nothing back"
    read = proof_reader(task.model, task.output, task.domain)
    assert read(part.proofs[0, 1].to_dict()) <= published(some)


def test_cells_of_a_small_region_are_resumed_and_nothing_gets_worse():
    model, domain, x = net("every"), box(1e-3), torch.zeros(1, 7, dtype=F64)
    first = ff.certify(model, x, domain=domain, time_budget=ff.Budget(steps=300))
    assert {p["kind"] for p in first.proofs} == {"cells"}
    for steps in (1, 60, 400):
        again = ff.certify(model, x, domain=domain, resume=first, time_budget=ff.Budget(steps=steps))
        assert bool((again.lower >= first.lower).all() and (again.upper <= first.upper).all()), steps
        assert verify_certificate(model, json.loads(json.dumps(again.to_dict())))
