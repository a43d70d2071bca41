"""Projection by the layer's own statistics against division by one constant, c₀ subtracted in both.

Run: ``farfield reproduce p2.fig6``
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult
from farfield.papers.p2._comparison import Found, compare
from farfield.papers.p2._simulation import SIZES, Layering, Sizes, Trace, pair_numbers, paired

_COMPARABLE = 1.5
"""Two gaps are called comparable within this factor."""


def run(*, activations: Sequence[str], effective: Sequence[str], **sizes: Unpack[Sizes]) -> ExperimentResult:
    """Gap through depth of x ← LN(a − c₀) and of x ← (a − c₀)/√σ̄(1).

    ``effective``: the activations for which the paper calls the constant comparable.
    """
    groups = {
        a: {
            "LN(a − c₀)": Layering(a, center="mean_field"),
            "(a − c₀)/√σ̄(1)": Layering(a, center="mean_field", project="mean_field"),
        }
        for a in activations
    }

    def claim(name: str, traces: Sequence[Trace]) -> Found:
        layer, constant = traces
        ends = paired(layer.gap, constant.gap)
        comparable = ends.lost == (0, 0) and abs(math.log(ends.second / ends.first)) < math.log(_COMPARABLE)
        what = "is comparable to" if name in effective else "is not comparable to"
        verdicts = [
            ClaimVerdict(
                f"{name}: dividing by the constant {what} projection by statistics (factor {_COMPARABLE:g} of the "
                f"gap at layer {sizes['depth']})",
                comparable == (name in effective),
                ends.words("statistics", "constant"),
            )
        ]
        if name in effective and not comparable and ends.lost == (0, 0):
            verdicts.append(_unequal_lengths(name, layer, constant, sizes["depth"]))
        return verdicts, {name: pair_numbers(layer.gap, constant.gap, ("statistics", "constant"))}

    title = "Projection by statistics or by a constant"
    caption = "n = {n}, width {width}, c₀ subtracted in both, {runs} runs, 95% bands."
    return compare(groups, claim, title=title, caption=caption, **sizes)


def _unequal_lengths(name: str, layer: Trace, constant: Trace, depth: int) -> ClaimVerdict:
    """Why the constant leaves more: the part of its gap that scaling every row to one length takes away."""
    assert constant.lengths is not None
    more = float((constant.gap[:, -1] - layer.gap[:, -1]).mean())
    lengths = float(constant.lengths[:, -1].mean())
    return ClaimVerdict(
        f"{name}: over half of what the constant leaves more at layer {depth} is unequal lengths of the rows, which "
        "a projection takes away",
        lengths > 0.5 * more,
        f"{more:.3g} more, on average over runs; unequal lengths make {lengths:.3g}",
    )


EXPERIMENT = Experiment(
    name="p2.fig6",
    description=(
        "The projection can be replaced by division by the constant √σ̄(1) for tanh, sigmoid and, as the paper has "
        "it, ReLU; not for exp."
    ),
    settings={**SIZES, "effective": ["relu", "tanh", "sigmoid"], "degeneracy": 10.0},
    quick={"width": 128, "depth": 8, "runs": 3},
    paper_size={**SIZES, "depth": None, "degeneracy": 10.0},
    run=run,
)
