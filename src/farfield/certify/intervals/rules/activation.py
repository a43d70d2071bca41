"""Activations: the image of a scalar function, entry by entry."""

from __future__ import annotations

import torch

from farfield.certify.intervals._interval import Interval, hull, mul
from farfield.certify.intervals._registry import Place, interval_rule, register_interval_rule
from farfield.gaussian import scalar_function_names
from farfield.graph import describe

__all__: list[str] = []

ELSEWHERE = frozenset({"abs", "sin", "cos"})
"""Complex numbers, and waves whose turns can be counted."""


def _rule(place: Place) -> Interval:
    f = describe(place.node).scalar
    if f is None:
        raise place.refuse("parameters that make it another kind of function")
    x = place.interval(0)
    return Interval(*f.image(x.lo, x.hi))


for _name in scalar_function_names():
    if _name not in ELSEWHERE:
        register_interval_rule(_name, _rule)


@interval_rule("prelu")
def _prelu(place: Place) -> Interval:
    x, weight = place.interval(0), place.interval(1)
    if weight.lo.ndim == 1 and weight.lo.numel() > 1:
        weight = weight.map(lambda end: end.reshape(-1, *[1] * (x.lo.ndim - 2)))
    below = mul(Interval(x.lo.clamp_max(0.0), x.hi.clamp_max(0.0)), weight)
    above = Interval(x.lo.clamp_min(0.0), x.hi.clamp_min(0.0))
    both = hull(below, above)
    lo = torch.where(x.hi <= 0, below.lo, torch.where(x.lo >= 0, above.lo, both.lo))
    return Interval(lo, torch.where(x.hi <= 0, below.hi, torch.where(x.lo >= 0, above.hi, both.hi)))
