"""An ellipsoid around what a norm makes of a bounded region.

Behind an affine map of the input x a norm's value is C u with u = (x, 1)·t, t = 1/√(variance + ε), and uᵀGu = 1
(:mod:`farfield.certify.dual._problem`). Over all of ℝⁿ these u fill an ellipsoid around 0. Over a region they may lie
in a small part of it, away from 0, which an ellipsoid around 0 does not show: t stays between two numbers there.

- *Least and largest t.* With the region's forms uᵀH_k u ≤ 0 and any μ ≥ 0: if G + Σμ_k H_k − γ·t² is positive
  semidefinite, then γt² ≤ 1; if Σμ_k H_k − G + γ·t² is, then γt² ≥ 1.
- *The ellipsoid.* α(uᵀGu − 1) + Σμ_k uᵀH_k u + θ(t − t_least)(t − t_largest) ≤ 0 for any weights that are not
  negative: an ellipsoid with a center of its own.

Any weights are sound. These make the sum of the squared widths of C u small. This module searches;
:mod:`farfield.certify.checker._enclosure` proves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.certify._cone import Cone
from farfield.certify._proofs import Enclosure

__all__ = ["Enclosed", "enclose"]

STEPS = 80
"""Of each of the three searches."""
RATE = 0.25
SLOWER = 0.4
"""What a step out of the feasible set does to the next one's length."""
DOUBLINGS = 40
"""Of G's weight, until the first guess is an ellipsoid."""
FAINT = 1e-150
NEVER_MORE = 1e12
"""A weight is at most this many times its natural size."""


@dataclass(frozen=True)
class Enclosed:
    """What an enclosure's weights give in float64: (u − center)ᵀ shape (u − center) ≤ 1, t ≥ least."""

    enclosure: Enclosure
    shape: Tensor
    center: Tensor
    least: float


def enclose(gram: Tensor, cone: Cone, shift: Tensor) -> Enclosed | None:
    """An ellipsoid around {u : uᵀ gram u = 1} inside a cone that is described around ``shift`` already.

    ``None`` where the region says nothing, or is so small that float64 does not see it.
    """
    units = cone.sizes(gram)
    if not bool((units > 0).any()):
        return None
    units = units + cone.balance(gram[:-1, -1])
    search = _WeightSearch(STEPS)
    search.try_point(_largest(gram, cone), torch.zeros_like(units))
    largest, upper = search.run(_largest(gram, cone), units)
    high = 1.0 / math.sqrt(-upper) if upper < 0 else math.inf
    start = _covering(gram, cone)
    low, least = 0.0, torch.zeros(0, dtype=torch.float64)
    if start is not None:
        least, lower = _WeightSearch(STEPS).run(_least(gram, cone), start)
        low = 1.0 / math.sqrt(lower) if math.isfinite(lower) else 0.0
    if not low < high < math.inf:
        return None
    made = _weighed(gram, cone, low, high)
    if made is None:
        return None
    weights, shape, center = made
    enclosure = Enclosure(
        *(tuple(v.tolist()) for v in (shift, largest, least if low else least[:0], weights, center))
    )
    return Enclosed(enclosure, shape, center, low)


Slope = Callable[[Tensor], "tuple[float, Tensor] | None"]
"""Weights ↦ (what is to be small, its derivative in them); ``None`` outside of the feasible set."""


class _WeightSearch:
    """Adam on the logarithms of positive weights, back to the best ones after a step that leaves the feasible set."""

    def __init__(self, steps: int) -> None:
        self.steps, self.best, self.kept = steps, math.inf, torch.zeros(0, dtype=torch.float64)

    def try_point(self, function: Slope, weights: Tensor) -> tuple[float, Tensor] | None:
        """The value and slope at a point, which is kept where it is the best one."""
        found = function(weights)
        if found is not None and found[0] < self.best:
            self.best, self.kept = found[0], weights
        return found

    def run(self, function: Slope, start: Tensor) -> tuple[Tensor, float]:
        """(weights, value): the best that were met."""
        raw = torch.zeros_like(start)
        base, most = torch.where(start > 0, start, 0.0), math.log(NEVER_MORE)
        mean, square, pace, count = torch.zeros_like(raw), torch.zeros_like(raw), 1.0, 0
        good = raw
        for step in range(self.steps):
            found = self.try_point(function, base * raw.exp())
            if found is None:
                raw, pace, count = (raw + good) / 2, pace * SLOWER, 0
                mean, square = torch.zeros_like(raw), torch.zeros_like(raw)
                if pace < 1e-3:
                    break
                continue
            good, slope = raw, found[1] * base * raw.exp()
            count += 1
            mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope**2
            size = (square / (1 - 0.99**count)).sqrt().clamp_min(1e-300)
            rate = RATE * pace * (0.5 * (1 + math.cos(math.pi * step / self.steps)) + 0.02)
            raw = (raw - rate * mean / (1 - 0.9**count) / size).clamp(-most, most)
        return self.kept, self.best


def _pivot(matrix: Tensor) -> tuple[float, Tensor] | None:
    """(γ, v): the largest γ with matrix − γ·e eᵀ not negative, e the last unit vector; vᵀ matrix v = γ, vᵀe = 1."""
    factor, info = torch.linalg.cholesky_ex(matrix[:-1, :-1])
    if int(info):
        return None
    v = torch.cat([-torch.cholesky_solve(matrix[:-1, -1:], factor)[:, 0], torch.ones(1, dtype=matrix.dtype)])
    return float(v @ (matrix @ v)), v


def _largest(gram: Tensor, cone: Cone) -> Slope:
    """−γ for the largest t: t² ≤ 1/γ."""

    def function(mu: Tensor) -> tuple[float, Tensor] | None:
        found = _pivot(gram + cone.quadratic(mu)[0])
        return None if found is None else (-found[0], -cone.traces(torch.outer(found[1], found[1])))

    return function


def _least(gram: Tensor, cone: Cone) -> Slope:
    """γ for the least t: t² ≥ 1/γ."""

    def function(mu: Tensor) -> tuple[float, Tensor] | None:
        found = _pivot(cone.quadratic(mu)[0] - gram)
        if found is None or not found[0] < 0:
            return None
        return -found[0], -cone.traces(torch.outer(found[1], found[1]))

    return function


def _covering(gram: Tensor, cone: Cone) -> Tensor | None:
    """Weights with Σμ_k H_k above G in every input; ``None`` where some direction of the inputs has no form."""
    curvature = torch.diagonal(cone.quadratic(torch.ones(cone.count, dtype=torch.float64))[0])[:-1]
    if not bool((curvature > 0).all()):
        return None
    half = curvature.rsqrt()
    inner = gram[:-1, :-1].abs() * half[:, None] * half
    rows = 1.1 * inner.sum(1)
    return (rows if cone.count > 1 else rows.max().reshape(1)) + cone.balance(gram[:-1, -1])


def _weighed(gram: Tensor, cone: Cone, low: float, high: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """(weights, shape, center), radius 1, of the ellipsoid with the least tr(G shape⁻¹) that the search finds."""
    t = torch.zeros_like(gram)
    t[-1, -1] = 1.0

    def sums(weights: Tensor) -> tuple[Tensor, Tensor, float]:
        """(A, b, c) of the weighted sum uᵀAu + 2bᵀu + c."""
        alpha, theta, mu = float(weights[0]), float(weights[1]), weights[2:]
        line = torch.zeros(len(gram), dtype=torch.float64)
        line[-1] = -0.5 * theta * (low + high)
        return alpha * gram + theta * t + cone.quadratic(mu)[0], line, theta * low * high - alpha

    def function(weights: Tensor) -> tuple[float, Tensor] | None:
        matrix, line, corner = sums(weights)
        factor, info = torch.linalg.cholesky_ex(matrix)
        if int(info):
            return None
        center = -torch.cholesky_solve(line[:, None], factor)[:, 0]
        square = -float(line @ center) - corner
        if not square > 0:
            return None
        inverse = torch.cholesky_inverse(factor)
        spread = inverse @ gram
        width, both = float(torch.diagonal(spread).sum()), spread @ inverse
        at = torch.outer(center, center)
        # ∂ log tr(G A⁻¹) = −tr(A⁻¹GA⁻¹ A_k)/tr(G A⁻¹), and ∂ log(radius²) = −(the k-th form at the center)/radius².
        forms = [
            float((gram * at).sum()) - 1.0,
            float((center[-1] - low) * (center[-1] - high)),
        ]
        traces = [float((gram * both).sum()), float(both[-1, -1])]
        value = torch.cat([torch.tensor(forms, dtype=torch.float64), cone.traces(at)])
        trace = torch.cat([torch.tensor(traces, dtype=torch.float64), cone.traces(both)])
        return math.log(width) + math.log(square), -trace / width - value / square

    count = len(gram)
    spread = 4.0 / max((high - low) ** 2, 1e-16 * high**2)
    first = torch.cat(
        [torch.tensor([0.1, spread / count], dtype=torch.float64), cone.sizes(gram, high) / count]
    )
    for _ in range(DOUBLINGS):
        if function(first) is not None:
            break
        first[0] *= 2.0  # with enough of G it is an ellipsoid, if a large one
    weights, best = _WeightSearch(STEPS).run(function, first)
    if best == math.inf:
        return None
    matrix, line, corner = sums(weights)
    center = -torch.linalg.solve(matrix, line)
    square = -float(line @ center) - corner
    if not square > 0:
        return None
    weights = torch.where(weights / square > FAINT, weights / square, 0.0)  # a checker takes no fainter ones
    return weights, matrix / square, center
