"""Evaluation agrees with honest verdicts, and contradicts planted ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from farfield.atlas._evidence import check_verdicts
from farfield.audit._unsettle import unsettle
from farfield.growth import Status, analyze


def relu_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


def normed_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)).eval()


class Exponential(nn.Module):
    def forward(self, x):
        return torch.exp(x).sum(-1, keepdim=True)


def examined(model, change=lambda verdict: verdict):
    inputs = (torch.randn(2, 4),)
    report = analyze(model, inputs)
    report = replace(report, verdicts=tuple(change(v) for v in report.verdicts))
    return check_verdicts(model, inputs, report, inputs)


@pytest.mark.parametrize(
    "model", [relu_network(), normed_network(), Exponential()], ids=["relu", "norm", "exp"]
)
def test_honest_verdicts_hold(model):
    found = examined(model)
    assert found.holds is True, found.said
    assert "float64" in found.said


def test_a_bounded_that_grows_is_contradicted():
    honest = analyze(normed_network(), (torch.randn(2, 4),)).verdicts[0]
    found = examined(
        relu_network(), lambda v: replace(v, status=Status.BOUNDED, witness=None, growth=honest.growth)
    )
    assert found.holds is False


def test_a_range_that_is_left_is_contradicted():
    def tighter(verdict):
        low, high = verdict.growth.interval
        return replace(verdict, growth=replace(verdict.growth, interval=(low / 1e3, high / 1e3)))

    found = examined(normed_network(), tighter)
    assert found.holds is False
    assert "range" in found.said


def test_a_growing_output_without_a_range_is_contradicted():
    honest = analyze(normed_network(), (torch.randn(2, 4),)).verdicts[0]
    growth = replace(honest.growth, interval=(float("-inf"), float("inf")))
    found = examined(relu_network(), lambda v: replace(v, status=Status.BOUNDED, witness=None, growth=growth))
    assert found.holds is False
    assert "1e12" in found.said


@pytest.mark.parametrize("factor", [1.1, -1.0, 0.5])
def test_a_wrong_rate_is_contradicted(factor):
    def changed(verdict):
        return replace(verdict, witness=replace(verdict.witness, slope=factor * verdict.witness.slope))

    found = examined(relu_network(), changed)
    assert found.holds is False
    assert "rate" in found.said


def test_an_unbounded_without_a_witness_is_contradicted():
    found = examined(relu_network(), lambda v: replace(v, witness=None))
    assert found.holds is False
    assert "no witness" in found.said


def test_a_bounded_output_that_is_late_to_settle_holds():
    """A norm whose stabilizer hides it until far out: small near the data, its full size beyond 10⁶."""
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.LayerNorm(8, eps=1e12, elementwise_affine=False))
    torch.manual_seed(0)
    nn.init.normal_(model[0].weight)
    found = examined(nn.Sequential(model, nn.Linear(8, 1, bias=False)).eval())
    assert found.holds is True, found.said


def test_unsettled_weights_are_drawn_once_and_only_where_all_are_equal():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = model[0].weight.clone()
    torch.manual_seed(3)
    unsettle(model)
    assert torch.equal(model[0].weight, before)
    assert model[1].weight.unique().numel() == 4
    assert model[1].bias.unique().numel() == 4
    assert bool((model[1].running_var >= 0.5).all())
    other = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    torch.manual_seed(3)
    unsettle(other)
    assert torch.equal(other[1].weight, model[1].weight)
