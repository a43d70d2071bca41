"""Activation before or after the norm.

Run: ``farfield reproduce p2.order``
"""

from __future__ import annotations

from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p2._simulation import Layering, band, measured, simulate
from farfield.report import Figure, Panel


def run(
    *,
    progress: Progress,
    seed: int,
    activation: str,
    n: int,
    width: int,
    depth: int,
    degeneracy: float,
    runs: int,
) -> ExperimentResult:
    """Gap through depth for LN(σ(Wx)) and σ(LN(Wx))."""
    post, pre = simulate(
        [Layering(activation), Layering(activation, order="pre")],
        n=n, width=width, depth=depth, degeneracy=degeneracy, runs=runs, seed=seed, progress=progress,
    )  # fmt: skip
    a, b = float(band(post.gap)[0][-1]), float(band(pre.gap)[0][-1])
    panel = Panel(
        activation, "layer ℓ", "isometry gap −log I",
        (measured("x ← LN(σ(Wx))", post.gap, 0), measured("x ← σ(LN(Wx))", pre.gap, 1)), y_scale="log",
    )  # fmt: skip
    verdict = ClaimVerdict(
        f"normalising after the activation ends with a gap at least 5 times smaller after {depth} layers",
        5.0 * a <= b,
        f"LN after σ: {a:.3g}; σ after LN: {b:.3g}",
    )
    caption = f"n = {n}, width {width}, {runs} runs, 95% bands."
    return ExperimentResult(
        (verdict,),
        {"post": band(post.gap)[0].tolist(), "pre": band(pre.gap)[0].tolist()},
        Figure("Order of activation and norm", (panel,), caption, columns=1),
    )


EXPERIMENT = Experiment(
    name="p2.order",
    description="The norm orthogonalises only if it comes after the activation, where there is a mean to remove.",
    settings={"activation": "relu", "n": 10, "width": 1000, "depth": 30, "degeneracy": 100.0, "runs": 10},
    quick={"width": 128, "depth": 8, "runs": 3},
    run=run,
)
