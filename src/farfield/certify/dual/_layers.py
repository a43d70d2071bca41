"""Ranges of the arguments of deep layers, each from a dual over the layers before it.

A curve's range from norms and boxes alone is 6 times too wide one layer behind the first, 32 times two layers
behind, 110 times three (protein, four layers of 128). Here every argument z of a layer is bounded by
:mod:`farfield.certify.dual._groups` over the layers before, whose ranges have been made smaller already.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from farfield._budget import Clock
from farfield.certify.dual._dual import Multipliers
from farfield.certify.dual._groups import GroupDual, Objectives, search_groups
from farfield.certify.dual._problem import Ball, Curve, Problem

__all__ = ["LayerSearch", "layer_costs", "subproblem", "tightened"]

ALONE = 40
"""Up to this many variables every objective has a quadratic part of its own: it costs next to nothing."""
MOST = 300_000
"""Objectives times entries of the layers before, at most; larger layers keep their ranges.

Two layers of 512 are above: with ranges the bound was 4.2 times too wide after a minute, without them 2.6 times.
"""
SPREAD = 1e-5
"""Ranges are widened by this much of their width: multipliers are stored in single precision."""


@dataclass(frozen=True)
class LayerSearch:
    """Multipliers that bound curve ``target``: of every entry's z, then of every entry's −z, in the problem's units.

    ``curves`` and ``balls`` say which of the problem's they are about, in their order.
    """

    target: int
    curves: tuple[int, ...]
    inner: tuple[bool, ...]
    balls: tuple[int, ...]
    multipliers: Multipliers


def subproblem(problem: Problem, target: int) -> tuple[Problem, tuple[int, ...], tuple[int, ...]] | None:
    """(problem, curves, balls): z of a curve as the outputs of a problem of the curves before it.

    ``None`` where nothing but norms is before it, or where boxes are.
    """
    goal = problem.curves[target]
    used, needed = _used(goal), []
    for i in range(target - 1, -1, -1):
        columns = problem.curves[i].columns
        if columns is not None and bool(used[columns].any()):
            needed.append(i)
            used = used | _used(problem.curves[i])
    needed.reverse()
    if not needed or any(bool(used[b.columns].any()) for b in problem.boxes):
        return None
    inside = torch.zeros(problem.size, dtype=torch.bool)
    for i in needed:
        inside |= _used(problem.curves[i])
    variables = [i for i in needed if bool(inside[_columns(problem.curves[i])].any())]
    balls = [j for j, b in enumerate(problem.balls) if bool(used[b.columns].any())]
    kept = sorted(
        [*(_columns(problem.curves[i]) for i in variables), *(problem.balls[j].columns for j in balls)],
        key=lambda c: c.start,
    )
    pick = torch.cat([torch.arange(c.start, c.stop) for c in kept])
    places, begin = {}, 0
    for columns in kept:
        places[columns.start] = slice(begin, begin + columns.stop - columns.start)
        begin = places[columns.start].stop
    curves: list[Curve] = []
    last: list[Tensor | None] = []
    rough: list[Tensor | None] = []
    for i in needed:
        curve, columns = problem.curves[i], _columns(problem.curves[i])
        is_variable = i in variables
        curves.append(
            replace(
                curve,
                columns=places[columns.start] if is_variable else None,
                matrix=curve.matrix[:, pick],
                magnitude=curve.magnitude[:, pick],
            )
        )
        last.append(None if is_variable else goal.matrix[:, columns])
        rough.append(None if is_variable else goal.magnitude[:, columns])
    made: list[Ball] = [
        replace(problem.balls[j], columns=places[problem.balls[j].columns.start]) for j in balls
    ]
    small = Problem(
        begin, tuple(made), (), tuple(curves), goal.matrix[:, pick], goal.magnitude[:, pick],
        tuple(last), tuple(rough), goal.offset, goal.offset_magnitude,
        torch.zeros(0, begin, dtype=torch.float64), *torch.zeros(2, 0, dtype=torch.float64),
    )  # fmt: skip
    return small, tuple(needed), tuple(balls)


def layer_costs(problem: Problem) -> dict[int, int]:
    """Curve whose range is worth a search of its own → objectives times entries of the layers before."""
    found = {}
    for i, curve in enumerate(problem.curves):
        small = subproblem(problem, i)
        if small is not None:
            cost = 2 * curve.lo.numel() * sum(c.lo.numel() for c in small[0].curves)
            if cost <= MOST:
                found[i] = cost
    return found


def tightened(problem: Problem, clock: Clock) -> tuple[Problem, tuple[LayerSearch, ...]]:
    """The problem with smaller ranges of its deep curves, and the multipliers behind them.

    The clock is shared out evenly over the layers. What is found is proved by the checker, from the multipliers.
    """
    targets = list(layer_costs(problem))
    found: list[LayerSearch] = []
    for count, i in enumerate(targets):
        if clock.over:
            break
        small = subproblem(problem, i)
        assert small is not None
        part, curves, balls = small
        curve = problem.curves[i]
        entries = curve.lo.numel()
        weight = (curve.hi - curve.lo).clamp_min(1e-9).reciprocal()
        goals = Objectives.both_sides(part, weight, alone=part.size <= ALONE)
        bounds, multipliers = search_groups(GroupDual(part, goals), clock.share(1.0 / (len(targets) - count)))
        bound = bounds.reshape(2, entries)
        spread = SPREAD * (bound[0] + bound[1]).clamp_min(0.0)
        lo, hi = torch.maximum(curve.lo, -bound[1] - spread), torch.minimum(curve.hi, bound[0] + spread)
        if not bool((lo <= hi).all()):
            continue  # only rounding can cross them
        curves_now = list(problem.curves)
        curves_now[i] = replace(curve, lo=lo, hi=hi)
        problem = replace(problem, curves=tuple(curves_now))
        inner = tuple(c.columns is not None for c in part.curves)
        found.append(LayerSearch(i, curves, inner, balls, multipliers))
    return problem, tuple(found)


def _used(curve: Curve) -> Tensor:
    """Which variables a curve's argument depends on."""
    return (curve.matrix != 0).any(0)


def _columns(curve: Curve) -> slice:
    assert curve.columns is not None
    return curve.columns
