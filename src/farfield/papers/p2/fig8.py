"""(a) Offset and scale in place of LayerNorm; (b) activation before or after the norm.

Run: ``farfield reproduce p2.fig8``
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

from torch import Tensor

from farfield.papers._experiment import Claims, ClaimVerdict, Experiment, ExperimentResult
from farfield.papers.p2._comparison import gap_panel
from farfield.papers.p2._simulation import Layering, Sizes, band, pair_numbers, paired, simulate
from farfield.report import Figure


def run(
    *, activations: Sequence[str], self_normalized: Sequence[str], ordered: str, **sizes: Unpack[Sizes]
) -> ExperimentResult:
    """Part a: gap of x ← (a − c₀)/√σ̄(1) beside LayerNorm's. Part b: LN(σ(Wx)) against σ(LN(Wx)), ``ordered`` as σ."""
    constants = [Layering(a, center="mean_field", project="mean_field") for a in activations]
    layerings = [
        *constants,
        *(Layering(a) for a in activations),
        Layering(ordered),
        Layering(ordered, order="pre"),
    ]
    traces = simulate(layerings, **sizes)
    count, depth = len(activations), sizes["depth"]
    panels, claims, numbers = [], Claims(), {}
    for name, constant, layer in zip(activations, traces[:count], traces[count : 2 * count], strict=True):
        panels.append(gap_panel(f"(a) {name}", {"offset and scale": constant, "LayerNorm": layer}))
        claims.append(_self_normalized(name, name in self_normalized, constant.gap, layer.gap, depth))
        numbers[name] = pair_numbers(constant.gap, layer.gap, ("offset and scale", "LayerNorm"))
    post, pre = traces[2 * count :]
    panels.append(gap_panel(f"(b) {ordered}", {"x ← LN(σ(Wx))": post, "x ← σ(LN(Wx))": pre}, color=2))
    a, b = (float(band(trace.gap)[0][-1]) for trace in (post, pre))
    claims.add(
        f"(b) {ordered}: normalizing after the activation ends with a gap at least 5 times smaller after {depth} "
        "layers",
        5.0 * a <= b,
        f"LN after σ: {a:.3g}; σ after LN: {b:.3g}",
    )
    numbers["order"] = pair_numbers(post.gap, pre.gap, ("LN after σ", "σ after LN"))
    caption = (
        "n = {n}, width {width}, {runs} runs, 95% bands. (a): c₀ subtracted and divided by √σ̄(1), both constants of "
        "the activation, beside centering and projection by the layer's statistics. (b): order of activation and "
        "norm."
    ).format(**sizes)
    return ExperimentResult(
        tuple(claims), numbers, Figure("Self-normalization, and order", tuple(panels), caption, columns=3)
    )


def _self_normalized(name: str, wanted: bool, constant: Tensor, layer: Tensor, depth: int) -> ClaimVerdict:
    ends = paired(constant, layer)
    text = ends.words("offset and scale", "LayerNorm")
    if wanted:
        return ClaimVerdict(
            f"(a) {name} normalizes itself: with offset and scale alone the gap at layer {depth} is within a factor "
            "1.5 of LayerNorm's",
            ends.lost == (0, 0) and abs(math.log(ends.first / ends.second)) < math.log(1.5),
            text,
        )
    return ClaimVerdict(
        f"(a) {name} needs LayerNorm: with offset and scale alone the gap at layer {depth} is over 1.5 times "
        "LayerNorm's, or the network is lost",
        ends.lost[0] > 0 or ends.first > 1.5 * ends.second,
        text,
    )


EXPERIMENT = Experiment(
    name="p2.fig8",
    description=(
        "(a) Self-normalizing activations (SELU, tanh) reach isometry with offset and scale alone, ReLU needs the "
        "norm; (b) the norm orthogonalises only if it comes after the activation, where there is a mean to remove."
    ),
    settings={
        "activations": ["relu", "tanh", "selu", "sigmoid", "exp"], "self_normalized": ["tanh", "selu", "sigmoid"],
        "ordered": "relu", "n": 10, "width": 1000, "depth": 30, "degeneracy": 10.0, "runs": 10,
    },
    quick={"width": 256, "depth": 10, "runs": 3},
    paper_size={
        "activations": None, "n": 10, "width": 1000, "depth": None, "runs": 10,
        "degeneracy": "5 in (a), 100 in (b)",
    },
    run=run,
)  # fmt: skip
