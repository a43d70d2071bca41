"""A linear layer in a wider type than its weight's, which is converted in blocks that stay in the cache.

A float64 copy of a large float32 weight costs more than the product with it: sixteen times what the float32 product
with one row takes, which reads the weight once. Converted by blocks it is four times, and no copy is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["in_blocks", "is_narrow", "linear_in_blocks"]

BLOCK = 1 << 18
"""Entries of a weight converted at a time."""


def is_narrow(weight: Any, dtype: torch.dtype | None) -> bool:
    """Whether a weight is a large matrix of a smaller floating type than the one wanted."""
    if dtype is None or not isinstance(weight, Tensor) or weight.ndim != 2 or weight.numel() < 4 * BLOCK:
        return False
    return weight.is_floating_point() and weight.dtype.itemsize < dtype.itemsize


def in_blocks(weight: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """A matrix in another type, a few rows at a time, in memory that the next block overwrites."""
    rows = max(1, BLOCK // max(weight.shape[1], 1))
    memory = torch.empty((min(rows, len(weight)), weight.shape[1]), dtype=dtype, device=weight.device)
    for begin in range(0, len(weight), rows):
        block = weight[begin : begin + rows]
        yield memory[: len(block)].copy_(block)


def linear_in_blocks(x: Tensor, weight: Tensor, squares: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x·Wᵀ in the type of x, and s·(W∘W)ᵀ, for the rounding errors of the former.

    Parameters
    ----------
    x
        Shape ``(…, inputs)``. Autograd goes through it, at the price of the whole weight converted.
    weight
        Shape ``(outputs, inputs)``, of any floating type.
    squares
        s, of the shape of x; nothing is computed for it otherwise, and the second result is empty.
    """
    outputs, inputs = weight.shape
    follow = torch.is_grad_enabled() and x.requires_grad
    given = [x] if squares is None else [x, squares]
    columns = [g.reshape(-1, inputs).T.contiguous() for g in given]
    made: list[list[Tensor]] = [[], []]
    for block in [weight.to(x.dtype)] if follow else in_blocks(weight, x.dtype):
        made[0].append(block @ columns[0])
        if squares is not None:
            with torch.no_grad():
                made[1].append((block.square() if follow else block.square_()) @ columns[1])
    values, variances = (
        torch.cat(parts).T.reshape(*x.shape[:-1], outputs) if parts else x.new_empty(0) for parts in made
    )
    return values, variances
