"""Parts of tensors: the extent of a slice, found by pushing the slice back to where its entries come from.

One extent speaks for a whole tensor, so a bounded token beside growing ones (a class token that only attention
touches, one half of a coupling layer) looks as if it grew. When a slice is taken, the question is asked again for
that slice alone: through entrywise operators, concatenations, permutations and row-wise maps, back to nodes whose
own extent answers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from farfield.gaussian import scalar_function_names
from farfield.graph import Node, Program
from farfield.growth._extent import Extent, join
from farfield.growth._registry import Claim, Rules

__all__ = ["Slicer", "slice_of"]

ENTRYWISE = frozenset(scalar_function_names()) | {
    *("add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp", "where", "masked_fill", "lerp"),
    *("neg", "square", "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "log1p", "dropout", "cast"),
    "identity",
}
ROW_WISE = frozenset({"layer_norm", "rms_norm", "l2_normalize", "softmax", "log_softmax"})
DEPTH = 96

Range: TypeAlias = tuple[int, int, int]
"""(axis, start, stop)"""


def slice_of(node: Node, source: Node) -> Range | None:
    """Which part of its operand a node takes, where that is one range of one axis."""
    a = node.attributes
    if node.op == "select":
        size = source.shape[a["dim"]]
        if isinstance(a["index"], int) and isinstance(size, int):
            index = a["index"] % size
            return a["dim"], index, index + 1
    if node.op == "slice":
        size = source.shape[a["dim"]]
        start, stop = a.get("start"), a.get("end")
        if not isinstance(size, int) or not all(v is None or isinstance(v, int) for v in (start, stop)):
            return None
        first, last, _ = slice(start, stop).indices(size)
        return (a["dim"], first, last) if last > first else None
    return None


def piece_of(node: Node, parts: Node, source: Node) -> Range | None:
    """Which part of the original a piece of a ``split``, ``chunk`` or ``unbind`` is."""
    a, index = parts.attributes, node.attributes["index"]
    if parts.op not in ("split", "chunk", "unbind") or not isinstance(index, int):
        return None
    dim = a["dim"]
    size = source.shape[dim]
    if not isinstance(size, int):
        return None
    if parts.op == "unbind":
        return dim, index % size, index % size + 1
    if parts.op == "chunk":
        width = -(-size // int(a["chunks"]))
        return dim, index * width, min(size, (index + 1) * width)
    widths = a["split_size"]
    if isinstance(widths, int):
        return dim, index * widths, min(size, (index + 1) * widths)
    if not all(isinstance(w, int) for w in widths):
        return None
    start = sum(widths[:index])
    return dim, start, start + widths[index]


@dataclass
class Slicer:
    """Extents of slices of the nodes of one program, under one table of extents."""

    program: Program
    table: Mapping[str, Claim]
    rules: Rules
    memory: dict[tuple[str, Range], Extent] = field(default_factory=dict)

    def extent(self, name: str, part: Range, depth: int = DEPTH) -> Extent:
        """What is known of one part of a node: never less than of the whole."""
        whole = self._whole(name)
        if depth == 0 or whole.bounded or whole.doubts:
            return whole
        key = (name, part)
        if key not in self.memory:
            self.memory[key] = self._pushed(self.program.node(name), part, depth) or whole
        return self.memory[key]

    def _whole(self, name: str) -> Extent:
        claim = self.table[name]
        return join(*claim) if isinstance(claim, tuple) else claim

    def _pushed(self, node: Node, part: Range, depth: int) -> Extent | None:
        dim, start, stop = part
        below = depth - 1
        if node.role != "operation":
            if node.role == "output":
                return self.extent(node.operands[0], part, below)
            return None
        if node.op == "cat":
            return self._joined(node, part, below)
        if node.op == "stack":
            return self._stacked(node, part, below)
        if node.op == "permute":
            return self.extent(node.operands[0], (node.attributes["dims"][dim], start, stop), below)
        if node.op == "getitem":
            return None
        if node.op in ROW_WISE or node.op == "linear":
            axes = node.attributes.get("dim") if node.op in ROW_WISE else len(node.shape) - 1
            if dim in (axes if isinstance(axes, tuple) else (axes,)):
                return None
            return self._applied(node, {node.operands[0]: part}, below)
        if node.op in ENTRYWISE:
            parts = {name: self._aligned(node, name, part) for name in node.operands}
            return self._applied(node, parts, below)
        return None

    def _joined(self, node: Node, part: Range, depth: int) -> Extent | None:
        """A slice of a concatenation: of the pieces it meets, or of every piece along another axis."""
        dim, start, stop = part
        along = node.attributes["dim"]
        found, offset = [], 0
        for name in node.operands:
            if along != dim:
                found.append(self.extent(name, part, depth))
                continue
            size = self.program.node(name).shape[dim]
            if not isinstance(size, int):
                return None
            first, last = max(start, offset), min(stop, offset + size)
            if first < last:
                found.append(self.extent(name, (dim, first - offset, last - offset), depth))
            offset += size
        return join(*found) if found else None

    def _stacked(self, node: Node, part: Range, depth: int) -> Extent:
        """A slice of a stack: some of its tensors, or a slice of every one."""
        dim, start, stop = part
        along = node.attributes["dim"]
        if along == dim:
            return join(*(self._whole(name) for name in node.operands[start:stop]))
        axis = dim if dim < along else dim - 1
        return join(*(self.extent(name, (axis, start, stop), depth) for name in node.operands))

    def _aligned(self, node: Node, operand: str, part: Range) -> Range | None:
        """The slice of an operand that an entrywise slice of the result needs; ``None`` where it is broadcast."""
        dim, start, stop = part
        shape = self.program.node(operand).shape
        axis = dim - (len(node.shape) - len(shape))
        if axis < 0 or (shape[axis] != node.shape[dim]):
            return None
        return axis, start, stop

    def _applied(self, node: Node, parts: Mapping[str, Range | None], depth: int) -> Extent:
        """The operator's own rule, on the slices of its operands."""
        claims: dict[str, Claim] = {}
        for name in node.operands:
            part = parts.get(name)
            claims[name] = self.table[name] if part is None else self.extent(name, part, depth)
        result = self.rules(self.program, node, claims)
        return join(*result) if isinstance(result, tuple) else result
