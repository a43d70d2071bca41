"""The engine of one machine: the calling thread, or a few threads beside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, final

import torch

from farfield.engine._engine import Engine
from farfield.engine._here import Here
from farfield.engine._memory import pending_limit
from farfield.errors import InvalidValueError

__all__ = ["LocalEngine", "local"]

Item = TypeVar("Item")
Result = TypeVar("Result")


@final
@dataclass(frozen=True)
class LocalEngine(Engine):
    """Run tasks on this machine; made by :func:`local`.

    Parameters
    ----------
    workers
        1 runs every task in the calling thread, where torch's own threads share the work of each operation, or in one
        beside it that has other ``threads``. More run that many tasks at once, each in a thread of its own.
    threads
        How many of torch's threads each task has; None leaves what a thread has. With several workers, 1: tasks made
        of many elementwise operations, such as tiles of a kernel, then use the cores better than torch's threads do.
    """

    workers: int = 1
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.workers < 1 or (self.threads is not None and self.threads < 1):
            raise InvalidValueError(
                "There is at least one worker, with at least one thread of torch's; got "
                f"workers={self.workers}, threads={self.threads}."
            )

    @property
    def sharing(self) -> int:
        """All workers. See :attr:`Engine.sharing`."""
        return self.workers

    def run(self, task: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Results of a task, in the order of the items. See :meth:`Engine.run`.

        An interrupt stops it once the tasks that are under way have ended; no other is begun.
        """
        if self.workers == 1 and self.threads in (None, torch.get_num_threads()):
            return _one_by_one(task, items)
        return _in_threads(self.workers, self.threads, task, items)


def local(workers: int = 1, *, threads: int | None = None) -> LocalEngine:
    """The engine that runs everything on this machine.

    ``local(workers=cores, threads=1)`` gives every core tiles of its own: the same bits as Ray with one thread each,
    and faster than torch's threads where most of the work is elementwise. Memory is shared by the workers.

    Examples
    --------
    >>> local().reduce(len, ["a", "bc", "def"], lambda left, right: left + right)
    6
    """
    return LocalEngine(workers, threads)


def _one_by_one(task: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
    # Through the built-in map, because a variable of a for-loop would keep the last item alive.
    yield from map(task, items)


def _in_threads(
    workers: int, threads: int | None, task: Callable[[Item], Result], items: Iterable[Item]
) -> Generator[Result, None, None]:
    run = Here.now().around(task)
    pending: deque[Future[Result]] = deque()
    # A thread's own setting, but torch also hands the last one to threads that are new: put back in the end.
    before = torch.get_num_threads()
    begin = None if threads is None else partial(torch.set_num_threads, threads)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="farfield", initializer=begin)

    def submit(item: Item) -> Future[Result]:
        return pool.submit(run, item)

    try:
        for future in map(submit, items):
            pending.append(future)
            if len(pending) == pending_limit(workers):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        # Reached by an error, an interrupt and a closed generator too: what waits is dropped, what runs may end.
        pool.shutdown(wait=True, cancel_futures=True)
        if threads is not None:
            torch.set_num_threads(before)
