"""Building the table in (log q₁, log q₂, θ): nodes, degrees chosen to the tolerance, checks between the nodes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import PrecisionError
from farfield.gaussian._activation import Activation
from farfield.gaussian.angular._common import slope_at
from farfield.gaussian.angular._sector import SectorRule, line_rule
from farfield.gaussian.angular._series import Parity, angle_nodes, parity_of, to_coefficients, to_means
from farfield.gaussian.angular._table import Bilinear, LogRange, TableDual

__all__ = ["table_dual"]

_DEGREES = (13, 19, 27, 39, 55, 77)
_ANGLES = (13, 19, 27, 39, 55, 81, 121, 181, 243)


@dataclass(frozen=True)
class _Source:
    """Everything the table holds, at any list of variances, normalized by √V."""

    sigma: Activation
    parity: Parity
    within: LogRange
    rule: SectorRule

    @property
    def top(self) -> float:
        return math.pi if self.parity == "none" else math.pi / 2

    def variances(self, x: Tensor) -> Tensor:
        """The variances at places x ∈ [−1, 1]."""
        return math.sqrt(self.within.low * self.within.high) * (self.within.high / self.within.low) ** (
            x / 2.0
        )

    def seconds(self, q: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """V."""
        z, weights = line_rule(self.rule)
        return self.sigma(torch.sqrt(q)[:, None] * z) ** 2 @ weights

    def line(self, q: Float[Tensor, " b"]) -> tuple[Tensor, Tensor, Tensor]:
        """V and E σ/√V of shape (b,), and C of shape (b, b)."""
        z, weights = line_rule(self.rule)
        x = torch.sqrt(q)[:, None] * z
        value, squared = self.sigma(x), self.seconds(q)
        unit = value / torch.sqrt(squared)[:, None]
        # d/d log q of the unit vector: its stretch, less the part along itself.
        stretch = x * self.sigma.derivative(x) / (2.0 * torch.sqrt(squared)[:, None])
        along = (unit * stretch) @ weights
        across = (stretch - along[:, None] * unit) ** 2 @ weights
        log = torch.log(q)
        apart = torch.stack([((unit - row) ** 2) @ weights for row in unit])
        gap = log[:, None] - log
        same = gap.abs() < 1e-7
        curve = torch.where(same, across.expand_as(apart), apart / torch.where(same, 1.0, gap) ** 2) / 2.0
        return squared, unit @ weights, curve

    def slopes(self, q: Float[Tensor, " b"], theta: Float[Tensor, " k"]) -> Float[Tensor, "k b b"]:
        """S: √(q₁q₂) E σ′(x)σ′(y) over √(V₁V₂)."""
        if self.sigma.closed_form is not None:
            pairs = slope_at(self.sigma, theta[:, None, None], *torch.broadcast_tensors(q[:, None], q))
        else:
            root = torch.sqrt(q)
            pairs = self.rule.slopes(root, theta) * torch.outer(root, root)
        norm = torch.sqrt(self.seconds(q))
        return pairs / torch.outer(norm, norm)


def _places(count: int) -> Tensor:
    """The Chebyshev points of [−1, 1] in the order of their coefficients' matrix."""
    return 1.0 - 2.0 * angle_nodes(count, 1.0)


def _left(coefficients: Tensor, dim: int, size: float | None = None) -> float:
    """The last three coefficients along a dimension, relative to the largest of all."""
    size = float(coefficients.abs().max()) if size is None else size
    return float(coefficients.movedim(dim, 0)[-3:].abs().max()) / (size or 1.0)


def _count(choices: tuple[int, ...], left: Callable[[int], float], tolerance: float, what: str) -> int:
    """The first count whose series has died away, with a margin: it is looked at in a few places only."""
    reached = math.inf
    for count in choices:
        reached = left(count)
        if reached <= 0.2 * tolerance:
            return count
    raise PrecisionError(
        f"{what} is not resolved to {tolerance:g} by a series of degree {choices[-1] - 1}, whose last terms are "
        f"still {reached:.1e}. Use a narrower range of variances, one common variance (as after a LayerNorm), or a "
        "larger tolerance."
    )


def _check_rule(source: _Source) -> float:
    """Largest difference from the general quadrature at a few pairs, relative to S(0)."""
    low, high = source.within.low, source.within.high
    middle = math.sqrt(low * high)
    worst = 0.0
    for theta, q1, q2 in ((0.02, high, high), (0.7, low, high), (1.4, middle, high), (2.9, high, high)):
        t, a, b = (torch.tensor(v, dtype=torch.float64) for v in (theta, q1, q2))
        roots = torch.sqrt(torch.stack([a, b]))
        ours = source.rule.slopes(roots, torch.stack([t, t * 1e-6]))[:, 0, 1] * roots.prod()
        worst = max(worst, abs(float((ours[0] - slope_at(source.sigma, t, a, b)) / ours[1])))
    return worst


@functools.lru_cache(maxsize=64)
@torch.no_grad()
def table_dual(sigma: Activation, low: float, high: float, tolerance: float) -> TableDual:
    """The angular dual for variances in [low, high]."""
    away = [k for k in sigma.kinks if k != 0.0]
    if away or sigma.jumps:
        fault = f"has a kink at {away[0]:g}" if away else "jumps"
        raise PrecisionError(
            f"{sigma.name} {fault}: as a function of two variances and an angle its dual is not smooth at q₁ = q₂ "
            "and θ = 0, and no table of it converges. Use one common variance, as after a LayerNorm or with inputs "
            "of equal norm."
        )
    parity = parity_of(sigma, low, math.sqrt(low * high), high)
    within = LogRange(low, high)
    for sharpness in (1.0, 8.0, 64.0):
        source = _Source(sigma, parity, within, SectorRule.of(sigma, parity, math.sqrt(high), sharpness))
        off = 0.0 if sigma.closed_form is not None else _check_rule(source)
        if off <= tolerance:
            break
    else:
        raise PrecisionError(
            f"E σ′(x)σ′(y) of {sigma.name} is known to {off:.1e} only at variances up to {high:g}: it turns too "
            f"often under so wide a Gaussian. Use smaller variances, or a tolerance above {off:.1e}."
        )

    ends = source.variances(torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64))
    few = source.top * torch.tensor([0.01, 0.4, 0.9], dtype=torch.float64)
    scope = f"{sigma.name} over variances from {low:g} to {high:g}"

    def in_angle(count: int) -> float:
        values = source.slopes(ends, angle_nodes(count, source.top)).flatten(1)
        return _left(to_coefficients(count) @ values, 0)

    def in_variance(count: int) -> float:
        q, transform = source.variances(_places(count)), to_coefficients(count)
        squared, average, curve = source.line(q)
        two = [transform @ m @ transform.T for m in (curve[None], source.slopes(q, few))]
        one = _left(transform @ torch.log(squared), 0, 1.0), _left(transform @ average, 0, 1.0)
        return max(*one, *(_left(m, 1) for m in two))

    angles = _count(_ANGLES, in_angle, tolerance, f"In the angle {scope}")
    degrees = _count(_DEGREES, in_variance, tolerance, f"In the logarithm of a variance {scope}")

    q, transform = source.variances(_places(degrees)), to_coefficients(degrees)
    squared, average, curve = source.line(q)
    slopes = transform @ source.slopes(q, angle_nodes(angles, source.top)) @ transform.T
    slopes = torch.einsum("kj,jab->kab", to_coefficients(angles), slopes)
    means = torch.einsum("kj,jab->kab", to_means(angles, source.top, False), slopes)
    built = TableDual(
        sigma=sigma,
        within=within,
        squared=transform @ torch.log(squared),
        average=transform @ average,
        apart=Bilinear.of(transform @ curve @ transform.T, 1e-3 * tolerance * float(curve.abs().max())),
        slopes=_bilinear(slopes, tolerance),
        means=_bilinear(means, tolerance),
        parity=parity,
        error=off,
    )
    return _checked(built, source, tolerance)


def _bilinear(tensor: Float[Tensor, "k b b"], tolerance: float) -> tuple[Bilinear, ...]:
    threshold = 1e-2 * tolerance * float(tensor.abs().max())
    terms = [Bilinear.of(matrix, threshold) for matrix in tensor]
    last = max((k for k, term in enumerate(terms) if term.weights.numel()), default=0)
    return tuple(terms[: last + 1])


def _checked(built: TableDual, source: _Source, tolerance: float) -> TableDual:
    """The same with its error: S, and the angle left at θ = 0, at places that are no nodes."""
    x = torch.tensor([-0.999, -0.83, -0.41, 0.07, 0.093, 0.52, 0.9, 0.997], dtype=torch.float64)
    q, theta = (
        source.variances(x),
        source.top * torch.tensor([0.003, 0.11, 0.37, 0.68, 0.95], dtype=torch.float64),
    )
    truth = source.slopes(q, theta)
    squared, average, curve = source.line(q)
    norm = torch.sqrt(squared)
    root = torch.sqrt(q)
    ours = built.slope(theta[:, None, None], q[:, None], q[None]) * torch.outer(root / norm, root / norm)
    gap = (torch.log(q)[:, None] - torch.log(q)).abs()
    at_zero = built.deficit(torch.zeros(1, 1, dtype=torch.float64), q[:, None], q[None]) / torch.outer(
        norm, norm
    )
    errors = {
        "the slope": float((ours - truth).abs().max() / truth.abs().max()),
        "the angle between two scales": float((torch.sqrt(at_zero) - gap * torch.sqrt(curve)).abs().max()),
        "the second moment": float((built.second(q) / squared - 1.0).abs().max()),
        "the mean": float((built.mean(q) / norm - average).abs().max()),
    }
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] > tolerance:
        raise PrecisionError(
            f"{built.sigma.name} over variances from {built.within.low:g} to {built.within.high:g}: {worst} is off "
            f"by {errors[worst]:.1e} between the nodes, more than {tolerance:g}. Use a narrower range, or a "
            "tolerance above that."
        )
    return TableDual(**{**built.__dict__, "error": max(errors[worst], built.error)})
