"""Centring without projection: which activations normalise themselves.

Run: ``farfield reproduce p2.selfnorm``
"""

from __future__ import annotations

from collections.abc import Sequence

from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p2._simulation import Layering, band, measured, simulate
from farfield.report import Figure, Panel


def run(
    *,
    progress: Progress,
    seed: int,
    activations: Sequence[str],
    n: int,
    width: int,
    depth: int,
    degeneracy: float,
    runs: int,
) -> ExperimentResult:
    """Gap through depth with layer centring and no projection."""
    traces = simulate(
        [Layering(a, project="none") for a in activations],
        n=n, width=width, depth=depth, degeneracy=degeneracy, runs=runs, seed=seed, progress=progress,
    )  # fmt: skip
    series = tuple(measured(a, t.gap, k) for k, (a, t) in enumerate(zip(activations, traces, strict=True)))
    ends = {a: float(band(t.gap)[0][-1]) for a, t in zip(activations, traces, strict=True)}
    starts = {a: float(band(t.gap)[0][0]) for a, t in zip(activations, traces, strict=True)}
    text = ", ".join(f"{a}: {starts[a]:.3g} → {ends[a]:.3g}" for a in activations)
    verdicts = (
        ClaimVerdict(
            "SELU keeps its scale and ReLU does not care for it: their gaps fall without any projection",
            max(ends["selu"] / starts["selu"], ends["relu"] / starts["relu"]) < 1.0,
            text,
        ),
        ClaimVerdict(
            "tanh does not: its scale shrinks until it acts linearly, and its gap ends above SELU's",
            ends["tanh"] > ends["selu"],
            text,
        ),
    )
    panel = Panel("centring only", "layer ℓ", "isometry gap −log I", series, y_scale="log")
    return ExperimentResult(
        verdicts,
        {a: band(t.gap)[0].tolist() for a, t in zip(activations, traces, strict=True)},
        Figure("Self-normalisation", (panel,), f"n = {n}, width {width}, {runs} runs, 95% bands.", columns=1),
    )


EXPERIMENT = Experiment(
    name="p2.selfnorm",
    description="Without projection an activation must keep its scale (SELU) or not care for it (ReLU).",
    settings={
        "activations": ["relu", "tanh", "selu"], "n": 10, "width": 1000, "depth": 30, "degeneracy": 5.0, "runs": 10,
    },
    quick={"width": 256, "depth": 10, "runs": 3},
    run=run,
)  # fmt: skip
