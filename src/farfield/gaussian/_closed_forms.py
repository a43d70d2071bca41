r"""Dual activations that have a formula: E σ(x)σ(y), x ~ N(0, q₁), y ~ N(0, q₂), correlation ρ.

Throughout s = √(q₁q₂) and c = ρs is the covariance. Formulas that contain √(1−ρ²) or arccos ρ come with an
explicit slope, because differentiating them as written gives nan at ρ = ±1 where the slope itself is finite.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from farfield.gaussian._activation import ClosedForm

__all__ = [
    "COSINE",
    "ERF",
    "EXPONENTIAL",
    "GAUSSIAN",
    "GELU",
    "HE2",
    "HE3",
    "IDENTITY",
    "SIGN",
    "SINE",
    "STEP",
    "one_sided_power_integral",
    "two_sided_power",
]

_TWO_PI = 2.0 * math.pi


def _scale(q1: Tensor, q2: Tensor) -> Tensor:
    return torch.sqrt(q1) * torch.sqrt(q2)


def _covariance(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    return rho * _scale(q1, q2)


def _angle(rho: Tensor) -> Tensor:
    """Arccos ρ without its cancellation near ρ = ±1, where 1 − |ρ| is exact in floating point."""
    return 2.0 * torch.atan2(torch.sqrt((1.0 - rho).clamp(min=0)), torch.sqrt((1.0 + rho).clamp(min=0)))


IDENTITY = ClosedForm(dual=_covariance, reduced=_covariance)

STEP = ClosedForm(
    dual=lambda rho, q1, q2: (math.pi - _angle(rho)) / _TWO_PI + 0.0 * _scale(q1, q2),
    slope=lambda rho, q1, q2: 1.0 / (_TWO_PI * torch.sqrt((1.0 - rho) * (1.0 + rho))) + 0.0 * _scale(q1, q2),
    reduced=lambda rho, q1, q2: torch.asin(rho) / _TWO_PI + 0.0 * _scale(q1, q2),
)

SIGN = ClosedForm(
    dual=lambda rho, q1, q2: 4.0 * STEP.dual(rho, q1, q2) - 1.0,
    slope=lambda rho, q1, q2: 2.0 / (math.pi * torch.sqrt((1.0 - rho) * (1.0 + rho))) + 0.0 * _scale(q1, q2),
    reduced=lambda rho, q1, q2: torch.asin(rho) * (2.0 / math.pi) + 0.0 * _scale(q1, q2),
)


def _one_sided_power_angular(n: float, rho: Tensor) -> Tensor:
    r"""J(θ) = ∫_{θ−π/2}^{π/2} (cos t cos(t−θ))ⁿ dt, so that E x₊ⁿy₊ⁿ = sⁿ 2ⁿ Γ(n+1)/(2π) · J(θ); n > −1."""
    theta = _angle(rho)
    if n == 1:
        return (torch.sqrt((1.0 - rho) * (1.0 + rho)) + (math.pi - theta) * rho) / 2.0
    return one_sided_power_integral(n, theta)


def one_sided_power_integral(n: float, theta: Tensor) -> Tensor:
    """The same J(θ) from the angle itself."""
    if n == 0:
        return math.pi - theta
    # t = θ/2 + (π−θ)/2 · v turns the integrand into ((cos(2u) + cos θ)/2)ⁿ, even in v, zero at v = ±1.
    half_width = (math.pi - theta) / 2.0
    nodes, weights = _tanh_sinh()
    # cos 2u + cos θ = 2 cos(u + θ/2) cos(u − θ/2); with u = half_width·v and w = 1 − v:
    # cos(u + θ/2) = sin(half_width·w), cos(u − θ/2) = sin(half_width·w + θ): no cancellation at the ends.
    reach = half_width[..., None] * nodes
    product = torch.sin(reach) * torch.sin(reach + theta[..., None])
    value = 2.0 * half_width * (product.clamp(min=0) ** n * weights).sum(-1)
    if n >= 0:
        return value
    # At ρ = 1 the integrand is sin²ⁿ, at ρ = −1 it is (w(2−w))ⁿ on a range shrinking like half_width^{2n+1}.
    value = torch.where(half_width > 0, value, math.inf if n < -0.5 else math.pi if n == -0.5 else 0.0)
    return torch.where(theta > 0, value, math.inf) if n <= -0.5 else value


@functools.cache
def _tanh_sinh() -> tuple[Tensor, Tensor]:
    """Nodes w = 1 − v and weights for ∫₀¹ g dv; double-exponential, so powers at the ends do no harm.

    The step resolves sin¹²⁸ (n = 64); the nodes reach down to w = e⁻³⁴⁷, so that w^{n−1} may come near 1/w.
    """
    t = np.arange(-68, 109) * 0.05
    # On (0, 1): v = 1/(1 + exp(−π sinh t)), so w = 1 − v keeps its digits near v = 1.
    u = math.pi * np.sinh(t)
    w = 1.0 / (1.0 + np.exp(u))
    weights = 0.05 * math.pi * np.cosh(t) * w * (1.0 - w)
    return torch.from_numpy(w), torch.from_numpy(weights)


def _power_constant(n: float) -> float:
    return float(2.0**n) * math.gamma(n + 1.0) / _TWO_PI


def two_sided_power(n: float, right: float, left: float) -> ClosedForm:
    r"""σ(x) = right·x₊ⁿ + left·(−x)₊ⁿ, real n ≥ 0: ReLU powers, leaky ReLU (left = −slope), |x|.

    .. math:: \mathbb E\,\sigma(x)\sigma(y) = (r^2+l^2)\,A_n(\rho) + 2rl\,A_n(-\rho), \qquad
              A_n = s^n \frac{2^n\Gamma(n+1)}{2\pi} J_n(\theta)

    The slope uses dA_n/dρ = n²·s·A_{n−1}, for n > 0. Reference: arc-cosine kernels; [P1] §3.
    """
    same, cross = right * right + left * left, 2.0 * right * left

    def mix(m: float, rho: Tensor, sign: float) -> Tensor:
        value = same * _one_sided_power_angular(m, rho)
        return value if cross == 0 else value + sign * cross * _one_sided_power_angular(m, -rho)

    def dual(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
        return _scale(q1, q2) ** n * _power_constant(n) * mix(n, rho, 1.0)

    def slope(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
        return n * n * _scale(q1, q2) ** n * _power_constant(n - 1.0) * mix(n - 1.0, rho, -1.0)

    def reduced(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
        # n = 1 only: A₁(ρ) − A₁(0) = (πρ/2 + ρ asin ρ − ρ²/(1+√(1−ρ²)))·s/2π, every term O(ρ).
        even = rho * torch.asin(rho) - rho * rho / (1.0 + torch.sqrt((1.0 - rho) * (1.0 + rho)))
        odd = rho * (math.pi / 2.0)
        return _scale(q1, q2) / _TWO_PI * ((same - cross) * odd + (same + cross) * even)

    return ClosedForm(dual=dual, slope=slope, reduced=reduced if n == 1 else None)


def _gap(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    """q₁q₂ − c², without its cancellation near ρ = ±1."""
    return q1 * q2 * ((1.0 - rho) * (1.0 + rho))


def _erf_dual(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    # asin(2c/√((1+2q₁)(1+2q₂))) as an arctangent: the argument of the arcsine is near 1 for large variances.
    c = _covariance(rho, q1, q2)
    low = torch.sqrt(1.0 + 2.0 * (q1 + q2) + 4.0 * _gap(rho, q1, q2))
    return (2.0 / math.pi) * torch.atan2(2.0 * c, low)


ERF = ClosedForm(dual=_erf_dual, reduced=_erf_dual)


def _gelu_dual(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    # Three Gaussian integrations by parts on E[xy Φ(x)Φ(y)]; f = E[φ(x)φ(y)].
    c, gap = _covariance(rho, q1, q2), _gap(rho, q1, q2)
    low = torch.sqrt(1.0 + q1 + q2 + gap)
    f = 1.0 / (_TWO_PI * low)
    orthant = torch.atan2(low, -c) / _TWO_PI
    return f * (gap + c * c * (1.0 / (1.0 + q1) + 1.0 / (1.0 + q2))) + c * orthant


def _gelu_reduced(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    # E σ(x)E σ(y) = q₁q₂f₀ with f₀ = 1/(2π√((1+q₁)(1+q₂))); every term is O(c).
    c = _covariance(rho, q1, q2)
    high = torch.sqrt((1.0 + q1) * (1.0 + q2))
    low = torch.sqrt(1.0 + q1 + q2 + _gap(rho, q1, q2))
    f = 1.0 / (_TWO_PI * low)
    orthant = torch.atan2(low, -c) / _TWO_PI
    rise = q1 * q2 / (high * (high + low)) + 1.0 / (1.0 + q1) + 1.0 / (1.0 + q2) - 1.0
    return c * c * f * rise + c * orthant


GELU = ClosedForm(dual=_gelu_dual, reduced=_gelu_reduced)


def _sine_dual(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    # e^{−(q₁+q₂)/2} sinh c, each side of c = 0 written so that no factor overflows for large variances.
    c = _covariance(rho, q1, q2)
    h = (q1 + q2) / 2.0
    up, down = c.clamp(min=0), c.clamp(max=0)
    return 0.5 * torch.where(
        c >= 0,
        torch.exp(up - h) * -torch.expm1(-2.0 * up),
        torch.exp(-down - h) * torch.expm1(2.0 * down),
    )


def _cosine_dual(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    c = _covariance(rho, q1, q2)
    h = (q1 + q2) / 2.0
    return 0.5 * (torch.exp(c - h) + torch.exp(-c - h))


def _cosine_reduced(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    c = _covariance(rho, q1, q2)
    h = (q1 + q2) / 2.0
    return 0.5 * torch.exp(c.abs() - h) * torch.expm1(-c.abs()) ** 2


SINE = ClosedForm(
    dual=_sine_dual,
    slope=lambda rho, q1, q2: _scale(q1, q2) * _cosine_dual(rho, q1, q2),
    reduced=_sine_dual,
)
COSINE = ClosedForm(
    dual=_cosine_dual,
    slope=lambda rho, q1, q2: _scale(q1, q2) * _sine_dual(rho, q1, q2),
    reduced=_cosine_reduced,
)
EXPONENTIAL = ClosedForm(
    dual=lambda rho, q1, q2: torch.exp((q1 + q2) / 2.0 + _covariance(rho, q1, q2)),
    reduced=lambda rho, q1, q2: torch.exp((q1 + q2) / 2.0) * torch.expm1(_covariance(rho, q1, q2)),
)


def _gaussian_dual(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    return torch.rsqrt(1.0 + q1 + q2 + _gap(rho, q1, q2))


def _gaussian_reduced(rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    # 1/low − 1/high with high² − low² = c².
    high = torch.sqrt((1.0 + q1) * (1.0 + q2))
    low = torch.sqrt(1.0 + q1 + q2 + _gap(rho, q1, q2))
    return _covariance(rho, q1, q2) ** 2 / (high * low * (high + low))


GAUSSIAN = ClosedForm(dual=_gaussian_dual, reduced=_gaussian_reduced)
HE2 = ClosedForm(
    dual=lambda rho, q1, q2: _covariance(rho, q1, q2) ** 2 + (q1 - 1.0) * (q2 - 1.0) / 2.0,
    reduced=lambda rho, q1, q2: _covariance(rho, q1, q2) ** 2,
)
HE3 = ClosedForm(
    dual=lambda rho, q1, q2: (
        _covariance(rho, q1, q2) ** 3 + 1.5 * (q1 - 1.0) * (q2 - 1.0) * _covariance(rho, q1, q2)
    ),
    reduced=lambda rho, q1, q2: (
        _covariance(rho, q1, q2) ** 3 + 1.5 * (q1 - 1.0) * (q2 - 1.0) * _covariance(rho, q1, q2)
    ),
)
