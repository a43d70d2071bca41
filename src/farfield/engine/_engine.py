"""What an engine does: map, reduce, fill a matrix, stream. One method says where the work runs."""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from typing import Any, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from farfield.engine._checkpoint import Checkpoint
from farfield.engine._fill import WriteTask, as_matrix, check_tiles, write_tile
from farfield.engine._resident import KeptHere, Resident
from farfield.engine._task import NumberedBatches, NumberedTask, TrackedTask
from farfield.engine._tile import Tile
from farfield.engine._tree import PairwiseTree
from farfield.errors import InvalidValueError

__all__ = ["Engine", "Progress"]

Item = TypeVar("Item")
Argument = TypeVar("Argument")
Result = TypeVar("Result")

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (done, total), first with (0, total), in the caller's thread."""


class Engine(ABC):
    """Where work runs.

    A *task* is a picklable callable of one item whose result depends on the item alone, so that it may run anywhere,
    and twice. Results come in the order of the items and are combined in an order fixed by their number. Which engine
    ran them, and with how many workers, does not show in a single bit, as long as a task itself computes with the
    same number of torch threads.

    A task that raises ends the run with :class:`TaskError`, which names the item. What was finished by then is in the
    checkpoint, if there is one.

    Tasks end in any order. Where results are wanted in order, those that are finished wait for the slow ones before
    them, in a buffer that is bounded in number and in bytes (:class:`Schedule`).

    A subclass implements :meth:`run`, and :meth:`run_as_ended` if it has several workers. It overrides
    :meth:`resident` if its workers are other processes, and :attr:`sharing` if several tasks run in this one.

    Examples
    --------
    >>> from farfield.engine import local
    >>> list(local().map(abs, [-1, 2]))
    [(-1, 1), (2, 2)]
    """

    @property
    def sharing(self) -> int:
        """How many tasks at once share the memory of the calling process, and so a budget for it.

        1 where workers have memory of their own: the budget is then each worker's, and sizes that follow from it
        are the same as for one task after the other.
        """
        return 1

    @property
    def in_process(self) -> bool:
        """Whether tasks run in the calling process, and so may write to its memory."""
        return False

    @property
    def memories(self) -> int:
        """How many processes with memory of their own there are to keep things in: see :meth:`resident`."""
        return 1

    @abstractmethod
    def run(self, task: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Results of a task, in the order of the items.

        Takes an item only when there is room for its result, so ``items`` may be endless. Closing the iterator stops
        the work; an error of the task ends it and passes through.
        """

    def run_as_ended(
        self, task: Callable[[Item], Result], items: Iterable[Item]
    ) -> Generator[tuple[int, Result], None, None]:
        """(number of the item, result of the task) as tasks end; the first error passes through at once.

        The default is in order, as :meth:`run` gives them.
        """
        with contextlib.closing(self.run(task, items)) as results:
            yield from enumerate(results)

    def run_blocks(
        self,
        task: Callable[[Item], Result],
        items: Sequence[Item],
        combine: Callable[[Result, Result], Result],
        *,
        first: int,
        tell: Callable[[], None],
    ) -> Generator[tuple[int, Result], None, None]:
        """(size, reduction) of successive blocks of items, each a whole subtree of the reduction; see :meth:`reduce`.

        The default gives every result by itself, a block of one. An engine whose workers hold the results may combine
        them there, in blocks from :func:`aligned`: the bits are the same.

        Parameters
        ----------
        task, items, combine
            As in :meth:`reduce`.
        first
            The number of the first of the items in the whole reduction.
        tell
            Called for every item that is finished.
        """
        with contextlib.closing(self.run(task, items)) as results:
            for result in results:
                yield 1, result
                tell()

    def resident(
        self, prepare: Callable[[Item], Callable[[Argument], Result]], items: Iterable[Item]
    ) -> Resident[Item, Argument, Result]:
        """Items that are prepared once and called with one argument after the other, where they were prepared.

        For iterations: the tiles of a matrix stay with their workers, and a vector goes there and comes back.

        Parameters
        ----------
        prepare
            A picklable callable of one item that gives a callable of one argument, whose result depends on item and
            argument alone. Not to be written to: the argument, and what ``prepare`` holds.
        items
            Any number.

        Examples
        --------
        >>> from farfield.engine import local
        >>> with local().resident(lambda power: lambda base: base**power, [1, 2, 3]) as powers:
        ...     list(powers.run(2)), list(powers.run(10))
        ([2, 4, 8], [10, 100, 1000])
        """
        return KeptHere(self.run, prepare, tuple(items))

    @final
    def map(
        self,
        task: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        checkpoint: Checkpoint | None = None,
        progress: Progress | None = None,
        ordered: bool = True,
    ) -> Generator[tuple[Item, Result], None, None]:
        """(item, task(item)) for every item, as they are finished.

        Parameters
        ----------
        task
            A picklable callable of one item.
        items
            Anything a :func:`fingerprint` takes, if there is a checkpoint. Taken as there is room for their results,
            so they may come from a generator of any length.
        checkpoint
            Where finished results are kept; the task is not called for those that are there.
        progress
            Told of every result; where ``items`` has no length, the total is what is done so far.
        ordered
            In the order of the items; False gives each result as soon as it is there, and the first error.
        """
        total = len(items) if isinstance(items, Sized) else None
        taken: dict[int, Item] = {}

        def noted() -> Iterator[Item]:
            for number, item in enumerate(items):
                taken[number] = item
                yield item

        tracked = TrackedTask(task, checkpoint)
        # The default of this class is in order, whatever the engine.
        found = (
            Engine.run_as_ended(self, tracked, noted()) if ordered else self.run_as_ended(tracked, noted())
        )
        with _held(checkpoint), contextlib.closing(found) as results:
            _tell(progress, 0, total or 0)
            for done, (number, result) in enumerate(results, start=1):
                _tell(progress, done, done if total is None else total)
                yield taken.pop(number), result

    @final
    def reduce(
        self,
        task: Callable[[Item], Result],
        items: Iterable[Item],
        combine: Callable[[Result, Result], Result],
        *,
        checkpoint: Checkpoint | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Combine task(item) over all items, in pairs, then pairs of pairs.

        The order depends only on the number n of items. At most log₂ n + 1 partial results are held, in memory and in
        the checkpoint. Of 128 items or more, workers of a cluster combine blocks among themselves, and at most 128 +
        log₂ n results come here. Rounding errors of a sum grow as log₂ n, not as n.

        Parameters
        ----------
        task
            A picklable callable of one item.
        items
            At least one.
        combine
            Of an earlier and a later partial result, in this order; it may overwrite the earlier one.
        checkpoint
            Where partial results are kept; the task is not called for the items they cover.
        progress
            Told of every result.

        Examples
        --------
        >>> from farfield.engine import local
        >>> local().reduce(str, range(5), "({}{})".format)
        '(((01)(23))4)'
        """
        with _held(checkpoint):
            return self._reduce(task, tuple(items), combine, checkpoint, progress)

    def _reduce(
        self,
        task: Callable[[Item], Result],
        todo: tuple[Item, ...],
        combine: Callable[[Result, Result], Result],
        checkpoint: Checkpoint | None,
        progress: Progress | None,
    ) -> Result:
        tree = PairwiseTree(combine, checkpoint)
        if tree.count > len(todo):
            raise _longer_before(tree.count, len(todo))
        finished = itertools.count(tree.count)

        def tell() -> None:
            _tell(progress, next(finished), len(todo))

        tell()
        blocks = self.run_blocks(TrackedTask(task), todo[tree.count :], combine, first=tree.count, tell=tell)
        with contextlib.closing(blocks):
            for size, result in blocks:
                tree.push(result, size)
        return _total(tree)

    @final
    def stream(
        self,
        batches: Iterable[Item],
        task: Callable[[Item], Result],
        combine: Callable[[Result, Result], Result],
        *,
        checkpoint: Checkpoint | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Combine task(batch) over a stream of unknown length, in one pass.

        As :meth:`reduce`, bit for bit, but a batch is taken from the stream only when there is room for it and
        dropped once its result is there: one at a time with one worker, two for each of several.

        Parameters
        ----------
        batches
            At least one. Read in the calling thread.
        task, combine
            As in :meth:`reduce`.
        checkpoint
            As in :meth:`reduce`. The stream must give the same batches again: those already reduced are read and
            dropped.
        progress
            Told of every batch; where ``batches`` has no length, the total is what is done so far.
        """
        with _held(checkpoint):
            return self._stream(batches, task, combine, checkpoint, progress)

    def _stream(
        self,
        batches: Iterable[Item],
        task: Callable[[Item], Result],
        combine: Callable[[Result, Result], Result],
        checkpoint: Checkpoint | None,
        progress: Progress | None,
    ) -> Result:
        tree = PairwiseTree(combine, checkpoint)
        total = len(batches) if isinstance(batches, Sized) else None
        source = iter(batches)
        skipped = sum(1 for _ in itertools.islice(source, tree.count))
        if skipped < tree.count:
            raise _longer_before(tree.count, skipped)
        _tell(progress, tree.count, tree.count if total is None else total)
        numbered = NumberedBatches(source, tree.count)
        with contextlib.closing(self.run(NumberedTask(task), numbered)) as results:
            for result in results:
                tree.push(result)
                _tell(progress, tree.count, tree.count if total is None else total)
        return _total(tree)

    @final
    def fill(
        self,
        out: Tensor | NDArray[Any],
        task: Callable[[Tile], Tensor],
        tiles: Iterable[Tile],
        *,
        symmetric: bool = False,
        checkpoint: Checkpoint | None = None,
        progress: Progress | None = None,
    ) -> Tensor:
        """Write task(tile) into its place in a matrix, for every tile.

        Parameters
        ----------
        out
            Shape (..., rows, columns): a tensor, or an array such as a ``numpy.memmap``, written in place. Entries
            that no tile covers stay as they are.
        task
            Gives a tensor of the shape of its tile, after the leading axes of ``out`` if any, and of the dtype of
            ``out``, on any device. One with a method ``write(tile, out)`` writes into ``out`` itself where it runs in
            this process and there is no checkpoint.
        tiles
            From :func:`tiles`.
        symmetric
            Mirror every tile in the diagonal, so that ``out`` is symmetric to the last bit; of a tile on the diagonal
            the upper part counts. The tiles lie on or above the diagonal.
        checkpoint, progress
            As in :meth:`map`.

        Returns
        -------
        Tensor
            ``out``, as a tensor that shares its memory.

        Examples
        --------
        >>> import torch
        >>> from farfield.engine import local, tiles
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> product = lambda tile: x[tile.row_slice] @ x[tile.column_slice].mT
        >>> local().fill(torch.empty(3, 3), product, tiles(3, height=2, symmetric=True), symmetric=True)
        tensor([[1., 2., 3.],
                [2., 4., 6.],
                [3., 6., 9.]])
        """
        todo = tuple(tiles)
        matrix = as_matrix(out)
        check_tiles(matrix, todo, symmetric)
        if hasattr(task, "write") and self.in_process and checkpoint is None and matrix.dim() == 2:
            written = WriteTask(task, matrix, symmetric)
            for _ in self.map(written, todo, progress=progress, ordered=False):
                pass
            if isinstance(out, np.memmap):
                out.flush()
            return matrix
        found = self.map(task, todo, checkpoint=checkpoint, progress=progress, ordered=False)
        with contextlib.closing(found) as results:
            for tile, result in results:
                write_tile(matrix, tile, result, symmetric)
        if isinstance(out, np.memmap):
            out.flush()
        return matrix


def _held(checkpoint: Checkpoint | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if checkpoint is None else checkpoint.locked()


def _tell(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)


def _total(tree: PairwiseTree[Result]) -> Result:
    if tree.count == 0:
        raise InvalidValueError(
            "A reduction needs at least one item, and there is none. Check what is passed."
        )
    return tree.total()


def _longer_before(stored: int, given: int) -> InvalidValueError:
    return InvalidValueError(
        f"The checkpoint holds the reduction of the first {stored} items, and now there are only {given}: the items "
        "are not those it was made with. Let the fingerprint say which items there are, and give another folder."
    )
