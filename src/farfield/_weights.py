"""Weights from a file, read as data, and put into the module they belong to.

``.safetensors``, or a pickle read with ``weights_only=True``: a state dict, or a training script's record with one
in it (Lightning's ``.ckpt`` among them). Nothing in a file is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from farfield._regular_file import UnsafeFileError, open_regular
from farfield.errors import FarfieldError, MissingExtraError

__all__ = ["PROTECTIONS", "CheckpointError", "ProtectedWeightsError", "put_weights", "read_weights"]

PROTECTIONS = "farfield_repair"
"""Name of the submodule in which a repaired model holds what was put in."""
_NESTED = ("state_dict", "model_state_dict", "model")
"""Where training scripts put the weights among other things."""
_WRAPPERS = ("module.", "_orig_mod.")
"""What DistributedDataParallel and torch.compile write before every name."""
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class CheckpointError(FarfieldError, ValueError):
    """A file is no checkpoint that can be read, is refused, or does not fit its model; the message says which."""


class ProtectedWeightsError(CheckpointError):
    """The weights are a repaired model's, and the module they are for has no protections."""


def read_weights(path: Path) -> dict[str, Tensor]:
    """Name → tensor, from a file of weights.

    Raises
    ------
    CheckpointError
        With what is wrong with the file.
    """
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
            if "TorchScript" in str(error):
                raise CheckpointError(
                    "It is a traced or scripted module (TorchScript), which farfield can't look into. Save the "
                    "state_dict() of the module it was made from, or export that module with torch.export or to ONNX."
                ) from error
            raise CheckpointError(
                "It holds no weights that can be read without running code (torch.load with weights_only=True): "
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


def _has_protections(weights: Iterable[str]) -> bool:
    """Whether names of weights are a repaired model's."""
    return any(PROTECTIONS in name.split(".") for name in weights)


def put_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights into a module; a prefix that every name carries and the module does not know is taken off.

    So fit a Lightning module's weights (``net.0.weight``) to the network inside it (``0.weight``), and those of a
    wrapped module to the module.

    Raises
    ------
    CheckpointError
        With the names that are missing or too many.
    """
    if _has_protections(weights) and not _has_protections(model.state_dict()):
        raise ProtectedWeightsError(
            "These are a repaired model's weights, and the module has no protections. farfield.repair.restore("
            "module, path) puts both in, and so do commands that take --weights. For audit-all save the repaired "
            "model as .pt2 or .onnx."
        )
    try:
        model.load_state_dict(_fitted(weights, set(model.state_dict())))
    except RuntimeError as error:
        raise CheckpointError(f"The weights do not fit {type(model).__name__}: {_details(error)}") from error


def _fitted(weights: Mapping[str, Tensor], wanted: set[str]) -> dict[str, Tensor]:
    if wanted <= set(weights) or not wanted:
        return dict(weights)
    one = next(iter(wanted))
    prefixes = {name.removesuffix(one) for name in weights if name.endswith(one)} | set(_WRAPPERS)
    fitting = [
        p for p in sorted(prefixes) if p and wanted <= {n.removeprefix(p) for n in weights if n.startswith(p)}
    ]
    if len(fitting) != 1:
        return dict(weights)
    (prefix,) = fitting
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _details(error: BaseException) -> str:
    """What an error says, on one line."""
    lines = [line.strip() for line in _COLORS.sub("", str(error)).splitlines() if line.strip()]
    # torch explains at length how to load a pickle anyway; what it met is in one line.
    met = [line for line in lines if line.startswith("WeightsUnpickler error")]
    text = " ".join(met[:1] or lines[:4])
    text = text if len(text) <= 400 else text[:399] + "…"
    return f"{type(error).__name__}: {text or '(no message)'}"
