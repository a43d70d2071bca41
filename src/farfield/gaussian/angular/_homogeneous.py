r"""Positively homogeneous activations: σ(x) = r·x₊ⁿ + l·(−x)₊ⁿ, where the variances are only a factor.

Every σ with σ(ax) = aⁿσ(x) for a > 0 is of this form, with r = σ(1) and l = σ(−1).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.gaussian._activation import Activation
from farfield.gaussian._closed_forms import one_sided_power_integral
from farfield.gaussian.angular._base import AngularDual, like, refuse_slope
from farfield.gaussian.angular._powers import SplitSeries
from farfield.gaussian.angular._series import AngleSeries, Parity, fit_series, unfold

__all__ = ["PowerDual", "RampDual", "homogeneous_dual"]


def _tensor(q: Tensor | float) -> Tensor:
    return q if isinstance(q, Tensor) else torch.as_tensor(q, dtype=torch.float64)


@final
@dataclass(frozen=True)
class RampDual(AngularDual):
    r"""Degree one, σ(x) = αx + β|x|: ReLU (α = β = ½), leaky ReLU, |x|, the identity.

    .. math:: \frac{\text{deficit}}{\sqrt{q_1q_2}}
              = 2(\alpha^2+\beta^2)\sin^2\tfrac\theta2 + \tfrac{2\beta^2}{\pi}(\theta\cos\theta - \sin\theta)

    Two trigonometric passes over the angles. Where σ is nearly even or nearly odd the same is written about the
    nearer of 0 and π.
    """

    sigma: Activation
    odd: float
    even: float
    error: float = 0.0

    @property
    def _second(self) -> float:
        return self.odd**2 + self.even**2

    def second(self, q: Tensor | float) -> Tensor:
        """(α² + β²)·q."""
        return self._second * _tensor(q)

    def mean(self, q: Tensor | float) -> Tensor:
        """β·√(2q/π)."""
        return self.even * math.sqrt(2.0 / math.pi) * torch.sqrt(_tensor(q))

    def pair(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> tuple[Tensor, Tensor]:
        """Deficit and surplus by the formula."""
        root1, root2 = torch.sqrt(like(q1, theta)), torch.sqrt(like(q2, theta))
        odd, even = self.odd**2, self.even**2
        if 16.0 * min(odd, even) >= max(odd, even):
            deficit = _bend(theta, odd + even, even).clamp(min=0) * root1 * root2
            return deficit, (2.0 * (odd + even) * root1) * root2 - deficit
        # The odd part changes sides at π/2, the even one does not; neither is ever small beside its rounding.
        folded = torch.minimum(theta, math.pi - theta)
        near, far = unfold(theta, _bend(folded, odd, 0.0), 2.0 * odd, "odd")
        bent, rest = unfold(theta, _bend(folded, even, even), 2.0 * even, "even")
        return (near + bent) * root1 * root2, (far + rest) * root1 * root2

    def slope(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> Tensor:
        """α² + β²(1 − 2θ/π)."""
        value = self._second - (2.0 / math.pi * self.even**2) * theta
        return value.expand(torch.broadcast_shapes(theta.shape, like(q1, theta).shape, like(q2, theta).shape))


def _bend(theta: Tensor, straight: float, bent: float) -> Tensor:
    """straight·(1 − cos θ) + bent·(2/π)(θ cos θ − sin θ), with two trigonometric passes.

    The second difference is known to a rounding of θ only. That moves θ′ by as much, where it matters most.
    """
    half = theta / 2.0
    free = not (torch.is_grad_enabled() and theta.requires_grad)
    if bent == 0.0:
        return (2.0 * straight) * torch.sin(half) ** 2
    cosine = torch.cos(half)
    sine = half.sin_() if free else torch.sin(half)
    product = cosine.mul_(sine) if free else cosine * sine
    square = sine.square_() if free else sine * sine
    # θ cos θ − sin θ = θ − 2(θ sin²(θ/2) + sin(θ/2) cos(θ/2))
    drop = theta - 2.0 * torch.addcmul(product, theta, square)
    return torch.add(
        square.mul_(2.0 * straight) if free else square * (2.0 * straight), drop, alpha=2.0 / math.pi * bent
    )


@final
@dataclass(frozen=True)
class PowerDual(AngularDual):
    r"""Degree n ≠ 1: one series in the angle at unit variance, or for ½ < n < 2 its parts, times (q₁q₂)^{n/2}.

    .. math:: V(q) = (r^2+l^2)\,\frac{2^{n-1}\Gamma(n+\frac12)}{\sqrt\pi}\, q^n
    """

    sigma: Activation
    degree: float
    squared: float
    average: float
    series: AngleSeries | SplitSeries

    @property
    def error(self) -> float:  # type: ignore[override]
        """That of the series."""
        return self.series.error

    def second(self, q: Tensor | float) -> Tensor:
        """V(1)·qⁿ."""
        return self.squared * _tensor(q) ** self.degree

    def mean(self, q: Tensor | float) -> Tensor:
        """E σ(z)·q^{n/2}."""
        return self.average * _tensor(q) ** (self.degree / 2.0)

    def pair(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> tuple[Tensor, Tensor]:
        """Deficit and surplus from the series."""
        scale = self.squared * _power(q1, theta, self.degree / 2), _power(q2, theta, self.degree / 2)
        deficit, surplus = self.series.pair(theta)
        return deficit * scale[0] * scale[1], surplus * scale[0] * scale[1]

    def slope(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> Tensor:
        """From the series."""
        refuse_slope(self.sigma)
        degree = (self.degree - 1.0) / 2.0
        return (
            self.series.slope(theta) * (self.squared * _power(q1, theta, degree)) * _power(q2, theta, degree)
        )


def _power(q: Tensor | float, theta: Tensor, exponent: float) -> Tensor:
    powered: Tensor = like(q, theta) ** exponent
    return powered


@functools.lru_cache(maxsize=256)
@torch.no_grad()
def homogeneous_dual(sigma: Activation, tolerance: float) -> AngularDual:
    """The angular dual of an activation with a degree of homogeneity."""
    assert sigma.homogeneity is not None
    n = float(sigma.homogeneity)
    right, left = (float(v) for v in sigma(torch.tensor([1.0, -1.0], dtype=torch.float64)))
    odd, even = (right - left) / 2.0, (right + left) / 2.0
    if n == 1:
        return RampDual(sigma, odd, even)
    parity: Parity = "odd" if even == 0 else "even" if odd == 0 else "none"
    same, cross = right * right + left * left, 2.0 * right * left
    squared = same * 2.0 ** (n - 1.0) * math.gamma(n + 0.5) / math.sqrt(math.pi)
    average = (right + left) * 2.0 ** (n / 2.0 - 1.0) * math.gamma((n + 1.0) / 2.0) / math.sqrt(math.pi)
    if n == 0:
        # E σ(x)σ(y) = α²(1 − 2θ/π) + β².
        value = torch.full((1,), odd**2 * 2.0 / math.pi / squared, dtype=torch.float64)
        return PowerDual(sigma, n, squared, average, AngleSeries(value, value, parity, True, 0.0))
    if 0.0 < n <= 0.5:
        raise InvalidValueError(
            f"{sigma.name} is homogeneous of degree {n:g}: E σ′² is infinite for degrees up to ½, so that the "
            "tangent kernel is infinite on the diagonal and no dual is tabulated. Take a degree above ½, as P1 does."
        )
    if 0.5 < n < 2.0:
        split = SplitSeries.of(n, cross / same, tolerance, sigma.name)
        return PowerDual(sigma, n, squared, average, split)
    factor: float = n * n * 2.0 ** (n - 1.0) * math.gamma(n) / (2.0 * math.pi) / squared

    def sample(theta: Tensor) -> Tensor:
        value = same * one_sided_power_integral(n - 1.0, theta)
        value = value - cross * one_sided_power_integral(n - 1.0, math.pi - theta)
        return value * factor

    series = fit_series(sample, parity, False, tolerance, sigma.name)
    return PowerDual(sigma, n, squared, average, series)
