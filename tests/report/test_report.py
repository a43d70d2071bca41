"""Figures and tables are plain data first; drawing them never changes or hides anything."""

import json
import math

import pytest

from farfield.errors import InvalidValueError, MissingExtraError
from farfield.report import Figure, Panel, Series, Table, save_figure
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
