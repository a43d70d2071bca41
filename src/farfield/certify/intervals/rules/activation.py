"""Activations: the table of growth's profiles, entry by entry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from farfield.certify.intervals._interval import Interval, hull, mul, widen
from farfield.certify.intervals._registry import Place, interval_rule, register_interval_rule
from farfield.growth._profile import Profile, profile, profile_names

__all__ = ["profiled"]

INF = math.inf
COMPOSITE = 2.0**-48
"""Activations are several operations long, some with cancellation (1 + erf x): relative, and absolute per |x| up to
64, beyond which they are flat or lines."""
EXACT = frozenset({"relu", "hardtanh", "hardshrink", "sign"})
"""No rounding at all."""
ELSEWHERE = frozenset({"abs", "sin", "cos", "floor", "ceil", "round", "trunc", "threshold", "softplus"})


def _end(f: Profile, function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """F at an end, with its limits at ±∞."""
    finite = torch.isfinite(at)
    value = function(torch.where(finite, at, 0.0))
    left, right = (
        at.new_tensor(f.end(side)) for side in ("left", "right")
    )  # two plain numbers would be float32
    limit = torch.where(at < 0, left, right)
    return torch.where(finite, value, limit)


def profiled(f: Profile, x: Interval, *, exact: bool = False) -> Interval:
    """f([lo, hi]) for a monotone or valley-shaped f, within its range."""
    if f.shape == "other":
        return Interval(torch.full_like(x.lo, f.lo), torch.full_like(x.hi, f.hi))
    first = _end(f, f.function, x.lo)
    second = first if x.hi is x.lo else _end(f, f.function, x.hi)
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    if not exact:
        size = torch.maximum(x.lo.abs().clamp_max(64.0), x.hi.abs().clamp_max(64.0))
        result = widen(low, high, COMPOSITE, COMPOSITE * size)
        low, high = result.lo, result.hi
    if f.shape == "valley":
        low = torch.where((x.lo <= f.valley + 1e-6) & (x.hi >= f.valley - 1e-6), f.lo, low)
    return Interval(low.clamp_min(_outward(f.lo, -INF)), high.clamp_max(_outward(f.hi, INF)))


def _outward(limit: float, towards: float) -> float:
    """Limits that are not whole numbers (π/2, products of parameters) were rounded."""
    return limit if math.isinf(limit) or limit.is_integer() else math.nextafter(limit, towards)


def _increasing_tanhshrink(attributes: Mapping[str, Any]) -> Profile:
    """X − tanh x rises (its slope is tanh²); its profile leaves the shape open because of rounding near 0."""
    f = profile("tanhshrink", attributes)
    return Profile(f.function, f.left, f.right)


def _rule(place: Place) -> Interval:
    op = place.node.op
    f = _increasing_tanhshrink(place.attributes) if op == "tanhshrink" else profile(op, place.attributes)
    return profiled(f, place.interval(0), exact=op in EXACT)


for _name in profile_names():
    if _name not in ELSEWHERE:
        register_interval_rule(_name, _rule)


@interval_rule("softplus")
def _softplus(place: Place) -> Interval:
    """ln(1 + e^{βx})/β up to threshold/β and x beyond: two increasing pieces with a small drop between them."""
    x = place.interval(0)
    beta, threshold = float(place.attributes.get("beta", 1.0)), float(place.attributes.get("threshold", 20.0))
    if beta <= 0:
        raise place.refuse(f"softplus with beta = {beta:g}, which must be positive")
    switch, slack = threshold / beta, 2.0**-50 * abs(threshold / beta)

    def curve(at: Tensor) -> Tensor:
        return at.clamp_min(0.0) + torch.log1p(torch.exp(-beta * at.abs())) / beta

    smooth = Profile(curve, profile("softplus", {}).left, profile("softplus", {}).right, lo=0.0)
    below = profiled(smooth, Interval(x.lo.clamp_max(switch + slack), x.hi.clamp_max(switch + slack)))
    beyond = Interval(x.lo.clamp_min(switch - slack), x.hi.clamp_min(switch - slack))
    both = hull(below, beyond)
    only_below, only_beyond = x.hi < switch - slack, x.lo > switch + slack
    lo = torch.where(only_below, below.lo, torch.where(only_beyond, x.lo, both.lo))
    return Interval(lo, torch.where(only_below, below.hi, torch.where(only_beyond, x.hi, both.hi)))


@interval_rule("threshold")
def _threshold(place: Place) -> Interval:
    x = place.interval(0)
    value, limit = (x.lo.new_tensor(float(place.attributes[key])) for key in ("value", "threshold"))
    passes, stops = x.lo > limit, x.hi <= limit
    lo = torch.where(passes, x.lo, torch.where(stops, value, torch.minimum(value, limit)))
    hi = torch.where(passes, x.hi, torch.where(stops, value, x.hi.clamp_min(value)))
    return Interval(lo, hi)


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
