"""Faults that random programs found and that wait to be mended, each with the smallest program that shows it.

Entries go when their fault is mended: a test that expects them to fail says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from programs.generator import Source

__all__ = ["KNOWN", "Known"]


@dataclass(frozen=True)
class Known:
    """A fault class: its kind, what its text looks like, and a program."""

    name: str
    kind: str
    pattern: str
    shapes: tuple[tuple[int, ...], ...]
    parts: tuple[str, ...]
    lines: tuple[str, ...]
    bounded: bool | None = True
    single_row: bool = False
    steady: bool = True
    """Shows in every run. False where it takes a search whose length the clock decides."""

    def covers(self, kind: str, text: str) -> bool:
        """Whether a fault is of this class."""
        return kind == self.kind and re.search(self.pattern, text) is not None

    def source(self) -> Source:
        """The program."""
        size = {True: "bounded", False: "grows", None: "open"}[self.bounded]
        names = ("x", "y", "z")[: len(self.shapes)]
        return Source(names, self.shapes, self.parts, self.lines, size, False, self.single_row)  # type: ignore[arg-type]


KNOWN: tuple[Known, ...] = ()
