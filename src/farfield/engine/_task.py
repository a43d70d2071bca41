"""A task as an engine runs it: with its checkpoint, and with the item named when it fails."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from farfield.engine._checkpoint import Checkpoint
from farfield.errors import FarfieldError

__all__ = ["NumberedBatches", "NumberedTask", "TaskError", "TrackedTask"]

Item = TypeVar("Item")
Result = TypeVar("Result")
_ABSENT = object()


class TaskError(FarfieldError, RuntimeError):
    """A task raised; ``item`` is what it was working on, and the error itself is the cause.

    In a stream ``item`` is the number of the batch, counted from zero.

    Examples
    --------
    >>> print(TaskError((2, 3), "ZeroDivisionError: division by zero"))
    The task failed on (2, 3): ZeroDivisionError: division by zero
    """

    def __init__(self, item: Any, reason: str) -> None:
        super().__init__(item, reason)  # both in args: it survives pickling
        self.item = item
        self.reason = reason

    def __str__(self) -> str:
        text = repr(self.item)
        return f"The task failed on {text if len(text) <= 200 else reprlib.repr(text)}: {self.reason}"


def _call(task: Callable[[Item], Result], argument: Item, item: object) -> Result:
    try:
        return task(argument)
    except Exception as error:  # KeyboardInterrupt and SystemExit pass through
        raise TaskError(item, f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class TrackedTask(Generic[Item, Result]):
    """Read the result if it is finished, else compute and store it. Runs, and writes, where the task runs."""

    task: Callable[[Item], Result]
    checkpoint: Checkpoint | None = None
    name: Callable[[Item], object] | None = None

    def __call__(self, item: Item) -> Result:
        """The result of an item."""
        if self.checkpoint is None:
            return _call(self.task, item, self.named(item))
        found: Result | object = self.checkpoint.load(item, _ABSENT)
        if found is not _ABSENT:
            return found  # type: ignore[return-value]
        result = _call(self.task, item, self.named(item))
        self.checkpoint.save(item, result)
        return result

    def named(self, item: Item) -> object:
        """What an error calls the item."""
        return item if self.name is None else self.name(item)


@dataclass(frozen=True)
class NumberedTask(Generic[Item, Result]):
    """The task on (number, batch); an error names the number, since the batch may be large."""

    task: Callable[[Item], Result]

    def __call__(self, numbered: tuple[int, Item]) -> Result:
        """The result of a batch."""
        return _call(self.task, numbered[1], numbered[0])

    def named(self, numbered: tuple[int, Item]) -> object:
        """What an error calls the batch."""
        return numbered[0]


class NumberedBatches(Generic[Item]):
    """``enumerate`` that keeps no reference to the batch it gave last."""

    def __init__(self, batches: Iterator[Item], start: int) -> None:
        self._batches = batches
        self._number = start - 1

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        return self

    def __next__(self) -> tuple[int, Item]:
        batch = next(self._batches)
        self._number += 1
        return self._number, batch
