"""Caps by hand: a vector that stays as it is inside a ball and is drawn back to its surface outside.

With v = w ⊙ (z − c), all of these are c + (R · v/max(‖v‖, R)) / w, a norm stabilized by R and its affine image: what
is known of norms (their image is a ball) then holds behind a cap as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from farfield.graph._node import Node
from farfield.graph.recognition._norms import Size, length
from farfield.graph.recognition._view import View, is_float

__all__ = ["match_cap"]

_SMALLER = {"le": True, "lt": True, "ge": False, "gt": False}


@dataclass(frozen=True)
class _Ball:
    """v, in units of which R is given, and how z is made of it: z = c + v/w."""

    v: str
    z: str
    center: str | None
    weight: str | None
    dim: tuple[int, ...]
    radius: float


def match_cap(view: View, node: Node) -> tuple[Node, ...] | None:
    """``where(‖v‖ ≤ R, z, c + v·R/‖v‖/w)``, ``z·min(1, R/‖z‖)`` and ``z/max(1, ‖z‖/R)`` as a norm times R.

    Comparisons may be strict or not and stand either way round: on the surface both branches agree. The size may be
    computed as ‖v/s‖·s with s = max|v|, which does not overflow. Infinite entries of v may be replaced by finite ones
    of at least R before.
    """
    if not is_float(node.dtype):
        return None
    if node.op == "where" and None not in node.inputs:
        return _selected(view, node)
    if node.op in ("mul", "div") and None not in node.inputs and not node.attributes.get("rounding_mode"):
        return _multiplied(view, node)
    return None


def _selected(view: View, node: Node) -> tuple[Node, ...] | None:
    condition, *branches = node.operands
    test = view.at(condition)
    if test is None or test.op not in _SMALLER:
        return None
    smaller, size, radius = _SMALLER[test.op], test.inputs[0], view.number(test, 1, "other")
    if radius is None and None not in test.inputs:  # R ≥ ‖v‖
        smaller, size, radius = not smaller, test.inputs[1], _alone(view, test.inputs[0])
    inside, outside = branches if smaller else branches[::-1]
    found = None if size is None else _whole_length(view, size)
    if radius is None or found is None:
        return None
    ball = _ball(view, found, radius, inside)
    if ball is None or not view.same(inside, ball.z) or view.node(inside).shape != node.shape:
        return None
    v = view.node(ball.v)
    if not view.aligned(condition, v, ball.dim) or v.shape != node.shape:
        return None
    drawn = _without(view, outside, "add", ball.center)
    drawn = None if drawn is None else _without(view, drawn, "div", ball.weight)
    if drawn is None or _multiple_of_unit(view, drawn, ball) != radius:
        return None
    return _written(view, node, ball)


def _multiplied(view: View, node: Node) -> tuple[Node, ...] | None:
    orders = (node.operands, node.operands[::-1]) if node.op == "mul" else (node.operands,)
    for z, other in orders:
        factor = view.statistic(other)
        bound = ("max", "minimum") if node.op == "mul" else ("min", "maximum")
        share = _limited(view, factor, *bound)
        found = None if share is None else _share(view, share, upright=node.op == "mul")
        if found is None:
            continue
        size, radius = found
        ball, v = _ball(view, size, radius, z), view.node(z)
        fits = ball is not None and view.same(z, ball.v) and v.shape == node.shape
        if ball is not None and fits and view.aligned(other, v, ball.dim):
            return _written(view, node, ball)
    return None


def _limited(view: View, factor: Node, bound: str, either: str) -> Node | None:
    """The value that is kept at most (``max``) or at least (``min``) at 1."""
    if factor.op == "clamp" and factor.inputs[0] is not None:
        other, place, other_place = ("min", 2, 1) if bound == "max" else ("max", 1, 2)
        absent = factor.inputs[other_place] is None and factor.attributes.get(other) is None
        if absent and view.number(factor, place, bound) == 1.0:
            return view.statistic(factor.inputs[0])
    if factor.op == either and factor.inputs[0] is not None and view.number(factor, 1, "other") == 1.0:
        return view.statistic(factor.inputs[0])
    return None


def _share(view: View, node: Node, *, upright: bool) -> tuple[Size, float] | None:
    """(‖v‖, R) of a value R/‖v‖, or of ‖v‖/R where it is not upright."""
    if not upright:
        by = (
            view.number(node, 1, "other")
            if node.op == "div" and not node.attributes.get("rounding_mode")
            else None
        )
        size = None if by is None or node.inputs[0] is None else _whole_length(view, node.inputs[0])
        return None if size is None or by is None else (size, by)
    if node.op == "div" and None not in node.inputs and not node.attributes.get("rounding_mode"):
        top, size = _alone(view, node.inputs[0]), _whole_length(view, node.operands[1])
        return None if top is None or size is None else (size, top)
    if node.op == "mul" and node.inputs[0] is not None:
        by, inverse = view.number(node, 1, "other"), view.statistic(node.inputs[0])
        size = _whole_length(view, inverse.operands[0]) if inverse.op == "reciprocal" else None
        return None if by is None or size is None else (size, by)
    return None


def _alone(view: View, name: str | None) -> float | None:
    """A constant of one entry as a number."""
    return None if name is None else view.number(Node("", "", inputs=(name,)), 0, "")


def _ball(view: View, size: Size, radius: float, inside: str) -> _Ball | None:
    """The ball of a size, if it is one of radius R; ``inside`` is the value that is kept there."""
    if not 0 < radius < math.inf or not _is_euclidean(size, radius):
        return None
    v = view.node(size.source)
    if view.same(inside, v.name):
        return _Ball(v.name, v.name, None, None, size.dim, radius)
    product = _finite_part(view, v, radius)
    weight = center = None
    away = product
    if product.op == "mul" and None not in product.inputs:
        for first, second in (product.operands, product.operands[::-1]):
            if _never_zero(view, second):
                away, weight = view.node(view.plain(first)), second
                break
    z = away
    if away.op == "sub" and None not in away.inputs and away.attributes["alpha"] == 1:
        first, second = away.operands
        if view.unspread(second) in view.constants:
            z, center = view.node(view.plain(first)), second
    return _Ball(v.name, z.name, center, weight, size.dim, radius)


def _is_euclidean(size: Size, radius: float) -> bool:
    """Whether a size is ‖·‖₂ wherever that exceeds R, and at most R elsewhere."""
    harmless = size.eps == 0 or (size.eps_mode == "clamp" and size.eps <= radius)
    return size.order == 2 and size.correction is None and not size.centered and harmless


def _never_zero(view: View, name: str) -> bool:
    """A constant without zeros, infinities and NaN."""
    tensor = view.constants.get(view.unspread(name))
    return tensor is not None and not tensor.is_meta and bool((tensor.isfinite() & (tensor != 0)).all())


def _finite_part(view: View, v: Node, radius: float) -> Node:
    """What v is where it is finite: ``where(isinf(p), clamp(p, −b, b), p)`` with b ≥ R is p."""
    if v.op != "where" or None in v.inputs:
        return v
    test, replaced, p = (view.node(view.plain(name)) for name in v.operands)
    if test.op != "isinf" or not view.same(test.operands[0], p.name) or replaced.op != "clamp":
        return v
    low, high = view.number(replaced, 1, "min"), view.number(replaced, 2, "max")
    wide = low is not None and high is not None and low <= -radius and high >= radius
    return p if wide and view.same(replaced.inputs[0], p.name) else v


def _without(view: View, name: str, op: str, constant: str | None) -> str | None:
    """The value before a constant was added, or divided by; the value itself where there is none."""
    if constant is None:
        return name
    node = view.at(name)
    if node is None or node.op != op or None in node.inputs or node.attributes.get("alpha", 1) != 1:
        return None
    if node.attributes.get("rounding_mode") is not None:
        return None
    first, second = node.operands
    if view.same(second, constant):
        return first
    return second if op == "add" and view.same(first, constant) else None


def _multiple_of_unit(view: View, name: str, ball: _Ball) -> float | None:
    """k if the value is k·v/‖v‖ wherever ‖v‖ > R."""
    node = view.at(name)
    if node is None:
        return None
    if node.op == "l2_normalize":
        return 1.0 if _is_unit(view, node, ball) else None
    if node.op not in ("mul", "div") or node.inputs[0] is None or node.attributes.get("rounding_mode"):
        return None
    by = view.number(node, 1, "other")
    if by is not None:  # one number only: a product of two would be rounded
        inner = _multiple_of_unit(view, node.inputs[0], ball)
        return by if inner == 1.0 and node.op == "mul" else None
    if None in node.inputs:
        return None
    orders = (node.operands, node.operands[::-1]) if node.op == "mul" else (node.operands,)
    for top, other in orders:
        factor = _multiple_of(view, top, ball)
        if factor is None or not view.aligned(other, view.node(ball.v), ball.dim):
            continue
        size, number = _whole_length(view, other), 1.0
        if node.op == "mul":
            size, number = _share(view, view.statistic(other), upright=True) or (None, 1.0)
        same = size is not None and size.source == ball.v and set(size.dim) == set(ball.dim)
        if size is not None and same and _is_euclidean(size, ball.radius) and 1.0 in (factor, number):
            return factor * number
    return None


def _multiple_of(view: View, name: str, ball: _Ball) -> float | None:
    """k if the value is k·v."""
    if view.same(name, ball.v):
        return 1.0
    node = view.at(name)
    if node is None or node.op != "mul" or not view.same(node.inputs[0], ball.v):
        return None
    return view.number(node, 1, "other")


def _is_unit(view: View, node: Node, ball: _Ball) -> bool:
    """Whether a norm is v/‖v‖ wherever ‖v‖ > R: of v itself, or of v divided by its largest entry."""
    a = node.attributes
    if a["p"] != 2 or set(a["dim"]) != set(ball.dim) or not (a["eps"] == 0 or a["eps_mode"] == "clamp"):
        return False
    source = view.plain(node.operands[0])
    if source == ball.v:
        return bool(a["eps"] <= ball.radius)
    scaled = view.node(source)
    if scaled.op != "l2_normalize" or not view.same(scaled.operands[0], ball.v) or a["eps"] > 1:
        return False
    return _scales(view, scaled, ball)


def _scales(view: View, scaled: Node, ball: _Ball) -> bool:
    """Whether a division by the largest entry is one wherever ‖v‖ > R: max|v| ≥ ‖v‖/√n is above its stabilizer."""
    a = scaled.attributes
    sizes = [view.node(ball.v).shape[d] for d in ball.dim]
    if not all(isinstance(n, int) for n in sizes) or a["p"] != math.inf or set(a["dim"]) != set(ball.dim):
        return False
    count = math.prod(int(n) for n in sizes if isinstance(n, int))
    return bool(a["eps"] == 0 or (a["eps_mode"] == "clamp" and a["eps"] * math.sqrt(count) <= ball.radius))


def _whole_length(view: View, name: str) -> Size | None:
    """A length, also one computed as ‖v/s‖·s with s = max|v|: max(‖v‖, t·t′) for the stabilizers t ≤ 1 and t′."""
    found = length(view, name)
    node = view.statistic(name)
    if found is not None or node.op != "mul" or None in node.inputs:
        return found
    for first, second in (node.operands, node.operands[::-1]):
        inner, outer = length(view, first), length(view, second)
        if (
            inner is None
            or outer is None
            or inner.order != 2
            or inner.correction is not None
            or inner.centered
        ):
            continue
        scaled = view.node(inner.source)
        if scaled.op != "l2_normalize" or outer.order != math.inf or inner.eps > 1:
            continue
        a: Mapping[str, Any] = scaled.attributes
        same = (
            view.same(scaled.operands[0], outer.source)
            and set(inner.dim) == set(outer.dim) == set(a["dim"])
            and (a["p"], a["eps"]) == (math.inf, outer.eps)
            and all(
                mode == "clamp" or eps == 0
                for mode, eps in (
                    (a["eps_mode"], a["eps"]),
                    (inner.eps_mode, inner.eps),
                    (outer.eps_mode, outer.eps),
                )
            )
        )
        if same and view.node(first).shape == view.node(second).shape:
            return Size(outer.source, outer.dim, eps=inner.eps * outer.eps, eps_mode="clamp")
    return None


def _written(view: View, node: Node, ball: _Ball) -> tuple[Node, ...]:
    """The steps of c + (R · v/max(‖v‖, R)) / w; the last has the node's name."""
    shape = view.node(ball.v).shape
    dim = tuple(sorted(ball.dim))
    unit: dict[str, Any] = {
        "dim": dim, "normalized_shape": tuple(shape[d] for d in dim), "eps": ball.radius, "eps_mode": "clamp",
        "p": 2.0, "recognized": True,
    }  # fmt: skip
    steps: list[tuple[str, tuple[str | None, ...], dict[str, Any]]] = [("l2_normalize", (ball.v,), unit)]
    steps.append(("mul", (None,), {"other": ball.radius}))
    if ball.weight is not None:
        steps.append(("div", (ball.weight,), {"rounding_mode": None}))
    if ball.center is not None:
        steps.append(("add", (ball.center,), {"alpha": 1}))
    made: list[Node] = []
    for number, (op, operands, attributes) in enumerate(steps, 1):
        name = node.name if number == len(steps) else f"{node.name}_cap{number}"
        inputs = operands if not made else (made[-1].name, *operands)
        made.append(replace(node, name=name, op=op, inputs=inputs, attributes=attributes))
    return tuple(made)
