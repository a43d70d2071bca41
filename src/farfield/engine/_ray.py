"""The engine of many machines, or of many processes on one: Ray."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar, final

from farfield.engine import _cluster as cluster
from farfield.engine._blocks import BlockRun, block_size
from farfield.engine._engine import Engine
from farfield.engine._here import Here
from farfield.engine._memory import parse_memory
from farfield.engine._packed import pack
from farfield.engine._resident import Resident
from farfield.engine._schedule import AHEAD, Schedule
from farfield.engine._task import TaskError
from farfield.engine._tree import aligned
from farfield.engine._worker import Keeper, Shared, join, run_leaf, run_task, taken
from farfield.errors import InvalidValueError

__all__ = ["RayEngine", "ray"]

Item = TypeVar("Item")
Argument = TypeVar("Argument")
Result = TypeVar("Result")

_LOOK = 5.0
"""Seconds between looks at how large the cluster is."""
_ALIVE = 2.0
"""Seconds without a result after which it is asked whether the cluster is still there."""
_GRACE = 10.0
"""Seconds that tasks under way have to end, once their results are not wanted."""


@final
@dataclass(frozen=True)
class RayEngine(Engine):
    """Run tasks in the workers of a Ray cluster; made by :func:`ray`.

    As a context manager it connects at once, and leaves at the end if it was not connected before. Otherwise the
    first run connects, and the connection stays until the process ends.

    Parameters
    ----------
    address, workers, threads, retries, store
        As in :func:`ray`.
    """

    address: str | None = None
    workers: int | None = None
    threads: int = 1
    retries: int = 3
    store: int | None = None
    _opened: list[bool] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (self.workers is not None and self.workers < 1) or self.threads < 1 or self.retries < 0:
            raise InvalidValueError(
                "There is at least one worker, with at least one thread, and tasks are retried 0 times or more; got "
                f"workers={self.workers}, threads={self.threads}, retries={self.retries}."
            )

    @property
    def memories(self) -> int:
        """All workers; connects. See :attr:`Engine.memories`."""
        return self._places(self._connect())

    def run(self, task: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Results of a task, in the order of the items. See :meth:`Engine.run`.

        The task goes to the object store once. Two items for each worker are under way at any time; results wait in
        the object store for the slow ones before them.
        """
        yield from self._tasks(task).in_order(items)

    def run_as_ended(
        self, task: Callable[[Item], Result], items: Iterable[Item]
    ) -> Generator[tuple[int, Result], None, None]:
        """(number, result) as they end. See :meth:`Engine.run_as_ended`."""
        yield from self._tasks(task).as_ended(items)

    def _tasks(self, task: Callable[[Item], Result]) -> Schedule[Item, Any, Result]:
        ray = self._connect()
        shared = self._put(ray, task)
        call = cluster.remote(run_task).options(**self._options())

        def submit(item: Item) -> tuple[object, Any]:
            return _name(task, item), call.remote(shared, pack(item, cluster.pickler()))

        watch = cluster.Watch(ray)
        return self._schedule(ray, watch, submit, self._room(ray, watch), AHEAD * self._places(ray))

    def run_blocks(
        self,
        task: Callable[[Item], Result],
        items: Sequence[Item],
        combine: Callable[[Result, Result], Result],
        *,
        first: int,
        tell: Callable[[], None],
    ) -> Generator[tuple[int, Result], None, None]:
        """Reductions of blocks, combined in the workers where there are many items. See :meth:`Engine.run_blocks`.

        Results stay where they are: what comes here of every item is whether it went well, and of every block one
        result. As many items as in :meth:`run` are under way.
        """
        ray = self._connect()
        largest = block_size(first + len(items))
        if largest == 1:
            yield from super().run_blocks(task, items, combine, first=first, tell=tell)
            return
        shared, joined = self._put(ray, task), self._put(ray, combine)
        leaf = cluster.remote(run_leaf).options(**self._options(), num_returns=2)
        both = cluster.remote(join).options(**self._options())
        watch = cluster.Watch(ray)
        run = BlockRun(
            leaf=lambda item: leaf.remote(shared, item),
            join=lambda left, right: both.remote(joined, left, right),
            fetch=lambda reference, name: self._fetched(ray, watch, reference, name),
            wait=lambda references: _ended(ray, watch, references),
            settle=lambda references: _settle(ray, watch, references),
            limit=self._room(ray, watch),
            ahead=AHEAD * self._places(ray),
        )
        packed = ((_name(task, item), pack(item, cluster.pickler())) for item in items)
        yield from run.run(packed, aligned(first, first + len(items), largest), tell, first=first)

    def resident(
        self, prepare: Callable[[Item], Callable[[Argument], Result]], items: Iterable[Item]
    ) -> Resident[Item, Argument, Result]:
        """Items prepared in actors, each of which owns some of them. See :meth:`Engine.resident`.

        Actors hold their cores until the end: run nothing else meanwhile.
        """
        return _KeptInActors(self, prepare, tuple(items))

    def __enter__(self) -> RayEngine:
        self._opened.append(not cluster.is_connected())
        self._connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A cluster that has gone can't be left: Ray would wait for it.
        if self._opened.pop() and not isinstance(error, cluster.ClusterLostError):
            cluster.disconnect()

    # ------------------------------------------------------------------ how

    def _connect(self) -> Any:
        return cluster.connect(self.address, workers=self.workers, threads=self.threads, store=self.store)

    def _options(self) -> dict[str, Any]:
        return {"num_cpus": self.threads, "max_retries": self.retries, "retry_exceptions": False}

    def _put(self, ray: Any, task: Callable[..., Any]) -> Any:
        return ray.put(pack(Shared(task, Here.now(), self.threads), cluster.pickler()))

    def _places(self, ray: Any) -> int:
        """Tasks that run at once."""
        room = max(1, cluster.places(ray, self.threads))
        return room if self.workers is None else min(self.workers, room)

    def _room(self, ray: Any, watch: cluster.Watch) -> Callable[[], int]:
        """How many tasks may be under way or waiting, asked again now and then: a cluster grows while it is used.

        One waits behind each that runs, which is also what makes a cluster grow; unless it would start on a core that
        is to be left free.
        """
        known, until = 0, 0.0

        def limit() -> int:
            nonlocal known, until
            if time.monotonic() >= until:
                watch.look(now=True)
                places = self._places(ray)
                spare = self.workers is not None and cluster.places(ray, self.threads) > places
                known, until = places if spare else 2 * places, time.monotonic() + _LOOK
            return known

        return limit

    def _schedule(
        self,
        ray: Any,
        watch: cluster.Watch,
        submit: Callable[[Item], tuple[object, Any]],
        limit: Callable[[], int],
        ahead: int,
    ) -> Schedule[Item, Any, Any]:
        """Results stay in the object store, which spills to disk, until it is their turn."""
        names: dict[Any, object] = {}

        def begin(item: Item) -> Any:
            name, reference = submit(item)
            names[reference] = name
            return reference

        def fetch(reference: Any) -> Any:
            name = names.pop(reference)
            return taken(self._fetched(ray, watch, reference, name), name)

        return Schedule(
            submit=begin,
            wait=lambda references: _ended(ray, watch, references),
            fetch=fetch,
            settle=lambda references: _settle(ray, watch, references),
            under_way=limit,
            ahead=lambda: max(ahead, limit()),
        )

    def _fetched(self, ray: Any, watch: cluster.Watch, reference: Any, name: object) -> Any:
        try:
            _ended(ray, watch, [reference])
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            # A task's own errors come back as values: the worker did not get so far.
            raise TaskError(
                name,
                f"a worker could not run it: {type(error).__name__}. farfield, in this version, must be installed on "
                f"every machine. {error}",
            ) from error
        except ray.exceptions.OutOfMemoryError as error:
            raise TaskError(name, _too_large(str(error))) from error
        except ray.exceptions.RayError as error:
            watch.look()
            times = "once" if self.retries == 0 else f"{self.retries + 1} times"
            raise TaskError(
                name,
                f"its worker was lost, {times} (retries={self.retries}): {type(error).__name__}. It may have been "
                "killed for the memory it took; a task that writes to its operands, which are read-only in a "
                f"worker, ends so too. {error}",
            ) from error


class _KeptInActors(Resident[Item, Argument, Result]):
    """Items prepared in actors."""

    def __init__(
        self,
        engine: RayEngine,
        prepare: Callable[[Item], Callable[[Argument], Result]],
        items: tuple[Item, ...],
    ) -> None:
        self.items = items
        self._engine = engine
        self._ray = ray = engine._connect()
        count = min(engine._places(ray), max(1, len(items)))
        self._shared = engine._put(ray, prepare)
        options = {
            "num_cpus": engine.threads,
            "max_restarts": engine.retries,
            "max_task_retries": engine.retries,
        }
        make = cluster.remote(Keeper).options(**options)
        self._actors = [make.remote() for _ in range(count)]
        self._packed = [pack(item, cluster.pickler()) for item in items]

    def run(self, argument: Argument) -> Generator[Result, None, None]:
        """Results for an argument. See :meth:`Resident.run`."""
        sent = self._ray.put(pack(argument, cluster.pickler()))

        def submit(number: int) -> tuple[object, Any]:
            actor = self._actors[owner(number, len(self._actors))]
            return self.items[number], actor.call.remote(number, self._packed[number], sent, self._shared)

        # An owner's turn comes every second or, at the ends of a sweep, twice in a row: more must wait than for run.
        waiting = 4 * len(self._actors)
        watch = cluster.Watch(self._ray)
        schedule = self._engine._schedule(self._ray, watch, submit, lambda: waiting, waiting)
        return schedule.in_order(range(len(self.items)))

    def close(self) -> None:
        """End the actors."""
        if self._ray.is_initialized():
            for actor in self._actors:
                self._ray.kill(actor)
        self._actors = []


def owner(number: int, workers: int) -> int:
    """Whose an item is: 0, 1, …, w − 1, w − 1, …, 1, 0, 0, 1, …, so that items of falling size are shared evenly."""
    sweep, place = divmod(number, workers)
    return place if sweep % 2 == 0 else workers - 1 - place


def ray(
    address: str | None = None,
    *,
    workers: int | None = None,
    threads: int = 1,
    retries: int = 3,
    store: int | str | None = None,
) -> RayEngine:
    """The engine that runs tasks on a Ray cluster; needs the extra ``ray``.

    A process that has a cluster already keeps using it, whoever connected. The operands of a task lie in shared
    memory, once on each machine, and are read-only there. A checkpoint's folder must be seen from every machine.

    Parameters
    ----------
    address
        Address of a cluster: ``"host:port"``, or ``"auto"`` for the one this machine belongs to. None is the
        environment's ``RAY_ADDRESS``, or else a cluster started on this machine for this process, which listens on
        127.0.0.1 alone.
    workers
        Tasks at once; None is as many as there are cores for.
    threads
        How many of torch's threads each task has, and the cores that are reserved for it. Results are the same bits
        as ``local``'s if that computes with as many: ``torch.set_num_threads(threads)``.
    retries
        How often a task is run again whose worker was lost. A task that raises is not; one that is ended for the
        memory it takes is run three times more.
    store
        Bytes of the object store, if a cluster is started; beyond, objects are spilled to disk.

    Examples
    --------
    >>> ray(workers=2)
    RayEngine(address=None, workers=2, threads=1, retries=3, store=None)
    """
    return RayEngine(address, workers, threads, retries, None if store is None else parse_memory(store))


def _ended(ray: Any, watch: cluster.Watch, references: list[Any]) -> list[Any]:
    """Those whose tasks have ended, of which there is at least one: waits for it, while the cluster is there."""
    ready: list[Any] = []
    while not ready:
        watch.look()
        ready = ray.wait(references, num_returns=1, timeout=_ALIVE)[0]
    # Asked again, Ray may not have it at hand: a full store spills results to disk at any moment.
    now = ray.wait(references, num_returns=len(references), timeout=0)[0]
    return [*ready, *(reference for reference in now if reference not in ready)]


def _too_large(said: str) -> str:
    """What Ray says of a task that it ended for memory, in a sentence."""
    took = re.search(r"actual memory used=([\d.]+ ?[A-Za-z]+)", said)
    had = re.search(r"was ([\d.]+ ?[A-Za-z]+) / ([\d.]+ ?[A-Za-z]+)", said)
    words = f"its worker was ended for memory, {cluster.MEMORY_RETRIES + 1} times"
    words += f"; the last time it had taken {took[1]}" if took else ""
    words += f", when {had[1]} of its machine's {had[2]} were in use" if had else ""
    return (
        f"{words}. Make the tasks smaller (memory=), or have fewer at once on a machine (workers=, or threads= for "
        "more cores a task)."
    )


def _settle(ray: Any, watch: cluster.Watch, references: list[Any]) -> None:
    """Let tasks end, for a while.

    Reached by an error, an interrupt and a closed generator too: what was submitted ends before another run uses the
    same checkpoint. Not by ray.cancel: if a task ends at that moment, Ray ends this process.
    """
    if references and watch.is_there():
        ray.wait(references, num_returns=len(references), timeout=_GRACE)


def _name(task: Callable[[Any], Any], item: object) -> object:
    named = getattr(task, "named", None)
    return item if named is None else named(item)
