"""What a benchmark found, as a file, and what it says on the way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from farfield.report._data import plain

__all__ = ["save_record", "say"]


def say(text: str) -> None:
    """Progress, to stderr: what is printed to stdout is the result."""
    print(text, file=sys.stderr, flush=True)


def save_record(record: dict[str, Any], path: Path) -> None:
    """Write JSON, infinities and nan as text; make the folder if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plain(record), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
