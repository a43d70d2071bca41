"""With and without centering: an activation with a mean keeps its samples aligned unless the mean is removed.

Run: ``farfield reproduce p2.centering``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from farfield.gaussian import mean_field_constants
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult
from farfield.papers.p2._comparison import Found, compare
from farfield.papers.p2._simulation import SIZES, Layering, Sizes, Trace, band


def run(*, activations: Sequence[str], **sizes: Unpack[Sizes]) -> ExperimentResult:
    """Gap through depth, projection always on, centering on and off."""
    groups = {
        a: {"with centering": Layering(a), "without centering": Layering(a, center="none")}
        for a in activations
    }
    caption = "n = {n}, width {width}, projection on, {runs} runs, 95% bands."
    return compare(groups, _claim, title="Centering", caption=caption, **sizes)


def _claim(name: str, traces: Sequence[Trace]) -> Found:
    with_, without = (band(trace.gap)[0] for trace in traces)
    a, b, depth = float(with_[-1]), float(without[-1]), len(with_) - 1
    offset = mean_field_constants(name)[0]
    if offset == 0.0:
        claim = f"{name} (mean zero): centering makes no difference, within 10% at layer {depth}"
        holds = abs(a / b - 1.0) < 0.1
    else:
        claim = (
            f"{name} (mean {offset:.3g}): without centering the gap at layer {depth} is over 5 times larger"
        )
        holds = b >= 5.0 * a
    verdict = ClaimVerdict(claim, holds, f"with {a:.3g}, without {b:.3g}")
    return [verdict], {name: {"with": with_.tolist(), "without": without.tolist()}}


EXPERIMENT = Experiment(
    name="p2.centering",
    description="Projection alone is not enough: without centering, activations with a mean keep the gap.",
    settings={**SIZES, "degeneracy": 100.0},
    quick={"width": 128, "depth": 8, "runs": 3},
    paper_size={},
    run=run,
)
