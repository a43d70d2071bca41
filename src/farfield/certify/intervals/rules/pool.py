"""Pooling and resampling: averages with known weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.certify.intervals._fallback import from_growth
from farfield.certify.intervals._interval import Interval, gamma, inflate, linear_image
from farfield.certify.intervals._registry import Bounds, Place, interval_rule

__all__: list[str] = []

INF = math.inf
LARGEST_KERNEL = 2**12
"""Bicubic weights are read off by resampling unit vectors, up to this many of them."""


def averaged(place: Place, terms: int, slack: float = 0.0) -> Interval:
    """A map with non-negative weights that sum to at most 1: both ends go through, rounded by γ_k and by what the
    weights themselves may be off by (``slack``, relative to the largest entry in reach).
    """
    x = place.interval(0)
    lo, hi = place.compute(_closed(x.lo)), place.compute(_closed(x.hi))
    size = place.compute(torch.where(torch.isfinite(x.magnitude), x.magnitude, 0.0))
    margin = size.abs() * gamma(terms + 16)
    if slack:
        largest = torch.where(torch.isfinite(x.magnitude), x.magnitude, 0.0)
        spatial = tuple(range(2, largest.ndim))
        margin = margin + slack * largest.amax(spatial, keepdim=True)
    result = inflate(Interval(lo, hi), margin)
    if x.bounded:
        return Interval(*_signed(x, result))
    open_lo, open_hi = (place.compute(torch.isinf(end).to(torch.float64)) > 0 for end in (x.lo, x.hi))
    return Interval(torch.where(open_lo, -INF, result.lo), torch.where(open_hi, INF, result.hi))


def _closed(end: Tensor) -> Tensor:
    return torch.where(torch.isfinite(end), end, 0.0)


def _signed(x: Interval, result: Interval) -> tuple[Tensor, Tensor]:
    """An average of numbers ≥ 0 is ≥ 0."""
    lo = result.lo.clamp_min(0.0) if bool((x.lo >= 0).all()) else result.lo
    return lo, result.hi.clamp_max(0.0) if bool((x.hi <= 0).all()) else result.hi


@interval_rule("avg_pool")
def _avg_pool(place: Place) -> Bounds:
    if (place.attributes.get("divisor_override") or 1) < 0:
        return from_growth(place)
    return averaged(place, math.prod(place.attributes["kernel_size"]))


@interval_rule("adaptive_avg_pool")
def _adaptive_avg_pool(place: Place) -> Interval:
    return averaged(place, math.prod(place.interval(0).shape[-int(place.attributes["spatial"]) :]))


@interval_rule("interpolate")
def _interpolate(place: Place) -> Bounds:
    mode, x = str(place.attributes["mode"]), place.interval(0)
    if mode.startswith("nearest"):
        return x.map(place.compute)
    if mode != "bicubic":
        return averaged(place, 8, 2.0**-44 * max(x.shape[2:]))
    size = math.prod(x.shape[2:])
    if size > LARGEST_KERNEL:
        return from_growth(place)
    units = torch.eye(size, dtype=torch.float64).reshape(size, 1, *x.shape[2:])
    kernel = place.compute(units).reshape(size, -1).T.contiguous()
    flat = x.map(lambda end: end.flatten(2))
    image = linear_image(torch.nn.functional.linear, kernel, flat, size)
    largest = torch.where(torch.isfinite(flat.magnitude), flat.magnitude, 0.0).amax(-1, keepdim=True)
    image = inflate(image, 2.0**-42 * max(x.shape[2:]) * largest)
    return image.map(lambda end: end.reshape(place.shape))
