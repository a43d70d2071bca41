"""The checker's own table of activations.

Numbers are closed forms or extrema of one smooth function, found with 30 digits (mpmath) and rounded up in the sixth
to ninth digit; the tests scan them with mpmath. For example gelu: σ″ = φ(z)(2 − z²) is largest at 0, σ′ at √2, and σ
is least where Φ(z) = −zφ(z), at −0.75179. Piecewise linear functions have no numbers of their own: everything follows
from the line on the left and the kinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from farfield.certify.checker._values import EVALUATION, Array, CertificateError, MidRad, U, round_up

__all__ = ["CheckedCurve", "curve"]

Line: TypeAlias = tuple[float, float]
NEAR = 1e-9


@dataclass(frozen=True)
class CheckedCurve:
    """One scalar function σ, continuous.

    Parameters
    ----------
    function
        σ on float64 tensors; it and its derivative by autograd are right to ``EVALUATION``.
    slopes
        inf σ′ and sup σ′.
    second
        sup|σ″| between the kinks.
    kinks
        (place, jump of σ′).
    low, high
        inf σ and sup σ.
    turn
        Where a function that falls and then rises has its minimum.
    tails
        (slope, offset) of the lines that σ approaches on the left and on the right.
    rest
        Range of σ(z) − slope·z, the slope being that of z's own side.
    settled
        Beyond this |z|, σ minus its line is monotone.
    above, below
        (m, k): σ(z) ≥ m·z − k, σ(z) ≤ m·z + k for every z.
    defect
        What the model's function may differ from this one.
    piecewise
        (slope, intercept) between the kinks, of a piecewise linear function.
    wavy
        Neither monotone nor with one minimum.
    """

    function: Callable[[Tensor], Tensor]
    slopes: tuple[float, float]
    second: float = 0.0
    kinks: tuple[tuple[float, float], ...] = ()
    low: float = -math.inf
    high: float = math.inf
    turn: float | None = None
    tails: tuple[Line, Line] = ((0.0, 0.0), (1.0, 0.0))
    rest: tuple[float, float] = (-math.inf, math.inf)
    settled: float = 0.0
    above: tuple[Line, ...] = ()
    below: tuple[Line, ...] = ()
    defect: float = 0.0
    piecewise: tuple[Line, ...] = ()
    wavy: bool = False

    @property
    def steepest(self) -> float:
        """sup|σ′|."""
        return max(abs(s) for s in self.slopes)

    def at(self, z: Array) -> Array:
        """σ(z), right to ``EVALUATION`` and ``defect``."""
        made: Array = self.function(torch.from_numpy(np.ascontiguousarray(z))).numpy()
        return made

    def value(self, z: MidRad) -> MidRad:
        """σ of numbers known up to a radius."""
        y = self.at(z.mid)
        slack = EVALUATION * (1 + np.abs(z.mid) + np.abs(y)) + self.defect
        return MidRad(y, round_up(self.steepest * z.rad + slack))

    def derivative(self, z: Array) -> Array:
        """σ′(z) in float64, from one side at a kink."""
        with torch.enable_grad():
            point = torch.from_numpy(np.ascontiguousarray(z)).clone().requires_grad_(True)
            (made,) = torch.autograd.grad(self.function(point).sum(), point)
        found: Array = made.numpy()
        return found

    def image(self, lo: Array, hi: Array) -> tuple[Array, Array]:
        """A range that contains σ([lo, hi]), entrywise."""
        if self.wavy:
            return np.full_like(lo, self.low), np.full_like(hi, self.high)
        ends = [np.clip(e, -1e150, 1e150) for e in (lo, hi)]
        values = [self.at(e) for e in ends]
        slack = [
            EVALUATION * (1 + np.abs(e) + np.abs(v)) + self.defect for e, v in zip(ends, values, strict=True)
        ]
        far = (lo < -1e150, hi > 1e150)  # no end of that size is evaluated
        if self.slopes[0] >= 0 or self.slopes[1] <= 0:  # monotone: each bound comes from one end
            first, last = (0, 1) if self.slopes[0] >= 0 else (1, 0)
            low, high = values[first] - slack[first], values[last] + slack[last]
        else:
            low = np.minimum(values[0] - slack[0], values[1] - slack[1])
            high = np.maximum(values[0] + slack[0], values[1] + slack[1])
            far = (far[0] | far[1],) * 2
            first, last = 0, 1
        if self.turn is not None:
            low = np.where((lo <= self.turn + 1e-3) & (hi >= self.turn - 1e-3), self.low, low)
        low = np.where(far[first], self.low - self.defect, low)
        high = np.where(far[last], self.high + self.defect, high)
        if math.isfinite(self.low):
            low = np.maximum(low, self.low - self.defect)
        return low, np.minimum(high, self.high + self.defect) if math.isfinite(self.high) else high

    def slope_between(self, start: MidRad, lo: Array, hi: Array) -> MidRad:
        """Every (σ(z) − σ(z₀))/(z − z₀) for z₀ within ``start``, which lies in [lo, hi], and z in [lo, hi].

        σ is a smooth part, whose slopes from z₀ stay within second·|z − z₀|/2 of its derivative there, plus a ramp
        jump·max(z − kink, 0) for every kink; a ramp's slope from z₀ rises with z and with z₀.
        """
        first, last = start.span
        reach = np.maximum(np.maximum(hi - first, last - lo), 0.0)
        at = start.mid.copy()
        for place, _ in self.kinks:  # a derivative is not asked for at a kink
            close = np.abs(at - place) < NEAR
            at = np.where(close, place + NEAR * (1 + abs(place)), at)
        smooth = self.derivative(at)
        for place, jump in self.kinks:
            smooth = smooth - np.where(at > place, jump, 0.0)
        loose = self.second * (reach / 2 + start.rad + 2 * NEAR) + EVALUATION * (1 + np.abs(smooth))
        low, high = smooth - loose, smooth + loose
        for place, jump in self.kinks:
            a, b, z0, z1 = lo - place, hi - place, first - place, last - place
            least = np.where(z0 > 0, np.where(a < 0, z0 / np.where(a < 0, z0 - a, 1.0), 1.0), 0.0)
            most = np.where(z1 > 0, 1.0, np.where(b > 0, b / np.where(b > 0, b - z1, 1.0), 0.0))
            least, most = least - 8 * U, most + 8 * U
            low = low + np.minimum(jump * least, jump * most)
            high = high + np.maximum(jump * least, jump * most)
        spare = 16 * U * (1 + self.steepest)
        low, high = np.clip(low, *self.slopes) - spare, np.clip(high, *self.slopes) + spare
        return MidRad.between(low, high)

    def intercept(self, lo: Array, hi: Array) -> MidRad:
        """σ(z) − zσ′(z) over [lo, hi]: its derivative is −zσ″(z), and a kink at k adds up to |k·jump|."""
        at = lo / 2 + hi / 2
        for place, _ in self.kinks:
            at = np.where(np.abs(at - place) < NEAR, place + NEAR * (1 + abs(place)), at)
        y, steep = self.at(at), self.derivative(at)
        top = np.maximum(np.abs(lo), np.abs(hi)) + 2 * NEAR
        rad = self.second * top * ((hi - lo) / 2 + 2 * NEAR) + 4 * EVALUATION * (1 + top) * (
            1 + self.steepest
        )
        for place, jump in self.kinks:
            rad = rad + np.where((lo <= place + 2 * NEAR) & (hi >= place - 2 * NEAR), abs(place * jump), 0.0)
        return MidRad(y - at * steep, round_up(rad))

    @property
    def hinge(self) -> CheckedCurve:
        """The lines at ±∞, without their offsets."""
        (left, _), (right, _) = self.tails
        return _linear((left, 0.0), (0.0, right - left))

    @property
    def homogeneous(self) -> bool:
        """σ(tz) = tσ(z) for t ≥ 0."""
        return len(self.kinks) == 1 and all(c == 0.0 for _, c in self.piecewise) and bool(self.piecewise)

    def rest_beyond(self, lo: Array, hi: Array) -> tuple[Array, Array]:
        """Range of σ(z) − slope·z over [lo, hi] where that is on one side of 0, far out; ``rest`` elsewhere."""
        least, most = np.full_like(lo, self.rest[0]), np.full_like(hi, self.rest[1])
        for side, nearest, (slope, offset) in (
            (lo > self.settled, lo, self.tails[1]),
            (hi < -self.settled, hi, self.tails[0]),
        ):
            z = np.clip(np.where(side, nearest, 0.0), -1e6, 1e6)
            met = self.at(z) - slope * z
            loose = 8 * EVALUATION * (1 + np.abs(z) * (1 + abs(slope)))
            least = np.where(side, np.minimum(met, offset) - loose, least)
            most = np.where(side, np.maximum(met, offset) + loose, most)
        return least - self.defect, most + self.defect

    def true_form(self, a: float, b: float, c: float) -> float | None:
        """The least c′ ≥ c with a·σ(z) + b·z + c′ ≥ 0 for every z, if it is c itself but for rounding."""
        need = math.inf
        if self.piecewise:
            if a * self.piecewise[0][0] + b <= 0 <= a * self.piecewise[-1][0] + b:
                need = max(-a * float(self.at(np.array([k]))[0]) - b * k for k, _ in self.kinks)
        elif a == 0.0:
            need = 0.0 if b == 0.0 else math.inf
        else:
            lines = self.above if a > 0 else self.below
            need = min((abs(a) * k for m, k in lines if b == -a * m), default=math.inf)
        need += abs(a) * self.defect
        return max(c, need) + 1e-14 * (1 + abs(need)) if c >= need - 1e-9 * (1 + abs(need)) else None


def _linear(left: Line, *kinks: tuple[float, float], defect: float = 0.0) -> CheckedCurve:
    """A piecewise linear function from its line on the left and its kinks."""
    pieces = [left]
    for place, jump in kinks:
        slope, shift = pieces[-1]
        pieces.append((slope + jump, shift - jump * place))
    places = [place for place, _ in kinks]

    def function(z: Tensor) -> Tensor:
        made = pieces[0][0] * z + pieces[0][1]
        for place, (slope, shift) in zip(places, pieces[1:], strict=True):
            made = torch.where(z > place, slope * z + shift, made)
        return made

    def at(z: float) -> float:
        return float(function(torch.tensor(z, dtype=torch.float64)))

    ends = [at(k) for k in places]
    (first, start), (last, end) = pieces[0], pieces[-1]
    low = min(ends) if first <= 0 <= last else -math.inf
    high = max(ends) if last <= 0 <= first else math.inf
    rest = [start, end, at(0.0)] + [at(k) - (first if k < 0 else last) * k for k in places]
    slopes = [slope for slope, _ in pieces]
    return CheckedCurve(
        function, (min(slopes), max(slopes)), 0.0, kinks, low, high,
        places[int(np.argmin(ends))] if first < 0 < last else None, (pieces[0], pieces[-1]),
        (min(rest) - 1e-15 * abs(min(rest)), max(rest) + 1e-15 * abs(max(rest))), max(map(abs, places)),
        defect=defect, piecewise=tuple(pieces),
        wavy=any(a * b < 0 for a, b in pairwise(slopes)) and not first < 0 < last,
    )  # fmt: skip


def _bump(
    function: Callable[[Tensor], Tensor],
    slopes: tuple[float, float],
    second: float,
    turn: float,
    dip: float,
    dip_right: float,
) -> CheckedCurve:
    """Gelu and its kin: a valley below 0, close to max(z, 0); σ(z) ≥ −dip, σ(z) ≥ z − dip_right."""
    return CheckedCurve(
        function, slopes, second, low=-dip, turn=turn, rest=(-max(dip, dip_right), 0.0), settled=2.0,
        above=((0.0, dip), (1.0, dip_right)),
    )  # fmt: skip


def _squash(
    function: Callable[[Tensor], Tensor], steepest: float, second: float, low: float, high: float
) -> CheckedCurve:
    """Bounded and rising."""
    return CheckedCurve(
        function, (0.0, steepest), second, low=low, high=high, tails=((0.0, low), (0.0, high)), rest=(low, high),
        above=((0.0, -low),), below=((0.0, high),),
    )  # fmt: skip


def _exponential(alpha: float, scale: float, rate: float) -> CheckedCurve:
    """scale·z on the right, scale·alpha·(e^{rate·z} − 1) on the left."""
    if min(alpha, scale, rate) <= 0:
        raise CertificateError(
            f"The independent checker does not support elu with alpha {alpha}, scale {scale}."
        )
    steep, floor = scale * alpha * rate * (1 + 8 * U), scale * alpha * (1 + 8 * U)
    dip = max(0.0, alpha - (1 + math.log(alpha * rate)) / rate) if alpha * rate > 1 else 0.0
    return CheckedCurve(
        lambda z: torch.where(z > 0, scale * z, scale * alpha * torch.expm1(rate * z.clamp_max(0.0))),
        (0.0, max(scale, steep)), steep * rate * (1 + 8 * U), ((0.0, scale * (1 - alpha * rate)),), -floor,
        tails=((0.0, -scale * alpha), (scale, 0.0)), rest=(-floor, 0.0),
        above=((0.0, floor), (scale, scale * dip * (1 + 1e-12))),
    )  # fmt: skip


def _softplus(beta: float, threshold: float) -> CheckedCurve:
    if beta <= 0:
        raise CertificateError(f"The independent checker does not support softplus with beta {beta}.")
    return CheckedCurve(
        lambda z: torch.logaddexp(torch.zeros_like(z), beta * z) / beta, (0.0, 1.0), beta / 4, low=0.0,
        rest=(0.0, math.log(2.0) / beta * (1 + 1e-12)), above=((0.0, 0.0), (1.0, 0.0)),
        defect=math.log1p(math.exp(-threshold)) / beta * (1 + 1e-12),
    )  # fmt: skip


def curve(op: str, attributes: Mapping[str, Any]) -> CheckedCurve | None:
    """The row of the table for an operator, ``None`` where there is none.

    Examples
    --------
    >>> curve("tanh", {}).true_form(1.0, 0.0, 1.0) is None, curve("tanh", {}).true_form(1.0, 0.0, 0.9) is None
    (False, True)
    """
    value: Callable[[str, float], float] = lambda key, default: float(attributes.get(key, default))  # noqa: E731
    if op == "leaky_relu":
        a = value("negative_slope", 0.01)
        return _linear((a, 0.0), (0.0, 1.0 - a))
    if op == "hardtanh":
        low, high = value("min_val", -1.0), value("max_val", 1.0)
        return _linear((0.0, low), (low, 1.0), (high, -1.0)) if low < high else None
    if op == "softshrink":
        w = value("lambd", 0.5)
        return _linear((1.0, w), (-w, -1.0), (w, 1.0))
    if op == "softplus":
        return _softplus(value("beta", 1.0), value("threshold", 20.0))
    if op == "elu":
        return _exponential(value("alpha", 1.0), value("scale", 1.0), value("input_scale", 1.0))
    if op == "selu":
        return _exponential(1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)
    if op == "celu":
        return _exponential(value("alpha", 1.0), 1.0, 1.0 / value("alpha", 1.0))
    if op == "gelu" and attributes.get("approximate", "none") == "tanh":
        tanh = lambda z: functional.gelu(z, approximate="tanh")  # noqa: E731
        return _bump(tanh, (-0.1289931, 1.1289931), 0.7978847, -0.75246142, 0.170040752, 0.170040752)
    return _TABLE.get(op)


_HALF_PI = math.pi / 2 * (1 + 2 * U)
_TABLE: Mapping[str, CheckedCurve] = {
    "relu": _linear((0.0, 0.0), (0.0, 1.0)),
    "abs": _linear((-1.0, 0.0), (0.0, 2.0)),
    "hardsigmoid": _linear((0.0, 0.0), (-3.0, 1 / 6), (3.0, -1 / 6), defect=1e-15),
    "hardswish": CheckedCurve(
        functional.hardswish, (-0.5, 1.5), 0.33333334, ((-3.0, -0.5), (3.0, -0.5)), low=-0.375, turn=-1.5,
        rest=(-0.375, 0.0), settled=3.0, above=((0.0, 0.375), (1.0, 0.375)),
    ),
    "gelu": _bump(functional.gelu, (-0.1289042, 1.1289042), 0.7978846, -0.75179152, 0.1699712075, 0.1699712075),
    "silu": _bump(functional.silu, (-0.0998394, 1.0998394), 0.5, -1.2784645, 0.278464543, 0.278464543),
    "mish": _bump(functional.mish, (-0.1125262, 1.0884982), 0.6442047, -1.1924312, 0.3088434135, 0.1403029015),
    "tanh": _squash(torch.tanh, 1.0, 0.7698004, -1.0, 1.0),
    "sigmoid": _squash(torch.sigmoid, 0.25, 0.0962251, 0.0, 1.0),
    "erf": _squash(torch.erf, 1.1283792, 0.9678829, -1.0, 1.0),
    "erfc": CheckedCurve(
        torch.erfc, (-1.1283792, 0.0), 0.9678829, low=0.0, high=2.0, tails=((0.0, 2.0), (0.0, 0.0)), rest=(0.0, 2.0),
        above=((0.0, 0.0),), below=((0.0, 2.0),),
    ),
    "atan": _squash(torch.atan, 1.0, 0.6495191, -_HALF_PI, _HALF_PI),
    "softsign": _squash(functional.softsign, 1.0, 2.0, -1.0, 1.0),
    "logsigmoid": CheckedCurve(
        functional.logsigmoid, (0.0, 1.0), 0.25, high=0.0, tails=((1.0, 0.0), (0.0, 0.0)), rest=(-0.6931471806, 0.0),
        below=((0.0, 0.0), (1.0, 0.0)),
    ),
    "tanhshrink": CheckedCurve(
        functional.tanhshrink, (0.0, 1.0), 0.7698004, tails=((1.0, 1.0), (1.0, -1.0)), rest=(-1.0, 1.0),
        above=((1.0, 1.0),), below=((1.0, 1.0),),
    ),
    **{
        name: CheckedCurve(
            function, (-1.0, 1.0), 1.0, low=-1.0, high=1.0, tails=((0.0, 0.0), (0.0, 0.0)), rest=(-1.0, 1.0),
            settled=math.inf, above=((0.0, 1.0),), below=((0.0, 1.0),), wavy=True,
        )
        for name, function in (("sin", torch.sin), ("cos", torch.cos))
    },
}  # fmt: skip
