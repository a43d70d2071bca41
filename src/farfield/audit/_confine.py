"""Limits that a worker process sets itself before it reads anything of somebody else's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

__all__ = ["available_memory", "confine"]

_FILE = 1 << 31
"""Bytes of the largest file that a worker may write: a model that prints without end does not fill the disk."""
_PR_SET_PDEATHSIG = 1


def confine(memory: int | None) -> None:
    """Limit this process: so many bytes of address space beside what it has, no core dumps, no file above 2 GiB.

    On Linux it is also ended by the system when the thread that started it is. What the system does not offer is
    left out: a limit is there for accidents and hostile files, and the time limit holds without it.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        import resource
    except ImportError:  # pragma: no cover (Windows)
        return
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: _FILE}
    if memory is not None and (used := _address_space()) is not None:
        limits[resource.RLIMIT_AS] = used + memory
    for kind, limit in limits.items():
        with contextlib.suppress(ValueError, OSError):
            hard = resource.getrlimit(kind)[1]
            lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (lowest, lowest))


def available_memory() -> int | None:
    """Bytes that this machine has, or the group of processes that this one belongs to; None if that is not known."""
    found = []
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in _groups():
        with contextlib.suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return min((size for size in found if size > 0), default=None)


def _groups() -> list[Path]:
    """Files that hold a limit of memory, of both kinds of control groups."""
    root = Path("/sys/fs/cgroup")
    found = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if not controllers:
                found.append(root / place.strip("/") / "memory.max")
            elif "memory" in controllers.split(","):
                found.append(root / "memory" / place.strip("/") / "memory.limit_in_bytes")
    return found


def _address_space() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
