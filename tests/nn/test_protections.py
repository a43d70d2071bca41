"""FeatureClamp, NormCap and RangeHead: the identity inside to the last bit, bounded outside, defined everywhere."""

import copy
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import farfield as ff
from farfield.errors import InvalidValueError
from farfield.nn import FeatureClamp, NormCap, RangeHead

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False, width=32)
INF, NAN = float("inf"), float("nan")


@given(st.lists(NUMBERS, min_size=3, max_size=3), st.booleans())
def test_a_feature_inside_is_itself(row, soft):
    x = torch.tensor([row])
    clamp = FeatureClamp(x[0] - 1.0, x[0] + 2.0, soft=soft)
    assert torch.equal(clamp(x), x)
    assert bool((clamp.excess(x) <= 1).all())


def test_the_shape_of_a_clamp():
    clamp = FeatureClamp(-2.0, 1.0, center=0.0)
    x = torch.tensor(
        [-100.0, -8.0, -6.0, -4.0, -3.0, -2.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 1e30, INF, -INF, NAN]
    )
    wanted = torch.tensor([0, 0, -1, -2, -2, -2, 0.5, 1, 1, 1, 0.5, 0, 0, 0, 0, 0])
    torch.testing.assert_close(clamp(x), wanted)
    plain = FeatureClamp(-2.0, 1.0, end=INF)
    torch.testing.assert_close(plain(torch.tensor([-5.0, 7.0])), torch.tensor([-2.0, 1.0]))
    assert bool(clamp.excess(torch.tensor([NAN])) == INF)
    torch.testing.assert_close(clamp.excess(torch.tensor([4.0, -4.0])), torch.tensor([4.0, 2.0]))


def test_a_constant_feature_is_kept_at_its_value():
    clamp = FeatureClamp(torch.tensor([3.0]), torch.tensor([3.0]))
    torch.testing.assert_close(clamp(torch.tensor([[3.0], [3.1], [1e9], [-INF]])), torch.full((4, 1), 3.0))


@pytest.mark.parametrize("soft", [False, True])
def test_a_clamp_is_continuous(soft):
    """No step larger than what the slope allows, on a fine grid over all its parts."""
    clamp = FeatureClamp(
        torch.tensor(-2.0).double(), torch.tensor(1.0).double(), center=torch.tensor(0.25).double(), soft=soft
    )
    x = torch.linspace(-12, 6, 400_001, dtype=torch.float64)
    steps = clamp(x).diff().abs()
    assert float(steps.max()) <= 2.0 * float(x[1] - x[0])


def test_a_soft_clamp_has_a_derivative_everywhere():
    clamp = FeatureClamp(torch.tensor(-2.0).double(), torch.tensor(1.0).double(), soft=True)
    x = torch.linspace(-12, 6, 200_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(clamp(x).sum(), x)
    assert float(slope.diff().abs().max()) < 1e-2


@given(st.lists(NUMBERS, min_size=4, max_size=4), st.floats(0.1, 1e3))
def test_a_vector_inside_is_itself_and_one_outside_keeps_its_direction(row, radius):
    z = torch.tensor([row], dtype=torch.float64)
    center = torch.tensor([1.0, -2.0, 0.0, 3.0], dtype=torch.float64)
    cap = NormCap(radius, center=center)
    away = z - center
    got = cap(z)
    if float(away.norm()) <= radius:
        assert torch.equal(got, z)
    else:
        torch.testing.assert_close(got - center, away * (radius / away.norm()), rtol=1e-9, atol=1e-9)
    assert float((got - center).norm()) <= radius * (1 + 1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sizes_to_the_largest_float(dtype):
    largest = torch.finfo(dtype).max
    z = torch.tensor(
        [[largest, largest, 0.0], [INF, 1.0, 2.0], [NAN, 1.0, 2.0], [-INF, INF, NAN]], dtype=dtype
    )
    for cap in (NormCap(5.0), NormCap(5.0, soft=True)):
        got = cap(z)
        assert bool(torch.isfinite(got).all())
        assert float(got.double().norm(dim=-1).max()) <= 5.6
    torch.testing.assert_close(
        NormCap(5.0)(z)[0].double(), torch.tensor([3.5355, 3.5355, 0.0]).double(), rtol=2e-2, atol=0
    )
    assert bool(NormCap(5.0).excess(z)[2] == INF)


def test_weights_and_axes():
    cap = NormCap(1.0, weight=torch.tensor([0.1, 10.0]))
    got = cap(torch.tensor([[8.0, 0.0], [80.0, 0.0], [0.0, 1.0]]))
    torch.testing.assert_close(got, torch.tensor([[8.0, 0.0], [10.0, 0.0], [0.0, 0.1]]))
    image = torch.randn(2, 3, 4, 4) * 100
    assert float(NormCap(2.0, axes=(-3, -2, -1))(image).reshape(2, -1).norm(dim=-1).max()) <= 2.0001


def test_a_hard_head_is_the_identity_inside_and_answers_everything():
    head = RangeHead(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 5.0]), knee=0.0)
    x = torch.tensor([[0.3, 4.9], [-7.0, 9.0], [INF, -INF], [NAN, NAN]])
    torch.testing.assert_close(head(x), torch.tensor([[0.3, 4.9], [-1.0, 5.0], [1.0, 0.0], [0.0, 2.5]]))


@pytest.mark.full
@pytest.mark.parametrize("soft", [False, True])
def test_behind_a_protection_everything_is_bounded(soft):
    clamp = FeatureClamp(torch.full((4,), -3.0), torch.full((4,), 3.0), soft=soft)
    cap = NormCap(4.0, center=torch.linspace(-1, 1, 16), soft=soft)
    head = RangeHead(torch.tensor([-1.0]), torch.tensor([1.0]), knee=0.1 if soft else 0.0)
    first, last = nn.Linear(4, 16), nn.Linear(16, 1)
    for chain in (
        (clamp, first, nn.ReLU(), last),
        (first, nn.ReLU(), cap, last),
        (first, nn.ReLU(), last, head),
    ):
        assert ff.audit(nn.Sequential(*chain).eval(), torch.zeros(1, 4)).verdict.name == "BOUNDED"


@pytest.mark.parametrize(
    "module", [FeatureClamp(-1.0, 1.0), NormCap(2.0), RangeHead(torch.zeros(3), torch.ones(3), knee=0.0)]
)
def test_copies_saves_and_exports(module):
    x = torch.randn(5, 3) * 10
    again = copy.deepcopy(module)
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    exported = torch.export.export(module, (x,)).module()
    assert torch.equal(again(x), module(x))
    assert torch.equal(exported(x), module(x))


def test_wrong_limits_are_named():
    with pytest.raises(InvalidValueError, match="low ≤ center ≤ high"):
        FeatureClamp(1.0, -1.0)
    with pytest.raises(InvalidValueError, match="1 ≤ flat < end"):
        FeatureClamp(-1.0, 1.0, flat=3.0, end=2.0)
    with pytest.raises(InvalidValueError, match="positive"):
        NormCap(0.0)
    with pytest.raises(InvalidValueError, match="low < high"):
        RangeHead(torch.zeros(2), torch.zeros(2))
