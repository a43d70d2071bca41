"""What several commands share: an option, and how a table's first line is read."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

__all__ = ["Trust", "is_heading"]

Trust: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Read a .pt2 file with torch.export.load, which can run code in it. Only for files you trust.",
    ),
]


def is_heading(line: str) -> bool:
    """Whether a line of a table holds names instead of numbers."""
    try:
        [float(part) for part in line.split(",")]
    except ValueError:
        return True
    return False
