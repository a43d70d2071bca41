"""Choice by a condition, and the conditions themselves: decided where the intervals decide them."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield.certify.intervals._interval import Interval, hull, point, spread, unbounded
from farfield.certify.intervals._registry import Place, interval_rule
from farfield.growth.rules.select import branch_limits

__all__: list[str] = []


def _truth(surely: Tensor, possibly: Tensor) -> Interval:
    return Interval(surely.to(torch.float64), possibly.to(torch.float64))


@interval_rule("gt", "lt", "ge", "le", "eq", "ne")
def _compared(place: Place) -> Interval:
    a, b = place.operand(0, "input"), place.operand(1, "other")
    op = place.node.op
    if op in ("lt", "le"):
        a, b, op = b, a, "gt" if op == "lt" else "ge"
    if op == "gt":
        return _truth(a.lo > b.hi, a.hi > b.lo)
    if op == "ge":
        return _truth(a.lo >= b.hi, a.hi >= b.lo)
    touching = (a.lo <= b.hi) & (b.lo <= a.hi)
    known = (a.lo == a.hi) & (b.lo == b.hi) & torch.isfinite(a.lo) & torch.isfinite(b.lo)
    return _truth(known & touching, touching) if op == "eq" else _truth(~touching, ~(known & touching))


def _true(x: Interval) -> tuple[Tensor, Tensor]:
    """Surely and possibly not 0."""
    return (x.lo > 0) | (x.hi < 0), (x.lo != 0) | (x.hi != 0)


def _logic(op: str, operands: list[Interval]) -> Interval:
    (sure, can), *rest = [_true(x) for x in operands]
    if op.endswith("not"):
        return _truth(~can, ~sure)
    ((other_sure, other_can),) = rest
    if op.endswith("and"):
        return _truth(sure & other_sure, can & other_can)
    if op.endswith("xor"):
        return _truth((sure & ~other_can) | (~can & other_sure), (can & ~other_sure) | (~sure & other_can))
    return _truth(sure | other_sure, can | other_can)


def _both(place: Place) -> list[Interval]:
    first = place.operand(0, "input")
    return [first] if place.node.op.endswith("not") else [first, place.operand(1, "other")]


@interval_rule("logical_not", "logical_and", "logical_or", "logical_xor")
def _logical(place: Place) -> Interval:
    return _logic(place.node.op, _both(place))


@interval_rule("bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor")
def _bitwise(place: Place) -> Interval:
    """Logic on booleans. On integers: −x − 1 for not; below the next power of 2 for two that are not negative."""
    operands = _both(place)
    if place.node.dtype == torch.bool:
        return _logic(place.node.op, operands)
    if place.node.op == "bitwise_not":
        return Interval(-operands[0].hi - 1.0, -operands[0].lo - 1.0)
    a, b = operands
    if bool((a.lo < 0).any()) or bool((b.lo < 0).any()):
        return unbounded(place.shape)
    if place.node.op == "bitwise_and":
        return Interval(
            torch.zeros(place.shape, dtype=torch.float64), torch.minimum(a.hi, b.hi).expand(place.shape)
        )
    top = torch.maximum(a.hi, b.hi).expand(place.shape)
    above = torch.exp2(torch.ceil(torch.log2(top + 1.0)) + 1.0)
    return Interval(torch.zeros_like(top), above)


@interval_rule("isnan", "isinf")
def _not_finite(place: Place) -> Interval:
    """Values are numbers wherever nothing was refused; infinite only where that was carried along."""
    flags = place.infinite[0]
    if flags is None or place.node.op == "isnan":
        return spread(0.0, 0.0, place.shape)
    return _truth(torch.zeros_like(flags), flags)


@interval_rule("nan_to_num")
def _nan_to_num(place: Place) -> Interval:
    x, flags, a = place.interval(0), place.infinite[0], place.attributes
    if flags is None:
        return x
    largest = torch.finfo(place.node.dtype or torch.float64).max
    ends = [largest if a["posinf"] is None else a["posinf"], -largest if a["neginf"] is None else a["neginf"]]
    wide = hull(x, *(point(float(end)) for end in ends))
    return Interval(torch.where(flags, wide.lo, x.lo), torch.where(flags, wide.hi, x.hi))


def _chosen(condition: Interval, yes: Interval, no: Interval) -> Interval:
    surely, never = condition.lo > 0, condition.hi <= 0
    both = hull(yes, no)
    lo = torch.where(surely, yes.lo, torch.where(never, no.lo, both.lo))
    return Interval(lo, torch.where(surely, yes.hi, torch.where(never, no.hi, both.hi)))


@interval_rule("where")
def _where(place: Place) -> Interval:
    """The branch taken; one whose own value (or size) the condition compares with a number is cut at that number."""
    yes, no = place.operand(1, "input"), place.operand(2, "other")
    limits = branch_limits(place.node, place.producers[0], place.lookup)
    yes, no = (_cut(v, *ends) for v, ends in zip((yes, no), limits, strict=True))
    return _chosen(place.interval(0), yes, no)


def _cut(value: Interval, lo: float, hi: float) -> Interval:
    """The part inside [lo, hi]; the nearest end where there is none, for that branch is then never taken."""
    return Interval(value.lo.clamp(lo, hi), value.hi.clamp(lo, hi))


@interval_rule("masked_fill")
def _masked_fill(place: Place) -> Interval:
    return _chosen(place.interval(1), place.operand(2, "value"), place.interval(0))
