"""The one place where pyarrow enters."""

from __future__ import annotations

from typing import Any

from farfield.errors import MissingExtraError

__all__ = ["arrow"]


def arrow() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("Parquet", "pyarrow", "data") from error
    return pyarrow, parquet
