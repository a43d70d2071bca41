"""Training loss of networks that differ in their activation alone, beside the isometry strength of each.

Run: ``farfield reproduce p2.fig7``
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from farfield._intervals import mean_interval
from farfield.gaussian import isometry_strength
from farfield.learn import Training, train
from farfield.papers._correlation import chance, pearson, spearman
from farfield.papers._curves import digits
from farfield.papers._experiment import Claims, ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p2._trained import images, network
from farfield.report import Figure, Panel, Series, Table


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    activations: Sequence[str],
    runs: int,
    rows: int | None,
    width: int,
    depth: int,
    batch_size: int,
    lr: float,
    epochs: int,
    precision: str,
    input_norm: str,
) -> ExperimentResult:
    """Train every activation ``runs`` times; a run's networks share initial weights and the order of batches."""
    data = images("cifar10", rows=rows, held_out=0, input_norm=input_norm, seed=seed)
    betas = torch.tensor([isometry_strength(name) for name in activations], dtype=torch.float64)
    seeds = [1000 * seed + r for r in range(runs)]
    models = [network(data.x.shape[1], name, width, depth, s) for name in activations for s in seeds]
    training = Training(
        epochs=epochs, batch_size=batch_size, optimizer="sgd", lr=lr, loss="cross_entropy",
        precision=precision,  # type: ignore[arg-type]
    )  # fmt: skip
    done = train(
        models, data.x, data.y, training=training, seeds=seeds * len(activations), checkpoint=scratch / "training",
        progress=progress,
    )  # fmt: skip
    losses = done.losses.reshape(epochs, len(activations), runs).permute(2, 1, 0)
    caption = (
        f"CIFAR-10, {len(data.x):,} images, {depth} layers of {width} with LayerNorm, SGD at {lr:g}, batches of "
        f"{batch_size}, {epochs} epochs, products in {precision}; mean and 95% t-interval of {runs} runs. Middle: "
        "the training loss, averaged over all epochs, of every run. Right: correlation over the activations."
    )
    figure = Figure(
        "Training loss and isometry strength",
        (_curves(activations, betas, losses), _against(activations, betas, losses), _by_epoch(betas, losses)),
        caption,
        columns=3,
    )
    numbers = {
        "beta": dict(zip(activations, betas.tolist(), strict=True)),
        "losses": {name: [digits(v) for v in losses[:, k]] for k, name in enumerate(activations)},
    }
    return ExperimentResult(
        tuple(verdicts(betas, losses)), numbers, figure, _table(activations, betas, losses)
    )


def verdicts(betas: Tensor, losses: Tensor) -> list[ClaimVerdict]:
    """Of isometry strengths (activations,) and training losses (runs, activations, epochs)."""
    claims = Claims()
    for what, value in (
        ("the mean training loss over all epochs", losses.mean(2)),
        ("the last epoch's", losses[..., -1]),
    ):
        for kind, correlation in (("Pearson", pearson), ("rank", spearman)):
            mean, half = mean_interval(correlation(betas, -value))
            claims.add(
                f"{kind} correlation of β with speed ({what}, negated) is positive, its 95% interval too",
                float(mean - half) > 0.0,
                f"{float(mean):.3f} ± {float(half):.3f} over {len(losses)} runs, {len(betas)} activations each",
            )
    share = chance(betas, -losses.mean((0, 2)))
    claims.add(
        "few activations can agree by chance: at most 5% of all reorderings of β correlate as well with the mean "
        "training loss",
        share <= 0.05,
        f"{share:.2%} of the reorderings",
    )
    order = betas.argsort()
    strong, weak = order[len(order) - 3 :], order[: len(order) - 3]
    means = losses.mean((0, 2))
    claims.add(
        "the three activations of largest β all train faster than all others (mean training loss)",
        bool(means[strong].max() < means[weak].min()),
        f"slowest of the three {float(means[strong].max()):.3f}, fastest of the others "
        f"{float(means[weak].min()):.3f}",
    )
    return claims


def _curves(activations: Sequence[str], betas: Tensor, losses: Tensor) -> Panel:
    at = tuple(float(e) for e in range(1, losses.shape[2] + 1))
    series = []
    for k, name in enumerate(activations):
        mean, half = mean_interval(losses[:, k])
        label = f"{name}, β = {float(betas[k]):.3f}"
        series.append(Series(label, at, digits(mean), digits(mean - half), digits(mean + half), color=k))
    return Panel("training loss", "epoch", "cross-entropy", tuple(series))


def _against(activations: Sequence[str], betas: Tensor, losses: Tensor) -> Panel:
    series = [
        Series("", (float(betas[k]),) * len(losses), digits(losses[:, k].mean(1)), style="points", color=k)
        for k in range(len(activations))
    ]
    return Panel("mean loss against β", "isometry strength β", "mean training loss", tuple(series))


def _by_epoch(betas: Tensor, losses: Tensor) -> Panel:
    at = tuple(float(e) for e in range(1, losses.shape[2] + 1))
    series = []
    for c, (kind, correlation) in enumerate((("Pearson", pearson), ("rank", spearman))):
        mean, half = mean_interval(correlation(betas, -losses.mT))
        series.append(Series(kind, at, digits(mean), digits(mean - half), digits(mean + half), color=c))
    return Panel("β and −loss of an epoch", "epoch", "correlation", tuple(series), y_range=(-1.0, 1.0))


def _table(activations: Sequence[str], betas: Tensor, losses: Tensor) -> Table:
    rows = []
    for k in betas.argsort().tolist():
        (mean, half), (last, last_half) = (mean_interval(v[:, k]) for v in (losses.mean(2), losses[..., -1]))
        rows.append(
            (
                activations[k], float(f"{float(betas[k]):.4f}"), f"{float(mean):.3f} ± {float(half):.3f}",
                f"{float(last):.3f} ± {float(last_half):.3f}",
            )
        )  # fmt: skip
    return Table(("activation", "β", "mean training loss", "loss of the last epoch"), tuple(rows))


EXPERIMENT = Experiment(
    name="p2.fig7",
    description=(
        "Networks with an activation of larger isometry strength β train faster: training losses of seven "
        "activations with LayerNorm on CIFAR-10, several runs of each by SGD. A run's seven networks start from the "
        "same weights and see the same batches. The default sizes are smaller than the paper's, for which there is "
        "--set width=1000 --set batch_size=512 --set epochs=20 --set rows=null."
    ),
    settings={
        "activations": ["sigmoid", "selu", "elu", "tanh", "silu", "relu", "gelu"], "runs": 5, "rows": 6000,
        "width": 256, "depth": 10, "batch_size": 100, "lr": 0.01, "epochs": 10, "precision": "bfloat16",
        "input_norm": "none",
    },
    quick={"runs": 2, "rows": 256, "width": 32, "depth": 3, "batch_size": 64, "epochs": 3, "precision": "float32"},
    paper_size={
        "activations": ["sigmoid", "selu", "elu", "tanh", "silu", "relu", "gelu"], "runs": 5, "rows": "all",
        "width": 1000, "depth": 10, "batch_size": 512, "lr": 0.01, "epochs": 20, "precision": None,
        "input_norm": "layer",
    },
    run=run,
    resumable=True,
    data=("cifar10",),
)  # fmt: skip
