"""A repair as one HTML file: what was wrong, what was put where, both models beside each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from farfield.report._certificate import certificate_view
from farfield.report._pages import rendered
from farfield.report._terminal import Part
from farfield.report._words import clean, number, power_of_ten

__all__ = ["render_repair", "repair_parts"]

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 360.0, 200.0, 60.0, 10.0, 342.0, 172.0
APART = 13.0
"""Ticks nearer than this would overlap."""


@dataclass(frozen=True, slots=True)
class _Picture:
    title: str
    says: str
    shaded: tuple[float, float]
    before: str
    after: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    x_label: str


@dataclass(frozen=True, slots=True)
class _Histogram:
    title: str
    bars: tuple[tuple[float, float, float, float], ...]
    radius: float
    radius_text: str
    x_ticks: tuple[tuple[float, str], ...]


def render_repair(
    repair: Mapping[str, Any], *, name: str = "", certificate: Mapping[str, Any] | None = None
) -> str:
    """Render a repair as a self-contained page: no script, no network, light and dark.

    Parameters
    ----------
    repair
        From ``Repair.to_dict()``.
    name
        What to call the model.
    certificate
        From ``Certificate.to_dict()``: the proved bounds of the repaired model.

    Examples
    --------
    >>> change = {"rows": 10, "unchanged": 1.0, "p99": 0.0, "largest": 0.0, "variance_kept": 1.0}
    >>> data = {"method": "auto", "keep": 0.99, "before": "UNBOUNDED", "after": "BOUNDED", "inserted": [],
    ...         "change": change, "far": [], "curves": [], "sizes": [], "said": ["UNBOUNDED → BOUNDED."], "patch": ""}
    >>> "BOUNDED" in render_repair(data, name="net")
    True
    """
    data = clean(repair)
    pictures = [_picture(curve) for curve in data["curves"]]
    view = {
        "name": clean(name) or "model",
        "before": data["before"],
        "after": data["after"],
        "said": [str(line) for line in data["said"]],
        "inserted": data["inserted"],
        "facts": _facts(data),
        "far": [_far(row) for row in data["far"] if row["feature"] is None],
        "broken": [_far(row) for row in data["far"] if row["feature"] is not None],
        "rays": [p for p, c in zip(pictures, data["curves"], strict=True) if c["kind"] == "ray"],
        "sweeps": [p for p, c in zip(pictures, data["curves"], strict=True) if c["kind"] == "feature"],
        "sizes": [_histogram(h) for h in data["sizes"]],
        "patch": data["patch"],
        "size": (WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM),
    }
    proved = certificate_view(certificate, name=name) if certificate is not None else None
    sheets = ("audit.css", "certificate.css", "repair.css")
    return rendered("repair.html.j2", *sheets, repair=view, certificate=proved)


def repair_parts(repair: Mapping[str, Any]) -> Iterator[Part]:
    """The paragraphs of a repair."""
    bounded = repair["after"] == "BOUNDED"
    style = "bold green" if bounded else "bold yellow"
    yield "", Text(f"{'✓' if bounded else '?'} {repair['before']} → {repair['after']}  repair", style=style)
    for line in repair["said"][1:] or repair["said"]:
        label, colon, rest = str(line).partition(": ")
        if colon and len(label) < 12:
            yield label, Text(rest)
        else:
            yield "", Text(str(line))


def _facts(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    change = data["change"]
    return [
        ("Rows", f"{change['rows']:,}"),
        ("Unchanged to the last bit", f"{change['unchanged']:.2%} (asked: {data['keep']:.2%})"),
        ("Largest change", number(change["largest"])),
        ("99 % of rows change by at most", number(change["p99"])),
        ("Variance of the output kept", f"{change['variance_kept']:.1%}"),
        ("Method", data["method"]),
    ]


def _far(row: Mapping[str, Any]) -> tuple[str, str, str]:
    where = f"{row['scale']:g} times as far" if row["feature"] is None else row["feature"]
    return where, number(float(row["before"])), number(float(row["after"]))


def _bent(values: Sequence[float], unit: float) -> list[float]:
    """Signed logarithm, straight within one unit: growth by powers of ten beside what the data give."""
    return [math.copysign(math.log10(1 + abs(v) / unit), v) if math.isfinite(v) else math.nan for v in values]


def _picture(curve: Mapping[str, Any]) -> _Picture:
    ray = curve["kind"] == "ray"
    x = [math.log10(v) if ray else float(v) for v in curve["x"]]
    before, after = ([float(v) for v in curve[k]] for k in ("before", "after"))
    unit = max((abs(v) for v in after if math.isfinite(v)), default=1.0) or 1.0
    bent = _bent(before, unit), _bent(after, unit)
    known = [v for line in bent for v in line if math.isfinite(v)] or [0.0]
    low, high = min(*known, -0.05), max(*known, 0.05)
    room = 0.06 * (high - low)

    def across(v: float) -> float:
        return LEFT + (v - x[0]) / (x[-1] - x[0]) * (RIGHT - LEFT)

    def up(v: float) -> float:
        return BOTTOM - (v - low + room) / (high - low + 2 * room) * (BOTTOM - TOP)

    seen = [math.log10(v) if ray else float(v) for v in curve["seen"]]
    shaded = (across(max(seen[0], x[0])), across(min(seen[1], x[-1])))
    marks = (
        [(across(k), power_of_ten(10.0**k)) for k in range(0, 7, 2)]
        if ray
        else [(across(k), f"{k:g}") for k in (-40, -20, 0, 20, 40)]
    )
    tall = [v for v in (-1e9, -1e6, -1e3, -1.0, 0.0, 1.0, 1e3, 1e6, 1e9) if low <= _bent([v], 1.0)[0] <= high]
    heights: list[tuple[float, str]] = []
    for v in sorted(tall, key=abs):  # zero first, then outwards
        place = up(_bent([v * unit], unit)[0])
        if all(abs(place - other) >= APART for other, _ in heights):
            heights.append((place, number(v * unit, 2)))
    return _Picture(
        curve["label"],
        f"{curve['label']}: before {number(before[-1])} at the right end, after {number(after[-1])}",
        shaded,
        _line([(across(a), up(b)) for a, b in zip(x, bent[0], strict=True)]),
        _line([(across(a), up(b)) for a, b in zip(x, bent[1], strict=True)]),
        tuple(marks),
        tuple(heights),
        "times the row" if ray else "deviations from the mean",
    )


def _line(points: Sequence[tuple[float, float]]) -> str:
    drawn, parts = False, []
    for x, y in points:
        if math.isfinite(y):
            parts.append(f"{'L' if drawn else 'M'}{x:.1f} {y:.1f}")
        drawn = math.isfinite(y)
    return "".join(parts)


def _histogram(sizes: Mapping[str, Any]) -> _Histogram:
    edges, counts, radius = sizes["edges"], sizes["counts"], float(sizes["radius"])
    end, most = edges[-1] or 1.0, max(counts) or 1

    def across(v: float) -> float:
        return LEFT + v / end * (RIGHT - LEFT)

    bars = []
    for left, right, count in zip(edges, edges[1:], counts, strict=False):
        tall = math.sqrt(count / most) * (BOTTOM - TOP - 14)  # roots: a tail of a few rows can be seen
        bars.append((across(left), BOTTOM - tall, max(across(right) - across(left) - 0.6, 0.4), tall))
    ticks = tuple((across(end * k / 4), number(end * k / 4, 3)) for k in range(5))
    return _Histogram(f"Size behind {sizes['at']}", tuple(bars), across(radius), number(radius), ticks)
