"""One module of whatever a model comes as: itself, an exported program, a file."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import tree_map

from farfield.errors import InvalidValueError
from farfield.graph._archive import read_program
from farfield.graph._prepare import unwrapped
from farfield.graph._wrong_target import wrong_path
from farfield.graph.onnx import is_onnx, read_onnx

__all__ = ["Runnable", "as_module", "copied", "in_memory"]

Runnable: TypeAlias = "nn.Module | ExportedProgram | str | os.PathLike[str]"
"""A module, an exported program, or the path of a ``.pt2`` or ``.onnx`` file."""
Model = TypeVar("Model", bound=nn.Module)


def as_module(target: Runnable) -> nn.Module:
    """The module itself; of a program, one that runs it. A file is read without running anything in it.

    Of ``torch.compile`` and ``DataParallel`` it is the module inside: what stands on the wrapper would not be seen.
    """
    if isinstance(target, str | os.PathLike):
        if (said := wrong_path(target)) is not None:
            raise InvalidValueError(said)
        if is_onnx(target):
            return read_onnx(target)
        target = read_program(target)
    if isinstance(target, torch.jit.ScriptModule):
        raise InvalidValueError(
            "Nobody can look into TorchScript, so a traced or scripted module can't be changed. Pass the nn.Module "
            "it was made from, or export that with torch.export or to ONNX."
        )
    target = unwrapped(target)
    if isinstance(target, ExportedProgram):
        target = target.module()
    if isinstance(target, fx.GraphModule):
        target = copied(target)
        for name in ("train", "eval"):  # torch's raise: an exported program has one mode, and keeps it
            target.__dict__.pop(name, None)
    return target


def copied(model: Model) -> Model:
    """A deep copy; of a program without torch's warnings about its own records."""
    with warnings.catch_warnings():
        if isinstance(model, fx.GraphModule):
            warnings.simplefilter("ignore", FutureWarning)
        # What a module keeps of an earlier call (the old weight_norm, a cache) is no leaf: deepcopy refuses it, as it
        # does sparse tensors in rows or columns.
        kept = {
            id(value): value.detach().clone()
            for module in model.modules()
            for value in _tensors(module)
            if not value.is_leaf or value.layout != torch.strided
        }
        return copy.deepcopy(model, kept)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Parameters, buffers and tensors in attributes of this module alone."""
    held = (module._parameters.values(), module._buffers.values(), vars(module).values())
    yield from (value for values in held for value in values if isinstance(value, Tensor))


def in_memory(value: Any) -> Any:
    """What proofs are made on: a model, or example inputs, in main memory.

    A model that lies there is handed back as it is; of one on a device it is a copy, and the device's memory is not
    used for it.
    """
    if isinstance(value, ExportedProgram):
        if all(_is_here(tensor) for tensor in (*value.state_dict.values(), *value.constants.values())):
            return value
        return move_to_device_pass(copy.deepcopy(value), "cpu")
    if not isinstance(value, nn.Module):
        return tree_map(lambda leaf: leaf if _is_here(leaf) else leaf.cpu(), value)
    away = [t for module in value.modules() for t in _tensors(module) if not _is_here(t)]
    if not away:
        return value
    here: dict[int, Any] = {id(t): t.detach().cpu() for t in away}
    for tensor in away:
        if isinstance(tensor, nn.Parameter):
            here[id(tensor)] = nn.Parameter(here[id(tensor)], tensor.requires_grad)
    return copy.deepcopy(unwrapped(value), here)


def _is_here(value: Any) -> bool:
    return not isinstance(value, Tensor) or value.device.type in ("cpu", "meta")
