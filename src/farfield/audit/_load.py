"""A checkpoint to a model, without running what the file holds as far as its format allows.

Weights (``.safetensors``, or a pickle read with ``weights_only=True``) are data; the builder that takes them is
code of whoever wrote the registry. A ``.pt2`` file is a program, read without running anything in it
(:func:`farfield.graph.read_program`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from farfield._regular_file import UnsafeFileError
from farfield._target import build, example_input
from farfield._weights import CheckpointError, put_weights, read_weights
from farfield.audit._registry import SUFFIXES, ModelEntry
from farfield.errors import InvalidValueError
from farfield.graph import CaptureError, open_model, read_program

__all__ = ["CheckpointError", "load_checkpoint"]


def load_checkpoint(entry: ModelEntry, path: Path) -> tuple[nn.Module | ExportedProgram, tuple[Any, ...]]:
    """The model of an entry and example inputs for it.

    Raises
    ------
    CheckpointError, InvalidValueError
        With what is wrong with the file, or with the entry.
    """
    inputs = tuple(example_input(spec) for spec in entry.inputs)
    if path.suffix in (".pt2", ".onnx") and entry.builder is not None:
        raise InvalidValueError(
            f"A {path.suffix} file is a whole program and takes no builder; got {entry.builder!r}."
        )
    if path.suffix == ".onnx":
        return _onnx(path, inputs)
    if path.suffix == ".pt2":
        exported = _program(path)
        _check_weights(dict(exported.named_parameters()))
        return exported, inputs or _zeros(exported)
    if path.suffix not in SUFFIXES:
        raise InvalidValueError(f"A checkpoint ends in {', '.join(SUFFIXES)}; got {path.name!r}.")
    if entry.builder is None:
        raise InvalidValueError(
            f"A {path.suffix} file holds weights, not a model. Give a builder, 'pkg.mod:callable', that makes the "
            "module to put them in, or write the model with torch.export.save."
        )
    if not inputs:
        raise InvalidValueError("A built model needs the shapes of its inputs, such as 1x8.")
    # The file first: what it holds decides whether anybody's code is worth running.
    weights = read_weights(path)
    model = build(entry.builder, _arguments(entry.arguments))
    put_weights(model, weights)
    _check_weights(dict(model.named_parameters()))
    return model.eval(), inputs


def _arguments(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidValueError(
            f'A builder\'s arguments are a JSON object such as {{"width": 16}}; got {text!r}.'
        )
    return found


def _program(path: Path) -> ExportedProgram:
    try:
        return read_program(path)
    except UnsafeFileError as error:
        raise CheckpointError(str(error)) from error


def _onnx(path: Path, inputs: tuple[Any, ...]) -> tuple[nn.Module, tuple[Any, ...]]:
    try:
        module, example = open_model(path, inputs)
    except CaptureError as error:
        raise CheckpointError(str(error)) from error
    # A file does not tell weights from constants, of which infinity is one that masks and scores are made of.
    _check_weights({name: value for name, value in module.named_parameters() if bool(value.isnan().any())})
    return module, example


def _zeros(exported: ExportedProgram) -> tuple[Any, ...]:
    """Zeros of the shapes the program takes; two for an open size. () if an input is no tensor."""
    wanted = set(exported.graph_signature.user_inputs)
    values = [n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder" and n.name in wanted]
    if not all(isinstance(v, Tensor) for v in values):
        return ()
    return tuple(
        torch.zeros([d if isinstance(d, int) else 2 for d in v.shape], dtype=v.dtype)
        for v in values
        if isinstance(v, Tensor)
    )


def _check_weights(parameters: Mapping[str, Tensor]) -> None:
    bad = [name for name, value in parameters.items() if not bool(torch.isfinite(value).all())]
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise CheckpointError(
            f"Parameters hold NaN or infinity: {', '.join(bad[:3])}{more}. There is no function to audit."
        )
