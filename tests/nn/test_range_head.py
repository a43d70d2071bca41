"""The head of known range: its limits, its shape, its gradient, and what the analyses prove of it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from farfield.audit import audit
from farfield.certify.intervals import propagate
from farfield.errors import InvalidValueError
from farfield.graph import capture
from farfield.nn import MLP, RangeHead
from gram_samples import generator

DOUBLE = torch.float64
RANGES = [(-1.3, 2.7), (0.0, 1.0), (-1e-3, 1e6), (5.0, 5.5)]


@pytest.mark.parametrize("limits", RANGES, ids=str)
@pytest.mark.parametrize("knee", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=str)
def test_never_leaves_its_range(limits, knee, dtype):
    low, high = limits
    head = RangeHead(low, high, knee=knee)
    scale = torch.logspace(-6, 30, 20001, dtype=DOUBLE)
    x = torch.cat([-scale.flip(0), scale, torch.linspace(low - 1, high + 1, 20001, dtype=DOUBLE)]).to(dtype)
    y = head(torch.cat([x, torch.tensor([-math.inf, math.inf], dtype=dtype)]))
    ends = torch.tensor([low, high], dtype=dtype)
    assert bool((y >= ends[0]).all()) and bool((y <= ends[1]).all())
    rounding = 2 * torch.finfo(dtype).eps * max(abs(low), abs(high))
    assert bool(((y[-2:] - ends).abs() <= rounding).all())
    assert bool(((head(torch.tensor([-1e9, 1e9], dtype=dtype)) - ends).abs() <= rounding).all())


@pytest.mark.parametrize("limits", RANGES, ids=str)
def test_identity_in_the_middle_and_increasing(limits):
    low, high = limits
    head, delta = RangeHead(low, high), 0.1 * (high - low)
    x = torch.linspace(low - 3 * (high - low), high + 3 * (high - low), 200001, dtype=DOUBLE)
    y = head(x)
    middle = (x >= low + delta) & (x <= high - delta)
    assert torch.equal(y[middle], x[middle])
    assert bool((y.diff() >= 0).all())
    near = (x >= low - 5 * delta) & (x <= high + 5 * delta)
    assert bool((y[near].diff() > 0).all())


def test_gradient_continuous_at_the_knees():
    head = RangeHead(-1.0, 3.0, knee=0.2)
    x = torch.linspace(-3, 5, 41, dtype=DOUBLE, requires_grad=True)
    off = x.detach() + 0.003  # off the two knees, where a difference quotient straddles them
    assert torch.autograd.gradcheck(head, off.requires_grad_(True))
    knees = torch.tensor([-0.2 - 1e-9, -0.2 + 1e-9, 2.2 - 1e-9, 2.2 + 1e-9], dtype=DOUBLE, requires_grad=True)
    (slope,) = torch.autograd.grad(head(knees).sum(), knees)
    assert torch.allclose(slope, torch.ones_like(slope), atol=1e-12)


@given(
    low=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6), knee=st.floats(0.01, 0.5), x=st.floats(-1e12, 1e12)
)
def test_any_range_holds_any_number(low, width, knee, x):
    y = float(RangeHead(low, low + width, knee=knee)(torch.tensor(x, dtype=DOUBLE)))
    assert low <= y <= low + width


@pytest.mark.full
@pytest.mark.parametrize("limits", RANGES, ids=str)
def test_proved_by_every_analysis(limits):
    """A ReLU network without any norm is unbounded; with the head its range is exactly the one asked for."""
    example = torch.zeros(1, 3, dtype=DOUBLE)
    options = {"width": 6, "depth": 2, "generator": generator(0), "dtype": DOUBLE}
    bare, held = MLP(3, 2, **options), MLP(3, 2, certified_range=limits, **options)
    assert audit(bare, example).verdict.name == "UNBOUNDED"
    assert audit(held, example).verdict.name == "BOUNDED"
    bounds = propagate(capture(held, example, dynamic_batch=False))["output"]
    assert bounds.lo.tolist() == [[limits[0]] * 2] and bounds.hi.tolist() == [[limits[1]] * 2]


def test_a_head_without_its_last_clip_is_caught():
    """The mutant's sum of rounded parts leaves the range by a unit in the last place, which the proof notices."""

    class Mutant(RangeHead):
        def forward(self, x):
            delta = self.knee * (self.high - self.low)
            kept = x.clamp(self.low + delta, self.high - delta)
            return kept + delta * torch.tanh((x - kept) / delta)

    example = torch.zeros(1, 3, dtype=DOUBLE)
    bounds = propagate(capture(nn.Sequential(Mutant(-1.3, 2.7)), example, dynamic_batch=False))["output"]
    assert bounds.lo.tolist() != [[-1.3] * 3] or bounds.hi.tolist() != [[2.7] * 3]


def test_mlp_remembers_its_range():
    net = MLP(3, 1, width=4, depth=1, certified_range=(-1, 2))
    assert net.spec.certified_range == (-1.0, 2.0) and isinstance(net[-1], RangeHead)
    assert MLP(3, 1, width=4, depth=1).spec.certified_range is None
    with pytest.raises(InvalidValueError, match="out_features=None"):
        MLP(3, None, width=4, depth=1, certified_range=(-1, 2))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [((1.0, 1.0), "low < high"), ((0.0, math.inf), "finite"), ((math.nan, 1.0), "low < high")],
)
def test_empty_ranges_are_refused(arguments, match):
    with pytest.raises(InvalidValueError, match=match):
        RangeHead(*arguments)


@pytest.mark.parametrize("knee", [0.6, -1.0, math.nan])
def test_knees_are_a_share(knee):
    with pytest.raises(InvalidValueError, match="share"):
        RangeHead(0.0, 1.0, knee=knee)
