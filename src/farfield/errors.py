"""Errors that teach: the invariant, what was received, where, and what to do about it.

Every error farfield raises on purpose derives from :class:`FarfieldError`, so a caller can catch the
library's own refusals apart from bugs. Where a built-in class says the same thing (a bad value, an unknown
name), the error derives from that class too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "FarfieldError",
    "InvalidValueError",
    "MissingExtraError",
    "ModelCodeError",
    "PrecisionError",
    "UnknownNameError",
]


class FarfieldError(Exception):
    """Base of every error that farfield raises on purpose."""


class InvalidValueError(FarfieldError, ValueError):
    """A value breaks an invariant; the message names the invariant, the value and the likely fix."""


class PrecisionError(FarfieldError, ArithmeticError):
    """A number could not be computed to the precision asked for; the message gives the one reached."""


class ModelCodeError(FarfieldError, RuntimeError):
    """The code that makes a model raised an error of its own; the message names it and the line."""


class UnknownNameError(FarfieldError, KeyError):
    """A name is not registered; the message lists the near matches.

    Examples
    --------
    >>> print(UnknownNameError("activation", "rellu", ["relu", "gelu"]))
    There is no activation named 'rellu'. Did you mean 'relu' or 'gelu'? Known: gelu, relu.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
        hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
        self.message = f"There is no {kind} named {name!r}.{hint} Known: {', '.join(known)}."
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class MissingExtraError(FarfieldError, ImportError):
    """An optional dependency is needed and absent; the message gives the command that installs it.

    Examples
    --------
    >>> print(MissingExtraError("Drawing a figure", "matplotlib", "plot"))
    Drawing a figure needs matplotlib, which is not installed. Run: pip install 'farfield[plot]'
    """

    def __init__(self, purpose: str, package: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed. Run: pip install 'farfield[{extra}]'"
        )
