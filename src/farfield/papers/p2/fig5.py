"""With and without projection, after centering by the mean-field constant.

Run: ``farfield reproduce p2.fig5``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch

from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult
from farfield.papers.p2._comparison import Found, compare
from farfield.papers.p2._simulation import SIZES, Layering, Sizes, Trace, band


def run(*, activations: Sequence[str], **sizes: Unpack[Sizes]) -> ExperimentResult:
    """Gap through depth, mean-field centering always on, projection on and off."""
    groups = {
        a: {
            "with projection": Layering(a, center="mean_field"),
            "without projection": Layering(a, center="mean_field", project="none"),
        }
        for a in activations
    }
    caption = "n = {n}, width {width}, centered by c₀, {runs} runs, 95% bands."
    return compare(groups, _claim, title="Projection", caption=caption, **sizes)


def _claim(name: str, traces: Sequence[Trace]) -> Found:
    with_, without = (band(trace.gap)[0] for trace in traces)
    a, depth = float(with_[-1]), len(with_) - 1
    lost = bool((~torch.isfinite(traces[1].gap[:, -1])).any())
    b = float("inf") if lost else float(without[-1])
    verdict = ClaimVerdict(
        f"{name}: without projection the gap at layer {depth} is larger, or the network over- or underflows",
        lost or b > a,
        f"with {a:.3g}, without {'lost (not finite)' if lost else f'{b:.3g}'}",
    )
    return [verdict], {name: {"with": with_.tolist(), "without": without.tolist()}}


EXPERIMENT = Experiment(
    name="p2.fig5",
    description="Centering alone is not enough: without projection the pre-activations drift off unit variance.",
    settings={**SIZES, "degeneracy": 10.0},
    quick={"width": 128, "depth": 8, "runs": 3},
    paper_size={**SIZES, "degeneracy": 10.0},
    run=run,
)
