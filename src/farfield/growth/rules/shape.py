"""Operators that move entries about, read them at indices, or write others in their place: a choice among values."""

from __future__ import annotations

import math

from farfield.growth._extent import ZERO, Extent, add, inherit, interval, join, scale, stretch, undefined
from farfield.growth._rate import CONSTANT
from farfield.growth._registry import Claim, Site, growth_rule, number, size_of

__all__: list[str] = []


@growth_rule("cast", "max_pool", "adaptive_max_pool", "view_as_real", "view_as_complex", "real")
def _same(site: Site) -> Extent:
    return site.extent(0)


@growth_rule("aten.slice.Tensor", "aten.split_with_sizes.default")
def _part(site: Site) -> Extent:
    """With ends that are computed (with numbers they are ``slice`` and ``split``): entries of what is cut."""
    return inherit(site.extent(0), *site.everything()[1:])


@growth_rule("_operator.floordiv")
def _whole_quotient(site: Site) -> Extent:
    """Of sizes, as Python divides them: a number where nothing moves them."""
    parts = site.everything()
    if any(max(part.lower, part.upper) > CONSTANT for part in parts):
        return undefined(site.name, "a whole quotient of numbers that move with the input", *parts)
    return inherit(Extent(CONSTANT, CONSTANT), *parts)


@growth_rule("slice_scatter", "select_scatter")
def _one_of_all(site: Site) -> Extent:
    return join(*site.everything())


@growth_rule("getitem")
def _getitem(site: Site) -> Claim:
    operand = site.operands[0]
    if isinstance(operand, tuple):
        return operand[int(site.attributes["index"])]
    return site.extent(0)


@growth_rule("pad")
def _pad(site: Site) -> Extent:
    if site.attributes.get("mode", "constant") == "constant":
        return join(site.extent(0), number(site.attributes.get("value") or 0.0))
    return site.extent(0)


@growth_rule("dropout")
def _dropout(site: Site) -> Extent:
    x = site.extent(0)
    if not site.attributes.get("train"):
        return x
    keep = 1.0 - float(site.attributes["p"])
    return join(ZERO, scale(x, 1.0 / keep)) if keep > 0 else inherit(ZERO, x)


@growth_rule("nonzero")
def _nonzero(site: Site) -> Extent:
    producer = site.producers[0]
    sizes = producer.shape if producer is not None else ()
    return interval(0.0, max((size_of((d,)) for d in sizes), default=0.0), site.extent(0))


@growth_rule("bucketize")
def _bucketize(site: Site) -> Extent:
    return interval(0.0, site.length(1, (0,)), *site.everything())


@growth_rule("searchsorted")
def _searchsorted(site: Site) -> Extent:
    return interval(0.0, site.length(0, (-1,)), *site.everything())


@growth_rule("index_put")
def _index_put(site: Site) -> Extent:
    value, written, *places = site.everything()
    if site.attributes.get("accumulate"):
        producer = site.producers[1]
        count = size_of(producer.shape) if producer is not None else math.inf
        # A value of one entry can be added at many places, and several times at one.
        return inherit(add(value, stretch(written, count if count > 1 else math.inf), site.name), *places)
    return inherit(join(value, written), *places)


@growth_rule("scatter")
def _scatter(site: Site) -> Extent:
    value, place, written = site.extent(0), site.extent(1), site.operand(2, "src")
    reduce = site.attributes.get("reduce")
    if reduce in ("add", "sum"):
        count = site.length(1, (site.attributes["dim"],))
        return inherit(add(value, stretch(written, count), site.name), place)
    if reduce in ("multiply", "prod"):
        return undefined(site.name, "a scatter that multiplies has no growth rule", value, place, written)
    return inherit(join(value, written), place)


@growth_rule("copy")
def _copy(site: Site) -> Extent:
    return site.extent(1)
