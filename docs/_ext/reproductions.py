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
            link = nodes.reference(title, title, internal=True, refid=self.anchor(name))
            if name not in records:
                rows.append([link, "not run", "", ""])
                continue
            counts = tally(records[name])
            totals = [a + b for a, b in zip(totals, counts, strict=True)]
            hold, wrong, surprising = counts
            rows.append(
                [
                    link,
                    str(hold),
                    str(wrong),
                    marked(str(surprising), "surprising") if surprising else "0",
                ]
            )
        done = sum(name in records for name in names)
        lead = (
            f"{done} of {len(names)} experiments have a committed result. Of their {sum(totals)} claims "
            f"{totals[0]} hold as expected, {totals[1]} fail as expected, and {totals[2]} came out otherwise than "
            "expected."
        )
        columns = ["experiment", "hold", "fail, as expected", "otherwise"]
        return [paragraph(lead), table(columns, rows, [64, 10, 14, 12], ("summary",))]

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


def setup(app):
    app.add_directive("reproductions", Reproductions)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
