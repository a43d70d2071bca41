"""Deficit and surplus of a Gaussian pair in many digits, by formulas and one-dimensional integrals in mpmath."""

import functools
from collections.abc import Callable
from typing import Any

import mpmath as mp

__all__ = ["HARD_ANGLES", "HARD_VARIANCES", "TRUTHS", "new_angle", "tanh_truth"]

DIGITS = 60
HARD_ANGLES = [0.0, 1e-12, 1e-9, 8e-9, 1e-6, 1e-3, 0.3, 1.0, 2.5, float(mp.pi) - 1e-9, float(mp.pi)]
HARD_VARIANCES = [(1.3, 1.3), (1.3, 1.3 * (1 + 1e-9)), (0.9, 0.9 * (1 + 1e-5)), (0.2, 20.0)]

Truth = Callable[[Any, Any, Any], tuple[Any, Any]]
"""(θ, q₁, q₂) ↦ (E σ(x)σ(y), √(V₁V₂)), in as many digits as mpmath is set to."""


def _ramp(slope: float) -> Truth:
    def truth(theta: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
        a = mp.mpf(slope)
        kappa = [(mp.sin(t) + (mp.pi - t) * mp.cos(t)) / (2 * mp.pi) for t in (theta, mp.pi - theta)]
        s = mp.sqrt(q1 * q2)
        return s * ((1 + a * a) * kappa[0] - 2 * a * kappa[1]), s * (1 + a * a) / 2

    return truth


def _abs(theta: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
    s = mp.sqrt(q1 * q2)
    return s * 2 / mp.pi * (mp.sin(theta) + (mp.pi / 2 - theta) * mp.cos(theta)), s


def _relu_squared(theta: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
    c = mp.cos(theta)
    value = 3 * mp.sin(theta) * c + (mp.pi - theta) * (1 + 2 * c * c)
    return q1 * q2 * value / (2 * mp.pi), q1 * q2 * mp.mpf(3) / 2


def _step(theta: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
    return (mp.pi - theta) / (2 * mp.pi), mp.mpf(1) / 2


def _erf(theta: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
    def pair(c: Any, a: Any, b: Any) -> Any:
        return 2 / mp.pi * mp.asin(2 * c / mp.sqrt((1 + 2 * a) * (1 + 2 * b)))

    return pair(mp.sqrt(q1 * q2) * mp.cos(theta), q1, q2), mp.sqrt(pair(q1, q1, q1) * pair(q2, q2, q2))


def _gelu(theta: Any, q1: Any, q2: Any) -> tuple[Any, Any]:
    def pair(c: Any, a: Any, b: Any) -> Any:
        low = mp.sqrt((1 + a) * (1 + b) - c * c)
        orthant = mp.mpf(1) / 4 + mp.asin(c / mp.sqrt((1 + a) * (1 + b))) / (2 * mp.pi)
        bump = (a * b - c * c + c * c * (1 / (1 + a) + 1 / (1 + b))) / (2 * mp.pi * low)
        return bump + c * orthant

    return pair(mp.sqrt(q1 * q2) * mp.cos(theta), q1, q2), mp.sqrt(pair(q1, q1, q1) * pair(q2, q2, q2))


TRUTHS: dict[str, Truth] = {
    "relu": _ramp(0.0),
    "leaky_relu": _ramp(0.01),
    "abs": _abs,
    "relu_squared": _relu_squared,
    "step": _step,
    "erf": _erf,
    "gelu": _gelu,
}


def new_angle(deficit: Any, surplus: Any) -> Any:
    """θ′ in mpmath."""
    return 2 * mp.atan2(mp.sqrt(max(deficit, 0)), mp.sqrt(max(surplus, 0)))


def true_angle(name: str, theta: float, q1: float, q2: float) -> Any:
    """θ′ by the formula of the dual and brute digits."""
    with mp.workdps(DIGITS):
        value, scale = TRUTHS[name](mp.mpf(theta), mp.mpf(q1), mp.mpf(q2))
        return new_angle(scale - value, scale + value)


def _trapezoid(f: Callable[[Any], Any], step: Any, reach: int) -> Any:
    count = int(reach / step)
    return step * mp.fsum(f(k * step) * mp.npdf(k * step) for k in range(-count, count + 1))


@functools.cache
def _tanh_terms(q1: float, q2: float) -> tuple[Any, ...]:
    """√(V₁V₂) and E σ⁽ᵏ⁾σ⁽ᵏ⁾(q₁q₂)^{k/2} at ρ = 1 for k = 0 … 4, σ = tanh; 40 digits."""
    derivatives = [
        lambda t: t,
        lambda t: 1 - t * t,
        lambda t: -2 * t * (1 - t * t),
        lambda t: (6 * t * t - 2) * (1 - t * t),
        lambda t: (16 - 24 * t * t) * t * (1 - t * t),
    ]
    r1, r2 = mp.sqrt(mp.mpf(q1)), mp.sqrt(mp.mpf(q2))
    # The pole of tanh(rz) lies at π/2r: an error of exp(−π²/(r·step)).
    step = mp.pi**2 / (95 * max(r1, r2))
    second = [_trapezoid(lambda z, r=r: mp.tanh(r * z) ** 2, step, 14) for r in (r1, r2)]
    terms = [
        (r1 * r2) ** k * _trapezoid(lambda z, d=d: d(mp.tanh(r1 * z)) * d(mp.tanh(r2 * z)), step, 14)
        for k, d in enumerate(derivatives)
    ]
    return (mp.sqrt(second[0] * second[1]), *terms)


def tanh_truth(theta: float, q1: float, q2: float) -> Any:
    """θ′ of tanh for θ ≤ 1e-3 or θ ≥ π − 1e-3, by the Taylor series in 1 − |ρ|, exact to 1e-20 there."""
    with mp.workdps(42):
        scale, *terms = _tanh_terms(q1, q2)
        near = min(mp.mpf(theta), mp.pi - mp.mpf(theta))
        assert near < 1.1e-3
        w = 2 * mp.sin(near / 2) ** 2
        value = mp.fsum((-w) ** k / mp.factorial(k) * term for k, term in enumerate(terms))
        angle = new_angle(scale - value, scale + value)
        return angle if theta < 2 else mp.pi - angle
