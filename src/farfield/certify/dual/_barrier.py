"""Adam with a barrier: multipliers that make a bound small while a matrix stays positive definite.

A bound is const + ¼ linᵀH⁻¹lin, convex in the multipliers where H ≻ 0. Shifting H back to where it is positive, as
:mod:`farfield.certify.dual._dual` does, follows one eigenvector at a time; −μ·log det H keeps away from all of them,
and at its least the bound is at most μ·size above the least there is. μ falls from step to step. A step that leaves
the region is halved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TypeAlias

import torch
from torch import Tensor

from farfield._budget import Clock
from farfield.certify.dual._dual import Multipliers

__all__ = ["Quadratic", "follow", "peak"]

Quadratic: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""(H, lin, const): max over x of const + lin·x − xᵀHx is bounded."""
RATE = 0.05
BETAS = (0.9, 0.95)
BARRIER = (3.0, 0.005)
"""μ·size at the beginning and at the end, in units of the first bound."""
LEAST = 1e-30
"""What moves by factors begins no lower."""
SLOWER, FASTER = 0.7, 1.05
"""What a step that failed, and one that did not, do to the next one's length."""


def peak(form: Quadratic) -> tuple[Tensor, Tensor] | None:
    """(the maximum, a factor of H); ``None`` where H is not positive definite."""
    hessian, linear, constant = form
    factor, info = torch.linalg.cholesky_ex(hessian)
    if int(info):
        return None
    solved = torch.linalg.solve_triangular(factor, linear[:, None], upper=False)
    return constant + 0.25 * solved.square().sum(), factor


def follow(
    form: Callable[[Multipliers], Quadratic],
    start: Multipliers,
    units: Multipliers,
    clock: Clock,
    *,
    positive: Collection[str],
    never_negative: Collection[str],
) -> tuple[Multipliers, float]:
    """(multipliers, the bound they give): the best met until the clock is over; a step is one evaluation.

    Parameters
    ----------
    form
        Multipliers ↦ the quadratic whose maximum is the bound; differentiable.
    start
        Where H is positive definite; an infinite bound comes back otherwise.
    units
        A step's natural size, for every multiplier that does not move by factors.
    positive, never_negative
        Names of those that move by factors, and of those that stop at 0; matrices among the latter are symmetric.
    """
    raw = {
        k: (v.clamp_min(LEAST).log() if k in positive else v / units[k]).detach().clone().requires_grad_()
        for k, v in start.items()
    }
    optimizer = torch.optim.Adam(list(raw.values()), lr=RATE, betas=BETAS)
    kept, best, pace, scale = start, math.inf, 1.0, 0.0
    last = {k: v.detach().clone() for k, v in raw.items()}
    while True:
        current = {k: v.exp() if k in positive else v * units[k] for k, v in raw.items()}
        current = {k: (v + v.T) / 2 if v.ndim == 2 else v for k, v in current.items()}
        found = peak(form(current))
        if found is None and best == math.inf:
            break
        used = 1.0 - clock.left
        if found is None:
            pace *= SLOWER
            with torch.no_grad():
                for k, v in raw.items():
                    v.copy_((v + last[k]) / 2)
        else:
            bound, factor = found
            if float(bound.detach()) < best:
                best = float(bound.detach())
                kept = {k: v.detach().clone() for k, v in current.items()}
            scale = scale or abs(best)
            first, final = BARRIER
            mu = scale / factor.shape[0] * first * (final / first) ** used
            optimizer.zero_grad()
            (bound - 2 * mu * factor.diagonal().log().sum()).backward()
            last = {k: v.detach().clone() for k, v in raw.items()}
            pace = min(1.0, FASTER * pace)
            for group in optimizer.param_groups:
                group["lr"] = RATE * pace * (0.5 * (1 + math.cos(math.pi * used)) + 0.02)
            optimizer.step()
            with torch.no_grad():
                for k in never_negative:
                    raw[k].clamp_min_(0.0)
        if clock.over:
            break
        clock.spend()
    return kept, best
