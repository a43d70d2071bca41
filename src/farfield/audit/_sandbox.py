"""A process without network and with a read-only file system: what Linux offers to every user, set up from inside.

A worker runs this text by itself before it imports anything else, because a process with threads may not do it: it
imports the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["enter", "trouble"]

_NEW = {
    "user": 0x10000000,
    "mounts": 0x00020000,
    "network": 0x40000000,
    "processes": 0x20000000,
    "ipc": 0x08000000,
}
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_FLAGS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
_PSEUDO = {
    "proc",
    "sysfs",
    "devpts",
    "mqueue",
    "cgroup",
    "cgroup2",
    "devtmpfs",
    "securityfs",
    "debugfs",
    "tracefs",
}
"""File systems that hold nothing of anybody's; some refuse to be made read-only."""
_NO_NEW_PRIVILEGES, _DROP, _DEATH_SIGNAL, _CAPSET = 38, 24, 1, {"x86_64": 126, "aarch64": 91}
_LAST_CAPABILITY = 40


def enter(writable: Sequence[str]) -> None:
    """Go into the sandbox; raise OSError where the system does not permit it.

    A new network namespace has no way out. Every file system is made read-only but the folders given; what is
    temporary goes to memory. Processes that are started here end with this one, however they hide. In the end all
    privileges are given up, so that nothing of this can be undone.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(what: str, result: int) -> None:
        if result != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"{what}: {os.strerror(code)}")

    user, group = os.getuid(), os.getgid()
    call("new namespaces", libc.unshare(sum(_NEW.values())))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)

    def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
        words = [None if w is None else os.fsencode(w) for w in (source, target, kind)]
        data = None if options is None else options.encode()
        call(f"mount {target}", libc.mount(*words, ctypes.c_ulong(flags), data))

    mount("none", "/", None, _RECURSIVE | _PRIVATE)
    mount("none", "/dev/shm", "tmpfs", 2 | 4, "size=256m")
    kept = [os.path.realpath(folder) for folder in writable]
    for folder in kept:
        mount(folder, folder, None, _BIND | _RECURSIVE)
    with open("/proc/self/mountinfo") as file:
        lines = file.read().splitlines()
    for line in lines:
        before, _, after = line.partition(" - ")
        place, options = before.split()[4].encode().decode("unicode_escape"), before.split()[5].split(",")
        inside = any(place == folder or place.startswith(f"{folder}/") for folder in kept)
        if inside or place == "/dev/shm" or "ro" in options:
            continue
        flags = sum(_FLAGS.get(option, 0) for option in options)
        try:
            mount("none", place, None, _REMOUNT | _BIND | _READ_ONLY | flags)
        except OSError:
            # Hidden under another one, or nothing that could be written to.
            if (
                after.split()[0] not in _PSEUDO
                and os.access(place, os.W_OK)
                and not os.statvfs(place).f_flag & 1
            ):
                raise
    os.environ["TMPDIR"] = "/dev/shm"
    libc.prctl(_DEATH_SIGNAL, signal.SIGKILL)
    child = os.fork()  # the first of the new process numbers: when it ends, all end
    if child:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(
                status
            ) != signal.SIGKILL else None
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.WEXITSTATUS(status))
    for capability in range(_LAST_CAPABILITY + 1):
        libc.prctl(_DROP, capability, 0, 0, 0)
    call("no new privileges", libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call("give up privileges", libc.syscall(_CAPSET[os.uname().machine], header, nothing))


def trouble() -> str | None:
    """Why there is no sandbox on this system; None if there is."""
    import subprocess
    from pathlib import Path

    if sys.platform != "linux":
        return f"it is made of what Linux offers, and this is {sys.platform}"
    code = Path(__file__).read_text(encoding="utf-8") + "\nenter(())\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]
