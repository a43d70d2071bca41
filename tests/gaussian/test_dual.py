"""Dual activations: values against independent integrals, derivatives, and the laws every kernel obeys."""

import functools
import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from farfield.errors import InvalidValueError, PrecisionError
from farfield.gaussian import (
    Activation,
    activation,
    activation_names,
    dual,
    dual_slope,
    hermite_coefficients,
    mean_reduced_dual,
    moments,
    wrap_activation,
)
from mp_activations import TWINS, legendre_nodes

POINTS = [(-0.95, 1.0, 1.0), (0.7, 2.2, 0.5), (0.999, 0.6, 0.6)]


def tensor(values: Any, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


# --- values ------------------------------------------------------------------------------------------------------


def _trapezoid(f: Callable[[Any], Any], rho: float, q1: float, q2: float, step: float) -> float:
    """E f(x)f(y) by the two-dimensional trapezoidal rule in 25 digits: geometric for f analytic near the line."""
    with mp.workdps(25):
        h = mp.mpf(step)
        r, s1, s2 = mp.mpf(rho), mp.sqrt(mp.mpf(q1)), mp.sqrt(mp.mpf(q2))
        across = mp.sqrt(1 - r * r)
        nodes = [k * h for k in range(-int(9 / step), int(9 / step) + 1)]
        weight = {z: h * mp.npdf(z) for z in nodes}
        total = mp.mpf(0)
        for u in nodes:
            inner = sum(weight[z] * f(s2 * (r * u + across * z)) for z in nodes if u * u + z * z < 90)
            total += weight[u] * f(s1 * u) * inner
        return float(total)


@pytest.mark.parametrize(("rho", "q1", "q2"), [(-0.95, 1.0, 1.0), (0.7, 2.2, 0.5)])
@pytest.mark.parametrize("name", ["tanh", "silu"])
def test_smooth_against_two_dimensional_mpmath(name: str, rho: float, q1: float, q2: float) -> None:
    # Poles at distance π/2 (tanh) and π (silu) over √q: an error of exp(−2π·distance/step).
    step = {"tanh": 0.19, "silu": 0.37}[name]
    exact = _trapezoid(TWINS[name], rho, q1, q2, step)
    assert abs(float(dual(name, rho, q1, variance2=q2)) - exact) < 1e-12 * max(1.0, abs(exact))


def _expected_hardtanh(m: Any, s: Any) -> Any:
    """E clip(m + sz, −1, 1) as 1 − E(1 − y)₊ … written with the normal ramp."""

    def ramp(t: Any) -> Any:
        return s * (mp.npdf(t) - t * mp.ncdf(-t))

    return -1 + ramp((-1 - m) / s) - ramp((1 - m) / s)


def _expected_elu(m: Any, s: Any) -> Any:
    """E elu(m + sz): the ramp on the right, a tilted normal on the left."""
    t = m / s
    right = m * mp.ncdf(t) + s * mp.npdf(t)
    return right + mp.exp(m + s * s / 2) * mp.ncdf(-t - s) - mp.ncdf(-t)


@pytest.mark.full
@pytest.mark.parametrize(("rho", "q1", "q2"), POINTS)
@pytest.mark.parametrize(("name", "expected"), [("hardtanh", _expected_hardtanh), ("elu", _expected_elu)])
def test_kinked_against_mpmath(
    name: str, expected: Callable[..., Any], rho: float, q1: float, q2: float
) -> None:
    """The inner integral in closed form, the outer one by mpmath."""
    sigma = activation(name)
    parameters = dict(sigma.parameters)
    with mp.workdps(25):
        r, s1, s2 = mp.mpf(rho), mp.sqrt(mp.mpf(q1)), mp.sqrt(mp.mpf(q2))
        spread = s2 * mp.sqrt(1 - r * r)
        ends = {mp.mpf(k) for k in range(-11, 12)} | {k / s1 for k in sigma.kinks}
        # Where ρu passes a kink of the second factor the inner integral bends, on the scale √(1−ρ²)/ρ.
        ends |= {(k + j * spread) / (s2 * r) for k in sigma.kinks for j in (-8, -5, -2, 0, 2, 5, 8)}
        exact = sum(
            weight * TWINS[name](s1 * u, **parameters) * expected(s2 * r * u, spread) * mp.npdf(u)
            for u, weight in legendre_nodes(z for z in ends if abs(z) <= 11)
        )
    assert abs(float(dual(sigma, rho, q1, variance2=q2) - float(exact))) < 1e-12 * max(1.0, abs(float(exact)))


@pytest.mark.parametrize("n", [0.6, 0.75, 1.5, 10, 40, 64])
def test_powers_against_mpmath(n: float) -> None:
    """x₊ⁿ for fractional and for large n, by the angular integral in 30 digits, slope included."""
    sigma = activation("power_relu", n=n)

    def angular(m: Any, theta: Any) -> Any:
        # By symmetry about θ/2, with the end at π/2 where mpmath's double-exponential rule wants a singularity.
        whole = mp.quad(
            lambda t: (mp.sin(t) * mp.sin(t + theta)) ** m, [0, (mp.pi - theta) / 4, (mp.pi - theta) / 2]
        )
        return 2 * whole * mp.mpf(2) ** m * mp.gamma(m + 1) / (2 * mp.pi)

    with mp.workdps(30):
        for rho in (-0.5, 0.0, 0.6, 0.9999):
            theta, m = mp.acos(mp.mpf(rho)), mp.mpf(n)
            size = angular(m, mp.mpf(0))
            assert abs(float(dual(sigma, rho) / float(size) - float(angular(m, theta) / size))) < 1e-12
            steep = m * m * angular(m - 1, theta)
            size = max(steep, m * m * size / abs(2 * m - 1))
            assert abs(float(dual_slope(sigma, rho) / float(size) - float(steep / size))) < 1e-12


@pytest.mark.parametrize(
    ("n", "slopes"), [(0.3, (math.inf, math.inf)), (0.5, (0.15666, math.inf)), (0.75, (0.0, 0.48377))]
)
def test_slope_of_a_root_at_the_ends(n: float, slopes: tuple[float, float]) -> None:
    ours = dual_slope(activation("power_relu", n=n), tensor([-1.0, 1.0])).tolist()
    assert ours == pytest.approx(slopes, abs=1e-5)


@pytest.mark.parametrize("name", ["erf", "sin", "cos", "exp", "he2", "he3", "gaussian", "identity"])
def test_analytic_against_the_hermite_series(name: str) -> None:
    c = hermite_coefficients(name, 120)
    rho = tensor([-0.8, -0.3, 0.0, 0.5, 0.8])
    powers = rho[:, None] ** torch.arange(len(c))
    size = moments(name).second
    torch.testing.assert_close(dual(name, rho), powers @ c.square(), rtol=0, atol=1e-13 * size)
    torch.testing.assert_close(
        mean_reduced_dual(name, rho), powers[:, 1:] @ c[1:].square(), rtol=0, atol=1e-13 * size
    )


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "gelu_tanh", "mish", "softplus", "silu"])
def test_smooth_against_the_hermite_series(name: str) -> None:
    c = hermite_coefficients(name, 256)
    rho = tensor([-0.7, 0.2, 0.6])
    torch.testing.assert_close(
        dual(name, rho), (rho[:, None] ** torch.arange(256)) @ c.square(), rtol=0, atol=1e-13
    )


MONTE_CARLO = ["relu", "tanh", "gelu", "hardswish", "step", "softsign", "selu", "relu6"]


@functools.cache
def _sample(rho: float, q1: float, q2: float) -> tuple[Tensor, Tensor]:
    z = torch.randn(2, 1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return math.sqrt(q1) * z[0], math.sqrt(q2) * (rho * z[0] + math.sqrt(1 - rho * rho) * z[1])


@pytest.mark.parametrize("name", MONTE_CARLO)
def test_monte_carlo(name: str) -> None:
    """Within five standard errors, which are small enough that a fault of 2% would show."""
    sigma, rho, q1, q2 = activation(name), 0.6, 1.7, 0.8
    x, y = _sample(rho, q1, q2)
    for ours, sample in (
        (dual(sigma, rho, q1, variance2=q2), sigma(x) * sigma(y)),
        (
            mean_reduced_dual(sigma, rho, q1, variance2=q2),
            (sigma(x) - moments(sigma, variance=q1).mean) * (sigma(y) - moments(sigma, variance=q2).mean),
        ),
    ):
        error = float(sample.std()) / math.sqrt(sample.numel())
        assert 5 * error < 0.02 * abs(float(ours))
        assert abs(float(ours) - float(sample.mean())) < 5 * error


@pytest.mark.parametrize("name", ["tanh", "relu", "step", "sigmoid", "gaussian", "cos"])
def test_ends_and_middle(name: str) -> None:
    """σ̂(1) = Eσ², σ̂(0) = (Eσ)², σ̄(1) = Var σ, σ̄(0) = 0 exactly."""
    for q in (0.2, 1.0, 6.0):
        m = moments(name, variance=q)
        assert abs(float(dual(name, 1.0, q)) - m.second) < 1e-14 * m.second
        assert abs(float(dual(name, 0.0, q)) - m.mean**2) < 1e-15 + 1e-14 * m.mean**2
        assert abs(float(mean_reduced_dual(name, 1.0, q)) - m.variance) < 1e-14 * max(m.variance, m.second)
        assert float(mean_reduced_dual(name, 0.0, q)) == 0.0


def test_unequal_means_are_both_taken_off() -> None:
    q1, q2 = 0.4, 3.0
    expected = dual("softplus", 0.5, q1, variance2=q2) - dual("softplus", 0.0, q1, variance2=q2)
    assert abs(float(mean_reduced_dual("softplus", 0.5, q1, variance2=q2) - expected)) < 1e-15


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "gaussian", "exp", "gelu", "cos", "silu"])
def test_reduced_dual_does_not_cancel(name: str) -> None:
    """At variance 1e-6 the mean dwarfs the spread; σ̄(1) is still the variance, σ̄ still its leading term."""
    q = 1e-6
    m = moments(name, variance=q)
    reduced = mean_reduced_dual(name, tensor([1.0, 0.5]), q)
    assert abs(float(reduced[0]) / m.variance - 1) < 1e-9
    power = 2 if name in ("gaussian", "cos") else 1
    assert abs(float(reduced[1] / reduced[0]) - 0.5**power) < 1e-5


def test_large_variances_keep_their_digits() -> None:
    """Near ρ = 1 the formulas of erf, gelu and the bump are differences of numbers of order q²."""
    rho, q = 1 - 1e-8, 1e6
    with mp.workdps(40):
        r, v = mp.mpf(rho), mp.mpf(q)
        erf = 2 / mp.pi * mp.asin(2 * r * v / (1 + 2 * v))
        bump = 1 / mp.sqrt((1 + v) ** 2 - (r * v) ** 2)
        slope = v * (2 / mp.pi) * 2 / mp.sqrt((1 + 2 * v) ** 2 - 4 * (r * v) ** 2)
    assert abs(float(dual("erf", rho, q)) / float(erf) - 1) < 1e-14
    assert abs(float(dual("gaussian", rho, q)) / float(bump) - 1) < 1e-14
    assert abs(float(dual_slope("erf", rho, q)) / float(slope) - 1) < 1e-13


# --- derivatives -------------------------------------------------------------------------------------------------

_JUMP = wrap_activation(lambda x: torch.tanh(x) + 0.5 * (x > 0.3).to(x))
_TWO_JUMPS = wrap_activation(lambda x: torch.where(x.abs() > 0.7, torch.cos(x), x))


CHEAP = ("relu", "gelu", "sin", "power_relu", "step")


@pytest.mark.parametrize("name", CHEAP)
@pytest.mark.parametrize("function", [dual, mean_reduced_dual, dual_slope])
def test_gradients_of_formulas(name: str, function: Callable[..., Tensor]) -> None:
    _check_gradients(activation(name), function, twice=True)


@pytest.mark.full
@pytest.mark.parametrize(
    ("sigma", "function", "twice"),
    [
        (activation("tanh"), dual, True),
        (activation("tanh"), mean_reduced_dual, False),
        (activation("tanh"), dual_slope, False),
        (activation("hardtanh"), dual, False),
        (_JUMP, dual, True),
        (_JUMP, mean_reduced_dual, False),
        (_TWO_JUMPS, dual_slope, False),
    ],
    ids=[
        "tanh",
        "tanh reduced",
        "tanh slope",
        "hardtanh",
        "jump",
        "jump reduced",
        "two jumps slope",
    ],
)
def test_gradients_by_quadrature(sigma: Activation, function: Callable[..., Tensor], twice: bool) -> None:
    _check_gradients(sigma, function, twice)


def _check_gradients(sigma: Activation, function: Callable[..., Tensor], twice: bool) -> None:
    arguments = (tensor(0.35, True), tensor(0.8, True), tensor(1.9, True))

    def f(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
        return function(sigma, rho, q1, variance2=q2)

    assert torch.autograd.gradcheck(f, arguments, rtol=1e-5, atol=1e-7)
    if twice:
        assert torch.autograd.gradgradcheck(f, arguments, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["relu", "gelu", "sin", "gaussian"])
@pytest.mark.parametrize("function", [dual, mean_reduced_dual, dual_slope])
def test_arguments_may_be_one_tensor(name: str, function: Callable[..., Tensor]) -> None:
    """Every slot has its own partial derivative, even where one tensor fills all three, even at ρ = 0."""
    for f, x in (
        (lambda x: function(name, x, x), tensor(0.4, True)),
        (lambda x: function(name, 0.3, x), tensor(0.4, True)),
        (lambda x: function(name, x, 0.7 + x, variance2=0.9 - x), tensor(0.0, True)),
    ):
        assert torch.autograd.gradcheck(f, x, rtol=1e-5, atol=1e-7)
        assert torch.autograd.gradgradcheck(f, x, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("function", [dual, mean_reduced_dual, dual_slope])
@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_only_the_second_variance_is_differentiated(name: str, function: Callable[..., Tensor]) -> None:
    assert torch.autograd.gradcheck(lambda q: function(name, 0.5, 1.1, variance2=q), tensor(0.7, True))


@pytest.mark.parametrize("name", ["tanh", "relu", "gelu", "hardtanh", "sin", "power_relu", "softsign"])
def test_derivative_at_the_ends(name: str) -> None:
    """dσ̂/dρ at ρ = ±1 is q·Eσ′(x)σ′(±x): finite, and what autograd returns."""
    sigma = activation(name)
    for q in (1.0, 2.3):
        rho = tensor([-1.0, 1.0], True)
        (slope,) = torch.autograd.grad(dual(sigma, rho, q).sum(), rho)
        torch.testing.assert_close(slope, dual_slope(sigma, rho, q).detach(), rtol=1e-14, atol=1e-15)
        for end, value in zip((-1.0, 1.0), slope.tolist(), strict=True):
            both = Activation(
                "both", lambda x, e=end: sigma.derivative(x) * sigma.derivative(e * x), torch.zeros_like
            )
            assert abs(value - q * moments(both, variance=q).mean) < 1e-13


def test_slope_of_the_reduced_dual_at_zero() -> None:
    """dσ̄/dρ at 0 is c₁²: a value pinned to zero there must not pin its derivative."""
    for name in ("relu", "tanh", "gelu", "power_relu"):
        rho = tensor(0.0, True)
        value = mean_reduced_dual(name, rho)
        (slope,) = torch.autograd.grad(value, rho)
        assert value.item() == 0.0
        assert abs(float(slope) - moments(name).linear ** 2) < 1e-14


def test_slope_where_jumps_meet() -> None:
    for sigma in (activation("step"), wrap_activation(lambda x: (x > 0).to(x))):
        assert dual_slope(sigma, tensor([-1.0, 1.0])).tolist() == [math.inf, math.inf]
        assert dual_slope(sigma, tensor([-1.0, 1.0]), 1.0, variance2=2.0).tolist() == [math.inf, math.inf]
    aside = wrap_activation(lambda x: (x > 1).to(x))
    assert dual_slope(aside, tensor([-1.0, 1.0])).tolist() == [0.0, math.inf]
    assert dual_slope(aside, 1.0, 1.0, variance2=2.0) == 0.0
    # At ρ = −1 the jump at 1 meets only the slope 1 on the other side, twice.
    mixed = wrap_activation(lambda x: torch.where(x > 1, x + 0.5, x))
    at_minus_one = 1 + 2 * 0.5 * math.exp(-0.5) / math.sqrt(2 * math.pi)
    assert abs(float(dual_slope(mixed, -1.0)) - at_minus_one) < 1e-14


def test_slope_needs_no_gradient_mode() -> None:
    with torch.no_grad():
        assert abs(float(dual_slope("gelu", 0.4)) - float(dual_slope("gelu", tensor(0.4, True)))) < 1e-16
        assert not dual_slope("gelu", tensor(0.4, True)).requires_grad


# --- laws --------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["relu", "gelu", "erf", "sin", "cos", "step", "exp", "gaussian", "abs", "he3", "leaky_relu"]
)
VARIANCE = st.floats(0.05, 5.0)
RHO = st.floats(-1.0, 1.0)


@given(name=NAMES, rho=RHO, q1=VARIANCE, q2=VARIANCE)
def test_symmetric(name: str, rho: float, q1: float, q2: float) -> None:
    there, back = dual(name, rho, q1, variance2=q2), dual(name, rho, q2, variance2=q1)
    torch.testing.assert_close(there, back, rtol=1e-13, atol=1e-14)


@settings(max_examples=8)
@given(name=st.sampled_from(["tanh", "elu", "hardtanh", "softsign"]), rho=RHO, q1=VARIANCE, q2=VARIANCE)
def test_quadrature_is_symmetric(name: str, rho: float, q1: float, q2: float) -> None:
    """x is integrated outside and y inside: exchanging them is a different computation."""
    there, back = dual(name, rho, q1, variance2=q2), dual(name, rho, q2, variance2=q1)
    torch.testing.assert_close(there, back, rtol=1e-12, atol=1e-13)
    there, back = dual_slope(name, rho, q1, variance2=q2), dual_slope(name, rho, q2, variance2=q1)
    torch.testing.assert_close(there, back, rtol=1e-12, atol=1e-12)


@given(name=NAMES, rho=RHO, q1=VARIANCE, q2=VARIANCE)
def test_cauchy_schwarz(name: str, rho: float, q1: float, q2: float) -> None:
    bound = math.sqrt(float(dual(name, 1.0, q1)) * float(dual(name, 1.0, q2)))
    assert abs(float(dual(name, rho, q1, variance2=q2))) <= bound * (1 + 1e-14)
    bound = math.sqrt(float(mean_reduced_dual(name, 1.0, q1)) * float(mean_reduced_dual(name, 1.0, q2)))
    assert abs(float(mean_reduced_dual(name, rho, q1, variance2=q2))) <= bound * (1 + 1e-13) + 1e-15


def _pairs(seed: int, count: int, rank: int) -> tuple[Tensor, Tensor]:
    """Correlations and variances of ``count`` Gaussians, some of them nearly or exactly collinear."""
    x = torch.randn(count, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[1] = 2.0 * x[0]
    x[2] = -0.5 * x[0] + 1e-6 * x[3]
    unit = x / x.norm(dim=1, keepdim=True)
    rho = (unit @ unit.T).clamp(-1, 1)
    return rho.fill_diagonal_(1.0), x.square().sum(1) / rank


@settings(max_examples=60)
@given(name=NAMES, seed=st.integers(0, 10_000), rank=st.integers(2, 8))
def test_gram_matrices_stay_positive_semidefinite(name: str, seed: int, rank: int) -> None:
    rho, q = _pairs(seed, 7, rank)
    for function in (dual, mean_reduced_dual):
        G = function(name, rho, q[:, None], variance2=q)
        assert torch.linalg.eigvalsh((G + G.T) / 2)[0] >= -2e-14 * G.diagonal().sum()


def test_gram_matrix_by_quadrature_stays_positive_semidefinite() -> None:
    rho, q = _pairs(3, 5, 4)
    for name in ("tanh", "hardtanh"):
        for function in (dual, mean_reduced_dual):
            G = function(name, rho, q[:, None], variance2=q)
            torch.testing.assert_close(G, G.T, rtol=0, atol=1e-13)
            assert torch.linalg.eigvalsh((G + G.T) / 2)[0] >= -2e-14 * G.diagonal().sum()


# --- shapes, dtypes, refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh"])
def test_shapes_and_broadcasting(name: str) -> None:
    for function in (dual, mean_reduced_dual, dual_slope):
        assert function(name, 0.5).shape == ()
        assert function(name, torch.empty(0, 3)).shape == (0, 3)
        together = function(name, tensor([[0.1], [0.5]]), tensor([1.0, 2.0, 0.3]), variance2=0.7)
        assert together.shape == (2, 3)
        apart = [[float(function(name, r, q, variance2=0.7)) for q in (1.0, 2.0, 0.3)] for r in (0.1, 0.5)]
        torch.testing.assert_close(together, tensor(apart), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_single_precision_input(name: str) -> None:
    rho = torch.tensor([-1.0, 0.25, 1.0], requires_grad=True)
    value = dual(name, rho)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, dual(name, rho.double()), rtol=0, atol=0)
    value.sum().backward()
    assert rho.grad is not None
    assert rho.grad.dtype == torch.float32
    torch.testing.assert_close(rho.grad.double(), dual_slope(name, rho.detach()), rtol=1e-6, atol=0)


@pytest.mark.parametrize("rho", [1.0 + 1e-9, -1.5, math.nan, math.inf])
@pytest.mark.parametrize("function", [dual, mean_reduced_dual, dual_slope])
def test_correlations_lie_in_range(function: Callable[..., Tensor], rho: float) -> None:
    with pytest.raises(InvalidValueError, match=r"A correlation lies in \[-1, 1\].*clamp it"):
        function("relu", tensor([0.0, rho]))


@pytest.mark.parametrize("variance", [0.0, -1.0, math.nan, math.inf])
def test_variances_are_positive(variance: float) -> None:
    for arguments in ((variance, 1.0), (1.0, variance)):
        with pytest.raises(InvalidValueError, match="A variance is finite and > 0"):
            dual("relu", 0.5, arguments[0], variance2=arguments[1])


def test_overflow_is_refused() -> None:
    """A wrapped exponential at variance 400: its square overflows before its weight falls off."""
    exp = wrap_activation(lambda x: torch.exp(x))
    assert abs(float(dual(exp, -0.5, 64.0)) / math.exp(32) - 1) < 1e-12
    with pytest.raises(PrecisionError, match="overflows"):
        dual(exp, -0.5, 400.0)


def test_oscillation_beyond_reach_is_refused() -> None:
    sine = wrap_activation(lambda x: torch.sin(x))
    assert abs(float(dual(sine, 1.0, 100.0)) - 0.5) < 1e-12
    with pytest.raises(PrecisionError, match="turns too often"):
        dual(sine, 0.5, 1e8)


def test_singular_derivative_is_refused() -> None:
    root = wrap_activation(lambda x: x.abs().sqrt())
    assert abs(float(dual(root, 1.0)) - math.sqrt(2 / math.pi)) < 1e-14
    with pytest.raises(PrecisionError, match="it is singular"):
        dual_slope(root, 0.5)


def test_every_registered_activation_has_a_dual() -> None:
    for name in activation_names():
        assert torch.isfinite(dual(name, tensor([-1.0, 0.2, 1.0]))).all()
