"""A certificate as a page, as a section of an audit's page, and on a terminal."""

import copy
import io
import itertools
import math
import re

import pytest
from rich.console import Console

from farfield.report import print_certificate, render_certificate, render_html
from farfield.report._words import attained_text, interval_text, ratio_text
from report.pages import Page


def data(count=3, **changes):
    side = [{"point": [3.0, 4.0], "direction": None, "value": -1.0} for _ in range(count)]
    return {
        "format": "farfield-certificate/1",
        "output": "value",
        "shape": [1, count],
        "lower": [-2.00001 - i for i in range(count)],
        "upper": [2.00001 + i for i in range(count)],
        "attained_lower": [-1.0] * count,
        "attained_upper": [1.0] * count,
        "witnesses": {"lower": side, "upper": []},
        "method": "dual",
        "assumptions": ["Token ids are those of the example."],
        "model_hash": "ab" * 32,
        "domain": {"kind": "all"},
        "input_shape": [[1, 2]],
        "input_dtype": ["float64"],
        "float_limit": 1e19,
        "seconds": 2.5,
        "provenance": {"date": "2026-01-02", "versions": {"torch": "2.13"}, "seed": 0},
        "proofs": [{"kind": "dual"}],
        **changes,
    }


KINDS = {
    "one": data(1),
    "scalar": data(1, shape=[]),
    "three": data(),
    "open": data(upper=["inf", 3.0, 4.0], lower=["-inf", -3.0, "-inf"]),
    "constant": data(1, lower=[1.0], upper=[1.0], attained_lower=[1.0], attained_upper=[1.0]),
    "zero": data(1, lower=[0.0], upper=[0.0], attained_lower=[0.0], attained_upper=[0.0]),
    "scales": data(upper=[2.0, 1e9, 1e300]),
    "huge": data(1, lower=[-1.7e308], upper=[1.7e308]),
    "unseen": data(1, attained_lower=["inf"], attained_upper=["-inf"], lower=["-inf"], upper=["inf"]),
    "box": data(domain={"kind": "box", "lower": [-1.0, -1.0], "upper": [1.0, "inf"]}),
    "even box": data(domain={"kind": "box", "lower": [-1.0, -1.0], "upper": [1.0, 1.0]}),
    "half-space": data(domain={"kind": "halfspace", "normal": [1.0, 0.0], "offset": 0.0}),
    "bare": {k: v for k, v in data().items() if k not in ("witnesses", "provenance", "proofs", "seconds")},
    "many": data(300),
    "none": data(0),
}


@pytest.fixture(params=list(KINDS))
def kind(request):
    return copy.deepcopy(KINDS[request.param])


def test_page_is_well_formed_and_self_contained(kind):
    text = render_certificate(kind, name="pkg:make", file="cert.json")
    page = Page(text)
    assert text.lstrip().startswith("<!doctype html>")
    assert "http://" not in text and "https://" not in text and not re.search(r"\bnan\b", page.words)
    assert not {"link", "img", "iframe", "object", "script"} & set(page.tags)
    assert "default-src 'none'" in text
    assert len(page.ids) == len(set(page.ids))
    assert {v[1:] for _, k, v in page.attributes if k == "href"} <= set(page.ids)
    for _, key, value in page.attributes:
        if key in ("aria-labelledby", "aria-describedby"):
            assert set(value.split()) <= set(page.ids)
    for opening in re.findall(r"<svg[^>]*>", text):
        assert "aria-hidden" in opening or "aria-labelledby" in opening
    words = page.words
    assert "not a claim of accuracy" in words
    assert "farfield verify cert.json pkg:make" in words and "ab" * 32 in words
    assert "Token ids" in words and "10¹⁹" in words and "Real arithmetic" in words
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 150_000


def test_every_output_has_its_bar_in_the_right_place():
    text = render_certificate(data())
    bars = re.findall(r'<rect class="(track|met)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', text)
    tracks = [(float(x), float(x) + float(w)) for name, x, y, w in bars if name == "track" and float(y) > 3]
    mets = [(float(x), float(x) + float(w)) for name, x, y, w in bars if name == "met" and float(y) > 7.5]
    assert len(tracks) == len(mets) == 3
    for (left, right), (a, b) in zip(tracks, mets, strict=True):
        assert left < a < b < right
    center = {round((left + right) / 2, 0) for left, right in tracks}
    assert len(center) == 1  # symmetric about zero, on one axis
    lengths = [right - left for left, right in tracks]
    assert lengths[1] / lengths[0] == pytest.approx(6 / 4, rel=1e-2)
    # Zero is a tick and stands in the middle.
    tick = re.search(r'<text class="tick" x="([\d.]+)" y="[\d.]+">0</text>', text)
    assert float(tick[1]) == pytest.approx(center.pop(), abs=1.0)


def test_different_scales_and_open_ends_are_said():
    assert "own scale" in render_certificate(KINDS["scales"])
    assert "own scale" not in render_certificate(KINDS["three"])
    page = render_certificate(KINDS["open"])
    assert "NOT PROVED BOUNDED" in page and page.count('class="beyond"') == 4  # one in the legend
    assert "1 of 3 entries" in page and "(-∞, ∞)" in page
    assert "does not prove that the model is unbounded" in page


def test_rows_and_witnesses():
    words = Page(render_certificate(data())).words
    assert "value[0, 0] [-2.001, 2.001] [-1, 1] 2.001 ‖x‖ = 5 –" in words
    many = Page(render_certificate(KINDS["many"])).words
    assert "44 more outputs are in the certificate" in many and "276 more outputs are not drawn" in many
    assert "all entries in [-1, 1]" in Page(render_certificate(KINDS["even box"])).words
    assert "in a half-space" in Page(render_certificate(KINDS["half-space"])).words


def test_what_a_file_says_of_itself_is_not_believed():
    """Bounded and tightness are read off the bounds, which a checker checks, not off words beside them."""
    lying = {**KINDS["open"], "bounded": True, "tightness": [1.0, 1.0, 1.0]}
    assert "NOT PROVED BOUNDED" in render_certificate(lying)


def test_names_are_text():
    evil = "<script>alert(1)</script>\"'&</title>\u202e\x1b[31m"
    changed = data(output=evil, assumptions=[evil], model_hash=evil, provenance={evil: {evil: evil}})
    text = render_certificate(changed, name=evil, file=evil)
    page = Page(text)
    assert "script" not in page.tags and "\x1b" not in text and "\u202e" not in text
    assert "alert(1)" in page.words


@pytest.mark.full
@pytest.mark.parametrize("name", ["three", "open"])
def test_section_of_an_audit(audited, name):
    audit = audited("bounded")
    plain = render_html(audit)
    text = render_html(audit, KINDS[name])
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert "value[0, 1]" in page.words and "value[0, 1]" not in Page(plain).words
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1 and all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert "farfield verify" in page.words and "farfield verify" not in plain


# ------------------------------------------------------------------ terminal


def printed(certificate, width=80, **options):
    out = io.StringIO()
    print_certificate(certificate, Console(file=out, width=width, **options), name="pkg:make", file="c.json")
    return out.getvalue()


def test_terminal(kind):
    text = printed(kind)
    words = re.sub(r"\s+", " ", text)
    assert "BOUNDED" in text.splitlines()[0] and "pkg:make" in text.splitlines()[0]
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())
    assert len(text.splitlines()) < 50
    assert "Token ids" in words and "Lagrangian dual" in words and "not a claim of accuracy" in words
    colored = printed(kind, force_terminal=True, color_system="truecolor")
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == text


def test_the_next_step_names_only_a_file_that_there_is():
    assert "  farfield verify c.json pkg:make" in printed(KINDS["one"]).splitlines()[-4:][1]
    out = io.StringIO()
    print_certificate(KINDS["one"], Console(file=out, width=80), name="pkg:make")
    assert "farfield verify" not in out.getvalue() and "write the certificate to a file" in out.getvalue()
    out = io.StringIO()
    print_certificate(
        KINDS["one"], Console(file=out, width=80), name="net", file="c.json", target="a:b --weights w.pt"
    )
    assert "farfield verify c.json a:b --weights w.pt\n" in out.getvalue()


def test_terminal_counts_what_it_leaves_out_and_escapes_names():
    assert "and 292 more" in printed(KINDS["many"])
    assert "\x1b[31m" not in printed(data(output="\x1b[31mred"))


def test_rounding_never_flatters():
    assert interval_text([-2.00001, 2.00001]) == "[-2.001, 2.001]"
    assert attained_text(-1.00009, 1.00009) == "[-1, 1]"
    assert attained_text(2.0, 2.0) == "2"
    assert ratio_text(1.0) == "1" and ratio_text(1.0000001) == "1.001" and ratio_text(math.inf) == "∞"
