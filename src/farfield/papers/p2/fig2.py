"""Isometry gap through the layers of networks on CIFAR-10, at initialisation and after training.

Run: ``farfield reproduce p2.fig2``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from farfield.gaussian import isometry_strength
from farfield.learn import Training, train
from farfield.nn import MLP
from farfield.papers._curves import digits
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p2._trained import Images, Stages, accuracy, floor, images, network, stages
from farfield.report import Figure, Panel, Series

Measured: TypeAlias = "dict[int, tuple[Stages, ...]]"
TIMES = ("initialisation", "trained")


@dataclass(frozen=True)
class TrainingEffect:
    """One network: what held-out batches show before and after its training, and how that went.

    ``before`` and ``after`` by the number of rows that a Gram matrix compares.
    """

    activation: str
    before: Measured
    after: Measured
    losses: Tensor
    accuracy: float


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    activations: Sequence[str],
    rows: int | None,
    width: int,
    depth: int,
    batch_size: int,
    lr: float,
    epochs: int,
    compared: Sequence[int],
    batches: int,
    precision: str,
) -> ExperimentResult:
    """Train one network of each activation; gaps of held-out batches after every part of every layer.

    ``compared``: how many rows a Gram matrix has, each with ``batches`` batches of its own.
    """
    data = images("cifar10", rows=rows, held_out=batches * max(compared), seed=seed)
    training = Training(
        epochs=epochs, batch_size=batch_size, optimizer="sgd", lr=lr, loss="cross_entropy",
        precision=precision,  # type: ignore[arg-type]
    )  # fmt: skip
    total = len(activations) * epochs
    found = []
    for k, name in enumerate(activations):
        found.append(
            _trained(
                name, data, training, width, depth, _split(data, compared, batches), 1000 * seed + k, scratch / name,
                lambda done, _, k=k: progress(k * epochs + done, total),  # type: ignore[misc]
            )
        )  # fmt: skip
    caption = (
        f"Held-out images of CIFAR-10 through {depth} layers of {width}: linear, activation, centring, projection "
        f"(points: the outputs of LayerNorm); {' or '.join(map(str, compared))} rows in a Gram matrix. One network "
        f"for each activation, trained on {len(data.x):,} images for {epochs} epochs, SGD at {lr:g}, batches of "
        f"{batch_size}, products in {precision}. Bands: smallest and largest of {batches} batches. Dotted: the gap "
        "of as many independent Gaussian rows."
    )
    return ExperimentResult(
        tuple(v for f in found for v in _verdicts(f)),
        {f.activation: _numbers(f) for f in found}
        | {"gaussian_rows": {n: floor(n, width - 1) for n in compared}},
        Figure(
            "Isometry gap before and after training",
            tuple(_panel(f, n, floor(n, width - 1)) for n in compared for f in found),
            caption,
            columns=len(found),
        ),
    )


def _split(data: Images, compared: Sequence[int], batches: int) -> dict[int, list[Tensor]]:
    return {n: list(data.held_out[: batches * n].split(n)) for n in compared}


def _measured(model: nn.Module, batches: dict[int, list[Tensor]]) -> Measured:
    assert isinstance(model, MLP)
    return {n: tuple(stages(model, batch) for batch in own) for n, own in batches.items()}


def _trained(
    name: str,
    data: Images,
    training: Training,
    width: int,
    depth: int,
    held_out: dict[int, list[Tensor]],
    seed: int,
    checkpoint: Path,
    progress: Progress,
) -> TrainingEffect:
    model = network(data.x.shape[1], name, width, depth, seed)
    before = _measured(model, held_out)
    done = train(
        [model], data.x, data.y, training=training, seeds=[seed], checkpoint=checkpoint, progress=progress
    )
    after = done.models[0]
    return TrainingEffect(
        name,
        before,
        _measured(after, held_out),
        done.losses[:, 0],
        accuracy(after, data.held_out, data.held_out_y),
    )


def _verdicts(found: TrainingEffect) -> list[ClaimVerdict]:
    name = found.activation
    out = [
        ClaimVerdict(
            f"{name}: training lowers the loss",
            float(found.losses[-1]) < float(found.losses[0]),
            f"mean over the first epoch {float(found.losses[0]):.3f}, over the last {float(found.losses[-1]):.3f}; "
            f"{found.accuracy:.1%} of the held-out images right",
        )
    ]
    for time, measured in zip(TIMES, (found.before, found.after), strict=True):
        for n, batches in measured.items():
            out += _norm_verdicts(f"{name}, {time}, {n} rows", batches)
    return out


def _norm_verdicts(what: str, batches: Sequence[Stages]) -> list[ClaimVerdict]:
    rise = {
        part: torch.stack([b.raised(part) for b in batches]) for part in ("projection", "norm", "centring")
    }
    up = {part: int((value > 1e-9).sum()) for part, value in rise.items()}
    norms = torch.stack([b.norms for b in batches])
    steps = norms.diff(dim=1)
    start = sum(b.start for b in batches) / len(batches)
    count = rise["norm"].numel()
    return [
        ClaimVerdict(
            f"{what}: no projection raises the gap (proved for any rows)",
            up["projection"] == 0,
            f"{up['projection']} of {count} (layers × batches) do; change between {_range(rise['projection'])}",
        ),
        ClaimVerdict(
            f"{what}: no LayerNorm raises the gap",
            up["norm"] == 0,
            f"{up['norm']} of {count} do; change between {_range(rise['norm'])}; of its centrings alone, which may, "
            f"{up['centring']} do",
        ),
        ClaimVerdict(
            f"{what}: the gap after the last LayerNorm is below that after the first, in every batch",
            bool((norms[:, -1] < norms[:, 0]).all()),
            f"input {start:.3g}; first {float(norms[:, 0].mean()):.3g}, last {float(norms[:, -1].mean()):.3g} (means "
            f"of {len(batches)} batches); lower than the layer before in {int((steps < 0).sum())} of {steps.numel()} "
            "steps",
        ),
    ]


def _range(values: Tensor) -> str:
    return f"{float(values.min()):.3g} and {float(values.max()):.3g}"


def _panel(found: TrainingEffect, n: int, least: float) -> Panel:
    series = []
    for c, (time, measured) in enumerate(zip(TIMES, (found.before, found.after), strict=True)):
        batches = measured[n]
        x = batches[0].curve()[0]
        y = torch.stack([b.curve()[1] for b in batches])
        band = digits(y.amin(0)), digits(y.amax(0))
        series.append(Series(time, digits(x), digits(y.mean(0)), *band, colour=c))
        norms = digits(y.mean(0)[4::4])
        series.append(Series("", digits(x[4::4]), norms, style="points", colour=c))
    ends = (0.0, float(len(found.before[n][0].norms)))
    series.append(Series("Gaussian rows", ends, (least, least), style="dotted", colour=7))
    title = f"{found.activation}, β = {isometry_strength(found.activation):.3f}: {n} rows"
    return Panel(title, "layer", "isometry gap −log I", tuple(series), y_scale="log")


def _numbers(found: TrainingEffect) -> dict[str, Any]:
    return {
        "losses": digits(found.losses),
        "held_out_accuracy": found.accuracy,
        **{
            time: {
                n: [{"input": b.start, "gaps": [digits(g) for g in b.gaps]} for b in own]
                for n, own in m.items()
            }
            for time, m in zip(TIMES, (found.before, found.after), strict=True)
        },
    }


EXPERIMENT = Experiment(
    name="p2.fig2",
    description=(
        "Isometry through an MLP on CIFAR-10, ten layers of 1000 with LayerNorm, batches of 512, SGD at 0.01, before "
        "and after training: normalisation raises isometry at every layer, at initialisation and after training. "
        "Proved is that for the projection alone; LayerNorm also centres, and both parts are shown. Here one network "
        "for each of three activations, five epochs over all 50,000 training images, products in bfloat16; gaps are "
        "measured in float64 on held-out images."
    ),
    settings={
        "activations": ["relu", "tanh", "sigmoid"], "rows": None, "width": 1000, "depth": 10, "batch_size": 512,
        "lr": 0.01, "epochs": 5, "compared": [512, 32], "batches": 3, "precision": "bfloat16",
    },
    quick={
        "rows": 512, "width": 64, "depth": 3, "batch_size": 32, "epochs": 2, "compared": [32, 4], "batches": 2,
        "precision": "float32",
    },
    run=run,
    resumable=True,
    data=("cifar10",),
)  # fmt: skip
