"""Which rows, of which members of a stack, are worked on at once; and what belongs to them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.learn._stack import Stack

__all__ = ["cached", "normalized", "pieces", "rows_in_pieces", "take", "take_weights"]

_PIECE = 2**19
"""Numbers between two layers, all members of a stack together, that are worked on at once: 2 MB, what a core's own
cache holds. Larger pieces go through main memory and take up to twice as long; smaller ones pay for their number."""

_CACHED = 2**18
"""The same where gradients are written out and several buffers of that size are in use: a megabyte each."""


def pieces(
    stack: Stack, x: Tensor, rows: Tensor | None, *, whole: bool
) -> Iterator[tuple[Tensor, Tensor | slice]]:
    """Inputs, (members or 1, rows, …), piece by piece, and the numbers of their rows."""
    count = len(x) if rows is None else rows.shape[1]
    return rows_in_pieces(x, rows, count if whole else max(16, _PIECE // (stack.size * stack.widest)))


def rows_in_pieces(x: Tensor, rows: Tensor | None, step: int) -> Iterator[tuple[Tensor, Tensor | slice]]:
    for start in range(0, len(x) if rows is None else rows.shape[1], max(1, step)):
        if rows is None:
            numbers = slice(start, start + step)
            yield x[numbers][None], numbers
        else:
            piece = rows[:, start : start + step]
            yield x[piece], piece


def cached(stack: Stack, count: int) -> tuple[int, int]:
    """How many rows, of how many members, go through the layers at once.

    As many as fit into the cache, but so many rows that reading a layer's weights is the smaller part.
    """
    rows = min(count, max(16, _CACHED // stack.widest, 2 * stack.widest))
    return rows, max(1, _CACHED // (rows * stack.widest))


def take(values: Tensor, numbers: Tensor | slice) -> Tensor:
    return values[numbers][None] if isinstance(numbers, slice) else values[numbers]


def take_weights(weights: Tensor, members: list[int], numbers: Tensor | slice) -> Tensor:
    own = weights[members]
    return own[:, numbers] if isinstance(numbers, slice) else own.gather(1, numbers)


def normalized(weights: Tensor, rows: Tensor | None, count: int) -> Tensor:
    """For every model, scaled to mean 1 over its training rows; shape (models, n)."""
    each = (weights if weights.is_floating_point() else weights.double()).expand(count, -1)
    mean = (each if rows is None else each.gather(1, rows)).mean(1, keepdim=True)
    if not bool((mean > 0).all()):
        raise InvalidValueError("Weights of the training rows must not all be zero.")
    return each / mean
