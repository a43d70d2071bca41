"""Hermite polynomials as activations: the linear one moves nothing, the others orthogonalise at once.

Run: ``farfield reproduce p2.hermite``
"""

from __future__ import annotations

from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p2._simulation import Layering, band, measured, simulate
from farfield.report import Figure, Panel


def run(
    *, progress: Progress, seed: int, n: int, width: int, depth: int, degeneracy: float, runs: int
) -> ExperimentResult:
    """Gap through depth for He1 (the identity), He2 and He3."""
    names = {"identity": "He₁ (linear)", "he2": "He₂", "he3": "He₃"}
    traces = simulate(
        [Layering(s) for s in names],
        n=n, width=width, depth=depth, degeneracy=degeneracy, runs=runs, seed=seed, progress=progress,
    )  # fmt: skip
    series = tuple(
        measured(label, t.gap, k) for k, (label, t) in enumerate(zip(names.values(), traces, strict=True))
    )
    linear, second, third = (band(t.gap)[0] for t in traces)
    floor = (n - 1) / (2 * width)
    early = min(6, depth)
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
    panel = Panel("LayerNorm after the activation", "layer ℓ", "isometry gap −log I", series, y_scale="log")
    return ExperimentResult(
        verdicts,
        {label: band(t.gap)[0].tolist() for label, t in zip(names.values(), traces, strict=True)},
        Figure(
            "Degree of the activation and isometry",
            (panel,),
            f"n = {n}, width {width}, {runs} runs.",
            columns=1,
        ),
    )


EXPERIMENT = Experiment(
    name="p2.hermite",
    description="Hermite activations: degree one keeps the gap, degrees two and three remove it in a few layers.",
    settings={"n": 10, "width": 2000, "depth": 15, "degeneracy": 10.0, "runs": 10},
    quick={"width": 256, "depth": 8, "runs": 3},
    paper_size={},
    run=run,
)
