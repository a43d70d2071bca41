"""Engines by name."""

from __future__ import annotations

from farfield.engine._engine import Engine
from farfield.engine._local import local
from farfield.errors import InvalidValueError, UnknownNameError

__all__ = ["engine"]


def engine(name: str | Engine = "auto") -> Engine:
    """The engine of a name: ``"local"``, or ``"auto"``, which is local too. An engine is returned as it is.

    Examples
    --------
    >>> engine("auto")
    LocalEngine(workers=1)
    """
    if isinstance(name, Engine):
        return name
    if name in ("auto", "local"):
        return local()
    if name == "ray":
        raise InvalidValueError(
            "The engine 'ray' is planned and not built yet. Use engine='local': on one machine nothing is faster."
        )
    raise UnknownNameError("engine", str(name), ["auto", "local"])
