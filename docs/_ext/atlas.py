"""The atlas on a page, made from the committed record: ``{atlas} summary``, ``{atlas} causes``, ``{atlas} table``.

Reads ``reproductions/atlas/atlas.jsonl`` as ``farfield atlas --out docs/reproductions/atlas`` writes it. All rows are
on the page without JavaScript; ``_static/atlas.js`` filters them.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from pathlib import Path

from docutils import nodes
from reproductions import table
from sphinx.util.docutils import SphinxDirective

from farfield.atlas import Atlas, AtlasRow, read_atlas

RECORD = "reproductions/atlas"
SHOWN = {"BOUNDED": "bounded", "UNBOUNDED": "unbounded", "UNKNOWN": "unknown"}


def outcome(row: AtlasRow) -> str:
    """The word of the second column."""
    return SHOWN.get(row.verdict or "", "not built" if row.stage == "build" else "error")


def why(row: AtlasRow) -> str:
    """What cuts it, where it escapes, or why nothing is known; as HTML."""
    if row.verdict is None:
        return html.escape(row.message or "")
    said = html.escape(row.reason or "")
    if row.path:
        said += f'<br><span class="atlas-path">{html.escape(row.path)}</span>'
    inputs = json.loads(row.inputs or "[]")
    if len(inputs) > 1:
        lines = "".join(
            f"<li><code>{html.escape(i['name'])}</code>: {SHOWN[i['verdict']]}; {html.escape(i['reason'])}</li>"
            for i in inputs
        )
        said += f"<details><summary>each of {len(inputs)} inputs alone</summary><ul>{lines}</ul></details>"
    return said


def checked(row: AtlasRow) -> str:
    """The last column: whether evaluation agrees, with what it showed on hovering."""
    if row.checked is None:
        return ""
    return f'<span title="{html.escape(row.evidence or "", quote=True)}">{html.escape(row.checked)}</span>'


def line(row: AtlasRow) -> str:
    """One row of the table."""
    word = outcome(row)
    asked = ", ".join(i["name"] for i in json.loads(row.inputs or "[]"))
    place = html.escape(f"{row.library}-{row.name}".replace(" ", "-"), quote=True)
    return (
        f'<tr id="{place}" data-library="{html.escape(row.library, quote=True)}" '
        f'data-task="{html.escape(row.task, quote=True)}" data-verdict="{word}">'
        f'<td><a class="atlas-name" href="#{place}">{html.escape(row.name)}</a>'
        f"<small>{html.escape(row.library)} · {html.escape(row.family)} · {html.escape(row.task)}</small></td>"
        f'<td class="atlas-{word.replace(" ", "-")}">{word}</td>'
        f"<td>{f'<code>{html.escape(asked)}</code>' if asked else ''}</td>"
        f"<td>{why(row)}</td><td>{checked(row)}</td></tr>"
    )


def choices(name: str, values: list[str]) -> str:
    """A list to choose from."""
    options = "".join(
        f'<option value="{html.escape(v, quote=True)}">{html.escape(v)}</option>' for v in values
    )
    return f'<label>{name} <select data-by="{name}"><option value="">all</option>{options}</select></label>'


def page(found: Atlas) -> str:
    """The filter and the table."""
    rows = found.rows
    words = [
        w for w in ("unbounded", "bounded", "unknown", "error", "not built") if w in set(map(outcome, rows))
    ]
    head = "".join(f"<th>{h}</th>" for h in ("architecture", "verdict", "asked about", "why", "evaluation"))
    return (
        '<div id="atlas" class="atlas"><form class="atlas-filter" onsubmit="return false">'
        '<label>search <input type="search" placeholder="bert, RMSNorm, skip …" data-by="text"></label>'
        + choices("library", sorted({r.library for r in rows}))
        + choices("task", sorted({r.task for r in rows}))
        + choices("verdict", words)
        + f'<output>{len(rows)} of {len(rows)}</output></form><table class="docutils atlas-table"><thead><tr>{head}'
        + f"</tr></thead><tbody>{''.join(map(line, rows))}</tbody></table></div>"
    )


def summary(found: Atlas) -> nodes.Node:
    """Libraries down, outcomes across."""
    words = ["bounded", "unbounded", "unknown", "error", "not built"]
    rows = []
    for library in [*sorted({r.library for r in found.rows}), "all"]:
        mine = [r for r in found.rows if library in ("all", r.library)]
        count = Counter(map(outcome, mine))
        version = next((r.version for r in mine if r.version), "") if library != "all" else ""
        rows.append([f"{library} {version}".strip(), str(len(mine)), *(str(count[w]) for w in words)])
    return table(["library", "tried", *words], rows, [24, 8, *[10] * len(words)])


class AtlasDirective(SphinxDirective):
    """``{atlas} summary|causes|coverage|table``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        folder = Path(self.env.srcdir) / RECORD
        self.env.note_dependency(str(folder / "atlas.jsonl"))
        found = read_atlas(folder)
        part = self.arguments[0]
        if part == "table":
            return [nodes.raw("", page(found), format="html")]
        if part == "causes":
            return [
                table(["cause", "architectures"], [[c, str(n)] for c, n in found.causes.items()], [80, 14])
            ]
        if part == "coverage":
            captured = [r for r in found.rows if r.captured]
            decided = [r for r in found.rows if r.verdict in ("BOUNDED", "UNBOUNDED")]
            holds, wrong = (sum(r.checked == w for r in decided) for w in ("holds", "contradicted"))
            share = found.coverage or 0.0
            ended = sum(r.verdict is None and r.stage != "build" for r in found.rows)
            text = (
                f"{len(found.rows)} architectures were tried. torch.export captures {len(captured)} of them, and "
                f"{share:.1%} of those have a verdict. Of {len(decided)} verdicts, evaluation of the module out to "
                f"10⁶ agrees with {holds} and contradicts {wrong}; it was not possible for "
                f"{len(decided) - holds - wrong} (token ids alone, or no numbers far out). {ended} more ended in the "
                "audit, with an error or at the "
                "time limit; they have no verdict, and are not among the captured."
            )
            return [nodes.paragraph(text, text)]
        return [summary(found)]


def setup(app):
    app.add_directive("atlas", AtlasDirective)
    app.add_js_file("atlas.js", loading_method="defer")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
