"""Plain intervals: where every entry of every node lies, as far as the rules below reach.

Rules rest on what an operator is (it moves entries, it is monotone, linear, a norm) and on the table of curves; a few
operators have a rule by name. A node that no rule covers is unknown, and the reason names its operator. Functions of
the platform (exp, log, erf, …) count as right to a relative 2⁻⁴⁶.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from farfield.certify.checker._affine import Affine
from farfield.certify.checker._curves import curve
from farfield.certify.checker._values import (
    EVALUATION,
    TINY,
    Array,
    CertificateError,
    Span,
    U,
    gamma,
    round_up,
    run,
    sizes,
)
from farfield.graph import Facts, Node, NormSpec, Program, describe

__all__ = ["Ranges"]

EXACT = frozenset(
    [
        "maximum",
        "minimum",
        "clamp",
        "amax",
        "amin",
        "max_pool",
        "adaptive_max_pool",
        "floor",
        "ceil",
        "round",
        "trunc",
        "sign",
        "bucketize",
    ]
)
"""Monotone operators that round nothing."""
ORDERED = frozenset(["sort", "kthvalue", "median", "cummax", "cummin", "topk"])
"""Operators whose first value rises with every entry; the second is an index."""
Rule: TypeAlias = "Callable[[_Step], Any]"


class Ranges:
    """Every node's range for every input of a domain.

    Parameters
    ----------
    program
        Captured with fixed sizes.
    inputs
        Ranges of the inputs that have one; the others are unbounded.
    """

    def __init__(self, program: Program, inputs: Mapping[str, Span] | None = None) -> None:
        self.program, self.inputs = program, dict(inputs or {})
        self.found: dict[str, Any] = {}
        self.reasons: dict[str, str] = {}
        self.averaging: set[str] = set()
        """Nodes whose rows along the last axis are non-negative and sum to 1."""
        with np.errstate(all="ignore"), torch.no_grad():
            for node in program.nodes:
                self.found[node.name] = self._range(node)

    def get(self, name: str) -> Span | None:
        """The range of a node with one value, if there is one."""
        found = self.found.get(name)
        return found if isinstance(found, tuple) and isinstance(found[0], np.ndarray) else None

    def of(self, name: str) -> Span:
        """The range, flat; refused where no rule reaches."""
        found = self.get(name)
        if found is None:
            raise CertificateError(
                f"The independent checker does not support {self.reasons.get(name, name)}."
            )
        return found[0].reshape(-1), found[1].reshape(-1)

    def constant(self, name: str | None) -> Tensor | None:
        """The value of a node that is exactly known, in its own kind of number."""
        if name is None:
            return None
        if name in self.program.constants:
            value = self.program.constants[name].detach()
            return value.to(torch.float64) if value.is_floating_point() else value
        found, node = self.get(name), self.program.node(name)
        if found is None or node.dtype is None or not np.array_equal(found[0], found[1]):
            return None
        value = torch.from_numpy(found[0].copy())
        return value if node.dtype.is_floating_point else value.to(node.dtype)

    def zeros(self, name: str) -> Tensor:
        """Zeros of a node's shape."""
        return torch.zeros(sizes(self.program.node(name)), dtype=torch.float64)

    def _range(self, node: Node) -> Any:
        if node.role == "constant":
            value = self.program.constants[node.name].detach()
            if value.is_complex():
                self.reasons[node.name] = f"complex numbers ({node.name})"
                return None
            mid = value.to(torch.float64).numpy().copy()
            return mid, mid
        if node.role == "input":
            free = (np.full(sizes(node), -math.inf), np.full(sizes(node), math.inf))
            return self.inputs.get(node.name, free)
        try:
            made = _Step(self, node).made()
        except CertificateError as error:
            made, self.reasons[node.name] = None, str(error)
        except (RuntimeError, TypeError, ValueError, IndexError, KeyError):  # a rule that fails says nothing
            made = None
        if made is None:
            lost = next(
                (self.reasons[n] for n in node.operands if n in self.reasons and self.get(n) is None), None
            )
            self.reasons.setdefault(node.name, lost or f"{node.op} ({node.name}) yet")
            return None
        if not isinstance(made[0], np.ndarray):
            return made
        lo, hi = (np.broadcast_to(end, sizes(node)).astype(np.float64) for end in made)
        return np.where(np.isnan(lo), -math.inf, lo), np.where(np.isnan(hi), math.inf, hi)


class _Step:
    """One node with the ranges of its operands."""

    def __init__(self, ranges: Ranges, node: Node) -> None:
        self.ranges, self.node, self.attributes = ranges, node, node.attributes
        self.facts: Facts = describe(node)
        self.given: list[Any] = [None if name is None else ranges.found.get(name) for name in node.inputs]
        self.fixed = [ranges.constant(name) for name in node.inputs]

    def made(self) -> Any:
        node = self.node
        if (
            node.op == "getitem"
            and self.given
            and isinstance(self.given[0], tuple)
            and not isinstance(self.given[0][0], np.ndarray)
        ):
            return self.given[0][int(self.attributes["index"])]
        types = [node.dtype, *(self.ranges.program.node(n).dtype for n in node.operands)]
        if any(t is not None and t.is_complex for t in types):
            raise CertificateError(f"complex numbers ({node.name})")
        if (rule := _RULES.get(node.op)) is not None and (made := rule(self)) is not None:
            return made
        if self.facts.norm is not None:
            return self._norm(self.facts.norm)
        if (
            (sigma := curve(node.op, self.attributes)) is not None
            and len(node.operands) == 1
            and self.given[0]
        ):
            return sigma.image(*self.given[0])
        if self.facts.moves and (made := self._moved()) is not None:
            return made
        if (made := self._monotone()) is not None:
            return made
        if self.facts.linear and (made := self._linear()) is not None:
            return made
        return (np.zeros(sizes(node)), np.ones(sizes(node))) if node.dtype == torch.bool else None

    def operand(self, place: int, key: str) -> Span | None:
        """An operand's range, or the number that stands in its place."""
        if place < len(self.given) and self.given[place] is not None:
            found: Span = self.given[place]
            return found
        number = self.attributes.get(key)
        present = place < len(self.node.inputs) and self.node.inputs[place] is not None
        return None if present or not isinstance(number, int | float) else _point(float(number))

    def _picked(self, side: int) -> list[Any]:
        """The operands' ends that give the lower (0) or upper (1) end; constants as they are."""
        signs = [*self.facts.monotone, *(0 for _ in self.given)]
        return [
            fixed if fixed is not None or span is None else span[side if sign >= 0 else 1 - side]
            for span, fixed, sign in zip(self.given, self.fixed, signs, strict=False)
        ]

    def _ends(self, side: int) -> Any:
        return run(self.node, self._picked(side))

    def _moved(self) -> Any:
        """Entries that are chosen by something unknown: by a mask either one, by an index any one of them, or 0."""
        linear = {i for group in self.facts.linear for i in group}
        strangers = [
            i
            for i, name in enumerate(self.node.inputs)
            if name is not None and self.fixed[i] is None and i not in linear
        ]
        moved = [g for i, g in enumerate(self.given) if i in linear and self.node.inputs[i] is not None]
        if not strangers or any(g is None or not isinstance(g[0], np.ndarray) for g in moved):
            return None
        if self.node.op in ("where", "masked_fill"):
            place = strangers[0]
            shape = sizes(self.ranges.program.node(str(self.node.inputs[place])))
            ends: list[Span] = []
            for choice in (True, False):
                self.given[place], self.fixed[place] = None, torch.full(shape, choice)
                ends.append((self._ends(0), self._ends(1)))
            return np.minimum(ends[0][0], ends[1][0]), np.maximum(ends[0][1], ends[1][1])
        axes = 0 if self.node.op == "embedding" else None  # a row of the table, whichever
        lo, hi = (
            np.minimum.reduce([np.min(g[0], axis=axes) for g in moved]),
            np.maximum.reduce([np.max(g[1], axis=axes) for g in moved]),
        )
        if self.node.op != "embedding":
            lo, hi = np.minimum(lo, 0.0), np.maximum(hi, 0.0)
        return np.broadcast_to(lo, sizes(self.node)), np.broadcast_to(hi, sizes(self.node))

    def _monotone(self) -> Any:
        for i, name in enumerate(self.node.inputs):
            sign = self.facts.monotone[i] if i < len(self.facts.monotone) else 0
            if (
                name is not None
                and self.fixed[i] is None
                and (not sign or self.given[i] is None or not isinstance(self.given[i][0], np.ndarray))
            ):
                return None
        if not self.facts.monotone or not self.facts.deterministic:
            return None
        low, high = self._ends(0), self._ends(1)
        if isinstance(low, tuple):
            return tuple(zip(low, high, strict=True))
        if self.facts.moves or self.node.op in EXACT:
            return low, high
        low, high = low.astype(np.float64), high.astype(np.float64)
        slack = [EVALUATION * np.abs(end) + TINY for end in (low, high)]
        if self.facts.linear:
            affine = self._affine()
            if affine is None:
                return None
            terms = gamma(max([1, *(g[0].size for g in self.given if g is not None)]) + 16)
            slack = [round_up(terms * self._sized(affine, self._picked(side))) for side in (0, 1)]
        elif not self.facts.entrywise:  # logarithms of sums
            slack = [s + EVALUATION for s in slack]
        low, high = low - slack[0], high + slack[1]
        return (np.maximum(low, 0.0) if self.facts.positive else low), high

    def _sized(self, affine: Affine, ends: list[Any]) -> Array:
        """Σ |L||x| + |f(0)|."""
        total: Array = np.abs(np.asarray(affine.offset()))
        for i in affine.places:
            total = total + affine.absolute(i, np.abs(np.asarray(ends[i], dtype=np.float64))[None])[0]
        return total

    def _affine(self) -> Affine | None:
        moving = [i for i, name in enumerate(self.node.inputs) if name is not None and self.fixed[i] is None]
        group = self.facts.linear_group(moving)
        if group is None or any(self.given[i] is None for i in moving):
            return None
        zeros = [
            f if i not in group or name is None else self.ranges.zeros(name)
            for i, (name, f) in enumerate(zip(self.node.inputs, self.fixed, strict=True))
        ]
        affine = Affine(self.node, self.facts, group, zeros)
        return affine if affine.supported else None

    def _linear(self) -> Any:
        """Mid ± |L| rad; an entry that something unbounded enters is unbounded."""
        affine = self._affine()
        if affine is None:
            return None
        mid = affine.offset()
        rad = gamma(16) * np.abs(mid)
        for i in affine.places:
            lo, hi = self.given[i]
            open_ = ~(np.isfinite(lo) & np.isfinite(hi))
            middle = np.where(open_, 0.0, lo / 2 + hi / 2)
            half = np.where(open_, 0.0, round_up((hi - lo) / 2 * (1 + 4 * U) + U * np.abs(middle)))
            mid = mid + affine.apply(i, middle[None])[0]
            rad = rad + affine.absolute(i, round_up(half + affine.loss(i) * np.abs(middle))[None])[0]
            if open_.any():
                rad = np.where(affine.absolute(i, open_.astype(np.float64)[None])[0] > 0, math.inf, rad)
        rad = round_up(rad + gamma(len(affine.places) + 4) * np.abs(mid))
        return mid - rad, mid + rad

    def _norm(self, spec: NormSpec) -> Any:
        """The image: |y_i| ≤ √(count·(1 − 1/n)) where the norm centers, √count (1 for a p-norm) where not."""
        node = self.node
        shape = sizes(node)
        groups = spec.group_index(shape).numpy()
        width = groups.shape[1]
        count = spec.count(width)
        if count <= 0 or not spec.order >= 1:
            return None
        top = math.sqrt(count * ((1 - 1 / width) if spec.centered else 1.0)) if spec.order == 2 else 1.0
        if spec.order != 2 and (spec.averaged or spec.centered):
            return None
        top *= 1 + 8 * U
        lo, hi = np.full(groups.size, -top), np.full(groups.size, top)
        x = self.given[0]
        if x is not None and spec.order == 2 and np.isfinite(x[0]).all() and np.isfinite(x[1]).all():
            near = _closer_norm(x[0].reshape(-1)[groups], x[1].reshape(-1)[groups], spec, count)
            lo[groups], hi[groups] = np.fmax(-top, near[0]), np.fmin(top, near[1])
        made: Span = (lo.reshape(shape), hi.reshape(shape))
        for place, combine in ((spec.weight, _times), (spec.bias, _plus)):
            if place is not None:
                if self.given[place] is None:
                    return None
                spread = [spec.spread(torch.from_numpy(e.copy()), shape).numpy() for e in self.given[place]]
                made = combine(made, (spread[0], spread[1]))
        return made


# -- interval arithmetic -------------------------------------------------------------------------------------


def _span(low: Any, high: Any) -> Span:
    return np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)


def _point(value: float) -> Span:
    return _span(value, value)


def _plus(a: Span, b: Span) -> Span:
    return _span(np.nextafter(a[0] + b[0], -math.inf), np.nextafter(a[1] + b[1], math.inf))


def _times(a: Span, b: Span) -> Span:
    """Products of two intervals; 0·∞ is 0."""
    ends = [np.where((x == 0) | (y == 0), 0.0, x * y) for x in a for y in b]
    return _span(
        np.nextafter(np.minimum.reduce(ends), -math.inf), np.nextafter(np.maximum.reduce(ends), math.inf)
    )


def _inverse(b: Span) -> Span:
    """1/b; unbounded where b may be 0."""
    sure = (b[0] > 0) | (b[1] < 0)
    lo, hi = np.nextafter(1.0 / b[1], -math.inf), np.nextafter(1.0 / b[0], math.inf)
    return _span(np.where(sure, lo, -math.inf), np.where(sure, hi, math.inf))


def _sizes_of(x: Span) -> Span:
    """Range of |x|."""
    low = np.where((x[0] <= 0) & (x[1] >= 0), 0.0, np.minimum(np.abs(x[0]), np.abs(x[1])))
    return _span(low, np.maximum(np.abs(x[0]), np.abs(x[1])))


def _closer_norm(low: Array, high: Array, spec: NormSpec, count: float) -> Span:
    """t/√((t² + Q)/count + ε) rises with t and shrinks as Q, the others' squares, grows: its ends."""
    width = low.shape[1]
    if spec.centered:
        size = gamma(2 * width + 16) * np.maximum(np.abs(low), np.abs(high)).max(1, keepdims=True) * 4
        least, most = low.sum(1, keepdims=True), high.sum(1, keepdims=True)
        low, high = low - (low + (most - high)) / width - size, high - (high + (least - low)) / width + size
    squares = [s**2 for s in _sizes_of((low, high))]
    rest = [np.maximum(s.sum(1, keepdims=True) - s, 0.0) for s in squares]
    slack = 1e-13 * width * squares[1].sum(1, keepdims=True)
    rest = [np.maximum(rest[0] - slack, 0.0), rest[1] + slack]

    def quotient(t: Array, others: Array) -> Array:
        square = (t * t + others) / count
        under = {
            "inside": np.sqrt(square + spec.eps),
            "outside": np.sqrt(square) + spec.eps,
            "clamp": np.maximum(np.sqrt(square), spec.eps),
        }[spec.eps_mode]
        made: Array = np.where(t == 0, 0.0, t / under)
        return made

    up = quotient(high, np.where(high >= 0, rest[0], rest[1]))
    down = quotient(low, np.where(low <= 0, rest[0], rest[1]))
    return down - 1e-13 * np.abs(down) - TINY, up + 1e-13 * np.abs(up) + TINY


# -- rules by name -------------------------------------------------------------------------------------------


def _product(step: _Step) -> Any:
    a, b = step.operand(0, "input"), step.operand(1, "other")
    if a is None or b is None:
        return None
    if len(step.node.operands) == 2 and step.node.inputs[0] == step.node.inputs[1]:
        return _square(step)
    return _times(a, b)


def _square(step: _Step) -> Any:
    if step.given[0] is None:
        return None
    low, high = _sizes_of(step.given[0])
    return np.maximum(np.nextafter(low * low, -math.inf), 0.0), np.nextafter(high * high, math.inf)


def _quotient(step: _Step) -> Any:
    a, b = step.operand(0, "input"), step.operand(1, "other")
    if a is None or b is None or step.attributes.get("rounding_mode") is not None:
        return None
    return _times(a, _inverse(b))


def _power(step: _Step) -> Any:
    """A whole or a positive exponent; other bases than positive ones only for whole exponents."""
    base, power = step.operand(0, "input"), step.operand(1, "exponent")
    if base is None or power is None or power[0].size != 1 or power[0] != power[1]:
        return None
    p = float(power[0].reshape(()))
    if p < 0:
        return None
    if p == int(p):
        low, high = (base[0], base[1]) if p % 2 else _sizes_of(base)
    else:
        low, high = np.maximum(base[0], 0.0), base[1]
    ends = [np.power(e, p) for e in (low, high)]
    return ends[0] - EVALUATION * np.abs(ends[0]) - TINY, ends[1] + EVALUATION * np.abs(ends[1]) + TINY


def _lerp(step: _Step) -> Any:
    a, b, w = step.operand(0, "input"), step.operand(1, "end"), step.operand(2, "weight")
    if a is None or b is None or w is None:
        return None
    back = _plus(_point(1.0), _span(-w[1], -w[0]))
    return _plus(_times(a, back), _times(b, w))


def _matmul(step: _Step) -> Any:
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
        piece = _times(left, right)
        lo, hi, top = lo + piece[0], hi + piece[1], top + np.maximum(np.abs(piece[0]), np.abs(piece[1]))
    loss = round_up(gamma(a_lo.shape[-1] + 4) * top)
    lo, hi = lo - loss, hi + loss
    if step.node.inputs[0] in step.ranges.averaging:
        lo, hi = np.fmax(lo, b_lo.min(-2, keepdims=True)), np.fmin(hi, b_hi.max(-2, keepdims=True))
    return lo, hi


def _averaging(step: _Step) -> Any:
    """Remember what keeps the rows of a softmax as they are; the range is found by another rule."""
    name, node = step.node.inputs[0], step.node
    if name in step.ranges.averaging and step.facts.moves:
        before = sizes(step.ranges.program.node(name))
        if before and node.shape and before[-1] == int(node.shape[-1]):
            step.ranges.averaging.add(node.name)
    return None


def _softmax(step: _Step) -> Any:
    """e^{x_i}/Σ e^{x_j} rises with x_i and falls with the others."""
    node, axis = step.node, int(step.attributes["dim"])
    if axis == len(node.shape) - 1:
        step.ranges.averaging.add(node.name)
    span = step.given[0]
    if span is None or not (np.isfinite(span[0]).all() and np.isfinite(span[1]).all()):
        return np.zeros(sizes(node)), np.ones(sizes(node))
    low, high = np.moveaxis(span[0], axis, -1), np.moveaxis(span[1], axis, -1)
    peak = high.max(-1, keepdims=True)
    bottom, top = np.exp(low - peak), np.exp(high - peak)

    def share(own: Array, others: Array) -> Array:
        rest = np.stack([np.delete(others, i, -1).sum(-1) for i in range(others.shape[-1])], -1)
        made: Array = own / (own + rest + TINY)
        return made

    lo, hi = share(bottom, top) * (1 - 1e-12) - TINY, share(top, bottom) * (1 + 1e-12) + TINY
    return np.moveaxis(np.maximum(lo, 0.0), -1, axis), np.moveaxis(np.minimum(hi, 1.0), -1, axis)


def _log_softmax(step: _Step) -> Any:
    """x_i − ln Σ e^{x_j} ≤ 0, and at least x_i − max x_j − ln n."""
    if step.given[0] is None:
        return None
    (low, high), axis = step.given[0], int(step.attributes["dim"])
    lo = low - high.max(axis, keepdims=True) - math.log(low.shape[axis])
    return lo - EVALUATION * (1 + np.abs(low) + np.abs(lo)), np.zeros_like(high)


def _attention(step: _Step) -> Any:
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


def _cast(step: _Step) -> Any:
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


def _dropout(step: _Step) -> Any:
    if not step.attributes.get("train"):
        return _averaging(step)
    if step.given[0] is None or float(step.attributes["p"]) >= 1:
        return None
    kept = _plus(_point(1.0), _point(-float(step.attributes["p"])))
    low, high = _times(step.given[0], _inverse(kept))
    return np.minimum(low, 0.0), np.maximum(high, 0.0)


def _between(low: float, high: float) -> Rule:
    return lambda step: (np.full(sizes(step.node), low), np.full(sizes(step.node), high))


def _random(step: _Step) -> Any:
    return _between(0.0, 1.0)(step) if step.attributes.get("distribution") == "uniform" else None


def _randint(step: _Step) -> Any:
    return _between(float(step.attributes["low"]), float(step.attributes["high"]) - 1.0)(step)


def _created(step: _Step) -> Any:
    """Made of sizes and numbers alone."""
    value = run(step.node, step.fixed).astype(np.float64)
    loose = EVALUATION * np.abs(value) if step.node.op == "linspace" else 0.0
    return value - loose, value + loose


def _spread(step: _Step) -> Any:
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


def _length(step: _Step) -> Any:
    """A p-norm rises with every |x_i|."""
    order = step.attributes.get("ord", 2)
    if step.given[0] is None or not isinstance(order, int | float) or order < 1:
        return None
    low, high = (run(step.node, [e]) for e in _sizes_of(step.given[0]))
    loss = 1e-13 + gamma(step.given[0][0].size + 64)
    return low * (1 - loss) - TINY, high * (1 + loss) + TINY


def _ordered(step: _Step) -> Any:
    if step.given[0] is None or step.attributes.get("sorted") is False:
        return None
    low, high = (run(step.node, [e]) for e in step.given[0])
    return ((low[0], high[0]), None)


def _prelu(step: _Step) -> Any:
    """max(z, 0) + w·min(z, 0), one weight per channel."""
    if step.given[0] is None or step.given[1] is None:
        return None
    low, high = step.given[0]
    weight = [
        w if w.ndim > 1 else w.reshape(1, -1, *(1,) * (low.ndim - 2)) if low.ndim > 1 else w
        for w in step.given[1]
    ]
    below = _times((np.minimum(low, 0.0), np.minimum(high, 0.0)), (weight[0], weight[1]))
    return _plus((np.maximum(low, 0.0), np.maximum(high, 0.0)), below)


def _jumping(step: _Step) -> Any:
    """Hardshrink and threshold: x itself, or one value instead."""
    if step.given[0] is None:
        return None
    other = float(step.attributes.get("value", 0.0))
    return np.minimum(step.given[0][0], other), np.maximum(step.given[0][1], other)


def _recurrent(step: _Step) -> Any:
    """tanh, or a gate times tanh, in every step of rnn and lstm; gru averages such values with its first state."""
    if step.node.op == "gru":
        low, high = step.given[1] if step.given[1] is not None else (np.array(-math.inf), np.array(math.inf))
        ends = min(-1.0, float(low.min())), max(1.0, float(high.max()))
    else:
        ends = -1.0, 1.0
    made = []
    zeros = [
        torch.zeros(sizes(step.ranges.program.node(str(n))), dtype=torch.float64) for n in step.node.inputs
    ]
    for place, value in enumerate(run(step.node, zeros)):
        made.append((np.full(value.shape, ends[0]), np.full(value.shape, ends[1])) if place < 2 else None)
    return tuple(made)


_RULES: Mapping[str, Rule] = {
    "mul": _product, "square": _square, "div": _quotient, "pow": _power, "lerp": _lerp, "matmul": _matmul,
    "reciprocal": lambda step: None if step.given[0] is None else _inverse(step.given[0]),
    "softmax": _softmax, "log_softmax": _log_softmax, "attention": _attention, "cast": _cast, "dropout": _dropout,
    **dict.fromkeys(["identity", "reshape", "expand", "unsqueeze"], _averaging),
    "random": _random, "randint": _randint, "bernoulli": _between(0.0, 1.0), "arange": _created, "linspace": _created,
    "eye": _created, "full": lambda step: _created(step) if not step.node.operands else None, "var": _spread,
    "std": _spread, "norm": _length, "prelu": _prelu, "hardshrink": _jumping, "threshold": _jumping,
    "atan2": _between(-math.pi - 1e-15, math.pi + 1e-15), **dict.fromkeys(ORDERED, _ordered),
    **dict.fromkeys(["lstm", "gru", "rnn_tanh"], _recurrent),
}  # fmt: skip
