"""A program that is not the module is told apart, and one that is the module never is."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from farfield.audit import audit
from farfield.graph import capture, differs
from farfield.growth import Status, analyze


class Two(nn.Module):
    """A bounded way and an unbounded one; which of them runs is a subclass's to say."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 16), nn.LayerNorm(16), nn.Linear(16, 1)

    def safe(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.first(x))))

    def free(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(x)))


class SkipsTheNormForOneRow(Two):
    def forward(self, x):
        return self.free(x) if x.shape[0] == 1 else self.safe(x)


class SkipsTheNormForManyRows(Two):
    def forward(self, x):
        return self.free(x) if x.shape[0] > 64 else self.safe(x)


class SkipsTheNormForSomeRows(Two):
    def forward(self, x):
        return self.free(x) if x.shape[0] % 7 == 0 else self.safe(x)


class SkipsTheNormForThousandsOfRows(Two):
    def forward(self, x):
        return (
            torch.cat([self.free(c) for c in x.split(2048)])
            if len(x.shape) and x.shape[0] > 2048
            else self.safe(x)
        )


class AsksForTheType(Two):
    def forward(self, x):
        return self.free(x) if type(x) is Tensor else self.safe(x)


class ReadsAValue(Two):
    def forward(self, x):
        try:
            large = float(x.abs().max()) > 100.0
        except Exception:
            large = False
        return self.free(x) if large else self.safe(x)


class ReadsAValueAndOverflows(Two):
    def forward(self, x):
        try:
            large = float(x.abs().max()) > 100.0
        except Exception:
            large = False
        return (
            self.safe(x) + torch.exp(self.first(x).square().sum(-1, keepdim=True)) if large else self.safe(x)
        )


class ReadsNumpy(Two):
    def forward(self, x):
        try:
            large = x.numpy().max() > 100.0
        except Exception:
            large = False
        return self.free(x) if large else self.safe(x)


class AsksWhetherItIsCompiled(Two):
    def forward(self, x):
        return self.safe(x) if torch.compiler.is_compiling() else self.free(x)


class AsksWhetherItIsExported(Two):
    def forward(self, x):
        return self.safe(x) if torch.compiler.is_exporting() else self.free(x)


class DrawsAndAsks(Two):
    def forward(self, x):
        return (self.safe(x) if torch.compiler.is_compiling() else self.free(x)) + torch.rand(1)


class RollsPythonsDice(Two):
    def forward(self, x):
        return random.random() * self.safe(x)


FROZEN = [
    SkipsTheNormForOneRow,
    SkipsTheNormForManyRows,
    SkipsTheNormForSomeRows,
    SkipsTheNormForThousandsOfRows,
    AsksForTheType,
    ReadsAValue,
    ReadsAValueAndOverflows,
    ReadsNumpy,
    AsksWhetherItIsCompiled,
    AsksWhetherItIsExported,
    DrawsAndAsks,
    RollsPythonsDice,
]


class Plain(Two):
    def forward(self, x):
        return self.safe(x)


class AsksWhetherItTrains(Two):
    def forward(self, x):
        return self.free(x) if self.training else self.safe(x)


class DropsOut(Two):
    def forward(self, x):
        return nn.functional.dropout(self.safe(x), 0.5, training=True)


class Draws(Two):
    def forward(self, x):
        return self.safe(x) + torch.randn(x.shape[0], 1, dtype=x.dtype)


class ByHand(Two):
    """A norm and a layer as formulas, and a cosine that rounding decides far away."""

    def forward(self, x):
        h = x @ self.first.weight.T + self.first.bias
        normed = (h - h.mean(-1, keepdim=True)) / torch.sqrt(h.var(-1, unbiased=False, keepdim=True) + 1e-5)
        return self.head(normed) + torch.cos(100.0 * h) @ self.head.weight.T


class NaiveSoftmax(Two):
    """Overflows far away, where the softmax it is recognized as does not."""

    def forward(self, x):
        e = torch.exp(self.first(x))
        return self.head(e / e.sum(-1, keepdim=True))


class NaiveSigmoid(Two):
    def forward(self, x):
        e = torch.exp(self.first(x))
        return self.head(e / (1 + e))


class Cancels(Two):
    """Unit vectors along the edges of a graph and back again: 0 but for rounding."""

    def forward(self, x):
        d = x[:, [0, 1, 2, 3, 0, 2]] - x[:, [1, 0, 3, 2, 2, 0]]
        return (d / (d.abs() + 1e-6)).sum(1)


class CancelsByName(Two):
    """A GELU by hand and torch's own, which are one node of the program."""

    def forward(self, x):
        return 0.5 * x * (1 + torch.erf(x / 2**0.5)) - nn.functional.gelu(x)


class NormMinusNorm(Two):
    """A norm by hand less the module's, which rounding keeps from 0."""

    def forward(self, x):
        h = self.first(x)
        d = h - h.mean(-1, keepdim=True)
        return d / torch.sqrt((d * d).mean(-1, keepdim=True) + 1e-5) - self.norm(h)


class Refuses(Two):
    """Raises far away: nothing is claimed where it is not defined."""

    def forward(self, x):
        torch._assert(x.abs().max() < 1e5, "inputs are below 1e5")
        return self.safe(x)


class Counts(Two):
    """Its own state changes with every call; one call from the present state is what is captured."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.safe(x) * torch.tanh(self.calls)


FAITHFUL = [
    Plain,
    AsksWhetherItTrains,
    DropsOut,
    Draws,
    ByHand,
    NaiveSoftmax,
    NaiveSigmoid,
    Cancels,
    CancelsByName,
    NormMinusNorm,
    Refuses,
    Counts,
]


def seeded(kind):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind().eval(), torch.randn(2, 4)


@pytest.mark.parametrize("kind", FROZEN)
def test_a_frozen_branch_is_never_bounded(kind):
    model, x = seeded(kind)
    for inputs in (x, x[:1]):
        result = audit(model, (inputs,), rays=0)
        assert result.verdict is not Status.BOUNDED, inputs.shape
        assert analyze(model, inputs).status is result.verdict


def test_the_reason_names_the_input_and_both_values():
    model, x = seeded(ReadsAValue)
    reason = str(audit(model, x, rays=0).report.verdict().reason)
    assert "not the module" in reason and "size 1e+03" in reason and "from the module" in reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", FAITHFUL)
def test_the_module_itself_is_not_told_apart(kind, dtype):
    model, x = seeded(kind)
    model, x = model.to(dtype), x.to(dtype)
    for inputs in (x, x[:1]):
        assert differs(model, capture(model, inputs), inputs) is None
    before = torch.random.get_rng_state()
    differs(model, capture(model, x), x)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_module_is_left_as_it_was():
    model, x = seeded(Counts)
    model.train()
    differs(model, capture(model, x), x)
    assert model.training and float(model.calls) == 0.0


def test_a_fixed_batch_is_compared_at_its_own_size():
    model, x = seeded(SkipsTheNormForOneRow)
    assert differs(model, capture(model, x, dynamic_batch=False), x) is None
    text = differs(model, capture(model, x[:1]), x[:1])
    assert text is not None and "batch of 3" in text


@pytest.mark.parametrize("limit", [512, 10**7])
def test_a_condition_on_the_batch_size_is_stated(limit):
    """A size that is too large to try is an assumption of the verdict."""

    class Pieces(Two):
        def forward(self, x):
            return self.safe(x) if x.shape[0] <= limit else torch.cat([self.free(c) for c in x.split(limit)])

    result = audit(*seeded(Pieces), rays=0)
    assert any(f"x.shape[0] <= {limit}" in a.text for a in result.report.assumptions)
    assert result.verdict is (Status.UNKNOWN if limit == 512 else Status.BOUNDED)
