"""The checker's own intervals: where every entry of every node lies, as far as its rules reach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from farfield.certify._check_activations import activation
from farfield.certify._check_layers import AVERAGES, MOVING, NORMS, WEIGHTED, inverse_root, sizes
from farfield.certify._check_values import (
    TINY,
    Array,
    CertificateError,
    Rough,
    U,
    gamma,
    over,
)
from farfield.graph import Node, Program, compute_node

__all__ = ["Ranges", "ranges"]

Span: TypeAlias = tuple[Array, Array]


class Ranges:
    """Where every entry of every node lies, as far as the rules below reach."""

    def __init__(self, program: Program, inputs: Mapping[str, Span]) -> None:
        self.program, self.found, self.reasons = program, dict[str, Any](), dict[str, str]()
        with np.errstate(all="ignore"):
            for node in program.nodes:
                self.found[node.name] = self._range(node, inputs)

    def get(self, name: str) -> Span | None:
        """The range of a node with one value, if there is one."""
        found = self.found.get(name)
        return found if isinstance(found, tuple) and isinstance(found[0], np.ndarray) else None

    def of(self, name: str) -> Span:
        """The range, flat; refused where no rule reaches."""
        found = self.get(name)
        if found is None:
            raise CertificateError(
                f"The range of {name!r} can't be re-checked independently: "
                f"{self.reasons.get(name, 'there is no rule for it')}."
            )
        return found[0].reshape(-1), found[1].reshape(-1)

    def _range(self, node: Node, inputs: Mapping[str, Span]) -> Any:
        if node.role == "constant":
            value = self.program.constants[node.name].detach()
            if value.is_complex():
                return None
            mid = value.to(torch.float64).numpy().copy()
            return mid, mid
        if node.role == "input":
            shape = sizes(node)
            return inputs.get(node.name, (np.full(shape, -math.inf), np.full(shape, math.inf)))
        operands = [None if name is None else self.found.get(name) for name in node.inputs]
        for name, operand in zip(node.inputs, operands, strict=True):
            if name is not None and operand is None and node.op not in NORMS:
                self.reasons[node.name] = self.reasons.get(name, f"nothing is known of {name!r}")
                return None
        made = _range_rule(node, operands, self)
        if made is None:
            self.reasons[node.name] = f"{node.op} ({node.name}) has no rule here"
            return None
        if isinstance(made[0], tuple):
            return made
        # What is not a number is not known.
        shape = sizes(node)
        lo, hi = (np.broadcast_to(end, shape) for end in made)
        return np.where(np.isnan(lo), -math.inf, lo), np.where(np.isnan(hi), math.inf, hi)


def ranges(program: Program, inputs: Mapping[str, Span]) -> Ranges:
    """Plain interval propagation through a program; inputs without a range are unbounded."""
    return Ranges(program, inputs)


def _down(value: Array) -> Array:
    return np.nextafter(value, -math.inf)


def _up(value: Array) -> Array:
    return np.nextafter(value, math.inf)


def _times(a: Span, b: Span) -> Span:
    """Products of two intervals; 0·∞ is 0."""
    ends = [np.where((x == 0) | (y == 0), 0.0, x * y) for x in a for y in b]
    return _down(np.minimum.reduce(ends)), _up(np.maximum.reduce(ends))


def _plus(a: Span, b: Span) -> Span:
    return _down(a[0] + b[0]), _up(a[1] + b[1])


def _reciprocal(b: Span) -> Span | None:
    if not ((b[0] > 0) | (b[1] < 0)).all():
        return None
    return _down(1.0 / b[1]), _up(1.0 / b[0])


def _run(node: Node, arrays: Sequence[Array | None]) -> Array:
    tensors = [None if a is None else torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
    made: Array = compute_node(node, tensors, {}, torch.float64).numpy()
    return made


def _range_rule(node: Node, given: list[Any], known: Ranges) -> Any:
    """Lower and upper ends of one operation, ``None`` where there is no rule."""
    op, a = node.op, node.attributes
    if op == "getitem":
        return given[0][int(a["index"])] if isinstance(given[0][0], tuple) else None
    if any(g is not None and isinstance(g[0], tuple) for g in given):
        return None
    if op in MOVING or op in ("amax", "amin", "max_pool", "adaptive_max_pool", "maximum", "minimum", "clamp"):
        if op == "cast" and (node.dtype is None or not node.dtype.is_floating_point):
            return None
        low, high = (
            compute_node(
                node,
                [None if g is None else torch.from_numpy(np.ascontiguousarray(g[side])) for g in given],
                {},
                torch.float64,
            )
            for side in (0, 1)
        )
        if isinstance(low, tuple):
            return tuple((x.numpy(), y.numpy()) for x, y in zip(low, high, strict=True))
        return low.numpy(), high.numpy()
    if op in AVERAGES:
        low, high = given[0]
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return np.full(sizes(node), -math.inf), np.full(sizes(node), math.inf)
        loss = gamma(low.size + 8) * over(_run(node, [np.maximum(np.abs(low), np.abs(high))]))
        return _run(node, [low]) - loss, _run(node, [high]) + loss
    if op in ("add", "sub", "mul", "div", "neg"):
        return _range_arithmetic(node, given)
    if op in WEIGHTED:
        return _range_product(node, given, known)
    if op in NORMS:
        return _range_norm(node, given)
    if op == "batch_norm" and not a.get("training"):
        return _range_batch_norm(node, given)
    if op == "softmax":
        return _range_softmax(given[0], int(a["dim"]))
    if op == "attention":
        if a["enable_gqa"] or a["dropout_p"] or given[3] is not None:
            return None
        low, high = given[2]
        return _averaged_rows(low, high, sizes(node))
    if op == "embedding":
        low, high = given[0]
        return np.broadcast_to(low.min(0), sizes(node)), np.broadcast_to(high.max(0), sizes(node))
    if (sigma := activation(op, a)) is not None and len(node.operands) == 1:
        return sigma.image(*given[0])
    return None


def _averaged_rows(low: Array, high: Array, shape: tuple[int, ...]) -> Span:
    """Σ p_j v_j for weights p ≥ 0 that sum to 1: within the hull of the rows v_j."""
    lo, hi = low.min(-2, keepdims=True), high.max(-2, keepdims=True)
    return np.broadcast_to(lo, shape), np.broadcast_to(hi, shape)


def _range_arithmetic(node: Node, given: list[Any]) -> Span | None:
    def part(place: int, key: str) -> Span | None:
        if place < len(given) and given[place] is not None:
            found: Span = given[place]
            return found
        number = node.attributes.get(key)
        return (np.array(float(number)),) * 2 if isinstance(number, int | float) else None

    first, second = part(0, "input"), part(1, "other")
    if first is None:
        return None
    if node.op == "neg":
        return -first[1], -first[0]
    if second is None or node.attributes.get("rounding_mode") is not None:
        return None
    if node.op in ("add", "sub"):
        alpha = float(node.attributes.get("alpha", 1)) * (1 if node.op == "add" else -1)
        scaled = (
            (second[0] * alpha, second[1] * alpha)
            if abs(alpha) == 1
            else _times(second, (np.array(alpha),) * 2)
        )
        return _plus(first, (np.asarray(np.minimum(*scaled)), np.asarray(np.maximum(*scaled))))
    if node.op == "mul" and len(node.operands) == 2 and node.inputs[0] == node.inputs[1]:
        ends = _times(first, second)
        return np.maximum(ends[0], 0.0), ends[1]
    inverse = _reciprocal(second) if node.op == "div" else second
    return None if inverse is None else _times(first, inverse)


def _range_product(node: Node, given: list[Any], known: Ranges) -> Span | None:
    """A product with a constant by its positive and its negative part; of two moving tensors term by term."""
    places = WEIGHTED[node.op]
    fixed = {i: g is not None and np.array_equal(g[0], g[1]) for i, g in enumerate(given)}
    bias = 0 if node.op == "addmm" else 2
    if bias < len(given) and given[bias] is not None and not fixed[bias]:
        return None
    attributes = {k: abs(v) if k in ("alpha", "beta") else v for k, v in node.attributes.items()}
    others = (
        [i for i in range(len(given)) if i not in (bias, *places)]
        if node.op not in ("matmul", "addmm")
        else []
    )
    if node.op in ("matmul", "addmm"):
        left, right = places
        if not fixed[left] and not fixed[right]:
            return _range_matmul(node, given, known) if node.op == "matmul" else None
        place, other = (right, left) if fixed[left] else (left, right)
    else:
        place, other = 0, 1
        if not fixed[1] or others not in ([1], [1, 2]):
            return None
    low, high = given[place]
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return np.full(sizes(node), -math.inf), np.full(sizes(node), math.inf)
    weight = given[other][0]
    if any(node.attributes.get(k, 1) != 1 for k in ("alpha", "beta")):
        return None
    start = None if bias >= len(given) or given[bias] is None else given[bias][0]
    plain = replace(node, attributes=attributes)

    def run(x: Array, w: Array, b: Array | None) -> Array:
        arrays: list[Array | None] = [None] * len(given)
        arrays[place], arrays[other] = x, w
        if bias < len(given):
            arrays[bias] = (
                np.zeros_like(start) if b is None and node.op == "addmm" and start is not None else b
            )
        return _run(plain, arrays)

    up, down = np.maximum(weight, 0.0), np.minimum(weight, 0.0)
    top = np.maximum(np.abs(low), np.abs(high))
    terms = int(weight.size) if node.op.startswith("conv") else int(max(weight.shape, default=1))
    loss = over(gamma(2 * terms + 16) * run(top, np.abs(weight), None if start is None else np.abs(start)))
    return run(low, up, start) + run(high, down, None) - loss, run(high, up, start) + run(
        low, down, None
    ) + loss


def _range_matmul(node: Node, given: list[Any], known: Ranges) -> Span | None:
    (a_lo, a_hi), (b_lo, b_hi) = given
    if a_lo.ndim < 2 or b_lo.ndim < 2:
        return None
    shape, terms = sizes(node), a_lo.shape[-1]
    lo, hi, top = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for k in range(terms):
        piece = _times(
            (a_lo[..., :, k, None], a_hi[..., :, k, None]), (b_lo[..., None, k, :], b_hi[..., None, k, :])
        )
        lo, hi = lo + piece[0], hi + piece[1]
        top = top + np.maximum(np.abs(piece[0]), np.abs(piece[1]))
    loss = over(gamma(terms + 4) * top)
    lo, hi = lo - loss, hi + loss
    left = known.program.node(node.operands[0])
    while left.op in ("identity", "dropout") and left.operands:
        left = known.program.node(left.operands[0])
    if left.op == "softmax" and int(left.attributes["dim"]) == len(left.shape) - 1:
        hull = _averaged_rows(b_lo, b_hi, shape)
        lo, hi = np.fmax(lo, hull[0]), np.fmin(hi, hull[1])
    return lo, hi


def _range_softmax(span: Span, axis: int) -> Span:
    """e^{x_i}/Σ e^{x_j} rises with x_i and falls with the others."""
    low, high = np.moveaxis(span[0], axis, -1), np.moveaxis(span[1], axis, -1)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return np.zeros_like(span[0]), np.ones_like(span[0])
    peak = high.max(-1, keepdims=True)
    bottom, top = np.exp(low - peak), np.exp(high - peak)
    slack = 1e-12

    def share(own: Array, others: Array) -> Array:
        rest = np.stack([np.delete(others, i, -1).sum(-1) for i in range(others.shape[-1])], -1)
        made: Array = own / (own + rest + TINY)
        return made

    lo, hi = share(bottom, top) * (1 - slack) - TINY, share(top, bottom) * (1 + slack) + TINY
    return np.moveaxis(np.maximum(lo, 0.0), -1, axis), np.moveaxis(np.minimum(hi, 1.0), -1, axis)


def _range_norm(node: Node, given: list[Any]) -> Span | None:
    """A norm's image: |y_i| ≤ √(n − 1) where it centres, √n where not, 1 for ℓ₂; closer where the box is small."""
    shape, a = sizes(node), node.attributes
    if any(g is not None and not np.array_equal(*g) for g in given[1:]):
        return None
    axes: tuple[int, ...] = (1,)
    index = np.arange(math.prod(shape)).reshape(shape)
    if node.op in ("layer_norm", "rms_norm", "l2_normalize"):
        axes = tuple(int(d) for d in a["dim"])
        if a.get("correction", 0) != 0 or float(a.get("p", 2.0)) != 2.0:
            return None
        kept = [d for d in range(len(shape)) if d not in axes]
        groups = index.transpose(*kept, *axes).reshape(-1, math.prod(shape[d] for d in axes))
    else:
        if node.op == "instance_norm" and not a.get("use_input_stats", True):
            return None
        parts = int(a["num_groups"]) if node.op == "group_norm" else shape[1]
        groups = index.reshape(shape[0] * parts, -1)
    width, eps = groups.shape[1], float(a.get("eps") or 0.0)
    if eps <= 0:
        return None
    centred = node.op not in ("rms_norm", "l2_normalize")
    count = 1.0 if node.op == "l2_normalize" else float(width)
    top = math.sqrt((1 - 1 / width) * count if centred else count) * (1 + 8 * U)
    lo, hi = np.full(index.size, -top), np.full(index.size, top)
    x = given[0]
    if x is not None and np.isfinite(x[0]).all() and np.isfinite(x[1]).all():
        low, high = x[0].reshape(-1)[groups], x[1].reshape(-1)[groups]
        near = _closer_norm(low, high, centred, count, eps, str(a.get("eps_mode", "inside")))
        lo[groups], hi[groups] = np.maximum(-top, near[0]), np.minimum(top, near[1])
    made: Span = (lo.reshape(shape), hi.reshape(shape))
    view = [shape[d] if d in axes else 1 for d in range(len(shape))]
    if len(given) > 1 and given[1] is not None:
        made = _times(made, (given[1][0].reshape(view),) * 2)
    if len(given) > 2 and given[2] is not None and node.op != "rms_norm":
        made = _plus(made, (given[2][0].reshape(view),) * 2)
    return made


def _closer_norm(low: Array, high: Array, centred: bool, count: float, eps: float, mode: str) -> Span:
    """t/√((t² + Q)/count + ε) rises with t and shrinks as Q, the others' squares, grows: its ends."""
    width = low.shape[1]
    if centred:
        size = gamma(2 * width + 16) * np.maximum(np.abs(low), np.abs(high)).max(1, keepdims=True) * 4
        least, most = low.sum(1, keepdims=True), high.sum(1, keepdims=True)
        low, high = low - (low + (most - high)) / width - size, high - (high + (least - low)) / width + size
    squares = (
        np.where((low <= 0) & (high >= 0), 0.0, np.minimum(low**2, high**2)),
        np.maximum(low**2, high**2),
    )
    rest = [np.stack([np.delete(s, i, 1).sum(1) for i in range(width)], 1) for s in squares]
    rest = [rest[0] * (1 - 1e-11), rest[1] * (1 + 1e-11)]

    def quotient(t: Array, others: Array) -> Array:
        square = (t * t + others) / count
        under = {
            "inside": np.sqrt(square + eps),
            "outside": np.sqrt(square) + eps,
            "clamp": np.maximum(np.sqrt(square), eps),
        }[mode]
        made: Array = t / under
        return made

    up = quotient(high, np.where(high >= 0, rest[0], rest[1]))
    down = quotient(low, np.where(low <= 0, rest[0], rest[1]))
    return down - 1e-13 * np.abs(down) - TINY, up + 1e-13 * np.abs(up) + TINY


def _range_batch_norm(node: Node, given: list[Any]) -> Span | None:
    x, weight, bias, mean, variance = given
    if mean is None or variance is None or any(g is not None and not np.array_equal(*g) for g in given[1:]):
        return None
    view = (1, -1, *(1,) * (len(node.shape) - 2))
    factor = inverse_root(
        Rough.exact(variance[0].reshape(view)) + Rough.exact(np.full((1,), float(node.attributes["eps"])))
    )
    if weight is not None:
        factor = factor * Rough.exact(weight[0].reshape(view))
    span: Span = (_down(factor.mid - factor.rad), _up(factor.mid + factor.rad))
    made = _times(_plus(x, (-mean[0].reshape(view),) * 2), span)
    return made if bias is None else _plus(made, (bias[0].reshape(view),) * 2)
