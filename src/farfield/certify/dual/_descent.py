"""The search for good multipliers: Adam on the dual, in rounds, the best point kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from farfield._budget import Budget, Clock, running
from farfield.certify.dual._coordinates import Coordinates
from farfield.certify.dual._dual import Dual, Multipliers, Objective, curve_multipliers, rounding_root
from farfield.certify.dual._groups import can_group, guess_single
from farfield.certify.dual._problem import Problem

__all__ = ["initial_multipliers", "optimize", "step_seconds"]

ROUNDS = ((0.25, 0.1, 0.0), (1.0, 0.08, 0.002))
"""(share of the budget at its end, learning rate, that of pairwise products) of each round.

Long strides without products first. Products in much longer steps than these throw the others off (decision 0040).
"""
BENDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Weights tried for the first guess."""
ROOM = 0.1
"""How far above 0 the lowest eigenvalue of H is kept at first, in units of what is on its diagonal."""
START_ROOM = 1e-3
"""The same for multipliers that have been searched already."""
SINGLE = 200
"""From this many variables on a search is in single precision; what it finds is proved in double precision."""
BETAS = (0.9, 0.99)
"""Adam's: with 0.999 one steep slope shortens a thousand steps."""
JUMP, OF_PROGRESS = 0.2, 0.02
"""A bound this much above the best one, in units of itself and of what has been gained, is a step gone wrong."""
SLOWER, FASTER = 0.8, 1.01
"""What a step gone wrong, and one that has not, do to the next one's length."""
WARM = 10
"""Steps of a round until they have their full length: Adam's first ones know no sizes yet."""


def initial_multipliers(problem: Problem, goal: Objective, forms: int, bend: float = 0.3) -> Multipliers:
    """A first guess, backwards through the curves: chord slopes, and squares that never outgrow what pays for them.

    With Θ ≥ T on every curve the guess is a product of spectral norms in disguise; ``bend`` weighs the first Θ.
    """
    m: Multipliers = {}
    start, arguments = problem.reference()
    pull = goal.linear.clone()
    curvature = torch.zeros(problem.size, problem.size, dtype=torch.float64)
    for i in range(len(problem.curves) - 1, -1, -1):
        curve = problem.curves[i]
        if curve.columns is None:
            s, t, _ = curve_multipliers(goal, curve, i, m)  # the objective's own
        else:
            s = pull[curve.columns].clone()
            t = m[f"t{i}"] = torch.full_like(s, _top(curvature[curve.columns, curve.columns]))
            m[f"e{i}"], m[f"s{i}"] = torch.zeros_like(s), s - 2 * t * start[curve.columns]
        width = (curve.hi - curve.lo).clamp_min(1e-12)
        lo, hi = (curve.scalar.curve(e * curve.unit) / curve.unit for e in (curve.lo, curve.hi))
        slope = s * (hi - lo) / width
        steep = curve.scalar.slope**2
        size = (s.abs() + 0.03 * float(s.abs().mean())) / width.clamp_max(1.0)
        theta = m[f"theta{i}"] = bend * size + steep * t + 1e-9
        m[f"r{i}"] = slope - 2 * theta * arguments[i]
        pull = pull + curve.matrix.T @ slope
        curvature = curvature + curve.matrix.T @ (m[f"theta{i}"][:, None] * curve.matrix)
    for j, box in enumerate(problem.boxes):
        t = m[f"bt{j}"] = torch.full_like(box.lo, _top(curvature[box.columns, box.columns]))
        m[f"bs{j}"] = pull[box.columns] - 2 * t * start[box.columns]
    kappa = []
    for ball in problem.balls:
        root = rounding_root(ball.gram)
        top = _top(root.T @ curvature[ball.columns, ball.columns] @ root)
        kappa.append(top + 0.5 * float((pull[ball.columns] @ root).norm()) / ball.radius)
    m["kappa"] = torch.tensor(kappa, dtype=torch.float64)
    m["omega"] = m["kappa"].clone()
    m["n"] = torch.zeros(forms, forms, dtype=torch.float64)
    m["room"] = torch.tensor(ROOM, dtype=torch.float64)
    return m


def _top(block: Tensor) -> float:
    return float(torch.linalg.matrix_norm(block, 2))


def optimize(
    problem: Problem,
    goal: Objective,
    *,
    time_budget: float | Budget | Clock,
    start: Multipliers | None = None,
    rounds: Sequence[tuple[float, float, float]] = ROUNDS,
    progress: Callable[[float, float], None] | None = None,
) -> tuple[Multipliers, float]:
    """Search multipliers that make the dual bound of an objective small.

    Parameters
    ----------
    problem, goal
        What is bounded.
    time_budget
        When to stop, in seconds or as a budget; a step is one evaluation of the dual and its gradient.
    start
        Multipliers to begin from; a first guess otherwise.
    rounds
        (share of the budget at its end, learning rate, that of pairwise products) of each.
    progress
        Called with the share of the budget used and the best bound.

    Returns
    -------
    tuple
        The best multipliers seen, with their shift written in, and the unrounded bound they give:
        :mod:`farfield.certify.dual._prove` turns multipliers into a bound that accounts for every rounding.
    """
    clock = running(time_budget)
    scale = _scale(goal)
    goal = goal.divided(scale)
    dual = Dual(problem, goal)
    if start is None:
        kept = _guess(dual, clock)
    else:
        kept = {"room": torch.tensor(START_ROOM, dtype=torch.float64)} | _times(start, 1.0 / scale)

    def report(best: float) -> None:
        if progress is not None:
            progress(1.0 - clock.left, best * scale)

    best, searched = math.inf, _searched(dual)
    for share, rate, product_rate in rounds:
        kept, best = _round(searched, kept, best, rate, product_rate, clock, share, report)
    if searched is not dual:
        kept, best = _in_double(dual, kept)
    return _times(kept, scale), best * scale


def step_seconds(problem: Problem, goal: Objective, clock: Clock) -> float:
    """About how long a step of a search takes; 0 where none can be taken."""
    goal = goal.divided(_scale(goal))
    dual = _searched(Dual(problem, goal))
    m = initial_multipliers(problem, goal, 0)
    m = {name: value.to(dual.dtype) for name, value in m.items() if name != "n"}
    dual.weigh(m)
    try:
        dual.slopes(m)  # the first one warms up
        begun = clock.elapsed
        dual.slopes(m)
    except ArithmeticError:
        return 0.0
    return clock.elapsed - begun


def _searched(dual: Dual) -> Dual:
    """The same in the precision that is searched."""
    if dual.problem.size < SINGLE:
        return dual
    return Dual(dual.problem.to(torch.float32), dual.goal.to(torch.float32))


def _times(m: Multipliers, factor: float) -> Multipliers:
    """The multipliers of so many times the objective."""
    return {name: value if name == "room" else factor * value for name, value in m.items()}


def _in_double(dual: Dual, m: Multipliers) -> tuple[Multipliers, float]:
    """(multipliers with their shift written in, bound) in double precision, of some found in single precision."""
    m = {name: value.double() for name, value in m.items()}
    dual.weigh(m)
    try:
        bound, moved, _ = dual.slopes(m)
    except ArithmeticError:
        return m, math.inf
    return moved, bound


def _round(
    dual: Dual,
    start: Multipliers,
    best: float,
    rate: float,
    product_rate: float,
    clock: Clock,
    until: float,
    progress: Callable[[float], None],
) -> tuple[Multipliers, float]:
    """Adam from ``start`` until a share of the clock, with a cosine schedule.

    Products move if they have a rate. Where the bound jumps up (the lowest eigenvalue of H has several directions,
    and a step may miss all but one) the search goes back to the best point, with shorter steps.
    """
    start = {name: value.to(dual.dtype) for name, value in start.items()}
    kept, still = start, start["n"]
    products = product_rate > 0 or bool(still.any())
    coordinates = Coordinates(dual, start)
    raw = coordinates.raw(start, products)
    rates = {name: product_rate if name == "n" else rate for name in raw}
    optimizer = torch.optim.Adam(
        [{"params": [raw[k]], "full": v} for k, v in rates.items()], betas=BETAS, fused=True
    )
    pace, first = 1.0, None
    begin, steps, least_room = 1.0 - clock.left, 0, math.log(100 * torch.finfo(dual.dtype).eps)
    while (used := 1.0 - clock.left) < until - 1e-12:
        clock.spend()
        steps += 1
        share = (used - begin) / (until - begin)
        for group in optimizer.param_groups:
            group["lr"] = (
                group["full"] * pace * (0.5 * (1 + math.cos(math.pi * share)) + 0.01) * min(1.0, steps / WARM)
            )
        current = coordinates.multipliers(raw)
        dual.weigh(current)
        try:
            found, moved, steep = dual.slopes(current)
        except ArithmeticError:
            if best == math.inf:
                break
            found = math.nan
        if found < best:
            best, kept = found, {"n": still} | moved
        first = max(best, found) if first is None else first
        if not found <= best + JUMP * abs(best - dual.goal.offset) + OF_PROGRESS * (first - best):
            for name, value in coordinates.raw(kept, products).items():
                raw[name].copy_(value)
            optimizer.state.clear()
            pace, steps = SLOWER * pace, 0
            continue
        pace = min(1.0, pace * FASTER)
        for name, slope in coordinates.slopes(raw, current, steep).items():
            raw[name].grad = slope
        optimizer.step()
        raw["room"].clamp_min_(least_room)
        if products:
            raw["n"].clamp_min_(0.0)
        progress(best)
    return kept, best


def _guess(dual: Dual, clock: Clock) -> Multipliers:
    """Where layers lie behind one another, a guess that knows y² = yz; else the best of a few weights."""
    problem, goal = dual.problem, dual.goal
    if can_group(problem):
        return guess_single(problem, goal, dual.count, clock)
    tried = (initial_multipliers(problem, goal, dual.count, bend) for bend in BENDS)
    return min(tried, key=lambda m: _worth(dual, m))


def _worth(dual: Dual, m: Multipliers) -> float:
    dual.weigh(m)
    try:
        return dual.slopes({k: v for k, v in m.items() if k != "n"})[0]
    except ArithmeticError:
        return math.inf


def _scale(goal: Objective) -> float:
    parts = [w.abs().mean() for w in goal.last if w is not None and w.numel()]
    if goal.linear.numel():
        parts.append(goal.linear.abs().max())
    return max(float(torch.stack(parts).max()), 1e-100)
