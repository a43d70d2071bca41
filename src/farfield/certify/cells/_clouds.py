"""Values over cells as affine functions with a remainder, many cells at once.

On a cell every value is a + Bδ ± ρ, where |δ_j| ≤ 1 are the offsets from the center in half-widths. Affine maps are
exact; curves and norms are expanded to first order with a remainder of second order, so halving a cell quarters what
the bound exceeds. Everything a float64 operation may lose is added to ρ: after any rule, the true value lies within
a + Bδ ± ρ in real arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.certify.cells._reach import Reach, swing
from farfield.gaussian import ScalarFunction

__all__ = ["Blame", "Clouds", "Map", "apply_curve", "apply_map", "apply_perspective"]

ROUND = 2.0**-53
SLIP = 2.0**-48
"""What a handful of operations, or one evaluation of an activation, may lose of the magnitudes involved."""
INFLATE = 1.0 + 2.0**-40
"""Makes up for rounding in a sum of up to 2¹² nonnegative terms."""
TINY = 1e-280
"""Above anything underflow can lose."""
CUBIC = 0.0642
"""1/(9√3): what a parabola through three equidistant points misses, per sup|h‴|·r³."""


@dataclass(frozen=True, slots=True)
class Clouds:
    """Values a + Bδ ± ρ of m entries over C cells.

    Parameters
    ----------
    values
        (1 + k, C, m): a, then the k columns of B.
    radius
        (C, m): ρ ≥ 0.
    """

    values: Float[Tensor, "k1 C m"]
    radius: Float[Tensor, "C m"]

    def spread(self, reach: Reach | None = None) -> Tensor:
        """max Bδ + ρ, rounded up, (C, m): Σ_j |B_j| + ρ where δ goes everywhere."""
        return (swing(self.values[1:], reach) + self.radius) * INFLATE

    def range(self, reach: Reach | None = None) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, rounded outwards, each (C, m)."""
        center, spread = self.values[0], self.spread(reach)
        spread = spread + (center.abs() + spread) * (4 * ROUND) + TINY
        return center - spread, center + spread


@dataclass(frozen=True, slots=True)
class Blame:
    """What a rule added to the remainder, (C, m), and how much each axis moves the entry, (k, C, m).

    Only where to cut a cell depends on it: nothing here need be rounded.
    """

    error: Float[Tensor, "C m"]
    leverage: Float[Tensor, "k C m"]

    def shares(self, weight: Float[Tensor, " m"]) -> Float[Tensor, "C k"]:
        """The error laid upon the axes, entries weighted."""
        part = torch.where(torch.isfinite(self.error), self.error, 1.0) * weight
        return torch.einsum("kcm,cm->ck", self.leverage, part / self.leverage.sum(0).clamp_min(TINY))


@dataclass(frozen=True, slots=True)
class Map:
    """An affine map between blocks with what its coefficients and its evaluation may lose.

    Parameters
    ----------
    sources
        Indices of the blocks that enter.
    weights, sizes, losses
        Per source (its size, out): coefficients, their absolute values, and the loss per unit of |value|.
    offset, offset_loss
        (out,).
    """

    sources: tuple[int, ...]
    weights: tuple[Tensor, ...]
    sizes: tuple[Tensor, ...]
    losses: tuple[Tensor, ...]
    offset: Tensor
    offset_loss: Tensor


def apply_map(affine: Map, sources: list[Clouds]) -> Clouds:
    """Σ A y + offset over cells: (C, m) → (C, out).

    Exact up to rounding: ρ' = |A|ρ + loss·(|a| + |B| + ρ), the loss counted by the largest entry of a block.
    """
    values = radius = None
    for cloud, weight, size, loss in zip(sources, affine.weights, affine.sizes, affine.losses, strict=True):
        k1, cells, width = cloud.values.shape
        made = (cloud.values.reshape(-1, width) @ weight).reshape(k1, cells, -1)
        whole = cloud.values.abs().sum(0) + cloud.radius
        if width <= 8:
            rough = torch.cat([cloud.radius, whole], 1) @ torch.cat([size, loss])
        else:
            rough = cloud.radius @ size
            rough.addcmul_(whole.amax(1, keepdim=True), loss.sum(0))
        values = made if values is None else values.add_(made)
        radius = rough if radius is None else radius.add_(rough)
    assert values is not None
    assert radius is not None
    values[0] += affine.offset
    radius.add_(affine.offset_loss).mul_(INFLATE).add_(TINY)
    return Clouds(values, radius)


@dataclass(frozen=True, slots=True)
class _Line:
    """σ(x) = slope·x + shift ± error on a range, each (C, m); ``size`` is the magnitude of what was added up.

    ``ends`` are σ's values at both ends of the range, where they were needed.
    """

    slope: Tensor
    shift: Tensor
    error: Tensor
    size: Tensor
    ends: tuple[Tensor, Tensor] | None = None


def _relu_line(low: Tensor, high: Tensor, place: float) -> tuple[Tensor, Tensor]:
    """relu(x − place) = slope·(x − place) + error ± error on [low, high]: the chord, lowered by half its gap."""
    low, high = low - place, high - place
    if place:
        pad = SLIP * (low.abs() + high.abs() + abs(place))
        low, high = low - pad, high + pad
    under, over = low.clamp_max(0.0), high.clamp_min(0.0)
    slope = over / (over - under).clamp_min(TINY)
    return slope, -0.5 * slope * under


def _line(f: ScalarFunction, low: Tensor, high: Tensor) -> _Line:
    """A line near the activation on [low, high]: its chord, moved halfway to what it misses."""
    middle = 0.5 * (low + high)
    slope, shift = torch.zeros_like(low), torch.zeros_like(low)
    error, size = torch.zeros_like(low), torch.zeros_like(low)
    for place, change in f.bends:
        part, gap = _relu_line(low, high, place)
        slope = slope + change * part
        shift = shift + (change * gap if not place else change * (gap - part * place))
        error = error + abs(change) * gap
        size = size + abs(change) * (gap + abs(place))
    if f.curvature == 0.0:
        slope = slope + f.left.slope
        # The line left of every kink; a tail is exact where nothing is curved.
        return _Line(slope, shift + f.left.offset, error, size + abs(f.left.offset))

    def smooth(x: Tensor) -> Tensor:
        value = f.curve(x)
        for place, change in f.bends:
            value = value - change * torch.relu(x - place)
        return value

    ends = smooth(torch.stack([low, middle, high]))
    half = 0.5 * (high - low) * (1 + SLIP)
    chord = (ends[2] - ends[0]) / (high - low).clamp_min(TINY)
    mean = 0.5 * (ends[0] + ends[2])
    miss = ends[1] - mean
    away = torch.maximum(low, -high).clamp_min(0.0)
    bend = half.square() * (0.5 * f.curvature)
    if f.curvature_beyond is not None:
        bend = torch.minimum(bend, half.square() * f.curvature_beyond(away) * 0.5)
    if math.isfinite(f.third):
        third = 0.5 * miss.abs() + CUBIC * f.third * half.square() * half
        for place in f.kinks:
            third = torch.where((low > place) | (high < place), third, math.inf)
        better = third < bend
        mean = torch.where(better, mean + 0.5 * miss, mean)
        bend = torch.where(better, third, bend)
    if f.roughness:
        bend = torch.where(high >= f.rough_from, bend + f.roughness, bend)
    size = size + ends.abs().sum(0) + low.abs() + high.abs() + (chord * middle).abs() + 1.0
    known = None if f.bends or f.smooth else (ends[0], ends[2])
    return _Line(slope + chord, shift + mean - chord * middle, error + bend, size, known)


def _along(argument: Clouds, slope: Tensor, shift: Tensor, error: Tensor, size: Tensor) -> Clouds:
    """slope·z + shift ± error, with what rounding may lose."""
    values = argument.values * slope
    whole = values.abs().sum(0)
    values[0] += shift
    radius = slope.abs() * argument.radius
    radius.add_(error).add_(whole.add_(shift.abs()).add_(size), alpha=SLIP).mul_(INFLATE).add_(TINY)
    return Clouds(values, radius)


def _smaller(first: Clouds, second: Clouds) -> Clouds:
    """Entry by entry whichever has the smaller remainder; what is not a number loses."""
    keep = first.radius < second.radius
    if bool(keep.all()):
        return first
    return Clouds(
        torch.where(keep, first.values, second.values), torch.where(keep, first.radius, second.radius)
    )


def _constant(low: Tensor, high: Tensor, k1: int) -> Clouds:
    """Any value between two ends, (C, m)."""
    middle = 0.5 * (low + high)
    values = middle.new_zeros(k1, *middle.shape)
    values[0] = torch.where(torch.isfinite(middle), middle, 0.0)
    radius = torch.where(torch.isfinite(middle), 0.5 * (high - low) * INFLATE, math.inf)
    return Clouds(values, radius + SLIP * middle.abs().nan_to_num(0.0) + TINY)


def apply_curve(
    f: ScalarFunction, argument: Clouds, low: Tensor | None = None, high: Tensor | None = None,
    reach: Reach | None = None,
) -> tuple[Clouds, Blame]:  # fmt: skip
    """σ of a value over cells, (C, m), and the error attributed to each axis.

    The chord of σ on the argument's range with its second-order miss, or the range of σ, whichever leaves the smaller
    remainder.

    Parameters
    ----------
    f
        The activation.
    argument
        Its argument.
    low, high
        (m,), what is known about the argument besides.
    reach
        How far offsets go, where that is less than everywhere.
    """
    bottom, top = argument.range(reach)
    if low is not None and high is not None:
        bottom = torch.maximum(bottom, torch.minimum(low, top))
        top = torch.minimum(top, torch.maximum(high, bottom))
    k1 = argument.values.shape[0]
    if math.isinf(f.slope):
        made = _constant(*f.image(bottom, top), k1)
        return made, Blame(made.radius, argument.values[1:].abs())
    line = _line(f, bottom, top)
    made = _along(argument, line.slope, line.shift, line.error, line.size)
    if not f.homogeneous:
        made = _smaller(made, _constant(*f.image(bottom, top, line.ends), k1))
    return made, Blame(line.error, argument.values[1:].abs())


def apply_perspective(f: ScalarFunction, argument: Clouds, time: Clouds) -> tuple[Clouds, Blame]:
    """t·σ(z/t) of a value over cells where t ≥ 0, (C, m), and the error attributed to each axis.

    Where t > 0 on all of the cell: σ(s) = αs + β ± e on the range of s = z/t, hence αz + βt ± e·t. Everywhere: the
    tails, slope·z + offset·t ± tail(|z|/t)·t on one side of 0, slope·z + t·remainder across it. Whichever leaves the
    smaller remainder.
    """
    if f.homogeneous:
        return apply_curve(f, argument)
    start, end = (bound.clamp_min(0.0) for bound in time.range())
    far = _tails(f, argument, time, end)
    inside = start > 0
    if not bool(inside.any()):
        return far, Blame(far.radius, argument.values[1:].abs() + time.values[1:].abs())
    # z = s₀t + rest for any s₀: near the center the rest is of first order.
    safe = torch.where(inside, start, 1.0)
    ratio = torch.where(inside, argument.values[0] / torch.where(inside, time.values[0], 1.0), 0.0)
    rest = argument.values - ratio * time.values
    loss = (argument.values.abs() + (ratio * time.values).abs()).sum(0) * (4 * ROUND)
    reach = (rest.abs().sum(0) + argument.radius + ratio.abs() * time.radius + loss) * INFLATE / safe
    reach = reach * INFLATE + SLIP * ratio.abs() + TINY
    low, high = ratio - reach, ratio + reach
    if math.isinf(f.slope):
        bottom, top = f.image(low, high)
        zero = torch.zeros_like(bottom)
        line = _Line(zero, 0.5 * (bottom + top), 0.5 * (top - bottom) * INFLATE, bottom.abs() + top.abs())
    else:
        line = _line(f, low, high)
    whole = (line.size + line.shift.abs()) * end
    near = _along(argument, line.slope, torch.zeros_like(line.shift), line.error * end, whole)
    near = _with_time(near, line.shift, time)
    near = Clouds(near.values, torch.where(inside, near.radius, math.inf))
    made = _smaller(near, far)
    error = torch.where(near.radius <= far.radius, line.error * end, far.radius)
    return made, Blame(error, argument.values[1:].abs() + (ratio * time.values[1:]).abs())


def _with_time(cloud: Clouds, factor: Tensor, time: Clouds) -> Clouds:
    """cloud + factor·t."""
    added = factor * time.values
    loss = (cloud.values.abs() + added.abs()).sum(0) * SLIP
    radius = (cloud.radius + factor.abs() * time.radius + loss) * INFLATE + TINY
    return Clouds(cloud.values + added, radius)


def _tails(f: ScalarFunction, argument: Clouds, time: Clouds, end: Tensor) -> Clouds:
    """t·σ(z/t) from the ends of σ alone."""
    low, high = argument.range()
    left, right = f.left, f.right
    bottom, top = f.remainder
    zero = torch.zeros_like(low)
    sided = (low > 0) | (high < 0)
    gate, gap = _relu_line(low, high, 0.0)
    bend = right.slope - left.slope
    slope = left.slope + bend * gate
    shift, offset = bend * gap, zero + 0.5 * (bottom + top)
    error = abs(bend) * gap + 0.5 * (top - bottom) * end + f.roughness * end
    if f.remainder_beyond is not None:
        away = torch.maximum(low, -high).clamp_min(0.0) / end.clamp_min(TINY)
        tail = f.remainder_beyond(away * (1 - SLIP)) * end + f.roughness * end
        close = sided & (tail < error)
        error = torch.where(close, tail, error)
        offset = torch.where(close, torch.where(low > 0, zero + right.offset, left.offset), offset)
        shift = torch.where(close, zero, shift)
    made = _along(argument, slope, shift, error, (abs(bottom) + abs(top)) * end)
    return _with_time(made, offset, time)
