"""Figures drawn with matplotlib: the one place that imports it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from farfield.errors import InvalidValueError, MissingExtraError
from farfield.report._data import Figure, Heatmap, Panel, Series

__all__ = ["COLORS", "new_axes", "save_figure"]

# Okabe and Ito's palette: distinguishable with any common color vision.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
_SHORT = 100.0
"""A logarithmic axis that ends before so many times its beginning has plain numbers: 2, not 2 × 10⁰."""
_LINES = {"line": "-", "dashed": "--", "dotted": ":"}


def _finite(series: Series, positive: bool) -> list[int]:
    return [
        i
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True))
        if math.isfinite(x) and math.isfinite(y) and (y > 0 or not positive)
    ]


def _errors(series: Series, keep: list[int]) -> tuple[list[float], list[float]] | None:
    """How far a band reaches below and above each point; ``None`` without one."""
    if not series.low:
        return None
    below = [max(0.0, series.y[i] - series.low[i]) for i in keep]
    return below, [max(0.0, series.high[i] - series.y[i]) for i in keep]


def _draw(axes: Any, panel: Panel) -> None:
    floor = panel.y_scale == "log"
    bars = [s for s in panel.series if s.style == "bars"]
    for series in panel.series:
        keep = _finite(series, floor)
        x, y = [series.x[i] for i in keep], [series.y[i] for i in keep]
        color = COLORS[series.color % len(COLORS)]
        label = series.label or "_nolegend_"
        if series.style == "bars":
            width = 0.8 / len(bars)
            shift = (bars.index(series) - (len(bars) - 1) / 2) * width
            axes.bar(
                [v + shift for v in x], y, width=width, color=color, label=label, yerr=_errors(series, keep),
                ecolor="#404040", capsize=2,
            )  # fmt: skip
            continue
        if series.style == "points":
            errors = _errors(series, keep)
            axes.errorbar(x, y, errors, fmt="o", color=color, label=label, markersize=4, elinewidth=1.2)
            continue
        axes.plot(x, y, _LINES[series.style], color=color, label=label, linewidth=1.6)
        if series.low:
            low = [
                series.low[i] if series.low[i] > 0 or not floor else y[k] * 1e-3 for k, i in enumerate(keep)
            ]
            axes.fill_between(x, low, [series.high[i] for i in keep], color=color, alpha=0.22, linewidth=0)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_xscale(panel.x_scale)
    axes.set_yscale(panel.y_scale)
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    low, high = axes.get_ylim()
    if floor and high < _SHORT * low:
        named = "123456789" if high < 3.0 * low else "235" if high < 20.0 * low else "25"
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in named else "")
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks, rotation=60, ha="right", fontsize=8)
    axes.grid(visible=True, alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _edges(centers: tuple[float, ...]) -> list[float]:
    """Of cells around the coordinates."""
    if len(centers) == 1:
        return [centers[0] - 0.5, centers[0] + 0.5]
    middle = [(a + b) / 2 for a, b in itertools.pairwise(centers)]
    return [2 * centers[0] - middle[0], *middle, 2 * centers[-1] - middle[-1]]


def _draw_heatmap(axes: Any, panel: Heatmap) -> None:
    low, high = panel.value_range or (None, None)
    # Rasterised: ten thousand vector cells make an SVG nobody can open.
    image = axes.pcolormesh(
        _edges(panel.x), _edges(panel.y), panel.values, cmap="viridis", vmin=low, vmax=high, rasterized=True
    )
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if math.isclose(panel.x[-1] - panel.x[0], panel.y[-1] - panel.y[0]):
        axes.set_aspect("equal")
    bar = axes.figure.colorbar(image, ax=axes, label=panel.value_label, fraction=0.046, pad=0.03)
    bar.outline.set_visible(False)


def new_axes() -> Any:
    """The axes of a new figure of pyplot's, which a notebook shows by itself and a script with ``plt.show()``.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtraError("Drawing a figure", "matplotlib", "plot") from error
    _, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    return axes


def save_figure(figure: Figure, paths: Iterable[Path]) -> None:
    """Draw a figure and write it to each path; the ending (.png, .svg, .pdf) decides the format.

    Panels stand in rows of ``figure.columns``; one legend serves all panels when they share their labels.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise MissingExtraError("Drawing a figure", "matplotlib", "plot") from error
    if not figure.panels:
        raise InvalidValueError(f"Figure {figure.title!r} has no panels to draw.")

    count = len(figure.panels)
    columns = min(count, figure.columns)
    rows = math.ceil(count / columns)
    # The object interface, not pyplot: no global state, no display, nothing left open.
    size = (max(3.4 * columns + 0.6, 6.4), 3.1 * rows + 0.9)
    if count == 1 and isinstance(figure.panels[0], Heatmap):
        size = (6.0, 5.4)
    canvas = Canvas(figsize=size, layout="constrained")
    FigureCanvasAgg(canvas)
    grid = canvas.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.flat, figure.panels, strict=False):
        if isinstance(panel, Heatmap):
            _draw_heatmap(axes, panel)
        else:
            _draw(axes, panel)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    entries: dict[str, Any] = {}
    for axes in grid.flat[:count]:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if len(entries) > 1 or any(s.label for p in figure.panels if isinstance(p, Panel) for s in p.series):
        canvas.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=min(len(entries), 4), frameon=False,
            fontsize=9,
        )  # fmt: skip
    canvas.suptitle(figure.title, fontsize=12)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        # No date, and element ids from a fixed salt: the same numbers give the same file.
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        with rc_context({"svg.hashsalt": "farfield"}):
            canvas.savefig(path, dpi=130, metadata=metadata)
