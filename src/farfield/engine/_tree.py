"""Pairwise reduction in an order that depends on the number of items alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from farfield.engine._checkpoint import Checkpoint

__all__ = ["PairwiseTree", "aligned"]

Result = TypeVar("Result")
_ABSENT = object()
_LARGEST = 62


class PairwiseTree(Generic[Result]):
    """Results combined in pairs, then pairs of pairs: ((r₀∘r₁)∘(r₂∘r₃))∘….

    Holds one partial result for each one in the binary form of the count, largest block first. A block of 2ᵏ items
    that starts at a multiple of 2ᵏ is always one subtree, so a worker may reduce it by itself and no bit changes.

    With a checkpoint those partial results are on disk too, and no others.
    """

    def __init__(self, combine: Callable[[Result, Result], Result], checkpoint: Checkpoint | None) -> None:
        self._combine = combine
        self._checkpoint = checkpoint
        self._partial: list[tuple[int, Result]] = []  # (number of items, their reduction)
        self.count = 0
        if checkpoint is not None:
            self._restore(checkpoint)

    def push(self, result: Result, size: int = 1) -> None:
        """Take the result of the next item, or the reduction of the next block from :func:`aligned`."""
        start, items = self.count, size
        covered: list[tuple[int, int]] = []
        while self._partial and self._partial[-1][0] == size:
            _, left = self._partial.pop()
            start -= size
            covered.append((start, size))
            result = self._combine(left, result)
            size *= 2
        self._partial.append((size, result))
        self.count += items
        if self._checkpoint is not None:
            self._checkpoint.save(_key(start, size), result)
            for block in covered:
                self._checkpoint.remove(_key(*block))

    def total(self) -> Result:
        """The reduction of everything pushed, of which there is some."""
        _, total = self._partial.pop()
        while self._partial:
            _, left = self._partial.pop()
            total = self._combine(left, total)
        return total

    def _restore(self, checkpoint: Checkpoint) -> None:
        # Largest blocks first: where a run died between writing a block and forgetting its halves, the block counts.
        for size in (2**k for k in reversed(range(_LARGEST))):
            found: Result | object = checkpoint.load(_key(self.count, size), _ABSENT)
            if found is not _ABSENT:
                self._partial.append((size, found))  # type: ignore[arg-type]
                self.count += size


def aligned(first: int, last: int, largest: int) -> Iterator[int]:
    """Sizes of successive blocks from one item up to another, each a whole subtree of at most so many items.

    >>> list(aligned(3, 14, 4))
    [1, 4, 4, 2]
    """
    while first < last:
        size = largest if first == 0 else min(largest, first & -first)
        while size > last - first:
            size //= 2
        yield size
        first += size


def _key(start: int, size: int) -> tuple[str, int, int]:
    return "reduction", start, start + size
