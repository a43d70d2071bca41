"""Operators that move entries about, read them at indices, or write others in their place: a choice among values."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from farfield.growth._extent import Extent, add, inherit, interval, join, scale, stretch, undefined
from farfield.growth._rate import BOUNDED
from farfield.growth._registry import Claim, Site, growth_rule, number, register_growth_rule, size_of

__all__: list[str] = []

ZERO = interval(0.0, 0.0)


def _same(site: Site) -> Extent:
    return site.extent(0)


for _name in [
    "reshape",
    "permute",
    "expand",
    "repeat",
    "squeeze",
    "unsqueeze",
    "flip",
    "roll",
    "unfold",
    "pixel_shuffle",
    "pixel_unshuffle",
    "split",
    "chunk",
    "unbind",
    "slice",
    "select",
    "diagonal",
    "identity",
    "max_pool",
    "adaptive_max_pool",
    "item",
    "view_as_real",
    "view_as_complex",
    "real",
]:
    register_growth_rule(_name, _same)


def _one_of_all(site: Site) -> Extent:
    return join(*site.everything())


for _name in ("cat", "stack", "slice_scatter", "select_scatter"):
    register_growth_rule(_name, _one_of_all)


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


@growth_rule("cast")
def _cast(site: Site) -> Extent:
    """Real arithmetic: a floating type changes nothing; an integer type truncates; a boolean keeps only ≠ 0."""
    x, dtype = site.extent(0), site.attributes["dtype"]
    source = site.producers[0]
    if dtype == torch.bool:
        return interval(0.0, 1.0, x)
    if dtype.is_floating_point or dtype.is_complex:
        if (
            source is not None
            and source.dtype is not None
            and source.dtype.is_complex
            and not dtype.is_complex
        ):
            return replace(x, gap=0.0)
        return x
    if source is not None and source.dtype is not None and not source.dtype.is_floating_point:
        return x
    lo = math.trunc(x.lo) if math.isfinite(x.lo) else x.lo
    hi = math.trunc(x.hi) if math.isfinite(x.hi) else x.hi
    return replace(x, lo=float(lo), hi=float(hi), gap=0.0)


@growth_rule("dropout")
def _dropout(site: Site) -> Extent:
    x = site.extent(0)
    if not site.attributes.get("train"):
        return x
    keep = 1.0 - float(site.attributes["p"])
    return join(ZERO, scale(x, 1.0 / keep)) if keep > 0 else inherit(ZERO, x)


def _read(site: Site) -> Extent:
    """Entries at places that other tensors name: moving places make a constant table move, boundedly."""
    table, *places = site.everything()
    if table.constant and not all(place.constant for place in places):
        table = replace(table, lower=max(table.lower, BOUNDED), upper=max(table.upper, BOUNDED))
    return inherit(table, *places)


for _name in ("index", "index_select", "gather", "take", "masked_select"):
    register_growth_rule(_name, _read)


@growth_rule("nonzero")
def _nonzero(site: Site) -> Extent:
    producer = site.producers[0]
    sizes = producer.shape if producer is not None else ()
    return interval(0.0, max((size_of((d,)) for d in sizes), default=0.0), site.extent(0))


@growth_rule("one_hot")
def _one_hot(site: Site) -> Extent:
    return interval(0.0, 1.0, site.extent(0))


@growth_rule("bucketize")
def _bucketize(site: Site) -> Extent:
    return interval(0.0, site.length(1, (0,)), *site.everything())


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
