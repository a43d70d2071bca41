"""Jets of scatter: entries written, added, averaged, or the largest of those that arrive at one place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from farfield.growth._jet import (
    UNTRACED,
    Jet,
    add,
    aligned,
    as_real,
    constant,
    linear_map,
    multiply,
    scale,
    unknown_like,
)
from farfield.growth._jet import select as choose
from farfield.growth._leading import maximum
from farfield.growth._step import Step, jet_rule

__all__: list[str] = []

INF = math.inf
MOST_ROUNDS = 64
"""Entries that arrive at one place, of which the largest is found; more are not followed."""
MOST_PAIRS = 1 << 24
"""Pairs of entries that are compared to see which arrive together."""


@jet_rule("scatter")
def _scatter(step: Step) -> Jet:
    base, place = as_real(step.jet(0)), step.jet(1)
    reduce, dim = step.attributes.get("reduce"), int(step.attributes["dim"])
    if not place.is_constant or base.ndim == 0:
        return unknown_like(base)
    index = place.at(0.0).long()
    source = _trimmed(as_real(step.operand(2, "src")), index.shape)
    inside = bool(step.attributes.get("include_self", True))
    if reduce is None:
        return _written(base, index, source, dim)
    if reduce in ("add", "sum"):
        return add(_start(base, index, dim, inside), _summed(base, index, source, dim))
    if reduce == "mean":
        return _averaged(base, index, source, dim, inside, step.lowest)
    if reduce == "amax":
        return _largest(base, index, source, dim, inside)
    if reduce == "amin":
        return scale(_largest(scale(base, -1.0), index, scale(source, -1.0), dim, inside), -1.0)
    return unknown_like(base)


def _trimmed(jet: Jet, shape: torch.Size) -> Jet:
    """The part of the source that is read: as large as the index; a number is spread over it."""
    spread = jet.ndim == 0
    region = tuple(slice(0, n) for n in shape)

    def part(tensor: Tensor, lead: int) -> Tensor:
        if spread:
            return tensor.reshape(*tensor.shape[:lead], *(1,) * len(shape)).expand(
                *tensor.shape[:lead], *shape
            )
        return tensor[(slice(None),) * lead + region]

    origin = None if jet.origin is None or spread else part(jet.origin, 0)
    return Jet(jet.powers, part(jet.values, 1), part(jet.errors, 1), part(jet.full_floor(), 0), origin)


def _hit(base: Jet, index: Tensor, dim: int) -> Tensor:
    """The places where something arrives."""
    return torch.zeros(base.shape, dtype=torch.bool, device=index.device).scatter(dim, index, True)


def _start(base: Jet, index: Tensor, dim: int, inside: bool) -> Jet:
    """What is there before anything arrives: the base, or nothing where it is left out of the reduction."""
    if inside:
        return base
    nothing = constant(torch.zeros((), dtype=torch.float64, device=index.device))
    return choose(_hit(base, index, dim), nothing, base)


def _placed(base: Jet, source: Jet, put: Callable[[Tensor, Tensor], Tensor]) -> Jet:
    """A write, applied to every coefficient, every error, the floor and the origins."""
    powers, [(vb, eb), (vs, es)] = aligned([base, source])
    count = len(powers)
    origin = None if base.origin is None or source.origin is None else put(base.origin, source.origin)
    return Jet(
        powers,
        torch.stack([put(vb[k], vs[k]) for k in range(count)]),
        torch.stack([put(eb[k], es[k]) for k in range(count)]),
        put(base.full_floor(), source.full_floor()),
        origin,
    )


def _written(base: Jet, index: Tensor, source: Jet, dim: int) -> Jet:
    # Where several arrive at one place, torch does not say which stays: nothing is known there.
    visits = torch.zeros(base.shape, dtype=torch.float64, device=index.device)
    visits = visits.scatter_add(dim, index, torch.ones_like(index, dtype=torch.float64))
    result = _placed(base, source, lambda b, s: b.scatter(dim, index, s.contiguous()))
    return result.raised(torch.where(visits > 1, INF, -INF))


def _summed(base: Jet, index: Tensor, source: Jet, dim: int) -> Jet:
    """At every place, the sum of what arrives there."""

    def summed(tensor: Tensor) -> Tensor:
        return torch.zeros(base.shape, dtype=tensor.dtype, device=tensor.device).scatter_add(
            dim, index, tensor.contiguous()
        )

    floor = torch.full(base.shape, -INF, dtype=torch.float64, device=index.device)
    floor = floor.scatter_reduce(dim, index, source.full_floor().contiguous(), "amax")
    return linear_map(source, summed, summed, floor)


def _averaged(base: Jet, index: Tensor, source: Jet, dim: int, inside: bool, lowest: float) -> Jet:
    ones = torch.ones_like(index, dtype=torch.float64)
    count = torch.zeros(base.shape, dtype=torch.float64, device=index.device).scatter_add(dim, index, ones)
    total = add(_start(base, index, dim, inside), _summed(base, index, source, dim))
    count = count + 1.0 if inside else count.clamp_min(1.0)
    return multiply(total, constant(1.0 / count), lowest)


def _largest(base: Jet, index: Tensor, source: Jet, dim: int, inside: bool) -> Jet:
    """The largest that arrives at every place: one newcomer per place and round is compared with the best so far."""
    length = index.shape[dim]
    if index.numel() * length > MOST_PAIRS:
        return unknown_like(base)
    last = index.movedim(dim, -1)
    together = last.unsqueeze(-1) == last.unsqueeze(-2)
    turn = together.tril(-1).sum(-1).movedim(-1, dim)  # how many went before it to the same place
    rounds = int(turn.max()) + 1 if turn.numel() else 0
    if rounds > MOST_ROUNDS:
        return unknown_like(base)
    size = base.shape[dim]
    best = base if base.origin is not None else replace(base, origin=_untraced(base))
    if source.origin is None:
        source = replace(source, origin=_untraced(source))
    for number in range(rounds):
        # Those whose turn it is not go to a place beyond the end, which is cut off.
        target = torch.where(turn == number, index, size)

        def put(old: Tensor, new: Tensor, target: Tensor = target) -> Tensor:
            room = torch.cat([old, old.narrow(dim, 0, 1)], dim)
            return room.scatter(dim, target, new.contiguous()).narrow(dim, 0, size)

        arrived = put(
            torch.zeros(base.shape, dtype=torch.bool, device=index.device),
            torch.ones_like(index, dtype=torch.bool),
        )
        newcomer = _placed(best, source, put)
        better = newcomer if number == 0 and not inside else maximum(best, newcomer)
        best = choose(arrived, better, best)
    return best


def _untraced(jet: Jet) -> Tensor:
    return torch.full(jet.shape, UNTRACED, dtype=torch.long, device=jet.values.device)
