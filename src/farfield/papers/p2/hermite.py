"""Hermite polynomials as activations: the linear one moves nothing, the others orthogonalise at once.

Run: ``farfield reproduce p2.hermite``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult
from farfield.papers.p2._comparison import Found, compare
from farfield.papers.p2._simulation import Layering, Sizes, Trace, band

_NAMES = {"He₁ (linear)": "identity", "He₂": "he2", "He₃": "he3"}


def run(**sizes: Unpack[Sizes]) -> ExperimentResult:
    """Gap through depth for He1 (the identity), He2 and He3."""

    def claim(_: str, traces: Sequence[Trace]) -> Found:
        gaps = {label: band(trace.gap)[0] for label, trace in zip(_NAMES, traces, strict=True)}
        linear, second, third = gaps.values()
        floor = (sizes["n"] - 1) / (2 * sizes["width"])
        early = min(6, sizes["depth"])
        verdicts = (
            ClaimVerdict(
                "a linear network with LayerNorm keeps its gap: last layer within 10% of the first",
                abs(float(linear[-1]) / float(linear[0]) - 1.0) < 0.1,
                f"{float(linear[0]):.3g} → {float(linear[-1]):.3g}",
            ),
            ClaimVerdict(
                f"He₂ and He₃ lose 99% of it within {early} layers",
                max(float(second[early]), float(third[early])) <= 0.01 * float(linear[0]),
                f"after {early} layers: He₂ {float(second[early]):.3g}, He₃ {float(third[early]):.3g}, "
                f"chance level (n−1)/2d = {floor:.3g}",
            ),
            ClaimVerdict(
                "the higher degree is the faster: He₃ below He₂ after one layer",
                float(third[1]) < float(second[1]),
                f"after one layer: He₂ {float(second[1]):.3g}, He₃ {float(third[1]):.3g}",
            ),
        )
        return verdicts, {label: gap.tolist() for label, gap in gaps.items()}

    groups = {"LayerNorm after the activation": {label: Layering(name) for label, name in _NAMES.items()}}
    title, caption = "Degree of the activation and isometry", "n = {n}, width {width}, {runs} runs."
    return compare(groups, claim, title=title, caption=caption, columns=1, **sizes)


EXPERIMENT = Experiment(
    name="p2.hermite",
    description="Hermite activations: degree one keeps the gap, degrees two and three remove it in a few layers.",
    settings={"n": 10, "width": 2000, "depth": 15, "degeneracy": 10.0, "runs": 10},
    quick={"width": 256, "depth": 8, "runs": 3},
    paper_size={},
    run=run,
)
