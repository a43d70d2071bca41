"""Which task is begun next, and which result is given out: one rule for every engine."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor

__all__ = ["AHEAD", "Schedule", "bytes_of"]

Item = TypeVar("Item")
Handle = TypeVar("Handle", bound=Hashable)
Result = TypeVar("Result")

AHEAD = 128
"""Items, for each worker, that may be begun and not given out yet. While one item takes 150 times as long as the
others the workers get through fewer than that, if one item in a hundred is so slow: nobody waits for the order."""
_WAITING = 2**28
"""Bytes of finished results that wait for their turn, beyond which no more items are begun than are always."""


@dataclass(frozen=True)
class Schedule(Generic[Item, Handle, Result]):
    """Tasks begun in the order of their items, ended in any, given out as they end or in order.

    Finished results that wait for an earlier one are bounded in number, ``ahead``, and in bytes: 256 MB and what is
    under way. The oldest item is always among those under way, so the bound never stops the work.

    Parameters
    ----------
    submit
        Begins an item, or puts it in a queue of the workers'; gives its handle.
    wait
        Blocks until at least one of some handles has ended; gives all that have.
    fetch
        The result of a handle that has ended; raises the error of its task.
    settle
        Called in the end with the handles whose results are not wanted any more.
    under_way
        How many items may be begun and not ended, as things are now.
    ahead
        How many may be begun and not given out.
    failed
        Whether a handle that has ended is an error, where that is known without fetching it: nothing is begun then.
    size
        Bytes that an ended handle holds in this process.
    """

    submit: Callable[[Item], Handle]
    wait: Callable[[list[Handle]], Collection[Handle]]
    fetch: Callable[[Handle], Result]
    settle: Callable[[list[Handle]], None]
    under_way: Callable[[], int]
    ahead: Callable[[], int]
    failed: Callable[[Handle], bool] = lambda _: False
    size: Callable[[Handle], int] = lambda _: 0

    def as_ended(self, items: Iterable[Item]) -> Generator[tuple[int, Result], None, None]:
        """(number of the item, result), whichever ends first."""
        handles: list[Handle] = []  # through a list, which keeps nothing while the result is somebody else's
        ended = self._ended(items, lambda _: True)
        try:
            for number, handle in ended:
                handles.append(handle)
                del handle
                yield number, self.fetch(handles.pop())
        finally:
            ended.close()

    def in_order(self, items: Iterable[Item]) -> Generator[Result, None, None]:
        """Results in the order of the items."""
        finished: dict[int, Handle] = {}
        sizes: dict[int, int] = {}
        given = waiting = 0

        def room(begun: int) -> bool:
            if begun - given < min(self.under_way(), self.ahead()):
                return True
            return begun - given < self.ahead() and waiting < _WAITING

        ended = self._ended(items, room)
        try:
            for number, handle in ended:
                finished[number], sizes[number] = handle, self.size(handle)
                waiting += sizes[number]
                del handle
                while given in finished:
                    waiting -= sizes.pop(given)
                    given += 1
                    yield self.fetch(finished.pop(given - 1))
        finally:
            ended.close()

    def _ended(
        self, items: Iterable[Item], room: Callable[[int], bool]
    ) -> Generator[tuple[int, Handle], None, None]:
        """(number, handle) as tasks end; no item is taken before there is room for its result."""
        handles = map(self.submit, items)  # a variable of a for-loop would keep the last item alive
        numbers: dict[Handle, int] = {}
        ended: deque[tuple[int, Handle]] = deque()
        begun, more = 0, True
        try:
            while True:
                while more and len(numbers) < self.under_way() and room(begun):
                    handle = next(handles, None)
                    if handle is None:
                        more = False
                    else:
                        numbers[handle] = begun
                        begun += 1
                if not ended:
                    if not numbers:
                        return
                    done = self.wait(list(numbers))
                    more = more and not any(self.failed(handle) for handle in done)
                    ended.extend(sorted((numbers.pop(handle), handle) for handle in done))
                yield ended.popleft()
        finally:
            self.settle([*numbers, *(handle for _, handle in ended)])


def bytes_of(value: Any) -> int:
    """About how many bytes a result holds: its tensors and arrays, and those in containers of it.

    >>> import torch
    >>> bytes_of({"sum": torch.zeros(10, dtype=torch.float64), "parts": [torch.zeros(5)]}) >= 100
    True
    """
    if isinstance(value, (Tensor, np.ndarray)):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(bytes_of(item) for item in value.values())
    if isinstance(value, (tuple, list)):
        return sum(bytes_of(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return sum(bytes_of(getattr(value, field.name)) for field in dataclasses.fields(value))
    return sys.getsizeof(value)
