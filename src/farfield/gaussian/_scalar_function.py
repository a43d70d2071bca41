"""What is known of one scalar function σ: ℝ → ℝ, for every analysis that meets it in a network."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from farfield.gaussian._activation import ScalarMap, Tail

__all__ = ["ScalarFunction", "Shape"]

INF = math.inf
EVALUATION = 2.0**-48
"""What a few operations may lose of their result, and of min(|x|, 64) where they cancel (1 + erf x); further out
every function here is flat or a line."""
UNDERFLOW = 1e-300
"""Above anything underflow can lose."""
PLACE = 2.0**-50
"""Relative error of a stored place (threshold / beta)."""

Shape: TypeAlias = Literal["increasing", "decreasing", "valley", "other"]


@dataclass(frozen=True)
class ScalarFunction:
    """σ: ℝ → ℝ that stays within a constant of a line towards either end. Bounds are rounded outwards.

    ``function`` is what the operator computes. Where that has a small step (softplus at its threshold), ``smooth`` is
    the function without it, and kinks, bends, slope, curvature, third, half-planes and remainders speak of it.

    Parameters
    ----------
    name
        The operator.
    function
        σ on tensors.
    left, right
        Its tails.
    lo, hi
        Its range on ℝ.
    shape
        Monotone (but for the jumps), or ``valley``: falling up to ``valley`` and rising from there; ``other`` claims
        nothing.
    valley
        The minimizer, if the shape is ``valley``; its value is ``lo``.
    kinks
        Every point where σ is not analytic, sorted.
    bends
        (place, change of slope) where the slope jumps.
    jumps
        (place, limit from the left, limit from the right).
    slope, curvature, third
        sup|σ′|, and between the kinks sup|σ″| and sup|σ‴|; all ∞ for a function that is not continuous.
    half_planes
        (a, b, c) with a·σ(z) + b·z + c ≥ 0 for every z.
    pieces
        (slope, intercept) from left to right between the kinks, of a piecewise linear function.
    homogeneous
        σ(v) is exactly slope·v on either side of 0.
    saturates
        An infinite argument gives the limit of the tail, not nan.
    loss
        Relative error of ``function`` in float64, 0 where it rounds nothing; valleys, which are products of something
        large and something small, lose ``EVALUATION``·min(|x|, 64) besides.
    remainder
        Range over ℝ of σ(x) − slope·x, with the slope of the left tail for x < 0 and of the right one for x ≥ 0.
    curvature_beyond, remainder_beyond
        r ↦ bounds of |σ″| (but for the bends) and of |σ(x) − slope·x − offset| over |x| ≥ r; not increasing.
    smooth, roughness, rough_from
        |function − smooth| ≤ roughness, and both agree below ``rough_from``; the pieces are as close to it (a slope
        of 1/6 is not a float64).

    Examples
    --------
    >>> from farfield.gaussian import scalar_function
    >>> tanh = scalar_function("tanh")
    >>> tanh.slope, tanh.half_planes
    (1.0, ((1.0, 0.0, 1.0), (-1.0, 0.0, 1.0)))
    >>> scalar_function("softplus", {"beta": 2.0}).curvature
    0.5
    """

    name: str
    function: ScalarMap = field(repr=False)
    left: Tail
    right: Tail
    lo: float = -INF
    hi: float = INF
    shape: Shape = "increasing"
    valley: float = 0.0
    kinks: tuple[float, ...] = ()
    bends: tuple[tuple[float, float], ...] = ()
    jumps: tuple[tuple[float, float, float], ...] = ()
    slope: float = INF
    curvature: float = INF
    third: float = INF
    half_planes: tuple[tuple[float, float, float], ...] = ()
    pieces: tuple[tuple[float, float], ...] = ()
    homogeneous: bool = False
    saturates: bool = True
    loss: float = EVALUATION
    remainder: tuple[float, float] = (-INF, INF)
    curvature_beyond: ScalarMap | None = field(default=None, repr=False)
    remainder_beyond: ScalarMap | None = field(default=None, repr=False)
    smooth: ScalarMap | None = field(default=None, repr=False)
    roughness: float = 0.0
    rough_from: float = INF

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    @property
    def curve(self) -> ScalarMap:
        """``smooth`` where there is one, else ``function``."""
        return self.smooth or self.function

    @property
    def monotone(self) -> int:
        """1 where σ is non-decreasing on all of ℝ, −1 non-increasing, 0 neither or unknown."""
        sign = {"increasing": 1, "decreasing": -1}.get(self.shape, 0)
        return sign if all(sign * (after - before) >= 0 for _, before, after in self.jumps) else 0

    @property
    def positive(self) -> bool:
        """Whether σ > 0 everywhere: 0 is not attained where a tail alone comes close to it."""
        if self.lo != 0 or self.shape not in ("increasing", "decreasing"):
            return self.lo > 0
        tail = self.left if self.shape == "increasing" else self.right
        return tail.remainder in ("flat", "algebraic") and all(min(limits) > 0 for _, *limits in self.jumps)

    def limit(self, side: Literal["left", "right"]) -> float:
        """The limit towards one end of the line."""
        tail = self.left if side == "left" else self.right
        if tail.slope == 0.0:
            return tail.offset
        return math.copysign(INF, tail.slope if side == "right" else -tail.slope)

    def image(
        self, lo: Tensor, hi: Tensor, ends: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Entry by entry an interval that contains σ([lo, hi]); ends may be infinite.

        The values at both ends and around what lies between (the valley, falling jumps), rounded outwards, within
        the range; float64. All of the range where the shape is ``other``. ``ends`` are the values at both ends, where
        they have been computed.
        """
        if self.shape == "other":
            return torch.full_like(lo, self.lo), torch.full_like(hi, self.hi)
        first = self._at(lo) if ends is None else ends[0]
        last = ends[1] if ends else first if hi is lo else self._at(hi)
        low, high = torch.minimum(first, last), torch.maximum(first, last)
        for place, before, after in self.jumps:
            if after < before:
                room = PLACE * abs(place)
                inside = (lo <= place + room) & (hi >= place - room)
                low = torch.where(inside, low.clamp_max(after), low)
                high = torch.where(inside, high.clamp_min(before), high)
        if self.loss:
            far = torch.maximum(lo.abs(), hi.abs()).clamp_max(64.0)
            low, high = low - self._lost(low, far), high + self._lost(high, far)
        if self.shape == "valley":
            room = EVALUATION * abs(self.valley)
            inside = (lo <= self.valley + room) & (hi >= self.valley - room)
            low = torch.where(inside, self.lo, low)
        return low.clamp_min(self.lo), high.clamp_max(self.hi)

    def rough_image(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`image`, of the smooth function as well."""
        low, high = self.image(lo, hi)
        return low - self.roughness, high + self.roughness

    def _at(self, x: Tensor) -> Tensor:
        """σ(x), with the limits at ±∞."""
        finite = torch.isfinite(x)
        if bool(finite.all()):
            return self.function(x)
        # Two plain numbers would be float32.
        left, right = (x.new_tensor(self.limit(side)) for side in ("left", "right"))
        return torch.where(
            finite, self.function(torch.where(finite, x, 0.0)), torch.where(x < 0, left, right)
        )

    def _lost(self, value: Tensor, far: Tensor) -> Tensor:
        """What evaluation may have lost; a value of 0 at 0 is exact."""
        lost = self.loss * value.abs() + UNDERFLOW * (far > 0).to(far.dtype)
        if self.shape == "valley" or self.name == "tanhshrink":  # the operator's own x − tanh x cancels
            lost = lost + EVALUATION * far
        return torch.where(torch.isfinite(value), lost, 0.0)
