"""What is prepared once and called often: tiles that stay where they are while a vector changes."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Generic, TypeVar, final

from farfield.engine._task import TrackedTask
from farfield.engine._tree import PairwiseTree
from farfield.errors import InvalidValueError

__all__ = ["KeptHere", "Resident"]

Item = TypeVar("Item")
Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Resident(ABC, Generic[Item, Argument, Result]):
    """Prepared items, each asked again and again with another argument; made by :meth:`Engine.resident`.

    ``prepare(item)`` gives a callable of an argument, and is called when the item is first needed, where it then
    stays. What it keeps is a cache and nothing more: a worker that dies is replaced and prepares its items anew.

    A context manager: at its end all that was prepared is dropped.

    Attributes
    ----------
    items
        In the order of the results.
    """

    items: tuple[Item, ...]

    @abstractmethod
    def run(self, argument: Argument) -> Generator[Result, None, None]:
        """prepare(item)(argument) for every item, in order."""

    @abstractmethod
    def close(self) -> None:
        """Drop what was prepared."""

    @final
    def reduce(self, argument: Argument, combine: Callable[[Result, Result], Result]) -> Result:
        """Combine prepare(item)(argument) over all items, in the order of :meth:`Engine.reduce`."""
        if not self.items:
            raise InvalidValueError(
                "A reduction needs at least one item, and there is none. Check what is passed."
            )
        tree: PairwiseTree[Result] = PairwiseTree(combine, None)
        with contextlib.closing(self.run(argument)) as results:
            for result in results:
                tree.push(result)
        return tree.total()

    def __enter__(self) -> Resident[Item, Argument, Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KeptHere(Resident[Item, Argument, Result]):
    """Items prepared in this process, and run as an engine runs any task."""

    def __init__(
        self,
        run: Callable[..., Generator[Any, None, None]],
        prepare: Callable[[Item], Callable[[Argument], Result]],
        items: tuple[Item, ...],
    ) -> None:
        self.items = items
        self._run = run
        self._prepare = prepare
        self._prepared: dict[int, Callable[[Argument], Result]] = {}

    def run(self, argument: Argument) -> Generator[Result, None, None]:
        """Results for an argument. See :meth:`Resident.run`."""

        def call(numbered: tuple[int, Item]) -> Result:
            number, item = numbered
            if number not in self._prepared:
                self._prepared[number] = self._prepare(item)
            return self._prepared[number](argument)

        def named(numbered: tuple[int, Item]) -> Item:
            return numbered[1]

        return self._run(TrackedTask(call, name=named), tuple(enumerate(self.items)))

    def close(self) -> None:
        """Drop what was prepared."""
        self._prepared.clear()
