"""With and without centering: an activation with a mean keeps its samples aligned unless the mean is removed.

Run: ``farfield reproduce p2.centering``
"""

from __future__ import annotations

from collections.abc import Sequence

from farfield.gaussian import mean_field_constants
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p2._simulation import Layering, band, measured, simulate
from farfield.report import Figure, Panel


def run(
    *,
    progress: Progress,
    seed: int,
    activations: Sequence[str],
    n: int,
    width: int,
    depth: int,
    degeneracy: float,
    runs: int,
) -> ExperimentResult:
    """Gap through depth, projection always on, centering on and off."""
    layerings = [Layering(a, center=c) for a in activations for c in ("layer", "none")]
    traces = simulate(
        layerings,
        n=n,
        width=width,
        depth=depth,
        degeneracy=degeneracy,
        runs=runs,
        seed=seed,
        progress=progress,
    )
    panels, verdicts, numbers = [], [], {}
    for k, name in enumerate(activations):
        with_, without = traces[2 * k].gap, traces[2 * k + 1].gap
        panels.append(
            Panel(
                name, "layer ℓ", "isometry gap −log I",
                (measured("with centering", with_, 0), measured("without centering", without, 1)), y_scale="log",
            )
        )  # fmt: skip
        a, b = float(band(with_)[0][-1]), float(band(without)[0][-1])
        offset = mean_field_constants(name)[0]
        if offset == 0.0:
            verdicts.append(
                ClaimVerdict(
                    f"{name} (mean zero): centering makes no difference, within 10% at layer {depth}",
                    abs(a / b - 1.0) < 0.1,
                    f"with {a:.3g}, without {b:.3g}",
                )
            )
        else:
            verdicts.append(
                ClaimVerdict(
                    f"{name} (mean {offset:.3g}): without centering the gap at layer {depth} is over 5 times larger",
                    b >= 5.0 * a,
                    f"with {a:.3g}, without {b:.3g}",
                )
            )
        numbers[name] = {"with": band(with_)[0].tolist(), "without": band(without)[0].tolist()}
    caption = f"n = {n}, width {width}, projection on, {runs} runs, 95% bands."
    return ExperimentResult(tuple(verdicts), numbers, Figure("Centering", tuple(panels), caption))


EXPERIMENT = Experiment(
    name="p2.centering",
    description="Projection alone is not enough: without centering, activations with a mean keep the gap.",
    settings={
        "activations": ["relu", "tanh", "sigmoid", "exp"],
        "n": 10, "width": 1000, "depth": 30, "degeneracy": 100.0, "runs": 10,
    },
    quick={"width": 128, "depth": 8, "runs": 3},
    paper_size={},
    run=run,
)  # fmt: skip
