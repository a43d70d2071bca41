"""The words of an audit: sentences, places and numbers as a person reads them, the same in every rendering."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from farfield._text import clean

__all__ = [
    "AuditData",
    "attained_text",
    "clean",
    "compact",
    "headline_verdict",
    "interval_text",
    "joint_verdicts",
    "listed",
    "node_label",
    "node_of",
    "number",
    "path_text",
    "place_text",
    "power_of_ten",
    "provenance_rows",
    "ratio_text",
    "shape_text",
    "short_path_text",
    "short_source",
    "split_source",
    "spoken",
    "why",
    "witness_text",
]

AuditData: TypeAlias = Mapping[str, Any]
"""What ``Audit.to_dict()`` returns."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LONGEST_PATH = 8
_SYMBOL = re.compile(r"\bs\d+\b")


def listed(words: Sequence[str], most: int = 4) -> str:
    """A few words in a row, and how many more there are.

    Examples
    --------
    >>> listed(["a", "b", "c", "d"], most=2)
    'a, b and 2 more'
    """
    if len(words) <= most:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most:,} more"


def number(value: Any, digits: int = 4) -> str:
    """A number in few digits; anything else as it stands."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return str(value)


def power_of_ten(value: float) -> str:
    """Powers of ten as such, other numbers in few digits.

    Examples
    --------
    >>> power_of_ten(1e8), power_of_ten(10.0), power_of_ten(31.6)
    ('10⁸', '10', '31.6')
    """
    if value > 0 and math.isfinite(value):
        exponent = round(math.log10(value))
        if math.isclose(value, 10.0**exponent, rel_tol=1e-9):
            return str(10**exponent) if exponent in (0, 1) else f"10{str(exponent).translate(_SUPERSCRIPTS)}"
    return number(value)


def compact(value: Any, most: int = 8) -> str:
    """A piece of evidence on one line."""
    if isinstance(value, Mapping):
        return listed([f"{k}: {compact(v)}" for k, v in value.items()], most)
    if isinstance(value, (list, tuple)):
        return listed([compact(v) for v in value], most) or "none"
    return number(value, 6)


def provenance_rows(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where something came from, a line each; what holds several things has one for each of them.

    Examples
    --------
    >>> provenance_rows({"seed": 0, "versions": {"torch": "2.6"}})
    [('seed', '0'), ('versions: torch', '2.6')]
    """
    rows: list[tuple[str, str]] = []
    for key, value in about.items():
        if isinstance(value, Mapping):
            rows += [(f"{key}: {inner}", compact(v)) for inner, v in value.items()]
        else:
            rows.append((key, compact(value)))
    return rows


def interval_text(interval: Sequence[Any]) -> str:
    """A proved range in four digits, rounded outwards so that it still holds; empty where no end is known.

    Examples
    --------
    >>> interval_text([-0.99999, 1.23401])
    '[-1, 1.235]'
    >>> interval_text([None, None])
    ''
    """
    low, high = interval
    if low is None and high is None:
        return ""
    left = "(-∞" if low is None else f"[{_rounded(float(low), ROUND_FLOOR)}"
    right = "∞)" if high is None else f"{_rounded(float(high), ROUND_CEILING)}]"
    return f"{left}, {right}"


def ratio_text(value: float) -> str:
    """A tightness in three decimals, rounded up so that it does not flatter.

    Examples
    --------
    >>> ratio_text(1.00001), ratio_text(2.0), ratio_text(float("inf"))
    ('1.001', '2', '∞')
    """
    if not math.isfinite(value):
        return "∞"
    return f"{math.ceil(value * 1000 - 1e-9) / 1000:g}" if value < 1000 else f"{value:.3g}"


def attained_text(low: float, high: float) -> str:
    """A range that was met, in four digits, rounded inwards: nothing is claimed that was not attained.

    Examples
    --------
    >>> attained_text(-0.99999, 1.23401)
    '[-0.9999, 1.234]'
    >>> attained_text(1.23401, 1.23401)
    '1.234'
    """
    left, right = _rounded(low, ROUND_CEILING), _rounded(high, ROUND_FLOOR)
    return f"[{left}, {right}]" if float(left) < float(right) else number(0.5 * (low + high))


def _rounded(value: float, direction: str) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exact = Decimal(value)
    step = Decimal(1).scaleb(exact.adjusted() - 3)
    return f"{float(exact.quantize(step, rounding=direction)):.4g}"


def shape_text(shape: Sequence[str]) -> str:
    """A shape with its symbolic sizes renamed n, m, k.

    Examples
    --------
    >>> shape_text(["s77", "4*s77", "8"])
    '[n, 4·n, 8]'
    """
    text = ", ".join(str(d) for d in shape)
    symbols = dict.fromkeys(_SYMBOL.findall(text))
    names = dict(zip(symbols, ("n", "m", "k"), strict=False))
    text = _SYMBOL.sub(lambda m: names.get(m[0], m[0]), text)
    return f"[{text.replace('*', '·')}]"


def split_source(source: str | None) -> tuple[str, int] | None:
    """``"file.py:12"`` as file and line; None where there is none.

    Examples
    --------
    >>> split_source("C:/models/net.py:12")
    ('C:/models/net.py', 12)
    """
    file, colon, line = (source or "").rpartition(":")
    return (file, int(line)) if colon and file and line.isdecimal() and int(line) > 0 else None


def short_source(source: str | None) -> str:
    """A source line without the machine around it: from the working folder, the package, or its last folder."""
    found = split_source(source)
    if found is None:
        return source or ""
    file, line = found
    path = Path(file)
    if not path.is_absolute() and ":" not in file:
        return f"{file}:{line}"
    if path.is_absolute():
        here = os.path.relpath(file) if path.anchor == Path.cwd().anchor else file
        if not here.startswith(("..", os.sep)):
            return f"{PurePath(here).as_posix()}:{line}"
    parts = PurePath(file.replace("\\", "/")).parts
    for marker in ("site-packages", "dist-packages"):
        if marker in parts:
            return f"{'/'.join(parts[parts.index(marker) + 1 :])}:{line}"
    return f"{'/'.join(parts[-2:]) if len(parts) > 2 else file}:{line}"


def node_label(node: Mapping[str, Any]) -> str:
    """What to call a node: its module where the node is what the module computes, else module and operator."""
    path, op, kind = node["module_path"], node["op"], node["module_type"].lower()
    if node["role"] != "operation":
        return str(node["name"])
    if not path:
        return str(op if op != "unknown" else node["name"])
    if op.replace("_", "") in kind or (op == "conv" and "conv" in kind):
        return str(path)
    return f"{path}.{op}"


def place_text(place: Mapping[str, Any]) -> str:
    """A place in a few words: module and class, and the source line where known."""
    where = place["module_path"] or place["node"] or "the model"
    kind = f" ({place['module_type']})" if place["module_type"] and place["module_path"] else ""
    if not place["module_path"] and place["module_type"] and place["node"]:
        kind = f" in {place['module_type']}"
    source = short_source(place["source"])
    return f"{where}{kind}" + (f", {source}" if source else "")


def spoken(audit: AuditData, labels: Sequence[str], *, classes: bool = False) -> list[str]:
    """Labels for a person: a bare number (a place in a Sequential) gets its class beside it, or every module does."""
    kinds = {
        node_label(n): n["module_type"] or n["op"]
        for n in audit["graph"]["nodes"]
        if n["role"] == "operation" and n["module_path"] == node_label(n)
    }
    return [
        f"{label} ({kinds[label]})"
        if label in kinds and (classes or label.rpartition(".")[2].isdecimal())
        else label
        for label in labels
    ]


def path_text(path: Mapping[str, Any]) -> str:
    """An escape path in full, as findings spell it."""
    text = " → ".join(path["labels"])
    return f"{text} bypasses {', '.join(path['bypassed'])}" if path["bypassed"] else text


def short_path_text(audit: AuditData, path: Mapping[str, Any]) -> str:
    """An escape path in few words: the middle of a long one, and most of many norms, are counted."""
    labels, bypassed = spoken(audit, path["labels"]), spoken(audit, path["bypassed"])
    if len(labels) > _LONGEST_PATH:
        labels = [*labels[:3], f"… {len(labels) - 6} more …", *labels[-3:]]
    text = " → ".join(labels)
    return f"{text} bypasses {listed(bypassed, 3)}" if bypassed else text


def joint_verdicts(audit: AuditData) -> list[Mapping[str, Any]]:
    """One verdict per output, with all inputs moving."""
    return [v for v in audit["growth"]["verdicts"] if v["input"] is None]


def headline_verdict(audit: AuditData) -> Mapping[str, Any] | None:
    """The verdict that decides: the first output with the overall status."""
    wanted = audit["verdict"].lower()
    return next((v for v in joint_verdicts(audit) if v["status"] == wanted), None)


def witness_text(witness: Mapping[str, Any], columns: Mapping[str, Sequence[str]] | None = None) -> str:
    """What a witness proves: which entry grows how fast, and along what; of columns with names, mostly which."""
    index = ", ".join(str(i) for i in witness["index"])
    entry = f"{witness['output']}[{index}]" if index else witness["output"]
    along = f"along one direction of {listed(list(witness['directions']))}"
    named = [name for argument, own in (columns or {}).items() for name in _mostly(witness, argument, own)]
    return f"{entry} grows {_rate(witness)} {along}" + (f" (mostly {listed(named, 3)})" if named else "")


def _mostly(witness: Mapping[str, Any], argument: str, columns: Sequence[str]) -> list[str]:
    """The columns that have a quarter of the direction's square length or more, the longest first."""
    sizes = witness["directions"].get(argument)
    while isinstance(sizes, Sequence) and len(sizes) == 1 and isinstance(sizes[0], Sequence):
        (sizes,) = sizes
    if not isinstance(sizes, Sequence) or len(sizes) != len(columns):
        return []
    if not all(isinstance(size, int | float) for size in sizes):
        return []
    whole = sum(size * size for size in sizes)
    order = sorted(range(len(sizes)), key=lambda k: -abs(sizes[k]))
    return [columns[k] for k in order if sizes[k] * sizes[k] >= 0.25 * whole > 0.0]


def _rate(witness: Mapping[str, Any]) -> str:
    slope, degree, logs = witness["slope"], witness["degree"], witness["logarithms"]
    if degree is None or witness["method"] == "measured":
        return "exponentially"
    power = "" if degree == 0 else "·λ" if degree == 1 else f"·λ^{degree:g}"
    if logs:
        power += "·log λ" if logs == 1 else f"·(log λ)^{logs:g}"
    if witness["method"] == "recurring":
        return f"in ever wider swings, out to {number(abs(slope), 3)}{power}"
    return f"like {number(slope, 3)}{power}"


def why(audit: AuditData) -> str:
    """One sentence for the verdict."""
    verdict = headline_verdict(audit)
    if verdict is None:
        return "The audit holds no verdict on any output."
    if audit["verdict"] == "BOUNDED":
        return _why_bounded(audit)
    others = sum(v["status"] == verdict["status"] for v in joint_verdicts(audit)) - 1
    more = f" {_count(others, 'more output')} likewise." if others else ""
    if audit["verdict"] == "UNBOUNDED" and verdict["witness"] is not None:
        witness = verdict["witness"]
        radii = [e["radius"] for e in witness["evidence"]]
        until = f", confirmed by evaluating it up to λ = {power_of_ten(max(radii))}" if radii else ""
        return f"{witness_text(witness, audit['subject'].get('columns'))}{until}.{more}"
    reason = verdict["reason"] or {"node": "", "text": "no reason was recorded"}
    at = _at(audit, reason["node"])
    text = reason["text"]
    for path in verdict["paths"]:
        text = text.replace(f" along {path_text(path)}", "")
    return f"The analysis could not decide{f' at {at}' if at else ''}: {text.rstrip('.')}.{more}"


def _why_bounded(audit: AuditData) -> str:
    verdicts = joint_verdicts(audit)
    cuts = list(dict.fromkeys(label for v in verdicts if v["cut"] for label in v["cut"]["labels"]))
    text = "No input, however large, moves any output beyond a fixed range"
    if cuts:
        verb = "cut" if len(cuts) > 1 else "cuts"
        text += f": {listed(spoken(audit, cuts, classes=True), 3)} {verb} every path from input to output"
    text += "."
    ranges = {interval_text(v["growth"]["interval"]) for v in verdicts}
    if len(ranges) == 1 and (known := ranges.pop()) and "∞" not in known:
        text += f" Proved range: {known}."
    assumptions = audit["growth"]["assumptions"]
    if len(assumptions) == 1:
        text += f" This assumes: {assumptions[0]['text'].rstrip('.')}."
    elif assumptions:
        text += f" This rests on {len(assumptions)} assumptions, listed below."
    return text


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def node_of(audit: AuditData, name: str) -> Mapping[str, Any] | None:
    return next((n for n in audit["graph"]["nodes"] if n["name"] == name), None)


def _at(audit: AuditData, name: str) -> str:
    node = node_of(audit, name)
    return name if node is None else node_label(node)
