"""Activations: everything from the table of profiles, plus the one with learned slopes."""

from __future__ import annotations

from farfield.growth._extent import Extent, Reason, inherit, join, multiply, negate
from farfield.growth._profile import Profile, profile, profile_names
from farfield.growth._rate import BOUNDED, CONSTANT, SINGULAR
from farfield.growth._registry import Site, growth_rule, register_growth_rule

__all__ = ["profiled"]


def profiled(shape: Profile, value: Extent, node: str) -> Extent:
    """f(v): a side of v reaches a side of f(v) only through a tail with a slope.

    A rising right tail passes the upper side on, a falling one turns it over; a flat tail cuts it. The
    interval comes from f's shape.
    """
    least = CONSTANT if value.constant else BOUNDED
    upper = lower = least
    for slope, rate, downwards in (
        (shape.right.slope, value.upper, False),
        (shape.left.slope, value.lower, True),
    ):
        if slope == 0.0:
            continue
        if (slope > 0) is downwards:
            lower = max(lower, rate)
        else:
            upper = max(upper, rate)
    lo, hi = shape.image(value.lo, value.hi)
    result = inherit(Extent(lower, upper, lo, hi), value)
    if value.rate == SINGULAR and not shape.saturates:
        return result.doubting(Reason(node, "an infinite argument has no value here"))
    return result


def _rule(site: Site) -> Extent:
    return profiled(profile(site.node.op, site.attributes), site.extent(0), site.name)


for _name in profile_names():
    if _name != "abs":  # of complex numbers too: see arithmetic
        register_growth_rule(_name, _rule)


@growth_rule("prelu")
def _prelu(site: Site) -> Extent:
    x = site.extent(0)
    positive = profiled(profile("relu", {}), x, site.name)
    negative = profiled(profile("relu", {}), negate(x), site.name)
    below = multiply(negate(negative), site.extent(1), site.name)
    return join(positive, below)
