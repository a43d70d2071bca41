"""Tables with named columns, and what their entries are called when something is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farfield.errors import InvalidValueError

__all__ = ["Columns", "NamedRows", "as_table", "entry_name", "from_columns", "is_frame", "tensor_of"]

Columns = Mapping[str, tuple[str, ...]]
"""Argument (position or name) → names of its columns, for those that have names."""


@dataclass(frozen=True)
class NamedRows:
    """Rows of numbers, (rows, columns), and what the columns are called."""

    values: Tensor
    names: tuple[str, ...]


def is_frame(data: Any) -> bool:
    """Whether it is a table of pandas, polars or one that looks like them."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def from_columns(columns: Mapping[str, Any]) -> NamedRows:
    """One table of columns by name. Whole numbers stay whole where all columns are."""
    made = {}
    for name, column in columns.items():
        values = column.detach().cpu().numpy() if isinstance(column, Tensor) else np.asarray(column)
        if values.dtype.kind not in "fiub":
            try:  # numbers with missing entries come as objects
                if values.dtype.kind in "US" or any(isinstance(value, str) for value in values.tolist()):
                    raise ValueError("text")
                values = np.asarray(column, dtype=np.float64)
            except (TypeError, ValueError) as error:
                raise InvalidValueError(
                    f"Rows are numbers; the column {name!r} is of the type {values.dtype}. Drop it, or encode it as "
                    "the model was trained."
                ) from error
        made[name] = values
    if not made:
        raise InvalidValueError("Rows are numbers, and this table has no columns.")
    return NamedRows(
        torch.from_numpy(np.ascontiguousarray(np.stack(list(made.values()), -1))), tuple(map(str, made))
    )


def as_table(frame: Any, names: Sequence[str] = ()) -> NamedRows:
    """A frame's columns; those called ``names``, in that order, where all of them are there."""
    own = [str(name) for name in frame.columns]
    if len(set(own)) < len(own):
        raise InvalidValueError(f"Columns have names of their own; these are {', '.join(own)}.")
    wanted = list(names) or own
    if missing := [name for name in wanted if name not in own]:
        raise InvalidValueError(
            f"The table has no column {', '.join(map(repr, missing))}; it has {', '.join(own)}."
        )
    places = {str(name): name for name in frame.columns}
    return from_columns({name: frame[places[name]] for name in wanted})


def tensor_of(data: Any, dtype: torch.dtype | None, names: Sequence[str] = ()) -> Any:
    """An array or a table as a tensor, real numbers in this type; anything else as it is.

    ``names``: the columns to take of a frame, which may be in another order or more.
    """
    if is_frame(data):
        data = as_table(data, names)
    if isinstance(data, NamedRows):
        return data.values if dtype is None else data.values.to(dtype)
    if hasattr(data, "to_numpy"):  # one column
        data = data.to_numpy()
    if isinstance(data, np.ndarray):
        if data.dtype.kind not in "fiub":
            raise InvalidValueError(f"Rows are numbers; these are of the type {data.dtype}.")
        made = torch.from_numpy(np.require(data, requirements=["C", "W"]))
        return made.to(dtype) if made.is_floating_point() and dtype is not None else made
    return data


def entry_name(argument: str, place: Sequence[int], columns: Columns, arguments: Sequence[str]) -> str:
    """What one entry of an argument is called: its column's name, or ``x[:, 1]``.

    Parameters
    ----------
    argument
        Position or name, as in a call; a word with a space is taken as it is.
    place
        Indices of the entry in one row; none for rows of one number.
    columns
        Names of columns.
    arguments
        Names of the arguments that the model takes by position.

    Examples
    --------
    >>> entry_name("0", (1,), {"0": ("temperature", "pressure")}, ["x"])
    'pressure'
    >>> entry_name("0", (3, 1), {}, ["series"]), entry_name("0", (), {}, [])
    ('series[:, 3, 1]', 'input 0')
    """
    names = columns.get(argument, ())
    if place and place[-1] < len(names):
        return names[place[-1]]
    if argument.isdigit():
        argument = arguments[int(argument)] if int(argument) < len(arguments) else f"input {argument}"
    return f"{argument}[:, {', '.join(map(str, place))}]" if place else argument
