"""Ray itself: found, started on this machine or joined, and left as it was."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from farfield.errors import InvalidValueError, MissingExtraError

__all__ = ["connect", "disconnect", "is_connected", "pickler", "places", "remote"]

_PATIENCE = 120.0
"""Seconds in which the first worker of a cluster may come."""
_SILENT = "RAY_USAGE_STATS_ENABLED"
"""Ray reports its use to its makers unless this is 0."""


def _ray() -> Any:
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
