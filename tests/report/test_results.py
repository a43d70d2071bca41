"""Results in a notebook, as a page and as a picture: the same facts, and nothing that runs."""

import html.parser
import importlib
import sys

import pytest
import torch
from torch import nn

from farfield.audit import audit
from farfield.certify import Certificate, RolloutCertificate, RolloutVerdict
from farfield.errors import MissingExtraError
from farfield.repair import repair

ROWS = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))


def plain_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))


def normed_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))


def box(*values):
    return torch.tensor(values, dtype=torch.float64)


def rollout(verdict=RolloutVerdict.INVARIANT):
    ends = {
        "lower": box(-2.0, -3.0), "upper": box(2.0, 3.0),
        "attractor_lower": box(-1.0, -2.0), "attractor_upper": box(1.0, 2.0),
        "attained_lower": box(-0.5, -1.0), "attained_upper": box(0.5, 1.0),
    }  # fmt: skip
    return RolloutCertificate(
        verdict, "A step replaces the state.", torch.zeros(2, 2), **(ends if verdict == "INVARIANT" else {})
    )


def certificate(upper=2.0):
    one = torch.ones(1, 2, dtype=torch.float64)
    return Certificate(-2 * one, upper * one, -one, one, method="dual", model_hash="0" * 64)


@pytest.fixture(scope="module")
def results():
    return {
        "audit": audit(plain_net(), ROWS),
        "bounded": audit(normed_net(), ROWS),
        "certificate": certificate(),
        "open": certificate(float("inf")),
        "repair": repair(plain_net(), ROWS),
        "rollout": rollout(),
        "no rollout": rollout(RolloutVerdict.UNKNOWN),
    }


NAMES = ["audit", "bounded", "certificate", "open", "repair", "rollout", "no rollout"]


class Tags(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.opened, self.words = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.opened.append(tag)

    def handle_data(self, data):
        self.words += data


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_the_words_in_a_fragment(results, name):
    text = results[name]._repr_html_()
    seen = Tags(text)
    # No style sheet, script or document of its own: it changes nothing else in the notebook.
    assert set(seen.opened) <= {"div", "strong", "code"}
    assert len(text) < 12_000
    assert "not a claim of accuracy" in seen.words
    verdict = {
        "audit": "UNBOUNDED", "bounded": "BOUNDED", "certificate": "BOUNDED", "open": "NOT PROVED BOUNDED",
        "repair": "UNBOUNDED → BOUNDED", "rollout": "INVARIANT", "no rollout": "UNKNOWN",
    }[name]  # fmt: skip
    assert verdict in seen.words.split("repair")[0][:60]


def test_names_are_text_in_a_notebook():
    text = audit(plain_net(), torch.zeros(1, 6), name="<script>x</script>\x1b[31m", rays=0)._repr_html_()
    assert "<script>" not in text and "&lt;script&gt;" in text and "\x1b" not in text


@pytest.mark.parametrize("name", NAMES)
def test_a_page_stands_alone(results, name):
    page = results[name].to_html()
    assert page.lstrip().startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    assert "default-src 'none'" in page and "http://" not in page and "https://" not in page
    assert "not a claim of accuracy" in page


def test_a_page_takes_a_certificate():
    result = audit(normed_net(), ROWS)
    assert "tightness" in result.to_html(certificate=certificate())
    assert "farfield verify mine.json net" in certificate().to_html(name="net", file="mine.json")


def test_the_page_shows_the_data_and_the_fix(results):
    page = results["audit"].to_html()
    assert "At 10 standard deviations" in page and "nn.LayerNorm(16)" in page


def axes():
    figure = importlib.import_module("matplotlib.figure").Figure()
    return figure.subplots()


def labels(ax):
    return ax.get_legend_handles_labels()[1]


def test_rays_with_the_bound_and_the_range_of_the_data(results):
    ax = axes()
    assert results["bounded"].plot(ax=ax) is ax
    assert labels(ax) == ["random directions", "proved for every input", "where the data are"]
    low, high = results["bounded"].report.verdict().growth.interval
    (line,) = (line for line in ax.lines if line.get_label() == "proved for every input")
    assert line.get_ydata()[0] == max(abs(low), abs(high))
    highest = max(max(line.get_ydata()) for line in ax.lines if line.get_label() != "proved for every input")
    assert highest <= max(abs(low), abs(high))
    (span,) = ax.patches
    norms = ROWS.norm(dim=1)
    assert span.get_x() == pytest.approx(float(norms.min()))
    assert span.get_x() + span.get_width() == pytest.approx(float(norms.max()))
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_an_unbounded_model_has_no_bound_to_draw(results):
    ax = results["audit"].plot(ax=axes())
    assert "proved for every input" not in labels(ax) and "direction that proves the growth" in labels(ax)
    ax = audit(plain_net(), torch.zeros(1, 6), rays=0).plot(ax=axes())
    assert ax.texts[0].get_text() == "no rays were evaluated"


def test_bars_of_what_is_proved_and_attained(results):
    ax = results["certificate"].plot(ax=axes())
    assert labels(ax) == ["proved", "attained by some input"]
    assert [(p.get_x(), p.get_width()) for p in ax.patches] == [(-2.0, 4.0), (-1.0, 2.0)] * 2
    ax = results["open"].plot(ax=axes())
    assert all(p.get_x() + p.get_width() > ax.get_xlim()[1] for p in ax.patches[::2])
    ax = results["rollout"].plot(ax=axes())
    assert [(p.get_x(), p.get_width()) for p in ax.patches] == [
        (-1.0, 2.0),
        (-0.5, 1.0),
        (-2.0, 4.0),
        (-1.0, 2.0),
    ]
    assert results["no rollout"].plot(ax=axes()).texts[0].get_text() == "there are no bounds to draw"


def test_a_repair_before_and_after(results):
    ax = results["repair"].plot(ax=axes())
    assert labels(ax) == ["before", "after", "where the data are"]
    before, after = ax.lines[:2]
    assert abs(before.get_ydata()[-1]) > 1e4 > abs(after.get_ydata()[-1])


def test_without_axes_a_figure_is_made():
    pyplot = importlib.import_module("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    ax = certificate().plot()
    assert ax.figure.number in pyplot.get_fignums()
    pyplot.close(ax.figure)


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="pip install 'farfield\\[plot\\]'"):
        certificate().plot()
