"""Age from frozen features of faces: layers trained on one ethnicity label, tested on the others.

Run: ``farfield reproduce p1.utkface``
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from farfield.data import PackedFaces, far_field_split, packed_faces
from farfield.engine import Checkpoint, fingerprint
from farfield.learn import Training, predict_all, train
from farfield.nn import MLP
from farfield.papers._experiment import ClaimVerdict, Experiment, Outcome, Progress
from farfield.papers.p1._backbones import Backbone, backbone
from farfield.papers.p1._features import CHUNK, features
from farfield.papers.p1._heads_far import FarField, far_field
from farfield.report import Figure, Panel, Series, Table

STANDARD = "standard"
PUBLISHED: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "standard": ((0.27, 0.03), (0.66, 0.01)),
    "LN first": ((0.47, 0.03), (0.68, 0.01)),
    "LN second": ((0.36, 0.04), (0.66, 0.01)),
    "LN every": ((0.42, 0.05), (0.66, 0.01)),
}
"""R² of P1, OOD and ID, each with its 95% half-width; 250 seeds on an ImageNet ResNet-18."""
AGE_EDGES = tuple(range(0, 100, 10))
"""Decades of the true age; the last one is open."""
PREDICTION_EDGES = tuple(range(-40, 141, 5))
"""Bins of predicted ages; what lies beyond is counted in the outermost."""


def head(where: str, inputs: int, *, width: int, depth: int, bias_var: float, seed: int) -> nn.Module:
    """The layers on top: P1's initialisation, LayerNorm without affine parameters."""
    return MLP(
        inputs, 1, width=width, depth=depth, activation="relu", norm=None if where == "none" else "layer",
        placement=where, bias_var=bias_var, generator=torch.Generator().manual_seed(seed),  # type: ignore[arg-type]
    )  # fmt: skip


@dataclass(frozen=True)
class _Problem:
    """Features and ages, scaled as told; near rows first."""

    x: Tensor
    y: Tensor
    """(rows, 1), in units of ``spread`` about ``centre``."""
    age: Tensor
    near: int
    centre: float
    spread: float

    def years(self, outputs: Tensor) -> Tensor:
        return outputs.double() * self.spread + self.centre


@dataclass(frozen=True)
class _Kind:
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


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    heads: Mapping[str, tuple[str, float]],
    features_from: str,
    scaling: tuple[str, str],
    other_scalings: Sequence[tuple[str, str]],
    rows: int | None,
    share: float,
    width: int,
    depth: int,
    bias_var: float,
    batch_size: int,
    epochs: int,
    seeds: int,
    other_seeds: int,
    group: int,
    certified: int,
    certify_seconds: float,
    directions: int,
    farthest: float,
) -> Outcome:
    """R² of age near and far for heads with and without LayerNorm, and what bounds them far from all faces."""
    source = backbone(features_from)
    faces = packed_faces()
    chosen = _rows(faces, rows, seed)
    shape = {"width": width, "depth": depth, "bias_var": bias_var}
    plans = [(tuple(scaling), seeds), *((tuple(s), other_seeds) for s in other_scalings)]
    steps = _Steps(progress, -(-len(chosen) // CHUNK), sum(-(-n // group) for _, n in plans), 1)
    z = features(source, faces, chosen, scratch / "features", progress=lambda *_: steps.one())
    near = int((~faces.far[chosen]).sum())
    measured: dict[tuple[str, str], list[_Kind]] = {}
    first: tuple[nn.Module, ...] = ()
    for k, (how, count) in enumerate(plans):
        problem = _scaled(z, torch.from_numpy(faces.age[chosen]).double(), near, *how)
        settings = (heads, shape, share, batch_size, epochs, seed)
        store = Checkpoint(scratch / f"trained{k}", fingerprint("utkface", z, how, settings))
        groups = []
        for start in range(0, count, group):
            own = [1000 * seed + s for s in range(start, min(start + group, count))]
            part = store.load(own)
            if part is None:
                part = _trained(problem, heads, shape, share, batch_size, epochs, own)
                store.save(own, part)
            groups.append(part)
            steps.one()
        measured[how[0], how[1]] = [_kind(name, [g[name] for g in groups]) for name in heads]
        if k == 0:
            first = tuple(_restored(groups[0], heads, z.shape[1], shape, certified))
            far = _far_fields(first, heads, problem, certified, certify_seconds, directions, farthest, seed)
    steps.one()
    main = measured[scaling[0], scaling[1]]
    verdicts = (*_accuracy(main), *(v for f in far for v in _bounded(f)))
    figure = Figure(
        "UTKFace: age from frozen features",
        (_scores(main), _errors(main), _histogram(main, _far_ages(faces, chosen)), _far_panel(far)),
        _caption(source, len(chosen), near, seeds, certified), columns=2,
    )  # fmt: skip
    numbers = {
        "backbone": {"name": source.name, "title": source.title, "input": source.size, "features": source.features},
        "rows": {"near": near, "far": len(chosen) - near, "trained on": round(share * near)},
        "scaling": {"features": scaling[0], "age": scaling[1]},
        "heads": {k.name: _numbers(k) for k in main},
        "other scalings": [
            {"features": how[0], "age": how[1], "seeds": other_seeds}
            | {k.name: {"id": _interval(k.id), "ood": _interval(k.ood)} for k in kinds}
            for how, kinds in list(measured.items())[1:]
        ],
        "far field": {f.name: f.numbers() for f in far},
        "decades": list(AGE_EDGES), "prediction_edges": list(PREDICTION_EDGES),
    }  # fmt: skip
    return Outcome(verdicts, numbers, figure, _table(main, seeds))


class _Steps:
    """Progress over stages of unlike cost, one call a step."""

    def __init__(self, progress: Progress, *stages: int) -> None:
        self.progress, self.total, self.done = progress, sum(stages), 0

    def one(self) -> None:
        self.done += 1
        self.progress(self.done, self.total)


# ------------------------------------------------------------------ data


def _rows(faces: PackedFaces, count: int | None, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Near rows, then far ones; ``count`` of all, in the whole's proportion, or everything."""
    near, far = np.flatnonzero(~faces.far), np.flatnonzero(faces.far)
    if count is not None:
        draw = np.random.default_rng(seed)
        some = round(count * len(near) / len(faces))
        near, far = draw.permutation(near)[:some], draw.permutation(far)[: count - some]
    return np.concatenate([near, far]).astype(np.int64)


def _scaled(z: Tensor, age: Tensor, near: int, of_features: str, of_age: str) -> _Problem:
    """Constants come from all near rows: no far one is looked at, and they are the same for every seed."""
    x = z
    if of_features == "standard":
        x = (z - z[:near].mean(0)) / z[:near].std(0).clamp_min(1e-6)
    centre, spread = (
        (float(age[:near].mean()), float(age[:near].std())) if of_age == "standard" else (0.0, 1.0)
    )
    return _Problem(x, ((age - centre) / spread).float()[:, None], age, near, centre, spread)


def _far_ages(faces: PackedFaces, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Tensor:
    """True ages of the far rows."""
    return torch.from_numpy(faces.age[rows[faces.far[rows]]]).double()


# ------------------------------------------------------------------ training


def _trained(
    problem: _Problem,
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
            "id": _r2(guesses[0], truths[0]),
            "ood": _r2(guesses[1], truths[1]),
            "bias": torch.stack([d[0] for d in decades], 1),
            "spread": torch.stack([d[1] for d in decades], 1),
            "histogram": torch.stack([_counted(g) for g in guesses[1]]),
            "beyond": ((guesses[1] < 0) | (guesses[1] > oldest)).double().mean(1),
            "worst": errors[1].abs().amax(1),
        } | {f"model.{k}.{n}": p for k, m in enumerate(models[:4]) for n, p in m.state_dict().items()}
    return out


def _r2(guess: Tensor, truth: Tensor) -> Tensor:
    """1 − Σ(error)²/Σ(truth − mean truth)², along the last axis."""
    left = (guess - truth).square().sum(-1)
    return 1.0 - left / (truth - truth.mean(-1, keepdim=True)).square().sum(-1)


def _by_decade(errors: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    edges = torch.tensor(AGE_EDGES[1:], dtype=truth.dtype)
    masks = torch.nn.functional.one_hot(torch.bucketize(truth, edges, right=True), len(AGE_EDGES)).double()
    count = masks.sum(1)
    bias = (masks * errors[..., None]).sum(1) / count
    return bias, ((masks * errors.square()[..., None]).sum(1) / count).sqrt()


def _counted(guess: Tensor) -> Tensor:
    """Share of predictions in every bin, those beyond in the outermost."""
    edges = torch.tensor(PREDICTION_EDGES, dtype=guess.dtype)
    inside = guess.clamp(float(edges[0]), float(edges[-1]) - 1e-9)
    return torch.histogram(inside, edges).hist / len(guess)


def _restored(
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


def _kind(name: str, groups: Sequence[Mapping[str, Tensor]]) -> _Kind:
    keys = ("id", "ood", "bias", "spread", "histogram", "beyond", "worst")
    return _Kind(name, *(torch.cat([g[key] for g in groups]) for key in keys))


def _far_fields(
    models: Sequence[nn.Module],
    heads: Mapping[str, tuple[str, float]],
    problem: _Problem,
    count: int,
    seconds: float,
    directions: int,
    farthest: float,
    seed: int,
) -> list[FarField]:
    return [
        far_field(
            name, models[k * count : (k + 1) * count], problem.x[: problem.near].double(),
            seconds=seconds, directions=directions, farthest=farthest, centre=problem.centre, spread=problem.spread,
            seed=seed,
        )
        for k, name in enumerate(heads)
    ]  # fmt: skip


# ------------------------------------------------------------------ claims


def _interval(values: Tensor) -> dict[str, float]:
    """Mean and the half-width of its 95% interval, 1.96 standard errors."""
    return {"mean": float(values.mean()), "half": 1.96 * float(values.std()) / math.sqrt(len(values))}


def _pm(values: Tensor) -> str:
    found = _interval(values)
    return f"{found['mean']:.3f} ± {found['half']:.3f}"


def _accuracy(kinds: Sequence[_Kind]) -> list[ClaimVerdict]:
    plain = next(k for k in kinds if k.name == STANDARD)
    normed = [k for k in kinds if k.name != STANDARD]
    base = _interval(plain.ood)
    out = []
    for k in normed:
        found = _interval(k.ood)
        out.append(
            ClaimVerdict(
                f"{k.name}: R² on the far labels is above the standard head's, 95% intervals apart",
                found["mean"] - found["half"] > base["mean"] + base["half"],
                f"{_pm(k.ood)} against {_pm(plain.ood)}; higher in {int((k.ood > plain.ood).sum())} of "
                f"{len(k.ood)} seeds",
            )
        )
    for k in normed:
        difference = k.id - plain.id
        out.append(
            ClaimVerdict(
                f"{k.name}: R² near by is the standard head's or better, to 0.02",
                float(difference.mean()) > -0.02,
                f"{_pm(k.id)} against {_pm(plain.id)}",
            )
        )
    best = max(kinds, key=lambda k: float(k.ood.mean()))
    order = sorted(kinds, key=lambda k: -float(k.ood.mean()))
    out.append(
        ClaimVerdict(
            "The order on the far labels is P1's: LN first, LN every, LN second, standard",
            [k.name for k in order] == sorted(PUBLISHED, key=lambda n: -PUBLISHED[n][0][0]),
            "; ".join(f"{k.name} {_pm(k.ood)}" for k in order),
        )
    )
    out.append(
        ClaimVerdict(
            "LN first is the best head on the far labels",
            best.name == "LN first",
            f"{best.name} {_pm(best.ood)}",
        )
    )
    return out


def _bounded(f: FarField) -> list[ClaimVerdict]:
    if f.certified:
        return [
            ClaimVerdict(
                f"{f.name}: no age leaves its certificate, whatever the features: up to a norm of {f.farthest:g}",
                f.inside,
                f"from {f.lowest:.0f} to {f.highest:.0f} years among {f.count} heads; certified "
                + ", ".join(f"[{low:.0f}, {high:.0f}]" for low, high in f.ranges),
            )
        ]
    return [
        ClaimVerdict(
            f"{f.name}: the age grows in proportion to the features' norm, without limit",
            f.unbounded and abs(f.exponent - 1.0) < 1e-2,
            f"exponent {f.exponent:.4f} from 10⁴ to {f.farthest:g}; {f.highest:.3g} years there"
            + ("; proved unbounded" if f.unbounded else "; not proved unbounded"),
        )
    ]


# ------------------------------------------------------------------ what is shown


def _caption(source: Backbone, rows: int, near: int, seeds: int, certified: int) -> str:
    return (
        f"Heads of two layers on frozen features of {rows:,} faces, {near:,} of them near ({source.title}). Mean of "
        f"{seeds} seeds, each with its own split and initialisation; shades: 95% intervals of the mean. Dashed in "
        f"the first panel: P1. Last panel: {certified} heads of each kind, largest |age| over directions; dotted: "
        "certified."
    )


def _scores(kinds: Sequence[_Kind]) -> Panel:
    at = tuple(float(k) for k in range(len(kinds)))
    series = []
    for c, (label, column, pick) in enumerate((("OOD", 0, "ood"), ("ID", 1, "id"))):
        found = [_interval(getattr(k, pick)) for k in kinds]
        y = tuple(f["mean"] for f in found)
        band = tuple(f["mean"] - f["half"] for f in found), tuple(f["mean"] + f["half"] for f in found)
        series.append(Series(label, at, y, *band, colour=c))
        printed = tuple(PUBLISHED[k.name][column][0] for k in kinds)
        series.append(Series(f"{label}, P1", at, printed, style="dashed", colour=c))
    return Panel("R² of age", "head", "R²", tuple(series), ticks=tuple(k.name for k in kinds))


def _errors(kinds: Sequence[_Kind]) -> Panel:
    middle = tuple(float(e + 5) for e in AGE_EDGES)
    series = []
    for c, k in enumerate(kinds):
        for part, style in ((1, "line"), (0, "dotted")):
            mean = k.bias[:, part].nanmean(0)
            label = k.name if part else ""
            series.append(Series(label, middle, _digits(mean), style=style, colour=c))  # type: ignore[arg-type]
    return Panel("error by age (dotted: ID)", "age", "mean error, years", tuple(series))


def _histogram(kinds: Sequence[_Kind], truth: Tensor) -> Panel:
    middle = tuple(e + 2.5 for e in PREDICTION_EDGES[:-1])
    series = [Series(k.name, middle, _digits(k.histogram.mean(0)), colour=c) for c, k in enumerate(kinds)]
    series.append(Series("true ages", middle, _digits(_counted(truth)), style="dotted", colour=len(kinds)))
    return Panel("predicted ages, far labels", "predicted age (outer bins: beyond)", "share", tuple(series))


def _far_panel(far: Sequence[FarField]) -> Panel:
    series = []
    for c, f in enumerate(far):
        series.append(Series(f.name, _digits(f.radii), _digits(f.largest), colour=c))
        if f.certified:
            bound = max(max(abs(low), abs(high)) for low, high in f.ranges)
            series.append(
                Series(
                    "", _digits(f.radii), (float(f"{bound:.4g}"),) * len(f.radii), style="dotted", colour=c
                )
            )
    return Panel(
        "far field", "norm of the features", "largest |age|", tuple(series), x_scale="log", y_scale="log"
    )


def _digits(values: Tensor) -> tuple[float, ...]:
    """To four digits: enough for a picture."""
    return tuple(float(f"{v:.4g}") for v in values.tolist())


def _numbers(k: _Kind) -> dict[str, Any]:
    return {
        "id": _interval(k.id), "ood": _interval(k.ood), "id_by_seed": _digits(k.id), "ood_by_seed": _digits(k.ood),
        "ood_predictions_beyond_trained_ages": float(k.beyond.mean()), "worst_ood_error_years": float(k.worst.max()),
        "mean_error_by_decade": {p: _digits(k.bias[:, i].nanmean(0)) for i, p in enumerate(("id", "ood"))},
        "rms_error_by_decade": {p: _digits(k.spread[:, i].nanmean(0)) for i, p in enumerate(("id", "ood"))},
        "ood_prediction_histogram": _digits(k.histogram.mean(0)),
    }  # fmt: skip


def _table(kinds: Sequence[_Kind], seeds: int) -> Table:
    def printed(pair: tuple[float, float]) -> str:
        return f"{pair[0]:.2f} ± {pair[1]:.2f}"

    rows = tuple(
        (k.name, _pm(k.ood), printed(PUBLISHED[k.name][0]), _pm(k.id), printed(PUBLISHED[k.name][1]))
        for k in kinds
    )
    return Table(("head", f"OOD R², {seeds} seeds", "P1, 250 seeds", "ID R²", "P1"), rows)


EXPERIMENT = Experiment(
    name="p1.utkface",
    description=(
        "Age from faces with a frozen backbone: heads of two layers of 128 are trained on one ethnicity label and "
        "tested on it and on the others. With LayerNorm R² on the others is higher, and near by no worse; far from "
        "all faces a head with LayerNorm stays within its certificate, and the standard one grows without limit. The "
        "paper's backbone is an ImageNet ResNet-18; here it is MobileNetV2 with its ImageNet weights: the claim is "
        "about the layers on top. The paper does not say how it scales. Here features enter as the backbone gives "
        "them, and ages less the near rows' mean over their standard deviation; two other scalings are run beside."
    ),
    settings={
        "heads": {
            "standard": ("none", 1e-3), "LN first": ("first", 1e-3), "LN second": ("second", 3e-3),
            "LN every": ("every", 3e-3),
        },
        "features_from": "mobilenet_v2", "scaling": ("none", "standard"),
        "other_scalings": (("standard", "standard"), ("none", "none")), "rows": None, "share": 0.9, "width": 128,
        "depth": 2, "bias_var": 0.01, "batch_size": 128, "epochs": 10, "seeds": 40, "other_seeds": 5, "group": 5,
        "certified": 2, "certify_seconds": 15.0, "directions": 256, "farthest": 1e8,
    },
    quick={
        "rows": 320, "seeds": 2, "other_seeds": 2, "group": 2, "certified": 1, "certify_seconds": 1.0, "epochs": 3,
        "directions": 32,
    },
    run=run,
    resumable=True,
    data=("utkface", "mobilenet_v2"),
)  # fmt: skip
