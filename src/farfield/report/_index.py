"""Many audits as one HTML file, a table to sort and to filter, and in a few lines on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.text import Text

from farfield.report._pages import environment, script, styles
from farfield.report._terminal import Page
from farfield.report._words import clean, interval_text, number, provenance_rows

__all__ = ["print_index", "render_index"]

_WORDS = {"BOUNDED": "bounded", "UNBOUNDED": "unbounded", "UNKNOWN": "unknown", "ERROR": "error"}
"""In the order of the page: what is wrong comes first when sorted by verdict."""
_RANK = {"error": 0, "unbounded": 1, "unknown": 2, "bounded": 3}
_STYLES = {"bounded": "green", "unbounded": "red", "unknown": "yellow", "error": "bold"}


def render_index(
    rows: Sequence[Mapping[str, Any]],
    run: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    pages: Mapping[str, str] | None = None,
) -> str:
    """Render many audits as a self-contained page with a table to sort by every column and to filter.

    All rows are on the page without JavaScript; a little of that sorts and filters. Names and messages are escaped,
    and the page's own policy lets no other script run.

    Parameters
    ----------
    rows
        From ``AuditRow.to_dict()``.
    run
        From ``AuditTable.run()``: counts and provenance.
    name
        What was audited.
    pages
        The file name in a row's ``details`` → where that model's page is, from here.

    Returns
    -------
    str
        A whole HTML document.

    Examples
    --------
    >>> page = render_index([{"path": "a.pt2", "verdict": "BOUNDED", "reason": "cut by norm"}], name="models")
    >>> "a.pt2" in page and "1 bounded" in page
    True
    """
    shown = [_row(clean(row), pages or {}) for row in rows]
    counts = _counts(shown)
    source, script_hash = script("index.js")
    about = clean(dict((run or {}).get("provenance") or {}))
    page: str = environment().get_template("index.html.j2").render(
        name=clean(name) or "checkpoints",
        rows=shown,
        counts=counts,
        with_errors=sum(row["failed"] for row in shown),
        has_range=any(row["range"] for row in shown),
        has_certificate=any(row["certified"] for row in shown),
        provenance=provenance_rows(about),
        date=about.get("date", ""),
        css=styles("audit.css", "index.css"),
        script=source,
        script_hash=script_hash,
    )  # fmt: skip
    return page


def print_index(rows: Sequence[Mapping[str, Any]], console: Console | None = None, *, most: int = 20) -> None:
    """Print how many models came out how, and those that failed or are unbounded.

    Parameters
    ----------
    rows
        From ``AuditRow.to_dict()``.
    console
        Where to print; standard output by default.
    most
        Models that are named for each outcome; the rest is counted.

    Examples
    --------
    >>> print_index([{"path": "a.pt2", "verdict": "BOUNDED"}])
    1 models: 1 bounded, 0 unbounded, 0 unknown, 0 error
    """
    page = Page(Console(highlight=False) if console is None else console)
    shown = [_row(clean(row), {}) for row in rows]
    counts = _counts(shown)
    head = Text(f"{len(shown):,} models: ")
    for i, (word, count) in enumerate(counts.items()):
        head.append(", " if i else "").append(f"{count:,} {word}", style=_STYLES[word] if count else "dim")
    page.put("", head)
    for word, wanted in (
        ("error", [r for r in shown if r["failed"]]),
        ("unbounded", [r for r in shown if r["word"] == "unbounded" and not r["failed"]]),
        ("unknown", [r for r in shown if r["word"] == "unknown" and not r["failed"]]),
    ):
        for i, row in enumerate(wanted[:most]):
            text = Text(row["path"], style="bold").append(
                f"  {row['trouble'] or row['said']}", style="not bold"
            )
            page.put(word.capitalize() if i == 0 else " ", text, 0, i == 0)
        if len(wanted) > most:
            page.put(" ", Text(f"and {len(wanted) - most:,} more"))


def _counts(shown: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {word: sum(row["word"] == word for row in shown) for word in _WORDS.values()}


def _row(row: Mapping[str, Any], pages: Mapping[str, str]) -> dict[str, Any]:
    word = _WORDS[row.get("verdict") or "ERROR"]
    low, high = row.get("low"), row.get("high")
    proved = low is not None and high is not None
    said = " ".join(str(row[key]) for key in ("reason", "note") if row.get(key))
    failed = row.get("error")
    trouble = f"{failed} ({row.get('stage')}): {row.get('message')}" if failed else ""
    return {
        "path": row["path"],
        "page": _link(pages.get(row.get("details") or "")),
        "word": word,
        "rank": _RANK[word],
        "failed": bool(failed),
        "said": said,
        "trouble": trouble,
        "findings": row.get("findings") or "",
        "range": interval_text([low, high]) if proved else "",
        # The largest absolute value orders ranges; without one a row comes last.
        "reach": max(abs(low), abs(high)) if low is not None and high is not None else "",
        "certified": row.get("bound_by") == "certificate",
        "parameters": "–" if row.get("parameters") is None else number(row["parameters"]),
        "parameters_value": "" if row.get("parameters") is None else row["parameters"],
        "seconds": "–" if row.get("seconds") is None else f"{row['seconds']:.2f}",
        "seconds_value": "" if row.get("seconds") is None else row["seconds"],
        "sha256": row.get("sha256") or "",
        "search": " ".join([row["path"], word, said, trouble, row.get("findings") or "", row.get("sha256") or ""]),
    }  # fmt: skip


def _link(target: str | None) -> str:
    return "" if not target else quote(target, safe="/")
