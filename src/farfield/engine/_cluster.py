"""Ray itself: found, started on this machine or joined, and left as it was."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from farfield.errors import FarfieldError, InvalidValueError, MissingExtraError

__all__ = [
    "MEMORY_RETRIES",
    "ClusterLostError",
    "Watch",
    "compare_versions",
    "connect",
    "disconnect",
    "is_connected",
    "pickler",
    "places",
    "remote",
]

_PATIENCE = 120.0
"""Seconds in which the first worker of a cluster may come."""
_BETWEEN = 1.0
"""Seconds between two looks at whether the cluster is there."""
MEMORY_RETRIES = 3
"""How often a task is run again that was ended for the memory it took."""
_MEMORY_RETRIES = "RAY_task_oom_retries"
_AGAIN = (
    "What was finished is in the checkpoint, if there is one. Start the cluster again, in a new process, and run the "
    "same call to go on."
)
_VERSIONS = """
def versions():
    import platform
    from importlib import metadata
    found = {"python": platform.python_version(), "farfield": None, "torch": None, "numba": None}
    for name in ("farfield", "torch"):
        try:
            found[name] = str(__import__(name).__version__)
        except ImportError:
            pass
    try:
        found["numba"] = metadata.version("numba")
    except metadata.PackageNotFoundError:
        pass
    return found
"""
_SILENT = "RAY_USAGE_STATS_ENABLED"
"""Ray reports its use to its makers unless this is 0."""


class ClusterLostError(FarfieldError, RuntimeError):
    """The cluster is not there any more: its head, or Ray's own process on this machine. The message says which."""


def _ray() -> Any:
    # Ray tries again without end what it has killed for memory, unless this says otherwise when it is imported.
    os.environ.setdefault(_MEMORY_RETRIES, str(MEMORY_RETRIES))
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("The engine 'ray'", "ray", "ray") from error
    return ray


def is_connected() -> bool:
    """Whether this process has a cluster."""
    return bool(_ray().is_initialized())


def connect(address: str | None, *, workers: int | None, threads: int, store: int | None) -> Any:
    """Ray, with a cluster: the one this process has, else the one at the address, else one started here.

    One that is started here listens on 127.0.0.1 alone, has no dashboard and ends with the process.
    """
    ray = _ray()
    if not ray.is_initialized():
        address = address or os.environ.get("RAY_ADDRESS") or None
        options: dict[str, Any] = {"address": address}
        if address in (None, "local"):
            options = {
                "address": "local",
                "num_cpus": threads * (workers or max(1, _cores() // threads)),
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
            }
            if store is not None:
                options["object_store_memory"] = store
        with _quiet():
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    # A head may compute nothing, and its first worker be on its way.
    end = time.monotonic() + _PATIENCE
    while not any(machines := _machines(ray)) and time.monotonic() < end:
        time.sleep(1)
    node = _own_node(ray)
    if not getattr(node, "head", False):  # one that was started here has this process's versions
        _check_versions(ray, ray.get_runtime_context().gcs_address)
    if (cores := max(machines, default=0)) < threads:
        raise InvalidValueError(
            f"A task with threads={threads} needs as many cores of one machine, and the largest of the cluster has "
            f"{cores}: it would wait for ever. Pass fewer threads, or join another cluster."
        )
    return ray


def places(ray: Any, threads: int) -> int:
    """Tasks of so many threads that run at once: a task's cores are of one machine."""
    return sum(cores // threads for cores in _machines(ray))


def _machines(ray: Any) -> list[int]:
    """Cores of each machine that is there."""
    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]


def _own_node(ray: Any) -> Any:
    """What Ray knows of its processes on this machine; None if it says nothing."""
    worker = getattr(getattr(ray, "_private", None), "worker", None)
    return getattr(worker, "_global_node", None)


class Watch:
    """Whether the cluster is still there, asked before every call that Ray would not return from otherwise.

    Ray waits for a head that does not come back, and ends this process, without an error, when it calls on a raylet
    that has gone. So that is looked at first, once a second at most.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        node = _own_node(ray)
        self._head = str(getattr(node, "gcs_address", "") or "")
        self._raylet = str(getattr(node, "raylet_socket_name", "") or "")
        self._next = 0.0

    def look(self, *, now: bool = False) -> None:
        """Raise ClusterLostError if the head, or Ray's process on this machine, does not answer."""
        if time.monotonic() < self._next and not now:
            return
        if not self._ray.is_initialized():
            raise ClusterLostError(f"This process has left its cluster while it ran tasks. {_AGAIN}")
        host, _, port = self._head.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        gone = ""
        if self._raylet.startswith("/") and not _is_served(self._raylet):
            gone = "Ray's own process on this machine (raylet) has ended."
        elif host and not _answers(family, (host.strip("[]"), int(port))):
            gone = f"The head of the cluster, at {self._head}, does not answer: it has ended."
        if gone:
            # At the end of the process Ray would say goodbye to what is not there, and wait for an answer.
            with contextlib.suppress(AttributeError):
                atexit.unregister(self._ray._private.worker.shutdown)
            raise ClusterLostError(f"{gone} {_AGAIN}")
        self._next = time.monotonic() + _BETWEEN

    def is_there(self) -> bool:
        """Whether it is, as far as can be seen now."""
        try:
            self.look(now=True)
        except ClusterLostError:
            return False
        return True


def _is_served(path: str) -> bool:
    """Whether the process that made a local socket is alive; what it has started may hold the socket open."""
    if not _answers(socket.AF_UNIX, path):
        return False
    if not hasattr(socket, "SO_PEERCRED"):  # pragma: no cover (not Linux)
        return True
    with contextlib.suppress(OSError, ValueError, IndexError):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(5.0)
            line.connect(path)
            owner, _, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        try:
            state = Path(f"/proc/{owner}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        return state not in "ZX"
    return True


def _answers(family: int, address: Any) -> bool:
    """Whether somebody listens; refused is no, and so is nothing in three tries of five seconds."""
    for _ in range(3):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as line:
                line.settimeout(5.0)
                line.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # slow, or no way to it just now
            continue
        return True
    return False


@functools.cache
def _check_versions(ray: Any, address: str) -> None:
    """Compare what the machines of a cluster have with what is here, once for a cluster."""
    # By value, not by name: a machine that lacks farfield is to say so.
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(_VERSIONS, names)
    ask = ray.remote(names["versions"])
    own = names["versions"]()
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    asked = {
        ask.options(
            num_cpus=0, max_retries=0, scheduling_strategy=place(node["NodeID"], soft=True)
        ).remote(): node
        for node in nodes
    }
    watch = Watch(ray)
    answered: list[Any] = []
    end = time.monotonic() + _PATIENCE
    while len(answered) < len(asked) and time.monotonic() < end:
        watch.look()
        answered = ray.wait(list(asked), num_returns=len(asked), timeout=_BETWEEN)[0]
    for reference in answered:
        try:
            theirs = ray.get(reference)
        except ray.exceptions.RayError:
            continue  # a machine that went meanwhile
        where = asked[reference].get("NodeManagerHostname") or asked[reference]["NodeID"][:12]
        compare_versions(own, theirs, str(where))


def compare_versions(own: dict[str, str | None], theirs: dict[str, str | None], machine: str) -> None:
    """Raise if a machine has another farfield or none; warn if it has another torch, Python or numba."""
    if own["farfield"] != theirs["farfield"]:
        found = "none" if theirs["farfield"] is None else f"farfield {theirs['farfield']}"
        raise InvalidValueError(
            f"Every machine of a cluster has the caller's farfield, {own['farfield']}; {machine} has {found}. "
            "Install the same version there."
        )
    other = [
        f"{k} {theirs[k] or 'not at all'} (here {own[k] or 'none'})"
        for k in ("torch", "python", "numba")
        if own[k] != theirs[k]
    ]
    if other:
        warnings.warn(
            f"The machine {machine} of the cluster has {' and '.join(other)}: results may differ in their last bits.",
            stacklevel=2,
        )


def disconnect() -> None:
    """Leave the cluster; one that was started here ends."""
    _ray().shutdown()


def pickler() -> type[Any]:
    """Ray's pickler, which takes functions and classes of the main module by value."""
    _ray()
    from ray import cloudpickle

    found: type[Any] = cloudpickle.CloudPickler
    return found


@functools.cache
def remote(function: Callable[..., Any]) -> Any:
    """A function or class as Ray runs it; one for each process, because Ray stores every one that is made."""
    return _ray().remote(function)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    told = _SILENT in os.environ
    os.environ.setdefault(_SILENT, "0")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if not told:
            del os.environ[_SILENT]


def _cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
