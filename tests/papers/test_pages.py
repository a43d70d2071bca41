"""The pages of reproductions: every figure, table and theorem has its place, and no size differs unsaid."""

import importlib.util
import json
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
ITEMS = {
    "P1": ["Figure 1", "Figure 2", "Table 1", "Section 4.3", "Theorem 3.1", "Theorem 3.2", "bound on the output"],
    "P2": [
        *(f"Figure {k}" for k in (*range(1, 10), "B.1", "C.1", "C.2", "C.3", "C.4", "C.5")),
        *(f"Table {k}" for k in (1, 2, "C.1")), "Theorem 1", "Corollary 2", "Corollary 3", "Theorem 4", "Theorem B.1",
        "Corollary B.2", "Lemma A.1", "Lemma B.3", "Lemma B.5", "Lemma B.6", "Lemma B.7",
    ],
    "P3": [
        *(f"Figure {k}" for k in range(1, 6)), "Figures 6–12 and tables", "Proposition 1", "Proposition 2",
        "Theorem 1", "Theorem 2", "VC dimension", "LN-G in networks",
    ],
}  # fmt: skip
"""What the papers have, from their texts; of P3 only the captions of five figures are at hand."""


def table():
    """(paper, item) → (experiments named, what the line says), of the table in index.md."""
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and cells[0] in ITEMS:
            found[cells[0], cells[1]] = (re.findall(r"`(p\d\.\w+)`", cells[3]), cells[3])
    return found


def extension():
    pytest.importorskip("sphinx")
    path = DOCS / "_ext" / "reproductions.py"
    spec = importlib.util.spec_from_file_location("reproductions", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["reproductions"] = module
    spec.loader.exec_module(module)
    return module


def test_every_figure_table_and_theorem_is_listed():
    assert set(table()) == {(paper, item) for paper, items in ITEMS.items() for item in items}


@pytest.mark.parametrize(("paper", "item"), [(p, i) for p, items in ITEMS.items() for i in items])
def test_what_is_listed_has_a_module_a_record_and_a_verdict_or_says_why_not(paper, item):
    names, words = table()[paper, item]
    for name in names:
        assert experiment(name).name == name
        if name in RECORDS:
            assert RECORDS[name]["verdicts"]
        else:
            assert "not run" in words, f"{name} has no committed record, and its line does not say so"
    assert names or len(words) > 30, "no experiment, and no line that says why not"


def test_every_figure_of_p2_is_named_by_its_number():
    for name, title in experiment_titles().items():
        if match := re.fullmatch(r"p2\.(fig|table)([A-Z]?)(\d)", name):
            kind, letter, number = match.groups()
            place = f"P2 {'Figure' if kind == 'fig' else 'Table'} {letter + '.' if letter else ''}{number}"
            assert title.startswith(place + ":") and name in table()["P2", place.removeprefix("P2 ")][0]


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
