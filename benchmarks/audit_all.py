"""A thousand small checkpoints in one command, ten of them broken in ten ways.

    python -m benchmarks.audit_all [--models N] [--workers N] [--out FOLDER]

Networks of fifteen kinds whose verdict is known by construction, as exported programs (seven of ten), safetensors and
pickled state dicts, and among them a truncated file, noise, a pickled module, a pickle that would run code, weights
of wrong shapes, a builder without its class, a model that raises, weights that are NaN, one that crashes the
interpreter and one that never ends. Prints what was found against what was built, the time, and the time of a second
run that finds everything finished.
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


def run(place: Path, *words: str) -> tuple[int, float, str]:
    begun = time.perf_counter()
    command = [sys.executable, "-m", "farfield", "audit-all", "models/registry.jsonl", "--out", "out"]
    done = subprocess.run([*command, *words], cwd=place, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, time.perf_counter() - begun, done.stdout


def measure(place: Path, models: int, words: tuple[str, ...]) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "tests"))
    zoo = importlib.import_module("checkpoints")
    begun = time.perf_counter()
    expected, failures = zoo.write_checkpoints(place, models, list(zoo.BROKEN))
    written = time.perf_counter() - begun
    code, seconds, _ = run(place, "--time-limit", f"{LIMIT:g}", *words)
    lines = (place / "out" / "audits.jsonl").read_text(encoding="utf-8").splitlines()
    rows = {row["path"]: row for row in map(json.loads, lines)}
    wrong = zoo.disagreements(rows.values(), expected, failures)
    again, later, _ = run(place, "--time-limit", f"{LIMIT:g}", *words)
    return {
        "models": len(rows),
        "verdicts": dict(Counter(row["verdict"] or "ERROR" for row in rows.values())),
        "errors": {
            p: f"{rows[p]['error']} ({rows[p]['stage']}): {rows[p]['message'][:90]}" for p in failures
        },
        "otherwise than built": wrong,
        "exit codes": [code, again],
        "code was run on loading": (place / "models" / "TOUCHED").exists(),
        "seconds to write them": round(written, 1),
        "seconds": round(seconds, 1),
        "seconds in models": round(sum(row["seconds"] or 0.0 for row in rows.values()), 1),
        "seconds of a second run": round(later, 1),
        "index.html, bytes": (place / "out" / "index.html").stat().st_size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path, help="an empty folder to keep everything in")
    options = parser.parse_args()
    words = () if options.workers is None else ("--workers", str(options.workers))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        print(json.dumps(measure(options.out, options.models, words), indent=1, ensure_ascii=False))
        return
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(measure(Path(place), options.models, words), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
