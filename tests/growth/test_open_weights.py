"""Programs whose weights were left open: what is bounded is so for whatever weights, and no weight is read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from farfield.graph import capture
from farfield.growth import Kind, Status, analyze
from farfield.growth._analysis import analyze_growth


class Gate(nn.Module):
    """LayerNorm beside a path with a gate that is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.gate = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) + self.gate * x


class Quotient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) / self.size


class HandWrittenNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def growth(model: nn.Module, shape: tuple[int, ...] = (2, 4)):
    program = capture(model.eval(), torch.randn(shape), open_weights=True)
    return analyze_growth(program).growth(program.outputs[0])


BOUNDED = {
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1)),
    "written by hand": lambda: nn.Sequential(HandWrittenNorm(), nn.Linear(4, 2)),
    "sigmoid": lambda: nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 1)),
    "group norm, then batch norm": lambda: nn.Sequential(
        nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.BatchNorm1d(8)
    ),
    "attention behind a norm": lambda: nn.Sequential(
        nn.LayerNorm(4), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    ),
}
GROWING = {
    "plain": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)),
    "a gate that is 0": Gate,
}


@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_bounded_for_whatever_weights_is_bounded_for_each_of_many(name):
    shape = (2, 3, 4) if "attention" in name else (2, 4)
    assert growth(BOUNDED[name](), shape).bounded
    for seed, scale in ((0, 0.0), (1, 1e-6), (2, 1.0), (3, 1e6)):
        torch.manual_seed(seed)
        model = BOUNDED[name]().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_().mul_(scale)
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    buffer.uniform_(0.0, 2.0)
        assert analyze(model, (torch.randn(shape),)).status is Status.BOUNDED


@pytest.mark.parametrize("name", GROWING)
def test_what_some_weights_let_grow_is_not_called_bounded(name):
    found = growth(GROWING[name]())
    assert found.kind is Kind.LINEAR


def test_a_gate_that_is_zero_is_read_only_where_weights_are():
    assert analyze(Gate(), (torch.randn(2, 4),)).status is Status.BOUNDED
    assert not growth(Gate()).bounded


def test_a_weight_that_may_be_zero_is_not_divided_by():
    found = growth(Quotient())
    assert found.kind is Kind.UNKNOWN and found.reason is not None


@pytest.mark.parametrize(("eps", "kind"), [(1e-5, Kind.LINEAR), (0.0, Kind.UNKNOWN)])
def test_a_running_variance_is_not_negative_and_may_be_zero(eps, kind):
    found = growth(nn.BatchNorm1d(4, eps=eps))
    assert found.kind is kind
    if kind is Kind.LINEAR:
        assert any("running variances" in a.text for a in found.assumptions)


def test_no_value_of_a_weight_is_looked_at():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    program = capture(model.eval(), torch.randn(2, 4), open_weights=True)
    assert not program.constants
    assert analyze_growth(program).growth(program.outputs[0]).bounded
