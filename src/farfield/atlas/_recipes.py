"""Architectures that are written down one by one: a name, and a function that makes the model and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from farfield.atlas._architecture import Architecture, NotBuiltError

__all__ = ["Recipes"]

Make = Callable[[], tuple[nn.Module, Any]]


class Recipes:
    """The recipes of one library."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._made: dict[str, tuple[Architecture, Make]] = {}

    def add(self, name: str, family: str, task: str, make: Make) -> None:
        """One architecture; ``make`` imports the library when it is called."""
        self._made[name] = (Architecture(self._library, name, family, task), make)

    def architectures(self) -> Iterator[Architecture]:
        """Every one, in the order in which they were added."""
        yield from (architecture for architecture, _ in self._made.values())

    def build(self, name: str, family: str) -> tuple[nn.Module, Any]:
        """The model and inputs for it.

        Raises
        ------
        NotBuiltError
            With what the library said.
        """
        try:
            return self._made[name][1]()
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            raise NotBuiltError(f"{type(error).__name__}: {said}") from error
