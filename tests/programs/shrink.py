"""A failing program made small: fewer steps, smaller inputs, no training, as long as the same fault shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from programs.generator import Plan

__all__ = ["shrink"]


def shrink(plan: Plan, fails: Callable[[Plan], bool], *, tries: int = 60) -> Plan:
    """The smallest plan found by greedy removal; ``fails`` says whether the fault is still there."""
    seen = {plan.write().script()}
    improved = True
    while improved and tries > 0:
        improved = False
        for smaller in _smaller(plan):
            script = smaller.write().script()
            if script in seen:
                continue
            seen.add(script)
            tries -= 1
            if fails(smaller):
                plan, improved = smaller, True
                break
            if tries <= 0:
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Simpler plans, the greatest simplification first."""
    if plan.trained:
        yield replace(plan, trained=False)
    count = len(plan.steps)
    for size in (count // 2, count // 4, 1):
        if size:
            for start in range(count - size, -1, -size):
                yield replace(plan, steps=plan.steps[:start] + plan.steps[start + size :])
    if len(plan.shapes) > 1:
        yield replace(plan, shapes=plan.shapes[:1])
    for i, shape in enumerate(plan.shapes):
        for j, n in enumerate(shape):
            for less in {1, 2, n // 2, n - 1} - {0, n}:
                if less < n:
                    made = (*shape[:j], less, *shape[j + 1 :])
                    yield replace(plan, shapes=(*plan.shapes[:i], made, *plan.shapes[i + 1 :]))
        if len(shape) > 1:
            yield replace(plan, shapes=(*plan.shapes[:i], shape[-1:], *plan.shapes[i + 1 :]))
