"""One common variance, as after a LayerNorm: a series in the angle at that variance."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.gaussian._activation import Activation
from farfield.gaussian._dual import dual_slope
from farfield.gaussian._moments import moments
from farfield.gaussian._pair import Factor, derivative_factor, pair_expectation, value_factor
from farfield.gaussian.angular._base import AngularDual, refuse_slope
from farfield.gaussian.angular._series import AngleSeries, angle_nodes, fit_series, parity_of

__all__ = ["CommonDual", "common_dual", "slope_at"]

_ONE = Factor(torch.ones_like, ())


def slope_at(sigma: Activation, theta: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    """√(q₁q₂) E σ′(x)σ′(y) at the angle θ, float64; times sin θ where σ jumps."""
    if sigma.closed_form is not None:
        value = dual_slope(sigma, torch.cos(theta), q1, variance2=q2)
    else:
        f = derivative_factor(sigma)
        pairs = pair_expectation(f, f, torch.cos(theta), q1, q2, across=torch.sin(theta))
        value = torch.sqrt(q1) * torch.sqrt(q2) * pairs
    return value * torch.sin(theta) if sigma.jumps else value


@final
@dataclass(frozen=True)
class CommonDual(AngularDual):
    """q₁ = q₂ = q: deficit and surplus are V(q) times a function of the angle.

    The variances given to the methods must be q itself. Where q is a tensor that requires a gradient, the
    series are differentiable in it, and the gradient reaches it whichever tensor the methods are given.
    """

    sigma: Activation
    variance: Tensor
    squared: Tensor
    average: Tensor
    series: AngleSeries

    @property
    def error(self) -> float:  # type: ignore[override]
        """That of the series."""
        return self.series.error

    def _check(self, *variances: Tensor | float) -> None:
        """Refuse another variance, up to rounding, and one whose gradient would be lost."""
        own = float(self.variance.detach())
        for q in variances:
            given = (q if isinstance(q, Tensor) else torch.tensor(q, dtype=torch.float64)).detach()
            precision = 1e-5 if given.dtype in (torch.float32, torch.float16, torch.bfloat16) else 1e-12
            if given.numel() and not bool(((given - own).abs() <= precision * own).all()):
                raise InvalidValueError(
                    f"This angular dual of {self.sigma.name} was built for the one variance {own:g}, and got others, "
                    f"from {float(given.min()):g} to {float(given.max()):g}. Build it with variances=(low, high)."
                )
            if isinstance(q, Tensor) and q.requires_grad and not self.variance.requires_grad:
                raise InvalidValueError(
                    f"The variance requires a gradient, but this angular dual of {self.sigma.name} was built for the "
                    f"number {own:g}. Build it with variances=q, the tensor."
                )

    def second(self, q: Tensor | float) -> Tensor:
        """V(q), in the shape of ``q``."""
        self._check(q)
        return _spread(self.squared, q)

    def mean(self, q: Tensor | float) -> Tensor:
        """E σ(√q z), in the shape of ``q``."""
        self._check(q)
        return _spread(self.average, q)

    def pair(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> tuple[Tensor, Tensor]:
        """Deficit and surplus from the series."""
        self._check(q1, q2)
        deficit, surplus = self.series.pair(theta)
        squared = self.squared.to(theta)
        return deficit * squared, surplus * squared

    def slope(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> Tensor:
        """From the series."""
        refuse_slope(self.sigma)
        self._check(q1, q2)
        return self.series.slope(theta) * (self.squared / self.variance).to(theta)


def _spread(value: Tensor, q: Tensor | float) -> Tensor:
    return value.to(q).expand(q.shape) if isinstance(q, Tensor) else value


@functools.lru_cache(maxsize=256)
@torch.no_grad()
def _build(sigma: Activation, variance: float, tolerance: float) -> CommonDual:
    q = torch.tensor(variance, dtype=torch.float64)
    m = moments(sigma, variance=variance)

    def sample(theta: Tensor) -> Tensor:
        return slope_at(sigma, theta, q, q) / m.second

    what = f"{sigma.name} at variance {variance:g}"
    series = fit_series(sample, parity_of(sigma, variance), bool(sigma.jumps), tolerance, what)
    squared, average = (torch.tensor(v, dtype=torch.float64) for v in (m.second, m.mean))
    return CommonDual(sigma, q, squared, average, series)


def common_dual(sigma: Activation, variance: Tensor | float, tolerance: float) -> CommonDual:
    """The angular dual at one variance; built anew, and differentiable, where that requires a gradient."""
    built = _build(sigma, float(variance.detach() if isinstance(variance, Tensor) else variance), tolerance)
    if not (isinstance(variance, Tensor) and variance.requires_grad and torch.is_grad_enabled()):
        return built
    q = variance.reshape(()).to(torch.float64)
    series = built.series
    theta = angle_nodes(len(series.slopes), series.top)
    # Not the dual at ρ = 1: there a jump meets itself. Panel ends move with q, so jumps count here.
    square = Factor(lambda x: sigma(x) ** 2, sigma.kinks)
    squared, average = (
        pair_expectation(f, _ONE, torch.zeros_like(q), q, q) for f in (square, value_factor(sigma))
    )
    values = slope_at(sigma, theta, *torch.broadcast_tensors(q, q, theta)[:2]) / squared
    series = AngleSeries.from_values(values, series.parity, series.jumps, series.error)
    return CommonDual(sigma, variance, squared, average, series)
