"""Products that are 0 wherever one factor is large: cutoffs, B-splines, masks.

A factor like ``where(d < r, f(d), 0)`` or ``((x >= a) & (x < b)).float()`` differs from 0 only where some earlier
nodes lie in an interval. Only there does the other factor matter, and it is bounded again with those nodes cut to
their intervals. The branches of ``where`` are treated alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from farfield.graph import Node, Program, describe
from farfield.growth._extent import ZERO, Extent, add, interval, join, multiply, negate, ratio, widened
from farfield.growth._rate import BOUNDED
from farfield.growth._registry import Claim, Rules, is_complex, number

__all__ = ["Supports"]

DEPTH = 40
INF = math.inf
Shape: TypeAlias = tuple[Any, ...]
_OPPOSITE = {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt"}
_MIRRORED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}
_KEEPS_ZERO = frozenset(["cast", "identity", "neg", "abs", "square", "expand"])


@dataclass(frozen=True, slots=True)
class Window:
    """An interval that holds entries of a node, and a shape that says which.

    The shape is aligned from the right with that of the node where the windows are met, as in broadcasting: an entry
    there speaks of the entry that is broadcast to it; along an axis of length 1, of all of them.
    """

    shape: Shape
    lo: float
    hi: float


Windows: TypeAlias = "dict[str, Window]"


def _both(one: Windows, other: Windows) -> Windows:
    """What holds where both do."""
    made = {**other, **one}
    for name in one.keys() & other.keys():
        if one[name].shape == other[name].shape:
            lo, hi = max(one[name].lo, other[name].lo), min(one[name].hi, other[name].hi)
            made[name] = replace(one[name], lo=lo, hi=hi)
    return made


def _either(one: Windows, other: Windows) -> Windows:
    """What holds where one of them does."""
    return {
        name: replace(one[name], lo=min(one[name].lo, w.lo), hi=max(one[name].hi, w.hi))
        for name, w in other.items()
        if name in one and one[name].shape == w.shape
    }


def _fitted(windows: Windows, shape: Shape) -> Windows:
    """Windows as seen from an operand of this shape; one that tells more entries apart than it has is dropped."""
    made = {}
    for name, window in windows.items():
        wide = (1,) * (len(shape) - len(window.shape)) + window.shape
        head, own = wide[: len(wide) - len(shape)], wide[len(wide) - len(shape) :]
        if all(d == 1 for d in head) and all(w in (1, d) for w, d in zip(own, shape, strict=True)):
            made[name] = replace(window, shape=own)
    return made


def _along(windows: Windows, axes: tuple[int, ...]) -> Windows:
    """Those that hold all along these axes."""
    return {name: w for name, w in windows.items() if all(w.shape[a] == 1 for a in axes)}


def _mixed_axes(node: Node) -> tuple[int, ...] | None:
    """Axes along which a node mixes entries, none of them taken away; ``None`` where that is not known."""
    if node.op == "linear":
        return (len(node.shape) - 1,)
    if describe(node).entrywise:
        return ()
    dim = node.attributes.get("dim")
    if node.op == "softmax" or (node.op in ("sum", "mean", "amax", "norm") and node.attributes["keepdim"]):
        return dim if isinstance(dim, tuple) else (dim,) if isinstance(dim, int) else None
    return None


class Supports:
    """Where the nodes of one program differ from 0, under one table of extents."""

    def __init__(self, program: Program, table: Mapping[str, Claim], rules: Rules) -> None:
        self.program, self.table, self.rules = program, table, rules
        self._found: dict[tuple[str, bool], Windows] = {}
        self._inside: dict[tuple[str, frozenset[tuple[str, Window]]], Extent] = {}

    def extent(self, node: Node) -> Extent | None:
        """A bounded claim about a product or a choice; ``None`` where this says nothing."""
        names = node.inputs
        if node.op not in ("mul", "div", "where") or is_complex(node) or node.attributes.get("rounding_mode"):
            return None
        if node.op == "where":
            if not (self._where(str(names[0]), True) or self._where(str(names[0]), False)):
                return None
            value = join(self._branch(node, 1, "input"), self._branch(node, 2, "other"))
        else:
            if None in names or not all(self._whole(str(name)).known for name in names):
                return None
            one, other = (str(name) for name in names)
            windows = self._where(one, True)
            windows = _both(windows, self._where(other, True)) if node.op == "mul" else windows
            if not windows:
                return None
            parts = [self._within(name, windows) for name in (one, other)]
            value = join(ZERO, (multiply if node.op == "mul" else ratio)(parts[0], parts[1], node.name))
        if not value.bounded:
            return None
        return replace(value, lower=max(value.lower, BOUNDED), upper=max(value.upper, BOUNDED))

    def _branch(self, node: Node, index: int, attribute: str) -> Extent:
        """One side of a choice, where it is the one that is taken."""
        name = node.inputs[index]
        if name is None:
            return number(node.attributes[attribute])
        return self._within(name, self._where(str(node.inputs[0]), index == 1))

    def _whole(self, name: str) -> Extent:
        claim = self.table[name]
        return join(*claim) if isinstance(claim, tuple) else claim

    def _where(self, name: str, truth: bool, depth: int = DEPTH) -> Windows:
        """Windows that hold wherever an entry of the node is not 0 (is 0, where ``truth`` is false)."""
        if depth and (name, truth) not in self._found:
            node = self.program.node(name)
            found = self._asked(node, truth, depth - 1) if node.role == "operation" else {}
            self._found[name, truth] = {n: w for n, w in found.items() if w.lo > -INF or w.hi < INF}
        return self._found.get((name, truth), {})

    def _asked(self, node: Node, truth: bool, below: int) -> Windows:
        if node.op in _OPPOSITE:
            return self._compared(node, node.op if truth else _OPPOSITE[node.op])
        first, a, op = node.inputs[0] if node.inputs else None, node.attributes, node.op
        if first is None:
            return {}
        second = node.inputs[1] if len(node.inputs) > 1 else None
        if op in ("logical_not", "bitwise_not") and node.dtype == torch.bool:
            return self._where(first, not truth, below)
        one, other = (
            self._where(first, truth, below),
            {} if second is None else self._where(second, truth, below),
        )
        if op in ("logical_and", "bitwise_and", "logical_or", "bitwise_or") and second is not None:
            return (_both if op.endswith("and") is truth else _either)(one, other)
        if not truth:
            return {}
        if op == "relu":
            return _both(one, self._behind(first, Window(node.shape, 0.0, INF)))
        if op in _KEEPS_ZERO or (op == "div" and not a.get("rounding_mode")):
            return one
        if op == "mul":
            return _both(one, other)
        if op in ("add", "sub") and second is not None:
            return _either(one, other)
        if op == "where":
            return self._chosen(node, below)
        if op in ("slice", "unsqueeze"):
            seen = _fitted(one, self.program.node(first).shape)
            cut, put = a["dim"], (1,) if op == "unsqueeze" else ()
            seen = _along(seen, (cut,)) if op == "slice" else seen
            return {n: replace(w, shape=w.shape[:cut] + put + w.shape[cut:]) for n, w in seen.items()}
        return {}

    def _chosen(self, node: Node, below: int) -> Windows:
        """Where a choice differs from 0: a branch that does, under the condition that leads there."""
        sides = []
        for index, attribute in ((1, "input"), (2, "other")):
            name = node.inputs[index]
            value = number(node.attributes[attribute]) if name is None else self._whole(name)
            if not value.lo == value.hi == 0.0 or value.doubts:
                own = {} if name is None else self._where(name, True, below)
                sides.append(_both(self._where(str(node.inputs[0]), index == 1, below), own))
        return _either(*sides) if len(sides) == 2 else sides[0] if sides else {}

    def _compared(self, node: Node, op: str) -> Windows:
        """What a comparison says of either side, given how far the other can go."""
        found: Windows = {}
        for index, sign in ((0, op), (1, _MIRRORED[op])):
            name, across = node.inputs[index], node.inputs[1 - index]
            if name is None:
                continue
            value = node.attributes.get(("other", "input")[index])
            if across is None and not (isinstance(value, int | float) and value == value):
                continue
            other = number(value) if across is None else self._whole(across)
            if other.doubts or other.assumptions:
                continue
            lo, hi = (other.lo, INF) if sign in ("gt", "ge") else (-INF, other.hi)
            found = _both(found, self._behind(name, Window(self.program.node(name).shape, lo, hi)))
        return found

    def _behind(self, name: str, window: Window, depth: int = 6) -> Windows:
        """A window, and what it says of the operands that the node is computed from."""
        node, whole = self.program.node(name), self._whole(name)
        if whole.doubts or whole.assumptions or is_complex(node):
            return {}
        window = replace(window, lo=max(window.lo, whole.lo), hi=min(window.hi, whole.hi))
        found = {name: window}
        if depth == 0 or node.role != "operation" or window.lo > window.hi or window.lo == -window.hi == -INF:
            return found
        for index, operand in enumerate(node.inputs[:2]):
            value = None if operand is None else self._solved(node, index, interval(window.lo, window.hi))
            if operand is not None and value is not None and not (value.doubts or value.assumptions):
                own = self.program.node(operand).shape
                own = (1,) * (len(window.shape) - len(own)) + own
                narrow = tuple(1 if d == 1 else w for w, d in zip(window.shape, own, strict=True))
                found = _both(found, self._behind(operand, Window(narrow, value.lo, value.hi), depth - 1))
        return found

    def _solved(self, node: Node, index: int, box: Extent) -> Extent | None:
        """Where an operand lies if the node lies in the box."""
        op, a, top = node.op, node.attributes, box.hi
        source = self.program.node(str(node.inputs[index]))
        if source.dtype is None or not source.dtype.is_floating_point:
            return None
        if op in ("add", "sub", "mul", "div") and not a.get("rounding_mode") and a.get("alpha", 1) == 1:
            across, value = node.inputs[1 - index], a.get(("other", "input")[index])
            if across is None and not isinstance(value, int | float):
                return None
            other = number(value) if across is None else self._whole(across)
            if op in ("add", "sub"):
                flipped = op == "sub" and index == 1
                return add(
                    negate(box) if flipped else box, other if op == "sub" else negate(other), node.name
                )
            if op == "div":
                return multiply(box, other, node.name) if index == 0 else None
            return ratio(box, other, node.name) if other.gap > 0.0 else None
        if op == "neg":
            return negate(box)
        if op in ("sqrt", "square"):
            size = top * top if op == "sqrt" else math.sqrt(max(top, 0.0))
            return interval(-widened(size, up=True), widened(size, up=True))
        if op == "abs" or (op == "norm" and a.get("keepdim") and float(a.get("ord", 2)) >= 1.0):
            return interval(-top, top)
        if op == "sum" and a.get("keepdim") and self._whole(source.name).lo >= 0.0:
            return interval(0.0, top)
        return None

    def _within(self, name: str, windows: Windows, depth: int = DEPTH) -> Extent:
        """The extent of those entries of a node that the windows speak of."""
        node, whole = self.program.node(name), self._whole(name)
        windows = _fitted(windows, node.shape)
        if name in windows:
            lo, hi = max(whole.lo, windows[name].lo), min(whole.hi, windows[name].hi)
            return replace(whole, lo=min(lo, hi), hi=hi)
        if not windows or depth == 0 or whole.bounded or node.role != "operation":
            return whole
        key = (name, frozenset(windows.items()))
        if key not in self._inside:
            self._inside[key] = self._applied(node, windows, depth - 1) or whole
        return self._inside[key]

    def _applied(self, node: Node, windows: Windows, below: int) -> Extent | None:
        """The node's own rule, on those entries of its operands that the windows speak of."""
        mixed = _mixed_axes(node)
        if node.op == "unsqueeze":
            dim = node.attributes["dim"]
            kept = _along(windows, (dim,)).items()
            windows = {n: replace(w, shape=w.shape[:dim] + w.shape[dim + 1 :]) for n, w in kept}
        elif mixed is None:
            return None
        else:
            windows = _along(windows, mixed)
        claims: dict[str, Claim] = {}
        for place, operand in enumerate(node.operands):
            seen = not mixed or place == 0  # weights have no rows in step with the node's
            claims[operand] = self._within(operand, windows, below) if seen else self.table[operand]
        result = self.rules(self.program, node, claims)
        return join(*result) if isinstance(result, tuple) else result
