"""Outcomes one by one, a line of a file each: a second run goes on where the first one stopped."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from farfield.report._data import plain

__all__ = ["collect", "read_rows"]


def read_rows(path: Path | None) -> list[dict[str, Any]]:
    """The outcomes that a file holds; none where there is no file."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def collect(
    keys: Iterable[Any], make: Callable[[Any], dict[str, Any]], path: Path | None
) -> list[dict[str, Any]]:
    """``make(key)`` for every key that the file has no row of; each row is ``{"key": key, ...}``.

    Faults (``row["faults"]``, a list of sentences) and progress go to stderr.
    """
    found = read_rows(path)
    done = {json.dumps(row["key"]) for row in found}
    wanted = [key for key in keys if json.dumps(key) not in done]
    begun = time.monotonic()
    for count, key in enumerate(wanted, 1):
        row = plain({"key": key, **make(key)})
        found.append(row)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        for fault in row.get("faults", ()):
            print(f"{key}: {fault}", file=sys.stderr)
        print(
            f"\r{count}/{len(wanted)} {time.monotonic() - begun:.0f} s ", end="", file=sys.stderr, flush=True
        )
    return found
