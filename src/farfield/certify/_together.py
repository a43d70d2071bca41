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
    grid_points,
    objective,
    search_groups,
    step_seconds,
)

__all__ = ["begin_together", "is_time_for_ranges", "pace", "proof_seconds"]

SHARES = ((40, 0.5), (140, 0.3), (400, 0.1))
"""Of the time, for all sides at once: where a search of each side would have fewer steps than this, so much.

With more, a search from a first guess of its own ends lower.
"""
LEAST_SHARE = 0.2
"""Of it, even where proofs of all sides will take longer than there is time."""
PROOF_STEPS = 30
"""To prove a bound and to check it again takes about as long as so many steps,"""
SMOOTH_SECONDS = 2.4e-3
"""and this long for every entry of a curve that is not piecewise linear."""
MOST = 4_000_000
"""Points at which curves are evaluated in a step, at most."""
POINT_SECONDS = 1e-7
"""For each of them; 1.0e-7 was measured."""
LEAST_RATIO, RATIO_SIZE = 2.5, 45.0
"""A step of all sides at once factorizes in double precision and with derivatives: it takes as long as so many steps
of a single search, or one for each so many variables; 2.3 at 138, 8 at 394 and 12 at 522 were measured.
"""
LEAST_STEPS = 10
"""Fewer steps of all sides at once gain nothing."""


def pace(case: OutputCase, keys: Sequence[Key], clock: Clock) -> float:
    """Seconds that a step of a search takes; 0 where sides are not searched at once, or steps alone are counted."""
    if case.problem is None or not keys or not can_group(case.problem) or math.isinf(clock.seconds_left):
        return 0.0
    return step_seconds(case.problem, objective(case.problem, *keys[0]), clock)


def proof_seconds(case: OutputCase, step: float) -> float:
    """About how long a bound of one side takes to prove and to check; 0 where steps are not timed."""
    if case.problem is None or step <= 0:
        return 0.0
    smooth = sum(c.lo.numel() for c in case.problem.curves if c.scalar.curvature)
    return PROOF_STEPS * step + SMOOTH_SECONDS * smooth


def is_time_for_ranges(sides: int, clock: Clock, proof: float, share: float) -> bool:
    """Whether every side can still be searched and proved when ranges of deep layers have had their share."""
    return (1.0 - share) * clock.seconds_left >= 2 * sides * proof


def begin_together(case: OutputCase, keys: Sequence[Key], clock: Clock, step: float) -> OutputCase:
    """The case with multipliers for these sides to begin from, where a search of each alone would be too short."""
    problem = case.problem
    if problem is None or not keys or not can_group(problem):
        return case
    points = len(keys) * sum(c.lo.numel() * grid_points(c) for c in problem.curves)
    if points > MOST:
        return case
    ratio = max(LEAST_RATIO, problem.size / RATIO_SIZE)
    steps = min(clock.steps_left, clock.seconds_left / step if step > 0 else math.inf) / len(keys)
    share = next((share for enough, share in SHARES if steps < enough), None)
    if share is None or ratio > 2 * len(keys):
        return case
    proofs = 1.5 * len(keys) * proof_seconds(case, step)
    share = min(share, max(LEAST_SHARE, 1.0 - proofs / max(clock.seconds_left, 1e-9)))
    if share * clock.seconds_left < LEAST_STEPS * (ratio * step + POINT_SECONDS * points):
        return case
    width = (case.found.upper - case.found.lower).clamp_min(1e-9)
    width = torch.where(torch.isfinite(width), width, 1.0)
    goals = Objectives.of(problem, keys, width[[i for i, _ in keys]].reciprocal())
    _, made = search_groups(GroupDual(problem, goals), clock.share(share))
    return replace(case, together=Together(tuple(keys), made))
