"""A model that torch.compile holds is looked at as it was written: no verb starts a compiler."""

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.monitor import FarFieldMonitor

ROWS = torch.rand(300, 4, generator=torch.Generator().manual_seed(0))


def refuse(graph, example):
    raise AssertionError("a compiler was started")


def whole():
    return torch.compile(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)), backend=refuse)


def in_part():
    first = torch.compile(nn.Linear(4, 16), backend=refuse)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(16, 1))


def in_place():
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    model.compile(backend=refuse)
    return model


@pytest.mark.parametrize("made", [whole, in_part, in_place])
def test_no_verb_compiles(made):
    model = made()
    assert ff.audit(model, ROWS[:1]).verdict.name == "UNBOUNDED"
    fixed = ff.repair(model, ROWS)
    assert fixed.after.verdict.name == "BOUNDED"
    assert bool(fixed.certificate(time_budget=ff.Budget(steps=5)).upper.isfinite().all())
    assert ff.guard(model, ROWS).summary().rows == 0
    assert FarFieldMonitor(model, ROWS[:8]).scalars()["far_field/slope"] > 0
    if made is not in_place:  # of its own containers torch compiles nothing there
        with pytest.raises(Exception, match="a compiler was started"):
            model(ROWS)  # as it was
