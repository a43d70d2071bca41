"""Constants computed from constants: weight norms, transposed weights, masks, positional encodings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from farfield.graph._describe import describe
from farfield.graph._interpret import compute_node
from farfield.graph._node import Node
from farfield.graph._program import Program
from farfield.graph._simplify import prune
from farfield.graph._size import symbols_in

__all__ = ["LARGEST_FOLD", "fold"]

LARGEST_FOLD = 2**22
"""Entries a folded constant may have beyond the size of what it is computed from."""


def fold(program: Program, *, largest: int = LARGEST_FOLD) -> Program:
    """Replace every operation whose inputs are all constants by its value.

    Views share the storage of what they view. A result that needs storage of its own is folded if it has at
    most ``largest`` entries, or no more than its inputs together; otherwise the operation stays.
    Random draws and sizes that vary are never folded.
    """
    constants: dict[str, Any] = dict(program.constants)
    names: dict[str, str] = dict(program.constant_names)
    nodes: list[Node] = []
    for node in program.nodes:
        folded = _folded(node, constants, largest) if node.role == "operation" else None
        if folded is None:
            nodes.append(node)
            continue
        constants[node.name] = folded
        names[node.name] = "+".join(dict.fromkeys(names[n] for n in node.operands if n in names)) or node.name
        if isinstance(folded, Tensor):
            nodes.append(
                replace(
                    node,
                    op="constant",
                    target=names[node.name],
                    inputs=(),
                    attributes={},
                    shape=tuple(folded.shape),
                    role="constant",
                )
            )
    tensors = {name: value for name, value in constants.items() if isinstance(value, Tensor)}
    return prune(replace(program, nodes=tuple(nodes), constants=tensors, constant_names=names))


def _folded(node: Node, constants: Mapping[str, Any], largest: int) -> Any:
    if not all(name in constants for name in node.operands) or not describe(node).deterministic:
        return None
    if any(symbols_in(v) for v in node.attributes.values()):
        return None
    if any(isinstance(d, str) for d in node.shape):
        return None
    tensors = [None if name is None else constants[name] for name in node.inputs]
    entries = math.prod(int(length) for length in node.shape)
    given = sum(t.numel() for t in tensors if isinstance(t, Tensor))
    if entries > max(largest, given):
        return None
    with torch.no_grad():
        made = compute_node(node, tensors, {})
    # A sparse tensor stays what its operation makes of a dense one: no analysis reads its entries.
    return None if isinstance(made, Tensor) and made.layout != torch.strided else made
