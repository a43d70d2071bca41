"""Steps that average: x⁺ = z·x + (1 − z)·n with a gate z in [0, 1], as in a GRU, however that is written."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TypeAlias

from farfield.graph import Node, Program, describe

__all__ = ["averaged_with"]

Polynomial: TypeAlias = dict[tuple[str, ...], Fraction]
"""Sorted names of the nodes that are multiplied → coefficient."""
MOST_TERMS = 16


def averaged_with(program: Program, state: str, output: str) -> str | None:
    """The node n with output = z·state + (1 − z)·n, entry by entry and for some gate z; ``None`` if there is none.

    The output is multiplied out into products of nodes. For the gate 0 and the gate 1 no coefficient may be negative,
    and they add up to 1 for every gate: then the output lies between the two.
    """
    terms = _terms(program, program.node(output), state)
    for gate in sorted({name for product in terms for name in product}):
        low, high = describe(program.node(gate)).range
        if low < 0.0 or high > 1.0 or program.node(gate).role != "operation":
            continue
        plain, gated = Polynomial(), Polynomial()
        for product, factor in terms.items():
            rest = list(product)
            part = gated if gate in rest else plain
            if gate in rest:
                rest.remove(gate)
            part[tuple(rest)] = factor
        parts = plain.keys() | gated.keys()
        ends = [
            (plain.get(p, Fraction(0)), plain.get(p, Fraction(0)) + gated.get(p, Fraction(0))) for p in parts
        ]
        convex = (
            all(min(pair) >= 0 for pair in ends) and sum(a for a, _ in ends) == sum(b for _, b in ends) == 1
        )
        others = parts - {(state,)}
        if convex and len(parts) == 2 and len(others) == 1:
            (other,) = others
            return other[0] if len(other) == 1 else None
    return None


def _terms(program: Program, node: Node, state: str) -> Polynomial:
    """A node as a sum of products of nodes of its own shape; itself where it is no such sum."""
    alone: Polynomial = {(node.name,): Fraction(1)}
    if node.name == state or any(program.node(name).shape != node.shape for name in node.operands):
        return alone
    if node.dtype is None or not node.dtype.is_floating_point or node.role not in ("operation", "output"):
        return alone
    names, a = dict(zip(("input", "other"), node.inputs, strict=False)), node.attributes
    if node.op == "identity":
        return _terms(program, program.node(node.operands[0]), state)
    if node.op == "neg":
        return _scaled(_terms(program, program.node(node.operands[0]), state), Fraction(-1))
    if node.op == "lerp" and None not in node.inputs:
        start, end, weight = (_terms(program, program.node(str(n)), state) for n in node.inputs)
        return _sum(start, _product(_sum(end, _scaled(start, Fraction(-1))), weight))
    if node.op not in ("add", "sub", "mul"):
        return alone
    sides = [_side(program, names[key], a, key, state) for key in ("input", "other")]
    if sides[0] is None or sides[1] is None or a.get("alpha", 1) != 1:
        return alone
    if node.op == "mul":
        found = _product(sides[0], sides[1])
    else:
        found = _sum(sides[0], _scaled(sides[1], Fraction(1 if node.op == "add" else -1)))
    return found if len(found) <= MOST_TERMS else alone


def _side(
    program: Program, name: str | None, attributes: Mapping[str, object], key: str, state: str
) -> Polynomial | None:
    if name is not None:
        return _terms(program, program.node(name), state)
    value = attributes.get(key)
    return {(): Fraction(value)} if isinstance(value, int | float) and abs(value) < float("inf") else None


def _scaled(terms: Polynomial, factor: Fraction) -> Polynomial:
    return {product: factor * value for product, value in terms.items()}


def _sum(one: Polynomial, other: Polynomial) -> Polynomial:
    total = dict(one)
    for product, value in other.items():
        total[product] = total.get(product, Fraction(0)) + value
    return {product: value for product, value in total.items() if value}


def _product(one: Polynomial, other: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for left, a in one.items():
        total = _sum(total, {tuple(sorted(left + right)): a * b for right, b in other.items()})
    return total
