"""Layer statistics replaced by their infinite-width constants.

Run: ``farfield reproduce p2.fig4``
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import torch

from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult
from farfield.papers.p2._comparison import Found, compare
from farfield.papers.p2._simulation import SIZES, Layering, Sizes, Trace, band


def run(*, activations: Sequence[str], **sizes: Unpack[Sizes]) -> ExperimentResult:
    """Gap through depth with LayerNorm and with the mean replaced by c₀, projection by statistics in both."""
    groups = {
        a: {"x − mean(x)": Layering(a), "x − c₀": Layering(a, center="mean_field")} for a in activations
    }
    caption = "n = {n}, width {width}, projection by layer statistics, {runs} runs, 95% bands."
    return compare(groups, _claim, title="Centering by mean or by constant", caption=caption, **sizes)


def _claim(name: str, traces: Sequence[Trace]) -> Found:
    layer, constant = (trace.gap for trace in traces)
    ratio = torch.log(layer) - torch.log(constant)
    worst = float(ratio.mean(0).abs().max())
    middle = band(layer)[0]
    verdict = ClaimVerdict(
        f"{name}: centering by c₀ gives the gap of centering by the mean within a factor 1.5 at every layer",
        worst < math.log(1.5),
        f"largest factor over layers {math.exp(worst):.3f}, while the gap falls by a factor "
        f"{float(middle[0] / middle[-1]):.3g}",
    )
    return [verdict], {name: {"mean": middle.tolist(), "constant": band(constant)[0].tolist()}}


EXPERIMENT = Experiment(
    name="p2.fig4",
    description="The layer's mean can be replaced by one number, c₀ = E σ(z): the gap follows the same curve.",
    settings={**SIZES, "degeneracy": 100.0},
    quick={"width": 256, "depth": 6, "runs": 3},
    paper_size={**SIZES, "degeneracy": 100.0},
    run=run,
)
