"""Isometry strength of common activations: closed forms and quadrature side by side.

Run: ``farfield reproduce p2.table2``
"""

from __future__ import annotations

import math
from typing import Final

from farfield.gaussian import isometry_strength
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.report import Table

CLOSED_FORMS: Final[dict[str, tuple[str, float]]] = {
    "identity": ("1", 1.0),
    "sin": ("2 − 2e/(e² − 1)", 2.0 - 2.0 * math.e / (math.e**2 - 1.0)),
    "relu": ("(3π − 4)/(2π − 2)", (3.0 * math.pi - 4.0) / (2.0 * math.pi - 2.0)),
    "step": ("2 − 2/π", 2.0 - 2.0 / math.pi),
    "exp": ("2 − 1/(e − 1)", 2.0 - 1.0 / (math.e - 1.0)),
    "gelu": (
        "2 − ¼/(1/3 + 1/(2√3π) − 1/(4π))",
        2.0 - 0.25 / (1.0 / 3.0 + 1.0 / (2.0 * math.sqrt(3.0) * math.pi) - 0.25 / math.pi),
    ),
    "abs": ("2", 2.0),
    "he2": ("2", 2.0),
}
NUMERICAL: Final = ("sigmoid", "selu", "elu", "tanh", "softplus", "mish", "silu", "leaky_relu")


def run(*, progress: Progress, seed: int, tolerance: float) -> ExperimentResult:
    """Every closed form against quadrature; the seed plays no part."""
    rows: list[tuple[str, str, float, float | str]] = []
    worst = 0.0
    for done, (name, (formula, exact)) in enumerate(CLOSED_FORMS.items(), 1):
        value = isometry_strength(name)
        worst = max(worst, abs(value - exact))
        rows.append((name, formula, value, abs(value - exact)))
        progress(done, len(CLOSED_FORMS) + len(NUMERICAL))
    for done, name in enumerate(NUMERICAL, len(CLOSED_FORMS) + 1):
        rows.append((name, "no closed form", isometry_strength(name), "–"))
        progress(done, len(CLOSED_FORMS) + len(NUMERICAL))
    rows.sort(key=lambda row: row[2])
    in_range = all(1.0 <= row[2] <= 2.0 for row in rows)
    return ExperimentResult(
        verdicts=(
            ClaimVerdict(
                f"every closed form equals its quadrature to {tolerance:g}",
                worst <= tolerance,
                f"largest difference {worst:.1e} over {len(CLOSED_FORMS)} activations",
            ),
            ClaimVerdict(
                "every isometry strength lies in [1, 2]",
                in_range,
                f"from {rows[0][2]:.4f} to {rows[-1][2]:.4f}",
            ),
        ),
        numbers={"beta": {row[0]: row[2] for row in rows}},
        table=Table(("activation", "closed form of β", "β by quadrature", "difference"), tuple(rows)),
    )


EXPERIMENT = Experiment(
    name="p2.table2",
    description="Isometry strength β of common activations; closed forms where they exist.",
    settings={"tolerance": 1e-12},
    paper_size={},
    run=run,
)
