"""How much LN-G bends, H(f; x), and how many random labels it fits, by its number of groups.

Run: ``farfield reproduce p3.fig5``
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from farfield._intervals import mean_interval
from farfield.learn import Training
from farfield.lnnet import curvature
from farfield.nn import GroupedLayerNorm
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
from farfield.papers.p3.fig4 import spread
from farfield.report import Figure, Panel, Series, Table

_MET = "trained LN-Net, "
"""Where points come from that a trained network meets."""


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    datasets: Mapping[str, int],
    images: int,
    seeds: int,
    width: int,
    groups: Sequence[int],
    epochs: int,
    batch_size: int,
    lr: float,
    points: int,
    judge: bool,
) -> ExperimentResult:
    """H in closed form at random points and at those that trained networks meet; networks with one LN-G each."""
    own = [1000 * seed + s for s in range(seeds)]
    draw = torch.Generator().manual_seed(seed)
    training = Training(epochs=epochs, batch_size=batch_size, lr=lr, schedule="cosine", loss="cross_entropy")
    met = {"Gaussian points": torch.randn(points, width, generator=draw, dtype=torch.float64)}
    total, before = epochs * len(groups) * len(datasets), 0
    accuracy: dict[str, dict[int, Fitted]] = {}
    ceilings: dict[str, Tensor] = {}
    for name, size in datasets.items():
        problem = load_problem(name, images=images, size=size, seeds=own)
        linear = [linear_accuracy(*problem.part(k)) for k in range(seeds)]
        ceilings[name] = linear_ceiling(linear)
        accuracy[name] = {}
        for g in groups:
            accuracy[name][g] = fit(
                problem, groups=g, depth=1, width=width, training=training, seeds=own, scratch=scratch,
                progress=shifted(progress, before, total),
            )  # fmt: skip
            before += epochs
        met[f"{_MET}{name}"] = _before_norm(accuracy[name][1].models[0], problem, points)
    values = {where: bends(x, groups) for where, x in met.items()}
    verdicts = [
        *_bending(values, width, groups, draw),
        *(_fitting(accuracy, values, groups, images) if judge else ()),
    ]
    medians = {w: v.median(0).values.tolist() for w, v in values.items()}
    numbers: dict[str, Any] = {
        "median_H": {w: dict(zip(map(str, groups), v, strict=True)) for w, v in medians.items()},
        "accuracy": {n: {str(g): f.accuracy.tolist() for g, f in of.items()} for n, of in accuracy.items()},
        "linear_classifier": {n: c.tolist() for n, c in ceilings.items()},
    }  # fmt: skip
    caption = (
        f"Width {width}. Left: median of H over {points} points, Gaussian or those that a trained LN-Net meets on "
        "either dataset, scaled to variance 1 each, and its value where all groups have one spread; groups of two "
        f"have H = 0 and are left out of the picture. Right: training accuracy on {images} images with random "
        f"labels, one hidden layer with LN-G, {seeds} seeds, mean and 95% t-interval; dotted, the linear classifiers."
    )
    figure = Figure(
        "Groups: how much they bend, and what they fit",
        (_bent(values, width, groups), _fitted(accuracy, ceilings, groups)), caption, columns=2,
    )  # fmt: skip
    progress(total, total)
    return ExperimentResult(tuple(verdicts), numbers, figure, _table(values, accuracy, width, groups))


def bends(x: Tensor, groups: Sequence[int]) -> Tensor:
    """H of LN-G without ε at points scaled to mean 0 and variance 1, (points, numbers of groups), in closed form."""
    scaled = (x - x.mean(1, keepdim=True)) / x.std(1, correction=0, keepdim=True)
    norms = [GroupedLayerNorm(x.shape[1], g, elementwise_affine=False, norm_eps=0.0) for g in groups]
    return torch.stack([curvature(norm, scaled, method="closed") for norm in norms], 1)


def equal_spread(width: int, groups: int) -> float:
    """H where every group has variance 1: 3g(m − 2)/m with m = width/g."""
    m = width / groups
    return 3 * groups * (m - 2) / m


@torch.no_grad()
def _before_norm(model: nn.Module, problem: RandomLabels, points: int) -> Tensor:
    assert isinstance(model, nn.Sequential)
    result: Tensor = model[0](problem.x[problem.rows[0][:points]])
    return result.double()


# ------------------------------------------------------------------ claims


def _bending(
    values: Mapping[str, Tensor], width: int, groups: Sequence[int], draw: torch.Generator
) -> list[ClaimVerdict]:
    claims = Claims()
    every = [g for g in range(1, width // 2 + 1) if width % g == 0]
    even = _equally_spread(width, every, draw)
    best = every[int(even.argmax())]
    error = max(
        abs(float(v) - equal_spread(width, g)) / max(1.0, equal_spread(width, g))
        for g, v in zip(every, even, strict=True)
    )
    claims.add(
        f"at equal spread H = 3g(m − 2)/m, largest for groups of four among all divisors of {width}",
        best == width // 4 and error < 1e-10,
        f"largest at {best} groups of {width // best}; relative error of the formula {error:.1e}",
    )
    rising = [g for g in groups if width // g >= 4]
    for where, of in values.items():
        ratio = of[:, [groups.index(g) for g in rising]] / of[:, :1]
        claims.add(
            f"{where}: H(LN-G)/H(LN) is at least 1 at every point for groups of four or more",
            float(ratio.min()) >= 1 - 1e-9,
            f"{len(of)} points, smallest ratio {float(ratio[:, 1:].min()):.3g}; median by g "
            + ", ".join(f"{g}: {float(v):.3g}" for g, v in zip(rising, ratio.median(0).values, strict=True)),
        )
        quarter = of[:, groups.index(width // 4)] / of[:, 0]
        claims.add(
            f"{where}: with groups of four it is at least d/8 = {width / 8:g} at every point",
            float(quarter.min()) >= width / 8 * (1 - 1e-9),
            f"smallest {float(quarter.min()):.4g}",
        )
    return claims


def _equally_spread(width: int, groups: Sequence[int], draw: torch.Generator) -> Tensor:
    found = []
    for g in groups:
        x = torch.randn(g, width // g, generator=draw, dtype=torch.float64)
        x = (x - x.mean(1, keepdim=True)) / x.std(1, correction=0, keepdim=True)
        norm = GroupedLayerNorm(width, g, elementwise_affine=False, norm_eps=0.0)
        found.append(curvature(norm, x.reshape(width), method="closed"))
    return torch.stack(found)


def _fitting(
    accuracy: Mapping[str, Mapping[int, Fitted]],
    values: Mapping[str, Tensor],
    groups: Sequence[int],
    images: int,
) -> list[ClaimVerdict]:
    claims = Claims()
    for name, of in accuracy.items():
        means = {g: float(of[g].accuracy.mean()) for g in groups}
        rising = [g for g in groups if g <= groups[-2]]
        claims.add(
            f"{name}, {images} images with random labels: training accuracy rises with the number of groups, "
            f"from one to {rising[-1]} (groups of four)",
            all(means[a] < means[b] for a, b in itertools.pairwise(rising)),
            ", ".join(f"{g}: {spread(of[g].accuracy)}" for g in groups),
        )
        best = max(means, key=lambda g: means[g])
        claims.add(
            f"{name}: it is highest where H is, at groups of four",
            best == rising[-1],
            f"highest at {best} groups, {100 * means[best]:.1f}%; {rising[-1]} groups "
            f"{100 * means[rising[-1]]:.1f}%",
        )
        last = groups[-1]
        claims.add(
            f"{name}: groups of two, which keep a sign and have H = 0, fit less than groups of four",
            means[last] < means[rising[-1]],
            f"{spread(of[last].accuracy)} against {spread(of[rising[-1]].accuracy)}",
        )
        together = _rank_correlation(
            values["Gaussian points"].median(0).values, torch.tensor([means[g] for g in groups])
        )
        claims.add(
            f"{name}: over the numbers of groups, accuracy and median H at Gaussian points have a rank "
            "correlation of 0.7 or more",
            together >= 0.7,
            f"{together:.2f}",
        )
    return claims


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's, for values without ties."""
    ranks = torch.stack([v.argsort().argsort().double() for v in (a, b)])
    return float(torch.corrcoef(ranks)[0, 1])


# ------------------------------------------------------------------ what is shown


def _bent(values: Mapping[str, Tensor], width: int, groups: Sequence[int]) -> Panel:
    x = tuple(map(float, groups))
    lines = [
        Series(where.removeprefix(_MET), x, digits(of.median(0).values), color=k)
        for k, (where, of) in enumerate(values.items())
    ]
    lines.append(
        Series("equal spread", x, digits(equal_spread(width, g) for g in groups), style="dotted", color=6)
    )
    return Panel("H(LN-G; x)", "groups g", "H", tuple(lines), x_scale="log", y_scale="log")  # fmt: skip


def _fitted(
    accuracy: Mapping[str, Mapping[int, Fitted]], ceilings: Mapping[str, Tensor], groups: Sequence[int]
) -> Panel:
    x = tuple(map(float, groups))
    lines = []
    for k, (name, of) in enumerate(accuracy.items(), start=1):
        mean, half = mean_interval(torch.stack([of[g].accuracy for g in groups], 1))
        band = ((), ()) if len(ceilings[name]) < 2 else (digits(mean - half), digits(mean + half))
        level = float(ceilings[name].mean())
        lines.append(Series(name, x, digits(mean), *band, color=k))
        lines.append(
            Series(
                "linear classifier" if k == 1 else "",
                (x[0], x[-1]),
                digits([level, level]),
                style="dotted",
                color=k,
            )
        )
    return Panel(
        "random labels", "groups g", "training accuracy", tuple(lines), x_scale="log", y_range=(0, 1.03)
    )


def _table(
    values: Mapping[str, Tensor],
    accuracy: Mapping[str, Mapping[int, Fitted]],
    width: int,
    groups: Sequence[int],
) -> Table:
    rows = []
    for k, g in enumerate(groups):
        medians = digits(float(of[:, k].median()) for of in values.values())
        shares = (spread(of[g].accuracy) for of in accuracy.values())
        rows.append((g, width // g, *digits([equal_spread(width, g)]), *medians, *shares))
    columns = ("groups", "features in one", "H, equal spread", *(f"median H, {w}" for w in values))
    return Table((*columns, *(f"accuracy, {n}" for n in accuracy)), tuple(rows))  # fmt: skip


EXPERIMENT = Experiment(
    name="p3.fig5",
    description=(
        "LayerNorm in groups bends more than LayerNorm, measured by H, the squared norms of its second "
        "derivatives, and a network with it fits more random labels. The paper takes all of CIFAR-10 and MNIST; "
        "here 10,000 images for every seed, shrunk to 8×8×3 and 14×14 pixels, and one hidden layer of 128 features."
    ),
    settings={
        "datasets": {"cifar10": 8, "mnist": 14}, "images": 10000, "seeds": 3, "width": 128,
        "groups": [1, 2, 4, 8, 16, 32, 64], "epochs": 300, "batch_size": 500, "lr": 1e-2, "points": 1000,
        "judge": True,
    },
    quick={
        "datasets": {"mnist": 4}, "images": 500, "seeds": 2, "width": 16, "groups": [1, 2, 4, 8], "epochs": 4,
        "batch_size": 50, "points": 50, "judge": False,
    },
    paper_size={"images": "all (50,000 and 60,000)", "seeds": None, "width": None, "groups": None, "epochs": None},
    run=run,
    resumable=True,
    data=("cifar10", "mnist"),
)  # fmt: skip
