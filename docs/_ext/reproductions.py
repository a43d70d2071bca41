"""The reproductions page, made from committed results: ``{reproductions} p2`` shows every experiment of P2.

Reads ``<page folder>/p2/*.json`` as ``farfield reproduce p2 --out docs/reproductions`` writes them, with the figures
beside them. An experiment without a result is listed as not run. A file that cannot be read is a build warning.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from farfield.papers._sizes import differing, size_words

logger = logging.getLogger(__name__)

Record = dict[str, Any]


def number(value: Any) -> str:
    """A table cell: numbers to ten digits, tiny ones to three, text as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:.3g}" if 0 < abs(value) < 1e-6 else f"{value:.10g}"


def load(folder: Path) -> dict[str, Record]:
    """Name → record of every result in the folder; unreadable files are warned of and left out."""
    records: dict[str, Record] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            records[record["name"]] = record
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s is not a result of farfield reproduce: %r", path.name, error)
    return records


def titles(paper: str) -> dict[str, str]:
    """Name → title of the paper's experiments, in its order."""
    from farfield.papers import experiment_titles

    return {name: title for name, title in experiment_titles().items() if name.startswith(paper + ".")}


def tally(record: Record) -> tuple[int, int, int]:
    """How many claims hold as expected, fail as expected, and came out otherwise."""
    verdicts = record.get("verdicts", [])
    surprising = sum(bool(v["surprising"]) for v in verdicts)
    hold = sum(bool(v["holds"]) and not v["surprising"] for v in verdicts)
    return hold, len(verdicts) - hold - surprising, surprising


def summary_row(title: str, record: Record | None) -> tuple[str, str, str, str, str]:
    """A line of the summary: the paper's number, what it shows, the paper's size, ours, the verdict."""
    where, _, shows = title.partition(": ")
    place = where.partition(" ")[2] or where
    shows = shows or title
    if record is None:
        return place, shows, "", "", "not run"
    hold, wrong, surprising = tally(record)
    verdict = f"{hold + wrong} of {hold + wrong + surprising} as expected"
    if record.get("quick"):
        verdict = f"quick run: {verdict}"
    theirs = size_words(record["paper_size"], absent="not stated") or "no size in the paper"
    ours = size_words(record["size"], absent="not recorded") or "–"
    return place, shows, theirs, ours, verdict


def size_line(record: Record) -> str:
    """What differs from the paper's size, in words, or that nothing does; empty where there is no size to compare."""
    if not record.get("paper_size"):
        return ""
    other = differing(record)
    unsaid = [name for name, value in record["paper_size"].items() if value is None]
    kept = len(record["paper_size"]) - len(other) - len(unsaid)
    parts = []
    if other:
        theirs, ours = ({name: pair[k] for name, pair in other.items()} for k in (0, 1))
        words = size_words(ours, absent="not recorded"), size_words(theirs, absent="not stated")
        parts.append(f"Not the paper's: {words[0]} (the paper: {words[1]}).")
    if kept:
        parts.append("All else that its text states is kept." if other else "As the paper's text states it.")
    if unsaid:
        own = size_words({name: record["size"].get(name) for name in unsaid}, absent="not recorded")
        parts.append(f"Not stated there, and here: {own}.")
    return " ".join(parts)


def paragraph(*parts: str | nodes.Node, classes: tuple[str, ...] = ()) -> nodes.paragraph:
    made = nodes.paragraph(classes=list(classes))
    for part in parts:
        made += nodes.Text(part) if isinstance(part, str) else part
    return made


def table(
    header: list[str], rows: list[list[str | nodes.Node]], widths: list[int], classes: tuple[str, ...] = ()
) -> nodes.table:
    group = nodes.tgroup(cols=len(header))
    for width in widths:
        group += nodes.colspec(colwidth=width)

    def line(cells: list[str | nodes.Node]) -> nodes.row:
        row = nodes.row()
        for cell in cells:
            entry = nodes.entry()
            entry += paragraph(cell)
            row += entry
        return row

    head = nodes.thead()
    head += line(list(header))
    body = nodes.tbody()
    for cells in rows:
        body += line(cells)
    group += head
    group += body
    made = nodes.table(classes=["reproduction", *classes])
    made += group
    return made


def marked(text: str, kind: str) -> nodes.inline:
    return nodes.inline(text, text, classes=["verdict", f"verdict-{kind}"])


class Reproductions(SphinxDirective):
    """``{reproductions} <paper>``: a summary, then a section for every experiment of the paper."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.paper = self.arguments[0]
        page = Path(self.env.doc2path(self.env.docname))
        self.folder = page.parent / self.paper
        self.env.note_reread()
        records = load(self.folder)
        known = titles(self.paper)
        names = {**known, **{name: name for name in records if name not in known}}
        return [
            *self.summary(names, records),
            *(self.section(name, title, records.get(name)) for name, title in names.items()),
        ]

    def summary(self, names: dict[str, str], records: dict[str, Record]) -> list[nodes.Node]:
        rows: list[list[str | nodes.Node]] = []
        totals = [0, 0, 0]
        for name, title in names.items():
            number_, shows, theirs, ours, verdict = summary_row(title, records.get(name))
            link = nodes.reference(shows, shows, internal=True, refid=self.anchor(name))
            if name in records:
                counts = tally(records[name])
                totals = [a + b for a, b in zip(totals, counts, strict=True)]
                last = marked(verdict, "surprising") if counts[2] else verdict
            else:
                last = verdict
            rows.append([number_, link, theirs, ours, last])
        done = sum(name in records for name in names)
        lead = (
            f"{done} of {len(names)} experiments have a committed result. Of their {sum(totals)} claims "
            f"{totals[0]} hold as expected, {totals[1]} fail as expected, and {totals[2]} came out otherwise than "
            "expected."
        )
        columns = ["in the paper", "what it shows", "the paper's size", "our size", "verdict"]
        return [paragraph(lead), table(columns, rows, [12, 30, 22, 22, 14], ("summary",))]

    def anchor(self, name: str) -> str:
        return nodes.make_id(name.replace(".", "-"))

    def section(self, name: str, title: str, record: Record | None) -> nodes.section:
        made = nodes.section(ids=[self.anchor(name)], names=[nodes.fully_normalize_name(name)])
        made += nodes.title(title, title)
        command = nodes.literal("", f"farfield reproduce {name}")
        if record is None:
            made += paragraph("Not run yet. To run it: ", command, ".")
            return made
        made += paragraph(nodes.strong("", "In the paper. "), str(record.get("description", "")))
        if record.get("quick"):
            warning = nodes.warning()
            warning += paragraph(
                "A quick run at small sizes: it shows that the code runs, not the paper's result."
            )
            made += warning
        item = name.partition(".")[2]
        if line := size_line(record):
            made += paragraph(nodes.strong("", "Size. "), line)
        made += self.picture(item, record)
        if record.get("table"):
            columns = [str(c) for c in record["table"]["columns"]]
            rows = [[number(v) for v in row] for row in record["table"]["rows"]]
            made += table(columns, rows, [100 // len(columns)] * len(columns), ("numbers",))
        made += self.verdicts(record)
        made += self.provenance(item, record, command)
        return made

    def picture(self, item: str, record: Record) -> list[nodes.Node]:
        endings = [e for e in ("svg", "png") if (self.folder / f"{item}.{e}").exists()]
        if not endings:
            return []
        caption = str((record.get("figure") or {}).get("caption") or "")
        title = str((record.get("figure") or {}).get("title") or item)
        figure = nodes.figure(classes=["reproduction-figure"])
        figure += nodes.image(uri=f"{self.paper}/{item}.{endings[0]}", alt=f"{title}. {caption}")
        if caption:
            figure += nodes.caption(caption, caption)
        return [figure]

    def verdicts(self, record: Record) -> nodes.table:
        rows: list[list[str | nodes.Node]] = []
        for verdict in record.get("verdicts", []):
            holds = marked("holds", "holds") if verdict["holds"] else marked("does not hold", "fails")
            expected = marked("no", "surprising") if verdict["surprising"] else "yes"
            rows.append([str(verdict["claim"]), holds, str(verdict["measured"]), expected])
        return table(["claim", "holds?", "measured", "as expected?"], rows, [40, 12, 36, 12], ("verdicts",))

    def provenance(self, item: str, record: Record, command: nodes.Node) -> nodes.paragraph:
        origin = record.get("provenance") or {}
        settings = ", ".join(f"{k} = {_words(v)}" for k, v in (origin.get("settings") or {}).items())
        versions = ", ".join(f"{k} {v}" for k, v in (origin.get("versions") or {}).items() if v)
        facts = [
            settings,
            f"seed {origin['seed']}" if origin.get("seed") is not None else "",
            versions,
            f"Python {origin['python']}" if origin.get("python") else "",
            str(origin.get("platform") or ""),
            f"commit {origin['commit']}" if origin.get("commit") else "",
            str(origin.get("date") or ""),
        ]
        parts: list[str | nodes.Node] = ["Run ", command, ". ", "; ".join(f for f in facts if f), ". Files:"]
        for ending in ("json", "png", "svg"):
            if (self.folder / f"{item}.{ending}").exists():
                target = f"{self.paper}/{item}.{ending}"
                link = addnodes.download_reference("", "", reftarget=target, refdoc=self.env.docname)
                link += nodes.literal("", f"{item}.{ending}")
                parts += [" ", link]
        return paragraph(*parts, classes=("provenance",))


def _words(value: Any) -> str:
    return " ".join(_words(v) for v in value) if isinstance(value, list) else number(value)


def told(name: str, folder: Path) -> str:
    """``p2.fig2``, or ``p2.fig2:larger β`` for the claims with these words: how many came out as expected."""
    name, _, words = name.partition(":")
    path = folder / name.partition(".")[0] / f"{name.partition('.')[2]}.json"
    verdicts = json.loads(path.read_text(encoding="utf-8"))["verdicts"]
    about = [v for v in verdicts if words in v["claim"]]
    if not about:
        raise ValueError(f"{name} has no claim with the words {words!r}")
    return f"{sum(not v['surprising'] for v in about)} of {len(about)}"


def _verdicts_role(role, rawtext, text, lineno, inliner, options=None, content=()):
    name, folder = text.partition(":")[0], Path(__file__).resolve().parents[1] / "reproductions"
    return [nodes.literal("", name), nodes.Text(f" ({told(text, folder)})")], []


def setup(app):
    app.add_directive("reproductions", Reproductions)
    app.add_role("verdicts", _verdicts_role)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
