"""Tensors made from sizes and numbers."""

from __future__ import annotations

from farfield.certify.intervals._interval import Interval, point, spread, unbounded, widen
from farfield.certify.intervals._registry import Place, interval_rule

__all__: list[str] = []


@interval_rule("full")
def _full(place: Place) -> Interval:
    return place.operand(0, "fill_value").expand(place.shape)


@interval_rule("arange", "linspace")
def _ramp(place: Place) -> Interval:
    """Whole numbers exactly; others within a few units. Nothing is claimed where an end is computed."""
    if place.node.operands:
        return unbounded(place.shape)
    ramp = place.compute()
    if not ramp.is_floating_point():
        return point(ramp)
    end = ramp.double()
    return widen(end, end, 2.0**-48, 2.0**-50 * float(end.abs().max()) if end.numel() else 0.0)


@interval_rule("eye")
def _eye(place: Place) -> Interval:
    return point(place.compute())


@interval_rule("random")
def _random(place: Place) -> Interval:
    uniform = place.attributes.get("distribution") == "uniform"
    return spread(0.0, 1.0, place.shape) if uniform else unbounded(place.shape)


@interval_rule("randint")
def _randint(place: Place) -> Interval:
    return spread(float(place.attributes["low"]), float(place.attributes["high"]) - 1.0, place.shape)


@interval_rule("bernoulli")
def _bernoulli(place: Place) -> Interval:
    return spread(0.0, 1.0, place.shape)
