"""Scalar functions by their far ends: the table behind the growth and the jet of every activation.

A :class:`Profile` says how f behaves towards −∞ and +∞ (slope, offset, how fast it gets there), its range,
its shape and its jumps. Everything else about an activation follows from these few numbers, so adding one is
one entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Profile", "Tail", "profile", "profile_names"]

INF = math.inf
Remainder: TypeAlias = Literal["exact", "flat", "algebraic", "bounded"]
Shape: TypeAlias = Literal["increasing", "decreasing", "valley", "other"]

SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
GELU_VALLEY, GELU_TANH_VALLEY = -0.7517915246935645, -0.7524614220710161
SILU_VALLEY, MISH_VALLEY = -1.278464542761074, -1.1924312145154954


@dataclass(frozen=True, slots=True)
class Tail:
    """f(v) = slope·v + offset + remainder towards one end.

    ``remainder`` is zero from some point on (``exact``), smaller than every power (``flat``), O(1/v)
    (``algebraic``), or only O(1) (``bounded``: oscillation, rounding).
    """

    slope: float
    offset: float
    remainder: Remainder = "exact"


@dataclass(frozen=True, slots=True)
class Profile:
    """A scalar function f: ℝ → ℝ that stays within a constant of a line towards either end.

    Parameters
    ----------
    function
        f on tensors.
    left, right
        Its ends.
    lo, hi
        Its range on ℝ.
    shape
        ``valley`` functions decrease up to ``valley`` and increase from there; ``other`` claims nothing.
    valley
        The minimiser; its value is ``lo``.
    jumps
        Points of discontinuity; ``"everywhere"`` functions have a bounded remainder instead.
    saturates
        f(±∞) makes sense (an infinite argument gives the value of the tail).
    homogeneous
        f(v) is exactly slope·v on either side of 0.
    """

    function: Callable[[Tensor], Tensor]
    left: Tail
    right: Tail
    lo: float = -INF
    hi: float = INF
    shape: Shape = "increasing"
    valley: float = 0.0
    jumps: tuple[float, ...] = ()
    saturates: bool = True
    homogeneous: bool = False

    def __call__(self, value: float) -> float:
        """F at one number."""
        return float(self.function(torch.tensor(value, dtype=torch.float64)))

    def end(self, side: Literal["left", "right"]) -> float:
        """Lim f at one end of the line."""
        tail = self.left if side == "left" else self.right
        if tail.slope == 0.0:
            return tail.offset
        return math.copysign(INF, tail.slope if side == "right" else -tail.slope)

    def image(self, lo: float, hi: float) -> tuple[float, float]:
        """An interval that contains f([lo, hi]); tight for monotone and valley shapes, up to rounding."""
        if self.shape == "other":
            return self.lo, self.hi
        at_lo = self(lo) if math.isfinite(lo) else self.end("left" if lo < 0 else "right")
        at_hi = self(hi) if math.isfinite(hi) else self.end("right" if hi > 0 else "left")
        low, high = min(at_lo, at_hi), max(at_lo, at_hi)
        slack = 0.0
        if self.shape == "valley":
            slack = 1e-14
            if lo <= self.valley + 1e-6 and hi >= self.valley - 1e-6:
                low = self.lo
        low = low if math.isinf(low) else low - 4e-15 * abs(low) - slack
        high = high if math.isinf(high) else high + 4e-15 * abs(high) + slack
        return max(low, self.lo), min(high, self.hi)


Attributes: TypeAlias = Mapping[str, Any]
_IDENTITY = Tail(1.0, 0.0)
_ZERO = Tail(0.0, 0.0)
_FLAT_ZERO = Tail(0.0, 0.0, "flat")
_FLAT_IDENTITY = Tail(1.0, 0.0, "flat")


def _leaky(slope: float) -> Profile:
    return Profile(
        lambda x: torch.where(x > 0, x, slope * x),
        Tail(slope, 0.0),
        _IDENTITY,
        lo=0.0 if slope <= 0 else -INF,
        shape="increasing" if slope >= 0 else "valley",
        homogeneous=True,
    )


def _exponential_unit(alpha: float, scale: float, input_scale: float) -> Profile:
    """scale·x on the right, scale·alpha·(e^{input_scale·x} − 1) on the left."""
    ordinary = alpha >= 0 and scale > 0 and input_scale > 0
    floor = -scale * alpha
    if not ordinary:
        left = Tail(0.0, floor, "flat") if input_scale > 0 else Tail(0.0, 0.0, "bounded")
        if input_scale <= 0:
            raise ValueError(
                f"elu needs a positive input_scale to stay bounded on the left, got {input_scale}: register a growth "
                "rule for this variant."
            )
        lo = min(floor, 0.0) if scale > 0 else -INF
        hi = INF if scale > 0 else max(floor, 0.0)
        function = _elu_function(alpha, scale, input_scale)
        return Profile(function, left, Tail(scale, 0.0), lo=lo, hi=hi, shape="other")
    return Profile(
        _elu_function(alpha, scale, input_scale), Tail(0.0, floor, "flat"), Tail(scale, 0.0), lo=floor
    )


def _elu_function(alpha: float, scale: float, input_scale: float) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        return torch.where(x > 0, scale * x, scale * alpha * torch.expm1(input_scale * x.clamp_max(0.0)))

    return function


def _gelu(attributes: Attributes) -> Profile:
    approximate = attributes.get("approximate", "none")
    valley = GELU_TANH_VALLEY if approximate == "tanh" else GELU_VALLEY
    return Profile(
        lambda x: functional.gelu(x, approximate=approximate),
        _FLAT_ZERO,
        _FLAT_IDENTITY,
        lo=-0.1700407506 if approximate == "tanh" else -0.1699712075,
        shape="valley",
        valley=valley,
        saturates=False,
    )


def _softplus(attributes: Attributes) -> Profile:
    beta, threshold = float(attributes.get("beta", 1.0)), float(attributes.get("threshold", 20.0))
    if beta <= 0:
        raise ValueError(f"softplus needs beta > 0, got {beta}: register a growth rule for this variant.")
    # torch switches to the identity at beta·x = threshold, a drop of ln(1 + e^{-threshold})/beta: only for a
    # large threshold is the function increasing for every practical purpose, and even then not exactly.
    return Profile(
        lambda x: functional.softplus(x, beta=beta, threshold=threshold),
        _FLAT_ZERO,
        _IDENTITY,
        lo=0.0,
        shape="increasing" if math.log1p(math.exp(-threshold)) / beta < 1e-7 else "other",
        jumps=(threshold / beta,) if threshold < 15.0 else (),
    )


def _hardtanh(attributes: Attributes) -> Profile:
    low, high = float(attributes.get("min_val", -1.0)), float(attributes.get("max_val", 1.0))
    return Profile(lambda x: x.clamp(low, high), Tail(0.0, low), Tail(0.0, high), lo=low, hi=high)


def _softshrink(attributes: Attributes) -> Profile:
    lambd = float(attributes.get("lambd", 0.5))
    return Profile(lambda x: functional.softshrink(x, lambd), Tail(1.0, lambd), Tail(1.0, -lambd))


def _hardshrink(attributes: Attributes) -> Profile:
    lambd = float(attributes.get("lambd", 0.5))
    return Profile(lambda x: functional.hardshrink(x, lambd), _IDENTITY, _IDENTITY, jumps=(-lambd, lambd))


def _threshold(attributes: Attributes) -> Profile:
    point, value = float(attributes["threshold"]), float(attributes["value"])
    return Profile(
        lambda x: functional.threshold(x, point, value),
        Tail(0.0, value),
        _IDENTITY,
        lo=min(point, value),
        shape="increasing" if value <= point else "other",
        jumps=(point,) if value != point else (),
    )


def _rounding(function: Callable[[Tensor], Tensor]) -> Profile:
    tail = Tail(1.0, 0.0, "bounded")
    return Profile(function, tail, tail, saturates=False)


def _saturating(
    function: Callable[[Tensor], Tensor], low: float, high: float, remainder: Remainder = "flat"
) -> Profile:
    return Profile(function, Tail(0.0, low, remainder), Tail(0.0, high, remainder), lo=low, hi=high)


def _oscillating(function: Callable[[Tensor], Tensor]) -> Profile:
    tail = Tail(0.0, 0.0, "bounded")
    return Profile(function, tail, tail, lo=-1.0, hi=1.0, shape="other", saturates=False)


_TABLE: dict[str, Callable[[Attributes], Profile]] = {
    "relu": lambda a: Profile(torch.relu, _ZERO, _IDENTITY, lo=0.0, homogeneous=True),
    "leaky_relu": lambda a: _leaky(float(a.get("negative_slope", 0.01))),
    "elu": lambda a: _exponential_unit(
        float(a.get("alpha", 1.0)), float(a.get("scale", 1.0)), float(a.get("input_scale", 1.0))
    ),
    "selu": lambda a: _exponential_unit(SELU_ALPHA, SELU_SCALE, 1.0),
    "celu": lambda a: _exponential_unit(float(a.get("alpha", 1.0)), 1.0, 1.0 / float(a.get("alpha", 1.0))),
    "gelu": _gelu,
    "silu": lambda a: Profile(
        functional.silu,
        _FLAT_ZERO,
        _FLAT_IDENTITY,
        lo=-0.2784645428,
        shape="valley",
        valley=SILU_VALLEY,
        saturates=False,
    ),
    "mish": lambda a: Profile(
        functional.mish,
        _FLAT_ZERO,
        _FLAT_IDENTITY,
        lo=-0.3088434131,
        shape="valley",
        valley=MISH_VALLEY,
        saturates=False,
    ),
    "softplus": _softplus,
    "softsign": lambda a: Profile(
        functional.softsign,
        Tail(0.0, -1.0, "algebraic"),
        Tail(0.0, 1.0, "algebraic"),
        lo=-1.0,
        hi=1.0,
        saturates=False,
    ),
    "sigmoid": lambda a: _saturating(torch.sigmoid, 0.0, 1.0),
    "tanh": lambda a: _saturating(torch.tanh, -1.0, 1.0),
    "erf": lambda a: _saturating(torch.erf, -1.0, 1.0),
    "erfc": lambda a: Profile(
        torch.erfc, Tail(0.0, 2.0, "flat"), _FLAT_ZERO, lo=0.0, hi=2.0, shape="decreasing"
    ),
    "atan": lambda a: _saturating(torch.atan, -math.pi / 2, math.pi / 2, "algebraic"),
    "hardtanh": _hardtanh,
    "hardsigmoid": lambda a: _saturating(functional.hardsigmoid, 0.0, 1.0, "exact"),
    "hardswish": lambda a: Profile(
        functional.hardswish, _ZERO, _IDENTITY, lo=-0.375, shape="valley", valley=-1.5, saturates=False
    ),
    "logsigmoid": lambda a: Profile(functional.logsigmoid, _FLAT_IDENTITY, _FLAT_ZERO, hi=0.0),
    "tanhshrink": lambda a: Profile(
        lambda x: x - torch.tanh(x), Tail(1.0, 1.0, "flat"), Tail(1.0, -1.0, "flat"), shape="other"
    ),
    "softshrink": _softshrink,
    "hardshrink": _hardshrink,
    "threshold": _threshold,
    "abs": lambda a: Profile(torch.abs, Tail(-1.0, 0.0), _IDENTITY, lo=0.0, shape="valley", homogeneous=True),
    "sign": lambda a: Profile(torch.sign, Tail(0.0, -1.0), Tail(0.0, 1.0), lo=-1.0, hi=1.0, jumps=(0.0,)),
    "sin": lambda a: _oscillating(torch.sin),
    "cos": lambda a: _oscillating(torch.cos),
    "floor": lambda a: _rounding(torch.floor),
    "ceil": lambda a: _rounding(torch.ceil),
    "round": lambda a: _rounding(torch.round),
    "trunc": lambda a: _rounding(torch.trunc),
}


def profile_names() -> tuple[str, ...]:
    """Operators described by a profile, sorted."""
    return tuple(sorted(_TABLE))


def profile(op: str, attributes: Attributes) -> Profile:
    """The profile of an activation with these parameters.

    Examples
    --------
    >>> gate = profile("softplus", {})
    >>> gate.left.slope, gate.right.slope, gate.lo
    (0.0, 1.0, 0.0)
    """
    return _TABLE[op](attributes)
