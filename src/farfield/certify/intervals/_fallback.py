"""Operators without a rule of their own: the growth rule of the whole tensor, said of every entry."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.certify.intervals._interval import Interval, spread
from farfield.certify.intervals._registry import Bounds, Place
from farfield.growth._claims import claim_of
from farfield.growth._extent import Extent
from farfield.growth._rate import BOUNDED, CONSTANT, LINEAR, SINGULAR
from farfield.growth._registry import Claim, Site, is_complex

__all__ = ["from_growth"]

INF = math.inf
MARGIN = 1e-11
"""Relative; growth rules round with a smaller one of their own."""


def from_growth(place: Place) -> Bounds:
    """The claim of the operator's growth rule, given the least and the largest entry of every operand.

    Sound, and as coarse as one interval per tensor. A complex tensor's claim covers both its parts, so a real operand
    that meets one is joined with its imaginary part, 0.
    """
    mixed = any(map(is_complex, (place.node, *place.producers)))
    operands = tuple(None if operand is None else _claim(operand, mixed=mixed) for operand in place.operands)
    claim = claim_of(Site(place.node, operands, place.tensors, place.producers, place.lookup))
    if isinstance(claim, tuple):
        shapes = [part.shape for part in _blank(place)]
        return tuple(_spread(place, part, shape) for part, shape in zip(claim, shapes, strict=True))
    return _spread(place, claim, place.shape)


def _claim(operand: Bounds, *, mixed: bool) -> Claim:
    if isinstance(operand, tuple):
        return tuple(_extent(part, mixed=mixed) for part in operand)
    return _extent(operand, mixed=mixed)


def _extent(box: Interval, *, mixed: bool) -> Extent:
    if box.lo.numel() == 0:
        return Extent(CONSTANT, CONSTANT, 0.0, 0.0)
    lo, hi = float(box.lo.min()), float(box.hi.max())
    if mixed:
        lo, hi = min(lo, 0.0), max(hi, 0.0)
    lower, upper = (BOUNDED if math.isfinite(end) else LINEAR for end in (lo, hi))
    return Extent(lower, upper, lo, hi, float(box.mignitude.min()) if not mixed else 0.0)


def _spread(place: Place, extent: Extent, shape: tuple[int, ...] | torch.Size) -> Interval:
    if extent.doubts:
        raise place.refuse("; ".join(str(doubt.text) for doubt in extent.doubts))
    if extent.rate == SINGULAR:
        raise place.refuse("; ".join(str(pole.text) for pole in extent.poles) or "its value may be infinite")
    lo = extent.lo - MARGIN * abs(extent.lo) if math.isfinite(extent.lo) else -INF
    hi = extent.hi + MARGIN * abs(extent.hi) if math.isfinite(extent.hi) else INF
    return spread(lo, hi, shape)


def _blank(place: Place) -> tuple[Tensor, ...]:
    """Several results have no shape of their own in the program: one run on zeros tells them."""
    zeros = [torch.zeros_like(o.lo) if isinstance(o, Interval) else None for o in place.operands]
    return tuple(place.compute(*zeros))
