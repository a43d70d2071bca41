"""Rows that a user keeps in a file, read as data: nothing in the file runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farfield._regular_file import open_regular
from farfield.calibration._tables import NamedRows, from_columns
from farfield.errors import InvalidValueError, MissingExtraError

__all__ = ["read_rows"]

_KINDS = ".npy, .npz, .csv, .parquet or .pt"


def read_rows(path: str | os.PathLike[str]) -> Tensor | NamedRows | dict[str, Tensor] | tuple[Tensor, ...]:
    """Rows, or several tensors of them by name or in order; anything else than the kinds above is read as CSV.

    The first line of a CSV may hold names. A Parquet file's columns are the features, in their order.
    """
    path = Path(path)
    with open_regular(path) as file:
        try:
            found: Any
            if path.suffix == ".npy":
                found = torch.from_numpy(np.load(file, allow_pickle=False))
            elif path.suffix == ".npz":
                held = np.load(file, allow_pickle=False)
                found = {name: torch.from_numpy(held[name]) for name in held.files}
                if set(found) == {"arr_0"}:  # savez gives this name to an array that has none
                    found = found["arr_0"]
            elif path.suffix in (".pt", ".pth"):
                found = torch.load(file, map_location="cpu", weights_only=True)
            elif path.suffix == ".parquet":
                from farfield.data._arrow import arrow

                table = arrow()[1].ParquetFile(path).read()
                found = from_columns(
                    {
                        name: table[name].to_numpy()
                        for name in table.column_names
                        if not name.startswith("__index")
                    }
                )
            else:
                found = _csv(file.read().decode("utf-8-sig").splitlines())  # Excel begins a file with a mark
        except (MissingExtraError, InvalidValueError):
            raise
        except (OSError, ValueError, TypeError, RuntimeError, UnicodeDecodeError) as error:
            first = str(error).partition("\n")[0][:200]
            raise InvalidValueError(
                f"The rows in {str(path)!r} can't be read: {first}. A file of rows is {_KINDS}."
            ) from error
    if isinstance(found, list):
        found = tuple(found)
    parts = found.values() if isinstance(found, dict) else found if isinstance(found, tuple) else (found,)
    if not all(isinstance(part, Tensor | NamedRows) for part in parts):
        raise InvalidValueError(f"{str(path)!r} holds a {type(found).__name__}, not a tensor or several.")
    return found  # type: ignore[no-any-return]


def _csv(lines: list[str]) -> Tensor | NamedRows:
    named = bool(lines) and _is_heading(lines[0])
    values = torch.from_numpy(np.loadtxt(lines[1:] if named else lines, delimiter=",", ndmin=2))
    names = tuple(word.strip().strip('"') for word in lines[0].split(",")) if named else ()
    return NamedRows(values, names) if named and len(names) == values.shape[1] else values


def _is_heading(line: str) -> bool:
    """Whether a line holds names: no number in it. A first row with a value missing is no heading."""
    return not any(map(_is_number, line.split(",")))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
