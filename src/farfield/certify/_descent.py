"""The search for good multipliers: Adam on the dual, in rounds, the best point kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from farfield.certify._dual import Dual, Multipliers, Objective, objective
from farfield.certify._problem import Problem

__all__ = ["initial_multipliers", "optimise"]

ROUNDS = ((0.05, 1.0),)
"""(learning rate, share of the time) of each round."""


def initial_multipliers(problem: Problem, goal: Objective, forms: int) -> Multipliers:
    """A first guess from chord slopes, backwards through the curves."""
    m: Multipliers = {}
    pull = goal.linear.clone()
    curvature = torch.zeros(problem.size, problem.size, dtype=torch.float64)
    for i in range(len(problem.curves) - 1, -1, -1):
        curve = problem.curves[i]
        if curve.columns is None:
            last = goal.last[i]
            s = torch.zeros_like(curve.offset) if last is None else last
        else:
            s = pull[curve.columns].clone()
            m[f"t{i}"] = torch.full_like(s, 0.5 * _top(curvature[curve.columns, curve.columns]))
            m[f"e{i}"], m[f"s{i}"] = torch.zeros_like(s), s
        width = (curve.hi - curve.lo).clamp_min(1e-12)
        lo, hi = (curve.scalar.function(e * curve.unit) / curve.unit for e in (curve.lo, curve.hi))
        m[f"r{i}"] = s * (hi - lo) / width
        m[f"theta{i}"] = 0.3 * s.abs() + 0.01 * float(s.abs().mean()) + 1e-9
        pull = pull + curve.matrix.T @ (m[f"r{i}"] + 2 * m[f"theta{i}"] * curve.offset)
        curvature = curvature + curve.matrix.T @ (m[f"theta{i}"][:, None] * curve.matrix)
    for j, box in enumerate(problem.boxes):
        m[f"bs{j}"] = pull[box.columns].clone()
        m[f"bt{j}"] = torch.full_like(box.lo, 0.5 * _top(curvature[box.columns, box.columns]))
    kappa = [
        0.5 * _top(curvature[b.columns, b.columns]) + 0.5 * float(pull[b.columns].norm()) / b.radius
        for b in problem.balls
    ]
    m["kappa"] = torch.tensor(kappa, dtype=torch.float64)
    m["omega"] = m["kappa"].clone()
    m["n"] = torch.zeros(forms, forms, dtype=torch.float64)
    m["room"] = 0.1 * m["kappa"].mean() if kappa else torch.tensor(0.1, dtype=torch.float64)
    return m


def _top(block: Tensor) -> float:
    return float(torch.linalg.matrix_norm(block, 2))


def optimise(
    problem: Problem,
    output: int,
    sign: float,
    *,
    seconds: float,
    start: Multipliers | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> tuple[Multipliers, float]:
    """Search multipliers that make the dual bound of sign·output small.

    Returns
    -------
    tuple
        The best multipliers seen, with their shift written in, and the unrounded bound they give:
        :mod:`farfield.certify._proof` turns multipliers into a bound that accounts for every rounding.
    """
    goal = objective(problem, output, sign)
    scale = _scale(goal)
    goal = goal.divided(scale)
    dual = Dual(problem, goal)
    kept = initial_multipliers(problem, goal, dual.count)
    if start is not None:
        kept = {k: v / scale for k, v in start.items()}
    best, begin = math.inf, time.monotonic()
    spent = 0.0
    for rate, share in ROUNDS:
        until = begin + seconds * (spent + share)
        kept, best = _round(dual, kept, best, rate, until, progress and (lambda b: progress((time.monotonic() - begin) / seconds, b * scale)))  # fmt: skip
        spent += share
    return {k: v * scale for k, v in kept.items()}, best * scale


def _round(
    dual: Dual,
    start: Multipliers,
    best: float,
    rate: float,
    until: float,
    progress: Callable[[float], None] | None,
) -> tuple[Multipliers, float]:
    kept = start
    raw = {k: _raw(k, v).requires_grad_(True) for k, v in start.items()}
    products = raw["n"]
    optimiser = torch.optim.Adam(
        [
            {"params": [v for k, v in raw.items() if k != "n"], "rate": rate},
            {"params": [products], "rate": rate / 5},
        ],
        lr=rate,
    )
    begin = time.monotonic()
    while (now := time.monotonic()) < until:
        share = (now - begin) / max(until - begin, 1e-9)
        for group in optimiser.param_groups:
            group["lr"] = group["rate"] * (0.5 * (1 + math.cos(math.pi * share)) + 0.01)
        optimiser.zero_grad()
        current = {k: torch.nn.functional.softplus(v) if _positive(k) else v for k, v in raw.items()}
        current["n"] = (products + products.T) / 2
        try:
            total, moved = dual.value(current, current["room"])
        except ArithmeticError:
            break
        found = float(total.detach())
        if found < best:
            best = found
            kept = {k: v.detach().clone() for k, v in moved.items()}
        total.backward()
        optimiser.step()
        with torch.no_grad():
            products.clamp_min_(0.0)
        if progress is not None:
            progress(best)
    return kept, best


def _positive(name: str) -> bool:
    return name.startswith("theta") or name == "room"


def _raw(name: str, value: Tensor) -> Tensor:
    value = value.detach().clone()
    if _positive(name):
        return torch.where(value > 20, value, torch.log(torch.expm1(value.clamp(1e-8, 20.0))))
    return value


def _scale(goal: Objective) -> float:
    parts = [w.abs().mean() for w in goal.last if w is not None and w.numel()]
    parts.append(goal.linear.abs().max())
    return max(float(torch.stack(parts).max()), 1e-100)
