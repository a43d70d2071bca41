"""Rows that a user keeps in a file, read as data: nothing in the file runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from farfield._regular_file import open_regular
from farfield.errors import InvalidValueError

__all__ = ["KINDS", "read_rows", "rows_for"]

KINDS = ".npy, .npz, .csv, .parquet or .pt"


def read_rows(path: Path) -> Tensor | dict[str, Tensor] | tuple[Tensor, ...]:
    """A tensor, or several by name or in order, from a file of numbers; anything else than the kinds above is CSV.

    The first line of a CSV may hold names. A Parquet file's columns are the features, in their order.
    """
    with open_regular(path) as file:
        try:
            found: Any
            if path.suffix == ".npy":
                found = torch.from_numpy(np.load(file, allow_pickle=False))
            elif path.suffix == ".npz":
                held = np.load(file, allow_pickle=False)
                found = {name: torch.from_numpy(held[name]) for name in held.files}
            elif path.suffix in (".pt", ".pth"):
                found = torch.load(file, map_location="cpu", weights_only=True)
            elif path.suffix == ".parquet":
                from farfield.data._records import read_records

                found = torch.tensor([[float(v) for v in row.values()] for row in read_records(path)])
            else:
                lines = file.read().decode("utf-8-sig").splitlines()  # Excel begins a file with a mark
                numbers = lines[1:] if lines and _is_heading(lines[0]) else lines
                found = torch.from_numpy(np.loadtxt(numbers, delimiter=",", ndmin=2))
        except (OSError, ValueError, TypeError, RuntimeError, UnicodeDecodeError) as error:
            first = str(error).partition("\n")[0][:200]
            raise InvalidValueError(
                f"The rows in {str(path)!r} can't be read: {first}. A file of rows is {KINDS}."
            ) from error
    if isinstance(found, list):
        found = tuple(found)
    parts = found.values() if isinstance(found, dict) else found if isinstance(found, tuple) else (found,)
    if not all(isinstance(part, Tensor) for part in parts):
        raise InvalidValueError(f"{str(path)!r} holds a {type(found).__name__}, not a tensor or several.")
    return found  # type: ignore[no-any-return]


def rows_for(model: Any, path: Path) -> Any:
    """Rows from a file, real numbers in the model's own type; a file's model has that of its first real input."""
    dtype = None
    if isinstance(model, torch.nn.Module):
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    elif not hasattr(model, "parameters"):
        dtype = torch.float32

    def typed(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor

    return tree_map(typed, read_rows(path))


def _is_heading(line: str) -> bool:
    """Whether a line holds names: no number in it. A first row with a value missing is no heading."""
    return not any(map(_is_number, line.split(",")))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
