"""Normalized Hermite polynomials and the expansion of an activation in them."""

import math

import mpmath as mp
import pytest
import torch

from farfield.errors import InvalidValueError, PrecisionError
from farfield.gaussian import (
    dual,
    gaussian_expectation,
    hermite_coefficients,
    hermite_polynomials,
    moments,
)


def test_polynomials_are_orthonormal() -> None:
    count = 12
    gram = gaussian_expectation(
        lambda x: (hermite_polynomials(x, count)[:, None] * hermite_polynomials(x, count)).reshape(
            -1, x.numel()
        )
    )
    gap = gram.value.reshape(count, count) - torch.eye(count, dtype=torch.float64)
    assert gap.abs().max() < 1e-13


def test_polynomials_against_mpmath() -> None:
    x = torch.tensor([-3.1, 0.2, 7.7], dtype=torch.float64)
    ours = hermite_polynomials(x, 61)
    assert ours.shape == (61, 3)
    for k in (0, 1, 2, 17, 60):
        for i, point in enumerate(x.tolist()):
            with mp.workdps(40):
                z = mp.mpf(point)
                exact = mp.hermite(k, z / mp.sqrt(2)) / mp.sqrt(mp.mpf(2) ** k * mp.factorial(k))
            assert abs(float(ours[k, i]) - float(exact)) < 1e-11 * (1 + abs(float(exact)))


def _relu(k: int) -> mp.mpf:
    """c_k of relu: (−1)^{k/2−1} (k−3)!!/√(2πk!) for even k ≥ 2."""
    if k < 2:
        return [1 / mp.sqrt(2 * mp.pi), mp.mpf(1) / 2][k]
    return (
        (-1) ** (k // 2 - 1) * mp.fac2(k - 3) / mp.sqrt(2 * mp.pi * mp.factorial(k))
        if k % 2 == 0
        else mp.mpf(0)
    )


def _step(k: int) -> mp.mpf:
    """c_k of the step: (−1)^{(k−1)/2} (k−2)!!/√(2πk!) for odd k."""
    if k == 0:
        return mp.mpf(1) / 2
    return (
        (-1) ** ((k - 1) // 2) * mp.fac2(k - 2) / mp.sqrt(2 * mp.pi * mp.factorial(k)) if k % 2 else mp.mpf(0)
    )


CLOSED = {
    "relu": _relu,
    "step": _step,
    "exp": lambda k: mp.exp(mp.mpf(1) / 2) / mp.sqrt(mp.factorial(k)),
    "sin": lambda k: mp.sin(k * mp.pi / 2) * mp.exp(-mp.mpf(1) / 2) / mp.sqrt(mp.factorial(k)),
    "cos": lambda k: mp.cos(k * mp.pi / 2) * mp.exp(-mp.mpf(1) / 2) / mp.sqrt(mp.factorial(k)),
    "he3": lambda k: mp.mpf(k == 3),
}


@pytest.mark.parametrize("name", CLOSED)
def test_coefficients_against_closed_forms(name: str) -> None:
    ours = hermite_coefficients(name, 512 if name == "relu" else 150).tolist()
    for k, value in enumerate(ours):
        assert abs(value - float(CLOSED[name](k))) < 1e-14 * math.sqrt(moments(name).second), k


def test_exact_zeros_are_zero() -> None:
    assert hermite_coefficients("tanh", 40)[::2].abs().max() == 0.0
    assert hermite_coefficients("relu", 40)[3::2].abs().max() == 0.0


@pytest.mark.parametrize(("name", "rate"), [("relu", -2.5), ("step", -1.5)])
def test_decay_at_a_kink_and_at_a_jump(name: str, rate: float) -> None:
    """c_k² falls like k^{−5/2} at a kink, k^{−3/2} at a jump."""
    c = hermite_coefficients(name, 512)
    near, far = (c[slice(*s)].square().max() for s in ((120, 124), (480, 484)))
    assert abs(math.log(float(far / near)) / math.log(4) - rate) < 0.03


@pytest.mark.parametrize("variance", [0.1, 4.0, 1e4])
def test_variance(variance: float) -> None:
    c = hermite_coefficients("relu", 8, variance=variance)
    torch.testing.assert_close(
        c, math.sqrt(variance) * hermite_coefficients("relu", 8), rtol=1e-13, atol=1e-13
    )
    c = hermite_coefficients("tanh", 400, variance=variance)
    m = moments("tanh", variance=variance)
    assert abs(float(c[1]) - m.linear) < 1e-14
    series = (0.5 ** torch.arange(400, dtype=torch.float64) * c.square()).sum()
    assert abs(float(series - dual("tanh", 0.5, variance))) < 1e-13


@pytest.mark.parametrize("count", [0, -1, 513])
def test_count_is_bounded(count: int) -> None:
    with pytest.raises(InvalidValueError, match="Between 1 and 512"):
        hermite_coefficients("relu", count)


def test_at_least_one_polynomial() -> None:
    assert hermite_polynomials(torch.ones(3), 1).shape == (1, 3)
    with pytest.raises(InvalidValueError, match="At least one polynomial"):
        hermite_polynomials(torch.ones(3), 0)


@pytest.mark.parametrize("variance", [0.0, -1.0, math.nan])
def test_variance_is_positive(variance: float) -> None:
    with pytest.raises(InvalidValueError, match="A variance is finite and > 0"):
        hermite_coefficients("relu", 4, variance=variance)


def test_overflow_and_oscillation_are_refused() -> None:
    with pytest.raises(PrecisionError, match="overflows"):
        hermite_coefficients("exp", 4, variance=900.0)
    with pytest.raises(PrecisionError, match="turns too often"):
        hermite_coefficients("sin", 2, variance=1e14)
