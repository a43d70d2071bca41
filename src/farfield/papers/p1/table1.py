"""Protein structure: networks without and with LayerNorm on proteins larger than any they were trained on.

Run: ``farfield reproduce p1.table1``
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield._intervals import mean_interval
from farfield.errors import MissingExtraError
from farfield.papers._correlation import spearman
from farfield.papers._curves import digits
from farfield.papers._experiment import Claims, ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p1._far import Bounds, Slopes, bounds, outputs_along, slopes, unit_directions
from farfield.papers.p1._protein import VARIANTS, Case, load_cases, predictions, r_squared, train_variants
from farfield.papers.p1._trees import boosted_trees
from farfield.report import Figure, Panel, Series, Table

TREES = "XGBoost"
_PRINTED = {
    "standard": {"id": (0.58, 0.01), "ood": (0.31, 0.02)},
    "LN first": {"id": (0.59, 0.01), "ood": (0.50, 0.02)},
    "LN second": {"id": (0.60, 0.01), "ood": (0.50, 0.01)},
    "LN every": {"id": (0.60, 0.01), "ood": (0.50, 0.02)},
    TREES: {"id": (0.61, 0.01), "ood": (0.27, 0.04)},
}
"""R² and half of its 95% interval as the paper prints them: shown beside ours, and what claims are held against."""


@dataclass(frozen=True)
class _Model:
    """Predictions of one kind of model on the held-out rows, one row of the tensors for every seed."""

    name: str
    predicted: dict[str, Tensor]
    """By part, (seeds, rows), scaled as the targets are."""
    scores: dict[str, Tensor]
    """R² by part, (seeds,)."""

    def interval(self, part: str) -> tuple[float, float]:
        mean, half = mean_interval(self.scores[part])
        return float(mean), float(half)


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    variants: Mapping[str, str],
    seeds: int,
    rows: int | None,
    inputs: str,
    epochs: int,
    rounds: int,
    directions: int,
    farthest: float,
    time_budget: float,
    judge_scores: bool,
    **network: Any,
) -> ExperimentResult:
    """Train, score on rows from the same region and from beyond it, and look at the networks far away.

    ``network`` is what :func:`train_variants` takes beside these. ``judge_scores`` is for the paper's sizes: after a
    short training R² says nothing about its claims, and only those about the far field are judged.
    """
    cases = load_cases([1000 * seed + s for s in range(seeds)], inputs, rows)
    # First, as it takes seconds. Without the package the networks are trained all the same.
    try:
        trees, absent = [_trees(cases, rounds)], ""
    except MissingExtraError as error:
        trees, absent = [], str(error)
    total = epochs + len(variants) * seeds
    trained = train_variants(
        cases, variants, epochs=epochs, scratch=scratch, progress=lambda done, _: progress(done, total), **network
    )  # fmt: skip
    found = {
        name: _scored(name, {p: predictions(models, cases, p) for p in ("id", "ood")}, cases)
        for name, models in trained.models.items()
    }
    compared = [*found.values(), *trees]

    steps = iter(range(epochs + 1, total + 1))
    rays = unit_directions(directions, cases[0].x.shape[1], seed)
    radii = torch.logspace(0, math.log10(farthest), 9, dtype=torch.float64)
    reached = {name: outputs_along(models, rays, radii) for name, models in trained.models.items()}
    verdicts = _scores_agree(found) if judge_scores else []
    far: dict[str, dict[str, Any]] = {}
    for name, models in trained.models.items():
        if variants[name] == "none":
            grown = slopes(models, rays, radius=farthest, done=lambda: progress(next(steps), total))
            verdicts.append(_grows(name, grown, farthest))
            far[name] = {
                "slope_error": grown.error,
                "largest_slope": float(grown.exact.abs().nan_to_num().max()),
            }
        else:
            held = bounds(
                models, rays.shape[1], time_budget=time_budget, done=lambda: progress(next(steps), total)
            )
            outputs = torch.cat([reached[name].flatten(1), *found[name].predicted.values()], 1)
            verdicts.append(_stays(name, held, outputs, directions, farthest))
            far[name] = _bound_numbers(held, outputs, cases)
    numbers: dict[str, dict[str, Any]] = {
        m.name: {p: {"r2": s.tolist(), "mean_and_half_width": m.interval(p)} for p, s in m.scores.items()}
        for m in compared
    }
    if absent:
        numbers[TREES] = {"not run": absent}
    for name in found:
        numbers[name] |= {"training_loss": list(trained.losses[name]), "far_field": far[name]}
    caption = (
        f"{seeds} splits, {cases[0].sizes[0]} training rows, {epochs} epochs, inputs scaled: {inputs}. Left: shares "
        "of the predictions for proteins of 20,000 Å² and more, those beyond the axis counted at its ends. Middle: "
        "mean absolute error in bins of 2,000 Å², 95% t-intervals over splits; training ends at 20,000. "
        f"Right: largest output over {directions} random directions and all networks, by distance in scaled inputs."
    )
    panels = (_histograms(compared, cases), _errors(compared, cases), _rays(reached, radii, cases))
    if absent:
        caption += " Without XGBoost, which was not installed."
    figure = Figure("Protein structure: within and beyond the training region", panels, caption, columns=3)
    return ExperimentResult(tuple(verdicts), numbers, figure, _table(compared))


def _trees(cases: Sequence[Case], rounds: int) -> _Model:
    predicted: dict[str, list[Tensor]] = {"id": [], "ood": []}
    for case in cases:
        fitted = case.part("train")
        held_out = torch.cat([case.x[case.part(p)] for p in predicted])
        values = boosted_trees(case.x[fitted], case.y[fitted], held_out, rounds=rounds)
        for part, piece in zip(predicted, values.split(case.sizes[1:]), strict=True):
            predicted[part].append(piece)
    return _scored(TREES, {p: torch.stack(v) for p, v in predicted.items()}, cases)


def _scored(name: str, predicted: dict[str, Tensor], cases: Sequence[Case]) -> _Model:
    return _Model(name, predicted, {p: r_squared(v, _targets(cases, p)) for p, v in predicted.items()})


def _targets(cases: Sequence[Case], part: str) -> Tensor:
    return torch.stack([case.y[case.part(part), 0] for case in cases])


# ------------------------------------------------------------------ claims


def _scores_agree(found: Mapping[str, _Model]) -> list[ClaimVerdict]:
    claims = Claims()
    for name, model in found.items():
        printed = _PRINTED[name]["id"][0]
        mean, half = model.interval("id")
        claims.add(
            f"{name}: R² on held-out rows of the training region is within 0.02 of the paper's {printed:.2f}",
            abs(mean - printed) <= 0.02,
            f"{mean:.3f} ± {half:.3f} (95% t-interval over {len(model.scores['id'])} seeds)",
        )
    base, base_half = found["standard"].interval("ood")
    for name, model in found.items():
        if name == "standard":
            continue
        mean, half = model.interval("ood")
        claims.add(
            f"{name}: beyond the training region R² is at least 0.1 above the standard network's, and the 95% "
            "intervals do not overlap",
            mean - base >= 0.1 and mean - half > base + base_half,
            f"{mean:.3f} ± {half:.3f} against {base:.3f} ± {base_half:.3f}",
        )
    return claims


def _stays(name: str, held: Bounds, outputs: Tensor, directions: int, farthest: float) -> ClaimVerdict:
    worst = float(held.excess(outputs).max())
    share = float(((outputs.amax(1) - outputs.amin(1)) / (held.upper - held.lower)).max())
    return ClaimVerdict(
        f"{name}: no network leaves its certificate, on the held-out rows or along {directions} random directions up "
        f"to a distance of {farthest:g}",
        worst <= 0.0,
        f"{len(outputs)} networks, {outputs.shape[1]} inputs each; nearest to a bound: {-worst:.3g} inside it; "
        f"largest share of a certified range that was met: {share:.2f} (targets have variance 1)",
    )


def _grows(name: str, found: Slopes, farthest: float) -> ClaimVerdict:
    return ClaimVerdict(
        f"{name}: along every direction the output grows with the slope of the horizon, to 1e-4 of it",
        found.error <= 1e-4,
        f"(f(2λu) − f(λu))/λ at λ = {farthest:g}: largest relative error {found.error:.1e} over {len(found.exact)} "
        f"networks and {found.exact.shape[1]} directions, {found.degenerate} undecided",
    )


def _bound_numbers(held: Bounds, outputs: Tensor, cases: Sequence[Case]) -> dict[str, Any]:
    """In Å: what is certified, and what was met."""
    center = torch.tensor([c.center for c in cases], dtype=torch.float64)
    spread = torch.tensor([c.spread for c in cases], dtype=torch.float64)
    limits = {
        "certified_lower": held.lower,
        "lowest": outputs.amin(1),
        "highest": outputs.amax(1),
        "certified_upper": held.upper,
    }
    return {k: (center + spread * v).tolist() for k, v in limits.items()} | {"methods": list(held.methods)}


# ------------------------------------------------------------------ what is shown


def _histograms(models: Sequence[_Model], cases: Sequence[Case]) -> Panel:
    edges = torch.arange(-5.0, 26.0, dtype=torch.float64)
    middles = digits((edges[1:] + edges[:-1]) / 2)

    def shares(values: Tensor) -> tuple[float, ...]:
        angstrom = torch.cat([c.center + c.spread * v for c, v in zip(cases, values, strict=True)])
        places = torch.bucketize(angstrom, edges[1:-1])
        return digits(torch.bincount(places, minlength=len(middles)) / len(angstrom))

    series = [Series(m.name, middles, shares(m.predicted["ood"]), color=k) for k, m in enumerate(models)]
    truth = Series("data", middles, shares(_targets(cases, "ood")), style="dotted", color=len(models))
    return Panel("beyond the training region", "RMSD (Å)", "share of the rows", (*series, truth))


def _errors(models: Sequence[_Model], cases: Sequence[Case]) -> Panel:
    edges = torch.arange(2_000.0, 42_001.0, 2_000.0, dtype=torch.float64)
    middles = (edges[1:] + edges[:-1]) / 2
    series = []
    for k, model in enumerate(models):
        means = []
        for s, case in enumerate(cases):
            away = torch.cat([(model.predicted[p][s] - case.y[case.part(p), 0]).abs() for p in ("id", "ood")])
            area = torch.cat([case.area[case.part(p)] for p in ("id", "ood")])
            places = torch.bucketize(area, edges[1:-1], right=True)
            sums = torch.bincount(places, case.spread * away, minlength=len(middles))
            means.append(sums / torch.bincount(places, minlength=len(middles)))
        mean, half = mean_interval(torch.stack(means))
        seen = mean.isfinite()
        mean, half = mean[seen], half[seen]
        band = (digits(mean - half), digits(mean + half)) if len(cases) > 2 else ((), ())
        series.append(Series(model.name, digits(middles[seen]), digits(mean), *band, color=k))
    return Panel(
        "error by size", "surface area F1 (Å²)", "mean absolute error (Å)", tuple(series), y_scale="log"
    )


def _rays(reached: Mapping[str, Tensor], radii: Tensor, cases: Sequence[Case]) -> Panel:
    spread = torch.tensor([c.spread for c in cases], dtype=torch.float64)[:, None]
    series = [
        Series(name, digits(radii), digits((spread * values.abs().amax(2)).amax(0)), color=k)
        for k, (name, values) in enumerate(reached.items())
    ]
    return Panel("far away", "λ", "max |f(λu) − mean| (Å)", tuple(series), x_scale="log", y_scale="log")


def _table(models: Sequence[_Model]) -> Table:
    rows = []
    for model in models:
        row = [model.name]
        for part in ("id", "ood"):
            here, printed = model.interval(part), _PRINTED.get(model.name, {}).get(part)
            row.append(f"{here[0]:.3f} ± {here[1]:.3f}")
            row.append("" if printed is None else f"{printed[0]:.2f} ± {printed[1]:.2f}")
        rows.append(tuple(row))
    return Table(("model", "R² ID", "paper", "R² OOD", "paper"), tuple(rows))


def _claims(record: Mapping[str, Any]) -> Claims:
    """What the paper's text says beside its table, from the scores and the figure that are recorded."""
    claims, numbers = Claims(), record["numbers"]
    settings = record["provenance"]["settings"]
    if not settings["judge_scores"]:
        return claims
    plain = [name for name, where in settings["variants"].items() if where == "none"]
    normed = [name for name in settings["variants"] if name not in plain]
    ood = {
        name: numbers[name]["ood"]["mean_and_half_width"]
        for name in (*normed, TREES)
        if "ood" in numbers[name]
    }
    words = ", ".join(f"{name} {mean:.3f} ± {half:.3f}" for name, (mean, half) in ood.items())
    low, high = ({k: m + sign * h for k, (m, h) in ood.items()} for sign in (-1, 1))
    if TREES in ood:
        claims.add(
            "with LayerNorm, wherever it is, R² beyond the training region is above XGBoost's, and the 95% intervals "
            "do not overlap",
            min(low[k] for k in normed) > high[TREES],
            words,
        )
    claims.add(
        "where the LayerNorm is matters little: the 95% intervals of R² beyond the training region all overlap",
        max(low[k] for k in normed) <= min(high[k] for k in normed),
        words,
    )
    histograms, errors, _ = (
        {s["label"]: dict(zip(s["x"], s["y"], strict=True)) for s in panel["series"]}
        for panel in record["figure"]["panels"]
    )
    shares = {
        name: sum(share for at, share in histograms[name].items() if not 0 <= at <= 21)
        for name in (*plain, *normed)
    }
    claims.add(
        "beyond the training region the predictions without LayerNorm have the heavier tails",
        min(shares[k] for k in plain) > max(shares[k] for k in normed),
        "outside 0 … 21 Å, where all proteins are: " + ", ".join(f"{k} {v:.1%}" for k, v in shares.items()),
    )
    ranks = {
        name: float(spearman(torch.tensor(list(by)), torch.tensor(list(by.values()))))
        for name, by in errors.items()
    }
    claims.add(
        "the error grows with the surface area, for every model (rank correlation over all bins above ½)",
        min(ranks.values()) > 0.5,
        ", ".join(f"{name} {r:.2f}" for name, r in ranks.items()),
    )
    far = [area for area in errors[plain[0]] if area > 24_000]
    worst = sum(max(errors, key=lambda name: errors[name][area]) in plain for area in far)
    claims.add(
        "beyond 24,000 Å² the error without LayerNorm is the largest in every bin",
        0 < worst == len(far),
        f"in {worst} of {len(far)}",
    )
    return claims


EXPERIMENT = Experiment(
    name="p1.table1",
    description=(
        "R² on the protein data, means and 95% t-intervals over ten splits: on proteins with a surface area below "
        "20,000 Å², where the models were trained, and on larger ones. Without LayerNorm a network goes wrong there; "
        "with one, wherever it sits, far less so, and what it says is bounded for every input."
    ),
    settings={
        "variants": dict(VARIANTS), "seeds": 10, "rows": None, "inputs": "standard", "width": 128, "depth": 2,
        "activation": "relu", "weight_var": 2.0, "bias_var": 0.01, "norm_affine": False, "epochs": 2500, "lr": 1e-3,
        "precision": "float32", "rounds": 100, "directions": 1000, "farthest": 1e8, "time_budget": 10.0,
        "judge_scores": True,
    },
    quick={
        "seeds": 2, "rows": 1000, "epochs": 25, "rounds": 20, "directions": 50, "time_budget": 0.0,
        "judge_scores": False,
    },
    paper_size={
        "seeds": 10, "rows": "all", "inputs": None, "width": 128, "depth": 2, "bias_var": 0.01, "epochs": 2500,
        "lr": 1e-3, "rounds": 100,
    },
    run=run,
    resumable=True,
    data=("protein",),
    claims=_claims,
)  # fmt: skip
