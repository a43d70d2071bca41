"""Values over cells by a mean-value form, v₀ + Σ s_j δ_j with intervals for v₀ and the slopes, and rules for them.

A rule is a line or two: sums and products of intervals, divided differences of activations and of 1/√q. Before the
first norm values are multiplied by t: an activation is t·σ(z/t) there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farfield.certify.checker._curves import CheckedCurve
from farfield.certify.checker._reading import Layer
from farfield.certify.checker._values import TINY, Array, CertificateError, MidRad, Span, U, gamma, round_up

__all__ = [
    "CellReach",
    "CellSlopes",
    "cells_of_a_ball",
    "curve_slopes",
    "length",
    "lifted_slopes",
    "norm_slopes",
]


@dataclass(frozen=True)
class CellReach:
    """How far δ goes where the domain is a ball in a box: ‖δ‖ ≤ radius over the axes of a cell that are whole.

    ``whole`` (axes, cells), ``radius`` (cells,). On every axis |δ_j| ≤ 1.
    """

    whole: npt.NDArray[np.bool_]
    radius: Array

    def swing(self, size: Array) -> Array:
        """Σ|s_j| over the axes that were halved, and radius·‖s‖ over the others; (axes, cells, entries)."""
        whole = self.whole[:, :, None]
        made: Array = np.where(whole, 0.0, size).sum(0) + self.radius[:, None] * length(
            np.where(whole, size, 0.0)
        )
        return made


def length(size: Array) -> Array:
    """√Σ s² along the first axis, rounded up; ∞ where it is not a number."""
    largest = np.maximum(np.abs(size).max(0), TINY)
    made = round_up(largest * np.sqrt(((size / largest) ** 2).sum(0)))
    return np.where(np.isnan(made), math.inf, made)


def cells_of_a_ball(place: Array, width: Array, radius: float) -> tuple[CellReach, npt.NDArray[np.bool_]]:
    """(how far a ball of this radius around 0 reaches in cells of [−1, 1]ⁿ, which of them are outside of it)."""
    least = np.maximum(np.abs(place) - width, 0.0)
    share = (place.shape[1] + 8) * U
    rest = radius * radius * (1 + 8 * U) - (least**2).sum(1) * (1 - share)
    whole = ((width == 1.0) & (place == 0.0)).T
    return CellReach(whole, np.sqrt(np.maximum(rest, 0.0)) * (1 + 8 * U)), rest < 0


@dataclass(frozen=True)
class CellSlopes:
    """v₀ (cells, entries) and s (axes, cells, entries), the half-widths being multiplied into s."""

    start: MidRad
    slope: MidRad
    reach: CellReach | None = None

    @property
    def spread(self) -> Array:
        """Σ|s|, or what a reach leaves of it."""
        return self.swing(self.slope)

    def swing(self, slope: MidRad) -> Array:
        """The largest Σ s_j δ_j over these cells."""
        size = np.abs(slope.mid) + slope.rad
        return round_up(size.sum(0) if self.reach is None else self.reach.swing(size))

    def with_values(self, start: MidRad, slope: MidRad) -> CellSlopes:
        """Other values over the same cells."""
        return CellSlopes(start, slope, self.reach)

    @property
    def span(self) -> Span:
        """Where the value lies in the cell."""
        return MidRad(self.start.mid, round_up(self.start.rad + self.spread)).span

    def plus(self, other: CellSlopes) -> CellSlopes:
        """Their sum."""
        return self.with_values(self.start + other.start, self.slope + other.slope)

    def times(self, factor: MidRad) -> CellSlopes:
        """A constant multiple."""
        return self.with_values(self.start * factor, self.slope * MidRad(factor.mid[None], factor.rad[None]))

    def better(self, other: CellSlopes) -> CellSlopes:
        """Entry by entry the one that leaves less open; what follows the axes is not open."""
        keep = ~(other.start.rad + other.slope.rad.sum(0) < self.start.rad + self.slope.rad.sum(0))

        def pick(a: Array, b: Array) -> Array:
            made: Array = np.where(keep, a, b)
            return made

        return self.with_values(
            MidRad(pick(self.start.mid, other.start.mid), pick(self.start.rad, other.start.rad)),
            MidRad(pick(self.slope.mid, other.slope.mid), pick(self.slope.rad, other.slope.rad)),
        )


def _enclosed(span: Span, axes: int) -> CellSlopes:
    """A value known by its range alone."""
    start = MidRad.between(*span)
    shut = MidRad(
        np.where(np.isfinite(start.mid), start.mid, 0.0),
        np.where(np.isfinite(start.mid), start.rad, math.inf),
    )
    return CellSlopes(shut, MidRad(*np.zeros((2, axes, *start.mid.shape))))


def curve_slopes(sigma: CheckedCurve, z: CellSlopes, known: Span | None) -> CellSlopes:
    """σ(z) = σ(z₀) + (divided difference)·(z − z₀)."""
    low, high = z.span
    if known is not None:
        low, high = np.maximum(low, np.minimum(known[0], high)), np.minimum(high, np.maximum(known[1], low))
    made = z.with_values(sigma.value(z.start), z.slope * sigma.slope_between(z.start, low, high)[None])
    return made.better(_enclosed(sigma.image(low, high), len(z.slope.mid)))


def lifted_slopes(sigma: CheckedCurve, z: CellSlopes, time: CellSlopes) -> CellSlopes:
    """φ = t·σ(z/t), t ≥ 0: the better of two expressions for every entry.

    With w = z/t: φ = hinge(z) + t·(σ(w) − hinge(w)); and, where t stays away from 0, φ(z, t) − φ(z₀, t₀) is a mean of
    σ′(w)·(z − z₀) + (σ(w) − wσ′(w))·(t − t₀) over points of the cell.
    """
    if sigma.homogeneous:
        return curve_slopes(sigma, z, None)
    (low, high), (begin, end) = z.span, (np.maximum(e, 0.0) for e in time.span)
    most = np.maximum(end, TINY) * (1 + 8 * U)
    far = np.where(low > 0, low / most, -math.inf), np.where(high < 0, high / most, math.inf)
    rest = MidRad.between(*sigma.rest_beyond(*far))
    base = CellSlopes(
        sigma.hinge.value(z.start), z.slope * sigma.hinge.slope_between(z.start, low, high)[None]
    )
    tail = time.times(MidRad.exact(rest.mid))
    made = base.plus(
        CellSlopes(MidRad(tail.start.mid, round_up(tail.start.rad + end * rest.rad)), tail.slope)
    )
    away = (begin > 1e-3 * end) & np.isfinite(low) & np.isfinite(high)
    if not away.any():
        return made
    ends = [e / np.where(away, t, 1.0) for e in (low, high) for t in (begin, end)]
    least, largest = np.minimum.reduce(ends), np.maximum.reduce(ends)
    reach = 8 * U * np.maximum(np.abs(least), np.abs(largest)) + TINY
    least, largest = np.where(away, least - reach, 0.0), np.where(away, largest + reach, 0.0)
    steep = sigma.slope_between(MidRad.between(least, largest), least, largest)
    first = np.where(away, time.start.mid, 1.0)
    share = time.start.rad / np.maximum(first - time.start.rad, TINY)
    inverse = MidRad(1 / first, round_up((share + 4 * U) / first))
    value = sigma.value(z.start * inverse) * time.start
    loose = round_up(value.rad + end * sigma.defect)
    slope = z.slope * steep[None] + time.slope * sigma.intercept(least, largest)[None]
    good = (
        away
        & (share < 0.5)
        & np.isfinite(loose)
        & np.isfinite(slope.mid).all(0)
        & np.isfinite(slope.rad).all(0)
    )
    near = CellSlopes(
        MidRad(np.where(good, value.mid, 0.0), np.where(good, loose, math.inf)),
        MidRad(np.where(good, slope.mid, 0.0), np.where(good, slope.rad, 0.0)),
    )
    return made.better(near)


def norm_slopes(layer: Layer, z: CellSlopes, time: CellSlopes | None) -> CellSlopes:
    """c·g(q), g = 1/√q, q = Σc²/count + ε (ε·t² before the first norm) in each group; c is centered already.

    y − y₀ = (c − c₀)·g(q) + c₀·(g(q) − g(q₀)), q − q₀ = Σ(c − c₀)(c + c₀)/count + ε(t − t₀)(t + t₀), and
    g(q) − g(q₀) = −(q − q₀)/(√q√q₀(√q + √q₀)).
    """
    if layer.eps is None:
        raise CertificateError(
            f"The independent checker does not support cells behind {layer.node.name!r}: its ε is outside the root."
        )
    groups, width = layer.groups, layer.groups.shape[1]
    scale = MidRad(np.full((1,), 1 / layer.count), np.full((1,), U / layer.count))
    eps = MidRad.exact(np.full((1,), layer.eps))
    start, slope = z.start[:, groups], z.slope[:, :, groups]
    ends = tuple(e[:, groups] for e in z.span)
    both = MidRad.between(ends[0], ends[1]) + start
    q0 = _summed(start * start) * scale
    rise = _summed(slope * both[None]) * scale
    least = np.where((ends[0] <= 0) & (ends[1] >= 0), 0.0, np.minimum(np.abs(ends[0]), np.abs(ends[1])))
    most = np.maximum(np.abs(ends[0]), np.abs(ends[1]))
    floor, roof = ((e**2).sum(-1) / layer.count for e in (least, most))
    if time is None:
        q0, floor, roof = q0 + eps, floor + layer.eps, roof + layer.eps
    else:
        t = tuple(np.maximum(e, 0.0) for e in time.span)
        q0 = q0 + time.start * time.start * eps
        rise = rise + time.slope * (MidRad.between(*t) + time.start)[None] * eps
        floor, roof = floor + layer.eps * t[0] ** 2, roof + layer.eps * t[1] ** 2
    low, high = MidRad(q0.mid, round_up(q0.rad + z.swing(rise))).span
    lost = gamma(width + 16)
    low, high = np.maximum(low, floor * (1 - lost)), np.minimum(high, roof * (1 + lost) + TINY)
    first = [np.maximum(q0.span[0], 0.0), q0.span[1]]
    sound = (low > 1e-200) & (first[0] > 1e-200) & np.isfinite(high) & (high < 1e200)
    low, high, first = (
        np.where(sound, low, 1.0),
        np.where(sound, np.maximum(high, low), 1.0),
        [np.where(sound, f, 1.0) for f in first],
    )
    roots = [np.sqrt(e) for e in (low, high, *first)]
    gain = _inverted(roots[0], roots[1])
    bend = _inverted(roots[0] * roots[2] * (roots[0] + roots[2]), roots[1] * roots[3] * (roots[1] + roots[3]))
    value = start * _inverted(roots[2], roots[3])[..., None]
    made = slope * gain[None, ..., None] + -(start * bend[..., None])[None] * rise[..., None]
    mid, rad = np.zeros_like(z.start.mid), np.zeros_like(z.start.rad)
    mids, rads = np.zeros_like(z.slope.mid), np.zeros_like(z.slope.rad)
    good = sound[..., None] & np.isfinite(value.rad) & np.isfinite(made.rad).all(0)
    mid[:, groups], rad[:, groups] = np.where(good, value.mid, 0.0), np.where(good, value.rad, layer.most)
    mids[:, :, groups], rads[:, :, groups] = np.where(good, made.mid, 0.0), np.where(good, made.rad, 0.0)
    image = np.full_like(mid, layer.most)
    return z.with_values(MidRad(mid, rad), MidRad(mids, rads)).better(_enclosed((-image, image), len(mids)))


def _summed(value: MidRad) -> MidRad:
    """Along the last axis."""
    loss = gamma(value.mid.shape[-1]) * np.abs(value.mid).sum(-1) + value.rad.sum(-1)
    return MidRad(value.mid.sum(-1), round_up(loss))


def _inverted(low: Array, high: Array) -> MidRad:
    """1/x for x in [low, high], both known to a few units in the last place."""
    return MidRad.between(1 / high * (1 - 32 * U), 1 / low * (1 + 32 * U))
