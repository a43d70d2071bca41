"""Results that are combined by the workers of a cluster, so that few of them travel to the calling process."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from farfield.engine._packed import Packed
from farfield.engine._task import TaskError
from farfield.engine._worker import taken

__all__ = ["BlockRun", "block_size"]

_ARRIVALS = 64


def block_size(items: int) -> int:
    """How many items are combined before their result is sent: a power of two that leaves 64 to 128 results.

    It depends on the number of items alone. If the caller is killed, what the unfinished block has is lost.

    >>> [block_size(n) for n in (1, 127, 128, 1000, 15_000)]
    [1, 1, 2, 8, 128]
    """
    return 1 << max(0, (items // _ARRIVALS).bit_length() - 1)


@dataclass(frozen=True)
class BlockRun:
    """A reduction on its way: items become results, and results blocks, in the workers.

    Parameters
    ----------
    leaf
        Submits a packed item; gives references to the error, None if there is none, and to the outcome.
    join
        Submits the combination of two outcomes that are given by reference.
    fetch
        What a reference stands for; raises in the name of an item if its worker was lost.
    wait
        Blocks until at least one of some tasks has ended; gives all that have.
    settle
        Waits for a while until the tasks behind some references have ended.
    limit
        Items under way or waiting at once, as things are now.
    ahead
        Items that may be submitted behind one that has not ended: their results stay with the workers.
    """

    leaf: Callable[[Packed], tuple[Any, Any]]
    join: Callable[[Any, Any], Any]
    fetch: Callable[[Any, object], Any]
    wait: Callable[[list[Any]], Collection[Any]]
    settle: Callable[[list[Any]], None]
    limit: Callable[[], int]
    ahead: int

    def run(
        self,
        items: Iterator[tuple[object, Packed]],
        sizes: Iterable[int],
        tell: Callable[[], None],
        *,
        first: int = 0,
    ) -> Generator[tuple[int, Any], None, None]:
        """(size, reduction) for every block of (name, item); tells of every item that is finished.

        ``first`` is the number of the first item in the whole reduction. If an item fails, the blocks before it still
        come, and then the error: they are finished, and a checkpoint is to have them.
        """
        leaves: deque[tuple[object, Any]] = deque()
        under_way: set[Any] = set()
        roots: deque[tuple[int, int, Any]] = deque()
        submitted = checked = first

        def submit(size: int) -> Any:
            if size == 1:
                name, item = next(items)
                error, outcome = self.leaf(item)
                leaves.append((name, error))
                under_way.add(error)
                while len(under_way) >= self.limit():
                    under_way.difference_update(self.wait(list(under_way)))
                # In order, as far as they have ended; one that has not is waited for when too many are behind it.
                while leaves and (leaves[0][1] not in under_way or len(leaves) >= self.ahead):
                    check()
                return outcome
            left = submit(size // 2)
            return self.join(left, submit(size // 2))

        def check() -> None:
            nonlocal checked
            name, reference = leaves[0]
            error = self.fetch(reference, name)
            leaves.popleft()  # only now: what is waited for is settled too
            under_way.discard(reference)
            if error is not None:
                taken(error, name)
            checked += 1
            tell()

        def oldest() -> tuple[int, Any]:
            size, end, reference = roots[0]
            while checked < end:  # so that an error bears the name of its item
                check()
            name = f"items {end - size} to {end - 1}, which are combined"
            result = taken(self.fetch(reference, name), name)
            roots.popleft()  # only now: no block comes after one that could not be had
            return size, result

        try:
            for size in sizes:
                root = submit(size)
                submitted += size
                roots.append((size, submitted, root))
                # Not before so many items are submitted behind a block: the workers would run dry. Nor while one of
                # its items is slow, unless very many are.
                while roots and (behind := submitted - roots[0][1]) >= self.limit() - 1:
                    if checked < roots[0][1] and behind < self.ahead - 1:
                        break
                    yield oldest()
            while leaves:
                check()
            while roots:
                yield oldest()
        except TaskError:
            with contextlib.suppress(TaskError):
                while roots and roots[0][1] <= checked:
                    yield oldest()
            raise
        finally:
            self.settle([reference for _, reference in leaves] + [reference for *_, reference in roots])
