"""LN-G in place of LayerNorm in a small convolutional network and a small transformer, with the true labels.

Run: ``farfield reproduce p3.lng``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from farfield._intervals import mean_interval
from farfield.data import load
from farfield.learn import Training, predict_all, train
from farfield.papers._curves import digits
from farfield.papers._experiment import Claims, ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p3._networks import Convolutions, Encoder
from farfield.papers.p3._random_labels import shifted, shrunk
from farfield.papers.p3.fig4 import spread
from farfield.report import Figure, Panel, Series, Table

Build = Callable[[int, int], nn.Module]
"""Size of the groups and seed to a network."""


@dataclass(frozen=True)
class _ImageTask:
    """Networks of one architecture and the images that they see."""

    name: str
    build: Build
    x: Tensor
    """Images to train on, from which every seed draws its own, and behind them those to test on."""
    y: Tensor
    rows: Tensor
    """(seeds, images)."""
    test: int
    """How many at the end are to test on."""


@dataclass(frozen=True)
class _Trained:
    train: Tensor
    test: Tensor
    """Accuracies, (seeds,)."""
    losses: Tensor
    """By epoch, mean over seeds."""


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    sizes: Sequence[int],
    seeds: int,
    images: int,
    pool: int,
    test: int,
    channels: Sequence[int],
    encoder: Mapping[str, int],
    epochs: int,
    batch_size: int,
    lr: float,
    judge: bool,
) -> ExperimentResult:
    """Train every architecture with groups of every size, several seeds each, and compare on test images.

    ``judge`` is for full sizes: after a short training accuracies say nothing.
    """
    own = [1000 * seed + s for s in range(seeds)]
    tasks = _tasks(own, images, pool, test, tuple(channels), encoder)
    training = Training(epochs=epochs, batch_size=batch_size, lr=lr, schedule="cosine", loss="cross_entropy")
    total, before = len(tasks) * len(sizes) * epochs, 0
    found: dict[str, dict[int, _Trained]] = {}
    for task in tasks:
        found[task.name] = {}
        for size in sizes:
            done = train(
                [task.build(size, s) for s in own], task.x, task.y, training=training, seeds=own, rows=task.rows,
                checkpoint=scratch / f"{task.name}-{size}".replace(" ", "-").replace(",", ""),
                progress=shifted(progress, before, total),
            )  # fmt: skip
            before += epochs
            seen = predict_all(done.models, task.x, rows=task.rows).argmax(-1) == task.y[task.rows]
            new = predict_all(done.models, task.x[-task.test :]).argmax(-1) == task.y[-task.test :]
            found[task.name][size] = _Trained(
                seen.double().mean(1), new.double().mean(1), done.losses.mean(1)
            )
    verdicts = [*(_claims(found, sizes) if judge else ()), _learned(found)]
    caption = (
        f"{images} training images for every seed, {test} to test on, {epochs} epochs of Adam, {seeds} seeds. "
        "Left: test accuracy, mean; intervals in the table. Others: training loss, mean over seeds."
    )
    figure = Figure("LayerNorm in groups, with true labels", _panels(found, sizes), caption, columns=2)
    numbers: dict[str, Any] = {
        name: {label(s): {"test": t.test.tolist(), "train": t.train.tolist()} for s, t in of.items()}
        for name, of in found.items()
    }
    progress(total, total)
    return ExperimentResult(tuple(verdicts), numbers, figure, _table(found))


def label(size: int) -> str:
    """What a norm with groups of so many features is called."""
    return f"LN-G, groups of {size}" if size else "LN"


def _tasks(
    own: Sequence[int],
    images: int,
    pool: int,
    test: int,
    channels: tuple[int, ...],
    encoder: Mapping[str, int],
) -> list[_ImageTask]:
    first, second, third = channels
    rows = torch.stack(
        [torch.from_numpy(np.random.default_rng([s, 23]).choice(pool, images, replace=False)) for s in own]
    )
    cifar, mnist = load("cifar10"), load("mnist")
    color = torch.cat([shrunk(cifar.train.x[:pool], 16), shrunk(cifar.id.x[:test], 16)])
    color = ((color - 0.47) / 0.25).reshape(-1, 3, 16, 16)
    gray = torch.cat([shrunk(mnist.train.x[:pool], 14), shrunk(mnist.id.x[:test], 14)])
    gray = ((gray - 0.13) / 0.3).reshape(-1, 14, 14)
    colors, greys = (
        torch.from_numpy(np.concatenate([d.train.y[:pool], d.id.y[:test]])) for d in (cifar, mnist)
    )

    def convolutions(activation: bool) -> Build:
        return lambda size, s: Convolutions((first, second, third), size=size, activation=activation, seed=s)

    return [
        _ImageTask("convolutions, ReLU", convolutions(True), color, colors, rows, test),
        _ImageTask("convolutions, no activation", convolutions(False), color, colors, rows, test),
        _ImageTask(
            "transformer", lambda size, s: Encoder(14, 14, size=size, seed=s, **encoder), gray, greys, rows, test
        ),
    ]  # fmt: skip


# ------------------------------------------------------------------ claims


def _claims(found: Mapping[str, Mapping[int, _Trained]], sizes: Sequence[int]) -> list[ClaimVerdict]:
    claims = Claims()
    for name, of in found.items():
        for size in sizes:
            if not size:
                continue
            mean, half = mean_interval(100 * (of[size].test - of[0].test))
            claims.add(
                f"{name}: {label(size)} has a higher test accuracy than LN, by more than the 95% interval of the "
                "difference over seeds",
                float(mean - half) > 0,
                f"{spread(of[size].test)} against {spread(of[0].test)}, difference {float(mean):+.1f} ± "
                f"{float(half):.1f} points; on the training images {spread(of[size].train)} against "
                f"{spread(of[0].train)}",
            )
    return claims


def _learned(found: Mapping[str, Mapping[int, _Trained]]) -> ClaimVerdict:
    every = {(name, size): t for name, of in found.items() for size, t in of.items()}
    name, size = max(every, key=lambda k: float(every[k].losses[-1] / every[k].losses[0]))
    worst = every[name, size]
    return ClaimVerdict(
        "every kind of network learns: its training loss ends below nine tenths of that of the first epoch",
        float(worst.losses[-1]) < 0.9 * float(worst.losses[0]),
        f"least: {name}, {label(size)}, {float(worst.losses[0]):.3g} → {float(worst.losses[-1]):.3g}",
    )


# ------------------------------------------------------------------ what is shown


def _panels(found: Mapping[str, Mapping[int, _Trained]], sizes: Sequence[int]) -> tuple[Panel, ...]:
    ticks = tuple(found)
    bars = [
        Series(
            label(size), tuple(float(k) for k in range(len(ticks))),
            digits(float(found[name][size].test.mean()) for name in ticks), style="bars", color=c,
        )
        for c, size in enumerate(sizes)
    ]  # fmt: skip
    short = tuple(name.replace("convolutions", "conv").replace("no activation", "none") for name in ticks)
    panels = [Panel("test accuracy", "", "accuracy", tuple(bars), y_range=(0.0, 1.0), ticks=short)]
    for name in ticks:
        curves = [
            Series(
                label(size), tuple(float(k + 1) for k in range(len(found[name][size].losses))),
                digits(found[name][size].losses), color=c,
            )
            for c, size in enumerate(sizes)
        ]  # fmt: skip
        panels.append(Panel(name, "epoch", "training loss", tuple(curves)))
    return tuple(panels)


def _table(found: Mapping[str, Mapping[int, _Trained]]) -> Table:
    rows = [
        (name, label(size), spread(t.test), spread(t.train), *digits([float(t.losses[-1])]))
        for name, of in found.items()
        for size, t in of.items()
    ]
    return Table(("network", "norm", "test accuracy", "training accuracy", "final loss"), tuple(rows))


EXPERIMENT = Experiment(
    name="p3.lng",
    description=(
        "LN-G in place of LayerNorm in ordinary networks with true labels; the paper takes networks of usual size. "
        "Here a network of three convolutions on CIFAR-10 at 16×16, with and without ReLU, and a transformer of "
        "two blocks on the rows of MNIST at 14×14: 4,000 training images for each of five seeds, 2,000 test images."
    ),
    settings={
        "sizes": [0, 8, 4], "seeds": 5, "images": 4000, "pool": 12000, "test": 2000, "channels": [16, 32, 32],
        "encoder": {"dim": 32, "heads": 4, "hidden": 64, "depth": 2}, "epochs": 20, "batch_size": 100, "lr": 3e-3,
        "judge": True,
    },
    quick={
        "sizes": [0, 4], "seeds": 2, "images": 60, "pool": 100, "test": 50, "channels": [8, 8, 8],
        "encoder": {"dim": 8, "heads": 2, "hidden": 8, "depth": 1}, "epochs": 10, "batch_size": 20, "lr": 1e-2,
        "judge": False,
    },
    paper_size={"images": "networks and data sets of usual size", "seeds": None, "epochs": None},
    run=run,
    resumable=True,
    data=("cifar10", "mnist"),
)  # fmt: skip
