"""All sides of an output at once: where to begin when there is no time for a search of each from the beginning.

Objectives of one group share their quadratic multipliers, so a step costs one factorization for all of them
(:mod:`farfield.certify.dual._groups`). What is found is where a search of each side begins: decision 0043.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from farfield._budget import Clock
from farfield.certify._provers import Key, OutputCase, Together
from farfield.certify.dual import (
    GroupDual,
    Objectives,
    can_group,
    objective,
    search_groups,
    step_seconds,
)

__all__ = ["begin_together", "is_time_for_ranges", "pace"]

SHARES = ((40, 0.5), (140, 0.3), (400, 0.1))
"""Of the time, for all sides at once: where a search of each side would have fewer steps than this, so much.

With more, a search from a first guess of its own ends lower.
"""
PROOF_STEPS = 30
"""To prove a bound and to check it again takes about as long as so many steps."""
MOST = 300_000
"""Sides times entries of the layers, at most."""


def pace(case: OutputCase, keys: Sequence[Key], clock: Clock) -> float:
    """Seconds that a step of a search takes; 0 where sides are not searched at once, or steps alone are counted."""
    if case.problem is None or not keys or not can_group(case.problem) or math.isinf(clock.seconds_left):
        return 0.0
    return step_seconds(case.problem, objective(case.problem, *keys[0]), clock)


def is_time_for_ranges(keys: Sequence[Key], clock: Clock, step: float, share: float) -> bool:
    """Whether every side can still be searched and proved when ranges of deep layers have had their share."""
    return (1.0 - share) * clock.seconds_left >= 2 * len(keys) * PROOF_STEPS * step


def begin_together(case: OutputCase, keys: Sequence[Key], clock: Clock, step: float) -> OutputCase:
    """The case with multipliers for these sides to begin from, where a search of each alone would be too short."""
    problem = case.problem
    if problem is None or not keys or not can_group(problem):
        return case
    if len(keys) * sum(c.lo.numel() for c in problem.curves) > MOST:
        return case
    steps = min(clock.steps_left, clock.seconds_left / step if step > 0 else math.inf) / len(keys)
    share = next((share for enough, share in SHARES if steps < enough), None)
    if share is None:
        return case
    width = (case.found.upper - case.found.lower).clamp_min(1e-9)
    width = torch.where(torch.isfinite(width), width, 1.0)
    goals = Objectives.of(problem, keys, width[[i for i, _ in keys]].reciprocal())
    _, made = search_groups(GroupDual(problem, goals), clock.share(share))
    return replace(case, together=Together(tuple(keys), made))
