"""Opening files from strangers: regular files only, and never more of them than was agreed to."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from farfield.errors import FarfieldError

__all__ = ["UnsafeFileError", "open_regular", "read_json", "read_regular"]

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


class UnsafeFileError(FarfieldError, ValueError):
    """A file is refused because it can't be read safely; the message says what was found in it."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; pipes, devices, sockets and folders are refused without waiting for them.

    Raises
    ------
    UnsafeFileError
        With what the path is instead of a file, or why it can't be opened.
    """
    shown = os.fspath(path)
    try:
        # Looked at first, because opening some devices does something. Without O_NONBLOCK, opening a pipe waits
        # for somebody who writes into it.
        _check(os.stat(path).st_mode, shown)
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except UnsafeFileError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnsafeFileError(f"{shown!r} can't be read: {reason}.") from error
    try:
        _check(os.fstat(descriptor).st_mode, shown)
    except UnsafeFileError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _check(mode: int, shown: str | bytes) -> None:
    if not stat.S_ISREG(mode):
        kind = next((words for test, words in _KINDS if test(mode)), "something else")
        raise UnsafeFileError(f"{shown!r} is {kind}, not a regular file, so farfield does not read it.")


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """All bytes of a regular file of at most ``limit`` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise UnsafeFileError(
                f"{os.fspath(path)!r} has {size:,} bytes; at most {limit:,} of such a file are read."
            )
        return file.read(limit)


def read_json(path: str | os.PathLike[str], limit: int = 1 << 30) -> Any:
    """The plain data in a JSON file; what is wrong with the file becomes one sentence.

    Raises
    ------
    UnsafeFileError
        If it is no regular file, too large, not UTF-8, not JSON or nested too deeply.
    """
    data = read_regular(path, limit)
    try:
        return json.loads(data)
    except RecursionError:
        raise UnsafeFileError(f"{Path(path).name!r} is nested too deeply to be read as JSON.") from None
    except ValueError as error:
        raise UnsafeFileError(f"{Path(path).name!r} can't be read as JSON: {error}.") from error
