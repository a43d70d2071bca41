"""Trained heads far from everything they saw: along rays, and against their certificates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from farfield.certify import certify
from farfield.graph import capture
from farfield.growth import Status, analyze
from farfield.papers._curves import exponent

__all__ = ["FarField", "far_field"]


@dataclass(frozen=True)
class FarField:
    """What heads of one kind do along rays from the mean of their features, in the target's units.

    Parameters
    ----------
    radii
        Distances from the mean.
    largest
        Largest |output| at every radius, over heads and directions.
    ranges
        Certified range of every head; empty for unbounded ones.
    unbounded
        Whether every head was proved unbounded.
    inside
        Whether no output left its head's certified range.
    """

    name: str
    count: int
    radii: Tensor
    largest: Tensor
    lowest: float
    highest: float
    ranges: tuple[tuple[float, float], ...]
    tightness: tuple[float, ...]
    unbounded: bool
    inside: bool

    @property
    def certified(self) -> bool:
        """Whether every head has a certificate."""
        return len(self.ranges) == self.count

    @property
    def farthest(self) -> float:
        """Largest radius."""
        return float(self.radii[-1])

    @property
    def exponent(self) -> float:
        """Slope of log |output| against log radius beyond 10⁴."""
        far = self.radii >= 1e4
        return exponent(self.radii[far], self.largest[far])

    def numbers(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "radii": self.radii.tolist(), "largest": self.largest.tolist(), "lowest": self.lowest,
            "highest": self.highest, "certified": [list(r) for r in self.ranges], "tightness": list(self.tightness),
            "proved_unbounded": self.unbounded, "exponent_beyond_1e4": self.exponent,
        }  # fmt: skip


def far_field(
    name: str,
    models: Sequence[nn.Module],
    seen: Tensor,
    *,
    time_budget: float,
    directions: int,
    farthest: float,
    center: float,
    spread: float,
    seed: int,
) -> FarField:
    """Follow heads along rays, in float64, and certify them.

    Half of the directions are drawn from the sphere, half from one row of ``seen`` to another.

    Parameters
    ----------
    seen
        Features that they were trained on, (n, d), float64.
    time_budget
        For the certificate of one head; one that is proved unbounded has none.
    center, spread
        The target is ``center + spread·output``.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(directions - directions // 2, seen.shape[1], generator=generator, dtype=torch.float64)
    pairs = torch.randint(len(seen), (2, directions // 2), generator=generator)
    rays = torch.cat([drawn, seen[pairs[0]] - seen[pairs[1]]])
    rays = rays[rays.norm(dim=1) > 0]
    rays = rays / rays.norm(dim=1, keepdim=True)
    origin = seen.mean(0)
    radii = torch.logspace(0, math.log10(farthest), 4 * round(math.log10(farthest)) + 1, dtype=torch.float64)
    ranges, tightness, unbounded, inside = [], [], 0, True
    values = []
    for model in models:
        exact = deepcopy(model).double().eval()
        with torch.no_grad():
            found = torch.stack([exact(origin + r * rays)[:, 0] for r in radii])
        values.append(center + spread * found)
        if analyze(capture(exact, origin[None], dynamic_batch=False)).verdicts[0].status is Status.UNBOUNDED:
            unbounded += 1
            continue
        certificate = certify(exact, origin[None], time_budget=time_budget)
        low, high = float(certificate.lower), float(certificate.upper)
        inside = inside and low <= float(found.min()) and float(found.max()) <= high
        ranges.append((center + spread * low, center + spread * high))
        tightness.append(float(certificate.tightness))
    every = torch.stack(values)
    return FarField(
        name, len(models), radii, every.abs().amax((0, 2)), float(every.min()), float(every.max()), tuple(ranges),
        tuple(tightness), unbounded == len(models), inside,
    )  # fmt: skip
