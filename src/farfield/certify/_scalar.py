"""Scalar functions as a proof needs them: range, slope, curvature, and the half-planes their graph lies in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farfield.growth import Profile, profile

__all__ = ["Scalar", "scalar", "scalar_names"]

INF = math.inf


@dataclass(frozen=True)
class Scalar:
    """One activation σ: ℝ → ℝ, continuous.

    Parameters
    ----------
    op
        Its name among the operators.
    function
        σ on float64 tensors, right to a few units in the last place.
    slope, curvature
        sup|σ′| and, between ``kinks``, sup|σ″|; 0 for piecewise linear functions.
    kinks
        Where the slope jumps.
    forms
        (a, b, c) with a·σ(z) + b·z + c ≥ 0 for every z.
    roughness
        What the model's own function may differ from this one (softplus switches to the identity at a threshold).
    pieces
        (slope, intercept) from left to right between the kinks, of a piecewise linear function.
    """

    op: str
    function: Callable[[Tensor], Tensor]
    slope: float
    curvature: float
    kinks: tuple[float, ...]
    forms: tuple[tuple[float, float, float], ...]
    profile: Profile
    roughness: float = 0.0
    pieces: tuple[tuple[float, float], ...] = ()

    def image(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """Entrywise, an interval that contains σ([lo, hi]); rounded outwards."""
        at_lo, at_hi = self.function(lo), self.function(hi)
        low, high = torch.minimum(at_lo, at_hi), torch.maximum(at_lo, at_hi)
        p = self.profile
        if self.op in ("sin", "cos"):
            low, high = torch.full_like(low, -1.0), torch.full_like(high, 1.0)
        elif p.shape == "valley":
            inside = (lo <= p.valley + 1e-6) & (hi >= p.valley - 1e-6)
            low = torch.where(inside, torch.full_like(low, p.lo), low)
        low = low - (1e-14 * low.abs() + 1e-14 + self.roughness)
        high = high + (1e-14 * high.abs() + 1e-14 + self.roughness)
        return low.clamp_min(p.lo), high.clamp_max(p.hi)


_RAMPS = ((1.0, 0.0, 0.0), (1.0, -1.0, 0.0))
_UNIT_RANGE = ((1.0, 0.0, 1.0), (-1.0, 0.0, 1.0))

# name → (sup|σ′|, sup|σ″| between kinks, kinks, half-planes); rounded upwards, checked on a grid by the tests.
_FIXED: Mapping[str, tuple[float, float, tuple[float, ...], tuple[tuple[float, float, float], ...]]] = {
    "relu": (1.0, 0.0, (0.0,), _RAMPS),
    "abs": (1.0, 0.0, (0.0,), ((1.0, 1.0, 0.0), (1.0, -1.0, 0.0))),
    "hardsigmoid": (1 / 6 + 1e-15, 0.0, (-3.0, 3.0), ((1.0, 0.0, 0.0), (-1.0, 0.0, 1.0))),
    "hardswish": (1.5, 1 / 3 + 1e-15, (-3.0, 3.0), ((1.0, 0.0, 0.375), (1.0, -1.0, 0.375))),
    "gelu": (1.13, 0.8, (), ((1.0, 0.0, 0.1701), (1.0, -1.0, 0.1701))),
    "silu": (1.1, 0.5 + 1e-12, (), ((1.0, 0.0, 0.27847), (1.0, -1.0, 0.27847))),
    "mish": (1.09, 0.645, (), ((1.0, 0.0, 0.30885), (1.0, -1.0, 0.1404))),
    "tanh": (1.0, 0.7699, (), _UNIT_RANGE),
    "sigmoid": (0.25, 0.0963, (), ((1.0, 0.0, 0.0), (-1.0, 0.0, 1.0))),
    "erf": (1.1284, 0.968, (), _UNIT_RANGE),
    "erfc": (1.1284, 0.968, (), ((1.0, 0.0, 0.0), (-1.0, 0.0, 2.0))),
    "atan": (1.0, 0.6496, (), ((1.0, 0.0, 1.5708), (-1.0, 0.0, 1.5708))),
    "softsign": (1.0, 2.0, (0.0,), _UNIT_RANGE),
    "logsigmoid": (1.0, 0.25, (), ((-1.0, 0.0, 0.0), (-1.0, 1.0, 0.0))),
    "tanhshrink": (1.0, 0.7699, (), ((1.0, -1.0, 1.0), (-1.0, 1.0, 1.0))),
    "sin": (1.0, 1.0, (), _UNIT_RANGE),
    "cos": (1.0, 1.0, (), _UNIT_RANGE),
}
_PIECES: Mapping[str, tuple[tuple[float, float], ...]] = {
    "relu": ((0.0, 0.0), (1.0, 0.0)),
    "abs": ((-1.0, 0.0), (1.0, 0.0)),
    "hardsigmoid": ((0.0, 0.0), (1 / 6, 0.5), (0.0, 1.0)),
}
_PARAMETRIC = ("leaky_relu", "hardtanh", "softshrink", "softplus", "elu", "selu", "celu")


def scalar_names() -> tuple[str, ...]:
    """Operators described here, sorted."""
    return tuple(sorted((*_FIXED, *_PARAMETRIC)))


def scalar(op: str, attributes: Mapping[str, Any]) -> Scalar:
    """The description of one activation with these parameters.

    Examples
    --------
    >>> tanh = scalar("tanh", {})
    >>> tanh.slope, tanh.forms
    (1.0, ((1.0, 0.0, 1.0), (-1.0, 0.0, 1.0)))
    """
    shape = profile(op, attributes)
    if op in _FIXED:
        slope, curvature, kinks, forms = _FIXED[op]
        rough = 1e-15 if op == "hardsigmoid" else 0.0  # a slope of 1/6 is not a float
        return Scalar(op, shape.function, slope, curvature, kinks, forms, shape, rough, _PIECES.get(op, ()))
    if op == "leaky_relu":
        a = float(attributes.get("negative_slope", 0.01))
        sign = 1.0 if a <= 1.0 else -1.0  # the larger of the two lines below 1, the smaller above
        forms = ((sign, -sign * a, 0.0), (sign, -sign, 0.0))
        return Scalar(
            op, shape.function, max(1.0, abs(a)), 0.0, (0.0,), forms, shape, pieces=((a, 0.0), (1.0, 0.0))
        )
    if op == "hardtanh":
        low, high = float(attributes.get("min_val", -1.0)), float(attributes.get("max_val", 1.0))
        forms = ((1.0, 0.0, -low), (-1.0, 0.0, high))
        pieces = ((0.0, low), (1.0, 0.0), (0.0, high))
        return Scalar(op, shape.function, 1.0, 0.0, (low, high), forms, shape, pieces=pieces)
    if op == "softshrink":
        width = float(attributes.get("lambd", 0.5))
        forms = ((1.0, -1.0, width), (-1.0, 1.0, width))
        pieces = ((1.0, width), (0.0, 0.0), (1.0, -width))
        return Scalar(op, shape.function, 1.0, 0.0, (-width, width), forms, shape, pieces=pieces)
    if op == "softplus":
        return _softplus(attributes, shape)
    return _exponential(op, attributes, shape)


def _softplus(attributes: Mapping[str, Any], shape: Profile) -> Scalar:
    beta, threshold = float(attributes.get("beta", 1.0)), float(attributes.get("threshold", 20.0))

    def function(z: Tensor) -> Tensor:
        return (z * beta).clamp_min(0.0) / beta + torch.log1p(torch.exp(-(z * beta).abs())) / beta

    gap = math.log1p(math.exp(-threshold)) / beta * (1 + 1e-9)
    return Scalar("softplus", function, 1.0, beta / 4, (), ((1.0, 0.0, 0.0), (1.0, -1.0, gap)), shape, gap)


def _exponential(op: str, attributes: Mapping[str, Any], shape: Profile) -> Scalar:
    """scale·z on the right, scale·alpha·(e^{rate·z} − 1) on the left."""
    alpha, scale, rate = 1.0, 1.0, 1.0
    if op == "selu":
        scale, alpha = shape.right.slope, -shape.left.offset / shape.right.slope
    elif op == "celu":
        alpha = float(attributes.get("alpha", 1.0))
        rate = 1.0 / alpha
    else:
        alpha = float(attributes.get("alpha", 1.0))
        scale = float(attributes.get("scale", 1.0))
        rate = float(attributes.get("input_scale", 1.0))
    slope = max(abs(scale), abs(scale * alpha * rate)) * (1 + 1e-12)
    curvature = abs(scale * alpha) * rate * rate * (1 + 1e-12)
    forms: tuple[tuple[float, float, float], ...] = ()
    if alpha >= 0 and scale > 0 and rate > 0:
        floor = scale * alpha * (1 + 1e-12)
        # Below 0 the curve dips under its right-hand line by at most what its tangent allows.
        dip = 0.0 if alpha * rate <= 1.0 else scale * (alpha - (1 + math.log(alpha * rate)) / rate)
        forms = ((1.0, 0.0, floor), (1.0, -scale, max(0.0, dip) * (1 + 1e-9) + 1e-12))
    return Scalar(op, shape.function, slope, curvature, (0.0,), forms, shape)
