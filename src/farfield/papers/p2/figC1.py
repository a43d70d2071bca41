"""Isometry strength as a function of gain, and its limits.

Run: ``farfield reproduce p2.figC1``
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from farfield.gaussian import isometry_strength
from farfield.papers._experiment import Claims, Experiment, ExperimentResult, Progress
from farfield.report import Figure, Panel, Series

# lim β as α → ∞: a saturating activation becomes a step, sin and exp lose their linear part.
_LIMITS = {"sigmoid": 2.0 - 2.0 / math.pi, "tanh": 2.0 - 2.0 / math.pi, "sin": 2.0, "exp": 2.0}


def run(
    *, progress: Progress, seed: int, activations: Sequence[str], largest: float, points: int, far: float
) -> ExperimentResult:
    """β(α) on (0, largest]; the seed plays no part."""
    gains = tuple(largest * (i + 1) / points for i in range(points))
    series, claims, numbers = [], Claims(), {}
    for k, name in enumerate(activations):
        betas = tuple(isometry_strength(name, gain=g) for g in gains)
        series.append(Series(name, gains, betas, color=k))
        numbers[name] = list(betas)
        small = isometry_strength(name, gain=1e-3)
        if name in _LIMITS:
            rising = all(b >= a - 1e-12 for a, b in itertools.pairwise(betas))
            end = isometry_strength(name, gain=_reach(name, far))
            claims.add(
                f"{name}: β rises with the gain, from 1 towards {_LIMITS[name]:.4f}",
                rising and abs(small - 1.0) < 1e-3 and abs(end - _LIMITS[name]) < 5e-3,
                f"β({1e-3:g}) = {small:.6f}, β({_reach(name, far):g}) = {end:.6f}, monotone: {rising}",
            )
        progress(k + 1, len(activations))
    if "selu" in activations:
        relu = isometry_strength("relu")
        end = isometry_strength("selu", gain=far)
        claims.add(
            f"selu: β tends to ReLU's {relu:.4f} for large gain (its negative part saturates)",
            abs(end - relu) < 2e-2,
            f"β({far:g}) = {end:.6f}",
        )
    panel = Panel("σ(αx) under N(0, 1)", "gain α", "isometry strength β", tuple(series), y_range=(0.98, 2.02))
    return ExperimentResult(
        tuple(claims),
        {"gains": list(gains), **numbers},
        Figure("Isometry strength and gain", (panel,), columns=1),
    )


def _reach(name: str, far: float) -> float:
    """How far out the limit is tested: exp's moments overflow past α ≈ 9, and it is there long before."""
    return min(far, 5.0) if name in ("exp", "sin") else far


EXPERIMENT = Experiment(
    name="p2.figC1",
    description="β(α) rises from 1 (nearly linear) to the limit of the saturated activation.",
    settings={
        "activations": ["sigmoid", "tanh", "sin", "exp", "selu"], "largest": 6.0, "points": 60, "far": 400.0,
    },
    quick={"points": 12},
    paper_size={"activations": None},
    run=run,
)  # fmt: skip
