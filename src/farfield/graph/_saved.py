"""A module written as a whole program, for any number of rows: ``.pt2`` or ``.onnx``."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves, tree_map

from farfield.errors import InvalidValueError, MissingExtraError
from farfield.graph._export import export_model
from farfield.graph._prepare import quiet
from farfield.graph._structure import opened
from farfield.graph.onnx import OnnxModule

__all__ = ["export_for_any_rows", "result_names", "write_program"]

_COUNTS = (2, 3, 5)
"""Numbers of rows to export from: an axis of one row is taken for one that broadcasts."""


def export_for_any_rows(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """A program that takes any number of rows, if the model does; else one for as many rows as the example has.

    Exported from one row, a recurrent or a spectral layer gives a program with a condition that there be one; from
    two rows, one that is the model to the last bit for any number. Each program is run before it is chosen.
    """
    if isinstance(model, fx.GraphModule):  # its sizes are as they were exported
        return export_model(model, args, kwargs, dynamic_batch=True)
    for rows in _COUNTS:
        try:
            program = export_model(model, *_repeated((args, kwargs), rows), dynamic_batch=True)
            runs = program.module()
            with torch.no_grad(), quiet():
                for count in (1, 2, 4):
                    more, named = _repeated((args, kwargs), count)
                    runs(*more, **named)
            return program
        except Exception:  # a model for one number of rows, or for some; torch raises a dozen kinds
            continue
    return export_model(model, args, kwargs, dynamic_batch=True)


def write_program(program: ExportedProgram, path: str | Path, *, names: Sequence[str] | None = None) -> None:
    """Write a program to ``.pt2`` or, with the outputs called ``names``, to ``.onnx``.

    By way of memory: on a full disk torch's own writer ends the process.
    """
    place = Path(path)
    if place.suffix != ".onnx":
        torch.export.save(program, made := io.BytesIO())
        place.write_bytes(made.getbuffer())
        return
    try:
        with quiet():
            written = torch.onnx.export(
                program, dynamo=True, output_names=names, verbose=False, external_data=False
            )
    except ImportError as error:  # torch.onnx says of itself which package is missing
        raise MissingExtraError("Writing an .onnx file", "onnxscript", "onnx") from error
    except torch.onnx.OnnxExporterError as error:
        said = str(error.__cause__ or error).strip().partition("\n")[0][:300]
        raise InvalidValueError(
            f"torch can't write this program as ONNX: {said}. Save it as .pt2, which holds every operation."
        ) from error
    assert written is not None
    written.save(place)


def result_names(model: nn.Module, result: Any) -> list[str]:
    """What a file calls the tensors that a model returned: their own names, ``output``, or ``output_0`` and so on."""
    if isinstance(result, Tensor):
        return [model.output_names[0] if isinstance(model, OnnxModule) else "output"]
    if isinstance(result, dict) and all(isinstance(value, Tensor) for value in result.values()):
        return [str(name) for name in result]
    return [f"output_{k}" for k, _ in enumerate(tree_leaves(opened(result)))]


def _repeated(call: Any, rows: int) -> Any:
    """The example with its first row so many times."""

    def repeat(leaf: Any) -> Any:
        return (
            leaf[:1].expand(rows, *leaf.shape[1:]).contiguous()
            if isinstance(leaf, Tensor) and leaf.ndim
            else leaf
        )

    return tree_map(repeat, call)
