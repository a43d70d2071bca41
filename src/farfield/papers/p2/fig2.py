"""Isometry gap through the layers of networks on CIFAR-10, at initialization and after training.

Run: ``farfield reproduce p2.fig2``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from farfield._intervals import mean_interval
from farfield.gaussian import activation, isometry_strength
from farfield.geometry import feature_isometry_gap
from farfield.learn import Training, train
from farfield.nn import MLP, Center, Project
from farfield.papers._curves import digits
from farfield.papers._experiment import Claims, ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p2._simulation import from_law
from farfield.papers.p2._trained import Images, Stages, accuracy, floor, images, network, stages
from farfield.report import Figure, Panel, Series

Measured: TypeAlias = "dict[int, tuple[tuple[Stages, ...], ...]]"
"""By the number of rows in a Gram matrix: for every network its held-out batches."""
TIMES = ("initialization", "trained")


@dataclass(frozen=True)
class TrainingEffect:
    """Networks of one activation: what held-out batches show before and after training, and how that went.

    ``losses``: (epochs, networks). ``accuracy``: (networks,).
    """

    activation: str
    before: Measured
    after: Measured
    losses: Tensor
    accuracy: Tensor


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    activations: Sequence[str],
    runs: int,
    wider: int,
    rows: int | None,
    width: int,
    depth: int,
    batch_size: int,
    lr: float,
    epochs: int,
    compared: Sequence[int],
    batches: int,
    precision: str,
    input_norm: str,
) -> ExperimentResult:
    """Train ``runs`` networks of each activation; gaps of held-out batches after every part of every layer.

    ``compared``: how many rows a Gram matrix has, each with ``batches`` batches of its own. ``wider``: width of
    untrained networks beside them, which say whether a gap that stays is the width's doing.
    """
    data = images("cifar10", rows=rows, held_out=batches * max(compared), input_norm=input_norm, seed=seed)
    training = Training(
        epochs=epochs, batch_size=batch_size, optimizer="sgd", lr=lr, loss="cross_entropy",
        precision=precision,  # type: ignore[arg-type]
    )  # fmt: skip
    total = len(activations) * (epochs + 1)
    held_out = {n: list(data.held_out[: batches * n].split(n)) for n in compared}
    found, wide = [], {}
    for k, name in enumerate(activations):
        seeds = [1000 * seed + 100 * k + r for r in range(runs)]
        found.append(
            _trained(
                name, data, training, width, depth, held_out, seeds, scratch / name,
                lambda done, _, k=k: progress(k * (epochs + 1) + done, total),  # type: ignore[misc]
            )
        )  # fmt: skip
        wide[name] = {n: _untrained(name, own, wider, depth, seeds) for n, own in held_out.items()}
        progress((k + 1) * (epochs + 1), total)
    caption = (
        f"Held-out images of CIFAR-10 through {depth} layers of {width}: linear, activation, centering, projection "
        f"(points: the outputs of LayerNorm); {' or '.join(map(str, compared))} rows in a Gram matrix. {runs} "
        f"networks for each activation, trained on {len(data.x):,} images for {epochs} epochs, SGD at {lr:g}, "
        f"batches of {batch_size}, products in {precision}; {batches} batches each. Bands: "
        + ("95% t-intervals over networks." if runs > 2 else "smallest and largest of all batches.")
        + " Dotted: the gap of as many independent Gaussian rows."
    )
    return ExperimentResult(
        tuple(
            v
            for f in found
            for v in (*_verdicts(f), *_width_verdicts(f.activation, wide[f.activation], wider))
        ),
        {f.activation: _numbers(f) for f in found}
        | {
            f"untrained, width {wider}": {
                name: {n: digits(v.mean(0)) for n, v in by.items()} for name, by in wide.items()
            }
        }
        | {"gaussian_rows": {n: floor(n, width - 1) for n in compared}},
        Figure(
            "Isometry gap before and after training",
            tuple(_panel(f, n, floor(n, width - 1)) for f in found for n in compared),
            caption,
            columns=2 * len(compared),
        ),
    )


def _measured(models: Sequence[nn.Module], batches: dict[int, list[Tensor]]) -> Measured:
    return {
        n: tuple(tuple(stages(model, batch) for batch in own) for model in models if isinstance(model, MLP))
        for n, own in batches.items()
    }


def _untrained(name: str, batches: Sequence[Tensor], width: int, depth: int, seeds: Sequence[int]) -> Tensor:
    """Gaps after every LayerNorm of networks that are not trained, (networks, depth); one batch each.

    The outputs of Gaussian weights are drawn from their law: a layer of any width costs rows × width draws.
    """
    sigma, norm = activation(name), nn.Sequential(Center(), Project())
    out = []
    for k, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        x = batches[k % len(batches)].double()
        gaps = []
        for _ in range(depth):
            noise = torch.randn(len(x), width, generator=generator, dtype=torch.float64)
            x = norm(sigma(from_law(x, noise)))
            gaps.append(feature_isometry_gap(x))
        out.append(torch.stack(gaps))
    return torch.stack(out)


def _trained(
    name: str,
    data: Images,
    training: Training,
    width: int,
    depth: int,
    held_out: dict[int, list[Tensor]],
    seeds: Sequence[int],
    checkpoint: Path,
    progress: Progress,
) -> TrainingEffect:
    models = [network(data.x.shape[1], name, width, depth, seed) for seed in seeds]
    before = _measured(models, held_out)
    done = train(
        models, data.x, data.y, training=training, seeds=seeds, checkpoint=checkpoint, progress=progress
    )
    right = torch.tensor(
        [accuracy(m, data.held_out, data.held_out_y) for m in done.models], dtype=torch.float64
    )
    return TrainingEffect(name, before, _measured(done.models, held_out), done.losses, right)


def _verdicts(found: TrainingEffect) -> list[ClaimVerdict]:
    name = found.activation
    out = [
        ClaimVerdict(
            f"{name}: training lowers the loss",
            bool((found.losses[-1] < found.losses[0]).all()),
            f"mean over the first epoch {float(found.losses[0].mean()):.3f}, over the last "
            f"{float(found.losses[-1].mean()):.3f}; {float(found.accuracy.mean()):.1%} of the held-out images right",
        )
    ]
    for time, measured in zip(TIMES, (found.before, found.after), strict=True):
        for n, batches in measured.items():
            out += _norm_verdicts(f"{name}, {time}, {n} rows", batches)
    return out


def _width_verdicts(name: str, wide: dict[int, Tensor], width: int) -> list[ClaimVerdict]:
    return [
        ClaimVerdict(
            f"{name}, untrained, width {width}, {n} rows: the gap after the last LayerNorm is below that "
            "after the first",
            bool((gaps[:, -1] < gaps[:, 0]).all()),
            f"first {_pm(gaps[:, 0])}, last {_pm(gaps[:, -1])}; {floor(n, width - 1):.3g} for Gaussian rows",
        )
        for n, gaps in wide.items()
    ]


def _pm(values: Tensor) -> str:
    if len(values) < 3:
        return f"{float(values.mean()):.3g}"
    mean, half = mean_interval(values)
    return f"{float(mean):.3g} ± {float(half):.2g}"


def _norm_verdicts(what: str, networks: Sequence[Sequence[Stages]]) -> list[ClaimVerdict]:
    batches = [batch for own in networks for batch in own]
    ends = [torch.stack([torch.stack([b.norms[k] for b in own]).mean() for own in networks]) for k in (0, -1)]
    rise = {
        part: torch.stack([b.raised(part) for b in batches]) for part in ("projection", "norm", "centering")
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
            f"{up['projection']} of {count} (layers × batches × networks) do; change between "
            f"{_range(rise['projection'])}",
        ),
        ClaimVerdict(
            f"{what}: no LayerNorm raises the gap",
            up["norm"] == 0,
            f"{up['norm']} of {count} do; change between {_range(rise['norm'])}; of its centerings alone, which may, "
            f"{up['centering']} do",
        ),
        ClaimVerdict(
            f"{what}: the gap after the last LayerNorm is below that after the first, in every batch",
            bool((norms[:, -1] < norms[:, 0]).all()),
            f"input {start:.3g}; first {_pm(ends[0])}, last {_pm(ends[1])} over {len(networks)} networks; lower than "
            f"the layer before in {int((steps < 0).sum())} of {steps.numel()} steps",
        ),
    ]


def _range(values: Tensor) -> str:
    return f"{float(values.min()):.3g} and {float(values.max()):.3g}"


def _panel(found: TrainingEffect, n: int, least: float) -> Panel:
    series = []
    for c, (time, measured) in enumerate(zip(TIMES, (found.before, found.after), strict=True)):
        networks = measured[n]
        x = networks[0][0].curve()[0]
        y = torch.stack([torch.stack([b.curve()[1] for b in own]) for own in networks])
        mean = y.mean((0, 1))
        if len(networks) > 2:
            half = mean_interval(y.mean(1))[1]
            # On a logarithmic axis a band that reaches zero has no lower edge: it ends at half the mean.
            band = digits(torch.maximum(mean - half, mean / 2)), digits(mean + half)
        else:
            band = digits(y.amin((0, 1))), digits(y.amax((0, 1)))
        series.append(Series(time, digits(x), digits(mean), *band, color=c))
        norms = digits(mean[4::4])
        series.append(Series("", digits(x[4::4]), norms, style="points", color=c))
    ends = (0.0, float(len(found.before[n][0][0].norms)))
    series.append(Series("Gaussian rows", ends, (least, least), style="dotted", color=7))
    title = f"{found.activation}, β = {isometry_strength(found.activation):.3f}: {n} rows"
    return Panel(title, "layer", "isometry gap −log I", tuple(series), y_scale="log")


def _numbers(found: TrainingEffect) -> dict[str, Any]:
    return {
        "losses": [digits(own) for own in found.losses.T],
        "held_out_accuracy": found.accuracy.tolist(),
        **{
            time: {
                n: [
                    [{"input": b.start, "gaps": [digits(g) for g in b.gaps]} for b in own] for own in networks
                ]
                for n, networks in m.items()
            }
            for time, m in zip(TIMES, (found.before, found.after), strict=True)
        },
    }


def _claims(record: Mapping[str, Any]) -> list[ClaimVerdict]:
    """What the caption says of activations, from the gaps that are recorded."""
    claims, numbers = Claims(), record["numbers"]
    names = record["provenance"]["settings"]["activations"]
    ends: dict[str, dict[str, float]] = {}
    for name in names:
        for time in TIMES:
            for n, networks in numbers[name][time].items():
                gaps = torch.tensor([[b["gaps"] for b in own] for own in networks], dtype=torch.float64)
                rise = gaps[..., 1] - gaps[..., 0]
                up = int((~(rise <= 0)).sum())  # what is not finite does not count as no rise
                claims.add(
                    f"{name}, {time}, {n} rows: no activation raises the gap",
                    up == 0,
                    f"{up} of {rise.numel()} (layers × batches × networks) do; change between {_range(rise)}",
                )
                ends.setdefault(f"{time}, {n} rows", {})[name] = float(gaps[..., -1, 3].mean())
    for what, last in ends.items():
        order = sorted(last, key=isometry_strength)
        falls = all(last[a] > last[b] for a, b in pairwise(order))
        claims.add(
            f"{what}: the larger β, the smaller the gap after the last LayerNorm",
            falls,
            "by β: " + ", ".join(f"{name} {last[name]:.3g}" for name in order),
        )
    return claims


EXPERIMENT = Experiment(
    name="p2.fig2",
    description=(
        "Isometry through an MLP on CIFAR-10, ten layers of 1000 with LayerNorm, batches of 512, SGD at 0.01, before "
        "and after training: normalization raises isometry at every layer, at initialization and after training. "
        "Proved is that for the projection alone; LayerNorm also centers, and both parts are shown. Here five "
        "networks for each of the seven activations of Figure 7, five epochs over 10,000 training images; gaps are "
        "measured in float64 on held-out images."
    ),
    settings={
        "activations": ["sigmoid", "selu", "elu", "tanh", "silu", "relu", "gelu"], "runs": 5, "wider": 8000,
        "rows": 10000, "width": 1000, "depth": 10, "batch_size": 512,
        "lr": 0.01, "epochs": 5, "compared": [512, 32], "batches": 3, "precision": "float32",
        "input_norm": "none",
    },
    quick={
        "activations": ["relu", "tanh"], "runs": 3, "wider": 256, "rows": 512, "width": 64,
        "depth": 3, "batch_size": 32, "epochs": 2, "compared": [32, 4], "batches": 2,
    },
    paper_size={
        "activations": None, "runs": None, "rows": "all", "width": 1000, "depth": 10, "batch_size": 512,
        "lr": 0.01, "epochs": None, "precision": None, "input_norm": "layer",
    },
    run=run,
    resumable=True,
    data=("cifar10",),
    claims=_claims,
)  # fmt: skip
