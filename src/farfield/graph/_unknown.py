"""Operators nobody registered: kept with their inputs, run by calling what was captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from farfield.errors import FarfieldError
from farfield.graph._node import Node

__all__ = ["OpaqueNodeError", "Slot", "compute_unknown", "torch_function"]


class OpaqueNodeError(FarfieldError, NotImplementedError):
    """A value was asked of a node that the capture could not look into."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the i-th input goes in the arguments of an unknown call."""

    index: int


def compute_unknown(node: Node, tensors: Sequence[Any]) -> Any:
    """Call the captured function itself, where it is one that torch can look up by name."""
    call = node.attributes.get("call")
    function = torch_function(node.target)
    if call is None or function is None:
        raise OpaqueNodeError(
            f"{node.target!r} at {node.place} can't be run apart from the model: the capture kept its inputs "
            "but not how it computes. Call the model itself for its values, or register_operator(...) with a "
            "compute function for it."
        )
    args, kwargs = tree_map(lambda v: tensors[v.index] if isinstance(v, Slot) else v, call)
    return function(*args, **kwargs)


def torch_function(target: str) -> Any:
    """The operator that torch registers under a captured name, or ``None``."""
    parts = target.split(".")
    if len(parts) != 3:
        return None
    value: Any = torch.ops
    for part in parts:
        value = getattr(value, part, None)
        if value is None:
            return None
    return value
