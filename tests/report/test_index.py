"""The page of many audits: complete without a script, escaped, alone, and large."""

import base64
import hashlib
import io
import re

import pytest
from rich.console import Console

from farfield.audit import AuditRow, AuditTable
from farfield.report import print_index, render_index
from report.pages import Page

EVIL = "<script>alert(1)</script>\"'&\x1b[31m\u202e"


def row(i, **more):
    verdict = ("BOUNDED", "UNBOUNDED", "UNKNOWN", None)[i % 4]
    trouble = {} if verdict else {"error": "CheckpointError", "stage": "load", "message": f"broken {i}"}
    numbers = {"low": -1.0 - i, "high": 1.0, "bound_by": "audit"} if verdict == "BOUNDED" else {}
    plain = {
        "verdict": verdict,
        "reason": f"reason {i}" if verdict else None,
        "seconds": i / 7,
        **trouble,
        **numbers,
    }
    return AuditRow(**{"path": f"m{i}.pt2", "sha256": f"{i:064x}", "parameters": 1000 * i, **plain, **more})


@pytest.fixture(scope="module")
def table():
    return AuditTable(
        tuple(row(i) for i in range(1500)), provenance={"date": "2030-01-01", "versions": {"torch": "2"}}
    )


def test_every_row_is_on_the_page_without_a_script(table):
    text = render_index([r.to_dict() for r in table.rows], table.run(), name="models/")
    page = Page(text)
    assert page.tags.count("tr") == 1501
    for i in (0, 1, 2, 3, 749, 1499):
        assert f"m{i}.pt2" in page.words
    assert "375 bounded, 375 unbounded, 375 unknown, 375 error" in page.words
    assert "CheckpointError (load): broken 3" in page.words and "reason 1" in page.words
    assert ("tr", "data-verdict", "error") in page.attributes
    assert len(set(page.ids)) == len(page.ids)
    assert "2030-01-01" in page.words and "versions: torch" in page.words


def test_it_needs_nothing_else_and_runs_one_script(table):
    text = render_index([r.to_dict() for r in table.rows[:8]])
    assert not re.search(r"https?:|src=|url\(|@import", text)
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


@pytest.mark.parametrize(
    "where", ["path", "reason", "message", "error", "findings", "note", "sha256", "stage"]
)
def test_nothing_of_a_model_gets_out_of_its_cell(where):
    one = row(3, error="E", stage="load", message="m", reason="r").to_dict()
    page = render_index([{**one, where: EVIL}], name=EVIL)
    assert "<script>alert" not in page and "\x1b" not in page and "\u202e" not in page
    assert Page(page).tags.count("script") == 1


def test_links_go_to_pages_and_nowhere_else():
    rows = [row(0, details="a b.json").to_dict(), row(1, details="c.json").to_dict(), row(2).to_dict()]
    page = Page(render_index(rows, pages={"a b.json": "pages/a b.html"}))
    links = [value for tag, key, value in page.attributes if tag == "a" and key == "href"]
    assert links == ["#models", "pages/a%20b.html"]
    hostile = render_index(rows, pages={"c.json": "javascript:alert(1)"})
    assert "javascript:" not in hostile


def test_keys_sort_as_numbers_and_empty_ones_are_empty():
    page = render_index([row(0).to_dict(), row(3, parameters=None, seconds=None).to_dict()])
    keys = re.findall(r'data-key="([^"]*)"', page)
    assert keys == ["3", "1.0", "0", "0.0", "0", "", "", ""]


def test_a_range_is_rounded_outwards():
    page = render_index([row(0, low=-1.00001, high=0.99999, bound_by="certificate").to_dict()])
    assert "[-1.001, 1] ◆" in page


def test_on_a_terminal(table):
    console = Console(width=90, record=True, file=io.StringIO())
    print_index([r.to_dict() for r in table.rows], console, most=2)
    text = console.export_text()
    assert "1,500 models: 375 bounded, 375 unbounded, 375 unknown, 375 error" in text
    assert "m3.pt2  CheckpointError (load): broken 3" in text and text.count("and 373 more") == 3
