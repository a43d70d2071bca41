"""Sums, products, quotients, powers and extremes of two tensors, entry by entry."""

from __future__ import annotations

import math
from dataclasses import replace

from farfield.growth._domination import bounded_product, bounded_quotient
from farfield.growth._extent import (
    Extent,
    Reason,
    add,
    averaged,
    inherit,
    interval,
    join,
    multiply,
    negate,
    ratio,
    reciprocal,
    scale,
    square,
    undefined,
    widened,
)
from farfield.growth._rate import BOUNDED, CONSTANT, SINGULAR
from farfield.growth._registry import GrowthRule, Site, growth_rule
from farfield.growth.rules.transcendental import exponential, logarithm, rooted

__all__ = ["larger", "raised", "smaller", "symmetric"]

INF = math.inf
FRACTIONS = {"floor": (0.0, 1.0), "ceil": (-1.0, 0.0), "round": (-0.5, 0.5), "trunc": (-1.0, 1.0)}
"""Where x less its rounded value lies."""


def symmetric(value: Extent, factor: float = 1.0) -> Extent:
    """The same claim about ±v, times ``factor``: for complex numbers, whose parts mix."""
    size = widened(value.magnitude * factor, up=True)
    return inherit(Extent(value.rate, value.rate, -size, size), value)


def larger(a: Extent, b: Extent) -> Extent:
    """max(v, w): as far up as either, as far down only as both."""
    lowest = BOUNDED if not (a.constant and b.constant) else CONSTANT
    value = Extent(
        max(min(a.lower, b.lower), lowest), max(a.upper, b.upper, lowest), max(a.lo, b.lo), max(a.hi, b.hi)
    )
    return inherit(value, a, b)


def smaller(a: Extent, b: Extent) -> Extent:
    """min(v, w)."""
    return negate(larger(negate(a), negate(b)))


def raised(base: Extent, exponent: float, node: str) -> Extent:
    """v^r for a number r."""
    if exponent == 0.0:
        return interval(1.0, 1.0, base)
    if exponent < 0.0:
        return reciprocal(raised(base, -exponent, node), node)
    if exponent == 1.0:
        return base
    if exponent == 0.5:
        return rooted(base, node)
    if not float(exponent).is_integer():
        if base.lo < 0.0:
            return undefined(node, f"a number that may be negative is raised to the power {exponent:g}", base)
        rate = base.upper.to_the(exponent)
        hi = widened(base.hi**exponent, up=True) if math.isfinite(base.hi) else INF
        return inherit(Extent(BOUNDED, rate, widened(base.lo**exponent, up=False), hi), base)
    if exponent % 2 == 0:
        return _positive_power(square(base), exponent / 2)
    positive, negative = (
        _positive_power(_part(base), exponent),
        _positive_power(_part(negate(base)), exponent),
    )
    value = Extent(
        negative.upper,
        positive.upper,
        _signed_power(base.lo, exponent, up=False),
        _signed_power(base.hi, exponent, up=True),
    )
    return inherit(value, base)


def _part(value: Extent) -> Extent:
    """max(v, 0)."""
    least = CONSTANT if value.constant else BOUNDED
    upper = value.upper if value.hi > 0 else least
    return inherit(Extent(least, upper, max(value.lo, 0.0), max(value.hi, 0.0)), value)


def _signed_power(value: float, exponent: float, *, up: bool) -> float:
    try:
        return widened(math.copysign(abs(value) ** exponent, value), up=up)
    except OverflowError:
        return math.copysign(INF, value) if up == (value > 0) else math.copysign(1e308, value)


def _positive_power(value: Extent, exponent: float) -> Extent:
    """v^r for v ≥ 0 and r > 0."""
    return inherit(
        Extent(
            value.lower,
            value.upper.to_the(exponent),
            max(0.0, _signed_power(max(value.lo, 0.0), exponent, up=False)),
            _signed_power(value.hi, exponent, up=True),
        ),
        value,
    )


@growth_rule("add")
def _add(site: Site) -> Extent:
    other = scale(site.operand(1, "other"), float(site.attributes.get("alpha", 1)))
    return add(site.operand(0, "input"), other, site.name)


@growth_rule("sub")
def _sub(site: Site) -> Extent:
    first, other = site.operand(0, "input"), site.operand(1, "other")
    alpha, (left, right) = float(site.attributes.get("alpha", 1)), site.node.inputs
    if left is not None and right is not None and alpha == 1.0 and first.known:
        if left == right:
            return interval(0.0, 0.0, first)
        rounded = site.lookup(right)
        if rounded.op in FRACTIONS and rounded.inputs[0] == left:
            return interval(*FRACTIONS[rounded.op], first)
    return add(first, scale(other, -alpha), site.name)


@growth_rule("mul")
def _mul(site: Site) -> Extent:
    first, other = site.operand(0, "input"), site.operand(1, "other")
    if site.complex:
        return symmetric(multiply(symmetric(first), symmetric(other), site.name), 2.0)
    ratio_of = _proportion(site)
    if ratio_of is not None:
        return scale(square(first), ratio_of)
    value = multiply(first, other, site.name)
    left, right = site.node.inputs
    if left is None or right is None or value.bounded or not value.known:
        return value
    if (first.bounded or other.bounded) and bounded_product(left, right, site.lookup):
        return replace(value, lower=min(value.lower, BOUNDED), upper=min(value.upper, BOUNDED))
    return value


def _proportion(site: Site) -> float | None:
    """Return c with second = c·first where both factors are multiples of one node, or None."""
    if site.node.inputs[0] is None or site.node.inputs[1] is None:
        return None
    first, a = _unscaled(site, site.node.inputs[0])
    second, b = _unscaled(site, site.node.inputs[1])
    return b / a if first == second and a != 0.0 else None


def _unscaled(site: Site, name: str) -> tuple[str, float]:
    """The node that this one is a number times, and the number."""
    factor = 1.0
    for _ in range(4):
        node = site.lookup(name)
        number = node.attributes.get("other")
        if node.op == "neg" and node.inputs[0] is not None:
            name, factor = node.inputs[0], -factor
        elif (
            node.op in ("mul", "div")
            and node.inputs[0] is not None
            and node.inputs[1] is None
            and isinstance(number, int | float)
            and number != 0
            and not node.attributes.get("rounding_mode")
        ):
            name, factor = node.inputs[0], factor * (number if node.op == "mul" else 1.0 / number)
        else:
            break
    return name, factor


@growth_rule("div")
def _div(site: Site) -> Extent:
    first, other = site.operand(0, "input"), site.operand(1, "other")
    if site.complex:
        divisor = site.attributes.get("other")
        if isinstance(divisor, int | float | complex) and divisor:
            return symmetric(first, (2.0 if isinstance(divisor, complex) else 1.0) / abs(divisor))
        return undefined(site.name, "division of complex numbers has no growth rule", first, other)
    value = ratio(first, other, site.name)
    left, right = site.node.inputs
    if left is not None and right is not None and not value.bounded and first.known and other.known:
        bounded, defined = bounded_quotient(left, right, site.lookup, gap=other.gap > 0.0)
        if bounded:
            rate = CONSTANT if first.constant and other.constant else BOUNDED
            value = inherit(Extent(rate, rate), first, other)
        if bounded and not defined:
            value = value.assuming(Reason(site.name, "the quotient is undefined where its denominator is 0"))
    if site.attributes.get("rounding_mode"):
        return replace(value, lo=value.lo - 1.0, hi=value.hi + 1.0, gap=0.0)
    return value


@growth_rule("pow")
def _pow(site: Site) -> Extent:
    base, exponent = site.operand(0, "input"), site.operand(1, "exponent")
    if exponent.lo == exponent.hi:
        return raised(base, exponent.lo, site.name)
    if base.lo == base.hi and base.lo > 0.0:
        return exponential(scale(exponent, math.log(base.lo)))
    if base.lo > 0.0:
        return exponential(multiply(exponent, logarithm(base, site.name), site.name))
    return undefined(
        site.name, "a power whose base may be negative or zero and whose exponent moves", base, exponent
    )


@growth_rule("clamp")
def _clamp(site: Site) -> Extent:
    value = site.extent(0)
    for index, attribute, limit in ((1, "min", larger), (2, "max", smaller)):
        if site.present(index) or site.attributes.get(attribute) is not None:
            value = limit(value, site.operand(index, attribute))
    return value


@growth_rule("fmod", "remainder")
def _modulo(site: Site) -> Extent:
    first, other = site.operand(0, "input"), site.operand(1, "other")
    if first.rate == SINGULAR or other.rate == SINGULAR:
        return undefined(site.name, "the remainder of an infinite number is undefined", first, other)
    if other.gap == 0.0:
        return undefined(site.name, "the divisor of a remainder can vanish", first, other)
    size = other.magnitude
    least = CONSTANT if first.constant and other.constant else BOUNDED
    rate = max(least, other.rate)
    return inherit(Extent(rate, rate, -size, size), first, other)


@growth_rule("lerp")
def _lerp(site: Site) -> Extent | None:
    start, end, weight = site.extent(0), site.extent(1), site.operand(2, "weight")
    if weight.lo >= 0.0 and weight.hi <= 1.0:
        return inherit(averaged(join(start, end)), weight)
    return None  # its composition


@growth_rule("abs")
def _abs(site: Site) -> Extent:
    value = site.extent(0)
    if site.complex:
        size = widened(value.magnitude * math.sqrt(2.0), up=True)
        return inherit(Extent(min(value.rate, BOUNDED), value.rate, 0.0, size), value)
    return replace(larger(value, negate(value)), lo=value.gap, gap=value.gap)


_SHORT: dict[str, GrowthRule] = {
    "maximum": lambda site: larger(site.operand(0, "input"), site.operand(1, "other")),
    "minimum": lambda site: smaller(site.operand(0, "input"), site.operand(1, "other")),
    "neg": lambda site: negate(site.extent(0)),
    "square": lambda site: square(site.extent(0)),
    "reciprocal": lambda site: reciprocal(site.extent(0), site.name),
}
"""Rules that are one expression."""
for _name, _short in _SHORT.items():
    growth_rule(_name)(_short)
