"""The separable part of a dual proof: maxima over an interval, entry by entry, rounded upwards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from farfield.certify.checker._curves import CheckedCurve
from farfield.certify.checker._values import EVALUATION, Array, U, round_up

__all__ = ["Weights", "box_maxima", "curve_maxima"]

POINTS = 8192
"""Cells of the grid on which a smooth curve's maximum is bounded."""


@dataclass(frozen=True)
class Weights:
    """Multipliers of ψ(z) = sσ(z) + Tσ(z)² + Eσ(z)z − Θz² − rz, entry by entry; s is known up to ``loose``."""

    s: Array
    t: Array
    e: Array
    theta: Array
    r: Array
    loose: Array


def curve_maxima(sigma: CheckedCurve, w: Weights, lo: Array, hi: Array, points: int = POINTS) -> Array:
    """At least the maximum of ψ over [lo, hi].

    A piecewise linear σ makes ψ a parabola on each piece. For another, on a grid of width h, ψ exceeds the larger of
    its values at the ends of a cell by at most sup|ψ″|·h²/8.
    """
    low, high = sigma.image(lo, hi)
    y_top, z_top = np.maximum(np.abs(low), np.abs(high)), np.maximum(np.abs(lo), np.abs(hi))
    s_top = np.abs(w.s) + w.loose
    size = (s_top + np.abs(w.t) * y_top + np.abs(w.e) * z_top) * y_top + (
        np.abs(w.theta) * z_top + np.abs(w.r)
    ) * z_top
    unsure = s_top + 2 * np.abs(w.t) * y_top + np.abs(w.e) * z_top
    slack = 64 * U * size + w.loose * y_top + unsure * sigma.defect
    knots = [lo, *(np.clip(k, lo, hi) for k, _ in sigma.kinks), hi]
    best = np.full_like(lo, -math.inf)
    if sigma.piecewise:
        extra = np.zeros_like(lo)
        for (slope, shift), (a, b) in zip(sigma.piecewise, pairwise(knots), strict=True):
            square = w.t * slope * slope + w.e * slope - w.theta
            line = w.s * slope + 2 * w.t * slope * shift + w.e * shift - w.r
            vertex = np.clip(np.where(square < 0, -line / (2 * np.where(square < 0, square, -1.0)), a), a, b)
            for z in (a, b, vertex):
                reached = (square * z + line) * z + (w.s + w.t * shift) * shift
                best = np.maximum(best, np.where((b > a) | (lo == hi), reached, -math.inf))
            steep = abs(slope) * z_top + abs(shift)
            extra = np.maximum(extra, (s_top + np.abs(w.t) * steep + np.abs(w.e) * z_top) * 4 * steep)
        return best + round_up(slack + 256 * U * (size + extra))
    bend = (
        unsure * sigma.second
        + 2 * np.abs(w.t) * sigma.steepest**2
        + 2 * np.abs(w.e) * sigma.steepest
        + 2 * np.abs(w.theta)
    )
    share = max(2, points // (len(knots) - 1))
    s, t, e, theta, r = (v[:, None] for v in (w.s, w.t, w.e, w.theta, w.r))
    for a, b in pairwise(knots):
        z = np.clip(a[:, None] + (b - a)[:, None] * np.linspace(0.0, 1.0, share + 1), a[:, None], b[:, None])
        y = sigma.at(z)
        step = (b - a) / share + 4 * U * z_top
        met = ((s + t * y + e * z) * y - (theta * z + r) * z).max(1)
        best = np.maximum(best, met + bend * step * step / 8 * (1 + 1e-12))
    return best + round_up(slack + unsure * EVALUATION * (1 + z_top + y_top))


def box_maxima(t: Array, s: Array, lo: Array, hi: Array) -> Array:
    """At least the maximum of ty² + sy over [lo, hi]."""
    vertex = np.clip(np.where(t < 0, -s / (2 * np.where(t < 0, t, -1.0)), lo), lo, hi)
    best = np.maximum.reduce([(t * y + s) * y for y in (lo, hi, vertex)])
    top = np.maximum(np.abs(lo), np.abs(hi))
    made: Array = best + round_up(64 * U * (np.abs(t) * top + np.abs(s)) * top)
    return made
