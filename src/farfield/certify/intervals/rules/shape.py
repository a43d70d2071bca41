"""Operators that move entries about: both ends go through the operator itself, exactly."""

from __future__ import annotations

import torch

from farfield.certify.intervals._interval import Interval, add, divide, hull, point, spread
from farfield.certify.intervals._registry import Bounds, Place, interval_rule

__all__ = ["moved"]


@interval_rule("pad", "copy", "amax", "amin", "max_pool", "adaptive_max_pool")
def moved(place: Place) -> Bounds:
    """An operator that neither rounds nor turns the order of any argument: [f(lo, …), f(hi, …)].

    Also of every operator without a rule of its own whose facts say that it moves the entries of all its operands.
    """
    lows = [
        None if o is None else (o.lo if isinstance(o, Interval) else [p.lo for p in o])
        for o in place.operands
    ]
    if all(o is None or (isinstance(o, Interval) and o.lo is o.hi) for o in place.operands):
        ends = place.compute(*lows)
        return Interval(ends, ends) if isinstance(ends, torch.Tensor) else tuple(Interval(e, e) for e in ends)
    highs = [
        None if o is None else (o.hi if isinstance(o, Interval) else [p.hi for p in o])
        for o in place.operands
    ]
    lo, hi = place.compute(*lows), place.compute(*highs)
    if isinstance(lo, torch.Tensor):
        return Interval(lo, hi)
    return tuple(Interval(low, high) for low, high in zip(lo, hi, strict=True))


@interval_rule("getitem")
def _getitem(place: Place) -> Interval:
    operand = place.operands[0]
    if not isinstance(operand, tuple):
        return place.interval(0).map(place.compute)
    return operand[int(place.attributes["index"])]


@interval_rule("cast")
def _cast(place: Place) -> Interval:
    """Real arithmetic: a floating type changes nothing; an integer type truncates; a boolean keeps only ≠ 0."""
    x, dtype = place.operand(0, "input"), place.attributes["dtype"]
    if dtype == torch.bool:
        zero = (x.lo == 0) & (x.hi == 0)
        other = (x.lo > 0) | (x.hi < 0)
        return Interval(other.to(torch.float64), (~zero).to(torch.float64))
    if dtype.is_floating_point:
        return x
    result = x.map(torch.trunc)
    if dtype == torch.int64:
        return result  # real arithmetic: whole numbers without a largest
    limits = torch.iinfo(dtype)
    if bool((result.lo < limits.min).any()) or bool((result.hi > limits.max).any()):
        return spread(float(limits.min), float(limits.max), place.shape)  # wraps around
    return result


@interval_rule("dropout")
def _dropout(place: Place) -> Interval:
    x = place.interval(0)
    if not place.attributes.get("train"):
        return x
    keep = 1.0 - float(place.attributes["p"])
    zero = point(0.0)
    kept = divide(x, add(point(1.0), point(-float(place.attributes["p"]))))
    return hull(zero.expand(x.shape), kept) if keep > 0 else zero.expand(x.shape)
