"""Estimators side by side, from the committed record: ``{comparison} near`` of ``python -m benchmarks.tables``.

One row for every table, one column for every model. ``near`` and ``far`` show means and halves of 95% intervals; the
model whose interval ends lowest is in bold, with those whose intervals reach down to that end. ``worst`` and
``worst_blown_up`` show the largest value.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from reproductions import table
from sphinx.util.docutils import SphinxDirective

RECORD = "reproductions/learn/tables.json"
PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
BASELINE = "mean"
"""Shown as the others are, and never the best: it knows nothing of the inputs."""


def cells(lines: list[dict[str, Any]], measure: str) -> list[str | nodes.Node]:
    """The cells of one table's row, a model each."""
    if measure not in ("near", "far"):
        return [f"{line[measure]:.3g}" for line in lines]
    best = min((sum(line[measure]) for line in lines if line["model"] != BASELINE), default=0.0)
    made: list[str | nodes.Node] = []
    for line in lines:
        mean, half = line[measure]
        text = f"{mean:.3f}{PLUS_MINUS}{half:.3f}"
        level = line["model"] != BASELINE and mean - half <= best
        made.append(nodes.strong(text, text) if level else text)
    return made


class Comparison(SphinxDirective):
    """``{comparison} near|far|worst|worst_blown_up``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        record = Path(self.env.srcdir) / RECORD
        self.env.note_dependency(str(record))
        summary = json.loads(record.read_text(encoding="utf-8"))["numbers"]["summary"]
        models = list(dict.fromkeys(line["model"] for line in summary))
        rows = []
        for name in dict.fromkeys(line["table"] for line in summary):
            found = {line["model"]: line for line in summary if line["table"] == name}
            rows.append([name, *cells([found[m] for m in models], self.arguments[0])])
        return [table(["table", *models], rows, [16, *[12] * len(models)])]


class EstimatorDefaults(SphinxDirective):
    """``{estimator-defaults}``: the record of ``python -m benchmarks.estimators``."""

    def run(self) -> list[nodes.Node]:
        record = Path(self.env.srcdir) / "reproductions/learn/estimators.json"
        self.env.note_dependency(str(record))
        rows = []
        for line in json.loads(record.read_text(encoding="utf-8"))["summary"]:
            scores = [f"{line[k]:.3f}{PLUS_MINUS}{line[f'{k}_spread']:.3f}" for k in ("stable", "mlp")]
            seconds = [f"{line[f'{k}_seconds']:.2f}" for k in ("stable", "mlp")]
            far = (
                f"{line['coverage']:.0%}"
                if "coverage" in line
                else f"{line['ceiling']:.3f}, {line['largest_far']:.3f}"
            )
            rows.append([line["table"], str(line["trained_on"]), *scores, *seconds, far])
        titles = [
            "table", "rows", "stable", "mlp", "s, stable", "s, mlp", "within ±1.645 std; or ceiling, 1,000 × out",
        ]  # fmt: skip
        return [table(titles, rows, [16, 8, 16, 16, 10, 10, 20])]


def setup(app):
    app.add_directive("comparison", Comparison)
    app.add_directive("estimator-defaults", EstimatorDefaults)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
