"""What runs in a worker, and how its result or its error comes back. Ray is not imported here."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from farfield.engine._cluster import pickler
from farfield.engine._here import Here
from farfield.engine._packed import Packed, pack, unpack
from farfield.engine._task import TaskError

__all__ = ["Keeper", "Shared", "join", "run_leaf", "run_task", "taken"]


@dataclass(frozen=True)
class Shared:
    """What all tasks of a run have in common: sent once."""

    task: Callable[..., Any]
    here: Here
    threads: int

    def call(self, task: Callable[[Any], Any], item: Any) -> Any:
        """The result of an item with the settings of the calling process."""
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.here.dtype)
        return self.here.around(task)(item)


def run_task(shared: Packed, item: Packed) -> Packed:
    """The result of a task, or the error it raised. The operands are read where they lie; the item is a copy."""
    return _outcome(shared, item)[1]


def run_leaf(shared: Packed, item: Packed) -> tuple[Packed | None, Packed]:
    """The error that a task raised, if it did, and its outcome: the first is small, and the second may stay here."""
    fine, packed = _outcome(shared, item)
    return None if fine else packed, packed


def join(shared: Packed, left: Packed, right: Packed) -> Packed:
    """Two outcomes combined; where one of them is an error, or combining raises one, that."""
    # A copy of the earlier one, which combining may overwrite.
    (left_fine, earlier), (right_fine, later) = unpack(left, copy=True), unpack(right, copy=False)
    if not (left_fine and right_fine):
        return right if left_fine else left

    def result() -> Any:
        common: Shared = unpack(shared, copy=False)
        return common.call(lambda both: common.task(*both), (earlier, later))

    return _attempt(result)[1]


class Keeper:
    """A worker that keeps what it has prepared."""

    def __init__(self) -> None:
        self._shared: Shared | None = None
        self._prepared: dict[int, Callable[[Any], Any]] = {}

    def call(self, number: int, item: Packed, argument: Packed, shared: Packed) -> Packed:
        """The result of a prepared item for an argument."""

        def result() -> Any:
            # Not in __init__: an error there would be Ray's to report, without the item.
            if self._shared is None:
                self._shared = unpack(shared, copy=False)
            common = self._shared
            if number not in self._prepared:
                self._prepared[number] = common.call(common.task, unpack(item, copy=True))
            return common.call(self._prepared[number], unpack(argument, copy=False))

        return _attempt(result)[1]


def _outcome(shared: Packed, item: Packed) -> tuple[bool, Packed]:
    def result() -> Any:
        common: Shared = unpack(shared, copy=False)
        return common.call(common.task, unpack(item, copy=True))

    return _attempt(result)


def _attempt(result: Callable[[], Any]) -> tuple[bool, Packed]:
    """Whether it went well, and the outcome, which says so too."""
    try:
        return True, pack((True, result()), pickler())
    except BaseException as error:  # an interrupt too: it is the caller's
        text = traceback.format_exc()
        cause = error.__cause__
        for carried in ((error, cause), (_plain(error), None if cause is None else _plain(cause))):
            try:
                packed = pack((False, (*carried, text)), pickler())
                pickle.loads(packed.content.data, buffers=packed.buffers)
            except Exception:
                continue
            return False, packed
        raise  # pragma: no cover, plain errors can be pickled


def _plain(error: BaseException) -> BaseException:
    """An error that can be pickled."""
    if isinstance(error, TaskError):
        return TaskError(repr(error.item), error.reason)
    return RuntimeError(f"{type(error).__name__}: {error}")


def taken(outcome: Packed, name: object) -> Any:
    """The result in an outcome; raise its error, in the name of the item."""
    fine, value = unpack(outcome, copy=True)
    if fine:
        return value
    error, cause, text = value
    if not isinstance(error, Exception):
        raise error
    if not isinstance(error, TaskError):  # around the task: it could not be read, or its result not be sent
        error, cause = TaskError(name, f"{type(error).__name__}: {error}"), error
    error.add_note(f"In the worker:\n{text}")
    raise error from cause
