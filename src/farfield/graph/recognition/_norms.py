"""Norms by hand: something divided by its own size.

A denominator is read as a :class:`Size`: a positive statistic of one tensor over some axes, with its
stabilizer. The quotient is a norm only if the numerator is that same tensor (centered, where the statistic is
a variance) and broadcasting pairs each entry with its own statistic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from farfield.graph._node import Node
from farfield.graph.recognition._view import View, close, is_float

__all__ = ["Size", "length", "match_norm"]


@dataclass(frozen=True)
class Size:
    """√(Σ|y|²/count) of a tensor y and its relatives.

    Parameters
    ----------
    source
        Name of y, casts looked through.
    dim
        Axes summed over.
    order
        p of the p-norm; 2 except for a plain ``l2_normalize``.
    correction
        ``None`` for a plain sum, c for a sum divided by count − c.
    centered
        Whether y's mean over ``dim`` is subtracted first (variance).
    eps, eps_mode
        The stabilizer and where it sits; see :mod:`farfield.graph.operators.norm`.
    """

    source: str
    dim: tuple[int, ...]
    order: float = 2.0
    correction: int | None = None
    centered: bool = False
    eps: float = 0.0
    eps_mode: str = "inside"


def match_norm(view: View, node: Node) -> Node | None:
    """``layer_norm``, ``rms_norm`` or ``l2_normalize`` in place of a quotient or product, if it is one."""
    if not is_float(node.dtype):
        return None
    if node.op == "div" and None not in node.inputs and node.attributes.get("rounding_mode") is None:
        top, bottom = node.inputs
        assert bottom is not None
        return _quotient(view, node, top, bottom, length(view, bottom))
    if node.op == "mul" and None not in node.inputs:
        for top, other in (node.inputs, node.inputs[::-1]):
            assert other is not None
            found = _rescaled(view, node, top, other)
            if found is None:
                found = _quotient(view, node, top, other, _inverse_length(view, other))
            if found is not None:
                return found
    return None


def _rescaled(view: View, node: Node, top: str | None, other: str) -> Node | None:
    """y/√(mean(y²) + (c/s)²) with y = x/s and s a size of x: x/√(mean(x²) + c²), kept from overflow."""
    y, root = view.at(top), view.statistic(other)
    if y is None or y.op != "l2_normalize" or root.op != "rsqrt":
        return None
    x = y.operands[0]
    terms = _scaled_terms(view, view.statistic(root.operands[0]), y)
    if terms is None:
        return None
    mean, root_eps = terms
    if not view.same(mean.source, top) or mean.correction != 0 or mean.centered or mean.eps != 0:
        return None
    if mean.order != 2 or set(mean.dim) != set(y.attributes["dim"]):
        return None
    return _quotient(view, node, x, other, replace(mean, source=view.plain(x), eps=root_eps**2))


def _scaled_terms(view: View, total: Node, y: Node) -> tuple[Size, float] | None:
    """The size whose square is mean(y²), and c, if a value is mean(y²) + (c/s)² with y = x/s; c = 0 without it."""
    if total.op != "add" or None in total.inputs or total.attributes["alpha"] != 1:
        mean = _square(view, total.name)
        # Where s has a stabilizer, y is x over another number than its norm: near 0 the two are not the same.
        return None if mean is None or y.attributes["eps"] != 0 else (mean, 0.0)
    for first, second in (total.operands, total.operands[::-1]):
        square, mean = view.statistic(second), _square(view, first, stabilized=True)
        if square.op != "square" or mean is None:
            continue
        share = view.statistic(square.operands[0])
        if share.op != "mul" or share.inputs[0] is None:
            continue
        number, inverse = view.number(share, 1, "other"), view.statistic(share.operands[0])
        size = length(view, inverse.operands[0]) if inverse.op == "reciprocal" else None
        if number is None or size is None or not view.aligned(second, view.node(y.name), size.dim):
            continue
        attributes = y.attributes
        if (
            view.same(size.source, y.operands[0])
            and set(size.dim) == set(attributes["dim"])
            and (size.correction, size.centered, size.order) == (None, False, attributes["p"])
            and (size.eps, size.eps_mode) == (attributes["eps"], attributes["eps_mode"])
        ):
            return mean, number
    return None


def _quotient(view: View, node: Node, top: str | None, statistic: str, size: Size | None) -> Node | None:
    if top is None or size is None:
        return None
    x = view.node(top)
    if x.shape != node.shape or not view.aligned(statistic, x, size.dim):
        return None
    centered = _centered(view, top)
    same = view.same(top, size.source)
    if centered is not None and set(centered[1]) == set(size.dim) and size.order == 2:
        origin = centered[0]
        # The variance of x, of x − mean(x), or the mean square of x − mean(x): the same number.
        if size.centered and (same or view.same(origin, size.source)):
            return _layer_norm(view, node, origin, size)
        if same and size.correction is not None:
            return _layer_norm(view, node, origin, size)
    if not same or size.centered:
        return None
    if size.correction is None:
        return _named(view, node, "l2_normalize", top, size, p=size.order)
    if size.correction == 0 and size.order == 2:
        return _named(view, node, "rms_norm", top, size)
    return None


def _layer_norm(view: View, node: Node, origin: str, size: Size) -> Node:
    return _named(view, node, "layer_norm", origin, size, correction=size.correction or 0)


def _named(view: View, node: Node, op: str, source: str, size: Size, **extra: Any) -> Node:
    shape = view.node(source).shape
    attributes: Mapping[str, Any] = {
        "dim": tuple(sorted(size.dim)),
        "normalized_shape": tuple(shape[d] for d in sorted(size.dim)),
        "eps": size.eps,
        "eps_mode": size.eps_mode,
        "recognized": True,
        **extra,
    }
    absent = {"layer_norm": 2, "rms_norm": 1, "l2_normalize": 0}[op]
    return replace(node, op=op, inputs=(source, *(None,) * absent), attributes=attributes)


def _centered(view: View, name: str) -> tuple[str, tuple[int, ...]] | None:
    """(x, axes) if the value is x − mean(x) over those axes."""
    node = view.at(name)
    if node is None or node.op not in ("sub", "add") or None in node.inputs or node.attributes["alpha"] != 1:
        return None
    x, other = node.inputs
    assert x is not None
    assert other is not None
    if node.op == "add":
        negated = [n for n in (x, other) if view.statistic(n).op == "neg"]
        if len(negated) != 1:
            return None
        x = other if negated[0] == x else x
        inner = view.statistic(negated[0]).operands[0]
    else:
        inner = other
    mean = view.statistic(inner)
    if mean.op != "mean" or not view.same(mean.operands[0], x):
        return None
    dim = mean.attributes["dim"]
    shaped = other if node.op == "sub" else negated[0]
    whole = view.node(x)
    return (x, dim) if node.shape == whole.shape and view.aligned(shaped, whole, dim) else None


def _inverse_length(view: View, name: str) -> Size | None:
    node = view.statistic(name)
    if node.op == "rsqrt":
        return _square(view, node.operands[0])
    return length(view, node.operands[0]) if node.op == "reciprocal" else None


def _stabilizer(view: View, node: Node) -> float | None:
    """The non-negative number that an ``add``, ``clamp`` or ``maximum`` puts around its first operand."""
    if node.inputs[0] is None or node.attributes.get("alpha", 1) != 1:
        return None
    if node.op == "clamp" and (node.inputs[2] is not None or "max" in node.attributes):
        return None
    number = view.number(node, 1, "min" if node.op == "clamp" else "other")
    return number if number is not None and number >= 0 else None


def length(view: View, name: str, *, stabilized: bool = False) -> Size | None:
    """The size that a value is, if it is the root of a sum of squares, a norm or a deviation.

    One stabilizer is allowed; ``stabilized`` says that it has been met.
    """
    node = view.statistic(name)
    if node.op == "sqrt":
        return _square(view, node.operands[0], stabilized=stabilized)
    if node.op == "norm":
        order = float(node.attributes["ord"])
        return _of(view, node, order=order) if order > 0 else None
    if node.op == "std":
        return _of(view, node, centered=True, correction=_whole(node.attributes["correction"]))
    if node.op in ("add", "clamp", "maximum") and not stabilized:
        eps = _stabilizer(view, node)
        inner = None if eps is None else length(view, node.operands[0], stabilized=True)
        if eps is None or inner is None or inner.eps != 0:
            return None
        return replace(inner, eps=eps, eps_mode="outside" if node.op == "add" else "clamp")
    if node.op == "relu":  # a size is never negative
        return length(view, node.operands[0], stabilized=stabilized)
    if node.op in ("sum", "amax"):
        terms = view.at(node.operands[0])
        if terms is not None and terms.op == "abs":
            order = 1.0 if node.op == "sum" else math.inf
            return _of(view, node, source=terms.operands[0], order=order)
    return None


def _square(view: View, name: str, *, stabilized: bool = False) -> Size | None:
    """The size whose square a value is; ``stabilized`` as in :func:`length`."""
    node = view.statistic(name)
    if node.op in ("sum", "mean"):
        terms = view.at(node.operands[0])
        if terms is None or terms.op != "square" or not is_float(terms.dtype):
            return None
        source = terms.operands[0]
        absolute = view.at(source)
        if absolute is not None and absolute.op == "abs":
            source = absolute.operands[0]
        return _of(view, node, source=source, correction=None if node.op == "sum" else 0)
    if node.op == "var":
        return _of(view, node, centered=True, correction=_whole(node.attributes["correction"]))
    if node.op == "square":
        size = length(view, node.operands[0], stabilized=True)
        return size if size is not None and size.eps == 0 and size.order == 2 else None
    if node.op in ("add", "clamp", "maximum") and not stabilized:
        eps = _stabilizer(view, node)
        inner = None if eps is None else _square(view, node.operands[0], stabilized=True)
        if eps is None or inner is None or inner.eps != 0:
            return None
        if node.op == "add":
            return replace(inner, eps=eps, eps_mode="inside")
        return replace(inner, eps=math.sqrt(eps), eps_mode="clamp")  # √max(v, e) is max(√v, √e)
    if node.op == "relu":  # a variance kept from rounding below zero
        return _square(view, node.operands[0], stabilized=stabilized)
    if node.op in ("div", "mul") and node.inputs[0] is not None:
        return _averaged(view, node)
    return _moment_difference(view, node) if node.op == "sub" else None


def _averaged(view: View, node: Node) -> Size | None:
    """A sum of squares divided by the number of its terms, or by one less; also as a mean that is scaled."""
    total, factor = node, 1.0
    while total.op in ("div", "mul") and total.inputs[0] is not None:
        by = view.number(total, 1, "other")
        if not by or total.attributes.get("rounding_mode") is not None:
            return None
        factor = factor * by if total.op == "mul" else factor / by
        total = view.statistic(total.operands[0])
    size = _square(view, total.name) if total.op in ("sum", "mean") else None
    count = None if size is None else _count(view, size)
    if size is None or count is None:
        return None
    divisor = (count if total.op == "mean" else 1) / factor
    for correction in (0, 1):
        if count > correction and close(divisor, count - correction):
            return replace(size, correction=correction)
    return None


def _moment_difference(view: View, node: Node) -> Size | None:
    """Mean of squares minus square of the mean: the variance."""
    if None in node.inputs or node.attributes["alpha"] != 1:
        return None
    first = _square(view, node.operands[0], stabilized=True)
    second = view.statistic(node.operands[1])
    if first is None or first.correction != 0 or first.centered or first.eps != 0 or second.op != "square":
        return None
    mean = view.statistic(second.operands[0])
    matches = (
        mean.op == "mean"
        and view.same(mean.operands[0], first.source)
        and set(mean.attributes["dim"]) == set(first.dim)
        and view.node(node.operands[0]).shape == view.node(node.operands[1]).shape == node.shape
    )
    return replace(first, centered=True) if matches else None


def _of(
    view: View,
    node: Node,
    *,
    source: str | None = None,
    order: float = 2.0,
    correction: int | None = None,
    centered: bool = False,
) -> Size | None:
    origin = node.operands[0] if source is None else source
    if not is_float(view.node(origin).dtype) or not is_float(node.dtype):
        return None
    if centered and correction is None:
        return None
    return Size(view.plain(origin), tuple(node.attributes["dim"]), order, correction, centered)


def _whole(correction: Any) -> int | None:
    """0 or 1 as an int; other corrections are left alone."""
    return int(correction) if correction in (0, 1) else None


def _count(view: View, size: Size) -> int | None:
    shape = view.node(size.source).shape
    lengths = [length for d in size.dim if isinstance(length := shape[d], int)]
    return math.prod(lengths) if len(lengths) == len(size.dim) else None
