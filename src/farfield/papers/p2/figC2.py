"""Gain and isometry: σ(αx) loses its gap faster the larger its isometry strength.

Run: ``farfield reproduce p2.figC2``
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from farfield.gaussian import isometry_strength
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult
from farfield.papers.p2._comparison import Found, compare
from farfield.papers.p2._simulation import Layering, Sizes, Trace, band


def run(
    *, activations: Sequence[str], gains: Sequence[float], at: int, **sizes: Unpack[Sizes]
) -> ExperimentResult:
    """Gap through depth at several gains; compared at layer ``at``, before chance correlations level all curves."""
    groups = {a: {f"α = {g:g}": Layering(a, gain=g) for g in gains} for a in activations}

    def claim(name: str, traces: Sequence[Trace]) -> Found:
        betas = [isometry_strength(name, gain=g) for g in gains]
        gaps = [band(t.gap)[0] for t in traces]
        middles = [float(gap[at]) for gap in gaps]
        text = ", ".join(
            f"α={g:g}: β={b:.3f}, gap {m:.3g}" for g, b, m in zip(gains, betas, middles, strict=True)
        )
        if max(betas) - min(betas) < 1e-9:
            spread = max(middles) / min(middles) - 1.0
            verdict = ClaimVerdict(f"{name}: the gain makes no difference (1e-9)", spread < 1e-9, text)
        else:
            order = [m for _, m in sorted(zip(betas, middles, strict=True))]
            decreasing = all(a > b for a, b in itertools.pairwise(order))
            verdict = ClaimVerdict(
                f"{name}: the larger β, the smaller the gap after {at} layers", decreasing, text
            )
        return [verdict], {name: {"beta": betas, "gap": [gap.tolist() for gap in gaps]}}

    caption = "n = {n}, width {width}, LayerNorm after the activation, {runs} runs, 95% bands."
    result = compare(groups, claim, title="Gain", caption=caption, columns=3, **sizes)
    return replace(result, numbers={"gains": list(gains), **result.numbers})


EXPERIMENT = Experiment(
    name="p2.figC2",
    description="A larger gain makes sin and tanh more nonlinear and isometry faster; ReLU does not notice.",
    settings={
        "activations": ["sin", "relu", "tanh"], "gains": [0.5, 1.0, 2.0],
        "n": 10, "width": 1000, "depth": 30, "degeneracy": 100.0, "runs": 10, "at": 4,
    },
    quick={"width": 256, "depth": 6, "runs": 3},
    paper_size={
        "activations": None, "gains": None, "n": None, "width": None, "depth": None, "runs": 10,
        "degeneracy": 100.0,
    },
    run=run,
)  # fmt: skip
