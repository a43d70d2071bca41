"""Protein structure under four scalings of the inputs: what LayerNorm mends, and what depends on the scaling.

Run: ``farfield reproduce p1.scaling``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from farfield._intervals import mean_interval
from farfield.growth import horizon
from farfield.papers._experiment import ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p1._far import unit_directions
from farfield.papers.p1._protein import VARIANTS, load_cases, predictions, r_squared, train_variants
from farfield.report import Figure, Panel, Series, Table

Scores = dict[str, dict[str, dict[str, Tensor]]]
"""R² by scaling, variant and part, (seeds,)."""


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    variants: Mapping[str, str],
    scalings: Sequence[str],
    seeds: int,
    rows: int | None,
    directions: int,
    epochs: int,
    judge_scores: bool,
    **network: Any,
) -> ExperimentResult:
    """Every variant under every scaling: R², and what the horizon says along random directions.

    ``network`` and ``judge_scores`` are as for ``p1.table1``.
    """
    numbers = [1000 * seed + s for s in range(seeds)]
    cases = [case for name in scalings for case in load_cases(numbers, name, rows)]
    total = epochs + len(scalings)
    trained = train_variants(
        cases, variants, epochs=epochs, scratch=scratch, progress=lambda done, _: progress(done, total), **network
    )  # fmt: skip
    scores: Scores = {name: {} for name in scalings}
    for variant, models in trained.models.items():
        for part in ("id", "ood"):
            target = torch.stack([case.y[case.part(part), 0] for case in cases])
            found = r_squared(predictions(models, cases, part), target)
            for name, values in zip(scalings, found.split(seeds), strict=True):
                scores[name].setdefault(variant, {})[part] = values
    rays = unit_directions(directions, cases[0].x.shape[1], seed)
    verdicts = [_above(name, by_variant) for name, by_variant in scores.items()] if judge_scores else []
    for k, name in enumerate(scalings):
        first = {variant: made[k * seeds] for variant, made in trained.models.items()}
        verdicts.append(_far(name, first, variants, rays))
        progress(epochs + k + 1, total)
    caption = (
        f"{seeds} splits, {cases[0].sizes[0]} training rows, {epochs} epochs; 95% t-intervals over splits. R² below "
        "−1 is drawn at −1."
    )
    panels = tuple(_panel(title, scores, part) for title, part in (("ID", "id"), ("OOD", "ood")))
    figure = Figure("Protein structure under other scalings of the inputs", panels, caption, columns=2)
    plain = {
        name: {v: {p: s.tolist() for p, s in parts.items()} for v, parts in by_variant.items()}
        for name, by_variant in scores.items()
    }
    return ExperimentResult(tuple(verdicts), plain, figure, _table(scores))


def _above(name: str, scores: Mapping[str, Mapping[str, Tensor]]) -> ClaimVerdict:
    means = {variant: float(parts["ood"].mean()) for variant, parts in scores.items()}
    others = {variant: mean for variant, mean in means.items() if variant != "standard"}
    return ClaimVerdict(
        f"inputs scaled: {name}. Beyond the training region every network with LayerNorm has a higher mean R² than "
        "the standard one",
        min(others.values()) > means["standard"],
        ", ".join(f"{variant} {mean:.3g}" for variant, mean in means.items()),
    )


def _far(
    name: str, models: Mapping[str, nn.Module], variants: Mapping[str, str], rays: Tensor
) -> ClaimVerdict:
    """LayerNorm: a limit along every direction. Without: growth like λ."""
    degrees = {variant: horizon(model, rays).degree for variant, model in models.items()}
    agree = [bool((d == (1.0 if variants[v] == "none" else 0.0)).all()) for v, d in degrees.items()]
    return ClaimVerdict(
        f"inputs scaled: {name}. Along every one of {len(rays)} random directions the networks with LayerNorm tend "
        "to a limit, and the standard one grows like the distance",
        all(agree),
        "powers of the distance: "
        + ", ".join(f"{v} {float(d.min()):g} to {float(d.max()):g}" for v, d in degrees.items()),
    )


def _panel(title: str, scores: Scores, part: str) -> Panel:
    scalings = tuple(scores)
    series = []
    for k, variant in enumerate(next(iter(scores.values()))):
        mean, half = mean_interval(torch.stack([scores[name][variant][part] for name in scalings], 1))
        places = tuple(float(i) for i in range(len(scalings)))
        low, high = ((mean + sign * half).clamp(-1.0, 1.0).tolist() for sign in (-1, 1))
        band = (tuple(low), tuple(high)) if bool(half.isfinite().all()) else ((), ())
        series.append(Series(variant, places, tuple(mean.clamp(min=-1.0).tolist()), *band, "bars", k))
    return Panel(title, "scaling of the inputs", "R²", tuple(series), ticks=scalings)


def _table(scores: Scores) -> Table:
    rows = []
    for name, by_variant in scores.items():
        for variant, parts in by_variant.items():
            cells = []
            for part in ("id", "ood"):
                mean, half = mean_interval(parts[part])
                cells.append(f"{float(mean):.3g} ± {float(half):.2g}")
            rows.append((name, variant, *cells))
    return Table(("scaling", "model", "R² ID", "R² OOD"), tuple(rows))


EXPERIMENT = Experiment(
    name="p1.scaling",
    description=(
        "The protein networks with inputs brought to mean 0 and variance 1, to median 0 and interquartile range 1, "
        "to [0, 1], and as they are, for 200 of the paper's 2,500 epochs: R² within and beyond the training region "
        "depends on the scaling; that a network with LayerNorm is bounded does not."
    ),
    settings={
        "variants": dict(VARIANTS), "scalings": ["standard", "robust", "minmax", "none"], "seeds": 3, "rows": None,
        "directions": 100, "width": 128, "depth": 2, "activation": "relu", "weight_var": 2.0, "bias_var": 0.01,
        "norm_affine": False, "epochs": 200, "lr": 1e-3, "precision": "float32", "judge_scores": True,
    },
    quick={"seeds": 1, "rows": 1000, "epochs": 20, "directions": 20, "judge_scores": False},
    paper_size={},
    run=run,
    resumable=True,
    data=("protein",),
)  # fmt: skip
