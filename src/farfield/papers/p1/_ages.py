"""Heads trained on features to tell the age, and what is measured of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from farfield.data import PackedFaces, far_field_split
from farfield.learn import Training, predict_all, train
from farfield.nn import MLP

__all__ = [
    "AGE_EDGES",
    "PREDICTION_EDGES",
    "AgeData",
    "HeadResults",
    "chosen_rows",
    "head",
    "measure",
    "r2",
    "restored",
    "scaled",
    "share_by_bin",
    "together",
]

AGE_EDGES = tuple(range(0, 100, 10))
"""Decades of the true age; the last one is open."""
PREDICTION_EDGES = tuple(range(-40, 141, 5))
"""Bins of predicted ages; what lies beyond is counted in the outermost."""


def head(
    where: str, inputs: int, *, width: int, depth: int, bias_var: float, kaiming_first: bool, seed: int
) -> nn.Module:
    """The layers on top, LayerNorm without affine parameters.

    Weights are Kaiming's, as P1's; those of the first layer, unless asked for, have variance 1/fan_in instead.
    """
    return MLP(
        inputs, 1, width=width, depth=depth, activation="relu", norm=None if where == "none" else "layer",
        placement=where, weight_var=2.0 if kaiming_first else None, bias_var=bias_var,  # type: ignore[arg-type]
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


@dataclass(frozen=True)
class AgeData:
    """Features and ages, scaled as told; near rows first."""

    x: Tensor
    y: Tensor
    """(rows, 1), in units of ``spread`` about ``center``."""
    age: Tensor
    near: int
    center: float
    spread: float

    def years(self, outputs: Tensor) -> Tensor:
        """Outputs of a head as ages."""
        return outputs.double() * self.spread + self.center


@dataclass(frozen=True)
class HeadResults:
    """What was measured of one kind of head under one scaling; the first axis of every tensor is the seed."""

    name: str
    id: Tensor
    ood: Tensor
    bias: Tensor
    """Mean error by decade of age, in years: (seeds, 2, decades), ID then OOD; NaN where there is nobody."""
    spread: Tensor
    """Root mean square error, the same shape."""
    histogram: Tensor
    """Share of OOD predictions by bin."""
    beyond: Tensor
    """Share of OOD predictions outside the ages 0 to the oldest trained on."""
    worst: Tensor
    """Largest OOD error, in years."""


# ------------------------------------------------------------------ data


def chosen_rows(
    faces: PackedFaces, held_out: Sequence[int], count: int | None, seed: int
) -> tuple[NDArray[np.int64], int]:
    """Near rows, then those with a label that is held out, and how many are near.

    ``count`` of all, in the whole's proportion, or everything.
    """
    apart = faces.held_out(held_out)
    near, far = np.flatnonzero(~apart), np.flatnonzero(apart)
    if count is not None:
        draw = np.random.default_rng(seed)
        some = round(count * len(near) / len(faces))
        near, far = draw.permutation(near)[:some], draw.permutation(far)[: count - some]
    return np.concatenate([near, far]).astype(np.int64), len(near)


def scaled(z: Tensor, age: Tensor, near: int, of_features: str, of_age: str) -> AgeData:
    """Constants come from all near rows: no far one is looked at, and they are the same for every seed."""
    x = z
    if of_features == "standard":
        x = (z - z[:near].mean(0)) / z[:near].std(0).clamp_min(1e-6)
    center, spread = (
        (float(age[:near].mean()), float(age[:near].std())) if of_age == "standard" else (0.0, 1.0)
    )
    return AgeData(x, ((age - center) / spread).float()[:, None], age, near, center, spread)


# ------------------------------------------------------------------ training


def measure(
    problem: AgeData,
    heads: Mapping[str, tuple[str, float]],
    shape: Mapping[str, Any],
    share: float,
    batch_size: int,
    epochs: int,
    seeds: Sequence[int],
) -> dict[str, dict[str, Tensor]]:
    """Train every kind of head on every seed's split; what is measured, and the first heads' parameters."""
    near = np.arange(problem.near)
    splits = [
        far_field_split(near, near, far=np.zeros(len(near), bool), share=share, seed=s)[:2] for s in seeds
    ]
    fit, held = (torch.from_numpy(np.stack([np.asarray(s[k].x) for s in splits])) for k in (0, 1))
    far = torch.arange(problem.near, len(problem.x)).expand(len(seeds), -1)
    oldest = problem.age[: problem.near].max()
    out: dict[str, dict[str, Tensor]] = {}
    for name, (where, lr) in heads.items():
        models = [head(where, problem.x.shape[1], seed=s, **shape) for s in seeds]
        training = Training(epochs=epochs, batch_size=batch_size, lr=lr)
        models = list(train(models, problem.x, problem.y, training=training, seeds=seeds, rows=fit).models)
        guesses = [problem.years(predict_all(models, problem.x, rows=r)[..., 0]) for r in (held, far)]
        truths = [problem.age[r] for r in (held, far)]
        errors = [g - t for g, t in zip(guesses, truths, strict=True)]
        decades = [_by_decade(e, t) for e, t in zip(errors, truths, strict=True)]
        out[name] = {
            "id": r2(guesses[0], truths[0]),
            "ood": r2(guesses[1], truths[1]),
            "bias": torch.stack([d[0] for d in decades], 1),
            "spread": torch.stack([d[1] for d in decades], 1),
            "histogram": torch.stack([share_by_bin(g) for g in guesses[1]]),
            "beyond": ((guesses[1] < 0) | (guesses[1] > oldest)).double().mean(1),
            "worst": errors[1].abs().amax(1),
        } | {f"model.{k}.{n}": p for k, m in enumerate(models[:4]) for n, p in m.state_dict().items()}
    return out


def r2(guess: Tensor, truth: Tensor) -> Tensor:
    """1 − Σ(error)²/Σ(truth − mean truth)², along the last axis."""
    left = (guess - truth).square().sum(-1)
    return 1.0 - left / (truth - truth.mean(-1, keepdim=True)).square().sum(-1)


def _by_decade(errors: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    edges = torch.tensor(AGE_EDGES[1:], dtype=truth.dtype)
    masks = torch.nn.functional.one_hot(torch.bucketize(truth, edges, right=True), len(AGE_EDGES)).double()
    count = masks.sum(1)
    bias = (masks * errors[..., None]).sum(1) / count
    return bias, ((masks * errors.square()[..., None]).sum(1) / count).sqrt()


def share_by_bin(guess: Tensor) -> Tensor:
    """Share of predictions in every bin, those beyond in the outermost."""
    edges = torch.tensor(PREDICTION_EDGES, dtype=guess.dtype)
    inside = guess.clamp(float(edges[0]), float(edges[-1]) - 1e-9)
    return torch.histogram(inside, edges).hist / len(guess)


def restored(
    group: Mapping[str, Mapping[str, Tensor]],
    heads: Mapping[str, tuple[str, float]],
    inputs: int,
    shape: Mapping[str, Any],
    count: int,
) -> list[nn.Module]:
    """The first seeds' heads, kind after kind, from what was stored."""
    models = []
    for name, (where, _) in heads.items():
        for k in range(count):
            model = head(where, inputs, seed=0, **shape)
            mark = f"model.{k}."
            model.load_state_dict(
                {n.removeprefix(mark): v for n, v in group[name].items() if n.startswith(mark)}
            )
            models.append(model.eval())
    return models


def together(name: str, groups: Sequence[Mapping[str, Tensor]]) -> HeadResults:
    keys = ("id", "ood", "bias", "spread", "histogram", "beyond", "worst")
    return HeadResults(name, *(torch.cat([g[key] for g in groups]) for key in keys))
