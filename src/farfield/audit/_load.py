"""A checkpoint to a model, without running what the file holds as far as its format allows.

Weights (``.safetensors``, or a pickle read with ``weights_only=True``) are data; the builder that takes them is
code of whoever wrote the registry. A ``.pt2`` file is a program, read without running anything in it
(:func:`farfield.graph.read_program`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from farfield._regular_file import UnsafeFileError, open_regular
from farfield._target import build, example_input
from farfield.audit._registry import SUFFIXES, ModelEntry
from farfield.errors import FarfieldError, InvalidValueError, MissingExtraError
from farfield.graph import read_program

__all__ = ["CheckpointError", "load_checkpoint"]

_NESTED = ("state_dict", "model_state_dict", "model")
"""Where training scripts put the weights among other things."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class CheckpointError(FarfieldError, ValueError):
    """A file is no checkpoint that can be read, is refused, or does not fit its model; the message says which."""


def load_checkpoint(entry: ModelEntry, path: Path) -> tuple[nn.Module | ExportedProgram, tuple[Any, ...]]:
    """The model of an entry and example inputs for it.

    Raises
    ------
    CheckpointError, InvalidValueError
        With what is wrong with the file, or with the entry.
    """
    inputs = tuple(example_input(spec) for spec in entry.inputs)
    if path.suffix == ".pt2":
        if entry.builder is not None:
            raise InvalidValueError(
                f"A .pt2 file is a whole program and takes no builder; got {entry.builder!r}."
            )
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
    weights = _weights(path)
    model = build(entry.builder, _arguments(entry.arguments))
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"The weights do not fit {type(model).__name__}: {_details(error)}") from error
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


def _weights(path: Path) -> dict[str, Tensor]:
    try:
        file = open_regular(path)
    except UnsafeFileError as error:
        raise CheckpointError(str(error)) from error
    with file:
        return _state_dict(path, file)


def _state_dict(path: Path, file: BinaryIO) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        try:
            from safetensors.torch import load_file
        except ImportError as error:
            raise MissingExtraError("Reading safetensors", "safetensors", "certify") from error
        try:
            found: Any = load_file(path)
        except Exception as error:
            raise CheckpointError(f"Not a safetensors file: {_details(error)}") from error
    else:
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise CheckpointError(
                "Not weights that can be read without running code (torch.load with weights_only=True): "
                f"{_details(error)} Save model.state_dict(), best as safetensors."
            ) from error
    for key in _NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
            break
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        kind = type(found).__name__
        raise CheckpointError(f"Weights are a state dict, names to tensors; the file holds a {kind}.")
    return dict(found)


def _check_weights(parameters: Mapping[str, Tensor]) -> None:
    bad = [name for name, value in parameters.items() if not bool(torch.isfinite(value).all())]
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise CheckpointError(
            f"Parameters hold NaN or infinity: {', '.join(bad[:3])}{more}. There is no function to audit."
        )


def _details(error: BaseException) -> str:
    """What an error says, on one line."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    # torch explains at length how to load a pickle anyway; what it met is in one line.
    met = [line for line in lines if line.startswith("WeightsUnpickler error")]
    text = " ".join(met[:1] or lines[:4])
    text = text if len(text) <= 400 else text[:399] + "…"
    return f"{type(error).__name__}: {text or '(no message)'}"
