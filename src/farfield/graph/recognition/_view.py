"""What patterns look at: nodes by name, with the steps that change no number looked through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farfield.graph._describe import describe
from farfield.graph._node import Node
from farfield.graph._size import Dimension

__all__ = ["View", "close"]

_LAYOUT = frozenset({"reshape", "squeeze", "unsqueeze"})


def close(value: float | None, wanted: float) -> bool:
    """Equal up to the digits people write constants with."""
    return value is not None and abs(value - wanted) <= 1e-9 * abs(wanted)


def is_float(dtype: torch.dtype | None) -> bool:
    """Whether a node holds real floating numbers."""
    return dtype is not None and dtype.is_floating_point


@dataclass(frozen=True)
class View:
    """The nodes so far, replaced ones in their new form, and the constants."""

    nodes: Mapping[str, Node]
    constants: Mapping[str, Tensor]

    def node(self, name: str) -> Node:
        """The node of this name."""
        return self.nodes[name]

    def plain(self, name: str) -> str:
        """The value behind casts between floating types: the same real number."""
        node = self.nodes[name]
        while node.op == "cast" and is_float(node.dtype):
            source = self.nodes[node.operands[0]]
            if not is_float(source.dtype):
                break
            node = source
        return node.name

    def at(self, name: str | None) -> Node | None:
        """The node behind casts; ``None`` for an absent operand."""
        return None if name is None else self.nodes[self.plain(name)]

    def same(self, first: str | None, second: str | None, depth: int = 3) -> bool:
        """Whether two operands are the same tensor, up to casts, or were computed twice in the same few steps."""
        if first is None or second is None:
            return False
        one, other = self.at(first), self.at(second)
        assert one is not None
        assert other is not None
        if one.name == other.name:
            return True
        return (
            depth > 0
            and bool(one.operands)
            and (one.op, one.target, one.shape, one.dtype)
            == (other.op, other.target, other.shape, other.dtype)
            and one.op != "unknown"
            and describe(one).deterministic
            and one.attributes == other.attributes
            and len(one.inputs) == len(other.inputs)
            and all(
                a is b is None or self.same(a, b, depth - 1)
                for a, b in zip(one.inputs, other.inputs, strict=True)
            )
        )

    def unspread(self, name: str) -> str:
        """The tensor before it was expanded, casts aside: broadcasting does the same on its own."""
        node = self.nodes[self.plain(name)]
        while node.op == "expand":
            node = self.nodes[self.plain(node.operands[0])]
        return node.name

    def statistic(self, name: str) -> Node:
        """The node behind casts, expansions and reshapes, which all keep entries in row-major order."""
        node = self.nodes[self.unspread(name)]
        while node.op in _LAYOUT:
            node = self.nodes[self.unspread(node.operands[0])]
        return node

    def number(self, node: Node, index: int, key: str) -> float | None:
        """An operand that is one fixed number: an attribute, or a constant with one entry."""
        name = node.inputs[index] if index < len(node.inputs) else None
        if name is None:
            value: Any = node.attributes.get(key)
            return float(value) if isinstance(value, int | float) else None
        source = self.statistic(name)
        if source.op == "full" and not source.operands:
            value = source.attributes["fill_value"]
            return float(value) if isinstance(value, int | float) else None
        tensor = self.constants.get(source.name)
        if tensor is None or tensor.numel() != 1 or tensor.is_complex() or tensor.is_meta:
            return None
        return float(tensor)

    def aligned(self, statistic: str, x: Node, dim: tuple[int, ...]) -> bool:
        """Whether a statistic of x over the axes ``dim`` meets the entries of x that it was computed from.

        True if its shape is x's with those axes of length 1, or if it's a single number over all axes; then
        broadcasting pairs each entry with its own statistic. ``x / x.norm(dim=1)`` on a square matrix is the
        case this refuses: the shapes agree, the pairing is wrong.
        """
        shape = self.nodes[self.unspread(statistic)].shape
        reduced: tuple[Dimension, ...] = tuple(1 if a in dim else n for a, n in enumerate(x.shape))
        if shape == reduced:
            return True
        return (
            set(dim) == set(range(len(x.shape))) and all(n == 1 for n in shape) and len(shape) <= len(x.shape)
        )
