"""The search for good multipliers: Adam on the dual, in rounds, the best point kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from farfield._budget import Budget, Clock, running
from farfield.certify.dual._dual import Dual, Multipliers, Objective, curve_multipliers
from farfield.certify.dual._problem import Problem

__all__ = ["initial_multipliers", "optimize"]

ROUNDS = ((0.3, 0.3, False), (1.0, 0.03, True))
"""(share of the budget at its end, learning rate, with pairwise products) of each round.

Long strides first, then one long round of small ones with products: in deep tails, each round that begins again at a
tenth loses for a hundred steps what the one before had found.
"""
WARM_ROUNDS = ((1.0, 0.03, True),)
"""From multipliers that a search without products has found."""
BENDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Weights tried for the first guess."""
PRODUCT_STEP = 0.1
"""Products move this much slower than squares."""


def initial_multipliers(problem: Problem, goal: Objective, forms: int, bend: float = 0.3) -> Multipliers:
    """A first guess, backwards through the curves: chord slopes, and squares that never outgrow what pays for them.

    With Θ ≥ T on every curve the guess is a product of spectral norms in disguise; ``bend`` weighs the first Θ.
    """
    m: Multipliers = {}
    pull = goal.linear.clone()
    curvature = torch.zeros(problem.size, problem.size, dtype=torch.float64)
    for i in range(len(problem.curves) - 1, -1, -1):
        curve = problem.curves[i]
        if curve.columns is None:
            s, t, _ = curve_multipliers(goal, curve, i, m)  # the objective's own
        else:
            s = pull[curve.columns].clone()
            t = m[f"t{i}"] = torch.full_like(s, _top(curvature[curve.columns, curve.columns]))
            m[f"e{i}"], m[f"s{i}"] = torch.zeros_like(s), s
        width = (curve.hi - curve.lo).clamp_min(1e-12)
        lo, hi = (curve.scalar.curve(e * curve.unit) / curve.unit for e in (curve.lo, curve.hi))
        m[f"r{i}"] = s * (hi - lo) / width
        steep = curve.scalar.slope**2
        m[f"theta{i}"] = bend * (s.abs() + 0.03 * float(s.abs().mean())) + steep * t + 1e-9
        pull = pull + curve.matrix.T @ (m[f"r{i}"] + 2 * m[f"theta{i}"] * curve.offset)
        curvature = curvature + curve.matrix.T @ (m[f"theta{i}"][:, None] * curve.matrix)
    for j, box in enumerate(problem.boxes):
        m[f"bs{j}"] = pull[box.columns].clone()
        m[f"bt{j}"] = torch.full_like(box.lo, _top(curvature[box.columns, box.columns]))
    kappa = [
        _top(curvature[b.columns, b.columns]) + 0.5 * float(pull[b.columns].norm()) / b.radius
        for b in problem.balls
    ]
    m["kappa"] = torch.tensor(kappa, dtype=torch.float64)
    m["omega"] = m["kappa"].clone()
    m["n"] = torch.zeros(forms, forms, dtype=torch.float64)
    m["room"] = torch.tensor(0.1, dtype=torch.float64)
    return m


def _top(block: Tensor) -> float:
    return float(torch.linalg.matrix_norm(block, 2))


def optimize(
    problem: Problem,
    goal: Objective,
    *,
    time_budget: float | Budget | Clock,
    start: Multipliers | None = None,
    rounds: Sequence[tuple[float, float, bool]] = ROUNDS,
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
        (share of the budget at its end, learning rate, with pairwise products) of each.
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
    kept = min(
        (initial_multipliers(problem, goal, dual.count, b) for b in BENDS), key=lambda m: _worth(dual, m)
    )
    if start is not None:
        kept = {**kept, **{k: v / scale for k, v in start.items()}}

    def report(best: float) -> None:
        if progress is not None:
            progress(1.0 - clock.left, best * scale)

    best = math.inf
    for share, rate, products in rounds:
        kept, best = _round(dual, kept, best, rate, products, clock, share, report)
    return {k: v * scale for k, v in kept.items()}, best * scale


def _round(
    dual: Dual,
    start: Multipliers,
    best: float,
    rate: float,
    products: bool,
    clock: Clock,
    until: float,
    progress: Callable[[float], None],
) -> tuple[Multipliers, float]:
    """Adam from ``start`` until a share of the clock, with a cosine schedule; positive multipliers move by factors.

    ``products`` lets pairwise products in; each is measured in units of what its two curves weigh.
    """
    kept = start
    units = _units(dual, start)
    dual.weigh(start)
    still = {} if products else {"n": start["n"]}
    raw = {k: _raw(k, v, units[k]).requires_grad_() for k, v in start.items() if k not in still}
    optimizer = torch.optim.Adam(list(raw.values()), lr=rate)
    begin = 1.0 - clock.left
    while (used := 1.0 - clock.left) < until - 1e-12:
        clock.spend()
        share = (used - begin) / (until - begin)
        for group in optimizer.param_groups:
            group["lr"] = rate * (0.5 * (1 + math.cos(math.pi * share)) + 0.01)
        optimizer.zero_grad()
        current = still | {k: torch.exp(v) if _positive(k) else v * units[k] for k, v in raw.items()}
        if products:
            current["n"] = (current["n"] + current["n"].T) / 2
        try:
            total, moved = dual.value(current, current["room"])
        except ArithmeticError:
            break
        found = float(total.detach())
        if found < best:
            best = found
            kept = {k: v.detach().clone() for k, v in moved.items()}
        total.backward()
        optimizer.step()
        if products:
            with torch.no_grad():
                raw["n"].clamp_min_(0.0)
        progress(best)
    return kept, best


def _worth(dual: Dual, m: Multipliers) -> float:
    dual.weigh(m)
    with torch.no_grad():
        try:
            return float(dual.value(m, m["room"])[0])
        except ArithmeticError:
            return math.inf


def _positive(name: str) -> bool:
    return name.startswith(("theta", "t", "bt")) or name in ("room", "kappa", "omega")


def _raw(name: str, value: Tensor, unit: Tensor) -> Tensor:
    return torch.log(value.detach().clamp_min(1e-12)) if _positive(name) else value.detach() / unit


def _units(dual: Dual, m: Multipliers) -> Multipliers:
    """A step's natural size for every multiplier that may change sign."""
    one = torch.ones((), dtype=torch.float64)
    units = dict.fromkeys(m, one)
    weights = [
        m["kappa"].mean().reshape(1).expand(dual.heads) if m["kappa"].numel() else one.expand(dual.heads)
    ]
    for i, curve in enumerate(dual.problem.curves):
        for name in (f"r{i}", f"s{i}"):
            if name in m:
                units[name] = m[name].abs().mean() + 1e-9
        if curve.columns is not None:
            units[f"e{i}"] = m[f"t{i}"].mean() + 1e-9
    for j in range(len(dual.problem.boxes)):
        units[f"bs{j}"] = m[f"bs{j}"].abs().mean() + 1e-9
    weights += [m[f"t{i}"] for i, *_ in dual.groups]
    weight = torch.cat(weights).clamp_min(1e-12).sqrt()
    units["n"] = PRODUCT_STEP * torch.outer(weight, weight)
    return units


def _scale(goal: Objective) -> float:
    parts = [w.abs().mean() for w in goal.last if w is not None and w.numel()]
    if goal.linear.numel():
        parts.append(goal.linear.abs().max())
    return max(float(torch.stack(parts).max()), 1e-100)
