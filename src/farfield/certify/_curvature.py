"""How curved an activation is: what a chord of it can miss.

An activation is written σ(x) = h(x) + Σ κ·relu(x − k): its kinks, and a part h whose second derivative is bounded.
On [m − r, m + r] a chord of h misses at most ½·sup|h″|·r², and the line through its ends moved by half of what it
misses at m is off by ½·|miss| + sup|h‴|·r³/(9√3). Towards ±∞, σ stays within a constant of
slope·x on either side, and within ``tail(s)`` of slope·x + offset beyond |x| = s.

The numbers are closed forms or maxima of smooth one-variable functions rounded up in the third digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from farfield.growth import profile

__all__ = ["Curvature", "curvature"]

Envelope: TypeAlias = Callable[[Tensor], Tensor]
Attributes: TypeAlias = Mapping[str, Any]
_TURN = 1.0 / math.sqrt(2.0)


@dataclass(frozen=True, slots=True)
class Curvature:
    """What a chord of an activation can miss.

    Parameters
    ----------
    kinks
        (place k, change of slope κ).
    second
        sup |h″|; 0 for a piecewise-linear function, ∞ where σ jumps and only its range is used.
    envelope
        r ↦ sup of |h″| over |x| ≥ r, not increasing; ``None`` where ``second`` is all that is known.
    third, rough
        sup |h‴| away from the points where h″ jumps.
    remainder
        Range over ℝ of σ(x) − (left slope)·x for x < 0, σ(x) − (right slope)·x for x ≥ 0.
    tail
        s ↦ sup over |x| ≥ s of |σ(x) − slope·x − offset|, not increasing, s ≥ 0.
    defect, defect_from
        σ differs from the described function by at most ``defect``, and only from here on.
    """

    kinks: tuple[tuple[float, float], ...] = ()
    second: float = 0.0
    envelope: Envelope | None = None
    third: float = math.inf
    rough: tuple[float, ...] = ()
    remainder: tuple[float, float] = (0.0, 0.0)
    tail: Envelope | None = None
    defect: float = 0.0
    defect_from: float = math.inf


def _beyond(point: float, size: float) -> Envelope:
    """``size`` up to a point, then nothing."""
    return lambda s: torch.where(s >= point, torch.zeros_like(s), torch.full_like(s, size))


def _elu(alpha: float, scale: float, input_scale: float) -> Curvature:
    steep = scale * alpha * input_scale
    floor = scale * alpha
    return Curvature(
        kinks=() if steep == scale else ((0.0, scale - steep),),
        second=abs(steep * input_scale),
        envelope=lambda r: abs(steep * input_scale) * torch.exp(-input_scale * r),
        third=abs(steep * input_scale**2),
        rough=(0.0,),
        remainder=(min(-floor, 0.0), max(-floor, 0.0)),
        tail=lambda s: abs(floor) * torch.exp(-input_scale * s),
    )


def _steps(r: Tensor, first: float, second: float, third: float) -> Tensor:
    """A bound that steps down at 4 and at 6.5."""
    return torch.where(r >= 6.5, third, torch.where(r >= 4.0, second, torch.full_like(r, first)))


def _gelu(attributes: Attributes) -> Curvature:
    if attributes.get("approximate", "none") == "tanh":
        return Curvature(
            second=0.806,
            envelope=lambda r: _steps(r, 0.806, 0.006, 1e-9),
            third=0.81,
            remainder=(-0.1701, 0.0),
            tail=lambda s: _steps(s, 0.1701, 2e-4, 1e-9),
        )
    root = 1.0 / math.sqrt(2 * math.pi)
    return Curvature(
        second=0.798,
        envelope=lambda r: root * (2.0 + r * r) * torch.exp(-0.5 * r * r),
        third=0.782,
        remainder=(-0.17, 0.0),
        tail=lambda s: root * torch.exp(-0.5 * s * s),
    )


def _softplus(attributes: Attributes) -> Curvature:
    beta, threshold = float(attributes.get("beta", 1.0)), float(attributes.get("threshold", 20.0))
    drop = math.log1p(math.exp(-threshold)) / beta
    return Curvature(
        second=0.25 * beta,
        envelope=lambda r: beta * torch.exp(-beta * r),
        third=0.0963 * beta * beta,
        remainder=(0.0, max(math.log(2.0) / beta, 0.0) * (1 + 1e-9)),
        tail=lambda s: torch.exp(-beta * s) / beta,
        # torch computes the identity from the threshold on: everything said holds up to this drop.
        defect=drop,
        defect_from=threshold / beta * (1 - 1e-9),
    )


def _hardtanh(attributes: Attributes) -> Curvature:
    low, high = float(attributes.get("min_val", -1.0)), float(attributes.get("max_val", 1.0))
    wide = max(abs(low), abs(high))
    return Curvature(
        kinks=((low, 1.0), (high, -1.0)), remainder=(low, high), tail=_beyond(wide, high - low + 2 * wide)
    )


def _softshrink(attributes: Attributes) -> Curvature:
    lambd = float(attributes.get("lambd", 0.5))
    return Curvature(
        kinks=((-lambd, -1.0), (lambd, 1.0)), remainder=(-lambd, lambd), tail=_beyond(lambd, lambd)
    )


def _threshold(attributes: Attributes) -> Curvature:
    point, value = float(attributes["threshold"]), float(attributes["value"])
    ends = (0.0, value, value - point, -abs(point), abs(point))
    return Curvature(
        kinks=((point, 1.0),) if point == value else (),
        second=0.0 if point == value else math.inf,
        remainder=(min(ends), max(ends)),
        tail=_beyond(abs(point) * (1 + 1e-15) + 1e-300, max(ends) - min(ends)),
    )


def _sigmoidal(
    second: float, envelope: Envelope, third: float, tail: Envelope, low: float, high: float
) -> Curvature:
    return Curvature(second=second, envelope=envelope, third=third, remainder=(low, high), tail=tail)


_ERF = _sigmoidal(
    0.968,
    lambda r: torch.where(r < _TURN, 0.968, (4 / math.sqrt(math.pi)) * r * torch.exp(-r * r)),
    2.2568,
    lambda s: torch.exp(-s * s),
    -1.0,
    1.0,
)
_LOGISTIC = _sigmoidal(0.09623, lambda r: torch.exp(-r), 0.12501, lambda s: torch.exp(-s), 0.0, 1.0)

_TABLE: dict[str, Callable[[Attributes], Curvature]] = {
    "relu": lambda a: Curvature(kinks=((0.0, 1.0),)),
    "leaky_relu": lambda a: Curvature(kinks=((0.0, 1.0 - float(a.get("negative_slope", 0.01))),)),
    "abs": lambda a: Curvature(kinks=((0.0, 2.0),)),
    "elu": lambda a: _elu(
        float(a.get("alpha", 1.0)), float(a.get("scale", 1.0)), float(a.get("input_scale", 1.0))
    ),
    "selu": lambda a: _elu(1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0),
    "celu": lambda a: _elu(float(a.get("alpha", 1.0)), 1.0, 1.0 / float(a.get("alpha", 1.0))),
    "gelu": _gelu,
    "silu": lambda a: Curvature(
        second=0.5,
        envelope=lambda r: (2.0 + r) * torch.exp(-r),
        third=0.309,
        remainder=(-0.27847, 0.0),
        tail=lambda s: s.clamp_min(1.0) * torch.exp(-s.clamp_min(1.0)),
    ),
    "mish": lambda a: Curvature(
        second=0.645,
        envelope=lambda r: (3.0 + 2.0 * r) * torch.exp(-r),
        third=0.592,
        remainder=(-0.30885, 0.0),
        tail=lambda s: s.clamp_min(1.0) * torch.exp(-s.clamp_min(1.0)),
    ),
    "softplus": _softplus,
    "softsign": lambda a: Curvature(
        second=2.0,
        envelope=lambda r: 2.0 * (1.0 + r) ** -3,
        third=6.0,
        rough=(0.0,),
        remainder=(-1.0, 1.0),
        tail=lambda s: 1.0 / (1.0 + s),
    ),
    "sigmoid": lambda a: _LOGISTIC,
    "tanh": lambda a: _sigmoidal(
        0.76981, lambda r: 8.0 * torch.exp(-2.0 * r), 2.0001, lambda s: 2.0 * torch.exp(-2.0 * s), -1.0, 1.0
    ),
    "erf": lambda a: _ERF,
    "erfc": lambda a: _sigmoidal(
        0.968, _ERF.envelope or torch.exp, 2.2568, lambda s: torch.exp(-s * s), 0.0, 2.0
    ),
    "atan": lambda a: _sigmoidal(
        0.64953,
        lambda r: 2.0 * r.clamp_min(1e-3) ** -3,
        2.0001,
        lambda s: 1.0 / s.clamp_min(0.5),
        -math.pi / 2,
        math.pi / 2,
    ),
    "hardtanh": _hardtanh,
    "hardsigmoid": lambda a: Curvature(
        kinks=((-3.0, 1 / 6), (3.0, -1 / 6)), remainder=(0.0, 1.0), tail=_beyond(3.0, 1.0)
    ),
    "hardswish": lambda a: Curvature(
        kinks=((-3.0, -0.5), (3.0, -0.5)),
        second=0.33334,
        third=0.0,
        rough=(-3.0, 3.0),
        remainder=(-0.376, 0.0),
        tail=_beyond(3.0, 0.376),
    ),
    "logsigmoid": lambda a: Curvature(
        second=0.25,
        envelope=lambda r: torch.exp(-r),
        third=0.0963,
        remainder=(-0.69315, 0.0),
        tail=lambda s: torch.exp(-s),
    ),
    "tanhshrink": lambda a: _sigmoidal(
        0.76981, lambda r: 8.0 * torch.exp(-2.0 * r), 2.0001, lambda s: 2.0 * torch.exp(-2.0 * s), -1.0, 1.0
    ),
    "softshrink": _softshrink,
    "hardshrink": lambda a: Curvature(
        second=math.inf,
        remainder=(-float(a.get("lambd", 0.5)), float(a.get("lambd", 0.5))),
        tail=_beyond(float(a.get("lambd", 0.5)) * (1 + 1e-15) + 1e-300, float(a.get("lambd", 0.5))),
    ),
    "threshold": _threshold,
    "sign": lambda a: Curvature(second=math.inf, remainder=(-1.0, 1.0), tail=_beyond(1e-300, 1.0)),
    "sin": lambda a: Curvature(second=1.0, third=1.0, remainder=(-1.0, 1.0)),
    "cos": lambda a: Curvature(second=1.0, third=1.0, remainder=(-1.0, 1.0)),
    **{
        name: (lambda a: Curvature(second=math.inf, remainder=(-1.0, 1.0)))
        for name in ("floor", "ceil", "round", "trunc")
    },
}


def curvature(op: str, attributes: Attributes) -> Curvature:
    """What a chord of this activation can miss.

    An activation the table does not know has ``second = ∞``: only its range and its shape are used.

    Examples
    --------
    >>> curvature("relu", {}).kinks
    ((0.0, 1.0),)
    >>> curvature("tanh", {}).second
    0.76981
    """
    if op in _TABLE:
        return _TABLE[op](attributes)
    known = profile(op, attributes)
    return Curvature(second=math.inf, remainder=(known.lo, known.hi))
