"""Attention: an average of the rows of ``value``, weighted as closely as the scores are known."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.certify.intervals._interval import (
    Interval,
    add,
    hull,
    inflate,
    meet,
    mul,
    point,
    spread,
    sub,
    widen,
)
from farfield.certify.intervals._registry import Place, interval_rule
from farfield.certify.intervals.rules.bilinear import product
from farfield.certify.intervals.rules.softmax import softmaxed

__all__: list[str] = []

INF = math.inf
LARGEST_SCORES = 2**22
"""Score tables beyond this size are not built: the hull of the rows has to do."""


@interval_rule("attention")
def _attention(place: Place) -> Interval:
    """softmax(q·kᵀ·scale + mask)·v lies between the extremes of the rows of v that a query may look at; where the
    scores are known closely, Σ_j p_j v_j with intervals for p is closer.
    """
    a = place.attributes
    query, key, value = (place.interval(i) for i in range(3))
    if a.get("enable_gqa"):
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.map(lambda end: end.repeat_interleave(groups, -3)) for x in (key, value))
    length, keys = query.shape[-2], key.shape[-2]
    allowed, certain, shift = _mask(place, length, keys)
    rows = _extremes(value, allowed, place.shape)
    shut = ~certain.any(
        -1, keepdim=True
    )  # every key may be masked: torch then returns 0 (or NaN, in older kernels)
    rows = Interval(
        torch.where(shut, rows.lo.clamp_max(0.0), rows.lo), torch.where(shut, rows.hi.clamp_min(0.0), rows.hi)
    )
    size = rows.magnitude
    rows = inflate(rows, torch.where(torch.isfinite(size), 2.0**-44 * size, 0.0))
    table = math.prod(place.shape[:-2]) * length * keys
    if query.bounded and key.bounded and rows.bounded and table <= LARGEST_SCORES and not bool(shut.any()):
        number = a.get("scale")
        factor = point(number) if number is not None else _inverse_root(query.shape[-1])
        scores = mul(product(query, key.map(lambda end: end.mT)), factor)
        scores = scores if shift is None else add(scores, shift)
        gone = ~allowed
        scores = Interval(torch.where(gone | ~certain, -INF, scores.lo), torch.where(gone, -INF, scores.hi))
        size = scores.magnitude
        margin = torch.where(torch.isfinite(size), 2.0**-46 * size, 0.0)
        scores = Interval(scores.lo - margin, scores.hi + margin)
        rows = meet(rows, _weighted(softmaxed(scores), value))
    dropped = float(a.get("dropout_p") or 0.0)
    if dropped > 0.0:
        kept = mul(rows, point(1.0 / (1.0 - dropped) * (1.0 + 2.0**-50))) if dropped < 1.0 else point(0.0)
        return hull(spread(0.0, 0.0, place.shape), kept, rows)
    return rows


def _inverse_root(features: int) -> Interval:
    end = torch.tensor(1.0 / math.sqrt(features), dtype=torch.float64)
    return widen(end, end)


def _weighted(weights: Interval, value: Interval) -> Interval:
    """Σ p_j v_j = m + Σ p_j (v_j − m) for Σ p = 1 and any m: the middle of the rows leaves least to multiply."""
    middle = value.lo.amin(-2, keepdim=True) / 2 + value.hi.amax(-2, keepdim=True) / 2
    shifted = product(weights, sub(value, point(middle)))
    size = value.magnitude.amax(-2, keepdim=True) * 2.0**-44
    return inflate(add(shifted, point(middle)), size)


def _mask(place: Place, length: int, keys: int) -> tuple[Tensor, Tensor, Interval | None]:
    """Keys a query may look at, keys it certainly does look at, and what is added to the scores."""
    allowed = torch.ones((length, keys), dtype=torch.bool)
    if place.attributes.get("is_causal"):
        allowed = allowed.tril()
    certain, shift = allowed, None
    mask = place.optional(3)
    if mask is not None:
        producer, flags = place.producers[3], place.infinite[3] if len(place.infinite) > 3 else None
        if producer is not None and producer.dtype == torch.bool:
            allowed, certain = allowed & (mask.hi > 0), certain & (mask.lo > 0)
        else:
            shift = (
                Interval(mask.lo.clamp_min(-1e300), mask.hi.clamp_min(-1e300)) if flags is not None else mask
            )
            if flags is not None:
                surely = flags & (mask.hi == -INF)
                allowed, certain = allowed & ~surely, certain & ~flags
                shift = Interval(torch.where(flags, -INF, shift.lo), shift.hi)
    return allowed, certain, shift


def _extremes(value: Interval, allowed: Tensor, shape: tuple[int, ...]) -> Interval:
    """Least and largest entry of the rows allowed to each query: (…, length, features)."""
    if bool(allowed.all()):
        return Interval(value.lo.amin(-2, keepdim=True), value.hi.amax(-2, keepdim=True)).expand(shape)
    length, keys = allowed.shape[-2:]
    causal = torch.ones((length, keys), dtype=torch.bool).tril()
    if allowed.ndim == 2 and torch.equal(allowed, causal):
        reach = torch.arange(length).clamp_max(keys - 1)
        lo, hi = value.lo.cummin(-2).values, value.hi.cummax(-2).values
        return Interval(lo[..., reach, :], hi[..., reach, :]).expand(shape)
    if math.prod(allowed.shape) * value.shape[-1] > LARGEST_SCORES:
        return Interval(value.lo.amin(-2, keepdim=True), value.hi.amax(-2, keepdim=True)).expand(shape)
    open_to = allowed.unsqueeze(-1)
    lo = torch.where(open_to, value.lo.unsqueeze(-3), INF).amin(-2)
    hi = torch.where(open_to, value.hi.unsqueeze(-3), -INF).amax(-2)
    nothing = ~allowed.any(-1, keepdim=True)
    return Interval(torch.where(nothing, 0.0, lo), torch.where(nothing, 0.0, hi)).expand(shape)
