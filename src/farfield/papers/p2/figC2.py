"""Gain and isometry: σ(αx) loses its gap faster the larger its isometry strength.

Run: ``farfield reproduce p2.figC2``
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from farfield.gaussian import isometry_strength
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p2._simulation import Layering, band, measured, simulate
from farfield.report import Figure, Panel


def run(
    *,
    progress: Progress,
    seed: int,
    activations: Sequence[str],
    gains: Sequence[float],
    n: int,
    width: int,
    depth: int,
    degeneracy: float,
    runs: int,
    at: int,
) -> ExperimentResult:
    """Gap through depth at several gains; compared at layer ``at``, before chance correlations level all curves."""
    layerings = [Layering(a, gain=g) for a in activations for g in gains]
    traces = simulate(
        layerings,
        n=n,
        width=width,
        depth=depth,
        degeneracy=degeneracy,
        runs=runs,
        seed=seed,
        progress=progress,
    )
    panels, verdicts, numbers = [], [], {}
    for k, name in enumerate(activations):
        mine = traces[k * len(gains) : (k + 1) * len(gains)]
        betas = [isometry_strength(name, gain=g) for g in gains]
        panels.append(
            Panel(
                name, "layer ℓ", "isometry gap −log I",
                tuple(measured(f"α = {g:g}", t.gap, c) for c, (g, t) in enumerate(zip(gains, mine, strict=True))),
                y_scale="log",
            )
        )  # fmt: skip
        middles = [float(band(t.gap)[0][at]) for t in mine]
        text = ", ".join(
            f"α={g:g}: β={b:.3f}, gap {m:.3g}" for g, b, m in zip(gains, betas, middles, strict=True)
        )
        if max(betas) - min(betas) < 1e-9:
            spread = max(middles) / min(middles) - 1.0
            verdicts.append(ClaimVerdict(f"{name}: the gain makes no difference (1e-9)", spread < 1e-9, text))
        else:
            order = [m for _, m in sorted(zip(betas, middles, strict=True))]
            decreasing = all(a > b for a, b in itertools.pairwise(order))
            verdicts.append(
                ClaimVerdict(f"{name}: the larger β, the smaller the gap after {at} layers", decreasing, text)
            )
        numbers[name] = {"beta": betas, "gap": [band(t.gap)[0].tolist() for t in mine]}
    caption = f"n = {n}, width {width}, LayerNorm after the activation, {runs} runs, 95% bands."
    return ExperimentResult(
        tuple(verdicts), {"gains": list(gains), **numbers}, Figure("Gain", tuple(panels), caption, columns=3)
    )


EXPERIMENT = Experiment(
    name="p2.figC2",
    description="A larger gain makes sin and tanh more nonlinear and isometry faster; ReLU does not notice.",
    settings={
        "activations": ["sin", "relu", "tanh"], "gains": [0.5, 1.0, 2.0],
        "n": 10, "width": 1000, "depth": 30, "degeneracy": 100.0, "runs": 10, "at": 4,
    },
    quick={"width": 256, "depth": 6, "runs": 3},
    paper_size={"activations": None, "gains": None, "n": None, "width": None, "depth": None, "runs": 10},
    run=run,
)  # fmt: skip
