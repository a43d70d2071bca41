"""The engine of one machine: the calling thread, or a few threads beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, final

import torch

from farfield.engine._engine import Engine
from farfield.engine._here import Here
from farfield.engine._memory import pending_limit
from farfield.engine._schedule import AHEAD, Schedule, bytes_of
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

    @property
    def in_process(self) -> bool:
        """Yes. See :attr:`Engine.in_process`."""
        return True

    def run(self, task: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Results of a task, in the order of the items. See :meth:`Engine.run`.

        An interrupt stops it once the tasks that are under way have ended; no other is begun.
        """
        if self._alone:
            return _one_by_one(task, items)
        return _in_order(self.workers, self.threads, task, items)

    def run_as_ended(
        self, task: Callable[[Item], Result], items: Iterable[Item]
    ) -> Generator[tuple[int, Result], None, None]:
        """(number, result) as they end. See :meth:`Engine.run_as_ended`."""
        if self._alone:
            return super().run_as_ended(task, items)
        return _as_ended(self.workers, self.threads, task, items)

    @property
    def _alone(self) -> bool:
        return self.workers == 1 and self.threads in (None, torch.get_num_threads())


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


@contextlib.contextmanager
def _threads(
    workers: int, threads: int | None, task: Callable[[Item], Result]
) -> Iterator[Schedule[Item, Future[Result], Result]]:
    """The schedule of tasks in threads, which end with the block."""
    run = Here.now().around(task)
    # A thread's own setting, but torch also hands the last one to threads that are new: put back in the end.
    before = torch.get_num_threads()
    begin = None if threads is None else partial(torch.set_num_threads, threads)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="farfield", initializer=begin)
    schedule: Schedule[Item, Future[Result], Result] = Schedule(
        # In a list, from which it is taken: the pool would keep the item a moment longer than its task.
        submit=lambda item: pool.submit(lambda box: run(box.pop()), [item]),
        wait=lambda futures: wait(futures, return_when=FIRST_COMPLETED).done,
        fetch=lambda future: future.result(),
        settle=lambda futures: None,
        under_way=lambda: pending_limit(workers),
        ahead=lambda: AHEAD * workers,
        failed=lambda future: future.exception() is not None,
        size=lambda future: 0 if future.exception() else bytes_of(future.result()),
    )
    try:
        yield schedule
    finally:
        # Reached by an error, an interrupt and a closed generator too: what waits is dropped, what runs may end.
        pool.shutdown(wait=True, cancel_futures=True)
        if threads is not None:
            torch.set_num_threads(before)


def _in_order(
    workers: int, threads: int | None, task: Callable[[Item], Result], items: Iterable[Item]
) -> Generator[Result, None, None]:
    with _threads(workers, threads, task) as schedule:
        yield from schedule.in_order(items)


def _as_ended(
    workers: int, threads: int | None, task: Callable[[Item], Result], items: Iterable[Item]
) -> Generator[tuple[int, Result], None, None]:
    with _threads(workers, threads, task) as schedule:
        yield from schedule.as_ended(items)
