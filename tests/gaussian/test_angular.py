"""Deficit and surplus in the angle: against the duals, against many digits where it is hard, and their laws."""

import dataclasses
import math
from typing import Any

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from angular_truth import HARD_ANGLES, HARD_VARIANCES, tanh_truth, true_angle
from farfield.errors import InvalidValueError, PrecisionError
from farfield.gaussian import (
    AngularDual,
    activation,
    activation_names,
    angular_dual,
    dual,
    dual_slope,
    moments,
)
from farfield.gaussian._closed_forms import two_sided_power

HOMOGENEOUS = [n for n in activation_names() if activation(n).homogeneity is not None]
FORMULA = [n for n in HOMOGENEOUS if activation(n).homogeneity == 1]
GENERAL = [n for n in activation_names() if n not in HOMOGENEOUS]
ANGLES = torch.tensor([0.0, 0.07, 0.6, 1.1, 1.9, 2.6, 3.05, math.pi], dtype=torch.float64)


def tensor(values: Any, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def angle(deficit: Tensor, surplus: Tensor) -> Tensor:
    return 2.0 * torch.atan2(deficit.sqrt(), surplus.sqrt())


def bumpy(x: Tensor) -> Tensor:
    """Nobody's activation: a kink at 0.5, neither even nor odd."""
    return torch.relu(x - 0.5) - 0.3 * torch.tanh(x)


def stairs(x: Tensor) -> Tensor:
    """Jumps at 1, bends at 0.5."""
    return torch.relu(x - 0.5) + (x > 1).to(x.dtype)


# --- against the duals -------------------------------------------------------------------------------------------


def against_dual(dual_: AngularDual, theta: Tensor, q1: Tensor, q2: Tensor, tolerance: float) -> None:
    sigma = dual_.sigma
    value = dual(sigma, torch.cos(theta), q1, variance2=q2)
    seconds = [
        torch.stack([tensor(moments(sigma, variance=float(v)).second) for v in q.reshape(-1)])
        for q in (q1, q2)
    ]
    v1, v2 = (s.reshape(q.shape) for s, q in zip(seconds, (q1, q2), strict=True))
    scale = torch.sqrt(v1) * torch.sqrt(v2)
    deficit, surplus = dual_.pair(theta, q1, q2)
    assert ((deficit - (scale - value)).abs() <= tolerance * scale).all()
    assert ((surplus - (scale + value)).abs() <= tolerance * scale).all()
    assert torch.equal(dual_.deficit(theta, q1, q2), deficit)
    assert torch.equal(dual_.surplus(theta, q1, q2), surplus)
    torch.testing.assert_close(dual_.second(q1), v1, rtol=tolerance, atol=0)
    mean = torch.stack([tensor(moments(sigma, variance=float(v)).mean) for v in q1.reshape(-1)]).reshape(
        q1.shape
    )
    assert ((dual_.mean(q1) - mean).abs() <= tolerance * torch.sqrt(v1)).all()
    if sigma.jumps:
        with pytest.raises(InvalidValueError, match="infinite on the diagonal"):
            dual_.slope(theta, q1, q2)
    else:
        slope = dual_slope(sigma, torch.cos(theta), q1, variance2=q2) / torch.sqrt(q1 * q2)
        assert ((dual_.slope(theta, q1, q2) - slope).abs() <= tolerance * slope.abs().max()).all()


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_homogeneous_against_the_dual(name: str) -> None:
    q1, q2 = tensor([[0.3], [2.0]]), tensor([[1.7, 40.0, 0.01, 1.0, 0.3, 2.0, 5.0, 9.0]])
    against_dual(angular_dual(name, variances=1.0), ANGLES, q1, q2, 2e-14)


@pytest.mark.parametrize("name", GENERAL)
def test_one_variance_against_the_dual(name: str) -> None:
    variance = 2.3
    built = angular_dual(name, variances=variance)
    assert built.error <= 1e-13
    against_dual(built, ANGLES, tensor(variance), tensor(variance), 1e-13)


@pytest.mark.parametrize("variance", [1e-4, 80.0])
@pytest.mark.parametrize("name", ["tanh", "gelu", "sigmoid", "elu", "hardswish"])
def test_one_variance_far_from_one(name: str, variance: float) -> None:
    against_dual(
        angular_dual(name, variances=variance), ANGLES[::2], tensor(variance), tensor(variance), 1e-13
    )


@pytest.mark.parametrize("function", [bumpy, stairs])
def test_wrapped_callables(function: Any) -> None:
    against_dual(angular_dual(function, variances=1.4), ANGLES, tensor(1.4), tensor(1.4), 1e-13)


@pytest.mark.parametrize("slope", [-0.999, -0.2, 0.3, 0.999])
def test_leaky_slopes(slope: float) -> None:
    """Nearly even and nearly odd ones too: the branch is another, and so is the small quantity near π."""
    built = angular_dual(activation("leaky_relu", negative_slope=slope), variances=1.0)
    against_dual(built, ANGLES, tensor(0.7), tensor(2.0), 2e-15)
    small = (built.deficit if slope < 0 else built.surplus)(tensor(math.pi), 1.0, 1.0)
    # At θ = π what is left is the part of the other parity, exactly 2·((1−|a|)/2)².
    assert abs(float(small) - (1 - abs(slope)) ** 2 / 2) < 1e-16 * (1 - abs(slope))


@pytest.mark.parametrize("n", [3.0, 4.0, 6.5, 20.0])
def test_powers(n: float) -> None:
    built = angular_dual(activation("power_relu", n=n), variances=1.0)
    against_dual(built, ANGLES, tensor(0.7), tensor(2.0), 2e-13)


def _truth_of_power(n: float, theta: float) -> tuple[Any, Any, Any, Any]:
    """(V, dual, slope, its largest value) of x₊ⁿ at unit variances in 40 digits, by the integral over the sector."""
    with mp.workdps(40):
        n, theta = mp.mpf(n), mp.mpf(theta)

        def sector(m: Any, angle: Any) -> Any:
            """∫ (cos t cos(t − θ))ᵐ dt over θ − π/2 … π/2; mpmath's quadrature takes powers at the ends."""
            if angle < 0.1:  # too many digits cancel for a quadrature
                ratio, s = mp.gamma(m + 1) / mp.gamma(m + mp.mpf(3) / 2), mp.cos(angle / 2) ** 2
                return mp.sqrt(mp.pi) * ratio * s ** (m + 0.5) * mp.hyp2f1(0.5, 0.5, m + mp.mpf(3) / 2, s)
            half = (mp.pi - angle) / 2
            return 2 * mp.quad(
                lambda w: (mp.sin(w) * mp.sin(w + angle)) ** m, [0, half / 8, half], maxdegree=12
            )

        radial = 2**n * mp.gamma(n + 1) / (2 * mp.pi)
        slopes = n**2 * 2 ** (n - 1) * mp.gamma(n) / (2 * mp.pi)
        second = 2 ** (n - 1) * mp.gamma(n + mp.mpf(1) / 2) / mp.sqrt(mp.pi)
        return second, radial * sector(n, theta), slopes * sector(n - 1, theta), n**2 / (2 * n - 1) * second


@pytest.mark.parametrize("n", [0.75, 1.25, 1.4999999, 1.5, 1.75, 1.99])
def test_powers_between_a_half_and_two_in_many_digits(n: float) -> None:
    """The branch θ^(2n−1) of the slope at 0, which no series in θ has; n = 3/2, where it is a logarithm; n nearby."""
    built = angular_dual(activation("power_relu", n=n), variances=1.0)
    assert built.error <= 1e-13
    for theta in (1e-9, 1e-3, 0.4, 1.5707, 1.5709, 2.7, 3.1415):
        second, value, slope, largest = _truth_of_power(n, theta)
        at = tensor(theta)
        deficit, surplus = built.pair(at, 1.0, 1.0)
        assert abs(float(deficit) / float(second - value) - 1.0) < 3e-14
        assert abs(float(surplus) / float(second + value) - 1.0) < 3e-14
        assert abs(float(built.slope(at, 1.0, 1.0)) - float(slope)) < 3e-14 * float(largest)


def test_slope_of_a_small_power_falls_steeply_at_zero() -> None:
    """At n = 0.6 an error of 1e-8 in the angle costs 1.7 % of the slope: it is n²/(2n − 1) at 0 itself."""
    built = angular_dual(activation("power_relu", n=0.6), variances=1.0)
    at, near = built.slope(tensor([0.0, 1e-8]), 1.0, 1.0) / built.second(1.0)
    assert float(at) == pytest.approx(0.36 / 0.2, rel=1e-13)
    assert 0.015 < 1.0 - float(near / at) < 0.02


def _two_sided(n: float, left: float) -> Any:
    """X₊ⁿ + left·(−x)₊ⁿ, without a closed form, so that the dual is quadrature and independent of the series."""

    def value(x: Tensor) -> Tensor:
        return torch.relu(x) ** n + left * torch.relu(-x) ** n

    def slope(x: Tensor) -> Tensor:
        return n * x.abs() ** (n - 1.0) * torch.where(x > 0, 1.0, -left)

    whole = activation("power_relu", n=n)
    return dataclasses.replace(
        whole, name=f"two-sided {n:g}, {left:g}", function=value, derivative=slope, closed_form=None
    )


@pytest.mark.parametrize("left", [1.0, -1.0, 0.3, -0.999])
@pytest.mark.parametrize("n", [1.25, 1.5, 1.75])
def test_powers_on_both_sides(n: float, left: float) -> None:
    sigma = _two_sided(n, left)
    built = angular_dual(sigma, variances=1.0)
    formula = dataclasses.replace(sigma, closed_form=two_sided_power(n, 1.0, left))
    theta = ANGLES[1:-1]
    one = torch.ones_like(theta)
    scale = float(built.second(1.0))
    deficit, surplus = built.pair(theta, one, one)
    value = dual(sigma, torch.cos(theta), 1.0)
    torch.testing.assert_close(deficit, scale - value, rtol=0, atol=1e-9 * scale)
    torch.testing.assert_close(surplus, scale + value, rtol=0, atol=1e-9 * scale)
    slope = dual_slope(formula, torch.cos(theta), 1.0)
    torch.testing.assert_close(
        built.slope(theta, one, one), slope, rtol=0, atol=2e-14 * float(slope.abs().max())
    )
    # An odd σ is opposite to itself at π, an even one the same: exactly, not up to rounding of π.
    small = {1.0: built.deficit, -1.0: built.surplus}.get(left)
    if small is not None:
        for away in (1e-7, 1e-3):
            near, same = small(math.pi - tensor([away]), 1.0, 1.0), built.deficit(tensor([away]), 1.0, 1.0)
            assert float(near) == pytest.approx(float(same), rel=1e-8)


def test_angles_and_slopes_of_powers_have_gradients() -> None:
    built = angular_dual(activation("power_relu", n=1.25), variances=1.0)
    theta = tensor([1e-3, 0.4, 1.5, 1.6, 2.9], grad=True)
    one = tensor([1.0])
    assert torch.autograd.gradcheck(lambda t: built.pair(t, one, one), (theta,))
    assert torch.autograd.gradcheck(lambda t: built.slope(t, one, one), (theta,))
    ends = tensor([0.0, math.pi], grad=True)
    (grad,) = torch.autograd.grad(built.deficit(ends, one, one).sum(), ends)
    assert bool(grad.isfinite().all())


@pytest.mark.parametrize("n", [0.2, 0.5])
def test_a_power_up_to_a_half_is_refused_with_the_reason(n: float) -> None:
    with pytest.raises(InvalidValueError, match="infinite for degrees up to ½"):
        angular_dual(activation("power_relu", n=n), variances=1.0)


@pytest.mark.parametrize("name", GENERAL)
def test_a_range_against_the_dual(name: str) -> None:
    sigma = activation(name)
    if any(k != 0.0 for k in sigma.kinks):
        with pytest.raises(PrecisionError, match=r"has a kink at .*: as a function of two variances"):
            angular_dual(name, variances=(0.7, 1.5))
        return
    built = angular_dual(name, variances=(0.7, 1.5))
    assert built.error <= 1e-13
    generator = torch.Generator().manual_seed(3)
    q1, q2 = 0.7 + 0.8 * torch.rand(2, 4, generator=generator, dtype=torch.float64)
    q1[0], q2[0], q2[1] = 0.7, 1.5, q1[1]
    theta = tensor([0.3, 0.0, 2.2, math.pi])
    against_dual(built, theta, q1, q2, 1e-13)


@pytest.mark.parametrize(
    ("name", "low", "high"), [("gelu", 0.01, 100.0), ("erf", 0.01, 100.0), ("softsign", 0.2, 20.0)]
)
def test_a_wide_range(name: str, low: float, high: float) -> None:
    q1, q2 = tensor([low, low, high, 1.0, 0.3]), tensor([low, high, high, 3.0, 7.0])
    against_dual(angular_dual(name, variances=(low, high)), tensor([0.01, 0.4, 1.3, 2.0, 3.1]), q1, q2, 1e-13)


def test_a_wrapped_callable_over_a_range() -> None:
    def odd_one(x: Tensor) -> Tensor:
        return x / (1 + x.abs()) + 0.2 * torch.relu(x)

    q1, q2 = tensor([0.8, 1.2, 1.0]), tensor([0.8, 0.9, 1.2])
    against_dual(angular_dual(odd_one, variances=(0.8, 1.2)), tensor([0.2, 1.0, 2.7]), q1, q2, 1e-13)


# --- in many digits ----------------------------------------------------------------------------------------------


def worst(built: AngularDual, name: str, cases: list[tuple[float, float, float]]) -> float:
    """Largest absolute error of θ′ over the cases, in float64."""
    theta, q1, q2 = (tensor(column) for column in zip(*cases, strict=True))
    return gap(angle(*built.pair(theta, q1, q2)), name, cases)


def gap(ours: Tensor, name: str, cases: list[tuple[float, float, float]]) -> float:
    truth = [(tanh_truth if name == "tanh" else lambda *c: true_angle(name, *c))(*case) for case in cases]
    with mp.workdps(40):
        return max(float(abs(mp.mpf(float(o)) - t)) for o, t in zip(ours, truth, strict=True))


HARD = [(t, *q) for t in HARD_ANGLES for q in HARD_VARIANCES]
SAME = [(t, 1.3, 1.3) for t in HARD_ANGLES]
NEAR = [t for t in HARD_ANGLES if min(t, math.pi - t) < 1.1e-3]
SHARP = [(t, 1.3, 1.3) for t in NEAR]


@pytest.mark.parametrize(
    ("name", "limit"),
    [("relu", 1e-15), ("leaky_relu", 1e-15), ("abs", 1e-15), ("step", 1e-15), ("relu_squared", 5e-15)],
)
def test_hard_angles_homogeneous(name: str, limit: float) -> None:
    assert worst(angular_dual(name, variances=1.0), name, HARD) <= limit


@pytest.mark.parametrize(("name", "cases"), [("erf", SAME), ("gelu", SAME), ("tanh", SHARP)])
def test_hard_angles_at_one_variance(name: str, cases: list[tuple[float, float, float]]) -> None:
    assert worst(angular_dual(name, variances=1.3), name, cases) <= 2e-14


@pytest.mark.parametrize(
    ("name", "low", "high"), [("erf", 0.2, 20.0), ("gelu", 0.2, 20.0), ("tanh", 0.5, 5.0)]
)
def test_hard_angles_over_a_range(name: str, low: float, high: float) -> None:
    cases = [c for c in HARD if low <= min(c[1:]) and max(c[1:]) <= high and (name != "tanh" or c[0] in NEAR)]
    if name == "tanh":
        cases += [(t, 0.5, 5.0) for t in NEAR]
    assert len(cases) >= 20
    assert worst(angular_dual(name, variances=(low, high)), name, cases) <= 2e-14


@pytest.mark.parametrize("name", ["relu", "gelu", "erf"])
def test_the_direct_difference_fails(name: str) -> None:
    """Deliberately wrong: what the angle is for. √ε of the dual, whatever its own precision."""
    theta = tensor([t for t, *_ in SAME])
    value, scale = dual(name, torch.cos(theta), 1.3), moments(name, variance=1.3).second
    naive = angle((scale - value).clamp(min=0), (scale + value).clamp(min=0))
    assert gap(naive, name, SAME) > 1e-9


def test_depth_fifty() -> None:
    """The angle of two inputs 1e-10 apart, through fifty ReLU layers."""
    relu = angular_dual("relu", variances=1.0)
    theta, truth = tensor([1e-10, 1e-3, 1.0, 3.0]), [mp.mpf(t) for t in (1e-10, 1e-3, 1.0, 3.0)]
    for _ in range(50):
        theta = angle(*relu.pair(theta, 1.0, 1.0))
    with mp.workdps(40):
        for _ in range(50):
            truth = [mp.acos((mp.sin(t) + (mp.pi - t) * mp.cos(t)) / mp.pi) for t in truth]
        assert max(float(abs(mp.mpf(float(o)) - t)) for o, t in zip(theta, truth, strict=True)) < 2e-15


# --- laws --------------------------------------------------------------------------------------------------------

ANGLE = st.floats(0.0, math.pi) | st.floats(-18.0, 0.0).map(lambda e: 10.0**e)
VARIANCE = st.floats(-3.0, 3.0).map(lambda e: 10.0**e)
LAWFUL = [
    "relu",
    "leaky_relu",
    "abs",
    "identity",
    "relu_squared",
    "step",
    "sign",
    "tanh",
    "gelu",
    "sigmoid",
    "cos",
]


@pytest.mark.parametrize("name", LAWFUL)
@given(theta=ANGLE, more=ANGLE, q1=VARIANCE, q2=VARIANCE)
@settings(max_examples=40)
def test_laws(name: str, theta: float, more: float, q1: float, q2: float) -> None:
    if activation(name).homogeneity is None:
        q1 = q2 = 1.3
    built = angular_dual(name, variances=1.3)
    t, a, b = tensor(theta), tensor(q1), tensor(q2)
    deficit, surplus = built.pair(t, a, b)
    scale = torch.sqrt(built.second(a)) * torch.sqrt(built.second(b))
    assert float(deficit) >= 0 and float(surplus) >= 0
    assert abs(float(deficit + surplus - 2 * scale)) <= 1e-15 * 4 * float(scale)
    again = built.pair(t, b, a)
    torch.testing.assert_close(again, (deficit, surplus), rtol=1e-15, atol=0)
    if name not in ("abs", "cos"):
        # ρ ↦ E σ(x)σ(y) increases where σ is monotone.
        low, high = sorted((theta, more))
        assert float(built.deficit(tensor(low), a, b)) <= float(
            built.deficit(tensor(high), a, b)
        ) + 4e-15 * float(scale)
    assert float(built.deficit(tensor(0.0), a, b)) == 0.0


@pytest.mark.parametrize("name", LAWFUL)
def test_single_precision_stays_single(name: str) -> None:
    built = angular_dual(name, variances=1.3)
    theta = torch.tensor([0.0, 1e-5, 1e-3, 0.4, 1.5, 2.0, 3.1, math.pi])
    q = torch.tensor(1.3)
    single = built.pair(theta, q, q)
    double = built.pair(theta.double(), 1.3, 1.3)
    for s, d in zip(single, double, strict=True):
        assert s.dtype == torch.float32
        assert (s.double() - d).abs().max() <= 3e-6 * double[1].max()
    assert (
        (angle(*single).double() - angle(*double)).abs().max() <= 2e-3 if name in ("step", "sign") else 2e-6
    )
    assert built.second(q).dtype == built.mean(q).dtype == torch.float32
    if not activation(name).jumps:
        assert built.slope(theta, q, q).dtype == torch.float32


RANGE = (0.5, 5.0)
SPREAD = st.floats(math.log(0.5), math.log(5.0)).map(math.exp)


@pytest.mark.parametrize("name", ["tanh", "gelu", "cos"])
@given(theta=ANGLE, more=ANGLE, q1=SPREAD, q2=SPREAD)
@settings(max_examples=40)
def test_laws_over_a_range(name: str, theta: float, more: float, q1: float, q2: float) -> None:
    built = angular_dual(name, variances=RANGE)
    t, a, b = tensor(theta), tensor(q1), tensor(q2)
    deficit, surplus = built.pair(t, a, b)
    scale = float(torch.sqrt(built.second(a)) * torch.sqrt(built.second(b)))
    assert float(deficit) >= 0 and float(surplus) >= 0
    assert abs(float(deficit + surplus) - 2 * scale) <= 4e-15 * scale
    torch.testing.assert_close(built.pair(t, b, a), (deficit, surplus), rtol=0, atol=1e-14 * scale)
    if name != "cos":
        low, high = sorted((theta, more))
        assert (
            float(built.deficit(tensor(low), a, b))
            <= float(built.deficit(tensor(high), a, b)) + 1e-14 * scale
        )
    assert float(built.deficit(tensor(0.0), a, a)) == 0.0


@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_all_pairs_are_the_pairs_one_by_one(name: str) -> None:
    built = angular_dual(name, variances=RANGE)
    generator = torch.Generator().manual_seed(5)
    theta = math.pi * torch.rand(3, 7, 5, generator=generator, dtype=torch.float64)
    q1 = 0.5 + 4.5 * torch.rand(7, 1, generator=generator, dtype=torch.float64)
    q2 = 0.5 + 4.5 * torch.rand(5, generator=generator, dtype=torch.float64)
    flat = [t.reshape(-1) for t in torch.broadcast_tensors(theta, q1, q2)]
    for method in (built.deficit, built.surplus, built.slope):
        one_by_one = method(*flat).reshape(theta.shape)
        torch.testing.assert_close(method(theta, q1, q2), one_by_one, rtol=0, atol=1e-14)
        torch.testing.assert_close(method(theta, q1, q2[None]), one_by_one, rtol=0, atol=1e-14)
        expanded = torch.broadcast_to(q1, (7, 5)), torch.broadcast_to(q2, (7, 5))
        torch.testing.assert_close(method(theta, *expanded), one_by_one, rtol=0, atol=1e-14)
        single = method(theta.float(), q1.float(), q2.float())
        assert single.dtype == torch.float32
        assert (single.double() - one_by_one).abs().max() <= 4e-6 * one_by_one.abs().max()
    single = built.pair(torch.tensor([0.0, 1e-6, 1e-4]), torch.tensor(1.3), torch.tensor(1.3))
    assert (angle(*single) - angle(*built.pair(tensor([0.0, 1e-6, 1e-4]), 1.3, 1.3))).abs().max() < 1e-7


# --- derivatives -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_gradients_homogeneous(name: str) -> None:
    built = angular_dual(name, variances=1.0)
    theta, q1, q2 = tensor([1e-3, 0.5, 1.3, 2.2, 3.1], True), tensor([[0.5], [2.0]], True), tensor(1.4, True)

    def everything(t: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        values = (*built.pair(t, a, b), built.second(a), built.mean(b))
        return values if activation(name).jumps else (*values, built.slope(t, a, b))

    assert torch.autograd.gradcheck(everything, (theta, q1, q2))


@pytest.mark.parametrize("name", LAWFUL)
def test_gradients_at_zero_are_finite(name: str) -> None:
    theta, q = tensor([0.0, math.pi], True), tensor(1.3, True)
    built = angular_dual(name, variances=q)
    gradients = torch.autograd.grad(
        sum(p.sum() for p in (2.0 * built.pair(theta, q, q)[0], built.second(q))), (theta, q)
    )
    assert all(bool(torch.isfinite(g).all()) for g in gradients)
    if name not in ("step", "sign"):
        assert float(gradients[0][0]) == 0.0


@pytest.mark.parametrize(("name", "tolerance"), [("tanh", 1e-13), ("gelu", 1e-13), ("elu", 1e-5)])
def test_gradients_in_the_common_variance(name: str, tolerance: float) -> None:
    def everything(q: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        built = angular_dual(name, variances=q, tolerance=tolerance)
        return (*built.pair(t, q, q), built.slope(t, q, q), built.second(q), built.mean(q))

    assert torch.autograd.gradcheck(
        everything, (tensor(1.3, True), tensor([1e-3, 0.9, 2.6], True)), atol=1e-7
    )


@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_gradients_over_a_range(name: str) -> None:
    built = angular_dual(name, variances=RANGE)

    def everything(t: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return (*built.pair(t, a, b), built.slope(t, a, b), built.second(a), built.mean(b))

    inputs = tensor([[0.1, 0.5], [2.2, 3.1]], True), tensor([[0.6], [2.0]], True), tensor([[2.0, 4.0]], True)
    assert torch.autograd.gradcheck(everything, inputs)
    flat = tensor([1e-3, 0.5, 2.2], True), tensor([0.6, 2.0, 3.0], True), tensor([0.7, 2.0, 4.0], True)
    assert torch.autograd.gradcheck(everything, flat)
    zero = tensor([0.0, 0.0], True), tensor([0.6, 2.0], True), tensor([0.6, 4.0], True)
    gradients = torch.autograd.grad(built.deficit(*zero).sum(), zero)
    assert all(bool(torch.isfinite(g).all()) for g in gradients)
    assert gradients[0].tolist() == [0.0, 0.0]


def test_gradient_of_a_jump_away_from_the_origin() -> None:
    def late(x: Tensor) -> Tensor:
        return (x > 0.7).to(x.dtype)

    q = tensor(1.3, True)
    (slope,) = torch.autograd.grad(angular_dual(late, variances=q).second(q), q)
    low, high = (moments(late, variance=1.3 + h).second for h in (-1e-5, 1e-5))
    assert abs(float(slope) - (high - low) / 2e-5) < 1e-8


# --- refusals ----------------------------------------------------------------------------------------------------


def test_another_variance_is_refused() -> None:
    built = angular_dual("tanh", variances=1.0)
    theta = tensor([0.5, 0.6])
    with pytest.raises(InvalidValueError, match=r"built for the one variance 1, and got others, from 1 to 2"):
        built.pair(theta, 1.0, tensor([1.0, 2.0]))
    with pytest.raises(InvalidValueError, match="with variances=q, the tensor"):
        built.second(tensor(1.0, True))


def test_a_variance_outside_the_range_is_refused() -> None:
    with pytest.raises(
        InvalidValueError, match=r"built for variances from 0.5 to 5, and got some from 1 to 6"
    ):
        angular_dual("gelu", variances=RANGE).deficit(tensor([0.5, 0.5]), 1.0, tensor([1.0, 6.0]))


def test_unresolved_ranges_are_refused() -> None:
    with pytest.raises(
        PrecisionError, match=r"In the logarithm of a variance sin .* is not resolved to 1e-13"
    ):
        angular_dual("sin", variances=(0.01, 100.0))
    with pytest.raises(PrecisionError, match="jumps: as a function of two variances"):
        angular_dual(lambda x: torch.sign(x) + x, variances=(0.5, 1.0))


@pytest.mark.parametrize("variances", [0.0, -1.0, math.inf, math.nan, (2.0, 1.0), (0.0, 1.0)])
def test_bad_variances_are_refused(variances: Any) -> None:
    with pytest.raises(InvalidValueError, match="Variances are one finite number > 0 or a range"):
        angular_dual("tanh", variances=variances)


def test_unresolved_is_refused() -> None:
    with pytest.raises(PrecisionError, match="is not resolved to 1e-19 by a series of degree 242"):
        angular_dual("relu_squared", variances=1.0, tolerance=1e-19)


def test_built_once() -> None:
    assert angular_dual("tanh", variances=1.0) is angular_dual(torch.tanh, variances=(1.0, 1.0))
    assert angular_dual("gelu", variances=RANGE) is angular_dual(torch.nn.GELU(), variances=RANGE)
