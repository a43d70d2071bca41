"""A domain in homogeneous coordinates: u = (x, t)·s with t > 0, so that x/t is an input of it.

In these coordinates a network behind a norm is bounded over all of ℝⁿ, and a domain cuts a cone out of them:
quadratic forms uᵀH_k u ≤ 0 that hold for every input of it. On {u : uᵀGu = 1}, which a norm makes of the inputs, they
give uᵀ(G + Σμ_k H_k)u ≤ 1 for every μ ≥ 0; :mod:`farfield.certify._enclosure` makes an ellipsoid of them.

- ball and ellipsoid: Σ q_i (x_i − c_i t)² − t² ≤ 0, q_i = 1/a_i² rounded down;
- box: (x_i − l_i t)(x_i − h_i t) ≤ 0 for every i with two finite ends;
- half-space: t·(n·x − c t) ≤ 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from farfield.certify._domain import ellipsoid_of

__all__ = ["Cone", "cone_of"]

ROUNDING = 2.0**-50
DEAD = 1e-6
"""Of the largest share of an input in G, what one without any counts as."""


@dataclass(frozen=True)
class Cone:
    """See the module. ``first`` and ``second``: (q, c), (l, h) with infinite ends left out, or (n, [c])."""

    kind: Literal["ellipsoid", "box", "halfspace"]
    first: Tensor
    second: Tensor

    @property
    def count(self) -> int:
        """How many forms there are."""
        return self.first.numel() if self.kind == "box" else 1

    def entries(self, mu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(diagonal over x, column between x and t, corner) of Σ μ_k H_k, each with no more than n + 4 roundings."""
        a, b = self.first, self.second
        if self.kind == "ellipsoid":
            return mu * a, -mu * a * b, mu * ((a * b * b).sum() - 1.0)
        if self.kind == "box":
            open_ = ~(torch.isfinite(a) & torch.isfinite(b))
            low, high, m = (torch.where(open_, 0.0, v) for v in (a, b, mu))
            return m, -0.5 * m * (low + high), (m * low * high).sum()
        return torch.zeros_like(a), 0.5 * mu * a, (-mu * b).sum()

    def quadratic(self, mu: Tensor) -> tuple[Tensor, Tensor]:
        """(Σ μ_k H_k, sizes): true entries differ from these by at most 2⁻⁵² times the sizes."""
        size = self.first.numel() + 1
        diagonal, column, corner = self.entries(mu)
        made = torch.zeros(size, size, dtype=torch.float64)
        made[:-1, :-1] = torch.diag(diagonal)
        made[:-1, -1] = made[-1, :-1] = column
        made[-1, -1] = corner
        rough = made.abs() * 8
        a, b = self.first, self.second
        if self.kind == "ellipsoid":
            rough[-1, -1] = (size + 8) * float(mu * ((a * b * b).sum() + 1.0))
        elif self.kind == "box":
            ends = torch.where(torch.isfinite(a) & torch.isfinite(b), a.abs() + b.abs(), 0.0)
            rough[-1, -1] = (size + 8) * float((mu * ends.square()).sum())
            rough[:-1, -1] = rough[-1, :-1] = 8 * mu * ends
        return made, rough

    def traces(self, matrix: Tensor) -> Tensor:
        """tr(P H_k) for every k, P symmetric."""
        a, b = self.first, self.second
        diagonal, column, corner = torch.diagonal(matrix)[:-1], matrix[:-1, -1], matrix[-1, -1]
        if self.kind == "ellipsoid":
            total = (a * diagonal).sum() - 2 * (a * b * column).sum() + ((a * b * b).sum() - 1.0) * corner
            return total.reshape(1)
        if self.kind == "box":
            known = torch.isfinite(a) & torch.isfinite(b)
            low, high = (torch.where(known, v, 0.0) for v in (a, b))
            return torch.where(known, diagonal - (low + high) * column + low * high * corner, 0.0)
        return ((a * column).sum() - (b * corner).sum()).reshape(1)

    def sizes(self, gram: Tensor, largest: float = math.inf) -> Tensor:
        """One weight per form, with which it is about as large as G is on the region; 0 where there is no form.

        ``largest`` is the largest t: where it makes the region smaller than G does, the form is about 1 on it.
        """
        a, b, own = self.first, self.second, torch.diagonal(gram)[:-1]
        own = own.clamp_min(DEAD * float(own.max()))
        if self.kind == "box":
            known = torch.isfinite(a) & torch.isfinite(b)
            reach = torch.where(known, 0.5 * (b - a), 0.0) * largest
            small = torch.minimum(reach.square().clamp_min(1e-300).reciprocal(), own / ROUNDING)
            return torch.where(known, own + small, 0.0)
        if self.kind == "ellipsoid":
            return (own / a).mean().reshape(1) + largest**-2
        return (own.sum() / a.square().sum().clamp_min(1e-300)).sqrt().reshape(1)

    def balance(self, column: Tensor) -> Tensor:
        """Weights with which forms of a small region bound 2t·column·x best: its slope over the region's size."""
        a, b = self.first, self.second
        if self.kind == "box":
            reach = torch.where(torch.isfinite(a) & torch.isfinite(b), 0.5 * (b - a), 0.0)
            share = column.abs() / reach.clamp_min(1e-300)
            return torch.where(reach > 0, share.clamp_max(column.abs().max() / ROUNDING), 0.0)
        if self.kind == "ellipsoid":
            return (column.square() / a).sum().sqrt().reshape(1)
        return torch.zeros(1, dtype=torch.float64)

    def middle(self) -> Tensor:
        """A point that forms of the region are best described around."""
        if self.kind == "ellipsoid":
            return self.second
        if self.kind == "box":
            known = torch.isfinite(self.first) & torch.isfinite(self.second)
            return torch.where(known, self.first + 0.5 * (self.second - self.first), 0.0)
        return torch.zeros_like(self.first)

    def shifted(self, point: Tensor) -> Cone:
        """The cone of the same inputs less a point, in float64."""
        if self.kind == "halfspace":
            return Cone(self.kind, self.first, self.second - self.first @ point)
        first = self.first if self.kind == "ellipsoid" else self.first - point
        return Cone(self.kind, first, self.second - point)

    def outside(self, start: Tensor, slopes: Tensor, radius: Tensor) -> Tensor:
        """(cells,): whether no input of a cell u = start + Σ slopes_j δ_j, |δ| ≤ 1, up to ``radius``, is inside.

        start (cells, n + 1), slopes (axes, cells, n + 1), radius (cells, n + 1).
        """
        if self.kind == "box":
            return self._beside(start, slopes, radius)
        a, b = self.first, self.second
        x, t = start[:, :-1], start[:, -1:]
        loose = (radius[:, :-1] + 16 * ROUNDING * (x.abs() + slopes[..., :-1].abs().sum(0))) * (1 + 1e-9)
        late = (radius[:, -1:] + 16 * ROUNDING * (t.abs() + slopes[..., -1:].abs().sum(0))) * (1 + 1e-9)
        if self.kind == "halfspace":
            middle = x @ a - (b * t)[:, 0]
            swing = (slopes[..., :-1] @ a - (b * slopes[..., -1:])[..., 0]).abs().sum(0)
            lost = loose @ a.abs() + (b.abs() * late)[:, 0]
            sizes = (x.abs() + slopes[..., :-1].abs().sum(0)) @ a.abs() + b.abs() * (t.abs() + 1.0)[:, 0]
            return middle - swing > lost + (a.numel() + 16) * ROUNDING * sizes
        away = x - b * t
        swing = (slopes[..., :-1] - b * slopes[..., -1:]).abs().sum(0)
        lost = loose + b.abs() * late + 16 * ROUNDING * (x.abs() + b.abs() * t.abs())
        least = (away.abs() - swing - lost).clamp_min(0.0)
        most = (t.abs() + slopes[..., -1:].abs().sum(0) + late)[:, 0]
        return (a * least.square()).sum(1) * (1 - (a.numel() + 8) * ROUNDING) > most.square() * (
            1 + 8 * ROUNDING
        )

    def _beside(self, start: Tensor, slopes: Tensor, radius: Tensor) -> Tensor:
        """Outside for a box: wholly beyond one of its ends."""
        x, t, loose, late = start[:, :-1], start[:, -1:], radius[:, :-1], radius[:, -1:]
        found = torch.zeros(len(start), dtype=torch.bool)
        for end, sign in ((self.second, 1.0), (self.first, -1.0)):
            finite = torch.where(torch.isfinite(end), end, 0.0)
            swing = (slopes[..., :-1] - finite * slopes[..., -1:]).abs().sum(0)
            sizes = (
                x.abs()
                + slopes[..., :-1].abs().sum(0)
                + finite.abs() * (t.abs() + slopes[..., -1:].abs().sum(0))
            )
            lost = loose + finite.abs() * late + 32 * ROUNDING * sizes
            beyond = sign * (x - finite * t) - swing > lost * (1 + 1e-9)
            found |= (beyond & torch.isfinite(end)).any(1)
        return found

    def inside(self, u: Tensor) -> Tensor:
        """(points,): whether u is in the cone, computed in float64."""
        x, t = u[:, :-1], u[:, -1:]
        a, b = self.first, self.second
        if self.kind == "box":
            place = x / t.clamp_min(1e-300)
            return ((place >= a) & (place <= b)).all(1) & (t[:, 0] > 0)
        if self.kind == "halfspace":
            return (x @ a - (b * t)[:, 0] <= 0) & (t[:, 0] > 0)
        return ((a * (x - b * t).square()).sum(1) <= t[:, 0].square()) & (t[:, 0] > 0)


def cone_of(domain: Mapping[str, Any]) -> Cone | None:
    """The cone of a plain domain; ``None`` for every input, and where an axis has no length."""
    ellipsoid = ellipsoid_of(domain)
    if ellipsoid is not None:
        center, axes = ellipsoid
        squares = axes * axes
        if not bool((squares > 1e-280).all()):
            return None
        return Cone("ellipsoid", (1.0 / squares) * (1.0 - ROUNDING), center)
    if domain["kind"] == "box":
        low, high = (torch.tensor(domain[k], dtype=torch.float64) for k in ("lower", "upper"))
        return Cone("box", low, high)
    if domain["kind"] == "halfspace":
        normal = torch.tensor(domain["normal"], dtype=torch.float64)
        return Cone("halfspace", normal, torch.tensor([float(domain["offset"])], dtype=torch.float64))
    return None
