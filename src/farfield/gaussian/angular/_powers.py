r"""x₊ⁿ for ½ < n < 2: the slope has a branch at θ = 0 that no series in the angle resolves, so it is taken apart.

With p = n − ½, h = sin²(θ/2), s = 1 − h and F the hypergeometric function, the integral behind the slope is

.. math:: J_{n-1}(\theta) = \sqrt\pi\,\frac{\Gamma(p+\frac12)}{\Gamma(p+1)}\,s^p F(\tfrac12,\tfrac12;p+1;s)
          = R(h) + h\,\frac{h^{p-1} - 1}{p-1}\,G(h), \qquad
          G = \frac{\Gamma(p+\frac12)\Gamma(2-p)}{p\sqrt\pi}\,F(\tfrac12,\tfrac12;p+1;h),

R analytic. The first form serves obtuse angles, the second acute ones; neither cancels, and at p = 1 the quotient is
log h. The mean of the slope over [0, h], from which the distance to the limit comes, has the same two forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.errors import PrecisionError
from farfield.gaussian._closed_forms import one_sided_power_integral
from farfield.gaussian._interpolant import clenshaw
from farfield.gaussian._quadrature import legendre_rule
from farfield.gaussian.angular._series import to_coefficients

__all__ = ["SplitSeries"]

_COUNT = 24
"""Terms: on [0, ½] everything analytic here falls at least like 5.8^−k."""


def _hypergeometric(c: float, x: Tensor, divide: Callable[[int], float] = lambda k: 1.0) -> Tensor:
    """Σ_k (½)_k²/((c)_k k!) xᵏ/divide(k) for 0 ≤ x ≤ ½: F(½, ½; c; x) if nothing is divided by."""
    total, term = torch.zeros_like(x), torch.ones_like(x)
    for k in range(60):
        total = total + term / divide(k)
        term = term * x * ((k + 0.5) ** 2 / ((c + k) * (k + 1.0)))
    return total


def _bend(h: Tensor, p: float) -> Tensor:
    """h·(h^{p−1} − 1)/(p − 1), h·log h at p = 1; 0 at h = 0."""
    log = torch.log(h.clamp(min=1e-300))
    return h * (log if p == 1.0 else torch.expm1((p - 1.0) * log) / (p - 1.0))


@dataclass(frozen=True)
class SplitSeries:
    """Slope and deficit of r·x₊ⁿ + l·(−x)₊ⁿ over √(V₁V₂), ½ < n < 2 and n ≠ 1.

    Parameters
    ----------
    power
        p = n − ½.
    cross
        2rl/(r² + l²): 0 for a power of ReLU, ±1 for even and odd σ.
    near, far
        Chebyshev coefficients on [0, ½]: of R and G for the slope and for its mean, in h; of the two F, in s.
    error
        Twice the largest error of the slope met between the nodes, relative to its largest value.
    """

    power: float
    cross: float
    near: tuple[Tensor, Tensor, Tensor, Tensor]
    far: tuple[Tensor, Tensor]
    error: float

    def _one(self, theta: Tensor, mean: bool) -> tuple[Tensor, Tensor]:
        """Of x₊ⁿ alone: S, twice, or with ``mean`` (deficit, E σσ), each from the form that is exact there."""
        p, k = self.power, 2 * int(mean)
        h, s = torch.sin(theta / 2) ** 2, torch.cos(theta / 2) ** 2
        acute = h <= 0.5
        small = torch.where(acute, h, 0.5)
        x = 4.0 * small - 1.0
        close = clenshaw(self.near[k].to(h), x) + _bend(small, p) * clenshaw(self.near[k + 1].to(h), x)
        rest = torch.where(acute, 0.5, s)
        # A power of 0 has no gradient at θ = π, where s is 0 to rounding.
        powered = rest.clamp(min=1e-300) ** (p + float(mean))
        apart = powered * clenshaw(self.far[int(mean)].to(h), 4.0 * rest - 1.0)
        if not mean:
            value = torch.where(acute, close, apart)
            return value, value
        close = 2.0 * small * close
        return torch.where(acute, close, 1.0 - apart), torch.where(acute, 1.0 - close, apart)

    def pair(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Deficit and surplus over √(V₁V₂)."""
        deficit, value = self._one(theta, True)
        if self.cross == 0.0:
            return deficit, 1.0 + value
        opposite, mirrored = self._one(math.pi - theta, True)
        # Written about the nearer of 0 and π, where an even σ is the same again.
        acute = theta <= math.pi / 2
        below = torch.where(
            acute, deficit - self.cross * mirrored, 1.0 - self.cross + self.cross * opposite - value
        ).clamp(min=0)
        if self.cross > 0.0:
            return below, 2.0 - below
        return below, 1.0 + self.cross + value - self.cross * opposite

    def slope(self, theta: Tensor) -> Tensor:
        """S(θ)."""
        value = self._one(theta, False)[0]
        return value - self.cross * self._one(math.pi - theta, False)[0] if self.cross else value

    @classmethod
    def of(cls, n: float, cross: float, tolerance: float, what: str) -> SplitSeries:
        """Fitted at Chebyshev points to the integral itself, and checked between them."""
        p, root = n - 0.5, math.sqrt(math.pi)
        scale = n * n * math.gamma(n) / (2.0 * root * math.gamma(n + 0.5))
        bend = scale * math.gamma(p + 0.5) * math.gamma(2.0 - p) / (p * root)
        transform = to_coefficients(_COUNT)
        h = 0.25 + 0.25 * torch.cos(
            math.pi * (2.0 * torch.arange(_COUNT, dtype=torch.float64) + 1.0) / (2.0 * _COUNT)
        )

        def truth(h: Tensor) -> Tensor:
            return scale * one_sided_power_integral(n - 1.0, 2.0 * torch.asin(torch.sqrt(h)))

        g = bend * _hypergeometric(p + 1.0, h)
        r = transform @ (truth(h) - _bend(h, p) * g)
        # ∫₀ʰ of t^{k+1}(t^{p−1} − 1)/(p − 1), over h, is hᵏ times h(h^{p−1} − 1)/(p − 1)/(p+k+1) less this:
        over = bend * h * _hypergeometric(p + 1.0, h, lambda k: (p + k + 1.0) * (k + 2.0))
        nodes, weights = legendre_rule(_COUNT)
        r_mean = clenshaw(r, 4.0 * h[:, None] * nodes - 1.0) @ weights - over
        g_mean = bend * _hypergeometric(p + 1.0, h, lambda k: p + k + 1.0)
        slope = scale * root * math.gamma(p + 0.5) / math.gamma(p + 1.0) * _hypergeometric(p + 1.0, h)
        value = (
            math.gamma(p + 1.5) ** 2
            / (math.gamma(p + 2.0) * math.gamma(p + 1.0))
            * _hypergeometric(p + 2.0, h)
        )
        built = cls(
            p,
            cross,
            (r, transform @ g, transform @ r_mean, transform @ g_mean),
            (transform @ slope, transform @ value),
            0.0,
        )
        between = torch.tensor(
            [1e-12, 1e-6, 0.003, 0.07, 0.31, 0.49, 0.51, 0.77, 0.95, 0.999], dtype=torch.float64
        )
        angles = 2.0 * torch.asin(torch.sqrt(between))
        off = (built._one(angles, False)[0] - truth(between)).abs().max() / truth(
            torch.zeros(1, dtype=torch.float64)
        )
        error = 2.0 * float(off)
        if error > tolerance:
            raise PrecisionError(
                f"The slope of the dual of {what} is off by {error:.1e}, more than {tolerance:g}."
            )
        return cls(p, cross, built.near, built.far, error)
