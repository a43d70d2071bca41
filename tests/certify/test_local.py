"""Small regions by cells, with more inputs than cells can cover everywhere."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import farfield as ff
from certify.regions import attack
from farfield.certify import _local, verify_certificate

F64 = torch.float64


def net(kind, dim=7, seed=0):
    torch.manual_seed(seed)
    first = {"every": [nn.LayerNorm(16)], "late": [], "plain": []}[kind]
    second = [] if kind == "plain" else [nn.LayerNorm(16)]
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
