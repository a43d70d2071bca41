"""Networks that share one part of LayerNorm each, trained on tables and measured near and far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from farfield import data
from farfield.errors import UnknownNameError
from farfield.learn import Training, predict_all, train
from farfield.nn import MLP, NormCap
from farfield.papers._experiment import Progress

__all__ = ["AFTERWARDS", "TRAINED", "TableSplit", "far_errors", "table_splits"]

TRAINED: dict[str, tuple[str | None, str, bool]] = {
    "standard": (None, "none", False),
    "LN first": ("layer", "first", False),
    "LN second": ("layer", "second", False),
    "LN every": ("layer", "every", False),
    "RMSNorm first": ("rms", "first", False),
    "tanh head": (None, "none", True),
}
"""Name → norm, where it sits, and whether the last hidden activation is tanh. Each has a training of its own."""
AFTERWARDS = ("input capped", "first layer capped", "output clipped")
"""Put on the trained standard network, and not trained."""
_KEEP = 0.99
"""Share of the training rows that a cap leaves as they are."""


@dataclass(frozen=True)
class TableSplit:
    """One split of a table, inputs and target scaled to mean 0 and variance 1 over its training rows.

    ``x``: (rows, features), training rows first, then near and far ones; ``y``: (rows, 1); ``sizes``: of the three.
    """

    seed: int
    x: Tensor
    y: Tensor
    sizes: tuple[int, int, int]

    def rows(self, part: int) -> Tensor:
        """Numbers of the training (0), near (1) or far rows (2)."""
        start = sum(self.sizes[:part])
        return torch.arange(start, start + self.sizes[part])


def table_splits(name: str, seeds: Sequence[int], rows: int | None) -> list[TableSplit]:
    """A split for every seed, the far rows as :func:`farfield.data.load` has them; of several targets the first."""
    out = []
    for seed in seeds:
        found = data.load(name, seed=seed)
        parts = (data.Part(found.train.x[:rows], found.train.y[:rows]), found.id, found.ood)
        x = torch.cat([torch.as_tensor(p.x, dtype=torch.float32) for p in parts])
        y = torch.cat([torch.as_tensor(p.y, dtype=torch.float32).reshape(len(p), -1)[:, :1] for p in parts])
        fitted = len(parts[0])
        scaled = [
            (v - v[:fitted].mean(0)) / _positive(v[:fitted].double().std(0, correction=0)).float()
            for v in (x, y)
        ]
        out.append(TableSplit(seed, scaled[0], scaled[1], (fitted, len(parts[1]), len(parts[2]))))
    return out


def _positive(spread: Tensor) -> Tensor:
    """A feature that never moves in training stays where it is."""
    return torch.where(spread > 1e-9 * spread.max(), spread, torch.ones_like(spread))


def _network(kind: str, inputs: int, *, width: int, bias_var: float, seed: int) -> nn.Sequential:
    norm, placement, tanh = TRAINED[kind]
    made = MLP(
        inputs, 1, width=width, depth=2, activation="relu", norm=norm, placement=placement,  # type: ignore[arg-type]
        bias_var=bias_var, generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    layers = list(made)
    return nn.Sequential(*layers[:-2], nn.Tanh() if tanh else layers[-2], layers[-1])


def far_errors(
    splits: Sequence[TableSplit],
    *,
    width: int,
    bias_var: float,
    steps: int,
    batch_size: int,
    lr: float,
    checkpoint: Path,
    progress: Progress,
) -> dict[str, dict[str, Tensor]]:
    """Root mean square errors on near and far rows, in deviations of the target, (seeds,), of every kind.

    All kinds and seeds are trained at once; networks of one seed begin with the same weights.
    """
    count = len(splits)
    joined = [torch.cat([getattr(s, axis) for s in splits]) for axis in ("x", "y")]
    starts = [sum(len(s.x) for s in splits[:k]) for k in range(count)]

    def rows(part: int) -> Tensor:
        return torch.stack([start + s.rows(part) for start, s in zip(starts, splits, strict=True)])

    inputs = joined[0].shape[1]
    models = [
        _network(k, inputs, width=width, bias_var=bias_var, seed=s.seed) for k in TRAINED for s in splits
    ]
    epochs = max(1, math.ceil(steps * batch_size / splits[0].sizes[0]))
    training = Training(
        epochs=epochs, batch_size=min(batch_size, splits[0].sizes[0]), lr=lr, schedule="cosine"
    )
    done = train(
        models, *joined, training=training, seeds=[s.seed for _ in TRAINED for s in splits],
        rows=rows(0).repeat(len(TRAINED), 1), checkpoint=checkpoint, progress=progress,
    )  # fmt: skip
    kinds: dict[str, Sequence[nn.Module]] = {
        kind: done.models[k * count : (k + 1) * count] for k, kind in enumerate(TRAINED)
    }
    for name in AFTERWARDS:
        kinds[name] = [
            protected(name, model, s.x[s.rows(0)]) for model, s in zip(kinds["standard"], splits, strict=True)
        ]
    return {name: _errors(own, splits) for name, own in kinds.items()}


@torch.no_grad()
def protected(name: str, model: nn.Module, seen: Tensor) -> nn.Module:
    """The trained network with one bound put in, set by the rows it was trained on."""
    layers = list(model.children())
    if name == "input capped":
        return nn.Sequential(_cap(seen), *layers)
    if name == "first layer capped":
        return nn.Sequential(*layers[:2], _cap(nn.Sequential(*layers[:2])(seen)), *layers[2:])
    if name == "output clipped":
        out = model(seen)
        return nn.Sequential(*layers, nn.Hardtanh(float(out.min()), float(out.max())))
    raise UnknownNameError("protection", name, AFTERWARDS)


def _cap(seen: Tensor) -> NormCap:
    """Distance from the mean, in deviations of every entry, kept below what all but a hundredth of the rows have."""
    center, weight = seen.mean(0), 1.0 / _positive(seen.std(0, correction=0))
    distance = ((seen - center) * weight).norm(dim=1)
    return NormCap(float(distance.quantile(_KEEP)), center=center, weight=weight)


def _errors(models: Sequence[nn.Module], splits: Sequence[TableSplit]) -> dict[str, Tensor]:
    out: Mapping[str, list[float]] = {"near": [], "far": []}
    for model, split in zip(models, splits, strict=True):
        for part, name in ((1, "near"), (2, "far")):
            own = split.rows(part)
            error = predict_all([model], split.x[own])[0] - split.y[own]
            out[name].append(float(error.double().square().mean().sqrt()))
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in out.items()}
