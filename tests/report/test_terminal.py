"""The terminal view: eighty columns, everything a person needs, nothing twice, no escapes from names."""

import io
import re
from collections import OrderedDict

import pytest
import torch
from rich.console import Console
from torch import nn

import farfield
from farfield.audit import audit
from farfield.graph import Program
from farfield.report import audit_text, print_audit
from farfield.report._advice import data_text


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
    assert "not a claim of accuracy" in words
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())
    for finding in data["findings"]:
        assert f"{finding['code']} {finding['severity']}" in words
        assert flowing(finding["action"]) in words
    outcomes = [r["outcome"] for r in data["rules"]]
    said = {"failed": "to look at"} if data["verdict"] == "BOUNDED" else {}  # a bounded model has not failed
    for word in ("passed", "failed", "not applicable", "unknown"):
        assert f"{outcomes.count(word)} {said.get(word, word)}" in words
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


def test_color_only_repeats_what_words_say(named):
    _, data = named
    plain = printed(data)
    colored = printed(data, force_terminal=True, color_system="truecolor")
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_widths(audited, width):
    # Code that is copied from the terminal is not wrapped.
    lines = [line for line in printed(audited("unbounded"), width=width).splitlines() if "= " not in line]
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


def test_print_shows_what_the_terminal_shows():
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    result = audit(model, torch.zeros(1, 6), rays=0)
    assert str(result) == printed(result.to_dict()).rstrip("\n")
    assert audit_text(result.to_dict(), width=60) == printed(result.to_dict(), width=60).rstrip("\n")


def test_printing_runs_no_model(monkeypatch):
    result = audit(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)), torch.zeros(1, 6))
    monkeypatch.setattr(Program, "evaluate", None)
    assert "UNBOUNDED" in str(result) and "UNBOUNDED" in result._repr_html_()


MODELS = {
    "functional": lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)),
    "nested": lambda: nn.Sequential(
        OrderedDict(body=nn.Sequential(nn.Linear(6, 16), nn.ReLU()), head=nn.Linear(16, 1))
    ),
    "images": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1)
    ),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_the_fix_is_a_line_of_code_that_works(name):
    model = MODELS[name]()
    example = torch.zeros(1, 3, 8, 8) if name == "images" else torch.zeros(1, 6)
    result = audit(model, example, rays=0)
    lines = [line.strip() for line in str(result).splitlines() if "nn.Sequential(" in line]
    assert len(lines) == 1, str(result)
    exec(lines[0], {"model": model, "nn": nn})
    assert audit(model, example, rays=0).verdict.name == "BOUNDED"


def test_the_repair_is_a_line_of_code_that_works():
    model, rows = MODELS["functional"](), torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    (line,) = (line.strip() for line in str(audit(model, rows)).splitlines() if "farfield.repair(" in line)
    found = {"model": model, "rows": rows, "farfield": farfield}
    exec(line, found)
    assert audit(found["fixed"], rows).verdict.name == "BOUNDED"


def test_a_norm_within_a_function_has_no_line_of_code(audited):
    data = audited("unknown")
    assert "Fix" not in printed(data)
    data = audited("unbounded")
    for node in data["graph"]["nodes"]:
        node["module_path"] = "" if node["role"] == "operation" else node["module_path"]
    assert "nn.LayerNorm(" not in printed(data) and "farfield.repair(model, rows)" in printed(data)


def test_the_command_takes_what_the_audit_took(audited):
    data = audited("unbounded")
    data["subject"]["target"] = "nets.py:Net --weights w.pt"
    text = printed(data)
    assert "  farfield repair nets.py:Net --weights w.pt --data ROWS.npy --out fixed.pt2\n" in text
    assert "ROWS.npy: a file with your data" in flowing(text)
    data["subject"]["data"] = "mine.csv"
    text = printed(data)
    assert "--data mine.csv --out fixed.pt2\n" in text and "ROWS" not in text
    data["subject"] |= {"target": "", "name": "a model.onnx"}
    assert "farfield repair 'a model.onnx' --data mine.csv --out fixed.onnx\n" in printed(data)


def test_slopes_in_units_of_the_data():
    rows = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = rows * torch.tensor([1.0, 10.0, 0.1]).double() + 5
    rows[:, 2] = 4.0  # one value on all rows: it stays there
    model = nn.Linear(3, 1).double().requires_grad_(False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[2.0, -1.0, 100.0]]))
        model.bias.zero_()
    data = audit(model, rows).data
    mean, spread = rows.mean(0), rows.std(0)
    middle = float(model(mean))
    reach = 10 * float(2 * spread[0] + spread[1])
    assert data["far"] == pytest.approx([middle - reach, middle + reach])
    assert data["on_rows"] == pytest.approx([float(model(rows).min()), float(model(rows).max())])
    assert data["rows"] == 500 and data["norms"][1] == pytest.approx(float(rows.norm(dim=1).max()))
    words = flowing(str(audit(model, rows)))
    assert f"on the 500 rows given. At 10 standard deviations from their mean: [{middle - reach:.3g}" in words


@pytest.mark.parametrize("rows", [torch.randn(7, 6), torch.zeros(50, 6)], ids=["few", "equal"])
def test_an_example_is_not_data(rows):
    result = audit(MODELS["functional"](), rows, rays=0)
    assert result.data is None and "Your data" not in str(result)


def test_fixed_sizes_and_failures_of_the_data():
    fixed = torch.export.export(MODELS["functional"]().eval(), (torch.randn(9, 6),))
    assert audit(fixed, torch.randn(9, 6), rays=0).data is None  # its nine rows may be one sample
    data = {"verdict": "BOUNDED", "data": {"note": "the model could not be run on the rows: why"}}
    assert data_text(data) == "No numbers: the model could not be run on the rows: why."
