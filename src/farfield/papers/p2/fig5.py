"""With and without projection, after centering by the mean-field constant.

Run: ``farfield reproduce p2.fig5``
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
    """Gap through depth, mean-field centering always on, projection on and off."""
    layerings = [Layering(a, center="mean_field", project=p) for a in activations for p in ("layer", "none")]
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
        with_, without = traces[2 * k].gap, traces[2 * k + 1].gap
        panels.append(
            Panel(
                name, "layer ℓ", "isometry gap −log I",
                (measured("with projection", with_, 0), measured("without projection", without, 1)), y_scale="log",
            )
        )  # fmt: skip
        a = float(band(with_)[0][-1])
        last = without[:, -1]
        lost = bool((~torch.isfinite(last)).any())
        b = float("inf") if lost else float(band(without)[0][-1])
        verdicts.append(
            ClaimVerdict(
                f"{name}: without projection the gap at layer {depth} is larger, or the network over- or underflows",
                lost or b > a,
                f"with {a:.3g}, without {'lost (not finite)' if lost else f'{b:.3g}'}",
            )
        )
        numbers[name] = {"with": band(with_)[0].tolist(), "without": band(without)[0].tolist()}
    caption = f"n = {n}, width {width}, centered by c₀, {runs} runs, 95% bands."
    return ExperimentResult(tuple(verdicts), numbers, Figure("Projection", tuple(panels), caption))


EXPERIMENT = Experiment(
    name="p2.fig5",
    description="Centering alone is not enough: without projection the pre-activations drift off unit variance.",
    settings={
        "activations": ["relu", "tanh", "sigmoid", "exp"],
        "n": 10, "width": 1000, "depth": 30, "degeneracy": 10.0, "runs": 10,
    },
    quick={"width": 128, "depth": 8, "runs": 3},
    paper_size={"activations": ["relu", "tanh", "sigmoid", "exp"], "n": 10, "width": 1000, "depth": 30, "runs": 10},
    run=run,
)  # fmt: skip
