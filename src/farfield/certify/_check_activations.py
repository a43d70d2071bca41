"""The checker's own table of activations: slope, curvature between kinks, range, lines at ±∞."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farfield.certify._check_values import (
    EVALUATION,
    TINY,
    Array,
    CertificateError,
    U,
)

__all__ = ["Activation", "activation"]


@dataclass(frozen=True)
class Activation:
    """One scalar function.

    Parameters
    ----------
    function
        σ in float64, right to ``EVALUATION``.
    slope, second, third
        sup|σ′|, sup|σ″| between the kinks, sup|σ‴| away from ``rough``.
    kinks, rough
        Where σ′ jumps (σ″ does for ``rough``).
    pieces
        (slope, intercept) between the kinks of a piecewise linear function.
    low, high
        Range.
    turn
        Where a function that falls and then rises has its minimum.
    tails
        Slope and offset of the lines σ approaches on the left and on the right.
    away
        s ↦ a bound of |σ(x) − line| for |x| ≥ s, never rising.
    rest
        Range of σ(x) − slope·x over both sides of 0.
    above, below
        (m, k): σ(z) ≥ m·z − k, σ(z) ≤ m·z + k for every z.
    defect
        What the model's function may differ from this one.
    wavy
        Neither monotone nor with one minimum: its range is all that is used.
    """

    function: Callable[[Array], Array]
    slope: float
    second: float
    third: float = math.inf
    kinks: tuple[float, ...] = ()
    rough: tuple[float, ...] = ()
    pieces: tuple[tuple[float, float], ...] = ()
    low: float = -math.inf
    high: float = math.inf
    turn: float | None = None
    tails: tuple[tuple[float, float], tuple[float, float]] = ((0.0, 0.0), (1.0, 0.0))
    away: Callable[[Array], Array] | None = None
    rest: tuple[float, float] = (-math.inf, math.inf)
    above: tuple[tuple[float, float], ...] = ()
    below: tuple[tuple[float, float], ...] = ()
    defect: float = 0.0
    wavy: bool = False

    @property
    def homogeneous(self) -> bool:
        """σ(tz) = tσ(z) for t ≥ 0."""
        return bool(self.pieces) and self.kinks == (0.0,) and all(c == 0.0 for _, c in self.pieces)

    def image(self, lo: Array, hi: Array) -> tuple[Array, Array]:
        """A range that contains σ([lo, hi]), entrywise."""
        if self.wavy:
            return np.full_like(lo, self.low), np.full_like(hi, self.high)
        ends = [np.clip(e, -1e150, 1e150) for e in (lo, hi)]
        values = [self.function(e) for e in ends]
        slack = [
            EVALUATION * (1 + np.abs(e) + np.abs(v)) + self.defect for e, v in zip(ends, values, strict=True)
        ]
        low = np.minimum(values[0] - slack[0], values[1] - slack[1])
        high = np.maximum(values[0] + slack[0], values[1] + slack[1])
        if self.turn is not None:
            inside = (lo <= self.turn + 1e-3) & (hi >= self.turn - 1e-3)
            low = np.where(inside, self.low, low)
        low = np.where(np.isneginf(lo) | np.isposinf(hi), np.minimum(low, self.low), low)
        high = np.where(np.isneginf(lo) | np.isposinf(hi), self.high, high)
        if math.isfinite(self.low):
            low = np.maximum(low, self.low)
        return low, np.minimum(high, self.high) if math.isfinite(self.high) else high

    def true_form(self, a: float, b: float, c: float) -> bool:
        """Whether a·σ(z) + b·z + c ≥ 0 for every z: the table has a line that says so."""
        if a == 0.0:
            return b == 0.0 and c >= 0.0
        lines = self.above if a > 0 else self.below
        return any(b == -a * m and c >= abs(a) * k for m, k in lines)


def _torch(function: Callable[..., Tensor], **options: Any) -> Callable[[Array], Array]:
    def apply(z: Array) -> Array:
        made: Array = function(torch.from_numpy(np.ascontiguousarray(z)), **options).numpy()
        return made

    return apply


def _step(point: float, before: float, after: float = 0.0) -> Callable[[Array], Array]:
    return lambda s: np.where(s >= point, after, before)


def _linear(
    pieces: tuple[tuple[float, float], ...],
    kinks: tuple[float, ...],
    function: Callable[[Array], Array],
    **rest: Any,
) -> Activation:
    """A piecewise linear function; its lines at ±∞ are its first and last piece."""
    reach = max(abs(k) for k in kinks)
    steep = max(abs(m) for m, _ in pieces)
    gap = max(abs(c) for _, c in pieces) + 2 * steep * reach
    tails = (pieces[0], pieces[-1])
    return Activation(
        function, steep, 0.0, 0.0, kinks, kinks, pieces, tails=tails, rest=(-gap, gap),
        away=_step(reach, 2 * gap), **rest,
    )  # fmt: skip


def _bump(
    function: Callable[[Array], Array],
    slope: float,
    second: float,
    third: float,
    low: float,
    turn: float,
    over_line: float,
    away: Callable[[Array], Array],
) -> Activation:
    """Gelu and its kin: a valley below 0, close to max(z, 0)."""
    return Activation(
        function, slope, second, third, low=-low, turn=turn, rest=(-max(low, over_line), 0.0), away=away,
        above=((0.0, low), (1.0, over_line)),
    )  # fmt: skip


def _squash(
    function: Callable[[Array], Array],
    slope: float,
    second: float,
    third: float,
    low: float,
    high: float,
    away: Callable[[Array], Array],
    rough: tuple[float, ...] = (),
    falling: bool = False,
) -> Activation:
    """Bounded and monotone."""
    tails = ((0.0, high), (0.0, low)) if falling else ((0.0, low), (0.0, high))
    return Activation(
        function, slope, second, third, rough=rough, low=low, high=high, tails=tails, rest=(low, high), away=away,
        above=((0.0, -low),), below=((0.0, high),),
    )  # fmt: skip


def _exponential(alpha: float, scale: float, rate: float, function: Callable[[Array], Array]) -> Activation:
    """scale·z on the right, scale·alpha·(e^{rate·z} − 1) on the left."""
    if min(alpha, scale, rate) <= 0:
        raise CertificateError(
            f"An exponential unit with alpha {alpha}, scale {scale} can't be re-checked independently."
        )
    steep, floor = scale * alpha * rate, scale * alpha * (1 + 8 * U)
    dip = max(0.0, alpha - (1 + math.log(alpha * rate)) / rate) if alpha * rate > 1 else 0.0
    return Activation(
        function, max(scale, steep) * (1 + 8 * U), steep * rate * (1 + 8 * U), steep * rate**2 * (1 + 8 * U),
        kinks=(0.0,), rough=(0.0,), low=-floor, tails=((0.0, -scale * alpha), (scale, 0.0)), rest=(-floor, 0.0),
        away=lambda s: floor * np.exp(-rate * s) * (1 + 1e-12) + 1e-15 * floor,
        above=((0.0, floor), (scale, scale * dip * (1 + 1e-10) + 1e-13)),
    )  # fmt: skip


def _softplus(beta: float, threshold: float) -> Activation:
    if beta <= 0:
        raise CertificateError(f"softplus with beta {beta} can't be re-checked independently.")
    gap = math.log1p(math.exp(-threshold)) / beta * (1 + 1e-12)
    return Activation(
        lambda z: np.logaddexp(0.0, beta * z) / beta, 1.0, beta / 4, 0.09623 * beta**2, low=0.0,
        rest=(0.0, math.log(2.0) / beta * (1 + 1e-12)), away=lambda s: np.exp(-beta * s) / beta * (1 + 1e-12),
        above=((0.0, 0.0), (1.0, 0.0)), defect=gap,
    )  # fmt: skip


def activation(op: str, attributes: Mapping[str, Any]) -> Activation | None:
    """The row of the table for an operator, ``None`` where there is none.

    Derivatives are closed forms or maxima of one smooth function of one variable, rounded up; tests scan them.

    Examples
    --------
    >>> activation("tanh", {}).true_form(1.0, 0.0, 1.0), activation("tanh", {}).true_form(1.0, 0.0, 0.9)
    (True, False)
    """
    value: Callable[[str, float], float] = lambda key, default: float(attributes.get(key, default))  # noqa: E731
    if op == "leaky_relu":
        a = value("negative_slope", 0.01)
        lines = ((a, 0.0), (1.0, 0.0))
        sides = {"above": lines} if a <= 1 else {"below": lines}
        low = 0.0 if a <= 0 else -math.inf
        return _linear(
            lines, (0.0,), lambda z: np.where(z > 0, z, a * z), low=low, turn=0.0 if a < 0 else None, **sides
        )
    if op == "hardtanh":
        low, high = value("min_val", -1.0), value("max_val", 1.0)
        return _linear(
            ((0.0, low), (1.0, 0.0), (0.0, high)), (low, high), lambda z: np.clip(z, low, high), low=low, high=high,
            above=((0.0, -low),), below=((0.0, high),),
        )  # fmt: skip
    if op == "softshrink":
        w = value("lambd", 0.5)
        return _linear(
            ((1.0, w), (0.0, 0.0), (1.0, -w)), (-w, w), lambda z: np.sign(z) * np.maximum(np.abs(z) - w, 0.0),
            above=((1.0, w),), below=((1.0, w),),
        )  # fmt: skip
    if op == "softplus":
        return _softplus(value("beta", 1.0), value("threshold", 20.0))
    if op == "elu":
        alpha, scale, rate = value("alpha", 1.0), value("scale", 1.0), value("input_scale", 1.0)
        unit: Callable[[Array], Array] = lambda z: np.where(  # noqa: E731
            z > 0, scale * z, scale * alpha * np.expm1(rate * np.minimum(z, 0.0))
        )
        return _exponential(alpha, scale, rate, unit)
    if op == "selu":
        return _exponential(
            1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0, _torch(torch.selu)
        )
    if op == "celu":
        alpha = value("alpha", 1.0)
        return _exponential(alpha, 1.0, 1.0 / alpha, _torch(torch.celu, alpha=alpha))
    if op == "gelu" and attributes.get("approximate", "none") == "tanh":
        gelu = _torch(torch.nn.functional.gelu, approximate="tanh")
        return _bump(gelu, 1.12901, 0.798, 0.78, 0.17005, -0.7525, 0.17005, _GELU_AWAY)
    return _TABLE.get(op)


def _gaussian_tail(s: Array) -> Array:
    return np.where(s >= 1, np.exp(-0.5 * s * s), 0.1701)


def _logistic_tail(s: Array) -> Array:
    clear = np.maximum(s, 1.0)
    return np.where(s >= 1, clear * np.exp(-clear) * (1 + 1e-12) + TINY, 0.37)


_GELU_AWAY = _step(7.0, 0.1701, 1e-9)
_nn = torch.nn.functional
_TABLE: Mapping[str, Activation] = {
    "relu": _linear(
        ((0.0, 0.0), (1.0, 0.0)), (0.0,), lambda z: np.maximum(z, 0.0), low=0.0, above=((0.0, 0.0), (1.0, 0.0))
    ),
    "abs": _linear(((-1.0, 0.0), (1.0, 0.0)), (0.0,), np.abs, low=0.0, turn=0.0, above=((-1.0, 0.0), (1.0, 0.0))),
    "hardsigmoid": _linear(
        ((0.0, 0.0), (1 / 6, 0.5), (0.0, 1.0)), (-3.0, 3.0), lambda z: np.clip(z / 6 + 0.5, 0.0, 1.0), low=0.0,
        high=1.0, above=((0.0, 0.0),), below=((0.0, 1.0),), defect=1e-15,
    ),
    "hardswish": Activation(
        lambda z: z * np.clip(z / 6 + 0.5, 0.0, 1.0), 1.5, 0.33334, 0.0, (-3.0, 3.0), (-3.0, 3.0), low=-0.375,
        turn=-1.5, rest=(-0.375, 0.0), away=_step(3.0, 0.3751), above=((0.0, 0.375), (1.0, 0.375)),
    ),
    "gelu": _bump(_torch(_nn.gelu), 1.12891, 0.798, 0.78, 0.16998, -0.7518, 0.16998, _gaussian_tail),
    "silu": _bump(_torch(_nn.silu), 1.09985, 0.5001, 0.3083, 0.278465, -1.2785, 0.278465, _logistic_tail),
    "mish": _bump(
        _torch(_nn.mish), 1.0886, 0.6443, 0.5886, 0.308844, -1.1924, 0.1404, lambda s: 2 * _logistic_tail(s)
    ),
    "tanh": _squash(np.tanh, 1.0, 0.76981, 2.0, -1.0, 1.0, lambda s: 2.0 * np.exp(-2.0 * s) * (1 + 1e-12)),
    "sigmoid": _squash(_torch(torch.sigmoid), 0.25, 0.09623, 0.125, 0.0, 1.0, lambda s: np.exp(-s) * (1 + 1e-12)),
    "erf": _squash(_torch(torch.erf), 1.12838, 0.96789, 2.25676, -1.0, 1.0, lambda s: np.exp(-s * s) * (1 + 1e-12)),
    "erfc": _squash(
        _torch(torch.erfc), 1.12838, 0.96789, 2.25676, 0.0, 2.0, lambda s: np.exp(-s * s) * (1 + 1e-12), falling=True
    ),
    "atan": _squash(
        np.arctan, 1.0, 0.64952, 2.0, -1.5707963267949, 1.5707963267949, lambda s: 1 / np.maximum(s, 0.5)
    ),
    "softsign": _squash(
        lambda z: z / (1 + np.abs(z)), 1.0, 2.0, 6.0, -1.0, 1.0, lambda s: 1 / (1 + s), rough=(0.0,)
    ),
    "logsigmoid": Activation(
        lambda z: -np.logaddexp(0.0, -z), 1.0, 0.25, 0.09623, high=0.0, tails=((1.0, 0.0), (0.0, 0.0)),
        rest=(-0.6931472, 0.0), away=lambda s: np.exp(-s) * (1 + 1e-12), below=((0.0, 0.0), (1.0, 0.0)),
    ),
    "tanhshrink": Activation(
        lambda z: z - np.tanh(z), 1.0, 0.76981, 2.0, tails=((1.0, 1.0), (1.0, -1.0)), rest=(-1.0, 1.0),
        away=lambda s: 2.0 * np.exp(-2.0 * s) * (1 + 1e-12), above=((1.0, 1.0),), below=((1.0, 1.0),),
    ),
    "sin": Activation(
        np.sin, 1.0, 1.0, 1.0, low=-1.0, high=1.0, above=((0.0, 1.0),), below=((0.0, 1.0),), wavy=True,
        tails=((0.0, 0.0), (0.0, 0.0)), rest=(-1.0, 1.0),
    ),
    "cos": Activation(
        np.cos, 1.0, 1.0, 1.0, low=-1.0, high=1.0, above=((0.0, 1.0),), below=((0.0, 1.0),), wavy=True,
        tails=((0.0, 0.0), (0.0, 0.0)), rest=(-1.0, 1.0),
    ),
}  # fmt: skip
