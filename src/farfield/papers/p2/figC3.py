"""Mean-field constants against Xavier's initialization with the gain that is usual for the activation.

Run: ``farfield reproduce p2.figC3``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from torch import nn

from farfield.gaussian import isometry_strength
from farfield.papers._experiment import Claims, Experiment, ExperimentResult
from farfield.papers.p2._comparison import gap_panel
from farfield.papers.p2._simulation import Layering, PairedEnds, Sizes, pair_numbers, paired, simulate
from farfield.report import Figure, Table


def run(*, activations: Sequence[str], stronger: Sequence[str], **sizes: Unpack[Sizes]) -> ExperimentResult:
    """Gap of x ← (σ(Wx) − c₀)/√σ̄(1) beside x ← σ(gain·Wx), weights N(0, 1/width) in both.

    The gains are torch's (``nn.init.calculate_gain``). ``stronger``: where the paper finds the difference marked. A
    third network has the constants and the gain: it says whether a lower gap of Xavier's is the gain's doing.
    """
    gains = {name: float(nn.init.calculate_gain(name)) for name in activations}  # type: ignore[arg-type]
    constants = [Layering(a, center="mean_field", project="mean_field") for a in activations]
    xaviers = [Layering(a, center="none", project="none", gain=gains[a]) for a in activations]
    same = [Layering(a, center="mean_field", project="mean_field", gain=gains[a]) for a in activations]
    traces = simulate([*constants, *xaviers, *same], **sizes)
    panels, claims, numbers = [], Claims(), {}
    ends: dict[str, PairedEnds] = {}
    count, depth = len(activations), sizes["depth"]
    groups = (traces[:count], traces[count : 2 * count], traces[2 * count :])
    for name, constant, xavier, alike in zip(activations, *groups, strict=True):
        title = f"{name}, gain {gains[name]:.3g}"
        panels.append(gap_panel(title, {"(σ(Wx) − c₀)/√σ̄(1)": constant, "Xavier: σ(gain·Wx)": xavier}))
        ends[name] = paired(constant.gap, xavier.gap)
        claims.add(
            f"{name}: the mean-field constants end with a smaller gap than Xavier's initialization after {depth} "
            "layers",
            ends[name].lost[0] == 0 and ends[name].first < ends[name].second,
            ends[name].words("mean field", "Xavier"),
        )
        if ends[name].first >= ends[name].second:
            level = paired(alike.gap, xavier.gap)
            claims.add(
                f"{name}: that Xavier ends lower is its gain: with gain {gains[name]:.3g} in both, the "
                f"mean-field constants end lower or at most 5% higher after {depth} layers",
                level.lost == (0, 0) and level.first <= 1.05 * level.second,
                level.words("mean field", "Xavier")
                + f"; β = {isometry_strength(name):.3f} without the gain, "
                f"{isometry_strength(name, gain=gains[name]):.3f} with it",
            )
        numbers[name] = {
            "gain": gains[name],
            **pair_numbers(constant.gap, xavier.gap, ("mean field", "Xavier")),
        }
    factors = {name: found.second / found.first for name, found in ends.items()}
    others = [factor for name, factor in factors.items() if name not in stronger]
    claims.add(
        f"the improvement is stronger for {' and '.join(stronger)} than for all others",
        min(factors[name] for name in stronger) > max(others),
        "Xavier's gap over the mean field's: " + ", ".join(f"{k} {v:.3g}" for k, v in factors.items()),
    )
    rows = tuple((k, gains[k], ends[k].first, ends[k].second, factors[k]) for k in activations)
    table = Table(("activation", "Xavier's gain", "gap, mean field", "gap, Xavier", "factor"), rows)
    caption = "n = {n}, width {width}, no statistics of the layer in either, {runs} runs, 95% bands."
    return ExperimentResult(
        tuple(claims),
        numbers,
        Figure("Mean-field constants and Xavier's gain", tuple(panels), caption.format(**sizes), columns=3),
        table,
    )


EXPERIMENT = Experiment(
    name="p2.figC3",
    description=(
        "Offset and scale from the Hermite expansion improve isometry over Xavier's initialization, for all "
        "activations as the paper has it, most for ReLU and leaky ReLU, whose offset Xavier's gain does not correct."
    ),
    settings={
        "activations": ["relu", "leaky_relu", "tanh", "sigmoid", "selu"], "stronger": ["relu", "leaky_relu"],
        "n": 10, "width": 1000, "depth": 30, "degeneracy": 100.0, "runs": 10,
    },
    quick={"width": 128, "depth": 8, "runs": 3},
    paper_size={"activations": None, "n": None, "width": None, "depth": None, "runs": 10, "degeneracy": 100.0},
    run=run,
)  # fmt: skip
