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
        text = f"{mean:.3f} ± {half:.3f}"
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


def setup(app):
    app.add_directive("comparison", Comparison)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
