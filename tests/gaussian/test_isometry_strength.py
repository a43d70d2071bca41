"""Isometry strength: published values, closed forms over gains, invariances, and what it refuses."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farfield.errors import InvalidValueError, PrecisionError
from farfield.gaussian import (
    activation,
    hermite_coefficients,
    isometry_strength,
    mean_field_constants,
    moments,
)

BETA = {
    "sigmoid": 1.0158328331,
    "selu": 1.0293196477,
    "elu": 1.0632726503,
    "tanh": 1.0695300764,
    "softplus": 1.0792388681,
    "sin": 1.1490818718,
    "mish": 1.1944929966,
    "silu": 1.2014904583,
    "leaky_relu": 1.2587823651,
    "relu": 1.2665288965,
    "gelu": 1.2767124787,
    "gelu_tanh": 1.2767207125,
    "step": 1.3633802276,
    "he2": 2.0,
    "abs": 2.0,
    "identity": 1.0,
}
GAINS = (0.01, 0.1, 0.3, 0.7, 1.0, 1.3, 2.0, 3.0, 5.0)


@pytest.mark.parametrize(("name", "beta"), BETA.items())
def test_table(name: str, beta: float) -> None:
    assert abs(isometry_strength(name) - beta) < 1e-10


def test_shifted_exponential() -> None:
    # exp(x − 2) = e⁻²·eˣ: a factor makes no difference.
    assert abs(isometry_strength(lambda x: torch.exp(x - 2)) - 1.4180232931) < 1e-10
    assert abs(isometry_strength("exp") - 1.4180232931) < 1e-10


@pytest.mark.parametrize("gain", GAINS)
def test_exponential(gain: float) -> None:
    square = gain * gain
    assert abs(isometry_strength("exp", gain=gain) - (2 - square / math.expm1(square))) < 1e-12


@pytest.mark.parametrize("gain", GAINS)
def test_sine(gain: float) -> None:
    # 2 − 2α²e^{α²}/(e^{2α²} − 1) = 2 − α²/sinh α²
    square = gain * gain
    assert abs(isometry_strength("sin", gain=gain) - (2 - square / math.sinh(square))) < 1e-12


@pytest.mark.parametrize("gain", [*GAINS, 1e-140, 1e-20, 1e20, 1e140])
def test_relu(gain: float) -> None:
    assert abs(isometry_strength("relu", gain=gain) - (3 * math.pi - 4) / (2 * math.pi - 2)) < 1e-12


def test_step_and_sign() -> None:
    assert abs(isometry_strength("step") - (2 - 2 / math.pi)) < 1e-14
    assert abs(isometry_strength("sign") - (2 - 2 / math.pi)) < 1e-14


def test_gelu_variance() -> None:
    m = moments("gelu")
    assert abs(m.linear - 0.5) < 1e-15
    assert abs(m.variance - (1 / 3 + 1 / (2 * math.sqrt(3) * math.pi) - 1 / (4 * math.pi))) < 1e-15
    assert abs(m.mean - 1 / (2 * math.sqrt(math.pi))) < 1e-15


@pytest.mark.parametrize("name", ["relu", "abs", "leaky_relu", "power_relu", "step", "identity"])
@pytest.mark.parametrize("gain", [0.07, 3.7])
def test_homogeneous_activations_do_not_feel_the_gain(name: str, gain: float) -> None:
    plain = dataclasses.replace(activation(name), homogeneity=None)  # so that nobody takes a short cut
    assert abs(isometry_strength(plain, gain=gain) - isometry_strength(name)) < 1e-12


@settings(max_examples=40)
@given(
    name=st.sampled_from(["tanh", "gelu", "softplus", "hardtanh", "exp", "elu"]),
    gain=st.floats(0.05, 4.0),
    factor=st.floats(0.01, 100.0),
    shift=st.floats(-3.0, 3.0),
)
def test_affine_invariance(name: str, gain: float, factor: float, shift: float) -> None:
    """β(aσ + b) = β(σ), and the sign of the gain is lost."""
    sigma = activation(name)
    beta = isometry_strength(sigma, gain=gain)
    moved = dataclasses.replace(sigma, function=lambda x: factor * sigma(x) - shift, homogeneity=None)
    assert 1.0 <= beta <= 2.0
    assert isometry_strength(sigma, gain=-gain) == beta
    rounding = (abs(shift) / factor + 1) / moments(sigma, variance=gain**2).scale
    assert abs(isometry_strength(moved, gain=gain) - beta) < 1e-14 * (10 + rounding)


def test_a_gain_is_a_variance() -> None:
    scaled = isometry_strength(lambda x: torch.tanh(2.5 * x))
    assert abs(isometry_strength("tanh", gain=2.5) - scaled) < 1e-13


@pytest.mark.parametrize("gain", [1e2, 1e4, 1e6, 1e9])
@pytest.mark.parametrize(("name", "limit"), [("tanh", "step"), ("sigmoid", "step"), ("gelu", "relu")])
def test_large_gains_sharpen(name: str, limit: str, gain: float) -> None:
    """σ(αx) tends to its limit like 1/α and never arrives: a rule that skips the narrow bend says it has."""
    gap = abs(isometry_strength(name, gain=gain) - isometry_strength(limit))
    nearer = abs(isometry_strength(name, gain=2 * gain) - isometry_strength(limit))
    order = {"step": 1, "relu": 2}[limit]
    if gap > 1e-12:
        assert abs(gap / nearer - 2**order) < 0.1
    assert gap < 3 / gain**order + 1e-13


def test_large_gain_of_tanh() -> None:
    # E tanh²(αz) = 1 − √(2/π)/α·∫sech²/2 + O(α⁻³), E z tanh(αz) = √(2/π)(1 − π²/(24α²) + …).
    gain = 1e5
    m = moments("tanh", variance=gain**2)
    assert abs(m.second - (1 - 2 / (gain * math.sqrt(2 * math.pi)))) < 1e-14
    assert abs(m.linear - math.sqrt(2 / math.pi) * (1 - math.pi**2 / (24 * gain**2))) < 1e-14


@pytest.mark.parametrize("gain", [1e-100, 1e-12, 1e-6])
def test_small_gains_linearize(gain: float) -> None:
    for name in ("tanh", "sin", "erf", "softsign"):
        assert abs(isometry_strength(name, gain=gain) - 1.0) < 1e-9
    # x − tanh x ≈ x³/3, of which c₁² is 9/15.
    if gain > 1e-50:
        assert abs(isometry_strength("tanhshrink", gain=gain) - 1.4) < 1e-9


def test_beta_is_two_minus_the_linear_share() -> None:
    for name in ("tanh", "gelu", "cos", "he3"):
        c = hermite_coefficients(name, 60)
        assert abs(isometry_strength(name) - float(2 - c[1] ** 2 / c[1:].square().sum())) < 1e-4


@pytest.mark.parametrize("constant", [0.0, 1.0, -3e5])
def test_constant_is_refused(constant: float) -> None:
    with pytest.raises(InvalidValueError, match="is constant under"):
        isometry_strength(lambda x: torch.full_like(x, constant))


@pytest.mark.parametrize("gain", [0.0, -0.0, math.inf, -math.inf, math.nan, 1e200, 1e-200])
def test_gain_is_finite_and_not_zero(gain: float) -> None:
    with pytest.raises(InvalidValueError, match="A gain is finite and non-zero"):
        isometry_strength("relu", gain=gain)


@pytest.mark.parametrize(
    ("name", "gain"), [("softplus", 1e-9), ("exp", 1e-11), ("sin", 3e6), ("sin", 1e-153)]
)
def test_what_cannot_be_known_is_not_said(name: str, gain: float) -> None:
    with pytest.raises(PrecisionError, match="only known to"):
        isometry_strength(name, gain=gain)


def test_mean_field_constants() -> None:
    offset, scale = mean_field_constants("relu")
    assert abs(offset - 1 / math.sqrt(2 * math.pi)) < 1e-15
    assert abs(scale - math.sqrt(0.5 - 1 / (2 * math.pi))) < 1e-15
    assert mean_field_constants("tanh")[0] == 0.0
    offset, scale = mean_field_constants("relu", variance=9.0)
    assert abs(offset - 3 / math.sqrt(2 * math.pi)) < 3e-15


@pytest.mark.parametrize("variance", [-1.0, math.nan, math.inf])
def test_variance_is_finite_and_not_negative(variance: float) -> None:
    with pytest.raises(InvalidValueError, match="A variance is a finite number >= 0"):
        moments("relu", variance=variance)


def test_variance_zero_is_the_origin() -> None:
    m = moments("sigmoid", variance=0.0)
    assert (m.mean, m.linear, m.variance, m.second, m.error) == (0.5, 0.0, 0.0, 0.25, 0.0)


def test_variance_does_not_cancel() -> None:
    # Var(10⁶ + tanh) from Eσ² − (Eσ)² would have no digit left.
    far = moments(lambda x: 1e6 + torch.tanh(x))
    assert abs(far.variance / moments("tanh").variance - 1) < 1e-9
    assert abs(far.variance - moments("tanh").variance) <= far.variance_error
