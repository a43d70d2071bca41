"""Sums, products, quotients, powers and extremes of two tensors, entry by entry."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.certify.intervals._interval import (
    Interval,
    add,
    divide,
    down,
    hull,
    inflate,
    mul,
    negate,
    point,
    power,
    scale,
    spread,
    square,
    sub,
    up,
    widen,
)
from farfield.certify.intervals._registry import Place, interval_rule

__all__: list[str] = []

INF = math.inf
PI = 3.1415926535897936
"""The float64 above π."""


def _same(place: Place) -> bool:
    """Both arguments are one node."""
    left, right = place.node.inputs[:2]
    return left is not None and left == right


@interval_rule("add")
def _add(place: Place) -> Interval:
    alpha = float(place.attributes.get("alpha", 1))
    if _same(place) and alpha == 1.0:
        return scale(place.interval(0), 2.0)
    return add(place.operand(0, "input"), scale(place.operand(1, "other"), alpha))


@interval_rule("sub")
def _sub(place: Place) -> Interval:
    alpha = float(place.attributes.get("alpha", 1))
    if _same(place) and alpha == 1.0:
        return spread(0.0, 0.0, place.shape)
    return sub(place.operand(0, "input"), scale(place.operand(1, "other"), alpha))


@interval_rule("mul")
def _mul(place: Place) -> Interval:
    return (
        square(place.interval(0))
        if _same(place)
        else mul(place.operand(0, "input"), place.operand(1, "other"))
    )


@interval_rule("neg")
def _neg(place: Place) -> Interval:
    return negate(place.interval(0))


@interval_rule("square")
def _square(place: Place) -> Interval:
    return square(place.interval(0))


def _divisor(place: Place, index: int = 1) -> Interval:
    """An argument to divide by; refused where it can be 0."""
    if place.present(index):
        if place.can_vanish(index):
            box = place.whole(index)
            raise place.refuse(
                f"the denominator is only known to lie in [{float(box.lo):.4g}, {float(box.hi):.4g}] and can vanish"
            )
        return place.interval(index)
    other = place.operand(index, "other")
    if float(other.lo) == 0.0:
        raise place.refuse("it divides by the number 0")
    return other


@interval_rule("div")
def _div(place: Place) -> Interval:
    other = _divisor(place)
    rounding = place.attributes.get("rounding_mode")
    if _same(place):
        return spread(1.0, 1.0, place.shape)
    quotient = divide(place.operand(0, "input"), other)
    if rounding is None:
        return quotient
    # torch.div(…, "floor") works from the remainder, and may differ by 1 from rounding a quotient that rounded up.
    return quotient.map(torch.floor if rounding == "floor" else torch.trunc)


@interval_rule("reciprocal")
def _reciprocal(place: Place) -> Interval:
    return divide(point(1.0), _divisor(place, 0))


@interval_rule("pow")
def _pow(place: Place) -> Interval:
    """Extremes at the corners: b^e is monotone in b for every e, and in e for every b > 0."""
    base, exponent = place.operand(0, "input"), place.operand(1, "exponent")
    if exponent.lo.numel() == 1 and exponent.degenerate:
        return _raised(place, base, float(exponent.lo.reshape(())))
    if bool((base.lo < 0).any()):
        raise place.refuse("a base that may be negative is raised to powers that are not one number")
    if bool((base.lo == 0).any()) and bool((exponent.lo <= 0).any()):
        raise place.refuse("a base that may be 0 is raised to powers that may be negative")
    corners = [torch.pow(b, e) for b in (base.lo, base.hi) for e in (exponent.lo, exponent.hi)]
    stacked = torch.stack(torch.broadcast_tensors(*corners))
    clean = [stacked.nan_to_num(nan=end, posinf=INF, neginf=-INF) for end in (0.0, INF)]
    result = widen(clean[0].amin(0), clean[1].amax(0))
    open_ended = (torch.isinf(base.hi) | torch.isinf(exponent.hi) | torch.isinf(exponent.lo)).expand(
        result.shape
    )
    lo = torch.where(open_ended & (exponent.lo < 0), 0.0, result.lo)  # 1^∞ and ∞^0 are limits, not values
    return Interval(lo.clamp_min(0.0), torch.where(open_ended & (base.hi > 1), INF, result.hi))


def _raised(place: Place, base: Interval, exponent: float) -> Interval:
    if math.isinf(exponent) or math.isnan(exponent):
        raise place.refuse(f"the power {exponent}")
    if not exponent.is_integer() and bool((base.lo < 0).any()):
        raise place.refuse(f"a number that may be negative is raised to the power {exponent:g}")
    if exponent < 0 and (place.can_vanish(0) if place.present(0) else float(base.lo) == 0.0):
        raise place.refuse(f"a number that may be 0 is raised to the power {exponent:g}")
    return power(base, exponent)


@interval_rule("clamp")
def _clamp(place: Place) -> Interval:
    value = place.interval(0)
    for index, attribute, limit in ((1, "min", torch.maximum), (2, "max", torch.minimum)):
        if place.present(index) or place.attributes.get(attribute) is not None:
            other = place.operand(index, attribute)
            value = Interval(limit(value.lo, other.lo), limit(value.hi, other.hi))
    return value


@interval_rule("maximum")
def _maximum(place: Place) -> Interval:
    a, b = place.operand(0, "input"), place.operand(1, "other")
    return Interval(torch.maximum(a.lo, b.lo), torch.maximum(a.hi, b.hi))


@interval_rule("minimum")
def _minimum(place: Place) -> Interval:
    a, b = place.operand(0, "input"), place.operand(1, "other")
    return Interval(torch.minimum(a.lo, b.lo), torch.minimum(a.hi, b.hi))


@interval_rule("atan2")
def _atan2(place: Place) -> Interval:
    """The angles of a box off the origin and off the cut are those of its corners; elsewhere [−π, π]."""
    y, x = place.operand(0, "input"), place.operand(1, "other")
    corners = torch.stack(
        torch.broadcast_tensors(*(torch.atan2(b, a) for b in (y.lo, y.hi) for a in (x.lo, x.hi)))
    )
    result = widen(corners.amin(0), corners.amax(0))
    cut = ((x.lo <= 0) & (y.lo <= 0) & (y.hi >= 0)).expand(result.shape)
    lo = torch.where(cut, -PI, result.lo.clamp_min(-PI))
    return Interval(lo, torch.where(cut, PI, result.hi.clamp_max(PI)))


def _modulus(place: Place) -> Interval:
    other = place.operand(1, "other")
    if bool(((other.lo <= 0) & (other.hi >= 0)).any()):
        raise place.refuse("the divisor of a remainder can vanish")
    return other


@interval_rule("fmod")
def _fmod(place: Place) -> Interval:
    """The sign of the first, no larger than either; exactly the first where that is smaller throughout."""
    x, size = place.operand(0, "input"), _modulus(place)
    limit = size.magnitude
    result = Interval(
        -torch.minimum(limit, (-x.lo).clamp_min(0.0)), torch.minimum(limit, x.hi.clamp_min(0.0))
    )
    inside = x.magnitude < size.mignitude
    return Interval(torch.where(inside, x.lo, result.lo), torch.where(inside, x.hi, result.hi))


@interval_rule("remainder")
def _remainder(place: Place) -> Interval:
    """Between 0 and the divisor; exactly the first where that lies there throughout."""
    x, divisor = place.operand(0, "input"), _modulus(place)
    lo, hi = torch.broadcast_tensors(divisor.lo.clamp_max(0.0), divisor.hi.clamp_min(0.0), x.lo)[:2]
    inside = (x.lo >= 0) & (x.hi < divisor.lo)
    return Interval(torch.where(inside, x.lo, lo), torch.where(inside, x.hi, hi))


@interval_rule("hypot")
def _hypot(place: Place) -> Interval:
    x, y = place.operand(0, "input"), place.operand(1, "other")
    result = widen(torch.hypot(x.mignitude, y.mignitude), torch.hypot(x.magnitude, y.magnitude))
    return Interval(result.lo.clamp_min(0.0), result.hi)


@interval_rule("lerp")
def _lerp(place: Place) -> Interval:
    """Affine in the weight, so the hull of the two ends of the weight; torch's own rounding is allowed for."""
    start, end, weight = place.interval(0), place.interval(1), place.operand(2, "weight")

    def at(w: Tensor) -> Interval:
        share = Interval(w, w)
        rest = Interval(down(1.0 - w), up(1.0 - w))
        return add(mul(start, rest), mul(end, share))

    result = hull(at(weight.lo), at(weight.hi))
    margin = 2.0**-49 * (1.0 + weight.magnitude) * (start.magnitude + end.magnitude)
    return inflate(result, margin.nan_to_num(nan=INF, posinf=INF))


@interval_rule("abs")
def _abs(place: Place) -> Interval:
    x = place.interval(0)
    return Interval(x.mignitude, x.magnitude)
