"""The Lyapunov function γ of the Gram matrix against its bound γ₀β^−ℓ.

Run: ``farfield reproduce p2.figB1``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

import torch

from farfield.gaussian import isometry_strength
from farfield.geometry import gram, lyapunov, mean_field_step
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult
from farfield.papers.p2._simulation import Layering, Sizes, band, measured, simulate
from farfield.report import Figure, Panel, Series


def run(
    *, activations: Sequence[str], sampler: Literal["weights", "law"], **sizes: Unpack[Sizes]
) -> ExperimentResult:
    """γ at finite width with 95% bands, in the mean field, and the bound."""
    traces = simulate([Layering(a) for a in activations], sampler=sampler, **sizes)
    width, depth, runs = sizes["width"], sizes["depth"], sizes["runs"]
    layers = torch.arange(depth + 1, dtype=torch.float64)
    ticks = tuple(layers.tolist())
    panels, verdicts, numbers = [], [], {}
    for name, trace in zip(activations, traces, strict=True):
        beta = isometry_strength(name)
        exact = []
        for x in trace.inputs:
            current, values = gram(x), []
            for _ in range(depth + 1):
                values.append(lyapunov(current))
                current = mean_field_step(current, name)
            exact.append(torch.stack(values))
        theory = torch.stack(exact)
        bound = theory[:, :1] * beta**-layers
        over = int((theory > bound * (1 + 1e-9)).sum())
        over_finite = int((band(trace.gamma)[1] > band(bound)[0]).sum())
        panels.append(
            Panel(
                f"{name}, β = {beta:.4f}", "layer ℓ", "γ = max |ρ|/(1−|ρ|)",
                (
                    measured(f"width {width}, {runs} runs, 95% band", trace.gamma, 0),
                    Series("mean field, exact", ticks, tuple(band(theory)[0].tolist()), style="dashed", color=1),
                    Series("bound γ₀β^−ℓ", ticks, tuple(band(bound)[0].tolist()), style="dotted", color=2),
                ),
                y_scale="log",
            )
        )  # fmt: skip
        verdicts += [
            ClaimVerdict(
                f"{name}: in the mean field γ stays below γ₀β^−ℓ at every layer of every run",
                over == 0,
                f"{over} of {theory.numel()} points above",
            ),
            ClaimVerdict(
                f"{name}: at width {width} γ is nowhere above γ₀β^−ℓ by more than its 95% band",
                over_finite == 0,
                f"{over_finite} of {depth + 1} layers",
            ),
        ]
        numbers[name] = {
            "beta": beta,
            "gamma": band(trace.gamma)[0].tolist(),
            "mean_field": band(theory)[0].tolist(),
        }
    caption = "n = {n}, width {width}, LayerNorm after the activation, input degeneracy {degeneracy:g}."
    return ExperimentResult(
        tuple(verdicts),
        numbers,
        Figure("Lyapunov function", tuple(panels), caption.format(**sizes), columns=3),
    )


EXPERIMENT = Experiment(
    name="p2.figB1",
    description="γ(G) shrinks at least by 1/β a layer; finite width follows until chance correlations take over.",
    settings={
        "activations": ["relu", "tanh", "sigmoid"],
        "n": 10, "width": 10000, "depth": 30, "degeneracy": 100.0, "runs": 10, "sampler": "law",
    },
    quick={"width": 512, "depth": 8, "runs": 3},
    paper_size={"n": 10, "width": 10000, "runs": 10, "depth": None, "degeneracy": 100.0},
    run=run,
)  # fmt: skip
