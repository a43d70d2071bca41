"""The terminal view: eighty columns, everything a person needs, nothing twice, no escapes from names."""

import io
import re

import pytest
from rich.console import Console

from farfield.report import print_audit


def printed(data, width=80, **options):
    out = io.StringIO()
    print_audit(data, Console(file=out, width=width, **options))
    return out.getvalue()


def flowing(text):
    return re.sub(r"\s+", " ", text)


def test_verdict_reason_findings_rules_and_next_step(named):
    verdict, data = named
    text = printed(data)
    words = flowing(text)
    assert verdict in text.splitlines()[0] and data["subject"]["name"] in text.splitlines()[0]
    assert "not correct" in words
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())
    for finding in data["findings"]:
        assert f"{finding['code']} {finding['severity']}" in words
        assert flowing(finding["action"]) in words
    outcomes = [r["outcome"] for r in data["rules"]]
    for word in ("passed", "failed", "not applicable", "unknown"):
        assert f"{outcomes.count(word)} {word}" in words
    assert "Next" in words
    assert len(text.splitlines()) < 50


def test_escape_path_reads_as_one_line(audited):
    words = flowing(printed(audited("unbounded")))
    path = "x → embed → add → head bypasses norms.0 (LayerNorm), norms.1 (LayerNorm)"
    assert words.count("x → embed → add → head") == 1
    assert path in words
    assert "May escape x → a → div" in flowing(printed(audited("unknown")))
    assert "→" not in printed(audited("bounded"))


def test_nothing_is_said_twice(named):
    _, data = named
    sentences = [s.strip() for s in re.split(r"(?<=[.:])\s", flowing(printed(data))) if len(s.strip()) > 25]
    assert len(sentences) == len(set(sentences)), sorted(s for s in sentences if sentences.count(s) > 1)
    paths = [p for v in data["growth"]["verdicts"] for p in v["paths"]]
    for path in paths:
        assert flowing(printed(data)).count(" → ".join(path["labels"])) <= 1


def test_outputs_and_inputs_are_told_apart_only_where_there_are_several(audited):
    words = flowing(printed(audited("two inputs")))
    assert "output_0 UNBOUNDED: state bounded, action unbounded" in words
    assert "output_1 BOUNDED: state bounded, action bounded" in words
    assert "Outputs" not in printed(audited("unbounded"))


def test_long_paths_are_shortened(huge):
    text = printed(huge(40))
    assert "… 34 more …" in flowing(text) and "and 37 more" in flowing(text)
    assert len(text.splitlines()) < 50


def test_colour_only_repeats_what_words_say(named):
    _, data = named
    plain = printed(data)
    coloured = printed(data, force_terminal=True, color_system="truecolor")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_widths(audited, width):
    lines = printed(audited("unbounded"), width=width).splitlines()
    assert max(map(len, lines)) <= min(width, 100)


def test_names_are_neither_markup_nor_terminal_escapes(audited):
    data = audited("unbounded")
    data["subject"]["name"] = "[bold red]net[/] \x1b]0;title\x07 :smile:"
    data["findings"][1]["place"]["module_path"] = "\x1b[31mred [link=x]"
    data["findings"][1]["message"] = "\x1b[2J \u202e gone"
    text = printed(data, force_terminal=True, color_system=None)
    assert "[bold red]net[/]" in text and ":smile:" in text and "[link=x]" in text
    assert "\x1b]0" not in text and "\x1b[2J" not in text and "\x1b[31m" not in text and "\u202e" not in text
    assert "\\x1b[31mred" in text


def test_terminals_without_unicode(audited):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    data = audited("unbounded")
    data["subject"]["name"] = "модель"
    print_audit(data, Console(file=stream, width=80))
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert "x -> embed" in text and "lambda = 10^8" in text and "\\u043c" in text
