"""Random labels: what networks of linear maps and LayerNorm, without any activation, fit beyond a linear classifier.

Run: ``farfield reproduce p3.fig4``
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield._intervals import mean_interval
from farfield.learn import Training
from farfield.papers._curves import digits
from farfield.papers._experiment import Claims, ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p3._random_labels import (
    Fitted,
    RandomLabels,
    fit,
    linear_accuracy,
    linear_ceiling,
    load_problem,
    shifted,
)
from farfield.report import Figure, Panel, Series, Table

Results = dict[tuple[int, int], Fitted]
"""By number of groups (0: no norm) and depth."""


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    datasets: Mapping[str, int],
    images: int,
    seeds: int,
    width: int,
    depths: Sequence[int],
    groups: Sequence[int],
    epochs: int,
    ln_epochs: int,
    batch_size: int,
    lr: float,
    longer: int,
    judge: bool,
) -> ExperimentResult:
    """Fit random labels with every kind and depth, and with a linear classifier at its optimum.

    ``ln_epochs``: of the LN-Nets, which learn slowly, in place of ``epochs``. ``longer`` repeats the training of
    those of middle depth with so many times as many; ``judge`` is for full sizes: after a short training accuracy
    says nothing about what a network can fit.
    """
    own = [1000 * seed + s for s in range(seeds)]
    training = Training(epochs=epochs, batch_size=batch_size, lr=lr, schedule="cosine", loss="cross_entropy")
    middle = depths[len(depths) // 2]
    lengths = {g: ln_epochs if g == 1 else epochs for g in groups}
    per_dataset = sum(lengths.values()) * len(depths) + ln_epochs * longer
    total, before = per_dataset * len(datasets), 0
    panels: list[Panel] = []
    verdicts: list[ClaimVerdict] = []
    rows: list[tuple[Any, ...]] = []
    numbers: dict[str, Any] = {}
    for name, size in datasets.items():
        problem = load_problem(name, images=images, size=size, seeds=own)
        linear = [linear_accuracy(*problem.part(k)) for k in range(seeds)]
        ceiling = linear_ceiling(linear)
        found: Results = {}
        for g in groups:
            for depth in depths:
                found[g, depth] = fit(
                    problem, groups=g, depth=depth, width=width, training=replace(training, epochs=lengths[g]),
                    seeds=own, scratch=scratch, progress=shifted(progress, before, total),
                )  # fmt: skip
                before += lengths[g]
        more = None
        if longer:
            more = fit(
                problem, groups=1, depth=middle, width=width, training=replace(training, epochs=longer * ln_epochs),
                seeds=own, scratch=scratch, progress=shifted(progress, before, total),
            )  # fmt: skip
            before += longer * ln_epochs
        if judge:
            verdicts += _claims(problem, found, ceiling, groups, depths, images)
        verdicts.append(_optimal(problem, linear))
        if more is not None:
            verdicts.append(_settled(problem, found[1, middle], more, longer, middle))
        panels += _panels(problem, found, ceiling, groups, depths, middle)
        rows += _rows(problem, found, ceiling)
        numbers[name] = _numbers(found, linear, more)
    progress(total, total)
    caption = (
        f"{images} images with labels drawn from ten at random, {seeds} seeds with images, labels and weights of "
        f"their own, width {width}, {epochs} epochs of Adam, {ln_epochs} for LN-Nets. Left of each pair: training "
        f"accuracy by depth, mean and 95% t-interval. Right: while training, {middle} hidden layers; dotted the "
        "linear classifier."
    )
    table = Table(("images", "network", "hidden layers", "training accuracy", "final loss"), tuple(rows))
    figure = Figure("Random labels without an activation function", tuple(panels), caption, columns=2)
    return ExperimentResult(tuple(verdicts), numbers, figure, table)


def label(groups: int) -> str:
    """What a network of so many groups is called."""
    return {0: "linear network", 1: "LN-Net"}.get(groups, f"LN-G, {groups} groups")


def spread(values: Tensor) -> str:
    """Mean and 95% t-interval in per cent."""
    mean, half = mean_interval(100 * values)
    return f"{float(mean):.1f}% ± {float(half):.1f}"


# ------------------------------------------------------------------ claims


def _claims(
    problem: RandomLabels,
    found: Results,
    ceiling: Tensor,
    groups: Sequence[int],
    depths: Sequence[int],
    images: int,
) -> list[ClaimVerdict]:
    where = f"{problem.name}, {images} images"
    linear = [found[0, d].accuracy for d in depths]
    above = max(float((a - ceiling).max()) for a in linear)
    claims = Claims()
    claims.add(
        f"{where}: no linear network, of any depth, is more than a point above the linear classifier",
        above <= 0.01,
        f"linear classifier {spread(ceiling)}; linear networks "
        + ", ".join(f"{d}: {spread(a)}" for d, a in zip(depths, linear, strict=True))
        + f"; furthest above {100 * above:+.1f} points",
    )
    for d in depths:
        plain = found[1, d].accuracy
        claims.add(
            f"{where}: the LN-Net with {d} hidden layer{'s' * (d > 1)} fits more than the linear classifier, "
            "in the mean over seeds and by more than the 95% interval of the difference",
            _exceeds(plain, ceiling),
            f"{spread(plain)} against {spread(ceiling)}, difference {_difference(plain, ceiling)}",
        )
    deeper = [float(found[1, d].accuracy.mean()) for d in depths]
    claims.add(
        f"{where}: a deeper LN-Net fits more, from {depths[0]} to {depths[-1]} hidden layers",
        all(a < b for a, b in itertools.pairwise(deeper)),
        " → ".join(f"{100 * a:.1f}%" for a in deeper),
    )
    for g in groups:
        if g < 2:
            continue
        gains = [found[g, d].accuracy for d in depths]
        claims.add(
            f"{where}: LN-G with {g} groups fits more than the LN-Net at every depth, by more than the 95% "
            "interval of the difference",
            all(_exceeds(a, found[1, d].accuracy) for d, a in zip(depths, gains, strict=True)),
            ", ".join(
                f"{d}: {spread(a)} against {spread(found[1, d].accuracy)}"
                for d, a in zip(depths, gains, strict=True)
            ),
        )
    return claims


def _exceeds(a: Tensor, b: Tensor) -> bool:
    mean, half = mean_interval(a - b)
    return float(mean - half) > 0


def _difference(a: Tensor, b: Tensor) -> str:
    mean, half = mean_interval(100 * (a - b))
    return f"{float(mean):+.1f} ± {float(half):.1f} points"


def _optimal(problem: RandomLabels, linear: Sequence[Mapping[str, float]]) -> ClaimVerdict:
    worst = max(v["gradient"] for v in linear)
    return ClaimVerdict(
        f"{problem.name}: the linear classifier is at its optimum: no entry of softmax regression's gradient "
        "exceeds 1e-6",
        worst < 1e-6,
        f"largest {worst:.1e}; accuracies by softmax regression "
        + ", ".join(f"{100 * v['softmax']:.1f}%" for v in linear)
        + ", by least squares "
        + ", ".join(f"{100 * v['least_squares']:.1f}%" for v in linear),
    )


def _settled(problem: RandomLabels, short: Fitted, long: Fitted, times: int, depth: int) -> ClaimVerdict:
    gain = float((long.accuracy - short.accuracy).mean())
    return ClaimVerdict(
        f"{problem.name}: the LN-Net with {depth} hidden layers has been trained long enough: {times} times the "
        "epochs gain less than two points",
        gain < 0.02,
        f"{spread(short.accuracy)} → {spread(long.accuracy)}",
    )


# ------------------------------------------------------------------ what is shown


def _panels(
    problem: RandomLabels,
    found: Results,
    ceiling: Tensor,
    groups: Sequence[int],
    depths: Sequence[int],
    middle: int,
) -> tuple[Panel, Panel]:
    lines, curves = [], []
    few = len(ceiling) < 2
    for k, g in enumerate(groups):
        mean, half = mean_interval(torch.stack([found[g, d].accuracy for d in depths], 1))
        band = ((), ()) if few else (digits(mean - half), digits(mean + half))
        lines.append(Series(label(g), tuple(map(float, depths)), digits(mean), *band, color=k))
        losses = found[g, middle].losses.mean(1)
        step = max(1, len(losses) // 200)
        at = torch.arange(0, len(losses), step)
        curves.append(Series(label(g), digits(at + 1.0), digits(losses[at]), color=k))
    best = float(ceiling.mean())
    ends = (float(depths[0]), float(depths[-1]))
    lines.append(Series("linear classifier", ends, (best, best), style="dotted", color=6))
    return (
        Panel(
            f"{problem.name}", "hidden layers", "training accuracy", tuple(lines), y_range=(0.0, 1.03)
        ),
        Panel(f"{problem.name}, {middle} hidden layers", "epoch", "training loss", tuple(curves), y_scale="log"),
    )  # fmt: skip


def _rows(problem: RandomLabels, found: Results, ceiling: Tensor) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = [
        (problem.name, "linear classifier, at its optimum", 0, spread(ceiling), "")
    ]
    for (g, depth), fitted in found.items():
        rows.append(
            (
                problem.name,
                label(g),
                depth,
                spread(fitted.accuracy),
                *digits([float(fitted.losses[-1].mean())]),
            )
        )
    return rows


def _numbers(found: Results, linear: Sequence[Mapping[str, float]], more: Fitted | None) -> dict[str, Any]:
    return {
        "linear_classifier": [dict(v) for v in linear],
        "accuracy": {f"{label(g)}, depth {d}": f.accuracy.tolist() for (g, d), f in found.items()},
        "final_loss": {f"{label(g)}, depth {d}": f.losses[-1].tolist() for (g, d), f in found.items()},
        "trained_longer": None if more is None else more.accuracy.tolist(),
    }


EXPERIMENT = Experiment(
    name="p3.fig4",
    description=(
        "Images of CIFAR-10 and MNIST with random labels. A linear network of any depth fits no more of them than a "
        "linear classifier; with LayerNorm between its layers it does, and with LayerNorm in groups far more. The "
        "paper takes all training images as they are; here 10,000 for every seed, shrunk to 8×8×3 and 14×14 pixels "
        "by block means and whitened, so that there are some fifty images for every input, as many as a linear "
        "classifier can't fit."
    ),
    settings={
        "datasets": {"cifar10": 8, "mnist": 14}, "images": 10000, "seeds": 3, "width": 128, "depths": [1, 2, 4],
        "groups": [0, 1, 8, 32], "epochs": 300, "ln_epochs": 900, "batch_size": 500, "lr": 1e-2, "longer": 3,
        "judge": True,
    },
    quick={
        "datasets": {"mnist": 4}, "images": 500, "seeds": 2, "width": 16, "depths": [1, 2], "groups": [0, 1, 4],
        "epochs": 4, "ln_epochs": 4, "batch_size": 50, "longer": 1, "judge": False,
    },
    paper_size={"images": "all (50,000 and 60,000)", "seeds": None, "width": None, "epochs": None},
    run=run,
    resumable=True,
    data=("cifar10", "mnist"),
)  # fmt: skip
