"""Averages over windows and resampling."""

from __future__ import annotations

import math

from farfield.growth._extent import ZERO, Extent, averaged, inherit, join, undefined
from farfield.growth._rate import SINGULAR
from farfield.growth._registry import Site, growth_rule
from farfield.growth.rules.arithmetic import symmetric

__all__: list[str] = []

CUBIC_WEIGHTS = 2.0
"""Above the largest sum of absolute bicubic weights, 1.375² ≈ 1.89."""


@growth_rule("avg_pool")
def _avg_pool(site: Site) -> Extent:
    x = site.extent(0)
    if x.rate == SINGULAR:
        return undefined(site.name, "an average of values that may be infinite", x)
    divisor = site.attributes.get("divisor_override")
    if divisor:
        return symmetric(x, math.prod(site.attributes["kernel_size"]) / abs(float(divisor)))
    return averaged(join(x, ZERO) if any(site.attributes.get("padding") or ()) else x)


@growth_rule("interpolate")
def _interpolate(site: Site) -> Extent:
    x = site.extent(0)
    if x.rate == SINGULAR:
        return undefined(site.name, "an average of values that may be infinite", x)
    return symmetric(x, CUBIC_WEIGHTS) if site.attributes["mode"] == "bicubic" else averaged(x)


@growth_rule("adaptive_avg_pool")
def _adaptive_avg_pool(site: Site) -> Extent:
    x = site.extent(0)
    if x.rate == SINGULAR:
        return undefined(site.name, "an average of values that may be infinite", x)
    return averaged(x)


@growth_rule("grid_sample")
def _grid_sample(site: Site) -> Extent:
    x, grid = site.extent(0), site.extent(1)
    if x.rate == SINGULAR or grid.rate == SINGULAR:
        return undefined(site.name, "sampling of, or at, values that may be infinite", x, grid)
    sampled = join(x, ZERO)
    if site.attributes.get("interpolation_mode") == 2:
        sampled = symmetric(sampled, CUBIC_WEIGHTS)
    return inherit(sampled, grid)
