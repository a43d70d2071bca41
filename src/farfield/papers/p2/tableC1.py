"""Isometry strength under gain: σ(αx) for a range of α, closed forms against quadrature.

Run: ``farfield reproduce p2.tableC1``
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from farfield.gaussian import isometry_strength
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.report import Table

FORMS: Final[dict[str, tuple[str, Callable[[float], float]]]] = {
    "exp": ("2 − α²/(exp(α²) − 1)", lambda a: 2.0 - a * a / math.expm1(a * a)),
    "sin": ("2 − α²/sinh(α²)", lambda a: 2.0 - a * a / math.sinh(a * a)),
    "relu": ("(3π − 4)/(2π − 2), every α", lambda a: (3.0 * math.pi - 4.0) / (2.0 * math.pi - 2.0)),
}


def run(*, progress: Progress, seed: int, gains: Sequence[float], tolerance: float) -> ExperimentResult:
    """Closed forms at every gain; the seed plays no part."""
    rows = []
    worst = 0.0
    for done, (name, (formula, exact)) in enumerate(FORMS.items(), 1):
        values = [isometry_strength(name, gain=a) for a in gains]
        error = max(abs(v - exact(a)) for v, a in zip(values, gains, strict=True))
        worst = max(worst, error)
        rows.append((f"{name}(αx)", formula, *values, error))
        progress(done, len(FORMS))
    columns = ("activation", "closed form of β", *(f"α = {a:g}" for a in gains), "largest difference")
    return ExperimentResult(
        verdicts=(
            ClaimVerdict(
                f"the closed forms under gain equal quadrature to {tolerance:g}",
                worst <= tolerance,
                f"largest difference {worst:.1e} over {len(gains)} gains",
            ),
        ),
        numbers={"gains": list(gains), "worst": worst},
        table=Table(columns, tuple(rows)),
    )


EXPERIMENT = Experiment(
    name="p2.tableC1",
    description="Isometry strength β of σ(αx): closed forms in the gain α.",
    settings={"gains": [0.1, 0.5, 1.0, 2.0, 3.0], "tolerance": 1e-12},
    paper_size={},
    run=run,
)
