"""An audit as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from farfield.report._advice import caution
from farfield.report._words import AuditData, clean, joint_verdicts, node_label, split_source, why

__all__ = ["render_sarif"]

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "note": "note"}
_RANKS = ("none", "note", "warning", "error")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


def render_sarif(audit: dict[str, Any]) -> dict[str, Any]:
    """Render an audit as a SARIF 2.1.0 log with one run.

    Every finding is a result of its rule. A rule that could not decide gives a result of kind ``open``, so that
    UNKNOWN is never an empty log. Where a finding has no source line (an output has none), the line of the nearest
    operation before it is given, and said to be that; without any, the file that was audited: code-scanning services
    refuse results without a file.

    Parameters
    ----------
    audit
        From ``Audit.to_dict()``.

    Returns
    -------
    dict
        JSON-ready.

    Examples
    --------
    >>> import torch
    >>> from farfield.audit import audit
    >>> log = render_sarif(audit(torch.nn.Linear(3, 1), torch.zeros(1, 3)).to_dict())
    >>> log["version"], log["runs"][0]["results"][0]["ruleId"]
    ('2.1.0', 'FF001')
    """
    data: AuditData = clean(audit)
    index = {r["code"]: i for i, r in enumerate(data["rules"])}
    results = [_result(data, finding, index) for finding in data["findings"]]
    results += [_undecided(data, r, index) for r in data["rules"] if r["outcome"] == "unknown"]
    subject = data["subject"]
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "farfield",
                        "version": str(data["provenance"].get("versions", {}).get("farfield", "unknown")),
                        "rules": [_rule(data, r) for r in data["rules"]],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": True}],
                "results": results,
                "properties": {
                    "verdict": data["verdict"],
                    "why": why(data),
                    "caution": caution(data),
                    "subject": subject["name"],
                    "outputs": {v["output"]: v["status"].upper() for v in joint_verdicts(data)},
                    "assumptions": [a["text"] for a in data["growth"]["assumptions"]],
                    "unseen": list(subject["unseen"]),
                    "provenance": data["provenance"],
                },
            }
        ],
    }


def _rule(audit: AuditData, rule: Mapping[str, Any]) -> dict[str, Any]:
    found = [f["severity"] for f in audit["findings"] if f["code"] == rule["code"]]
    described: dict[str, Any] = {
        "id": rule["code"],
        "name": "".join(word.capitalize() for word in re.findall(r"[A-Za-z0-9]+", rule["title"]))
        or rule["code"],
        "shortDescription": {"text": _sentence(rule["title"])},
        "properties": {"outcome": rule["outcome"], "reason": rule["reason"]},
    }
    if found:
        gravest = max((_LEVELS.get(s, "warning") for s in found), key=_RANKS.index)
        described["defaultConfiguration"] = {"level": gravest}
    return described


def _result(audit: AuditData, finding: Mapping[str, Any], index: Mapping[str, int]) -> dict[str, Any]:
    place = finding["place"]
    identity = "|".join([finding["code"], place["module_path"], place["node"]])
    return {
        "ruleId": finding["code"],
        **({"ruleIndex": index[finding["code"]]} if finding["code"] in index else {}),
        "kind": "fail",
        "level": _LEVELS.get(finding["severity"], "warning"),
        "message": {"text": f"{_sentence(finding['message'])} {_sentence(finding['action'])}".strip()},
        "locations": [_location(audit, place)],
        # Says which finding this is when lines have moved.
        "partialFingerprints": {"farfield/v1": hashlib.sha256(identity.encode()).hexdigest()[:32]},
        "properties": {"evidence": finding["evidence"]},
    }


def _undecided(audit: AuditData, rule: Mapping[str, Any], index: Mapping[str, int]) -> dict[str, Any]:
    reason = next((v["reason"] for v in joint_verdicts(audit) if v["reason"] is not None), None)
    node = reason["node"] if reason is not None else ""
    known = next((n for n in audit["graph"]["nodes"] if n["name"] == node), None)
    place = {
        "module_path": known["module_path"] if known else "",
        "module_type": known["module_type"] if known else "",
        "source": known["source"] if known else None,
        "node": node,
    }
    return {
        "ruleId": rule["code"],
        "ruleIndex": index[rule["code"]],
        "kind": "open",
        "level": "none",
        "message": {"text": f"Could not be decided: {_sentence(rule['reason'] or rule['title'])}"},
        "locations": [_location(audit, place)],
    }


def _location(audit: AuditData, place: Mapping[str, Any]) -> dict[str, Any]:
    path = place["module_path"] or place["node"] or audit["subject"]["name"]
    logical: dict[str, Any] = {"name": path.rpartition(".")[2] or path, "fullyQualifiedName": path}
    logical["kind"] = "module" if place["module_path"] else "element"
    location: dict[str, Any] = {"logicalLocations": [logical]}
    source, near = split_source(place["source"]), None
    if source is None:
        source, near = _nearest(audit, place["node"])
    if source is not None:
        file, line = source
        location["physicalLocation"] = {
            "artifactLocation": {"uri": _uri(file)},
            "region": {"startLine": line},
        }
    elif audit["subject"].get("file"):
        location["physicalLocation"] = {
            "artifactLocation": {"uri": _uri(audit["subject"]["file"])},
            "region": {"startLine": 1},
        }
    if near is not None:
        location["message"] = {"text": f"The nearest operation with a known line: {near}."}
    return location


def _nearest(audit: AuditData, name: str) -> tuple[tuple[str, int] | None, str | None]:
    """The source line of the nearest operation before a node, and what it is called."""
    nodes = {n["name"]: n for n in audit["graph"]["nodes"]}
    before: dict[str, list[str]] = {}
    for a, b in audit["graph"]["edges"]:
        before.setdefault(b, []).append(a)
    seen, front = {name}, [name]
    while front:
        for here in front:
            source = split_source(nodes[here]["source"]) if here in nodes else None
            if source is not None:
                return source, node_label(nodes[here])
        front = [a for a in dict.fromkeys(a for here in front for a in before.get(here, ())) if a not in seen]
        seen.update(front)
    return None, None


def _uri(file: str) -> str:
    """Relative to the working folder where the file is under it, else a file URI."""
    path = Path(file)
    if _DRIVE.match(file) and not path.is_absolute():
        return f"file:///{quote(file.replace(chr(92), '/'), safe='/:')}"
    if not path.is_absolute():
        return quote(path.as_posix())
    try:
        return quote(path.relative_to(Path.cwd()).as_posix())
    except ValueError:
        return path.as_uri()


def _sentence(text: str) -> str:
    text = text.strip()
    if not text:
        return ""
    # The first word may be a symbol or a module's name, which keeps its case.
    return text if text.endswith((".", "!", "?")) else f"{text}."
