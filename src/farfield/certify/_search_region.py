"""Where a search may walk: how points start, how they are brought back, and whether they are inside."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from farfield.certify._domain import KINDS, contains, ellipsoid_of
from farfield.errors import InvalidValueError

__all__ = ["Region", "search_region"]


class Region:
    """All of Rⁿ; the others override where points start, and how they are brought back."""

    def project(self, rows: Tensor) -> Tensor:
        """The points themselves, or near ones inside."""
        return rows

    def contains(self, row: Tensor) -> bool:
        """Exactly."""
        return True

    def sample(self, count: int, generator: torch.Generator) -> Tensor | None:
        """Points spread over a bounded region; None where directions and magnitudes serve better."""
        return None

    def extent(self) -> Tensor | None:
        """Width of every side of a bounded region, the unit of steps; None for steps on sphere and ray."""
        return None


class _Box(Region):
    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high
        self.finite = bool(torch.isfinite(high - low).all())

    def project(self, rows: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(rows, self.low), self.high)

    def contains(self, row: Tensor) -> bool:
        return bool(((self.low <= row) & (row <= self.high)).all())

    def sample(self, count: int, generator: torch.Generator) -> Tensor | None:
        if not self.finite:
            return None
        share = torch.rand(count, self.low.numel(), generator=generator, dtype=torch.float64)
        share[: count // 4] = share[: count // 4].round()  # corners
        return self.project(self.low + share * (self.high - self.low))

    def extent(self) -> Tensor | None:
        return self.high - self.low if self.finite else None


class _HalfSpace(Region):
    """Where normal·x ≤ offset."""

    def __init__(self, normal: Tensor, offset: float) -> None:
        self.normal, self.offset = normal, offset

    def project(self, rows: Tensor) -> Tensor:
        excess = rows @ self.normal - self.offset
        # A little too far, by what the sum may have rounded: the point reported must really be inside.
        slack = 1e-13 * (rows.abs() @ self.normal.abs() + abs(self.offset))
        length = self.normal.square().sum()
        moved = rows - ((excess + slack) / length)[:, None] * self.normal
        return torch.where((excess > -slack)[:, None], moved, rows)

    def contains(self, row: Tensor) -> bool:
        if not bool(torch.isfinite(row).all()):
            return False
        pairs = zip(self.normal.tolist(), row.tolist(), strict=True)
        return sum((Fraction(a) * Fraction(b) for a, b in pairs), Fraction(0)) <= Fraction(self.offset)


class _Ellipsoid(Region):
    """Around a center, along the axes."""

    def __init__(self, domain: Mapping[str, Any], center: Tensor, axes: Tensor) -> None:
        self.domain, self.center, self.axes = domain, center, axes

    def project(self, rows: Tensor) -> Tensor:
        rows = torch.where(self.axes > 0, rows, self.center)
        away = ((rows - self.center) / self.axes.clamp_min(1e-300)).clamp(-1e150, 1e150)
        size = torch.linalg.vector_norm(away, dim=1, keepdim=True)
        # A hair inside: what is reported must be in the region when it is computed again.
        drawn = away / size.clamp_min(1e-300) * (1.0 - 1e-12)
        return torch.where(size <= 1.0 - 1e-12, rows, self.center + self.axes * drawn)

    def contains(self, row: Tensor) -> bool:
        return contains(self.domain, row)

    def sample(self, count: int, generator: torch.Generator) -> Tensor | None:
        normal = torch.randn(count, self.axes.numel(), generator=generator, dtype=torch.float64)
        length = torch.linalg.vector_norm(normal, dim=1, keepdim=True).clamp_min(1e-300)
        share = torch.rand(count, 1, generator=generator, dtype=torch.float64)
        share[: count // 2] = 1.0  # extremes often lie on the rim
        return self.project(self.center + self.axes * share * normal / length)

    def extent(self) -> Tensor | None:
        return 2.0 * self.axes


def search_region(domain: Mapping[str, Any] | None, size: int) -> Region:
    """The region of a domain as certificates hold it."""
    kind = "all" if domain is None else domain["kind"]
    if domain is None or kind == "all":
        return Region()
    if kind == "box":
        low, high = (torch.tensor(domain[k], dtype=torch.float64).reshape(-1) for k in ("lower", "upper"))
        if low.numel() != size or high.numel() != size or not bool((low <= high).all()):
            raise InvalidValueError(
                f"A box has a lower and an upper end, in this order, for each of the {size} real input entries; "
                f"received {low.numel()} and {high.numel()}."
            )
        return _Box(low, high)
    if kind == "halfspace":
        normal = torch.tensor(domain["normal"], dtype=torch.float64).reshape(-1)
        if normal.numel() != size or not bool(torch.isfinite(normal).all()) or not bool(normal.any()):
            raise InvalidValueError(
                f"The normal of a half-space is a non-zero vector of {size} finite entries."
            )
        return _HalfSpace(normal, float(domain["offset"]))
    whole = kind in KINDS and all(name in domain for name in KINDS[kind])
    ellipsoid = ellipsoid_of(domain) if whole else None
    if ellipsoid is None or any(part.numel() != size for part in ellipsoid):
        raise InvalidValueError(f"A domain of {size} real input entries can't be {dict(domain)!r:.200}.")
    return _Ellipsoid(domain, *ellipsoid)
