"""The page of what a census costs, from its records.

    python -m benchmarks.census_page RECORD…

Reads what ``python -m benchmarks.census --out RECORD`` wrote and writes ``docs/reproductions/engine/census.md``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reproductions" / "engine" / "census.md"
MODELS, CORES = 1_000_000, (1, 64, 1000)
KINDS = (20, 20_000)


def duration(seconds: float) -> str:
    """In the unit that suits it."""
    for size, unit in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def cost(cores: int, kinds: int, row: float, kind: float, caller: float) -> float:
    """Seconds for a million models: work divided by cores, or the caller's own, whichever is longer."""
    return max((MODELS * row + kinds * kind) / cores, MODELS * caller)


def page(records: list[dict[str, Any]]) -> str:
    runs = {name: run for record in records for name, run in record["runs"].items()}
    whole = {name: run for name, run in runs.items() if "stages" in run}
    head = "rows | architectures | rows a second of a worker | of the caller | memory of the caller | of all"
    lines = [
        "## What it costs",
        "",
        "`python -m benchmarks.census` makes a registry from atlas configurations with random sizes, one row in",
        "a thousand broken. Rates are rows for a second of processor time, because others shared the machine.",
        "",
        f"| run | {head} |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, run in whole.items():
        rates = f"{run['rows_per_worker_second']:,.0f} | {run['rows_per_caller_second']:,.0f}"
        sizes = f"{run['caller_bytes'] / 1e6:,.0f} MB | {run['all_bytes'] / 1e9:.1f} GB"
        lines.append(f"| {name} | {run['rows']:,} | {run['architectures']} | {rates} | {sizes} |")
    largest = max(whole.values(), key=lambda run: run["rows"])
    row = 1.0 / largest["rows_per_worker_second"]
    done = 1.0 - largest["stages"]["keys"]["reused"] / largest["stages"]["keys"]["jobs"]
    caller = sum(largest["stages"][name]["caller_seconds"] for name in ("keys", "rows")) / (
        done * largest["rows"]
    )
    decided = [
        run["architecture_worker_seconds"] / computed
        for run in whole.values()
        if (computed := run["stages"]["architectures"]["jobs"] - run["stages"]["architectures"]["reused"])
    ]
    kind = max(decided)
    same = [ok for record in records for ok in record.get("tables_are_the_same", {}).values()]
    basis = f"a row's {1e3 * row:.2f} ms and an architecture's {kind:.0f} s of a processor"
    lines += [
        "",
        f"A million models, extrapolated from {basis}:",
        "",
        "| architectures among them | "
        + " | ".join(f"{n:,} cores" if n > 1 else "1 core" for n in CORES)
        + " |",
        "|---:|" + "---:|" * len(CORES),
    ]
    for kinds in KINDS:
        lines.append(
            f"| {kinds:,} | " + " | ".join(duration(cost(n, kinds, row, kind, caller)) for n in CORES) + " |"
        )
    limit = f"{row / caller:,.0f} cores"
    lines += [
        "",
        f"The caller spends {1e6 * caller:.0f} µs on a row. Where every architecture is known, it is the limit from",
        f"{limit} on.",
        "Rows never pass through it: a piece of ten thousand comes back as a count for every key.",
    ]
    if same:
        lines += [
            "",
            f"Tables of the same registry were the same to the last byte: {'yes' if all(same) else 'NO'}.",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    text = page([json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]])
    TARGET.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
