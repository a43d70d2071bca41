"""What to do about an audit: the fix as code and as a command, the next step, what the verdict leaves open."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from farfield.report._words import (
    AuditData,
    headline_verdict,
    listed,
    node_label,
    node_of,
    number,
    spoken,
)

__all__ = ["NO_CLAIM", "caution", "data_text", "fixes", "next_step", "norm_lines", "repair_command"]

NO_CLAIM = "A bound is not a claim of accuracy."
_NAME = re.compile(r"[A-Za-z_]\w*|\d+")


def caution(audit: AuditData) -> str:
    """What the verdict does not say."""
    if audit["verdict"] == "BOUNDED":
        checked = any(r["code"] == "FF006" and r["outcome"] in ("passed", "failed") for r in audit["rules"])
        floats = (
            " The proof is about real arithmetic; FF006 says up to which size of input floating point follows it."
            if checked
            else " The proof is about real arithmetic."
        )
        return f"Proved for every real input. {NO_CLAIM}{floats}"
    if audit["verdict"] == "UNBOUNDED":
        return (
            f"{NO_CLAIM} A norm or a repair keeps far predictions finite and does not make them right. The audit "
            "says nothing about accuracy near the data."
        )
    return f"UNKNOWN is not a pass: treat the model as unbounded until this place is settled. {NO_CLAIM}"


def data_text(audit: AuditData) -> str:
    """What the model gives on the rows it was audited with and ten deviations away from them; empty without data."""
    data = audit.get("data")
    if not data:
        return ""
    if "note" in data:
        return f"No numbers: {data['note']}."
    near, far = (_span(data[key]) for key in ("on_rows", "far"))
    return (
        f"{data['output']} is in {near} on the {data['rows']:,} rows given. At {number(data['deviations'])} standard "
        f"deviations from their mean: {far}, over the {data['directions']} directions tried."
    )


def _span(ends: Any) -> str:
    """Two evaluated values in three digits; nothing is proved of them, so they are rounded to the nearest."""
    low, high = (float(end) for end in ends)
    texts = [number(low, 3), number(high, 3)]
    return texts[0] if texts[0] == texts[1] else f"[{texts[0]}, {texts[1]}]"


def repair_command(audit: AuditData) -> str:
    """The command that repairs what was audited; empty where a model in memory was, which no command can load."""
    subject = audit["subject"]
    name = str(subject["name"])
    source = subject.get("target") or (shlex.quote(name) if name.endswith((".pt2", ".onnx")) else "")
    if not source:
        return ""
    rows = subject.get("data") or "ROWS.npy"
    out = "fixed.onnx" if name.endswith(".onnx") else "fixed.pt2"
    return f"farfield repair {source} --data {rows} --out {out}"


def fixes(audit: AuditData) -> list[tuple[str, str]]:
    """How to bound an unbounded model: (in words, as a line of code or a command), the norm first."""
    if audit["verdict"] != "UNBOUNDED":
        return []
    lines = norm_lines(audit)
    found = [("put a norm in, then train again", "; ".join(lines))] if lines else []
    way = "or repair it without training" if lines else "repair it without training"
    command = repair_command(audit)
    if not command:
        return [*found, (f"{way} (rows: your data)", "fixed = farfield.repair(model, rows).model")]
    needs = "" if audit["subject"].get("data") else " (ROWS.npy: a file with your data)"
    return [*found, (f"{way}{needs}", command)]


def norm_lines(audit: AuditData) -> list[str]:
    """Code that puts a norm behind each place of the cut that is a submodule; empty unless every place is one."""
    verdict = headline_verdict(audit)
    cut = None if verdict is None else verdict["cut"]
    if cut is None or not cut["verified"]:
        return []
    lines = []
    for name in cut["nodes"]:
        node = node_of(audit, name)
        norm = None if node is None else _norm(node)
        if node is None or norm is None or not node["module_path"] or node_label(node) != node["module_path"]:
            return []
        place = _expression(node["module_path"])
        if not place:
            return []
        lines.append(f"{place} = nn.Sequential({place}, {norm})")
    return lines


def _norm(node: Mapping[str, Any]) -> str | None:
    """The norm that fits what a node gives: over features, or over the channels of an image."""
    shape = [str(size) for size in node["shape"]]
    if len(shape) in (2, 3) and shape[-1].isdecimal() and int(shape[-1]) > 2 and node["op"] != "conv":
        return f"nn.LayerNorm({shape[-1]})"
    if len(shape) in (4, 5) and shape[1].isdecimal():
        return f"nn.GroupNorm(1, {shape[1]})"
    return None


def _expression(path: str) -> str:
    """``layers.0.act`` → ``model.layers[0].act``; empty for a name that is not an identifier."""
    text = "model"
    for part in path.split("."):
        if not _NAME.fullmatch(part):
            return ""
        text += f"[{part}]" if part.isdecimal() else f".{part}"
    return text


def next_step(audit: AuditData) -> str:
    """What to do now; the fixes of an unbounded model stand above it."""
    codes = list(dict.fromkeys(f["code"] for f in audit["findings"] if f["severity"] != "note"))
    verdict = headline_verdict(audit)
    cut = None if verdict is None else verdict["cut"]
    places = listed(spoken(audit, cut["labels"]), 3) if cut is not None and cut["verified"] else ""
    if audit["verdict"] == "UNBOUNDED":
        return "choose a fix above, then audit the result."
    if audit["verdict"] == "UNKNOWN":
        reason = verdict["reason"] if verdict is not None else None
        node = node_of(audit, reason["node"]) if reason is not None else None
        if node is not None and node["role"] == "operation":
            ways = [
                f"replace {node_label(node)} by operators that the analysis knows",
                "tell it how this one grows (farfield.growth.register_growth_rule)",
                *([f"put a norm after {places}"] if places else []),
            ]
            return f"{', '.join(ways[:-1])}, or {ways[-1]}; then audit again."
        if places:
            return f"put a norm after {places} if you want a bound, then audit again."
        return "look along the path above for what is meant to keep the values in range."
    if codes:
        return f"look at {listed(codes)}; assert_bounded(model, inputs) keeps the verdict in your test suite."
    kept = "assert_bounded(model, inputs) keeps the verdict in your test suite."
    return f"{_certify(audit)} gives tight bounds; {kept}"


def _certify(audit: AuditData) -> str:
    subject = audit["subject"]
    if not subject.get("target"):
        return "farfield.certify(model, inputs)"
    return " ".join(["farfield certify", subject["target"], *subject.get("input_options", ())])
