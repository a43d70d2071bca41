"""An audit as one HTML file that needs nothing else: no network, no fonts, no scripts from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farfield.report._advice import caution, data_text, fixes, next_step
from farfield.report._certificate import certificate_view
from farfield.report._chart import chart
from farfield.report._collapse import KINDS, Drawing, DrawnBox, collapse
from farfield.report._layout import HEIGHT, lay_out
from farfield.report._pages import rendered, script
from farfield.report._words import (
    AuditData,
    clean,
    compact,
    interval_text,
    joint_verdicts,
    listed,
    node_label,
    number,
    path_text,
    place_text,
    power_of_ten,
    provenance_rows,
    short_path_text,
    spoken,
    why,
    witness_text,
)

__all__ = ["render_html"]

_LONGEST = 28
"""Characters of a box's label; the beginning of longer ones is left out."""
_SIDE_BY_SIDE = 560.0
"""Up to this width the graph stands beside the chart, wider ones above it."""
_TALL = 720.0
"""From this height on the findings stand beside the graph, below the chart; else they have the full width."""
_STEPS = 10
"""Steps of an escape path that are printed; the middle of a longer one is counted."""
_SHOWN = 24
"""Entries of a direction that are printed."""
_KIND_WORDS = {
    "constant": "no input moves it",
    "bounded": "stays in a fixed range",
    "sublinear": "grows, slower than the input",
    "linear": "grows like the input",
    "polynomial": "grows like a power of the input",
    "exponential": "grows faster than any power",
    "unknown": "could not be decided",
}


def render_html(audit: dict[str, Any], certificate: dict[str, Any] | None = None) -> str:
    """Render an audit as a self-contained page.

    Everything the audit says is on it without JavaScript; a little of that only filters and follows the pointer.
    Names from the model are escaped, and the page's own policy lets no other script run.

    Parameters
    ----------
    audit
        From ``Audit.to_dict()``.
    certificate
        From ``Certificate.to_dict()``, of the same model: its bounds become a section of the page.

    Returns
    -------
    str
        A whole HTML document.

    Examples
    --------
    >>> import torch
    >>> from farfield.audit import audit
    >>> page = render_html(audit(torch.nn.Linear(3, 1), torch.zeros(1, 3)).to_dict())
    >>> "UNBOUNDED" in page
    True
    """
    data = clean(audit)
    view = _view(data)
    if certificate is None:
        return rendered("audit.html.j2", "audit.css", **view, certificate=None)
    bounds = certificate_view(certificate, name=str(data["subject"]["name"]))
    return rendered("audit.html.j2", "audit.css", "certificate.css", **view, certificate=bounds)


def _view(audit: AuditData) -> dict[str, Any]:
    """Everything the template prints, ready to print."""
    source, script_hash = script("audit.js")
    outcomes = [r["outcome"] for r in audit["rules"]]
    return {
        "audit": audit,
        "subject": audit["subject"],
        "why": why(audit),
        "caution": caution(audit),
        "next_step": next_step(audit),
        "data_text": data_text(audit),
        "fixes": fixes(audit),
        "path": _path(audit),
        "findings": _findings(audit),
        "graph": _graph(audit),
        "chart": chart(audit["rays"]),
        "chart_words": _chart_words(audit),
        "kinds": [(kind, _KIND_WORDS[kind]) for kind in KINDS],
        "verdicts": _verdicts(audit),
        "proofs": _proofs(audit),
        "counts": {o: outcomes.count(o) for o in ("failed", "passed", "not applicable", "unknown")},
        "titles": {r["code"]: r["title"] for r in audit["rules"]},
        "assumptions": _assumptions(audit),
        "provenance": provenance_rows(audit["provenance"]),
        "script": source,
        "script_hash": script_hash,
    }


def _path(audit: AuditData) -> dict[str, Any] | None:
    for verdict in joint_verdicts(audit):
        for path in verdict["paths"][:1]:
            steps = spoken(audit, path["labels"])
            hidden = max(len(steps) - _STEPS, 0)
            if hidden:  # the empty step stands for them
                steps = [*steps[: _STEPS // 2], "", *steps[-_STEPS // 2 :]]
            return {
                "steps": steps,
                "hidden": hidden,
                "bypassed": spoken(audit, path["bypassed"]),
                "proved": verdict["status"] == "unbounded",
            }
    return None


def _findings(audit: AuditData) -> list[dict[str, Any]]:
    paths = [p for v in audit["growth"]["verdicts"] for p in v["paths"]]
    found = []
    for finding in audit["findings"]:
        message = finding["message"]
        for path in paths:
            message = message.replace(path_text(path), short_path_text(audit, path))
        found.append({
            **finding,
            "message": message,
            "place_text": place_text(finding["place"]),
            "evidence": [
                (key.replace("_", " "), " → ".join(value) if key == "path" and value else compact(value))
                for key, value in finding["evidence"].items()
            ],
        })  # fmt: skip
    return found


def _graph(audit: AuditData) -> dict[str, Any] | None:
    drawing = collapse(audit)
    if not drawing.boxes:
        return None
    labels = {b.key: _shortened(b.label) for b in drawing.boxes}
    widths = {b.key: _box_width(labels[b.key], b) for b in drawing.boxes}
    top = frozenset(b.key for b in drawing.boxes if b.role == "input")
    layout = lay_out(widths, drawing.links, top)
    boxes = [
        {
            "box": box,
            "label": labels[box.key],
            "x": layout.centers[box.key][0] - widths[box.key] / 2,
            "y": layout.centers[box.key][1] - HEIGHT / 2,
            "width": widths[box.key],
            "title": _title(box),
            "tag": _tag(box),
            "tag_width": _tag_width(box),
        }
        for box in drawing.boxes
    ]
    links = sorted(zip(drawing.links, layout.routes, strict=True), key=lambda pair: pair[0][2])
    return {
        "boxes": boxes,
        "links": [{"from": a, "to": b, "on_path": flag, "route": route} for (a, b, flag), route in links],
        "width": layout.width,
        "height": layout.height,
        "box_height": HEIGHT,
        "wide": layout.width > _SIDE_BY_SIDE,
        "tall": layout.height > _TALL,
        "notes": drawing.notes,
        "kinds": [k for k in KINDS if any(b.growth == k for b in drawing.boxes)],
        "marks": _used(drawing),
        "summary": _summary(drawing),
    }


def _used(drawing: Drawing) -> set[str]:
    """Which entries of the legend this drawing needs."""
    words = {word for box in drawing.boxes for word in box.tags}
    used = {box.role for box in drawing.boxes}
    used |= {"path"} if any(flag for *_, flag in drawing.links) else set()
    used |= {"bypassed"} if any("bypassed" in word for word in words) else set()
    used |= {"here"} if "+ norm after" in words else set()
    used |= {"cuts"} if "cuts the paths" in words else set()
    used |= {"open"} if "open" in words else set()
    return used


def _summary(drawing: Drawing) -> str:
    path = [b.label for b in drawing.boxes if b.on_path]
    text = f"The program as {len(drawing.boxes)} boxes and {len(drawing.links)} arrows, inputs at the top."
    return text + (f" The escape path runs through {listed(path, 8)}." if path else "")


def _title(box: DrawnBox) -> str:
    facts = "\n".join(f"{key}: {value}" for key, value in box.facts.items())
    extra = [*(["on the escape path"] if box.on_path else []), *box.tags]
    return f"{box.label}\n{facts}" + (f"\n{', '.join(extra)}" if extra else "")


def _shortened(label: str) -> str:
    """The end of a long label, from a dot on where one is near: the end is what tells modules apart."""
    if len(label) <= _LONGEST:
        return label
    end = label[1 - _LONGEST :]
    dot = end.find(".")
    return f"…{end[dot + 1 :] if 0 <= dot < _LONGEST // 2 else end}"


def _box_width(label: str, box: DrawnBox) -> float:
    words = max(_text_width(label, 13.8), _text_width(box.detail, 11.0))
    return max(96.0, 38 + words + 10 + (_tag_width(box) + 8 if box.tags else 0))


def _tag(box: DrawnBox) -> str:
    return " · ".join(box.tags)


def _tag_width(box: DrawnBox) -> float:
    return _text_width(_tag(box), 12.6) + 14


def _text_width(text: str, size: float) -> float:
    """A safe guess: fonts differ between machines, and DejaVu, the widest common one, must fit."""
    narrow = sum(c in " iljtfrI.,:;'|!()[]·" for c in text)
    wide = sum(c in "mwMW@%…→" or ord(c) > 0x2E80 for c in text)
    return size * (0.60 * (len(text) - narrow - wide) + 0.37 * narrow + 0.95 * wide)


def _chart_words(audit: AuditData) -> dict[str, str]:
    outputs = audit["subject"]["outputs"]
    drawn = str(audit["rays"].get("output") or (outputs[0] if outputs else "output"))
    labels = [s["label"] for s in audit["rays"]["series"]]
    witness = next((v["witness"] for v in joint_verdicts(audit) if v["witness"] is not None), None)
    # The rays are those of one output; a witness may be about another.
    about = (
        ""
        if witness is None or witness["output"] == drawn
        else f"; it proves the growth of {witness['output']}"
    )
    says = {
        "UNBOUNDED": "The output keeps growing with the distance from the data.",
        "BOUNDED": "Every ray levels off. The rays only illustrate; the proof covers all directions.",
    }.get(audit["verdict"], "Rays only illustrate; they prove nothing.")
    if witness is not None and about:
        says = "Rays only illustrate; the proof is the witness listed below."
    return {
        "output": drawn,
        "random": f"{sum(label != 'witness' for label in labels)} random directions",
        "witness": f"the witness direction{about}" if "witness" in labels else "",
        "says": says,
    }


def _verdicts(audit: AuditData) -> list[dict[str, Any]]:
    """One row per output and moving input; with a single input the two are the same and one row stands for both."""
    inputs = audit["subject"]["inputs"]
    rows = []
    for verdict in audit["growth"]["verdicts"]:
        if len(inputs) == 1 and verdict["input"] is not None:
            continue
        growth, cut = verdict["growth"], verdict["cut"]
        moving = verdict["input"] or (inputs[0]["name"] if len(inputs) == 1 else "all inputs")
        kind = growth["kind"]
        if kind == "polynomial" and growth["degree"] is not None:
            kind += f", degree {growth['degree']:g}"
        rows.append({
            "output": verdict["output"],
            "input": moving,
            "joint": verdict["input"] is None,
            "status": verdict["status"],
            "kind": growth["kind"],
            "growth": kind,
            "range": interval_text(growth["interval"]) if verdict["status"] == "bounded" else "",
            "why": _row_reason(audit, verdict),
            "cut": listed(spoken(audit, cut["labels"]), 4) if cut is not None and cut["verified"] else "",
        })  # fmt: skip
    rows.sort(key=lambda row: (audit["subject"]["outputs"] + [row["output"]]).index(row["output"]))
    return rows


def _row_reason(audit: AuditData, verdict: Mapping[str, Any]) -> str:
    if verdict["witness"] is not None:
        return witness_text(verdict["witness"], audit["subject"].get("columns"))
    if verdict["reason"] is not None:
        node = next((n for n in audit["graph"]["nodes"] if n["name"] == verdict["reason"]["node"]), None)
        text = verdict["reason"]["text"]
        for path in verdict["paths"]:
            text = text.replace(path_text(path), short_path_text(audit, path))
        return f"at {node_label(node)}: {text}" if node is not None else str(text)
    return "proved by the growth rules" if verdict["status"] == "bounded" else ""


def _proofs(audit: AuditData) -> list[dict[str, Any]]:
    """Witnesses of the outputs, each with a few entries of its direction."""
    proofs = []
    for verdict in joint_verdicts(audit):
        witness = verdict["witness"]
        if witness is None:
            continue
        directions = []
        for name, nested in witness["directions"].items():
            flat = _flat(nested, _SHOWN + 1)
            size = _size(nested)
            text = ", ".join(number(v) for v in flat[:_SHOWN])
            directions.append((name, text + (f", … ({size:,} entries)" if size > _SHOWN else ""), size))
        exact = witness["method"] == "jet"
        proofs.append({
            "says": witness_text(witness, audit["subject"].get("columns")),
            "exact": exact,
            "ratio": _ratio_words(witness),
            "evaluated": witness["evaluated"],
            "held": witness["held"],
            "directions": directions,
            "evidence": [
                (power_of_ten(e["radius"]), number(_real(e["value"]), 7), number(_real(e["ratio"]), 7))
                for e in witness["evidence"]
            ],
        })  # fmt: skip
    return proofs


def _real(value: Any) -> Any:
    return float(value) if isinstance(value, (int, float)) else value


def _ratio_words(witness: Mapping[str, Any]) -> str:
    degree = witness["degree"]
    if degree is None or witness["method"] == "measured":
        return "log |f(λu)| / λ"
    if degree == 0:
        return "f(λu) / log λ"
    return "f(λu) / λ" if degree == 1 else f"f(λu) / λ^{degree:g}"


def _flat(nested: Any, most: int) -> list[Any]:
    if not isinstance(nested, list):
        return [nested]
    flat: list[Any] = []
    for part in nested:
        flat += _flat(part, most - len(flat))
        if len(flat) >= most:
            break
    return flat


def _size(nested: Any) -> int:
    return sum(_size(part) for part in nested) if isinstance(nested, list) else 1


def _assumptions(audit: AuditData) -> list[tuple[str, str]]:
    labels = {n["name"]: node_label(n) for n in audit["graph"]["nodes"]}
    return [(labels.get(a["node"], a["node"]), a["text"]) for a in audit["growth"]["assumptions"]]
