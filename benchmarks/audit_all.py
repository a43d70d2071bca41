"""A thousand small checkpoints in one command, ten of them broken in ten ways.

    python -m benchmarks.audit_all [--models N] [--hostile SHARE] [--workers N] [--limit SECONDS] [--once]
                                  [--out FOLDER]

Networks of fifteen kinds whose verdict is known by construction, as exported programs (seven of ten), safetensors and
pickled state dicts, and among them a truncated file, noise, a pickled module, a pickle that would run code, weights
of wrong shapes, a builder without its class, a model that raises, weights that are NaN, one that crashes the
interpreter and one that never ends. With --hostile 0.05 one in twenty is broken or hostile, in fifteen ways: also
pipes, links to devices, builders that fork and die or eat memory, programs with a pickle in them. Prints what was
found against what was built, the time beside that of the good ones alone, and the time of a second run that finds
everything finished.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 60.0
"""Seconds for one model: what the endless one costs."""
MEMORY = "1GB"
"""For one model, beyond what a worker has: ample for a few thousand weights. To fill it takes time too."""


def run(place: Path, registry: str, out: str, *words: str) -> tuple[int, float, str]:
    begun = time.perf_counter()
    command = [sys.executable, "-m", "farfield", "audit-all", f"models/{registry}", "--out", out]
    done = subprocess.run([*command, *words], cwd=place, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, time.perf_counter() - begun, done.stdout


def measure(
    place: Path, models: int, hostile: float, workers: int, limit: float, once: bool
) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "tests"))
    zoo = importlib.import_module("checkpoints")
    begun = time.perf_counter()
    kinds = list(zoo.HOSTILE if hostile else zoo.BROKEN)
    count = round(hostile * models) or len(kinds)
    expected, failures = zoo.write_checkpoints(place, models, [kinds[k % len(kinds)] for k in range(count)])
    written = time.perf_counter() - begun
    words = ("--workers", str(workers), "--time-limit", f"{limit:g}", "--memory-limit", MEMORY)
    registry = place / "models" / "registry.jsonl"
    good = [line for line in registry.read_text().splitlines() if json.loads(line)["path"] in expected]
    (place / "models" / "good.jsonl").write_text("\n".join(good) + "\n", encoding="utf-8")
    _, alone, _ = run(place, "good.jsonl", "alone", *words)
    code, seconds, _ = run(place, "registry.jsonl", "out", *words)
    lines = (place / "out" / "audits.jsonl").read_text(encoding="utf-8").splitlines()
    rows = {row["path"]: row for row in map(json.loads, lines)}
    wrong = zoo.disagreements(rows.values(), expected, failures)
    again, later = 0, 0.0
    if not once:
        again, later, _ = run(place, "registry.jsonl", "out", *words)
    before = [json.loads(line) for line in (place / "alone" / "audits.jsonl").read_text().splitlines()]
    # On a shared machine the good ones take longer by turns: what they took beyond their time alone is left out.
    drift = sum(rows[r["path"]]["seconds"] - r["seconds"] for r in before) / workers
    limits = sum(row["error"] == "TimeLimit" for row in rows.values()) * limit / workers
    return {
        "models": len(rows),
        "hostile or broken": len(failures),
        "ways": len(set(kinds)),
        "verdicts": dict(Counter(row["verdict"] or "ERROR" for row in rows.values())),
        "errors": {
            p: f"{rows[p]['error']} ({rows[p]['stage']}): {rows[p]['message'][:90]}" for p in [*failures][:20]
        },
        "otherwise than built": wrong,
        "exit codes": [code, again],
        "code was run on loading": any((place / "models").rglob("TOUCHED")),
        "seconds to write them": round(written, 1),
        "seconds of the good ones alone": round(alone, 1),
        "seconds": round(seconds, 1),
        "seconds at the limit, over workers": round(limits, 1),
        "ratio without these": round((seconds - limits) / alone, 3),
        "the same, with the good ones at their time alone": round((seconds - limits - drift) / alone, 3),
        "seconds in models": round(sum(row["seconds"] or 0.0 for row in rows.values()), 1),
        "seconds of a second run": round(later, 1),
        "pages": sorted(p.name for p in (place / "out").glob("index*.html"))[:3],
        "index.html, bytes": (place / "out" / "index.html").stat().st_size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument(
        "--hostile", type=float, default=0.0, help="share of hostile or broken ones; ten if 0"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one model")
    parser.add_argument("--once", action="store_true", help="leave out the second run")
    parser.add_argument("--out", type=Path, help="an empty folder to keep everything in")
    options = parser.parse_args()
    chosen = (options.models, options.hostile, options.workers, options.limit, options.once)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        print(json.dumps(measure(options.out, *chosen), indent=1, ensure_ascii=False))
        return
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(measure(Path(place), *chosen), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
