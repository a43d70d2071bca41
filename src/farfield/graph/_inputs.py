"""Example inputs from data in any form: ``audit`` and ``certify`` take what ``repair`` and ``guard`` calibrate on."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from farfield.calibration import Batches, Columns, holds_columns
from farfield.graph._program import Program
from farfield.graph._runnable import as_module

__all__ = ["example_inputs"]


def example_inputs(model: Any, data: Any) -> tuple[Any, Columns]:
    """What a model is called with, and the names of columns, from data in any form that calibration takes.

    Parameters
    ----------
    model
        A module, an exported or captured program, or the path of a file.
    data
        A tensor, a tuple or dictionary of them (as the model is called), or nothing: these are handed back. Arrays,
        tables, files of rows, loaders: their first batch, without labels, in the model's own type.
    """
    if _is_call(data) and not _is_table(model, data):
        return data, {}
    batches = Batches(data, _called(model))
    args, kwargs = batches.some()
    names = {batches.arguments[int(k)] if k.isdigit() else k: v for k, v in batches.columns.items()}
    return kwargs or args, names


def _is_call(data: Any) -> bool:
    """Whether it is what a model is called with already: tensors, nested as they may be, and plain values."""
    if isinstance(data, Tensor):
        return True
    if not isinstance(data, tuple | list | dict):
        return False
    return not any(hasattr(leaf, "__array__") and not isinstance(leaf, Tensor) for leaf in tree_leaves(data))


def _is_table(model: Any, data: Any) -> bool:
    """Whether a dictionary of tensors holds columns; the model is opened only where each could be one."""
    if not isinstance(data, dict) or not all(isinstance(v, Tensor) and v.ndim == 1 for v in data.values()):
        return False
    return bool(data) and holds_columns(data, _called(model))


def _called(model: Any) -> nn.Module:
    """A module that is called as the model is."""
    return _Called(model) if isinstance(model, Program) else as_module(model)


class _Called(nn.Module):
    """Stands for a captured program where only names and types of its inputs are asked for."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        own = inspect.Signature([inspect.Parameter(spec.name, kind) for spec in program.inputs])
        real = (spec.dtype for spec in program.inputs if spec.dtype.is_floating_point)
        self.input_type = next(real, None)
        self.forward = lambda *args, **kwargs: None
        self.forward.__signature__ = own  # type: ignore[attr-defined]
