"""The evidence page's tables and figures, from the records that the repair benchmarks left.

    python -m benchmarks.repair_page

Reads ``tables.runs.jsonl``, ``protein.json``, ``rollouts.json``, ``control.json``, ``shipped.json`` and ``cost.json``
in docs/reproductions/repair, those that are there, and writes one Markdown file for each beside them, which the
documentation includes, and the figures.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._records import save_record
from benchmarks.repair import OUT, kept_lines, summary
from farfield.report import Figure, Panel, Series, save_figure

TITLES = {
    "trained with LayerNorm": "*trained with LayerNorm instead*",
    "LayerNorm, repaired": "*the same, protections on top*",
    "nothing": "nothing",
    "output range": "output kept in the range of the predictions",
    "neuron clipping": "activations clipped neuron by neuron (range supervision)",
    "layer clipping": "the same, one limit a layer",
    "features in their range": "features clamped to their range",
    "features at 10 deviations": "features clamped at ±10 deviations (what RL wrappers do)",
    "features at 5 deviations": "features clamped at ±5 deviations",
    "features (repair)": '`repair(method="features")`',
    "norm cap (repair)": '`repair(method="cap")`',
    "repair": "**`repair`**",
    "repair, every row kept": "`repair(keep=1.0)`",
    "repair, soft": '`repair(method="soft")`',
}


def tables(folder: Path) -> str | None:
    runs = kept_lines(folder / "tables.runs.jsonl")
    if not runs:
        return None
    lines = summary(runs)
    save_record({"lines": lines, "runs": len(runs)}, folder / "tables.json")
    rows = [
        "| put in | far: mean, 95% interval | worst | worse by 3% in | near | unchanged | broken sensor |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        (low, high), (table, kind, worst) = line["far_interval"], line["worst_cell"]
        rows.append(
            f"| {TITLES[line['name']]} | {line['far']:.3f} [{low:.3f}, {high:.3f}] | {worst:.2f} ({table}, {kind}) | "
            f"{len(line['worse_cells'])} of {line['cells']} | {line['near']:.3f} | {line['unchanged']:.3f} | "
            f"{line['broken']:.2f} |"
        )
    own = next(line for line in lines if line["name"] == "nothing")["unbroken"]
    ours = next(line for line in lines if line["name"] == "repair")
    lost = sorted(ours["worse_cells"], key=lambda cell: -cell[2])
    seeds = len({run["seed"] for run in runs})
    rows += [
        "",
        f"{len({run['table'] for run in runs})} tables, three tails each, {seeds} seeds: {len(runs)} networks of "
        f"each kind. On sound rows the error is {own:.2f} deviations of the target. `repair` is worse than nothing "
        "by more than 3% on " + (_words(lost) if lost else "no table") + ".",
    ]
    _draw_tables(lines, folder)
    return "\n".join(rows)


def _words(cells: list[list[Any]]) -> str:
    return ", ".join(f"{table} by {kind} ({mean:.2f})" for table, kind, mean in cells)


DRAWN = {
    "nothing": "nothing", "trained with LayerNorm": "trained with a norm", "neuron clipping": "neurons clipped",
    "features at 10 deviations": "±10 deviations", "output range": "output range", "repair": "repair",
}  # fmt: skip


def _draw_tables(lines: list[dict[str, Any]], folder: Path) -> None:
    """Far error against the error with a broken sensor, a point for each of the protections that people use."""
    found = {line["name"]: line for line in lines}
    series = tuple(
        Series(words, (found[name]["broken"],), (found[name]["far"],), style="points", color=k)
        for k, (name, words) in enumerate(DRAWN.items())
    )
    panel = Panel("", "error with a broken sensor, in deviations", "far error, unrepaired = 1", series, "log")
    figure = Figure("Twelve tables: left and low is better", (panel,))
    save_figure(figure, [folder / f"tables{suffix}" for suffix in (".png", ".svg")])


def protein(folder: Path) -> str | None:
    record = _record(folder, "protein")
    if record is None:
        return None
    rows = ["| | ID R² | OOD R² | rows unchanged |", "|---|---|---|---|"]
    for line in record["lines"]:
        kept = line.get("unchanged")
        rows.append(
            f"| {line['name']} | {line['id']:.3f} | {line['ood']:.3f} ± {line['ood_deviation']:.3f} | "
            f"{'' if not kept else f'{sum(kept) / len(kept):.3f}'} |"
        )
    return "\n".join(rows)


def rollouts(folder: Path) -> str | None:
    record = _record(folder, "rollouts")
    if record is None:
        return None
    rows = [
        "| system, step | model | blow up | spread (true) | spectrum off, decades | steps unchanged |",
        "|---|---|---|---|---|---|",
    ]
    for line in record["lines"]:
        kept = f"{line['unchanged']:.1%}" if line["model"].endswith("state") else ""
        rows.append(
            f"| {line['system']}, {line['kind']} | {line['model']} | {line['blown_up']:.0%} | "
            f"{_short(line['spread'])} ({line['true_spread']:.2f}) | {_short(line['spectrum_off'])} | {kept} |"
        )
    return "\n".join(rows)


def control(folder: Path) -> str | None:
    record = _record(folder, "control")
    if record is None:
        return None
    rows = [
        "| agent | | return, sound sensors | return, one broken at a step in ten | critic's values, speed × 1000 |",
        "|---|---|---|---|---|",
    ]
    for line in record["lines"]:
        for which in ("as trained", "repaired"):
            part = line[which]
            rows.append(
                f"| {line['algorithm'].upper()} | {which} | {part['sound']:.0f} | {part['broken']:.0f} | "
                f"{part['least value']:,.0f} to {part['largest value']:,.0f} |"
            )
    return "\n".join(rows)


def shipped(folder: Path) -> str | None:
    record = _record(folder, "shipped")
    if record is None:
        return None
    rows: list[str] = []
    if "heads" in record:
        rows += [
            "| age heads on frozen features | R² like the training faces | R² on the others | worst error, years |"
        ]
        rows += ["|---|---|---|---|"]
        rows += [
            f"| {name} | {part['id']:.3f} | {part['ood']:.3f} | {part['worst']:.0f} |"
            for name, part in record["heads"].items()
        ]
        rows.append("")
    if record.keys() & {"images", "resnet", "text"}:
        rows += [
            "| model | parameters | numbers added | before | after | rows unchanged | in passes over the rows |"
        ]
        rows += ["|---|---|---|---|---|---|---|"]
    titles = {
        "images": "MobileNetV2, 224 × 224",
        "resnet": "ResNet-18, 64 × 64",
        "text": "MiniLM and a head",
    }
    for name, title in titles.items():
        if (part := record.get(name)) is not None:
            rows.append(
                f"| {title} | {part['parameters']:,} | {part['numbers added']:,} | {part['before']} | "
                f"{part['after']} | {part['unchanged']:.1%} | {part['passes']:.1f} |"
            )
    return "\n".join(rows)


def cost(folder: Path) -> str | None:
    record = _record(folder, "cost")
    if record is None:
        return None
    rest = (record["repair"] - 2 * record["audit"]) / record["one_pass"]
    return (
        f"A repair on 200,000 rows takes the time of two audits, before and after, and of {rest:.1f} passes of the "
        f"model over them; {record['rows_through_the_model']:.1f} times as many rows go through the model. Beyond "
        f"one audit that is {record['in_passes']:.1f} passes."
    )


def _record(folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _short(value: Any) -> str:
    number = float(value)
    return f"{number:.3g}" if math.isfinite(number) else "∞"


PARTS: dict[str, Callable[[Path], str | None]] = {
    "tables": tables, "protein": protein, "rollouts": rollouts, "control": control, "shipped": shipped,
    "cost": cost,
}  # fmt: skip


def main() -> None:
    """Write what there are records for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT)
    folder = parser.parse_args().out
    for name, write in PARTS.items():
        text = write(folder)
        if text is not None:
            (folder / f"{name}.md").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {'written' if text else 'no record'}")


if __name__ == "__main__":
    main()
