"""Age from frozen features of faces: heads trained on four ethnicity labels and tested on the fifth.

Run: ``farfield reproduce p1.utkface``
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from farfield.data import packed_faces
from farfield.engine import Checkpoint, fingerprint
from farfield.papers._curves import digits
from farfield.papers._experiment import Claims, ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p1._ages import (
    AGE_EDGES,
    PREDICTION_EDGES,
    AgeData,
    HeadResults,
    chosen_rows,
    measure,
    restored,
    scaled,
    share_by_bin,
    together,
)
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
FaceSetting = tuple[str, str, str]
"""Backbone, scaling of its features, scaling of the ages."""


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    heads: Mapping[str, tuple[str, float]],
    held_out: Sequence[int],
    features_from: str,
    other_features: Sequence[str],
    scaling: tuple[str, str],
    other_scalings: Sequence[tuple[str, str]],
    rows: int | None,
    share: float,
    width: int,
    depth: int,
    bias_var: float,
    kaiming_first: bool,
    batch_size: int,
    epochs: int,
    seeds: int,
    other_seeds: int,
    group: int,
    certified: int,
    time_budget: float,
    directions: int,
    farthest: float,
) -> ExperimentResult:
    """R² of age near and far for heads with and without LayerNorm, and what bounds them far from all faces.

    ``held_out``: ethnicity labels that are far. ``other_features``: further backbones, each with all scalings.
    ``group``: heads of one kind that are trained at once.
    """
    sources = [backbone(name) for name in (features_from, *other_features)]
    faces = packed_faces()
    chosen, near = chosen_rows(faces, held_out, rows, seed)
    shape = {"width": width, "depth": depth, "bias_var": bias_var, "kaiming_first": kaiming_first}
    main = (features_from, scaling[0], scaling[1])
    plans = {(s.name, *how): other_seeds for s in sources for how in (scaling, *other_scalings)} | {
        main: seeds
    }
    stages = (len(sources) * -(-len(chosen) // CHUNK), sum(-(-n // group) for n in plans.values()), 1)
    steps = _Steps(progress, *stages)
    age = torch.from_numpy(faces.age[chosen]).double()
    measured: dict[FaceSetting, list[HeadResults]] = {}
    far: list[FarField] = []
    beyond: dict[str, float] = {}
    for source in sources:
        folder = scratch / "features" if source is sources[0] else scratch / f"features_{source.name}"
        z = features(source, faces, chosen, folder, progress=lambda *_: steps.one())
        beyond[source.name] = _beyond(z, near)
        for key, count in plans.items():
            if key[0] != source.name:
                continue
            problem = scaled(z, age, near, *key[1:])
            settings = (heads, shape, share, batch_size, epochs, seed)
            store = Checkpoint(
                scratch / "_".join(("trained", *key)), fingerprint("utkface", z, key[1:], settings)
            )
            groups = []
            for start in range(0, count, group):
                own = [1000 * seed + s for s in range(start, min(start + group, count))]
                part = store.load(own)
                if part is None:
                    part = measure(problem, heads, shape, share, batch_size, epochs, own)
                    store.save(own, part)
                groups.append(part)
                steps.one()
            measured[key] = [together(name, [g[name] for g in groups]) for name in heads]
            if key == main:
                first = restored(groups[0], heads, z.shape[1], shape, certified)
                far = _far_fields(first, heads, problem, certified, time_budget, directions, farthest, seed)
    steps.one()
    kinds = measured[main]
    others = [_apart(key, found) for key, found in measured.items() if key != main]
    verdicts = (*_accuracy(kinds), *others, *(_bounded(f) for f in far))
    figure = Figure(
        "UTKFace: age from frozen features",
        (_scores(kinds), _errors(kinds), _histogram(kinds, age[near:]), _far_panel(far)),
        _caption(sources[0], len(chosen), near, seeds, certified), columns=2,
    )  # fmt: skip
    numbers = {
        "backbones": {
            s.name: {"title": s.title, "input": s.size, "features": s.features,
                     "far_rows_beyond_the_99%_distance_of_near_rows": beyond[s.name]} for s in sources
        },
        "held out labels": list(held_out),
        "rows": {"near": near, "far": len(chosen) - near, "trained on": round(share * near)},
        "settings": {
            "; ".join(key): {"seeds": plans[key]} | {k.name: _numbers(k) for k in found}
            for key, found in measured.items()
        },
        "far field": {f.name: f.numbers() for f in far},
        "decades": list(AGE_EDGES), "prediction_edges": list(PREDICTION_EDGES),
    }  # fmt: skip
    return ExperimentResult(verdicts, numbers, figure, _table(measured, plans))


def _beyond(z: Tensor, near: int) -> float:
    """Share of far rows that lie farther from the near rows' mean than 99% of those do: 0.01 if they are alike."""
    distance = (z - z[:near].mean(0)).norm(dim=1)
    return float((distance[near:] > distance[:near].quantile(0.99)).double().mean())


class _Steps:
    """Progress over stages of unlike cost, one call a step."""

    def __init__(self, progress: Progress, *stages: int) -> None:
        self.progress, self.total, self.done = progress, sum(stages), 0

    def one(self) -> None:
        self.done += 1
        self.progress(self.done, self.total)


def _far_fields(
    models: Sequence[nn.Module],
    heads: Mapping[str, tuple[str, float]],
    problem: AgeData,
    count: int,
    time_budget: float,
    directions: int,
    farthest: float,
    seed: int,
) -> list[FarField]:
    return [
        far_field(
            name, models[k * count : (k + 1) * count], problem.x[: problem.near].double(),
            time_budget=time_budget, directions=directions, farthest=farthest, center=problem.center,
            spread=problem.spread, seed=seed,
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


def _accuracy(kinds: Sequence[HeadResults]) -> list[ClaimVerdict]:
    plain = next(k for k in kinds if k.name == STANDARD)
    normed = [k for k in kinds if k.name != STANDARD]
    base = _interval(plain.ood)
    claims = Claims()
    for k in normed:
        found = _interval(k.ood)
        claims.add(
            f"{k.name}: R² on the far labels is above the standard head's, 95% intervals apart",
            found["mean"] - found["half"] > base["mean"] + base["half"],
            f"{_pm(k.ood)} against {_pm(plain.ood)}; higher in {int((k.ood > plain.ood).sum())} of "
            f"{len(k.ood)} seeds",
        )
    for k in normed:
        difference = k.id - plain.id
        claims.add(
            f"{k.name}: R² near by is the standard head's or better, to 0.02",
            float(difference.mean()) > -0.02,
            f"{_pm(k.id)} against {_pm(plain.id)}",
        )
    best = max(kinds, key=lambda k: float(k.ood.mean()))
    order = sorted(kinds, key=lambda k: -float(k.ood.mean()))
    claims.add(
        "The order on the far labels is P1's: LN first, LN every, LN second, standard",
        [k.name for k in order] == sorted(PUBLISHED, key=lambda n: -PUBLISHED[n][0][0]),
        "; ".join(f"{k.name} {_pm(k.ood)}" for k in order),
    )
    claims.add(
        "LN first is the best head on the far labels",
        best.name == "LN first",
        f"{best.name} {_pm(best.ood)}",
    )
    return claims


def _apart(key: FaceSetting, kinds: Sequence[HeadResults]) -> ClaimVerdict:
    """The same claim under another backbone or scaling, for all heads at once."""
    plain = next(k for k in kinds if k.name == STANDARD)
    base = _interval(plain.ood)
    normed = {k.name: _interval(k.ood) for k in kinds if k.name != STANDARD}
    return ClaimVerdict(
        f"{key[0]}, features scaled: {key[1]}, ages: {key[2]}. Every head with LayerNorm has a higher R² on the far "
        "labels than the standard head, 95% intervals apart",
        all(n["mean"] - n["half"] > base["mean"] + base["half"] for n in normed.values()),
        "; ".join(f"{k.name} {_pm(k.ood)}" for k in kinds) + f"; {len(plain.ood)} seeds",
    )


def _bounded(f: FarField) -> ClaimVerdict:
    if f.name == STANDARD:
        return ClaimVerdict(
            f"{f.name}: the age grows in proportion to the features' norm, without limit",
            f.unbounded and abs(f.exponent - 1.0) < 1e-2,
            f"exponent {f.exponent:.4f} from 10⁴ to {f.farthest:g}; {max(f.highest, -f.lowest):.3g} years there; "
            + ("proved unbounded" if f.unbounded else "not proved unbounded"),
        )
    return ClaimVerdict(
        f"{f.name}: no age leaves its certificate, whatever the features: up to a norm of {f.farthest:g}",
        f.certified and f.inside,
        f"from {f.lowest:.0f} to {f.highest:.0f} years among {f.count} heads; certified "
        + (", ".join(f"[{low:.0f}, {high:.0f}]" for low, high in f.ranges) or "none"),
    )


# ------------------------------------------------------------------ what is shown


def _caption(source: Backbone, rows: int, near: int, seeds: int, certified: int) -> str:
    return (
        f"Heads of two layers on frozen features of {rows:,} faces, {near:,} of them near ({source.title}). Mean of "
        f"{seeds} seeds, each with its own split and initialization; shades: 95% intervals of the mean. Dashed in "
        f"the first panel: P1. Last panel: {certified} heads of each kind, largest |age| over directions; dotted: "
        "certified."
    )


def _scores(kinds: Sequence[HeadResults]) -> Panel:
    at = tuple(float(k) for k in range(len(kinds)))
    series = []
    for c, (label, column, pick) in enumerate((("OOD", 0, "ood"), ("ID", 1, "id"))):
        found = [_interval(getattr(k, pick)) for k in kinds]
        y = tuple(f["mean"] for f in found)
        band = tuple(f["mean"] - f["half"] for f in found), tuple(f["mean"] + f["half"] for f in found)
        series.append(Series(label, at, y, *band, color=c))
        printed = tuple(PUBLISHED[k.name][column][0] for k in kinds)
        series.append(Series(f"{label}, P1", at, printed, style="dashed", color=c))
    return Panel("R² of age", "head", "R²", tuple(series), ticks=tuple(k.name for k in kinds))


def _errors(kinds: Sequence[HeadResults]) -> Panel:
    middle = tuple(float(e + 5) for e in AGE_EDGES)
    series = []
    for c, k in enumerate(kinds):
        for part, style in ((1, "line"), (0, "dotted")):
            mean = k.bias[:, part].nanmean(0)
            label = k.name if part else ""
            series.append(Series(label, middle, digits(mean), style=style, color=c))  # type: ignore[arg-type]
    return Panel("error by age (dotted: ID)", "age", "mean error, years", tuple(series))


def _histogram(kinds: Sequence[HeadResults], truth: Tensor) -> Panel:
    middle = tuple(e + 2.5 for e in PREDICTION_EDGES[:-1])
    series = [Series(k.name, middle, digits(k.histogram.mean(0)), color=c) for c, k in enumerate(kinds)]
    series.append(Series("true ages", middle, digits(share_by_bin(truth)), style="dotted", color=len(kinds)))
    return Panel("predicted ages, far labels", "predicted age (outer bins: beyond)", "share", tuple(series))


def _far_panel(far: Sequence[FarField]) -> Panel:
    series = []
    for c, f in enumerate(far):
        series.append(Series(f.name, digits(f.radii), digits(f.largest), color=c))
        if f.certified:
            bound = max(max(abs(low), abs(high)) for low, high in f.ranges)
            series.append(
                Series("", digits(f.radii), (float(f"{bound:.4g}"),) * len(f.radii), style="dotted", color=c)
            )
    return Panel(
        "far field",
        "distance from the features' mean",
        "largest |age|",
        tuple(series),
        x_scale="log",
        y_scale="log",
    )


def _numbers(k: HeadResults) -> dict[str, Any]:
    return {
        "id": _interval(k.id), "ood": _interval(k.ood), "id_by_seed": digits(k.id), "ood_by_seed": digits(k.ood),
        "ood_predictions_beyond_trained_ages": float(k.beyond.mean()), "worst_ood_error_years": float(k.worst.max()),
        "mean_error_by_decade": {p: digits(k.bias[:, i].nanmean(0)) for i, p in enumerate(("id", "ood"))},
        "rms_error_by_decade": {p: digits(k.spread[:, i].nanmean(0)) for i, p in enumerate(("id", "ood"))},
        "ood_prediction_histogram": digits(k.histogram.mean(0)),
    }  # fmt: skip


def _table(measured: Mapping[FaceSetting, Sequence[HeadResults]], plans: Mapping[FaceSetting, int]) -> Table:
    def printed(pair: tuple[float, float]) -> str:
        return f"{pair[0]:.2f} ± {pair[1]:.2f}"

    rows = tuple(
        (
            *key,
            plans[key],
            k.name,
            _pm(k.ood),
            printed(PUBLISHED[k.name][0]),
            _pm(k.id),
            printed(PUBLISHED[k.name][1]),
        )
        for key, kinds in measured.items()
        for k in kinds
    )
    names = ("backbone", "features", "ages", "seeds", "head", "OOD R²", "P1, 250 seeds", "ID R²", "P1")
    return Table(names, rows)


def _claims(record: Mapping[str, Any]) -> Claims:
    """What the text says of where the norm is, from the scores that are recorded."""
    claims = Claims()
    if record["quick"]:  # intervals of two seeds always overlap
        return claims
    normed = [
        name for name, (where, _) in record["provenance"]["settings"]["heads"].items() if where != "none"
    ]
    for setting, kinds in record["numbers"]["settings"].items():
        found = {name: (kinds[name]["ood"]["mean"], kinds[name]["ood"]["half"]) for name in normed}
        claims.add(
            f"{setting}: where the LayerNorm is matters little: the 95% intervals of R² on the far labels overlap",
            max(m - h for m, h in found.values()) <= min(m + h for m, h in found.values()),
            ", ".join(f"{name} {m:.3f} ± {h:.3f}" for name, (m, h) in found.items()),
        )
    return claims


HEADS = {
    "standard": ("none", 1e-3), "LN first": ("first", 1e-3), "LN second": ("second", 3e-3),
    "LN every": ("every", 3e-3),
}  # fmt: skip
"""Name → where its LayerNorms sit, and its learning rate, as P1's Table 3 has it."""
PAPER_SIZE = {
    "features_from": "resnet18, ImageNet", "seeds": 250, "width": 128, "depth": 2, "bias_var": 0.01,
    "batch_size": 128, "epochs": 10, "rows": "all", "scaling": None, "kaiming_first": True,
}  # fmt: skip
SETTINGS = {
    "heads": HEADS, "held_out": [4], "features_from": "mobilenet_v2", "other_features": ["resnet18_tiny"],
    "scaling": ("none", "standard"), "other_scalings": (("standard", "standard"),), "rows": None, "share": 0.9,
    "width": 128, "depth": 2, "bias_var": 0.01, "batch_size": 128, "epochs": 10, "seeds": 100, "other_seeds": 100,
    "group": 10, "certified": 2, "kaiming_first": False, "time_budget": 15.0, "directions": 256, "farthest": 1e8,
}  # fmt: skip
QUICK = {
    "rows": 320, "seeds": 2, "other_seeds": 2, "group": 2, "certified": 1, "time_budget": 1.0, "epochs": 3,
    "directions": 32,
}  # fmt: skip

EXPERIMENT = Experiment(
    name="p1.utkface",
    description=(
        "Age from faces with a frozen backbone: heads of two layers of 128 are trained on four ethnicity labels "
        "(White, Black, Asian, Indian) and tested on held-out faces of these and on the fifth, Others. With "
        "LayerNorm R² on the fifth is higher, and near by no worse; far from all faces a head with LayerNorm stays "
        "within its certificate, and the standard one grows without limit. The paper's backbone is an ImageNet "
        "ResNet-18; here it is MobileNetV2 with its ImageNet weights, and beside it a ResNet-18 trained on "
        "Tiny-ImageNet: the claim is about the layers on top. The paper does not say how it scales: features "
        "enter as the backbone gives them, and standardized by the near rows as a second setting; ages are "
        "standardized."
    ),
    settings=SETTINGS,
    quick=QUICK,
    paper_size={"held_out": [4], **PAPER_SIZE},
    run=run,
    resumable=True,
    data=("utkface", "mobilenet_v2", "resnet18_tiny"),
    claims=_claims,
)
