"""Tensors made from sizes and numbers: they do not move with any input."""

from __future__ import annotations

import math

from farfield.growth._extent import Extent, Reason, inherit, interval, join, undefined
from farfield.growth._rate import CONSTANT
from farfield.growth._registry import Site, growth_rule, number

__all__: list[str] = []

INF = math.inf


@growth_rule("full")
def _full(site: Site) -> Extent:
    return site.operand(0, "fill_value")


@growth_rule("empty")
def _empty(site: Site) -> Extent:
    return Extent(CONSTANT, CONSTANT)


@growth_rule("arange")
def _arange(site: Site) -> Extent:
    """Between its ends, whichever is the larger. How many there are must not move with an input."""
    ends = (site.operand(0, "start"), site.operand(1, "end"), site.operand(2, "step"))
    if any(max(end.lower, end.upper) > CONSTANT for end in ends):
        return undefined(site.name, "a range whose length moves with the input", *ends)
    return join(*ends[:2])


@growth_rule("linspace")
def _linspace(site: Site) -> Extent:
    start, end = number(site.attributes["start"]), number(site.attributes["end"])
    return Extent(CONSTANT, CONSTANT, min(start.lo, end.lo), max(start.hi, end.hi))


@growth_rule("random")
def _random(site: Site) -> Extent:
    drawn = Reason(site.name, "a random draw is held fixed")
    if site.attributes.get("distribution") == "uniform":
        return interval(0.0, 1.0).assuming(drawn)
    return Extent(CONSTANT, CONSTANT).assuming(drawn)


@growth_rule("randint")
def _randint(site: Site) -> Extent:
    low, high = number(site.attributes["low"]), number(site.attributes["high"])
    return inherit(Extent(CONSTANT, CONSTANT, low.lo, high.hi))
