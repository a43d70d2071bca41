"""Rows from a file, without the names of their columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["read_tensors"]


def read_tensors(path: Path) -> Any:
    """A tensor, or several by name or in order."""
    from farfield.calibration import NamedRows, read_rows

    found = read_rows(path)
    return found.values if isinstance(found, NamedRows) else found
