"""Engines by name."""

from __future__ import annotations

from farfield.engine._engine import Engine
from farfield.engine._local import local
from farfield.engine._ray import ray
from farfield.errors import UnknownNameError

__all__ = ["engine"]


def engine(name: str | Engine = "auto") -> Engine:
    """The engine of a name. An engine is returned as it is.

    ``"local"`` is this machine, in the calling thread. ``"ray"`` is :func:`ray` with its defaults: the cluster of the
    environment's ``RAY_ADDRESS``, or one started on this machine. ``"auto"`` is local: work leaves the process only
    where that is asked for, and on one machine nothing is faster.

    Examples
    --------
    >>> engine("auto")
    LocalEngine(workers=1, threads=None)
    """
    if isinstance(name, Engine):
        return name
    if name in ("auto", "local"):
        return local()
    if name == "ray":
        return ray()
    raise UnknownNameError("engine", str(name), ["auto", "local", "ray"])
