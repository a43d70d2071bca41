"""Layer statistics replaced by their infinite-width constants.

Run: ``farfield reproduce p2.fig4``
"""

from __future__ import annotations

import math
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
    """Gap through depth with LayerNorm and with the mean replaced by c₀, projection by statistics in both."""
    layerings = [Layering(a, center=c) for a in activations for c in ("layer", "mean_field")]
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
        layer, constant = traces[2 * k].gap, traces[2 * k + 1].gap
        panels.append(
            Panel(
                name, "layer ℓ", "isometry gap −log I",
                (measured("x − mean(x)", layer, 0), measured("x − c₀", constant, 1)), y_scale="log",
            )
        )  # fmt: skip
        ratio = torch.log(layer) - torch.log(constant)
        worst = float(ratio.mean(0).abs().max())
        verdicts.append(
            ClaimVerdict(
                f"{name}: centering by c₀ gives the gap of centering by the mean within a factor 1.5 at every layer",
                worst < math.log(1.5),
                f"largest factor over layers {math.exp(worst):.3f}, while the gap falls by a factor "
                f"{float(band(layer)[0][0] / band(layer)[0][-1]):.3g}",
            )
        )
        numbers[name] = {"mean": band(layer)[0].tolist(), "constant": band(constant)[0].tolist()}
    caption = f"n = {n}, width {width}, projection by layer statistics, {runs} runs, 95% bands."
    return ExperimentResult(
        tuple(verdicts), numbers, Figure("Centering by mean or by constant", tuple(panels), caption)
    )


EXPERIMENT = Experiment(
    name="p2.fig4",
    description="The layer's mean can be replaced by one number, c₀ = E σ(z): the gap follows the same curve.",
    settings={
        "activations": ["relu", "tanh", "sigmoid", "exp"],
        "n": 10, "width": 1000, "depth": 30, "degeneracy": 100.0, "runs": 10,
    },
    quick={"width": 256, "depth": 6, "runs": 3},
    paper_size={"activations": ["relu", "tanh", "sigmoid", "exp"], "n": 10, "width": 1000, "depth": 30, "runs": 10},
    run=run,
)  # fmt: skip
