"""Nodes without a translation: one opaque call each, named by their ONNX operator, that an audit calls unknown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from farfield.graph._node import Node
from farfield.graph._unknown import OpaqueNodeError

__all__ = ["unknown_reason", "unknown_value"]

NAMESPACE = "onnx_node"
_LIBRARIES: dict[str, Any] = {}
"""Operator name → the library that keeps its definition; torch forgets a definition with its library."""


def unknown_value(
    operator: str,
    inputs: Sequence[Tensor],
    sizes: Sequence[Any],
    dtype: torch.dtype,
    output: int,
    reason: str,
) -> Tensor:
    """One result of an operator that nobody translated: its type and sizes, and no values.

    Captured, it is a call that no operator is registered for. Run, it raises.
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", operator)[:80]
    name = name if name[:1].isalpha() else f"operator_{name}"
    if name not in _LIBRARIES:
        _LIBRARIES[name] = _defined(name, operator)
    call = getattr(getattr(torch.ops, NAMESPACE), name).default
    made: Tensor = call(list(inputs), list(sizes), dtype, output, reason)
    return made


def _defined(name: str, operator: str) -> Any:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define(
        f"{name}(Tensor[] inputs, SymInt[] size, ScalarType dtype, int output, str reason) -> Tensor"
    )

    def run(inputs: Any, size: Any, dtype: Any, output: int, reason: str) -> Tensor:
        raise OpaqueNodeError(
            f"The ONNX operator {operator!r} can't be run here, so the file can be looked at but not run: {reason}."
        )

    def shape(inputs: Any, size: Any, dtype: Any, output: int, reason: str) -> Tensor:
        return torch.empty(size, dtype=dtype)

    library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", shape, lib=library)
    return library


def unknown_reason(node: Node) -> str | None:
    """Why a captured ONNX node has no translation; ``None`` for any other node."""
    operator = node.target.split(".")
    if node.op != "unknown" or operator[0] != NAMESPACE:
        return None
    args = node.attributes.get("call", ((), {}))[0]
    return str(args[-1]) if args else "it has no translation"
