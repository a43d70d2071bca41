"""Growth along rays as a log–log chart: ticks, lines and what could not be drawn, in plain coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farfield.report._words import power_of_ten

__all__ = ["Chart", "RayLine", "Tick", "chart"]

WIDTH, HEIGHT = 520.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 14.0, 46.0
_LEAST_DECADES = 4
"""A bounded model is meant to look flat, not to have its wiggles blown up to the height of the chart."""
_HIGHEST, _LOWEST = 18, -12
"""Decades beyond these are cut off: an exponential would press everything else to the floor."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis and its text (empty for a minor one)."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class RayLine:
    """One ray: its label, SVG points (several runs where values are missing), and where it left the chart."""

    label: str
    emphasized: bool
    runs: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]
    stops: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything to draw."""

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[RayLine, ...]
    table: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    notes: tuple[str, ...]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


def chart(rays: Mapping[str, Any]) -> Chart | None:
    """Coordinates for the rays of an audit; None where there is nothing to draw."""
    radii = [float(r) for r in rays["radii"]]
    series = [
        (s["label"], [math.nan if v is None else float(v) for v in s["values"]]) for s in rays["series"]
    ]
    logs = [math.log10(v) for _, values in series for v in values if math.isfinite(v) and v > 0]
    if len(radii) < 2 or not logs:
        return None
    notes: list[str] = []
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    if high > _HIGHEST:
        high = _HIGHEST
        notes.append(f"Values above {power_of_ten(10.0**high)} are cut off.")
    low = min(max(low, _LOWEST), high - 1)
    missing = max(_LEAST_DECADES - (high - low), 0)
    low, high = low - missing // 2, high + missing - missing // 2
    if any(not math.isfinite(v) for _, values in series for v in values):
        notes.append("× marks where a ray leaves the range of float64 (infinite or not a number).")
    start, end = math.log10(radii[0]), math.log10(radii[-1])

    def across(radius: float) -> float:
        return LEFT + (math.log10(radius) - start) / (end - start) * (WIDTH - LEFT - RIGHT)

    def along(value: float) -> float:
        place = (math.log10(value) if value > 0 else low) - low
        return HEIGHT - BOTTOM - min(max(place / (high - low), 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)

    lines = [_line(label, radii, values, across, along, 10.0**high) for label, values in series]
    picked = [i for i, r in enumerate(radii) if power_of_ten(r).startswith("10") or r == 1.0][1::2]
    counted = _numbered([label for label, _ in series])
    return Chart(
        tuple(_ticks(math.ceil(start - 1e-9), math.floor(end + 1e-9), across)),
        tuple(_ticks(low, high, along)),
        # The emphasized line is drawn last, on top.
        tuple(sorted(lines, key=lambda line: line.emphasized)),
        tuple((power_of_ten(radii[i]), *(f"{values[i]:.3g}" for _, values in series)) for i in picked),
        ("λ", *counted),
        tuple(notes),
    )


def _numbered(labels: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    named = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        short = label.removesuffix(" direction")
        named.append(f"{short} {seen[label]}" if labels.count(label) > 1 else short)
    return named


def _ticks(low: int, high: int, place: Any) -> list[Tick]:
    step = max(1, math.ceil((high - low) / 7))
    return [
        Tick(place(10.0**e), power_of_ten(10.0**e) if (e - low) % step == 0 else "")
        for e in range(low, high + 1)
    ]


def _line(
    label: str, radii: Sequence[float], values: Sequence[float], across: Any, along: Any, highest: float
) -> RayLine:
    runs: list[list[tuple[float, float]]] = [[]]
    stops: tuple[float, float] | None = None
    dots: list[tuple[float, float]] = []
    above = False
    for radius, value in zip(radii, values, strict=True):
        if not math.isfinite(value):
            if runs[-1]:
                stops = stops or runs[-1][-1]
                runs.append([])
            continue
        point = (across(radius), along(value))
        if value > highest and above:
            continue
        above = value > highest
        runs[-1].append(point)
        if not above and (power_of_ten(radius).startswith("10") or radius == 1.0):
            dots.append(point)
    emphasized = label == "witness"
    texts = tuple(" ".join(f"{x:.1f},{y:.1f}" for x, y in run) for run in runs if run)
    return RayLine(label, emphasized, texts, tuple(dots) if emphasized else (), stops)
