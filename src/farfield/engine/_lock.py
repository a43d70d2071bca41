"""One run at a time in a folder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from farfield.errors import FarfieldError

__all__ = ["FolderInUseError", "hold_folder"]

_NAME = ".run.lock"
"""Hidden: readers of a folder of Parquet files pass it over."""


class FolderInUseError(FarfieldError, RuntimeError):
    """Another run is using a folder; the message says which."""


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold a folder for one run, by a lock on a file in it that the system lifts when the process ends.

    Where the file system knows no locks, as some network file systems do not, nothing is held.

    Raises
    ------
    FolderInUseError
        If another run holds it, here or in another process of a machine that shares the lock.
    """
    try:
        import fcntl
    except ImportError:  # pragma: no cover (Windows)
        yield
        return
    descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUseError(
                f"Another run is using {folder}{_holder(descriptor)}. Wait until it has ended, or give this one a "
                "folder of its own."
            ) from None
        except OSError:  # no locks there
            yield
            return
        os.ftruncate(descriptor, 0)
        os.pwrite(
            descriptor, json.dumps({"process": os.getpid(), "machine": socket.gethostname()}).encode(), 0
        )
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return f" (process {int(found['process'])} on {str(found['machine'])[:80]})"
    except (ValueError, KeyError, TypeError, OSError):
        return ""
