"""The front door: a model, an exported program or a file, in; a :class:`Program` out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from farfield.errors import InvalidValueError
from farfield.graph._export import export_model, lower_exported
from farfield.graph._node import InputKind
from farfield.graph._program import Program

__all__ = ["capture"]


def capture(
    model: nn.Module | ExportedProgram | str | Path,
    example_inputs: Any = (),
    *,
    dynamic_batch: bool = True,
    prefer: Literal["export", "fx", "modules"] = "export",
    kinds: Mapping[str, InputKind] | None = None,
) -> Program:
    """Capture."""
    if isinstance(model, str | Path):
        model = torch.export.load(model)
    kinds = dict(kinds or {})
    if isinstance(model, ExportedProgram):
        lowering, outputs = lower_exported(model, kinds)
        modules: dict[str, str] = {}
    else:
        args, kwargs = _arguments(example_inputs)
        with _evaluating(model), torch.no_grad():
            try:
                exported = export_model(model, args, kwargs, dynamic_batch=dynamic_batch)
            except Exception:
                exported = export_model(model, args, kwargs, dynamic_batch=False)
            lowering, outputs = lower_exported(exported, kinds)
        modules = {path: type(module).__name__ for path, module in model.named_modules()}
    return Program(
        nodes=tuple(lowering.nodes),
        inputs=tuple(lowering.inputs),
        outputs=tuple(outputs),
        constants=lowering.constants,
        constant_names=lowering.constant_names,
        capture="export",
        unseen=tuple(lowering.unseen),
        modules=modules,
    )


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, tuple | list):
        return tuple(example_inputs), {}
    raise InvalidValueError(
        f"example_inputs is a tensor, a tuple of positional arguments or a dictionary of named ones, not "
        f"{type(example_inputs).__name__}."
    )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode; every module's own flag is put back afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training
