"""Calibration rows as batches of arguments, streamed and never held."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.data import Dataset, IterableDataset

from farfield.calibration._files import read_rows
from farfield.calibration._tables import NamedRows, entry_name, from_columns, is_frame, tensor_of
from farfield.errors import InvalidValueError

__all__ = [
    "Batches",
    "Call",
    "argument_names",
    "both_names",
    "device_of",
    "fixed_rows",
    "floating",
    "holds_columns",
    "map_call",
    "map_leaves",
    "output_leaves",
    "output_tensors",
    "real_type",
    "rows_of",
    "run",
]

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named arguments of one call of the model."""


class Batches:
    """Data in any of the forms people have, as calls of the model; can be gone through several times.

    Parameters
    ----------
    data
        A tensor, an array, a table of pandas or polars, a tuple or dictionary of these with one row each, a
        dictionary of columns (for a model of one argument), the path of a file of rows (``.npy``, ``.npz``,
        ``.csv``, ``.parquet``, ``.pt``), a DataLoader, or any iterable of batches in one of these forms that can be
        iterated again. Of a batch ``(x, y)`` as many parts are taken as the model's ``forward`` needs, so labels are
        left out. Real numbers of an array, a table or a file come in the type of the model's own; everything comes on
        the model's device.
    model
        Whose arguments they are.
    size
        Rows in a batch, where ``data`` is whole.

    Attributes
    ----------
    columns
        Argument (position or name) → names of its columns, for those that have names.
    arguments
        Names of the arguments that the model takes by position.
    """

    def __init__(self, data: Any, model: nn.Module, size: int = 1024) -> None:
        self._model, self._dtype, self._size = model, real_type(model), size
        self._device = device_of(model)
        self.arguments = argument_names(model)
        self._count, self._rows = _needed(model), fixed_rows(model) or 1
        if isinstance(data, str | os.PathLike):
            data = tree_map(self._typed, read_rows(data))
        if isinstance(data, Mapping) and holds_columns(data, model):
            data = from_columns(data)
        if isinstance(data, Mapping) and (strange := sorted(map(str, set(data) - set(_taken(model, data))))):
            raise InvalidValueError(
                f"data names {', '.join(strange)}, and {type(model).__name__}.forward takes "
                f"{', '.join(_taken(model)) or 'nothing by name'}. Labels are left out."
            )
        self.columns: dict[str, tuple[str, ...]] = dict(_named(data))
        self._data = self._converted(data)
        if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
            raise InvalidValueError(
                "A Dataset gives one row at a time. Pass batches: torch.utils.data.DataLoader(data, batch_size=256)."
            )
        if isinstance(self._data, tuple) and len(self._data) > (most := _accepted(model)):
            raise InvalidValueError(
                f"data is a tuple of {len(self._data)}, and {type(model).__name__}.forward takes {most} by position. "
                "A tuple holds the model's arguments: leave labels out."
            )
        if isinstance(data, Iterator):
            raise InvalidValueError(
                "The data are read more than once, and an iterator ends after the first time. Pass a DataLoader, "
                "a list of batches, or the tensors themselves."
            )

    def entry(self, argument: int | str, *place: int) -> str:
        """What an entry of an argument is called."""
        return entry_name(str(argument), place, self.columns, self.arguments)

    def _typed(self, value: Any) -> Any:
        real = isinstance(value, Tensor) and value.is_floating_point() and self._dtype is not None
        return value.to(self._dtype) if real else value

    def _converted(self, data: Any) -> Any:
        """Arrays and tables as tensors; anything else as it is."""
        if isinstance(data, NamedRows) or is_frame(data):
            made = tensor_of(data, None)
            whole = not made.is_floating_point() and any(
                isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in self._model.modules()
            )
            return made if whole or self._dtype is None else made.to(self._dtype)
        if isinstance(data, Mapping):
            return {name: self._converted(part) for name, part in data.items()}
        if isinstance(data, tuple | list) and any(_is_array(part) for part in data):
            return type(data)(map(self._converted, data)) if type(data) in (tuple, list) else data
        return tensor_of(data, self._dtype)

    def __iter__(self) -> Iterator[Call]:
        data = self._data
        whole = isinstance(data, Tensor | Mapping) or (
            isinstance(data, tuple) and bool(data) and all(isinstance(part, Tensor) for part in data)
        )
        for batch in self._pieces(data) if whole else data:
            call = self._call(batch, whole)
            yield call if self._device is None else tree_map(self._moved, call)

    def _moved(self, value: Any) -> Any:
        """On the model's device."""
        return value.to(self._device) if isinstance(value, Tensor) else value

    def _pieces(self, data: Any) -> Iterable[Any]:
        parts = (
            [data] if isinstance(data, Tensor) else list(data.values() if isinstance(data, Mapping) else data)
        )
        lengths = {len(part) for part in parts if isinstance(part, Tensor)}
        if len(lengths) != 1 or not lengths - {0}:
            raise InvalidValueError(
                f"Every tensor holds the same rows, at least one; their lengths are {sorted(lengths)}."
            )
        for start in range(0, lengths.pop(), self._size):
            stop = start + self._size
            if isinstance(data, Tensor):
                yield data[start:stop]
            elif isinstance(data, Mapping):
                yield {
                    name: part[start:stop] if isinstance(part, Tensor) else part
                    for name, part in data.items()
                }
            else:
                yield tuple(part[start:stop] for part in data)

    def _call(self, batch: Any, whole: bool) -> Call:
        batch = batch if whole else self._converted(batch)
        if isinstance(batch, Tensor):
            return (batch,), {}
        if isinstance(batch, Mapping):
            return (), dict(batch) if whole else self._arguments_of(batch)
        if isinstance(batch, Sequence) and any(not isinstance(part, str | int | float) for part in batch):
            return tuple(batch if whole else batch[: self._count]), {}
        raise InvalidValueError(
            f"A batch is a tensor, a tuple or a dictionary of tensors, not {type(batch).__name__}."
        )

    def _arguments_of(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A loader's batch without what ``forward`` does not take, such as labels."""
        known = _taken(self._model, batch)
        return {name: value for name, value in batch.items() if name in known} or dict(batch)

    def first(self) -> Call:
        """The first row of the first batch; as many as a program takes, where that is fixed."""
        one = map_call(self.some(), lambda _, tensor: tensor[:1])
        return map_call(one, lambda _, tensor: tensor.expand(self._rows, *tensor.shape[1:]).contiguous())

    def some(self) -> Call:
        """The first batch that has rows."""
        for call in self:
            if rows_of(call):
                return call
        raise InvalidValueError(
            "data holds no rows. Tensors in a list or a dictionary that is one argument of the model don't count: "
            "wrap the model in one that takes them as arguments of their own."
        )

    def count(self, most: int) -> int:
        """How many rows there are, counted up to ``most``."""
        count = 0
        for call in self:
            count += rows_of(call)
            if count >= most:
                break
        return count

    def check(self) -> None:
        """Raise, in words, if the model fails on the first row for its type."""
        call = self.first()
        try:
            run(self._model, call)
        except (RuntimeError, TypeError) as error:
            types = sorted({str(v.dtype) for v in (*call[0], *call[1].values()) if isinstance(v, Tensor)})
            raise InvalidValueError(
                f"The model fails on the first row: {str(error).partition(chr(10))[0]}. The rows are "
                f"{', '.join(types)}, the model's parameters {self._dtype}."
            ) from error


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | NamedRows) or hasattr(value, "to_numpy")


def _named(data: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Argument → names of its columns, of whole data."""
    parts: Any = (
        data.items() if isinstance(data, Mapping) else enumerate(data if isinstance(data, tuple) else (data,))
    )
    for name, part in parts:
        if isinstance(part, NamedRows):
            yield str(name), part.names
        elif is_frame(part):
            yield str(name), tuple(map(str, part.columns))


def holds_columns(data: Mapping[Any, Any], model: nn.Module) -> bool:
    """Whether a dictionary holds the columns of a model's one argument, by their names."""
    if _needed(model) != 1 or set(_taken(model, data)) & set(data) or not data:
        return False
    values = [tensor_of(value, None) for value in data.values()]
    return all(isinstance(v, Tensor) and v.ndim == 1 and len(v) == len(values[0]) for v in values)


def device_of(model: nn.Module) -> torch.device | None:
    """Where a model's parameters and buffers lie; ``None`` where it has none, or they lie in several places."""
    found = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return found.pop() if len(found) == 1 else None


def real_type(model: nn.Module) -> torch.dtype | None:
    """The type of a model's real inputs: what its file or program says, else that of its parameters."""
    if isinstance(stated := getattr(model, "input_type", None), torch.dtype):  # of an ONNX file
        return stated
    if isinstance(model, fx.GraphModule):
        for node in model.graph.nodes:
            value = node.meta.get("val") if node.op == "placeholder" else None
            if isinstance(value, Tensor) and value.is_floating_point():
                return value.dtype
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), None)


def _signature(model: nn.Module) -> inspect.Signature:
    """How a model is called; a wrapper says so itself, since its forward takes anything."""
    own = getattr(model, "__signature__", None)
    return own if isinstance(own, inspect.Signature) else inspect.signature(model.forward)


def _accepted(model: nn.Module) -> float:
    """How many positional arguments ``forward`` takes at most."""
    parameters = _signature(model).parameters.values()
    free = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    return math.inf if free else len(argument_names(model))


def _taken(model: nn.Module, given: Iterable[Any] = ()) -> list[Any]:
    """Names of the arguments that ``forward`` takes by name; everything ``given``, where it takes any."""
    parameters = _signature(model).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return list(given)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.kind in kinds]


def _needed(model: nn.Module) -> int:
    """How many positional arguments ``forward`` needs."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = _signature(model).parameters.values()
    return max(1, sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters))


def argument_names(model: nn.Module) -> list[str]:
    """Names of the arguments that a model takes by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in _signature(model).parameters.values() if p.kind in kinds]


def both_names(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """What an argument may be called by: its position and its name, the one given first."""
    if name.isdigit():
        return (name, names[int(name)]) if int(name) < len(names) else (name,)
    return (name, str(names.index(name))) if name in names else (name,)


def fixed_rows(model: nn.Module) -> int | None:
    """How many rows an exported program takes, if that is fixed."""
    if not isinstance(model, fx.GraphModule):
        return None
    for node in model.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        if isinstance(value, Tensor) and value.ndim and value.is_floating_point():
            return value.shape[0] if isinstance(value.shape[0], int) else None
    return None


def rows_of(call: Call) -> int:
    """Number of rows in a batch."""
    args, kwargs = call
    return next((len(v) for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.ndim), 0)


def floating(call: Call) -> dict[int | str, Tensor]:
    """Position or name → tensor, for the real-valued arguments."""
    args, kwargs = call
    pairs: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    return {k: v for k, v in pairs if isinstance(v, Tensor) and v.is_floating_point() and v.ndim}


@torch.no_grad()
def run(model: nn.Module, call: Call) -> Any:
    """The model on one batch; in pieces where it is a program that takes a fixed number of rows.

    Nothing is compiled, also where a part of the model would be. The model gets a copy: one that writes into its
    argument would change the caller's rows, more with every pass.
    """
    call = map_call(call, lambda _, tensor: tensor.clone())
    # Where nobody has loaded torch's compiler, nothing is compiled.
    with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext():
        return _run(model, call)


def _run(model: nn.Module, call: Call) -> Any:
    args, kwargs = call
    rows, count = fixed_rows(model), rows_of(call)
    if rows is None or rows == count:
        return model(*args, **kwargs)
    pieces = []
    for start in range(0, count, rows):
        part, named = map_call(call, partial(_piece, start=start, rows=rows, count=count))
        pieces.append(tree_flatten(model(*part, **named)))
    joined = [_joined(leaves, rows, count) for leaves in zip(*(p[0] for p in pieces), strict=True)]
    return tree_unflatten(joined, pieces[0][1])


def _piece(name: int | str, tensor: Tensor, *, start: int, rows: int, count: int) -> Tensor:
    """Some rows of a batch; the last piece is filled up with its own last row."""
    if len(tensor) != count:
        return tensor
    part = tensor[start : start + rows]
    return torch.cat([part, part[-1:].expand(rows - len(part), *part.shape[1:])])


def _joined(leaves: Sequence[Any], rows: int, count: int) -> Any:
    per_row = all(isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == rows for leaf in leaves)
    return torch.cat(list(leaves))[:count] if per_row else leaves[0]


def map_call(call: Call, change: Callable[[int | str, Tensor], Tensor]) -> Call:
    """A call with every tensor that has rows replaced by ``change(position or name, tensor)``."""
    args, kwargs = call
    pairs: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    new = {n: change(n, v) if isinstance(v, Tensor) and v.ndim else v for n, v in pairs}
    return tuple(new[i] for i in range(len(args))), {name: new[name] for name in kwargs}


def output_leaves(value: Any) -> list[Any]:
    """What a model returned, taken apart: nested tuples, dictionaries, records (dataclasses)."""
    found: list[Any] = []
    map_leaves(found.append, value)
    return found


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """The same structure with every leaf changed, in order."""

    def through(leaf: Any) -> Any:
        if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
            return change(leaf)
        made = copy.copy(leaf)
        for field in dataclasses.fields(leaf):
            object.__setattr__(made, field.name, map_leaves(change, getattr(leaf, field.name)))
        return made

    return tree_map(through, value)


def output_tensors(value: Any) -> list[Tensor]:
    """The tensors a model returned, in order."""
    return [leaf for leaf in output_leaves(value) if isinstance(leaf, Tensor)]
