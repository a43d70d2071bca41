"""Activations: everything from the table of scalar functions, plus the one with learned slopes."""

from __future__ import annotations

import torch

from farfield.gaussian import ScalarFunction, scalar_function, scalar_function_names
from farfield.graph import describe
from farfield.growth._extent import Extent, Reason, inherit, join, multiply, negate, undefined
from farfield.growth._rate import BOUNDED, CONSTANT, SINGULAR
from farfield.growth._registry import Site, growth_rule, register_growth_rule

__all__ = ["apply_scalar"]


def apply_scalar(f: ScalarFunction | None, value: Extent, node: str) -> Extent:
    """f(v): a side of v reaches a side of f(v) only through a tail with a slope.

    A rising right tail passes the upper side on, a falling one turns it over; a flat tail cuts it. The
    interval comes from f's shape. ``None``, parameters that the table does not describe, is unknown.
    """
    if f is None:
        return undefined(node, "with these parameters it is another kind of function", value)
    least = CONSTANT if value.constant else BOUNDED
    upper = lower = least
    for slope, rate, downwards in ((f.right.slope, value.upper, False), (f.left.slope, value.lower, True)):
        if slope == 0.0:
            continue
        if (slope > 0) is downwards:
            lower = max(lower, rate)
        else:
            upper = max(upper, rate)
    lo, hi = f.image(*torch.tensor([value.lo, value.hi], dtype=torch.float64))
    result = inherit(Extent(lower, upper, float(lo), float(hi)), value)
    if value.rate == SINGULAR and not f.saturates:
        return result.doubting(Reason(node, "an infinite argument has no value here"))
    return result


def _rule(site: Site) -> Extent:
    return apply_scalar(describe(site.node).scalar, site.extent(0), site.name)


for _name in scalar_function_names():
    if _name != "abs":  # of complex numbers too: see arithmetic
        register_growth_rule(_name, _rule)


@growth_rule("prelu")
def _prelu(site: Site) -> Extent:
    x, relu = site.extent(0), scalar_function("relu")
    positive, negative = (apply_scalar(relu, side, site.name) for side in (x, negate(x)))
    below = multiply(negate(negative), site.extent(1), site.name)
    return join(positive, below)
