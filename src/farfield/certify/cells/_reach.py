"""How far the offsets of a cell go: over a box each on its own, over a ball together.

A ball is covered by cells of the box around it. Along the axes that a cell was not halved on, it holds no more than
the ball does: ‖δ_U‖ ≤ r, where r² is what the other axes leave of the ball's square. Sums over these axes are
roots of sums of squares, up to √n smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield._typing import Bool, Float

__all__ = ["Reach", "swing"]

TINY = 1e-280
ROOM = 1.0 + 2.0**-40
"""For the rounding of a root of a sum of up to 2¹⁰ squares, many times over."""


@dataclass(frozen=True, slots=True)
class Reach:
    """|δ_j| ≤ 1 for every axis of a cell, and ‖δ‖ ≤ radius over the whole ones.

    Parameters
    ----------
    whole
        (C, k): the axes along which a cell was not halved.
    radius
        (C,).
    """

    whole: Bool[Tensor, "C k"]
    radius: Float[Tensor, " C"]

    def split(self, slopes: Float[Tensor, "k C ..."]) -> tuple[Tensor, Tensor]:
        """The same slopes with 0 on the axes that are whole, and on those that are not."""
        whole = self.whole.T.reshape(*self.whole.T.shape, *[1] * (slopes.ndim - 2))
        return torch.where(whole, 0.0, slopes), torch.where(whole, slopes, 0.0)

    def ball(self, slopes: Float[Tensor, "k C ..."]) -> Float[Tensor, "C ..."]:
        """max Σ s_j δ_j over ‖δ‖ ≤ radius, rounded up: radius·‖s‖."""
        radius = self.radius.reshape(-1, *[1] * (slopes.ndim - 2))
        return radius * length(slopes)


def length(values: Tensor) -> Tensor:
    """√Σ v² along the first axis, rounded up; ∞ where it is not a number."""
    largest = values.abs().amax(0).clamp_min(TINY)
    made = largest * (values / largest).square().sum(0).sqrt() * ROOM
    return torch.where(torch.isnan(made), math.inf, made)


def swing(slopes: Float[Tensor, "k C ..."], reach: Reach | None) -> Float[Tensor, "C ..."]:
    """max Σ s_j δ_j over a cell: Σ|s_j|, up to rounding; with a reach, at most that and ‖s‖ over its whole axes."""
    if reach is None:
        return slopes.abs().sum(0)
    halved, whole = reach.split(slopes)
    return halved.abs().sum(0) + reach.ball(whole)
