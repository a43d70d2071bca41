"""Reductions over axes, running sums, order statistics."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.certify.intervals._interval import (
    UNDERFLOW,
    Interval,
    divide,
    gamma,
    mul,
    point,
    spread,
    widen,
)
from farfield.certify.intervals._registry import Place, interval_rule
from farfield.certify.intervals.rules.bilinear import total
from farfield.certify.intervals.rules.norm import variance
from farfield.certify.intervals.rules.transcendental import root

__all__: list[str] = []

INF = math.inf
LONGEST_PRODUCT = 4096


def _axes(place: Place) -> tuple[int, ...]:
    dims = place.attributes["dim"]
    dims = dims if isinstance(dims, tuple) else (dims,)
    return tuple(d for d in dims if place.interval(0).lo.ndim)


def _shaped(place: Place, value: Interval) -> Interval:
    """Axes of length 1 put back where the reduction keeps them."""
    return value.map(lambda end: end.reshape(place.shape))


def _count(place: Place) -> int:
    return math.prod(place.interval(0).shape[d] for d in _axes(place))


@interval_rule("sum")
def _sum(place: Place) -> Interval:
    return _shaped(place, total(place.interval(0), _axes(place)))


@interval_rule("mean")
def _mean(place: Place) -> Interval:
    x = place.interval(0)
    return _shaped(place, divide(total(x, _axes(place)), point(float(_count(place)))))


def _rows(place: Place) -> Interval:
    x, dims = place.interval(0), _axes(place)
    kept = [d for d in range(x.lo.ndim) if d not in dims]
    return x.map(lambda end: end.permute(*kept, *dims).reshape(*[x.shape[d] for d in kept], -1))


@interval_rule("var")
def _var(place: Place) -> Interval:
    count, correction = _count(place), float(place.attributes.get("correction", 1))
    if count <= correction:
        raise place.refuse(f"a variance over {count} entries with correction {correction:g} is 0/0")
    result = variance(_rows(place), count - correction)
    return _shaped(place, Interval(result.lo.clamp_min(0.0), result.hi))


@interval_rule("std")
def _std(place: Place) -> Interval:
    return root(_var(place))


@interval_rule("norm")
def _norm(place: Place) -> Interval:
    """Rises with every |x_i|."""
    x, order = place.interval(0), float(place.attributes.get("ord", 2))
    if order == 0.0:
        surely = ((x.lo > 0) | (x.hi < 0)).to(torch.float64)
        possibly = ((x.lo != 0) | (x.hi != 0)).to(torch.float64)
        return _shaped(place, Interval(surely.sum(_axes(place)), possibly.sum(_axes(place))))
    if order < 0.0 and not math.isinf(order):
        raise place.refuse(f"a norm of negative order {order:g} divides by its entries")
    lo, hi = place.compute(x.mignitude), place.compute(x.magnitude)
    if math.isinf(order):
        return Interval(lo, hi)
    # Squares overflow before the norm does; its largest entry is always a lower bound.
    largest = x.mignitude.amax(_axes(place)).reshape(lo.shape) if x.lo.ndim else x.mignitude
    lo = torch.where(torch.isinf(lo), largest, lo)
    error = 2.0 * gamma(_count(place) + 16) + 2.0**-48
    result = widen(lo, hi, error)
    return Interval(result.lo.clamp_min(0.0), result.hi)


@interval_rule("prod")
def _prod(place: Place) -> Interval:
    return _shaped(place, _running_product(place, _rows(place))[-1])


@interval_rule("cumprod")
def _cumprod(place: Place) -> Interval:
    x, dim = place.interval(0), int(place.attributes["dim"])
    if x.lo.ndim == 0:
        return x
    steps = _running_product(place, x.map(lambda end: end.movedim(dim, -1)))
    stacked = Interval(torch.stack([s.lo for s in steps], -1), torch.stack([s.hi for s in steps], -1))
    return stacked.map(lambda end: end.movedim(-1, dim))


def _running_product(place: Place, rows: Interval) -> list[Interval]:
    length = rows.shape[-1]
    if length > LONGEST_PRODUCT:
        raise place.refuse(f"a product of {length} factors; {LONGEST_PRODUCT} is the most that is followed")
    steps: list[Interval] = []
    value = point(1.0).expand(rows.shape[:-1])
    # A plain evaluation multiplies in another order: each factor costs it one rounding.
    for step in range(length):
        value = mul(value, Interval(rows.lo[..., step], rows.hi[..., step]))
        signed = widen(value.lo, value.hi, 2.0**-51, 0.0)
        value = Interval(
            torch.where(value.lo >= 0, signed.lo.clamp_min(0.0), signed.lo),
            torch.where(value.hi <= 0, signed.hi.clamp_max(0.0), signed.hi),
        )
        steps.append(value)
    return steps or [value]


@interval_rule("cumsum")
def _cumsum(place: Place) -> Interval:
    x, dim = place.interval(0), int(place.attributes["dim"])
    error = gamma((x.shape[dim] if x.lo.ndim else 1) + 4)

    def end(values: Tensor, sign: float) -> Tensor:
        margin = values.abs().cumsum(dim) * error
        rounded = values.cumsum(dim) + sign * torch.where(margin > 0, margin + UNDERFLOW, margin)
        rounded = rounded.nan_to_num(nan=sign * INF, posinf=INF, neginf=-INF)
        return torch.where(rounded == -sign * INF, sign * INF, rounded)

    lo, hi = end(x.lo, -1.0), end(x.hi, 1.0)
    lo = torch.where(x.lo.cummin(dim).values >= 0, lo.clamp_min(0.0), lo)
    return Interval(lo, torch.where(x.hi.cummax(dim).values <= 0, hi.clamp_max(0.0), hi))


def _indices(place: Place, shape: tuple[int, ...] | torch.Size) -> Interval:
    dim, x = place.attributes.get("dim"), place.interval(0)
    count = x.lo.numel() if dim is None or x.lo.ndim == 0 else x.shape[int(dim)]
    return spread(0.0, max(count - 1.0, 0.0), shape)


@interval_rule("argmax", "argmin", "argsort")
def _index_of(place: Place) -> Interval:
    return _indices(place, place.shape)


@interval_rule("topk", "sort", "kthvalue", "median", "cummax", "cummin")
def _ordered(place: Place) -> tuple[Interval, ...]:
    """The k-th of several numbers rises with each of them, so both ends go through."""
    x = place.interval(0)
    if place.node.op == "topk" and not place.attributes.get("sorted", True):
        values = place.compute(x.lo)[0]
        lo = torch.topk(x.lo, place.attributes["k"], place.attributes["dim"], place.attributes["largest"])[0]
        hi = torch.topk(x.hi, place.attributes["k"], place.attributes["dim"], place.attributes["largest"])[0]
        dim = int(place.attributes["dim"])
        ends = Interval(lo.amin(dim, keepdim=True), hi.amax(dim, keepdim=True)).expand(values.shape)
        return ends, _indices(place, values.shape)
    lo, hi = place.compute(x.lo)[0], place.compute(x.hi)[0]
    return Interval(lo, hi), _indices(place, lo.shape)


@interval_rule("any", "all")
def _quantifier(place: Place) -> Interval:
    """Some or every entry is not 0: decided where the entries are."""
    x = place.interval(0)
    surely, possibly = (x.lo > 0) | (x.hi < 0), (x.lo != 0) | (x.hi != 0)
    ends = [flags.to(torch.float64) for flags in (surely, possibly)]
    pick = torch.amax if place.node.op == "any" else torch.amin
    lo, hi = (pick(end, _axes(place)) if end.ndim else end for end in ends)
    return _shaped(place, Interval(lo, hi))
