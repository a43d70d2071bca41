"""Isometry gap at initialization through networks whose layers differ in width, on MNIST and CIFAR-10.

Run: ``farfield reproduce p2.figC4``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from farfield.papers._curves import digits
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p2._simulation import band
from farfield.papers.p2._trained import PARTS, Stages, images, network, stages
from farfield.report import Figure, Panel, Series

TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


def run(
    *,
    progress: Progress,
    seed: int,
    datasets: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
    activation: str,
    n: int,
    runs: int,
    input_norm: str,
) -> ExperimentResult:
    """Gaps of batches of training images, a fresh batch and fresh weights in every run."""
    found: dict[tuple[str, str], list[Stages]] = {}
    total, done = len(datasets) * len(shapes) * runs, 0
    for dataset in datasets:
        batches = images(dataset, rows=runs * n, held_out=0, input_norm=input_norm, seed=seed).x.split(n)
        for k, (shape, widths) in enumerate(shapes.items()):
            own = []
            for r, batch in enumerate(batches):
                model = network(batch.shape[1], activation, tuple(widths), None, 1000 * seed + 100 * k + r)
                own.append(stages(model, batch))
                done += 1
                progress(done, total)
            found[dataset, shape] = own
    caption = (
        f"{activation} with LayerNorm at initialization, {n} training images in a batch; geometric mean and 95% "
        f"interval of {runs} runs with weights and images of their own. Between two layers: after the linear map, "
        "the activation, the centering; points: after LayerNorm. "
        + "; ".join(f"{shape}: {', '.join(map(str, widths))}" for shape, widths in shapes.items())
        + "."
    )
    panels = tuple(_panel(d, {s: found[d, s] for s in shapes}) for d in datasets)
    return ExperimentResult(
        tuple(v for (d, s), own in found.items() for v in verdicts(f"{TITLES.get(d, d)}, {s}", own)),
        {d: {s: _numbers(found[d, s]) for s in shapes} for d in datasets},
        Figure("Isometry gap through layers of varying widths", panels, caption, columns=2),
    )


def verdicts(what: str, own: Sequence[Stages]) -> list[ClaimVerdict]:
    """Of one kind of network, all its runs."""
    norms = torch.stack([torch.cat([torch.tensor([s.start], dtype=torch.float64), s.norms]) for s in own])
    ratio = norms[:, 1:] / norms[:, :-1]
    low, high = band(ratio)[1:]
    raised = {part: torch.stack([s.raised(part) for s in own]) for part in ("projection", "norm")}
    up = {part: int((value > 1e-9).sum()) for part, value in raised.items()}
    count = raised["norm"].numel()
    return [
        ClaimVerdict(
            f"{what}: every layer lowers the gap, whatever its width (95% interval of the ratio below 1)",
            bool((high < 1.0).all()),
            "ratios by layer "
            + ", ".join(
                f"{float(m):.2f} [{float(a):.2f}, {float(b):.2f}]"
                for m, a, b in zip(band(ratio)[0], low, high, strict=True)
            ),
        ),
        ClaimVerdict(
            f"{what}: the gap after the last layer is below half of the input's, in every run",
            bool((norms[:, -1] < 0.5 * norms[:, 0]).all()),
            f"{float(norms[:, 0].mean()):.3g} → {float(norms[:, -1].mean()):.3g}; largest ratio "
            f"{float((norms[:, -1] / norms[:, 0]).max()):.2f}",
        ),
        ClaimVerdict(
            f"{what}: no LayerNorm raises the gap, and no projection alone does (the latter is proved)",
            up["norm"] == 0 and up["projection"] == 0,
            f"{up['norm']} and {up['projection']} of {count} do",
        ),
    ]


def _panel(dataset: str, found: Mapping[str, Sequence[Stages]]) -> Panel:
    series = []
    for c, (shape, own) in enumerate(found.items()):
        x = own[0].curve()[0]
        middle, low, high = band(torch.stack([s.curve()[1] for s in own]))
        series.append(Series(shape, digits(x), digits(middle), digits(low), digits(high), color=c))
        every = len(PARTS)
        series.append(Series("", digits(x[::every]), digits(middle[::every]), style="points", color=c))
    title = TITLES.get(dataset, dataset)
    return Panel(title, "layer", "isometry gap −log I", tuple(series), y_scale="log")


def _numbers(own: Sequence[Stages]) -> dict[str, Any]:
    def mean(values: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(values)).mean(0)

    return {
        "input": digits(s.start for s in own),
        "norms": [digits(s.norms) for s in own],
        "mean_gaps_by_part": {
            part: digits(mean([s.gaps[:, k] for s in own])) for k, part in enumerate(PARTS)
        },
    }


EXPERIMENT = Experiment(
    name="p2.figC4",
    description=(
        "The isometry gap falls through a ReLU network with LayerNorm at initialization also where the widths of its "
        "layers vary, on batches of MNIST and CIFAR-10: five layers of constant, growing, shrinking and alternating "
        "width. Here ten runs with batches of 100 images; nothing is trained."
    ),
    settings={
        "datasets": ["mnist", "cifar10"],
        "shapes": {
            "constant": [1000, 1000, 1000, 1000, 1000], "growing": [512, 1024, 2048, 4096, 8192],
            "shrinking": [8192, 4096, 2048, 1024, 512], "alternating": [1024, 2048, 1024, 2048, 1024],
        },
        "activation": "relu", "n": 100, "runs": 10, "input_norm": "layer",
    },
    quick={
        "shapes": {
            "constant": [128, 128, 128], "growing": [64, 128, 256], "shrinking": [256, 128, 64],
            "alternating": [128, 256, 128],
        },
        "n": 12, "runs": 3,
    },
    paper_size={
        "datasets": ["mnist", "cifar10"], "activation": "relu", "shapes": None, "n": 100, "runs": 10,
        "input_norm": "layer",
    },
    run=run,
    data=("mnist", "cifar10"),
)  # fmt: skip
