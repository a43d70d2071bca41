"""A file of somebody else's, looked at before it is opened: only regular files are."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from farfield.errors import FarfieldError

__all__ = ["NotRegularFileError", "read_digest"]

_KINDS = (
    (stat.S_ISFIFO, "a named pipe (FIFO)"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)


class NotRegularFileError(FarfieldError, OSError):
    """A path leads to a pipe, a device or a socket, which may never end or do something when it is opened."""

    def __str__(self) -> str:
        return str(self.args[0])


def read_digest(path: str | os.PathLike[str]) -> tuple[int, str]:
    """Bytes and SHA-256 of a regular file; a link to one is one.

    Raises
    ------
    OSError
        If there is none, or it can't be read; :class:`NotRegularFileError` for a pipe, a device or a socket, which
        are not opened.
    """
    # Before it is opened: opening some devices does something. And without waiting, should it be another one by then.
    _check(os.stat(path), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        _check(os.fstat(descriptor), path)
        digest, size = hashlib.sha256(), 0
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _check(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    mode = found.st_mode
    if stat.S_ISREG(mode):
        return
    name = Path(path).name
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, f"A checkpoint is a file, and this is a directory: {name!r}")
    kind = next((words for test, words in _KINDS if test(mode)), "no regular file")
    raise NotRegularFileError(f"A checkpoint is a regular file, and {name!r} is {kind}. It was not opened.")
