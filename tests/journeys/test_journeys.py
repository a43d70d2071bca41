"""The journey table: every source through every verb with every kind of data, from Python and from a shell.

A cell works, or is refused by an error of farfield's whose advice is then followed. No cell is a traceback. All cells
run each night; other runs take a fixed share of them, in which every source meets every verb and every verb every
kind of data.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import farfield as ff
from farfield._budget import Budget
from farfield._weights import CheckpointError
from farfield.certify import UnboundedError
from farfield.cli._app import app
from farfield.errors import FarfieldError, InvalidValueError
from journeys.journey_data import DATA, FILES, data
from journeys.journey_sources import ROWS, SOURCES, folder

FAR = torch.cat([ROWS[:5], 1e4 * ROWS[:5]])
STEPS = Budget(steps=2)
REPAIR = r"farfield(\.repair\(| repair )"
"""The fix that an audit names: of a module in Python, of a file in a shell."""


def expected(source):
    return "BOUNDED" if source.bounded else "UNBOUNDED"


def answers(model, x):
    """The prediction of a module, guarded or not."""
    with torch.no_grad():
        out = model(x)
    while not isinstance(
        out, torch.Tensor
    ):  # a guard returns a pair, an ONNX file with several outputs names them
        out = next(iter(out.values())) if isinstance(out, dict) else out[0]
    return out


# ------------------------------------------------------------------ from Python


def audit(source, rows):
    found = ff.audit(source.given, rows)
    assert found.verdict.name == expected(source), str(found)
    assert source.bounded or re.search(REPAIR, str(found)), str(found)


def assert_bounded(source, rows):
    if source.bounded:
        assert ff.assert_bounded(source.given, rows).verdict.name == "BOUNDED"
        return
    with pytest.raises(AssertionError, match=REPAIR):
        ff.assert_bounded(source.given, rows)


def repair(source, rows):
    fixed = ff.repair(source.given, rows)
    assert fixed.after.verdict.name == "BOUNDED", str(fixed)
    before, after = answers(as_called(source), ROWS), answers(fixed.model, ROWS)
    same = (before == after).all(-1).double().mean()
    assert same >= 0.98, f"{same:.1%} of the rows are unchanged"
    assert source.bounded or fixed.inserted
    assert answers(fixed.model, 1e20 * ROWS[:5]).abs().max() < 1e3


def guard(source, rows):
    guarded = ff.guard(source.given, rows)
    score = guarded(FAR)[1]
    assert len(answers(guarded, FAR)) == 10 and (score[:5] <= 1).all() and (score[5:] > 1).all()


def certify(source, rows, **options):
    if source.bounded:
        found = ff.certify(source.given, rows, time_budget=STEPS, **options)
        assert torch.isfinite(torch.as_tensor(found.upper)).all()
        assert ff.certify.verify_certificate(source.given, found)
        return
    if source.scored and not options:
        ff.certify(source.given, rows, time_budget=STEPS)
    with pytest.raises(UnboundedError, match=r"farfield\.repair\(model, rows\)"):
        ff.certify(source.given, rows, time_budget=STEPS, **options)


def as_called(source):
    """A module that answers as the source does."""
    from farfield.graph import as_module

    return as_module(source.made).eval() if not isinstance(source.made, tuple) else in_python(source.made)


def in_python(words):
    """What the advice for ``file.py:Class`` says: import it, make the module, load the weights."""
    spec = importlib.util.spec_from_file_location("nets", words[0].rpartition(":")[0])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.Net().eval()
    if "fixed" in words[2]:
        return ff.repair.restore(made, words[2])
    if words[2].endswith(".pt"):
        made.load_state_dict(torch.load(words[2], weights_only=True))
    else:
        from safetensors.torch import load_file

        made.load_state_dict(load_file(words[2]))
    return made


PYTHON = {
    "audit": audit,
    "repair": repair,
    "certify": certify,
    "guard": guard,
    "assert_bounded": assert_bounded,
}

# ------------------------------------------------------------------ from a shell


def words_of(source):
    return source.made if isinstance(source.made, tuple) else (str(source.made),)


def run(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(done.exception, FarfieldError):
        raise done.exception
    assert done.exit_code == code, (words, done.output, done.exception)
    return done.output


def said_next(text, verb):
    """The command that an output says comes next, in words."""
    text = re.sub(r"\n +", " ", text)
    return shlex.split(re.search(rf"farfield ({verb} [^#(,;\n]+?)(?:  |\n|$)", text)[1])


def shell_audit(source, rows):
    found = json.loads(
        run("audit", *words_of(source), "--data", rows, "--json", code=0 if source.bounded else 1)
    )
    assert found["verdict"].upper() == expected(source)


def shell_repair(source, rows):
    out = folder() / "out.pt2"
    run("repair", *words_of(source), "--data", rows, "--out", out)
    assert "BOUNDED" in run("audit", out, "--fail-on", "unknown")


def shell_certify(source, _):
    out = folder() / "cert.json"
    shape = ("--input", "1x3") if isinstance(source.made, tuple) else ()
    name = () if not source.scored else ("--output", prediction(source))
    words = ("certify", *words_of(source), *shape, *name, "--time", "0.3", "--out", out)
    if not source.bounded:
        assert "farfield repair" in run(*words, code=1)
        return
    said = run(*words)
    assert "accepted" in run(*said_next(said, "verify"))


def prediction(source):
    """The name that a refusal gives the first output."""
    with pytest.raises(InvalidValueError) as refused:
        run("certify", *words_of(source), "--time", "0.1")
    return re.search(r"output='(\w+)'", str(refused.value))[1]


def shell_audit_all(source, _):
    """A folder with the file in it, and the weights of a class beside their builder."""
    given = folder() / "many"
    given.mkdir(exist_ok=True)
    for old in given.iterdir():
        old.unlink()
    if isinstance(source.made, tuple):
        target, _, path = source.made
        extra = ("--builder", target, "--input", "1x3")
    else:
        path, extra = source.made, ()
    shutil.copy(path, given / f"model{Path(path).suffix}")
    out = folder() / "table"
    words = ("--engine", "local", "--workers", "1", "--json", "--fresh", "--fail-on", "none")
    said = run("audit-all", given, "--out", out, *extra, *words)
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if rows[0]["error"]:
        raise CheckpointError(rows[0]["message"])
    assert [row["verdict"] for row in rows] == [expected(source)], rows


SHELL = {
    "farfield audit": shell_audit,
    "farfield repair": shell_repair,
    "farfield certify, verify": shell_certify,
    "farfield audit-all": shell_audit_all,
}
IN_A_SHELL = [
    name for name in SOURCES if "." in name and not name.startswith("restored") and "exported" not in name
]
"""Sources that are files."""

# ------------------------------------------------------------------ the table

CELLS = [
    *((source, verb, kind) for source in SOURCES for verb in PYTHON for kind in DATA),
    *(
        (source, verb, kind)
        for source in IN_A_SHELL
        for verb in SHELL
        for kind in (FILES if verb in ("farfield audit", "farfield repair") else ["none"])
    ),
]


def chosen(source, verb, kind):
    """Whether a cell runs in every run: of each source and verb one kind of data, three where that is quick; they go
    round.
    """
    number = list(SOURCES).index(source) + 3 * list({**PYTHON, **SHELL}).index(verb)
    if kind == "none":
        return verb != "farfield audit-all" or number % 3 == 0
    kinds = list(DATA) if verb in PYTHON else list(FILES)
    quick = verb in ("audit", "assert_bounded", "guard")
    return (kinds.index(kind) - number) % len(kinds) in ((0, 4, 8) if quick else (0,))


def test_the_table(record_property):
    """What is in it; printed with the names of the sources, verbs and kinds of data."""
    count = len(CELLS)
    now = sum(chosen(*cell) for cell in CELLS)
    print(f"\njourneys: {count} cells, {now} of them in every run")
    record_property("cells", count)
    assert count >= 400 and len(set(CELLS)) == count
    for source in SOURCES:
        assert {v for s, v, k in CELLS if s == source and chosen(s, v, k)} >= set(PYTHON)
    for verb in PYTHON:
        assert {k for s, v, k in CELLS if v == verb and chosen(s, v, k)} == set(DATA)


@pytest.mark.parametrize(
    ("source", "verb", "kind"),
    [
        pytest.param(*cell, id=", ".join(cell), marks=() if chosen(*cell) else pytest.mark.nightly)
        for cell in CELLS
    ],
)
def test_cell(source, verb, kind):
    entry = SOURCES[source]
    rows = None if kind == "none" else data(kind)
    try:
        (PYTHON | SHELL)[verb](entry, rows)
    except FarfieldError as error:
        follow(entry, verb, rows, error)


def follow(source, verb, rows, error):
    """Do what a refusal says; one that says nothing that works fails the cell."""
    text = str(error)
    if isinstance(source.made, tuple) and verb in PYTHON and "import it" in text:
        PYTHON[verb](type(source)(lambda: in_python(source.made), source.bounded), rows)
        return
    if verb == "certify" and (named := re.search(r"output='(\w+)'", text)):
        certify(source, rows, output=named[1])
        return
    if verb == "farfield audit-all" and "save the repaired model as .pt2" in text:
        shell_audit_all(SOURCES["repaired.pt2"], rows)
        return
    raise error
