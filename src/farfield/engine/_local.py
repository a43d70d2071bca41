"""The engine of one machine: the calling thread, or a few threads beside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, final

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
        1 runs every task in the calling thread, where torch's own threads share the work of each operation. More run
        that many tasks at once, each in a thread and with as many torch threads of its own as a new thread gets: it
        pays for tasks that wait or are made of small operations, with ``torch.set_num_threads(1)``.
    """

    workers: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InvalidValueError(f"There is at least one worker, got workers={self.workers}.")

    @property
    def sharing(self) -> int:
        """All workers. See :attr:`Engine.sharing`."""
        return self.workers

    def run(self, task: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Results of a task, in the order of the items. See :meth:`Engine.run`.

        An interrupt stops it once the tasks that are under way have ended; no other is begun.
        """
        return _one_by_one(task, items) if self.workers == 1 else _in_threads(self.workers, task, items)


def local(workers: int = 1) -> LocalEngine:
    """The engine that runs everything on this machine.

    Examples
    --------
    >>> local().reduce(len, ["a", "bc", "def"], lambda left, right: left + right)
    6
    """
    return LocalEngine(workers)


def _one_by_one(task: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
    # Through the built-in map, because a variable of a for-loop would keep the last item alive.
    yield from map(task, items)


def _in_threads(
    workers: int, task: Callable[[Item], Result], items: Iterable[Item]
) -> Generator[Result, None, None]:
    run = Here.now().around(task)
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="farfield")

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
