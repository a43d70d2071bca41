"""Activations by hand: products of x with a gate that depends on x alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from farfield.graph._node import Node
from farfield.graph.recognition._view import View, close, is_float

__all__ = ["match_gated", "match_shrink"]

_CUBIC = 0.044715
_ROOT = math.sqrt(2 / math.pi)


def match_shrink(view: View, node: Node) -> Node | None:
    """``x − tanh x``."""
    if node.op != "sub" or None in node.inputs or node.attributes["alpha"] != 1 or not is_float(node.dtype):
        return None
    x, squashed = node.operands[0], view.at(node.operands[1])
    if squashed is not None and squashed.op == "tanh" and view.same(squashed.operands[0], x):
        return _activation(node, "tanhshrink", x, {})
    return None


def match_gated(view: View, node: Node) -> Node | None:
    """``silu``, ``mish``, both ``gelu``, ``hardsigmoid`` and ``hardswish``, their factors in any order."""
    if node.op not in ("mul", "div") or not is_float(node.dtype):
        return None
    scale, factors = _factors(view, node.name, node)
    if len(factors) == 1:
        x = _shifted_ramp(view, factors[0])
        return _activation(node, "hardsigmoid", x, {}) if x is not None and close(scale, 1 / 6) else None
    if len(factors) != 2:
        return None
    for x, gate in (factors, factors[::-1]):
        found = _gate(view, view.node(view.plain(gate)), x, scale)
        if found is not None and view.node(x).shape == node.shape:
            op, attributes = found
            return _activation(node, op, x, attributes)
    return None


def _gate(view: View, gate: Node, x: str, scale: float) -> tuple[str, dict[str, Any]] | None:
    if scale == 1:
        if gate.op in ("sigmoid", "hardsigmoid") and view.same(gate.operands[0], x):
            return ("silu" if gate.op == "sigmoid" else "hardswish"), {}
        if gate.op == "tanh":
            inner = view.at(gate.operands[0])
            plain = inner is not None and inner.op == "softplus" and inner.attributes["beta"] == 1
            return ("mish", {}) if plain and inner is not None and view.same(inner.operands[0], x) else None
    if close(scale, 1 / 6):
        ramp = _shifted_ramp(view, gate.name)
        return ("hardswish", {}) if ramp is not None and view.same(ramp, x) else None
    if not close(scale, 0.5) or gate.op != "add" or view.number(gate, 1, "other") != 1:
        return None
    inner = view.at(gate.inputs[0])
    if inner is None or gate.attributes["alpha"] != 1:
        return None
    if inner.op == "erf":
        factor, names = _factors(view, inner.operands[0])
        if len(names) == 1 and view.same(names[0], x) and close(factor, math.sqrt(0.5)):
            return "gelu", {"approximate": "none"}
    if inner.op == "tanh" and _is_gelu_polynomial(view, inner.operands[0], x):
        return "gelu", {"approximate": "tanh"}
    return None


def _is_gelu_polynomial(view: View, name: str, x: str) -> bool:
    """√(2/π) · (x + 0.044715 x³), also as √(2/π) · x · (1 + 0.044715 x²)."""
    factor, names = _factors(view, name)
    if not close(factor, _ROOT):
        return False
    if len(names) == 1:
        total = view.at(names[0])
        if total is None or total.op != "add" or None in total.inputs or total.attributes["alpha"] != 1:
            return False
        return any(
            view.same(first, x) and _power(view, second, x) == 3
            for first, second in (total.operands, total.operands[::-1])
        )
    rest = [n for n in names if not view.same(n, x)]
    if len(names) != 2 or len(rest) != 1:
        return False
    total = view.at(rest[0])
    return (
        total is not None
        and total.op == "add"
        and total.inputs[0] is not None
        and total.attributes["alpha"] == 1
        and view.number(total, 1, "other") == 1
        and _power(view, total.inputs[0], x) == 2
    )


def _power(view: View, name: str, x: str) -> int | None:
    """n if the value is 0.044715 · xⁿ."""
    factor, names = _factors(view, name)
    if not close(factor, _CUBIC):
        return None
    total = 0
    for part in names:
        node = view.node(view.plain(part))
        if view.same(part, x):
            total += 1
        elif node.op == "square" and view.same(node.operands[0], x):
            total += 2
        elif node.op == "pow" and view.number(node, 1, "exponent") == 3 and view.same(node.inputs[0], x):
            total += 3
        else:
            return None
    return total


def _shifted_ramp(view: View, name: str) -> str | None:
    """x if the value is min(max(x + 3, 0), 6)."""
    node = view.at(name)
    if node is None:
        return None
    bounds = {"hardtanh": ("min_val", "max_val"), "clamp": ("min", "max")}.get(node.op)
    if bounds is None or [node.attributes.get(b) for b in bounds] != [0, 6]:
        return None
    moved = view.at(node.inputs[0])
    if moved is None or moved.op != "add" or view.number(moved, 1, "other") != 3:
        return None
    return moved.inputs[0] if moved.attributes["alpha"] == 1 else None


def _factors(view: View, name: str, node: Node | None = None, depth: int = 5) -> tuple[float, list[str]]:
    """A value as a number times tensors, products and quotients by numbers taken apart.

    No activation nests its products deeper than ``depth``; without a limit, products of products of a
    long recurrence would be multiplied out.
    """
    node = view.at(name) if node is None else node
    if depth == 0 or node is None or node.op not in ("mul", "div") or node.inputs[0] is None:
        return 1.0, [name]
    if node.op == "div" and node.attributes.get("rounding_mode") is not None:
        return 1.0, [name]
    by = view.number(node, 1, "other")
    if by is not None:
        scale, names = _factors(view, node.inputs[0], depth=depth - 1)
        if node.op == "div":
            return (scale / by, names) if by else (1.0, [name])
        return scale * by, names
    if node.op == "div" or node.inputs[1] is None:
        return 1.0, [name]
    left = _factors(view, node.inputs[0], depth=depth - 1)
    right = _factors(view, node.inputs[1], depth=depth - 1)
    return left[0] * right[0], [*left[1], *right[1]]


def _activation(node: Node, op: str, source: str, attributes: Mapping[str, Any]) -> Node:
    return replace(node, op=op, inputs=(source,), attributes={**attributes, "recognized": True})
