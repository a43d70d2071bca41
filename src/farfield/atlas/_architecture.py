"""An architecture of the atlas: a class of a public library, by name."""

from __future__ import annotations

from dataclasses import dataclass

from farfield.errors import FarfieldError

__all__ = ["Architecture", "NotBuiltError"]


class NotBuiltError(FarfieldError, RuntimeError):
    """The architecture can't be built small, or runs on no input that was tried."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One class of a library.

    Parameters
    ----------
    library, name
        The package, and the class or the name that the package builds it by.
    family
        What the library calls its kind: ``bert``, ``resnet``.
    task
        What it is for.
    """

    library: str
    name: str
    family: str
    task: str
