"""Reductions over axes, running sums, order statistics."""

from __future__ import annotations

import math
from dataclasses import replace

from farfield.growth._extent import (
    Extent,
    Reason,
    inherit,
    interval,
    join,
    multiply,
    square,
    stretch,
    undefined,
    widened,
)
from farfield.growth._rate import BOUNDED, CONSTANT, EXPONENTIAL, SINGULAR
from farfield.growth._registry import Site, growth_rule

__all__ = ["repeated_product", "total"]

INF = math.inf
LARGEST_PRODUCT = 64


def total(value: Extent, count: float, node: str) -> Extent:
    """The sum of exactly ``count`` values (at least one where that is not known)."""
    result = stretch(value, count)
    least = 1.0 if math.isinf(count) else count
    lo = widened(value.lo * least, up=False) if value.lo > 0 else result.lo
    hi = widened(value.hi * least, up=True) if value.hi < 0 else result.hi
    slack = 1e-12
    lo = lo - slack * abs(lo) if math.isfinite(lo) else lo
    hi = hi + slack * abs(hi) if math.isfinite(hi) else hi
    if value.lower == SINGULAR and value.upper == SINGULAR:
        result = result.doubting(Reason(node, "a sum of values that may be infinite with either sign"))
    return replace(result, lo=lo, hi=hi)


def repeated_product(value: Extent, count: float, node: str) -> Extent:
    """The product of ``count`` values; beyond 64 factors, or an unknown number, only 'finite' is claimed."""
    if math.isinf(count) or count > LARGEST_PRODUCT:
        if value.bounded and value.lo >= -1.0 and value.hi <= 1.0:
            return interval(-1.0, 1.0, value)
        if value.bounded and not math.isinf(count):
            return interval(-INF, INF, value)
        rate = CONSTANT if value.constant else EXPONENTIAL
        result = inherit(Extent(rate, rate), value)
        if value.rate == SINGULAR:
            return result.doubting(Reason(node, "a product of values that may be infinite"))
        return result
    result = value
    for _ in range(int(count) - 1):
        result = multiply(result, value, node)
    return result


def _count(site: Site) -> float:
    dims = site.attributes["dim"]
    return site.length(0, dims if isinstance(dims, tuple) else (dims,))


@growth_rule("sum")
def _sum(site: Site) -> Extent:
    return total(site.extent(0), _count(site), site.name)


@growth_rule("mean")
def _mean(site: Site) -> Extent:
    x = site.extent(0)
    if x.lower == SINGULAR and x.upper == SINGULAR:
        return undefined(site.name, "an average of values that may be infinite with either sign", x)
    lo = x.lo - 1e-12 * abs(x.lo) if math.isfinite(x.lo) and x.lo != x.hi else x.lo
    hi = x.hi + 1e-12 * abs(x.hi) if math.isfinite(x.hi) and x.lo != x.hi else x.hi
    return replace(x, lo=lo, hi=hi, gap=0.0)


@growth_rule("var")
def _var(site: Site) -> Extent:
    x, count, correction = site.extent(0), _count(site), float(site.attributes.get("correction", 1))
    if count <= correction:
        return undefined(
            site.name, f"a variance over {count:g} entries with correction {correction:g} is 0/0", x
        )
    if x.rate == SINGULAR:
        return undefined(site.name, "a variance of values that may be infinite", x)
    spread = (x.hi - x.lo) / 2 if math.isfinite(x.lo) and math.isfinite(x.hi) else INF
    factor = 2.0 if math.isinf(count) else count / (count - correction)
    squared = square(replace(x, lo=-INF, hi=INF, gap=0.0) if math.isinf(spread) else x)
    hi = widened(spread * spread * factor, up=True)
    least = CONSTANT if x.constant else BOUNDED
    return inherit(Extent(least, max(least, squared.upper), 0.0, hi), x)


@growth_rule("prod")
def _prod(site: Site) -> Extent:
    return repeated_product(site.extent(0), _count(site), site.name)


@growth_rule("cumprod")
def _cumprod(site: Site) -> Extent:
    x, count = site.extent(0), _count(site)
    products = repeated_product(x, count, site.name)
    if math.isfinite(count) and count <= LARGEST_PRODUCT:
        partial = x
        for _ in range(int(count) - 1):
            partial = multiply(partial, x, site.name)
            products = join(products, partial)
    return join(products, x)


@growth_rule("amax", "amin")
def _extreme(site: Site) -> Extent:
    return site.extent(0)


@growth_rule("logsumexp", "logcumsumexp")
def _log_of_sum(site: Site) -> Extent:
    """Between the largest entry and the largest entry + ln n."""
    x, count = site.extent(0), _count(site)
    hi = widened(x.hi + math.log(count), up=True) + 1e-12 if math.isfinite(count) else INF
    return replace(x, hi=hi, gap=0.0)


@growth_rule("norm")
def _norm(site: Site) -> Extent:
    x, count, order = site.extent(0), _count(site), float(site.attributes.get("ord", 2))
    if order < 0.0 and not math.isinf(order):
        return undefined(site.name, f"a norm of negative order {order:g} divides by its entries", x)
    if order == 0.0:
        return interval(0.0, count, x)
    factor = 1.0 if math.isinf(order) else count ** (1.0 / order)
    hi = (
        INF
        if math.isinf(x.magnitude) or math.isinf(factor)
        else widened(x.magnitude * factor, up=True) * (1 + 1e-12)
    )
    producer = site.producers[0]
    if producer is not None and producer.dtype is not None and producer.dtype.is_complex:
        hi *= math.sqrt(2.0)
    least = CONSTANT if x.constant else BOUNDED
    return inherit(Extent(least, max(least, x.rate), x.gap, hi), x)


@growth_rule("cumsum")
def _cumsum(site: Site) -> Extent:
    x, count = site.extent(0), _count(site)
    partial = total(x, count, site.name)
    return join(partial, x)


@growth_rule("argmax", "argmin", "argsort")
def _indices(site: Site) -> Extent:
    dim = site.attributes.get("dim")
    producer = site.producers[0]
    rank = len(producer.shape) if producer is not None else 0
    count = site.length(0, tuple(range(rank)) if dim is None else (dim,))
    return interval(0.0, max(count - 1.0, 0.0), site.extent(0))


@growth_rule("topk", "sort", "kthvalue", "median", "cummax", "cummin")
def _values_and_indices(site: Site) -> tuple[Extent, ...]:
    return site.extent(0), _indices(site)
