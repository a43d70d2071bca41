"""Figures and tables are plain data first; drawing them never changes or hides anything."""

import json
import math

import pytest

from farfield.errors import InvalidValueError, MissingExtraError
from farfield.report import Figure, Heatmap, Panel, Series, Table, save_figure
from farfield.report._data import plain


def panel(**changes):
    series = Series("a", (0.0, 1.0, 2.0), (1.0, 0.1, math.inf), (0.5, 0.05, 0.0), (2.0, 0.2, math.inf))
    return Panel("t", "x", "y", (series,), y_scale="log", **changes)


def test_plain_survives_json_and_keeps_infinities():
    data = json.loads(json.dumps(plain(Figure("f", (panel(),)))))
    assert data["panels"][0]["series"][0]["y"] == [1.0, 0.1, "inf"]


@pytest.mark.parametrize("style", ["line", "dashed", "dotted", "points", "bars"])
def test_every_style_draws(tmp_path, style):
    series = (
        Series("one", (0.0, 1.0), (1.0, 2.0), style=style),
        Series("two", (0.0, 1.0), (2.0, 1.0), style=style),
    )
    figure = Figure("f", (Panel("t", "x", "y", series, ticks=("p", "q")),))
    save_figure(figure, [tmp_path / "f.png", tmp_path / "f.svg", tmp_path / "f.pdf"])
    assert (tmp_path / "f.png").stat().st_size > 2000
    assert "<svg" in (tmp_path / "f.svg").read_text()
    assert (tmp_path / "f.pdf").read_bytes()[:4] == b"%PDF"


def test_non_finite_points_and_bands_on_a_log_axis_draw(tmp_path):
    save_figure(Figure("f", (panel(), panel(), panel()), columns=2), [tmp_path / "f.png"])
    assert (tmp_path / "f.png").exists()


def test_a_series_of_unequal_lengths_is_refused():
    with pytest.raises(InvalidValueError, match="equally long"):
        Series("a", (0.0,), (1.0, 2.0))
    with pytest.raises(InvalidValueError, match="equally long"):
        Series("a", (0.0,), (1.0,), (0.0,), ())


def test_an_empty_figure_is_refused(tmp_path):
    with pytest.raises(InvalidValueError, match="no panels"):
        save_figure(Figure("f", ()), [tmp_path / "f.png"])


def test_without_matplotlib_the_message_says_what_to_install(tmp_path, monkeypatch):
    import sys

    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"farfield\[plot\]"):
        save_figure(Figure("f", (panel(),)), [tmp_path / "f.png"])


def test_table_rows():
    assert plain(Table(("a", "b"), ((1, "x"),))) == {"columns": ["a", "b"], "rows": [[1, "x"]]}


# ------------------------------------------------------------------ heat maps


def heatmap(values=((0.0, 1.0, 2.0), (3.0, 4.0, math.inf)), **changes):
    return Heatmap("t", "x", "y", (0.0, 1.0, 2.0), (-1.0, 1.0), values, value_label="v", **changes)


def test_a_heatmap_draws_beside_lines_and_alone(tmp_path):
    both = Figure("f", (heatmap(), panel(), heatmap(value_range=(0.0, 9.0))), columns=2)
    save_figure(both, [tmp_path / "f.png", tmp_path / "f.svg"])
    assert (tmp_path / "f.png").read_bytes()[:4] == b"\x89PNG"
    assert "<image" in (tmp_path / "f.svg").read_text(), "cells are rasterised"
    save_figure(Figure("f", (heatmap(),), columns=1), [tmp_path / "g.png"])
    assert (tmp_path / "g.png").stat().st_size > 2000


def test_a_heatmap_puts_values_where_they_belong(tmp_path):
    """Brightest cell top right, darkest bottom left: y goes up, x to the right."""
    from matplotlib.image import imread

    values = ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    save_figure(Figure("", (heatmap(values),), columns=1), [tmp_path / "f.png"])
    image = imread(tmp_path / "f.png")[..., :3]
    yellow = (abs(image - [0.993, 0.906, 0.144]).sum(-1) < 0.05).nonzero()
    purple = (abs(image - [0.267, 0.005, 0.329]).sum(-1) < 0.05).nonzero()
    # The color bar has both colors too, and stands at the right; the map is left of it.
    inside = yellow[1] < image.shape[1] * 0.75
    assert yellow[0][inside].max() < purple[0].max() and yellow[1][inside].min() > purple[1].min() + 100


def test_a_heatmap_survives_json():
    assert json.loads(json.dumps(plain(heatmap())))["values"][1] == [3.0, 4.0, "inf"]


def test_a_heatmap_of_the_wrong_shape_is_refused():
    with pytest.raises(InvalidValueError, match="a row for each of 2 y"):
        heatmap(((0.0, 1.0, 2.0),))
    with pytest.raises(InvalidValueError, match="increase"):
        Heatmap("t", "x", "y", (1.0, 0.0), (0.0,), ((1.0, 2.0),))
