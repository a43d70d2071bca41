"""What in LayerNorm makes the far field right? Its parts one by one, on twelve tables.

Run: ``farfield reproduce p1.parts``
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield._intervals import mean_interval
from farfield.engine import Checkpoint, fingerprint
from farfield.papers._experiment import Claims, ClaimVerdict, Experiment, ExperimentResult, Progress
from farfield.papers.p1._parts import AFTERWARDS, TRAINED, far_errors, table_splits
from farfield.report import Figure, Panel, Series, Table

KINDS = (*TRAINED, *AFTERWARDS)
TABLES = (
    "protein", "boston", "concrete", "energy", "kin8nm", "naval", "power", "wine_red", "yacht", "airfoil",
    "bike_hour", "california",
)  # fmt: skip


def run(
    *,
    progress: Progress,
    seed: int,
    scratch: Path,
    tables: Sequence[str],
    bias_vars: Sequence[float],
    seeds: int,
    rows: int | None,
    width: int,
    steps: int,
    batch_size: int,
    lr: float,
) -> ExperimentResult:
    """Errors on rows beyond the training region over those of the standard network, for every kind of network.

    Stopped, it goes on with the table and bias variance at which it was.
    """
    units = [(table, bias_var) for table in tables for bias_var in bias_vars]
    settings = {"width": width, "steps": steps, "batch_size": batch_size, "lr": lr}
    store = Checkpoint(scratch / "errors", fingerprint("parts", settings, rows, seeds, seed))
    found: dict[tuple[str, float], dict[str, dict[str, Tensor]]] = {}
    for k, (table, bias_var) in enumerate(units):
        part = store.load([table, bias_var])
        if part is None:
            splits = table_splits(table, [1000 * seed + s for s in range(seeds)], rows)
            part = far_errors(
                splits, bias_var=bias_var, checkpoint=scratch / f"{table}_{bias_var:g}",
                progress=lambda done, total, k=k: progress(1000 * k + 999 * done // total, 1000 * len(units)),  # type: ignore[misc]
                **settings,  # type: ignore[arg-type]
            )  # fmt: skip
            store.save([table, bias_var], part)
        found[table, bias_var] = part
        progress(1000 * (k + 1), 1000 * len(units))
    ratios = Ratios(found, tuple(tables), tuple(bias_vars))
    caption = (
        f"{len(tables)} tables, {seeds} splits each, two hidden layers of {width}, {steps} steps of {batch_size} "
        "rows. Root mean square error on the rows beyond the training region, over that of the standard network with "
        f"bias variance {bias_vars[0]:g} on the same split. Left: geometric mean over tables, 95% t-interval over "
        "tables. Right: every table, mean over splits."
    )
    figure = Figure(
        "What in LayerNorm makes the far field right?",
        (_means(ratios), _by_table(ratios)),
        caption,
        columns=2,
    )
    return ExperimentResult(tuple(_verdicts(ratios)), ratios.numbers(), figure, _table(ratios))


@dataclass(frozen=True)
class Ratios:
    """Logarithms of errors over those of the standard network with the first bias variance."""

    found: dict[tuple[str, float], dict[str, dict[str, Tensor]]]
    tables: tuple[str, ...]
    bias_vars: tuple[float, ...]

    def by_table(self, kind: str, bias_var: float, part: str = "far") -> Tensor:
        """Mean over splits, (tables,)."""
        base = [self.found[table, self.bias_vars[0]]["standard"][part] for table in self.tables]
        own = [self.found[table, bias_var][kind][part] for table in self.tables]
        return torch.stack([(a / b).log().mean() for a, b in zip(own, base, strict=True)])

    def numbers(self) -> dict[str, Any]:
        """Plain data: root mean square errors of every split."""
        return {
            table: {
                f"bias variance {bias_var:g}": {
                    kind: {part: values.tolist() for part, values in parts.items()}
                    for kind, parts in self.found[table, bias_var].items()
                }
                for bias_var in self.bias_vars
            }
            for table in self.tables
        }


def _words(values: Tensor) -> str:
    mean, half = mean_interval(values)
    low, high = (math.exp(float(mean + sign * half)) for sign in (-1, 1))
    return f"{math.exp(float(mean)):.3f} [{low:.3f}, {high:.3f}]"


def _verdicts(ratios: Ratios) -> list[ClaimVerdict]:
    base = ratios.bias_vars[0]
    far = {kind: ratios.by_table(kind, base) for kind in KINDS}
    gain = -float(far["LN first"].mean())
    gained = float(sum(mean_interval(far["LN first"]))) < 0.0  # half of a gain that is none says nothing
    claims = Claims(
        ClaimVerdict(
            f"{kind}: the far error is below the standard network's, geometric mean over tables with its 95% "
            "interval",
            float(sum(mean_interval(far[kind]))) < 0.0,
            f"{_words(far[kind])}; lower on {int((far[kind] < 0).sum())} of {len(far[kind])} tables",
        )
        for kind in KINDS
        if kind != "standard"
    )
    claims += [
        ClaimVerdict(
            f"{kind} reaches at least half of the gain of LN first, so {what}",
            gained and -float(far[kind].mean()) >= 0.5 * gain,
            f"log far error lower by {-float(far[kind].mean()):.3f}, with LN first by {gain:.3f}",
        )
        for kind, what in (
            ("RMSNorm first", "centering is not what counts"),
            ("first layer capped", "a bounded norm is what counts, and not how the network was trained"),
            ("input capped", "a bounded input is what counts"),
            ("tanh head", "a bounded last layer is what counts"),
            ("output clipped", "a bounded output is what counts"),
        )
    ]
    for bias_var in ratios.bias_vars[1:]:
        shift = ratios.by_table("standard", bias_var)
        claims.add(
            f"standard: bias variance {bias_var:g} instead of {base:g} lowers the far error on the median table",
            float(shift.median()) < 0.0,
            f"median factor {math.exp(float(shift.median())):.3f}, geometric mean {_words(shift)}",
        )
    return claims


def _means(ratios: Ratios) -> Panel:
    series = []
    for c, bias_var in enumerate(ratios.bias_vars):
        at = tuple(k + 0.22 * (c - (len(ratios.bias_vars) - 1) / 2) for k in range(len(KINDS)))
        found = [mean_interval(ratios.by_table(kind, bias_var)) for kind in KINDS]
        middle = tuple(math.exp(float(m)) for m, _ in found)
        finite = all(math.isfinite(float(half)) for _, half in found)
        band = (
            [tuple(math.exp(float(m + sign * h)) for m, h in found) for sign in (-1, 1)]
            if finite
            else [(), ()]
        )
        label = f"bias variance {bias_var:g}"
        series.append(Series(label, at, middle, band[0], band[1], style="points", color=c))
    return Panel(
        "geometric mean over tables",
        "network",
        "far error, standard = 1",
        tuple(series),
        y_scale="log",
        ticks=KINDS,
    )


def _by_table(ratios: Ratios) -> Panel:
    at = tuple(float(k) for k in range(len(ratios.tables)))
    chosen = ("LN first", "RMSNorm first", "first layer capped", "output clipped")
    series = tuple(
        Series(
            kind,
            at,
            tuple(ratios.by_table(kind, ratios.bias_vars[0]).exp().tolist()),
            style="points",
            color=len(ratios.bias_vars) + c,
        )
        for c, kind in enumerate(chosen)
    )
    label = "far error, standard = 1"
    return Panel("by table", "table", label, series, y_scale="log", ticks=ratios.tables)


def _table(ratios: Ratios) -> Table:
    rows = []
    for kind in KINDS:
        for bias_var in ratios.bias_vars:
            far, near = (ratios.by_table(kind, bias_var, part) for part in ("far", "near"))
            worst = int(far.argmax())
            rows.append(
                (
                    kind, bias_var, _words(far), math.exp(float(far.median())),
                    f"{math.exp(float(far[worst])):.2f} ({ratios.tables[worst]})", _words(near),
                )
            )  # fmt: skip
    names = ("network", "bias variance", "far error", "median table", "worst table", "near error")
    return Table(names, tuple(rows))


EXPERIMENT = Experiment(
    name="p1.parts",
    description=(
        "A question that the paper leaves open: LayerNorm centers, scales, bounds what follows, and is there while "
        "the network learns. Networks with one of these parts each, trained alike on protein and eleven other "
        "tables, and a trained standard network with a cap or a clip put in afterwards: whose error beyond the "
        "training region is as low as LayerNorm's? And what a larger bias variance does by itself."
    ),
    settings={
        "tables": list(TABLES), "bias_vars": [0.01, 0.1, 1.0], "seeds": 5, "rows": None, "width": 128, "steps": 5000,
        "batch_size": 256, "lr": 2e-3,
    },
    quick={"tables": ["yacht", "boston"], "bias_vars": [0.01, 1.0], "seeds": 2, "rows": 100, "width": 16, "steps": 5},
    paper_size={},
    run=run,
    resumable=True,
    data=TABLES,
)  # fmt: skip
