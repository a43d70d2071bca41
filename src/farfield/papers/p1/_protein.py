"""Networks trained on the protein data: splits, scaling of the inputs, training, predictions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from farfield import data
from farfield.errors import UnknownNameError
from farfield.learn import Training, predict_all, train
from farfield.nn import MLP
from farfield.papers._experiment import Progress

__all__ = [
    "SCALINGS",
    "VARIANTS",
    "Case",
    "TrainedVariants",
    "load_cases",
    "predictions",
    "r_squared",
    "train_variants",
]

VARIANTS = {"standard": "none", "LN first": "first", "LN second": "second", "LN every": "every"}
"""Name → where the LayerNorms sit."""


def _standard(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(0), x.std(0, correction=0)


def _robust(x: Tensor) -> tuple[Tensor, Tensor]:
    low, middle, high = torch.quantile(x, torch.tensor([0.25, 0.5, 0.75], dtype=x.dtype), dim=0)
    return middle, high - low


SCALINGS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "standard": _standard,
    "robust": _robust,
    "minmax": lambda x: (x.amin(0), x.amax(0) - x.amin(0)),
    "none": lambda x: (torch.zeros_like(x[0]), torch.ones_like(x[0])),
}
"""Name → offset and scale of every input, from the training rows: mean and standard deviation, median and
interquartile range, smallest value and range, 0 and 1."""


@dataclass(frozen=True)
class Case:
    """One split, inputs and targets scaled by its training rows. Rows: training, ID, OOD.

    Parameters
    ----------
    seed
        Of the split and of the networks.
    x
        Scaled inputs, (n, 9), float64.
    y
        Targets to mean 0 and variance 1 over the training rows, (n, 1).
    area
        Surface area F1 as it stands in the data, (n,), in Å².
    sizes
        Rows of the three parts.
    spread
        Standard deviation of the training targets, in Å.
    center
        Their mean, in Å.
    """

    seed: int
    x: Tensor
    y: Tensor
    area: Tensor
    sizes: tuple[int, int, int]
    spread: float
    center: float

    def part(self, name: str) -> slice:
        """Rows of ``"train"``, ``"id"`` or ``"ood"``."""
        fitted, near, far = self.sizes
        return {
            "train": slice(0, fitted),
            "id": slice(fitted, fitted + near),
            "ood": slice(fitted + near, fitted + near + far),
        }[name]


def load_cases(seeds: Sequence[int], inputs: str, rows: int | None) -> list[Case]:
    """A split of the protein data for every seed, with at most ``rows`` training rows (None: all 40,132)."""
    if inputs not in SCALINGS:
        raise UnknownNameError("scaling of the inputs", inputs, SCALINGS)
    cases = []
    for seed in seeds:
        found = data.load("protein", seed=seed)
        fitted = data.Part(found.train.x[:rows], found.train.y[:rows])
        parts = (fitted, found.id, found.ood)
        raw = torch.cat([torch.as_tensor(p.x, dtype=torch.float64) for p in parts])
        target = torch.cat([torch.as_tensor(p.y, dtype=torch.float64) for p in parts])[:, None]
        offset, scale = SCALINGS[inputs](raw[: len(fitted)])
        center, spread = _standard(target[: len(fitted)])
        cases.append(
            Case(
                seed,
                (raw - offset) / scale,
                (target - center) / spread,
                raw[:, 0],
                (len(fitted), len(found.id), len(found.ood)),
                float(spread),
                float(center),
            )
        )
    return cases


@dataclass(frozen=True)
class TrainedVariants:
    """Networks by variant, one for every case, as float64 copies; and the loss that each one ended with."""

    models: dict[str, tuple[nn.Module, ...]]
    losses: dict[str, tuple[float, ...]]


def train_variants(
    cases: Sequence[Case],
    variants: Mapping[str, Any],
    *,
    width: int,
    depth: int,
    activation: str,
    weight_var: float,
    bias_var: float,
    norm_affine: bool,
    epochs: int,
    lr: float,
    precision: str,
    scratch: Path,
    progress: Progress,
) -> TrainedVariants:
    """A network of every variant on every case, all trained together on whole batches.

    Networks of one case begin with the same weights, whatever their norms. Parameters are float32 while they train.
    """
    models = [
        MLP(
            case.x.shape[1], 1, width=width, depth=depth, activation=activation,
            norm=None if where == "none" else "layer", placement=where, weight_var=weight_var, bias_var=bias_var,
            norm_affine=norm_affine, generator=torch.Generator().manual_seed(case.seed), dtype=torch.float32,
        )
        for where in variants.values()
        for case in cases
    ]  # fmt: skip
    x, y = _joined(cases)
    result = train(
        models, x.float(), y.float(),
        training=Training(epochs=epochs, lr=lr, precision=precision),  # type: ignore[arg-type]
        rows=_rows(cases, "train").repeat(len(variants), 1),
        checkpoint=scratch / "training", progress=progress,
    )  # fmt: skip
    count = len(cases)
    exact = [copy.deepcopy(model).double() for model in result.models]
    losses = result.losses[-1].tolist()
    return TrainedVariants(
        {name: tuple(exact[k * count : (k + 1) * count]) for k, name in enumerate(variants)},
        {name: tuple(losses[k * count : (k + 1) * count]) for k, name in enumerate(variants)},
    )


def predictions(models: Sequence[nn.Module], cases: Sequence[Case], part: str) -> Tensor:
    """Each model's outputs on a part of its own case, (cases, rows), scaled as the targets are."""
    x, _ = _joined(cases)
    return predict_all(models, x, rows=_rows(cases, part))[..., 0]


def r_squared(predicted: Tensor, target: Tensor) -> Tensor:
    """1 − Σ(y − f)²/Σ(y − ȳ)² along the last axis, ȳ the mean of these very targets."""
    spread = (target - target.mean(-1, keepdim=True)).square().sum(-1)
    return 1.0 - (target - predicted).square().sum(-1) / spread


def _joined(cases: Sequence[Case]) -> tuple[Tensor, Tensor]:
    return torch.cat([case.x for case in cases]), torch.cat([case.y for case in cases])


def _rows(cases: Sequence[Case], part: str) -> Tensor:
    """Numbers of a part's rows in the joined data, (cases, rows)."""
    starts = [0]
    for case in cases:
        starts.append(starts[-1] + len(case.x))
    where = [case.part(part) for case in cases]
    return torch.stack([torch.arange(s + w.start, s + w.stop) for s, w in zip(starts, where, strict=False)])
