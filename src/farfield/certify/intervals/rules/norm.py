"""Normalizations: bounded by the shape of their image, and more closely where the operand's box is small.

With t = x_i − mean (or x_i) and Q = Σ_{j≠i} (x_j − mean)², a normalized entry is t/√((t² + Q)/m + ε), which rises
with t and falls in size as Q grows. So its extremes are at the ends of t with the least or the largest Q. Whatever
the box, it is at most √((n−1)(n−c)/n) in size where t is centered (√(n−1) without correction), because then
Q ≥ t²/(n−1), and √n (or 1 for a p-norm) where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from farfield.certify.intervals._interval import (
    UNDERFLOW,
    Interval,
    add,
    divide,
    down,
    gamma,
    inflate,
    meet,
    mul,
    point,
    spread,
    square,
    sub,
    up,
)
from farfield.certify.intervals._registry import Place, interval_rule
from farfield.certify.intervals.rules.bilinear import total
from farfield.certify.intervals.rules.transcendental import root

__all__ = ["centered_bound", "deviations", "others"]

INF = math.inf


def centered_bound(count: int, correction: float = 0.0) -> float:
    """Largest |ẑ_i| of a centered row of n entries scaled to (corrected) unit variance: √((n−1)(n−c)/n)."""
    return math.sqrt(max(0.0, (count - 1) * (count - correction) / count)) * (1.0 + 2.0**-50)


def others(terms: Interval) -> Interval:
    """Σ_{j≠i} of non-negative terms along the last axis, from running sums on either side: no cancellation."""
    count = terms.shape[-1]
    error = gamma(2 * count + 8)

    def rest(values: Tensor) -> Tensor:
        before = torch.zeros_like(values)
        before[..., 1:] = values.cumsum(-1)[..., :-1]
        after = torch.zeros_like(values)
        after[..., :-1] = values.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        return before + after

    lo, hi = rest(terms.lo), rest(terms.hi)
    lo = torch.where(torch.isnan(lo), 0.0, lo)
    hi = torch.where(hi > 0, up(hi * (1.0 + error)) + UNDERFLOW, hi)
    return Interval(down(lo * (1.0 - error)).clamp_min(0.0), hi)


def deviations(x: Interval) -> Interval:
    """x_i − mean over the last axis: the exact hull, (1 − 1/n)·x_i − Σ_{j≠i} x_j/n, up to rounding."""
    count = x.shape[-1]
    low, high = x.lo, x.hi
    total_low, total_high = low.sum(-1, keepdim=True), high.sum(-1, keepdim=True)
    lo = low - (low + (total_high - high)) / count
    hi = high - (high + (total_low - low)) / count
    # Also covers what one evaluation of x − mean in float64 loses.
    size = x.magnitude.amax(-1, keepdim=True) * gamma(count + 16)
    lo = torch.where(torch.isnan(lo), -INF, lo)
    hi = torch.where(torch.isnan(hi), INF, hi)
    return inflate(Interval(lo, hi), size)


def _stabilized(squares: Interval, place: Place, eps: float, mode: str) -> Interval:
    """√(v + ε), √v + ε or max(√v, ε), and never 0."""
    if mode == "inside":
        result = root(add(squares, point(eps)))
    elif mode == "outside":
        result = add(root(squares), point(eps))
    else:
        result = root(squares)
        result = Interval(result.lo.clamp_min(eps), result.hi.clamp_min(eps))
    if not eps >= 0.0:
        raise place.refuse(f"only ε ≥ 0 keeps the denominator from 0, not ε = {eps:g}")
    return result


def _normalized(
    place: Place,
    t: Interval,
    denominator: Callable[[Interval], Interval],
    terms: Interval,
    bound: float,
    eps: float,
) -> Interval:
    """t/denominator(t-term + the others), rising in t: ends of t against the least or largest of the others."""
    if eps == 0.0 and bool((terms.lo.sum(-1) <= 0.0).any()):
        raise place.refuse("its ε is 0 and a row may be constant (or zero), where it is 0/0")
    rest = others(terms)

    def end(value: Tensor, *, up_end: bool) -> Tensor:
        # Away from 0 the size is largest against the least of the others; towards 0, against the largest.
        outward = value >= 0 if up_end else value <= 0
        of = torch.where(outward, rest.lo, rest.hi)
        finite = torch.isfinite(value)
        own = point(torch.where(finite, value, 0.0))
        quotient = divide(own, denominator(add(_own(place, own), Interval(of, of))))
        found = quotient.hi if up_end else quotient.lo
        return torch.where(finite, found, bound if up_end else -bound)

    image = spread(-bound, bound, t.shape)
    close = Interval(end(t.lo, up_end=False), end(t.hi, up_end=True))
    close = Interval(
        torch.where(torch.isnan(close.lo), -bound, close.lo),
        torch.where(torch.isnan(close.hi), bound, close.hi),
    )
    return meet(image, close)


def _own(place: Place, own: Interval) -> Interval:
    p = float(place.attributes.get("p", 2.0)) if place.node.op == "l2_normalize" else 2.0
    return square(own) if p == 2.0 else _raised(own, p)


def _raised(x: Interval, p: float) -> Interval:
    if p == 1.0:
        return Interval(x.mignitude, x.magnitude)
    lo, hi = x.mignitude.pow(p), x.magnitude.pow(p)
    return Interval(down(lo * (1 - 2.0**-48)).clamp_min(0.0), up(hi * (1 + 2.0**-48)))


def _rows(x: Interval, dims: tuple[int, ...]) -> tuple[Interval, Callable[[Interval], Interval]]:
    """The axes laid out as one last axis, and the way back."""
    rank = x.lo.ndim
    order = [d for d in range(rank) if d not in dims] + list(dims)
    back = [order.index(d) for d in range(rank)]
    laid = x.map(lambda end: end.permute(order))
    kept, shape = [x.shape[d] for d in order[: rank - len(dims)]], laid.shape

    def restore(value: Interval) -> Interval:
        return value.map(lambda end: end.reshape(shape).permute(back))

    return laid.map(lambda end: end.reshape(*kept, -1)), restore


def _standardized(place: Place, rows: Interval, eps: float, mode: str, correction: float) -> Interval:
    """Centered rows over their deviation."""
    count = rows.shape[-1]
    if count <= correction:
        raise place.refuse(f"a variance over {count} entries with correction {correction:g} is 0/0")
    bound = centered_bound(count, correction)
    if count == 1:
        return spread(0.0, 0.0, rows.shape)
    free = ~(torch.isfinite(rows.lo) & torch.isfinite(rows.hi)).all(-1)
    if bool(free.all()) and eps > 0.0:
        return spread(-bound, bound, rows.shape)
    t = deviations(rows)
    terms = square(t)
    divisor = point(count - correction)

    def denominator(squares: Interval) -> Interval:
        return _stabilized(divide(squares, divisor), place, eps, mode)

    # The others sum to −t, so their squares to at least t²/(n − 1); that is what the image bound says.
    return _normalized(place, t, denominator, terms, bound, eps)


def _affine(place: Place, value: Interval, weight: Interval | None, bias: Interval | None) -> Interval:
    value = value if weight is None else mul(value, weight)
    return value if bias is None else add(value, bias)


@interval_rule("layer_norm")
def _layer_norm(place: Place) -> Interval:
    a = place.attributes
    rows, restore = _rows(place.interval(0), tuple(a["dim"]))
    value = _standardized(
        place, rows, float(a["eps"]), str(a.get("eps_mode", "inside")), float(a.get("correction", 0))
    )
    return _affine(place, restore(value), place.optional(1), place.optional(2))


@interval_rule("rms_norm")
def _rms_norm(place: Place) -> Interval:
    a = place.attributes
    rows, restore = _rows(place.interval(0), tuple(a["dim"]))
    count, eps = point(rows.shape[-1]), float(a["eps"])
    bound = math.sqrt(rows.shape[-1]) * (1.0 + 2.0**-50)

    def denominator(squares: Interval) -> Interval:
        return _stabilized(divide(squares, count), place, eps, str(a.get("eps_mode", "inside")))

    value = _normalized(place, rows, denominator, square(rows), bound, eps)
    return _affine(place, restore(value), place.optional(1), None)


@interval_rule("l2_normalize")
def _l2_normalize(place: Place) -> Interval:
    a = place.attributes
    p, eps, mode = float(a.get("p", 2.0)), float(a["eps"]), str(a.get("eps_mode", "clamp"))
    if p == math.inf and eps > 0.0:  # |x_i| never exceeds max|x|, and signs stay
        x = place.interval(0)
        return Interval(-(x.lo < 0).to(x.lo.dtype), (x.hi > 0).to(x.hi.dtype))
    if p <= 0.0 or math.isinf(p):
        raise place.refuse(f"normalization by a p-norm with p = {p:g}")
    rows, restore = _rows(place.interval(0), tuple(a["dim"]))

    def denominator(sums: Interval) -> Interval:
        if p == 2.0:
            return _stabilized(sums, place, eps, mode)
        lo, hi = sums.lo.pow(1.0 / p), sums.hi.pow(1.0 / p)
        size = Interval(down(lo * (1 - 2.0**-48)).clamp_min(0.0), up(hi * (1 + 2.0**-48)))
        if mode == "outside":
            return add(size, point(eps))
        return Interval(size.lo.clamp_min(eps), size.hi.clamp_min(eps))

    value = _normalized(place, rows, denominator, _own(place, rows), 1.0 + 2.0**-50, eps)
    return restore(value)


@interval_rule("group_norm")
def _group_norm(place: Place) -> Interval:
    return _grouped(place, int(place.attributes["num_groups"]))


def _grouped(place: Place, groups: int) -> Interval:
    x = place.interval(0)
    rows = x.map(lambda end: end.reshape(end.shape[0], groups, -1))
    value = _standardized(place, rows, float(place.attributes["eps"]), "inside", 0.0)
    value = value.map(lambda end: end.reshape(x.shape))
    return _affine(place, value, _channels(place, 1), _channels(place, 2))


def _channels(place: Place, index: int) -> Interval | None:
    """A vector with one entry per channel, shaped to meet the input's axis 1."""
    vector, rank = place.optional(index), place.interval(0).lo.ndim
    return None if vector is None else vector.map(lambda end: end.reshape(-1, *[1] * (rank - 2)))


@interval_rule("instance_norm")
def _instance_norm(place: Place) -> Interval:
    if not place.attributes.get("use_input_stats", True):
        return _running(place)
    return _grouped(place, place.interval(0).shape[1])


@interval_rule("batch_norm")
def _batch_norm(place: Place) -> Interval:
    """Affine in eval mode; by the batch's own statistics, one row per channel."""
    if not place.attributes.get("training"):
        return _running(place)
    x = place.interval(0)
    rows, restore = _rows(x, tuple(d for d in range(x.lo.ndim) if d != 1))
    value = _standardized(place, rows, float(place.attributes["eps"]), "inside", 0.0)
    return _affine(place, restore(value), _channels(place, 1), _channels(place, 2))


def _running(place: Place) -> Interval:
    """(x − mean)/√(var + ε)·weight + bias with stored statistics, exactly as affine as it looks."""
    x, mean, variance = place.interval(0), _channels(place, 3), _channels(place, 4)
    if mean is None or variance is None:
        raise place.refuse("it has neither statistics of its own nor stored ones")
    spread_of = add(variance, point(float(place.attributes.get("eps") or 0.0)))
    if bool((spread_of.lo <= 0).any()):
        raise place.refuse("a stored variance plus ε may not be positive")
    weight, bias = _channels(place, 1), _channels(place, 2)
    factor = divide(point(1.0), root(spread_of))
    if weight is not None:
        factor = mul(factor, weight)
    value = mul(sub(x, mean), factor)
    # torch computes x·factor + (bias − mean·factor), whose rounding follows the size of these terms.
    margin = 2.0**-49 * factor.magnitude * (x.magnitude + mean.magnitude)
    if bias is not None:
        value, margin = add(value, bias), margin + 2.0**-49 * bias.magnitude
    return inflate(value, torch.where(torch.isfinite(margin), margin, 0.0))


def variance(rows: Interval, count_less: float) -> Interval:
    """Σ(x − mean)²/(n − c) along the last axis: at least the squares of what the deviations keep off 0; at most the
    squares about any one point, here the mean of the centers.
    """
    low = total(square(deviations(rows)), (rows.lo.ndim - 1,))
    center = (rows.lo / 2 + rows.hi / 2).mean(-1, keepdim=True)
    finite = torch.isfinite(center)
    about = square(sub(rows, point(torch.where(finite, center, 0.0))))
    high = total(about, (rows.lo.ndim - 1,))
    squares = Interval(low.lo, torch.minimum(low.hi, torch.where(finite.squeeze(-1), high.hi, INF)))
    return divide(squares, point(count_less))
