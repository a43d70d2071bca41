"""Figures and tables as plain data: made once, stored as JSON, rendered anywhere."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from farfield.errors import InvalidValueError

__all__ = ["Figure", "Heatmap", "Panel", "Series", "Table", "figure_of", "plain"]


@dataclass(frozen=True)
class Series:
    """One line, or one set of bars: points, an optional band around them, and how to draw it.

    Parameters
    ----------
    label
        Legend entry; an empty one leaves the series out of the legend.
    x, y
        Points, equally long; non-finite ones are left out of the drawing.
    low, high
        A band around y, drawn as a shade, or as error bars at points and bars; empty for none.
    style
        ``"line"``, ``"dashed"``, ``"dotted"``, ``"points"`` or ``"bars"``.
    color
        Index into the palette: series that belong together across panels share one.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    style: Literal["line", "dashed", "dotted", "points", "bars"] = "line"
    color: int = 0

    def __post_init__(self) -> None:
        if (
            len(self.x) != len(self.y)
            or len(self.low) != len(self.high)
            or len(self.low) not in (0, len(self.y))
        ):
            raise InvalidValueError(
                f"Series {self.label!r}: x and y are equally long, and so is a band if there is one; got "
                f"{len(self.x)}, {len(self.y)}, {len(self.low)}, {len(self.high)}."
            )


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    y_range: tuple[float, float] | None = None
    ticks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Heatmap:
    """A function of two variables as colors on a grid, with a color bar.

    Parameters
    ----------
    title, x_label, y_label
        Of the axes.
    x, y
        The grid's coordinates, increasing.
    values
        A row for every y and a column for every x; non-finite ones stay blank.
    value_label
        Of the color bar.
    value_range
        Values at the ends of the color scale, which panels that are to be compared share; as found if None.
    """

    title: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    value_label: str = ""
    value_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if len(self.values) != len(self.y) or any(len(row) != len(self.x) for row in self.values):
            raise InvalidValueError(
                f"Heatmap {self.title!r}: a row for each of {len(self.y)} y and in it a value for each of "
                f"{len(self.x)} x; got {len(self.values)} rows of lengths {sorted({len(r) for r in self.values})}."
            )
        if any(a >= b for axis in (self.x, self.y) for a, b in itertools.pairwise(axis)):
            raise InvalidValueError(f"Heatmap {self.title!r}: coordinates must increase.")


@dataclass(frozen=True)
class Figure:
    """Panels side by side, with the words beneath them."""

    title: str
    panels: tuple[Panel | Heatmap, ...]
    caption: str = ""
    columns: int = 4


@dataclass(frozen=True)
class Table:
    """Columns and rows of text or numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...] = field(default=())


def plain(value: Any) -> Any:
    """Dataclasses, enums, tensors and mappings as JSON takes them; infinities and nan as text, never dropped.

    Examples
    --------
    >>> plain(Table(("a",), ((float("inf"),),)))
    {'columns': ['a'], 'rows': [['inf']]}
    """
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def figure_of(stored: Mapping[str, Any]) -> Figure:
    """The figure that :func:`plain` made plain data of, ready to be drawn again.

    Examples
    --------
    >>> figure = Figure("f", (Panel("p", "x", "y", (Series("a", (1.0,), (float("nan"),)),)),))
    >>> plain(figure_of(plain(figure))) == plain(figure)
    True
    """
    panels = tuple(_heatmap(p) if "values" in p else _panel(p) for p in stored["panels"])
    return Figure(**{**stored, "panels": panels})


def _heatmap(stored: Mapping[str, Any]) -> Heatmap:
    rows = tuple(_floats(row) for row in stored["values"])
    span = stored["value_range"]
    own = {"x": _floats(stored["x"]), "y": _floats(stored["y"]), "values": rows}
    return Heatmap(**{**stored, **own, "value_range": None if span is None else _floats(span)})


def _panel(stored: Mapping[str, Any]) -> Panel:
    series = tuple(
        Series(**{**s, **{axis: _floats(s[axis]) for axis in ("x", "y", "low", "high")}})
        for s in stored["series"]
    )
    span = stored["y_range"]
    own = {
        "series": series,
        "ticks": tuple(stored["ticks"]),
        "y_range": None if span is None else _floats(span),
    }
    return Panel(**{**stored, **own})


def _floats(values: Iterable[Any]) -> Any:
    return tuple(float(v) for v in values)
