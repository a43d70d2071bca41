"""Arithmetic of ranges, rounded outwards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from farfield.certify.checker._values import (
    TINY,
    Array,
    Span,
    gamma,
)
from farfield.graph import NormSpec

__all__ = ["closer_norm", "inverse", "plus", "point", "sizes_of", "span", "times"]


def span(low: Any, high: Any) -> Span:
    return np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)


def point(value: float) -> Span:
    return span(value, value)


def plus(a: Span, b: Span) -> Span:
    return span(np.nextafter(a[0] + b[0], -math.inf), np.nextafter(a[1] + b[1], math.inf))


def times(a: Span, b: Span) -> Span:
    """Products of two intervals; 0·∞ is 0."""
    ends = [np.where((x == 0) | (y == 0), 0.0, x * y) for x in a for y in b]
    return span(
        np.nextafter(np.minimum.reduce(ends), -math.inf), np.nextafter(np.maximum.reduce(ends), math.inf)
    )


def inverse(b: Span) -> Span:
    """1/b; unbounded where b may be 0."""
    sure = (b[0] > 0) | (b[1] < 0)
    lo, hi = np.nextafter(1.0 / b[1], -math.inf), np.nextafter(1.0 / b[0], math.inf)
    return span(np.where(sure, lo, -math.inf), np.where(sure, hi, math.inf))


def sizes_of(x: Span) -> Span:
    """Range of |x|."""
    low = np.where((x[0] <= 0) & (x[1] >= 0), 0.0, np.minimum(np.abs(x[0]), np.abs(x[1])))
    return span(low, np.maximum(np.abs(x[0]), np.abs(x[1])))


def closer_norm(low: Array, high: Array, spec: NormSpec, count: float) -> Span:
    """t/√((t² + Q)/count + ε) rises with t and shrinks as Q, the others' squares, grows: its ends."""
    width = low.shape[1]
    if spec.centered:
        size = gamma(2 * width + 16) * np.maximum(np.abs(low), np.abs(high)).max(1, keepdims=True) * 4
        least, most = low.sum(1, keepdims=True), high.sum(1, keepdims=True)
        low, high = low - (low + (most - high)) / width - size, high - (high + (least - low)) / width + size
    squares = [s**2 for s in sizes_of((low, high))]
    rest = [np.maximum(s.sum(1, keepdims=True) - s, 0.0) for s in squares]
    slack = 1e-13 * width * squares[1].sum(1, keepdims=True)
    rest = [np.maximum(rest[0] - slack, 0.0), rest[1] + slack]

    def quotient(t: Array, others: Array) -> Array:
        square = (t * t + others) / count
        under = {
            "inside": np.sqrt(square + spec.eps),
            "outside": np.sqrt(square) + spec.eps,
            "clamp": np.maximum(np.sqrt(square), spec.eps),
        }[spec.eps_mode]
        made: Array = np.where(t == 0, 0.0, t / under)
        return made

    up = quotient(high, np.where(high >= 0, rest[0], rest[1]))
    down = quotient(low, np.where(low <= 0, rest[0], rest[1]))
    return down - 1e-13 * np.abs(down) - TINY, up + 1e-13 * np.abs(up) + TINY


# -- rules by name -------------------------------------------------------------------------------------------
