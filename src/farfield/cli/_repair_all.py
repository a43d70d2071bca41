"""What ``audit-all --repair`` does: every unbounded program of a run repaired, each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from farfield.audit import AuditRow
from farfield.errors import InvalidValueError

__all__ = ["calibration_rows", "repair_all"]

_SUFFIXES = (".npy", ".npz", ".csv", ".parquet", ".pt")


def calibration_rows(given: Path, model: str) -> Path | None:
    """The file of rows for a model: the one given, or of its name in the folder given; None if there is none."""
    if given.is_file():
        return given
    return next(
        (file for suffix in _SUFFIXES if (file := given / Path(model).with_suffix(suffix)).is_file()), None
    )


def repair_all(
    rows: Iterable[AuditRow], root: Path, data: Path, out: Path, *, workers: int, time_limit: float
) -> list[dict[str, Any]]:
    """Repair what is unbounded; ``out/repaired`` gets the programs, ``out/repairs.jsonl`` a line for each.

    A program that was repaired before, the same file, is left as it is.

    Parameters
    ----------
    rows
        Of the audit.
    root
        Folder that their paths are seen from.
    data
        A file of calibration rows for all, or a folder of files named as the models are.
    out
        Folder of the run.
    workers, time_limit
        How many at once, and seconds for one.
    """
    if not data.exists():
        raise InvalidValueError(f"--repair names calibration rows; there is no {str(data)!r}.")
    place = out / "repairs.jsonl"
    known = [json.loads(line) for line in place.read_text().splitlines()] if place.is_file() else []
    done: dict[Any, dict[str, Any]] = {(k["path"], k["sha256"]): k for k in known if not k["error"]}
    wanted = [row for row in rows if row.verdict == "UNBOUNDED"]

    def one(row: AuditRow) -> dict[str, Any]:
        kept = done.get((row.path, row.sha256))
        if kept is not None and (out / kept["repaired"]).is_file():
            return kept
        found = _repaired(row, root, data, out, time_limit)
        return {"path": row.path, "sha256": row.sha256, "repaired": None, "error": None, **found}

    with ThreadPoolExecutor(max(1, workers)) as pool:
        lines = list(pool.map(one, wanted))
    place.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return lines


def _repaired(row: AuditRow, root: Path, data: Path, out: Path, time_limit: float) -> dict[str, Any]:
    suffix = Path(row.path).suffix
    if suffix not in (".pt2", ".onnx"):
        return {
            "error": "Only whole programs, .pt2 and .onnx, are repaired here; weights by farfield repair "
            "pkg.mod:callable."
        }
    given = calibration_rows(data, row.path)
    if given is None:
        return {"error": f"There are no rows for it in {str(data)!r}."}
    words_of = re.sub(r"[^A-Za-z0-9_.-]+", "-", row.path.removesuffix(suffix)).strip("-.")[-60:]
    target = (
        out / "repaired" / f"{words_of}-{(row.sha256 or '')[:12]}{suffix}"
    )  # a registry's path may lead elsewhere
    target.parent.mkdir(parents=True, exist_ok=True)
    words = ["repair", str(root / row.path), "--data", str(given), "--out", str(target), "--json"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "farfield", *words],
            capture_output=True, text=True, timeout=time_limit, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"Ended after {time_limit:g} s, the limit for one model."}
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        return {"error": said[-1][:300] if said else f"exit code {done.returncode}"}
    found = json.loads(done.stdout)
    return {"repaired": target.relative_to(out).as_posix(), "unchanged": found["change"]["unchanged"]}
