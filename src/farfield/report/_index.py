"""Many audits as one HTML file, a table to sort and to filter, and in a few lines on a terminal."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.text import Text

from farfield.report._pages import rendered, script
from farfield.report._terminal import Page
from farfield.report._words import clean, interval_text, number, provenance_rows

__all__ = ["print_index", "render_index", "write_index"]

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
    shown = [_row(clean(row), (pages or {}).get) for row in rows]
    return _page(
        shown, _counts(row["word"] for row in shown), len(shown), sum(r["failed"] for r in shown), run, name
    )


def write_index(
    folder: str | PathLike[str],
    rows: Iterable[Mapping[str, Any]],
    run: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    page_of: Callable[[str], str | None] | None = None,
    most: int = 1000,
) -> tuple[Path, ...]:
    """Write ``index.html``, and where there are more than ``most`` models the pages ``index-1.html``, … beside it.

    With several pages the first counts all models, shows those that have an error, are unbounded or unknown, as many
    as fit a page, and links to the others, which hold all models in their order. No more than two pages of rows are
    in memory.

    Parameters
    ----------
    folder
        Where the files go; pages of an earlier run are removed.
    rows, run, name
        As in :func:`render_index`; rows are gone through once.
    page_of
        Of the file name in a row's ``details``, where that model's page is.
    most
        Models on a page.

    Returns
    -------
    tuple of Path
        The files, ``index.html`` first.
    """
    place = Path(folder)
    for old in place.glob("index-*.html"):
        old.unlink()
    counts: Counter[str] = Counter()
    failed = 0
    trouble: list[dict[str, Any]] = []
    files: list[tuple[Path, str]] = []
    shown = (_row(clean(row), page_of or _nowhere) for row in rows)
    first = list(itertools.islice(shown, most))
    more = next(shown, None)
    if more is None:
        index = place / "index.html"
        counted = _counts(row["word"] for row in first)
        text = _page(first, counted, len(first), sum(r["failed"] for r in first), run, name)
        index.write_text(text, encoding="utf-8")
        return (index,)
    source = itertools.chain(first, [more], shown)
    while page := list(itertools.islice(source, most)):
        counts.update(row["word"] for row in page)
        failed += sum(row["failed"] for row in page)
        trouble += [r for r in page if r["failed"] or r["word"] != "bounded"][: most - len(trouble)]
        target = place / f"index-{len(files) + 1}.html"
        label = f"{page[0]['path']} … {page[-1]['path']}"
        counted = _counts(row["word"] for row in page)
        back = [("index.html", "all models")]
        shown_as = f"{name}, page {len(files) + 1}"
        text = _page(page, counted, len(page), sum(r["failed"] for r in page), run, shown_as, back)
        target.write_text(text, encoding="utf-8")
        files.append((target, label))
    every = {word: counts[word] for word in _WORDS.values()}
    links = [(file.name, label) for file, label in files]
    index = place / "index.html"
    index.write_text(_page(trouble, every, sum(counts.values()), failed, run, name, links), encoding="utf-8")
    return (index, *(file for file, _ in files))


def _nowhere(details: str) -> str | None:
    return None


def _page(
    shown: Sequence[Mapping[str, Any]],
    counts: Mapping[str, int],
    total: int,
    failed: int,
    run: Mapping[str, Any] | None,
    name: str,
    links: Sequence[tuple[str, str]] = (),
) -> str:
    source, script_hash = script("index.js")
    about = clean(dict((run or {}).get("provenance") or {}))
    return rendered(
        "index.html.j2", "audit.css", "index.css",
        name=clean(name) or "checkpoints",
        rows=shown,
        total=total,
        links=links,
        counts=counts,
        with_errors=failed,
        has_range=any(row["range"] for row in shown),
        has_certificate=any(row["certified"] for row in shown),
        provenance=provenance_rows(about),
        date=about.get("date", ""),
        script=source,
        script_hash=script_hash,
    )  # fmt: skip


def print_index(rows: Iterable[Mapping[str, Any]], console: Console | None = None, *, most: int = 20) -> None:
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
    counts: Counter[str] = Counter()
    kinds: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
        word: ([], [0]) for word in ("error", "unbounded", "unknown")
    }
    for row in (_row(clean(row), _nowhere) for row in rows):
        counts[row["word"]] += 1
        kind = "error" if row["failed"] else row["word"]
        if kind in kinds:
            named, count = kinds[kind]
            count[0] += 1
            named += [row][: most - len(named)]
    head = Text(f"{sum(counts.values()):,} models: ")
    for i, word in enumerate(_WORDS.values()):
        style = _STYLES[word] if counts[word] else "dim"
        head.append(", " if i else "").append(f"{counts[word]:,} {word}", style=style)
    page.put("", head)
    for word, (named, count) in kinds.items():
        for i, row in enumerate(named):
            text = Text(row["path"], style="bold").append(
                f"  {row['trouble'] or row['said']}", style="not bold"
            )
            page.put(word.capitalize() if i == 0 else " ", text, 0, i == 0)
        if count[0] > most:
            page.put(" ", Text(f"and {count[0] - most:,} more"))


def _counts(words: Iterable[str]) -> dict[str, int]:
    found = Counter(words)
    return {word: found[word] for word in _WORDS.values()}


def _row(row: Mapping[str, Any], page_of: Callable[[str], str | None]) -> dict[str, Any]:
    word = _WORDS[row.get("verdict") or "ERROR"]
    low, high = row.get("low"), row.get("high")
    proved = low is not None and high is not None
    said = " ".join(str(row[key]) for key in ("reason", "note") if row.get(key))
    failed = row.get("error")
    trouble = f"{failed} ({row.get('stage')}): {row.get('message')}" if failed else ""
    return {
        "path": row["path"],
        "page": quote(page_of(row.get("details") or "") or "", safe="/"),
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
