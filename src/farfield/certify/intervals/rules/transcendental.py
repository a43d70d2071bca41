"""Roots, exponentials, logarithms, trigonometry: monotone piece by piece, refused outside their domains."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from farfield.certify.intervals._interval import Interval, divide, down, point, up, widen
from farfield.certify.intervals._registry import Place, interval_rule, register_interval_rule
from farfield.graph import describe
from farfield.graph.operators._facts import Domain

__all__ = ["root"]

INF = math.inf
LGAMMA_MINIMIZER, LGAMMA_MINIMUM = 1.4616321449683623, -0.12148629053584962
FARTHEST_ANGLE = 2.0**40
"""Beyond it, whole periods are not counted."""


def root(x: Interval) -> Interval:
    """√v on v ≥ 0."""
    lo, hi = torch.sqrt(x.lo.clamp_min(0.0)), torch.sqrt(x.hi.clamp_min(0.0))
    return Interval(down(lo).clamp_min(0.0), up(hi))


def _inside(
    place: Place, least: float, largest: float, *, closed_below: bool = True, closed_above: bool = True
) -> Interval:
    """The argument, refused where it can leave the domain of the function."""
    x = place.interval(0)
    below = (x.lo < least) if closed_below else (x.lo <= least)
    above = (x.hi > largest) if closed_above else (x.hi >= largest)
    if bool((below | above).any()):
        box = place.whole(0)
        raise place.refuse(
            f"its argument is only known to lie in [{float(box.lo):.4g}, {float(box.hi):.4g}], and the function is "
            f"defined from {least:g} to {largest:g}{'' if closed_below and closed_above else ' without the ends'}"
        )
    return x


@interval_rule("exp", "exp2", "expm1", "log1p", "sinh", "asinh", "asin", "acos", "atanh", "erfinv")
def _monotone(place: Place, absolute: float = 2.0**-1022) -> Interval:
    """A monotone function between its values at the ends; the absolute margin counts near its zeros."""
    facts = describe(place.node)
    domain = facts.domain or Domain()
    closed = not domain.open
    x = _inside(
        place, domain.low, domain.high, closed_below=closed, closed_above=closed or math.isinf(domain.high)
    )
    first, last = (x.lo, x.hi) if facts.monotone[0] > 0 else (x.hi, x.lo)
    result = widen(place.compute(first), place.compute(last), absolute=absolute)
    return Interval(result.lo.clamp_min(facts.range[0]), result.hi)


@interval_rule("acosh")
def _acosh(place: Place) -> Interval:
    return _monotone(place, 2.0**-50)


def _logarithm(function: Callable[[Tensor], Tensor]) -> Callable[[Place], Interval]:
    def rule(place: Place) -> Interval:
        x = place.interval(0)
        if bool((x.lo < 0).any()) or (bool((x.lo == 0).any()) and place.can_vanish(0)):
            x = _inside(place, 0.0, INF, closed_below=False)
        return widen(function(x.lo), function(x.hi))

    return rule


for _name in ("log", "log2", "log10"):
    register_interval_rule(_name, _logarithm(getattr(torch, _name)))


@interval_rule("sqrt")
def _sqrt(place: Place) -> Interval:
    return root(_inside(place, 0.0, INF))


@interval_rule("rsqrt")
def _rsqrt(place: Place) -> Interval:
    x = _inside(place, 0.0, INF)
    if place.can_vanish(0):
        raise place.refuse("its argument can be 0")
    result = divide(point(1.0), root(x))
    return widen(result.lo, result.hi)  # torch.rsqrt itself is not correctly rounded


@interval_rule("cosh")
def _cosh(place: Place) -> Interval:
    x = place.interval(0)
    result = widen(torch.cosh(x.mignitude), torch.cosh(x.magnitude))
    return Interval(result.lo.clamp_min(1.0), result.hi)


def _holds_multiple(x: Interval, offset: float, period: float) -> Tensor:
    """Some offset + k·period may lie in the interval; said too often near its ends, never too rarely."""
    slack = 2.0**-40 * (1.0 + x.magnitude.clamp_max(FARTHEST_ANGLE))
    first = torch.ceil((x.lo - slack - offset) / period)
    last = torch.floor((x.hi + slack - offset) / period)
    return (first <= last) | (x.magnitude > FARTHEST_ANGLE)


def _wave(function: Callable[[Tensor], Tensor], peak: float) -> Callable[[Place], Interval]:
    """Sine and cosine: the ends, and ±1 where a peak or a trough lies between."""

    def rule(place: Place) -> Interval:
        x = place.interval(0)
        at = [function(end.clamp(-FARTHEST_ANGLE, FARTHEST_ANGLE)) for end in (x.lo, x.hi)]
        result = widen(torch.minimum(*at), torch.maximum(*at), absolute=2.0**-52)
        trough = _holds_multiple(x, peak - math.pi, 2 * math.pi)
        lo = torch.where(trough, -1.0, result.lo.clamp_min(-1.0))
        return Interval(lo, torch.where(_holds_multiple(x, peak, 2 * math.pi), 1.0, result.hi.clamp_max(1.0)))

    return rule


register_interval_rule("sin", _wave(torch.sin, math.pi / 2))
register_interval_rule("cos", _wave(torch.cos, 0.0))


@interval_rule("tan")
def _tan(place: Place) -> Interval:
    x = place.interval(0)
    if bool(_holds_multiple(x, math.pi / 2, math.pi).any()):
        raise place.refuse("a pole at an odd multiple of π/2 may lie among its arguments")
    return widen(torch.tan(x.lo), torch.tan(x.hi))


@interval_rule("lgamma")
def _lgamma(place: Place) -> Interval:
    """Falls up to 1.4616…, rises from there."""
    x = _inside(place, 0.0, INF, closed_below=False)
    ends = [torch.lgamma(end) for end in (x.lo, x.hi)]
    # ln Γ has zeros at 1 and 2, near which only the absolute error is small.
    result = widen(torch.minimum(*ends), torch.maximum(*ends), 2.0**-46, 2.0**-46)
    bottom = (x.lo <= LGAMMA_MINIMIZER + 1e-6) & (x.hi >= LGAMMA_MINIMIZER - 1e-6)
    lo = torch.where(bottom, LGAMMA_MINIMUM - 2.0**-46, result.lo.clamp_min(LGAMMA_MINIMUM - 2.0**-46))
    return Interval(lo, result.hi)


@interval_rule("digamma")
def _digamma(place: Place) -> Interval:
    x = _inside(place, 0.0, INF, closed_below=False)
    return widen(torch.digamma(x.lo), torch.digamma(x.hi), 2.0**-46, 2.0**-46)
