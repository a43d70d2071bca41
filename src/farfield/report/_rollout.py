"""A rollout's certificate as one HTML file, and its words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from farfield.report._certificate import BoundRow, bound_drawing, entry_name
from farfield.report._pages import rendered
from farfield.report._terminal import Part
from farfield.report._words import clean, number

__all__ = ["render_rollout", "rollout_parts", "rollout_rows"]

_LISTED = 256
_KINDS = {"INVARIANT": "BOUNDED", "ESCAPES": "UNBOUNDED"}
"""How a verdict on a rollout is colored: as that on a model."""
_SIGNS = {"INVARIANT": ("✓", "bold green"), "ESCAPES": ("✗", "bold red")}


def render_rollout(rollout: Mapping[str, Any], *, name: str = "") -> str:
    """Render a rollout's certificate as a self-contained page: no script, no network, light and dark.

    Parameters
    ----------
    rollout
        From ``RolloutCertificate.to_dict()``, and under ``said`` the lines that it prints.
    name
        What to call the step.

    Examples
    --------
    >>> data = {"verdict": "UNKNOWN", "reason": "The step can't be split.", "said": ["UNKNOWN. Why."],
    ...         "attractor_lower": None, "attractor_upper": None, "attained_lower": None, "attained_upper": None,
    ...         "linear": None, "assumptions": [], "model_hash": "", "seconds": 1.0}
    >>> "UNKNOWN" in render_rollout(data, name="step")
    True
    """
    data = clean(rollout)
    rows = rollout_rows(data)
    view = {
        "name": clean(name) or "step",
        "verdict": data["verdict"],
        "kind": _KINDS.get(data["verdict"], "UNKNOWN"),
        "said": data["said"][1:],
        "reason": data["reason"],
        "facts": _facts(data),
        "rows": rows[:_LISTED],
        "hidden": max(len(rows) - _LISTED, 0),
        "drawing": bound_drawing(rows),
        "assumptions": data["assumptions"],
        "hash": data["model_hash"],
    }
    return rendered("rollout.html.j2", "audit.css", "certificate.css", rollout=view)


def rollout_parts(rollout: Mapping[str, Any]) -> Iterator[Part]:
    """The paragraphs of a rollout's certificate."""
    sign, style = _SIGNS.get(rollout["verdict"], ("?", "bold yellow"))
    yield "", Text(f"{sign} {rollout['verdict']}  rollout", style=style)
    yield "", Text(rollout["reason"])
    for line in rollout["said"][1:]:
        yield "", Text(line)


def rollout_rows(rollout: Mapping[str, Any]) -> list[BoundRow]:
    """One row for every entry of the state: the box it ends in, and what a simulation reached of it."""
    lower, upper = rollout["attractor_lower"], rollout["attractor_upper"]
    if lower is None or upper is None:
        return []
    ends = [_entries(part) for part in (lower, upper)]
    met = [
        _entries(part) if part is not None else [math.nan] * len(ends[0])
        for part in (rollout["attained_lower"], rollout["attained_upper"])
    ]
    return [
        BoundRow(
            entry_name("state", place, lower["shape"]),
            low,
            high,
            a,
            b,
            (high - low) / (b - a) if b > a else math.inf,
            ("", ""),
        )
        for place, (low, high, a, b) in enumerate(zip(*ends, *met, strict=True))
    ]


def _entries(part: Mapping[str, Sequence[Any]]) -> list[float]:
    return [float(v) for v in part["entries"]]


def _facts(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("verdict", data["verdict"])]
    if data["linear"] is not None:
        facts.append(("entries of the state", number(int(data["linear"]["shape"][0]))))
    if data["seconds"]:
        facts.append(("time", f"{number(float(data['seconds']), 3)} s"))
    return facts
