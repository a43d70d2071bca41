"""The pages of reproductions: every figure, table and theorem has its place, and no size differs unsaid."""

import functools
import importlib
import importlib.util
import json
import pydoc
import re
import sys
from pathlib import Path

import pytest

from farfield.papers import experiment, experiment_names, experiment_titles
from farfield.papers._sizes import differing, size_words, sizes

DOCS = Path(__file__).resolve().parents[2] / "docs"
FOLDER = DOCS / "reproductions"
RECORDS = {
    f"{path.parent.name}.{path.stem}": json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(FOLDER.glob("p?/*.json"))
}
FIGURES = {
    "P1": ["Figure 1", "Figure 2", "Theorem 3.1", "Theorem 3.2", "bound on the output", "UTKFace", "protein data"],
    "P2": [
        *(f"Figure {k}" for k in (*range(1, 10), "C.1", "C.2", "C.3", "C.4", "C.5")), "Corollary B.2, Figure B.1",
        *(f"Table {k}" for k in (1, 2, "C.1")), "Theorem 1", "Corollary 2", "Corollary 3", "Theorem 4", "Theorem B.1",
        "Lemma B.3", "Theorem B.4", "Lemma B.5", "Lemma B.6", "Lemma B.7", *(f"Definition {k}" for k in range(1, 6)),
    ],
    "P3": [
        *(f"Figure {k}" for k in range(1, 6)), "Figures 6–12", "Definitions 1–3", "Proposition 1", "Proposition 2",
        "Theorem 1", "Theorem 2", "Corollaries 1, 2 and Lemma 1", "two algorithms", "VC dimension", "LN-G",
    ],
}  # fmt: skip
"""What the papers have, from their texts; of P3 only the abstract and the captions of five figures are at hand."""
STATES = ("whole", "partly", "missing")


def rows():
    """(paper, number, item, functions, tests, runs, state) of every line of the page of items."""
    paper, found = "", []
    for line in (FOLDER / "items.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            paper = line[3:]
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if paper and len(cells) == 6 and cells[0].isdigit():
            number, item, *parts = cells
            here, tests, runs = (re.findall(r"\}`~?([^`]+)`", part) for part in parts[:3])
            found.append((paper, int(number), item, here, tests, runs, parts[3]))
    return found


@functools.cache
def extension(name="reproductions"):
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location(name, DOCS / "_ext" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_every_figure_table_and_theorem_is_listed():
    assert [row[1] for row in rows()] == list(range(1, len(rows()) + 1)) and len(rows()) == 128
    for paper, wanted in FIGURES.items():
        items = [item for own, _, item, *_ in rows() if own == paper]
        for start in wanted:
            assert any(item.startswith(start) for item in items), (paper, start)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}-{row[1]}")
def test_a_line_names_what_is_there_and_says_what_is_not(row):
    paper, _, item, here, tests, runs, state = row
    kind, _, why = state.partition(":")
    assert kind in STATES and (kind == "whole" or len(why) > 15), item
    assert here or kind == "missing" or why, item
    for name in here:
        assert callable(pydoc.locate(name)), name
    for name in tests:
        assert extension("tests_of").tests_of([word.strip() for word in name.split(",")]), (
            f"no test calls {name}"
        )
    for name in runs:
        assert name.startswith(paper.lower()) and extension().told(name, FOLDER)
    # What was run and came out otherwise than expected stands in the record; a line without a run has a test.
    assert runs or tests or kind == "missing" or "context" in why, item


def test_every_experiment_belongs_to_a_line_or_to_no_figure():
    used = {name.partition(":")[0] for row in rows() for name in row[5]}
    beside = set(re.findall(r"`(p\d\.\w+)`", (FOLDER / "index.md").read_text(encoding="utf-8")))
    others = {"p1.scaling", "p1.utkface_one_label", "p1.parts"}
    assert set(experiment_names()) <= used | beside | others


def test_every_figure_of_p2_is_named_by_its_number():
    for name, title in experiment_titles().items():
        if match := re.fullmatch(r"p2\.(fig|table)([A-Z]?)(\d)", name):
            kind, letter, number = match.groups()
            place = f"P2 {'Figure' if kind == 'fig' else 'Table'} {letter + '.' if letter else ''}{number}"
            assert title.startswith(place + ":")


def test_no_record_is_left_under_a_name_that_is_gone():
    assert set(RECORDS) <= set(experiment_names())
    assert all(record["name"] == name for name, record in RECORDS.items())


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_holds_its_own_size_and_the_papers(name):
    record = RECORDS[name]
    assert record["paper_size"] == json.loads(json.dumps(dict(experiment(name).paper_size)))
    assert record["size"] == sizes(record["paper_size"], record["provenance"]["settings"])


@pytest.mark.parametrize("name", RECORDS)
def test_no_size_differs_without_the_page_saying_so(name):
    page, record = extension(), RECORDS[name]
    place, shows, theirs, ours, verdict = page.summary_row(experiment_titles()[name], record)
    assert place and shows and "as expected" in verdict
    line = page.size_line(record)
    for setting, (paper, here) in differing(record).items():
        for value, shown in ((paper, theirs), (here, ours)):
            words = size_words({setting: value}, absent="not recorded")
            assert words in shown and words in line
    assert f"{{reproductions}} {name[:2]}" in (FOLDER / f"{name[:2]}.md").read_text(encoding="utf-8")


def test_a_size_that_differs_is_seen():
    record = {"paper_size": {"n": 100, "width": None}, "size": {"n": 10, "width": 5}, "verdicts": []}
    assert differing(record) == {"n": (100, 10)}
    assert "n 10 (the paper: n 100)" in extension().size_line(record)
    same = {**record, "size": {"n": 100, "width": 5}}
    assert differing(same) == {} and extension().size_line(same).startswith("As the paper's text states it.")
