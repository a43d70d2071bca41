"""Ranges of operators that have a rule by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from farfield.certify.checker._spans import inverse, plus, point, sizes_of, span, times
from farfield.certify.checker._values import (
    EVALUATION,
    TINY,
    Array,
    gamma,
    round_up,
    run,
    sizes,
)

__all__ = ["RULES"]

ORDERED = frozenset(["sort", "kthvalue", "median", "cummax", "cummin", "topk"])
"""Operators whose first value rises with every entry; the second is an index."""
Step: TypeAlias = Any
"""One node with the ranges of its operands: a ``RangeStep`` of ``_ranges``."""
Rule: TypeAlias = Callable[[Step], Any]


def _product(step: Step) -> Any:
    a, b = step.operand(0, "input"), step.operand(1, "other")
    if a is None or b is None:
        return None
    if len(step.node.operands) == 2 and step.node.inputs[0] == step.node.inputs[1]:
        return _square(step)
    return times(a, b)


def _square(step: Step) -> Any:
    if step.given[0] is None:
        return None
    low, high = sizes_of(step.given[0])
    return np.maximum(np.nextafter(low * low, -math.inf), 0.0), np.nextafter(high * high, math.inf)


def _quotient(step: Step) -> Any:
    a, b = step.operand(0, "input"), step.operand(1, "other")
    if a is None or b is None:
        return None
    low, high = times(a, inverse(b))
    rounded = {None: None, "floor": np.floor, "trunc": np.trunc}[step.attributes.get("rounding_mode")]
    return (low, high) if rounded is None else (rounded(low), rounded(high))


def _remainder(step: Step) -> Any:
    """Between 0 and the divisor; x itself where it lies there."""
    x, b = step.operand(0, "input"), step.operand(1, "other")
    if x is None or b is None or ((b[0] <= 0) & (b[1] >= 0)).any():
        return None
    same = (x[0] >= 0) & (x[1] < b[0])
    return np.where(same, x[0], np.minimum(b[0], 0.0)), np.where(same, x[1], np.maximum(b[1], 0.0))


def _fmod(step: Step) -> Any:
    """The sign of x, and no larger than x or the divisor."""
    x, b = step.operand(0, "input"), step.operand(1, "other")
    if x is None or b is None or ((b[0] <= 0) & (b[1] >= 0)).any():
        return None
    limit = sizes_of(b)[1]
    low = np.where(x[0] >= 0, 0.0, np.maximum(x[0], -limit))
    high = np.where(x[1] <= 0, 0.0, np.minimum(x[1], limit))
    same = sizes_of(x)[1] < sizes_of(b)[0]
    return np.where(same, x[0], low), np.where(same, x[1], high)


def _hypot(step: Step) -> Any:
    """√(a² + b²) rises with |a| and |b|."""
    a, b = step.operand(0, "input"), step.operand(1, "other")
    if a is None or b is None:
        return None
    low, high = (np.hypot(*ends) for ends in zip(sizes_of(a), sizes_of(b), strict=True))
    return np.maximum(low * (1 - EVALUATION) - TINY, 0.0), high * (1 + EVALUATION) + TINY


def _prod(step: Step) -> Any:
    """Factor by factor."""
    if step.given[0] is None:
        return None
    shape = step.given[0][0].shape
    axes = step.attributes.get("dim")
    axes = range(len(shape)) if axes is None else axes if isinstance(axes, tuple) else (axes,)
    last = [int(d) % len(shape) for d in axes] if shape else []
    order = [*(d for d in range(len(shape)) if d not in last), *last]
    ends = [
        e.transpose(order).reshape(*(shape[d] for d in order[: len(shape) - len(last)]), -1)
        for e in step.given[0]
    ]
    made = point(1.0)
    for k in range(ends[0].shape[-1]):
        made = times(made, (ends[0][..., k], ends[1][..., k]))
    return made[0].reshape(sizes(step.node)), made[1].reshape(sizes(step.node))


def _finite(step: Step) -> Any:
    """The same numbers, and where they may be infinite also what stands in for those."""
    if step.given[0] is None:
        return None
    low, high = step.given[0]
    if np.isfinite(low).all() and np.isfinite(high).all():
        return low, high
    largest = float(torch.finfo(step.node.dtype or torch.float64).max)
    defaults = {"nan": 0.0, "posinf": largest, "neginf": -largest}
    given = {k: step.attributes.get(k) for k in defaults}
    others = [float(defaults[k] if v is None else v) for k, v in given.items()]
    return np.minimum(low, min(others)), np.maximum(high, max(others))


def _place(step: Step) -> Any:
    """The number of an entry."""
    shape = sizes(step.ranges.program.node(step.node.operands[0]))
    axis = step.attributes.get("dim")
    count = math.prod(shape) if axis is None or not shape else shape[int(axis)]
    return _between(0.0, max(count - 1.0, 0.0))(step)


def _power(step: Step) -> Any:
    """A whole or a positive exponent; other bases than positive ones only for whole exponents."""
    base, power = step.operand(0, "input"), step.operand(1, "exponent")
    if base is None or power is None or power[0].size != 1 or power[0] != power[1]:
        return None
    exponent = float(power[0].reshape(()))
    p = abs(exponent)
    if p == int(p):
        low, high = (base[0], base[1]) if p % 2 else sizes_of(base)
    else:
        low, high = np.maximum(base[0], 0.0), base[1]
    ends = [np.power(e, p) for e in (low, high)]
    least, most = ends[0] - EVALUATION * np.abs(ends[0]) - TINY, ends[1] + EVALUATION * np.abs(ends[1]) + TINY
    return (least, most) if exponent >= 0 else inverse((least, most))


def _lerp(step: Step) -> Any:
    a, b, w = step.operand(0, "input"), step.operand(1, "end"), step.operand(2, "weight")
    if a is None or b is None or w is None:
        return None
    back = plus(point(1.0), span(-w[1], -w[0]))
    return plus(times(a, back), times(b, w))


def _matmul(step: Step) -> Any:
    """Two moving tensors, term by term; behind a softmax also the hull of the rows that are averaged."""
    if any(f is not None for f in step.fixed) or any(g is None for g in step.given):
        return None
    (a_lo, a_hi), (b_lo, b_hi) = step.given
    if a_lo.ndim < 2 or b_lo.ndim < 2:
        return None
    lo, hi, top = np.zeros((3, *sizes(step.node)))
    for k in range(a_lo.shape[-1]):
        left, right = (
            (a_lo[..., :, k, None], a_hi[..., :, k, None]),
            (b_lo[..., None, k, :], b_hi[..., None, k, :]),
        )
        piece = times(left, right)
        lo, hi, top = lo + piece[0], hi + piece[1], top + np.maximum(np.abs(piece[0]), np.abs(piece[1]))
    loss = round_up(gamma(a_lo.shape[-1] + 4) * top)
    lo, hi = lo - loss, hi + loss
    if step.node.inputs[0] in step.ranges.averaging:
        lo, hi = np.fmax(lo, b_lo.min(-2, keepdims=True)), np.fmin(hi, b_hi.max(-2, keepdims=True))
    return lo, hi


def _averaging(step: Step) -> Any:
    """Remember what keeps the rows of a softmax as they are; the range is found by another rule."""
    name, node = step.node.inputs[0], step.node
    if name in step.ranges.averaging and step.facts.moves:
        before = sizes(step.ranges.program.node(name))
        if before and node.shape and before[-1] == int(node.shape[-1]):
            step.ranges.averaging.add(node.name)
    return None


def _softmax(step: Step) -> Any:
    """e^{x_i}/Σ e^{x_j} rises with x_i and falls with the others."""
    node, axis = step.node, int(step.attributes["dim"])
    if axis == len(node.shape) - 1:
        step.ranges.averaging.add(node.name)
    span = step.given[0]
    if span is None or not (np.isfinite(span[0]).all() and np.isfinite(span[1]).all()):
        return np.zeros(sizes(node)), np.ones(sizes(node))
    low, high = np.moveaxis(span[0], axis, -1), np.moveaxis(span[1], axis, -1)
    if low.shape[-1] == 1:
        return np.ones(sizes(node)), np.ones(sizes(node))

    def share(own: Array, others: Array) -> Array:
        """1/(1 + Σ_{j≠i} e^{others_j − own_i}): each sum over its own largest term, so that none is lost."""
        made = np.empty_like(own)
        for i in range(own.shape[-1]):
            rest = np.delete(others, i, -1)
            peak = rest.max(-1)
            made[..., i] = 1.0 / (1.0 + np.exp(rest - peak[..., None]).sum(-1) * np.exp(peak - own[..., i]))
        return made

    lo, hi = share(low, high) * (1 - 1e-12) - TINY, share(high, low) * (1 + 1e-12) + TINY
    return np.moveaxis(np.maximum(lo, 0.0), -1, axis), np.moveaxis(np.minimum(hi, 1.0), -1, axis)


def _log_softmax(step: Step) -> Any:
    """x_i − ln Σ e^{x_j} ≤ 0, and at least x_i − max x_j − ln n."""
    if step.given[0] is None:
        return None
    (low, high), axis = step.given[0], int(step.attributes["dim"])
    lo = low - high.max(axis, keepdims=True) - math.log(low.shape[axis])
    return lo - EVALUATION * (1 + np.abs(low) + np.abs(lo)), np.zeros_like(high)


def _attention(step: Step) -> Any:
    """Between the extremes of the rows that are averaged; 0 too where a mask may shut them all out."""
    a = step.attributes
    if step.given[2] is None:
        return None
    low, high = step.given[2][0].min(-2, keepdims=True), step.given[2][1].max(-2, keepdims=True)
    if a.get("enable_gqa"):
        low, high = low.min(-3, keepdims=True), high.max(-3, keepdims=True)
    dropped = float(a.get("dropout_p") or 0.0)
    if (len(step.node.inputs) > 3 and step.node.inputs[3] is not None) or dropped:
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    if dropped:
        if dropped >= 1:
            return None
        low, high = low / (1 - dropped), high / (1 - dropped)
    loose = EVALUATION * np.maximum(np.abs(low), np.abs(high))
    return low - loose, high + loose


def _cast(step: Step) -> Any:
    """Toward 0 for whole numbers, as long as they do not wrap around; 0 or 1 for booleans."""
    _averaging(step)
    dtype = step.node.dtype
    if dtype is None or dtype.is_floating_point or step.given[0] is None:
        return None
    if dtype == torch.bool:
        return np.zeros(sizes(step.node)), np.ones(sizes(step.node))
    low, high = (np.trunc(e) for e in step.given[0])
    limits = torch.iinfo(dtype)
    inside = (low >= limits.min).all() and (high <= limits.max).all()
    return (low, high) if inside else (np.full_like(low, limits.min), np.full_like(high, limits.max))


def _dropout(step: Step) -> Any:
    if not step.attributes.get("train"):
        return _averaging(step)
    if step.given[0] is None or float(step.attributes["p"]) >= 1:
        return None
    kept = plus(point(1.0), point(-float(step.attributes["p"])))
    low, high = times(step.given[0], inverse(kept))
    return np.minimum(low, 0.0), np.maximum(high, 0.0)


def _between(low: float, high: float) -> Rule:
    return lambda step: (np.full(sizes(step.node), low), np.full(sizes(step.node), high))


def _random(step: Step) -> Any:
    return _between(0.0, 1.0)(step) if step.attributes.get("distribution") == "uniform" else None


def _randint(step: Step) -> Any:
    return _between(float(step.attributes["low"]), float(step.attributes["high"]) - 1.0)(step)


def _created(step: Step) -> Any:
    """Made of sizes and numbers alone."""
    if step.node.operands:
        return None
    value = run(step.node, step.fixed).astype(np.float64)
    loose = EVALUATION * np.abs(value) if step.node.op == "linspace" else 0.0
    return value - loose, value + loose


def _spread(step: Step) -> Any:
    """Σ(x − mean)² ≤ Σ(x − c)² for every c."""
    if step.given[0] is None:
        return None
    (low, high), a = step.given[0], step.attributes
    axes = tuple(a["dim"])
    size = math.prod(low.shape[d] for d in axes) - float(a.get("correction", 0))
    if size <= 0:
        return None
    middle = ((low + high) / 2).mean(axes, keepdims=True)
    reach = np.maximum(np.abs(high - middle), np.abs(middle - low))
    top = (reach**2).sum(axes, keepdims=bool(a["keepdim"])) / size * (1 + gamma(low.size + 16))
    return np.zeros_like(top), round_up(np.sqrt(top) if step.node.op == "std" else top)


def _length(step: Step) -> Any:
    """A p-norm rises with every |x_i|."""
    order = step.attributes.get("ord", 2)
    if step.given[0] is None or not isinstance(order, int | float) or order < 1:
        return None
    low, high = (run(step.node, [e]) for e in sizes_of(step.given[0]))
    loss = 1e-13 + gamma(step.given[0][0].size + 64)
    return low * (1 - loss) - TINY, high * (1 + loss) + TINY


def _ordered(step: Step) -> Any:
    if step.given[0] is None or step.attributes.get("sorted") is False:
        return None
    low, high = (run(step.node, [e]) for e in step.given[0])
    return ((low[0], high[0]), None)


def _prelu(step: Step) -> Any:
    """max(z, 0) + w·min(z, 0), one weight per channel."""
    if step.given[0] is None or step.given[1] is None:
        return None
    low, high = step.given[0]
    weight = [
        w if w.ndim > 1 else w.reshape(1, -1, *(1,) * (low.ndim - 2)) if low.ndim > 1 else w
        for w in step.given[1]
    ]
    below = times((np.minimum(low, 0.0), np.minimum(high, 0.0)), (weight[0], weight[1]))
    return plus((np.maximum(low, 0.0), np.maximum(high, 0.0)), below)


def _jumping(step: Step) -> Any:
    """Hardshrink and threshold: x itself, or one value instead."""
    if step.given[0] is None:
        return None
    other = float(step.attributes.get("value", 0.0))
    return np.minimum(step.given[0][0], other), np.maximum(step.given[0][1], other)


def _recurrent(step: Step) -> Any:
    """tanh, or a gate times tanh, in every step of rnn and lstm; gru averages such values with its first state."""
    if step.node.op == "gru":
        low, high = step.given[1] if step.given[1] is not None else (np.array(-math.inf), np.array(math.inf))
        ends = min(-1.0, float(low.min())), max(1.0, float(high.max()))
    else:
        ends = -1.0, 1.0
    if step.node.op == "lstm":
        layers = int(step.attributes["num_layers"]) * (2 if step.attributes.get("bidirectional") else 1)
        if len(step.node.operands) - 3 > layers * (4 if step.attributes.get("has_biases") else 2):
            return None  # a projection follows, as large as its weights
    made = []
    zeros = [
        torch.zeros(sizes(step.ranges.program.node(str(n))), dtype=torch.float64) for n in step.node.inputs
    ]
    for place, value in enumerate(run(step.node, zeros)):
        made.append((np.full(value.shape, ends[0]), np.full(value.shape, ends[1])) if place < 2 else None)
    return tuple(made)


RULES: Mapping[str, Rule] = {
    "mul": _product, "square": _square, "div": _quotient, "pow": _power, "lerp": _lerp, "matmul": _matmul,
    "remainder": _remainder, "fmod": _fmod, "hypot": _hypot, "prod": _prod, "argmax": _place, "argmin": _place,
    "nan_to_num": _finite,
    "reciprocal": lambda step: None if step.given[0] is None else inverse(step.given[0]),
    "softmax": _softmax, "log_softmax": _log_softmax, "attention": _attention, "cast": _cast, "dropout": _dropout,
    **dict.fromkeys(["identity", "reshape", "expand", "unsqueeze"], _averaging),
    "random": _random, "randint": _randint, "bernoulli": _between(0.0, 1.0),
    **dict.fromkeys(["arange", "linspace", "eye", "full"], _created), "var": _spread,
    "std": _spread, "norm": _length, "prelu": _prelu, "hardshrink": _jumping, "threshold": _jumping,
    "atan2": _between(-math.pi - 1e-15, math.pi + 1e-15), **dict.fromkeys(ORDERED, _ordered),
    **dict.fromkeys(["lstm", "gru", "rnn_tanh"], _recurrent),
}  # fmt: skip
