"""The mean-reduced dual kernel: convex on [0, 1] and below the diagonal, which is why correlations shrink.

Run: ``farfield reproduce p2.dual``
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farfield.gaussian import activation, isometry_strength, mean_reduced_dual, moments
from farfield.geometry.bounds import correlation_contraction
from farfield.papers._experiment import Claims, Experiment, ExperimentResult, Progress
from farfield.report import Figure, Panel, Series


def run(*, progress: Progress, seed: int, activations: Sequence[str], points: int) -> ExperimentResult:
    """σ̄(ρ)/σ̄(1) on [0, 1]; the seed plays no part."""
    rho = torch.linspace(0.0, 1.0, points, dtype=torch.float64)
    series, claims, numbers = [], Claims(), {}
    for k, name in enumerate(activations):
        sigma = activation(name)
        kernel = mean_reduced_dual(sigma, rho) / moments(sigma).variance
        series.append(Series(name, tuple(rho.tolist()), tuple(kernel.tolist()), color=k))
        bend = float((kernel[2:] - 2 * kernel[1:-1] + kernel[:-2]).min())
        over = float((kernel - rho).max())
        slack = float((correlation_contraction(rho, isometry_strength(sigma)) - kernel).min())
        claims.add(
            f"{name}: σ̄(ρ)/σ̄(1) is convex on [0, 1] and at most ρ",
            bend >= -1e-12 and over <= 1e-12,
            f"smallest second difference {bend:.1e}, largest excess over ρ {over:.1e}",
        )
        claims.add(
            f"{name}: it is at most (2−β)ρ + (β−1)ρ² (sharper than Lemma B.6)",
            slack >= -1e-12,
            f"smallest slack {slack:.1e}",
        )
        numbers[name] = kernel.tolist()
        progress(k + 1, len(activations))
    panel = Panel("one layer's map of a correlation", "ρ before", "σ̄(ρ)/σ̄(1) after", tuple(series))
    return ExperimentResult(
        tuple(claims), {"rho": rho.tolist(), **numbers}, Figure("Dual kernel", (panel,), columns=1)
    )


EXPERIMENT = Experiment(
    name="p2.dual",
    description="The dual kernel of every activation is convex on [0, 1] and lies below the diagonal.",
    settings={"activations": ["identity", "tanh", "relu", "gelu", "exp", "he2"], "points": 101},
    quick={"points": 21},
    paper_size={},
    run=run,
)
