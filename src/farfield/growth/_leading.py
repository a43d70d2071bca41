"""Decisions at infinity: which coefficient of a jet leads, with which sign, and where rounding leaves that open."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.growth._jet import TOLERANCE, UNTRACED, Jet, add, aligned, constant, scale, select

__all__ = ["Lead", "gap_to_winner", "lead", "maximum", "maximum_over", "minimum", "winner_over"]

INF = math.inf


@dataclass(frozen=True, slots=True)
class Lead:
    """The first coefficient, from the highest power down, that is certainly not zero.

    Parameters
    ----------
    power
        Its power, −∞ where no coefficient is certain.
    sign
        Its sign, 0 where none is certain.
    limit
        Where none is certain: the entry is known to be o(λ^limit) only (up to rounding). −∞ means that the
        entry is exactly 0.
    """

    power: Tensor
    sign: Tensor
    limit: Tensor

    @property
    def certain(self) -> Tensor:
        """A coefficient was found."""
        return self.sign != 0

    @property
    def zero(self) -> Tensor:
        """The entry vanishes identically."""
        return (self.sign == 0) & (self.limit == -INF)


@torch.no_grad()
def lead(jet: Jet) -> Lead:
    """Leading power and sign of every entry.

    A coefficient leads when |c| > TOLERANCE × its rounding error. One that is not exactly zero but within its
    error ends the search in doubt: the entry is then only known up to that power. Exact zeros with no error
    are passed over.

    Parameters
    ----------
    jet
        A real jet.
    """
    floor = jet.full_floor()
    power = torch.full_like(floor, -INF)
    sign = torch.zeros_like(floor)
    limit = floor.clone()
    searching = torch.ones_like(floor, dtype=torch.bool)
    for p, value, error in zip(jet.powers, jet.values, jet.errors, strict=True):
        here = searching & (floor <= p)
        certain = here & (value.abs() > TOLERANCE * error)
        vague = here & ~certain & (error > 0)
        power = torch.where(certain, p, power)
        sign = torch.where(certain, value.to(torch.float64).sign(), sign)
        limit = torch.where(vague, p, limit)
        searching = searching & ~(certain | vague)
    return Lead(power, sign, limit)


def difference(a: Jet, b: Jet) -> Jet:
    """The jet a − b; exactly 0 where one entry is a copy of the other."""
    result = add(a, scale(b, -1.0))
    if a.origin is None or b.origin is None:
        return result
    one, other = torch.broadcast_tensors(a.origin, b.origin)
    same = (one == other) & (one != UNTRACED)
    if not bool(same.any()):
        return result
    return select(same, constant(torch.zeros((), dtype=torch.float64, device=same.device)), result)


def maximum(a: Jet, b: Jet) -> Jet:
    """The larger of two, entry by entry; where they agree up to o(λ^limit), so does the result."""
    first = lead(difference(a, b))
    chosen = select(first.sign >= 0, a, b)
    return chosen.raised(torch.where(first.certain, -INF, first.limit))


def minimum(a: Jet, b: Jet) -> Jet:
    """The smaller of two, entry by entry."""
    return scale(maximum(scale(a, -1.0), scale(b, -1.0)), -1.0)


def take(jet: Jet, dim: int, start: int, length: int) -> Jet:
    """A stretch of one axis (counted from the front)."""
    return Jet(
        jet.powers,
        jet.values.narrow(dim + 1, start, length),
        jet.errors.narrow(dim + 1, start, length),
        jet.full_floor().narrow(dim, start, length),
        None if jet.origin is None else jet.origin.narrow(dim, start, length),
    )


def winner_over(jet: Jet, dim: int) -> tuple[Jet, Tensor]:
    """The largest entry along one axis, which is kept with length 1, and its index there.

    A knockout tournament of ⌈log₂ n⌉ rounds; where rounding cannot tell two entries apart, the value's floor
    says so and the index is that of either.
    """
    dim %= jet.ndim
    index = torch.arange(jet.shape[dim], device=jet.values.device)
    index = index.reshape([-1 if d == dim else 1 for d in range(jet.ndim)]).expand(jet.shape)
    while (size := jet.shape[dim]) > 1:
        half = size // 2
        a, b = take(jet, dim, 0, half), take(jet, dim, half, half)
        first = lead(difference(a, b))
        ahead = first.sign >= 0
        best = select(ahead, a, b).raised(torch.where(first.certain, -INF, first.limit))
        places = torch.where(ahead, index.narrow(dim, 0, half), index.narrow(dim, half, half))
        if size % 2:
            best = join([best, take(jet, dim, size - 1, 1)], dim)
            places = torch.cat([places, index.narrow(dim, size - 1, 1)], dim)
        jet, index = best, places
    return jet, index


def maximum_over(jet: Jet, dim: int) -> Jet:
    """The largest entry along one axis, which is kept with length 1."""
    return winner_over(jet, dim)[0]


def gap_to_winner(jet: Jet, dim: int) -> tuple[Jet, Jet, Tensor]:
    """The gaps v − max v along one axis, the maximum and its index; the winner's own gap is exactly 0."""
    best, index = winner_over(jet, dim)
    own = torch.zeros(jet.shape, dtype=torch.bool, device=index.device).scatter(dim, index, True)
    gap = difference(jet, best)
    nothing = constant(torch.zeros((), dtype=torch.float64, device=index.device))
    return select(own, nothing, gap), best, index


def join(jets: list[Jet], dim: int) -> Jet:
    """Concatenation along one axis (counted from the front)."""
    powers, spread = aligned(jets)
    origins = [jet.origin for jet in jets if jet.origin is not None]
    return Jet(
        powers,
        torch.cat([values for values, _ in spread], dim + 1),
        torch.cat([errors for _, errors in spread], dim + 1),
        torch.cat([jet.full_floor() for jet in jets], dim),
        None if len(origins) < len(jets) else torch.cat(origins, dim),
    )


def spread_floor(floor: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The highest floor along the given axes, kept with length 1: what a sum over them can claim."""
    return floor.amax(dims, keepdim=True) if dims and floor.ndim else floor
