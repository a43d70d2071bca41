"""An audit on a terminal: what a person needs in ten seconds, in eighty columns."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from rich.console import Console
from rich.text import Text

from farfield.report._advice import caution, data_text, fixes, next_step
from farfield.report._words import (
    AuditData,
    clean,
    headline_verdict,
    joint_verdicts,
    listed,
    path_text,
    place_text,
    short_path_text,
    why,
)

__all__ = ["Page", "Part", "audit_parts", "audit_text", "parts_text", "print_audit"]

Part: TypeAlias = tuple[str, Text] | tuple[str, Text, int] | tuple[str, Text, int, bool]
"""A paragraph: label (or none), text, indent, and whether a blank line comes first."""

_STYLES = {
    "BOUNDED": "bold green",
    "UNBOUNDED": "bold red",
    "UNKNOWN": "bold yellow",
    "error": "red",
    "warning": "yellow",
    "note": "cyan",
}
_SIGNS = {"BOUNDED": "✓", "UNBOUNDED": "✗", "UNKNOWN": "?", "error": "✗", "warning": "!", "note": "i"}
_RAISED = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
_ASCII = str.maketrans(
    {
        "→": "->",
        "λ": "lambda",
        "✓": "+",
        "✗": "x",
        "·": "*",
        "…": "...",
        "≈": "~",
        "ε": "eps",
        "∞": "inf",
        "×": "x",
    }
    | dict(zip(_RAISED, "-0123456789", strict=True))
)
"""For terminals that cannot show the real characters."""
_MARGIN = 13
_WIDEST = 100


def print_audit(audit: dict[str, Any], console: Console | None = None) -> None:
    """Print an audit: verdict, why, escape path, findings, fixes as code and commands, rules, next step.

    Meaning is in words and signs, color only repeats it. Nothing is said twice: findings refer to the escape path
    above them. Names from the model are printed as text, never as markup or terminal escapes.

    Parameters
    ----------
    audit
        From ``Audit.to_dict()``.
    console
        Where to print; standard output by default.

    Examples
    --------
    >>> import torch
    >>> from farfield.audit import audit
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    >>> print_audit(audit(model, torch.zeros(1, 3)).to_dict())  # doctest: +ELLIPSIS
    ✓ BOUNDED  Sequential...
    """
    out = Console(highlight=False) if console is None else console
    page = Page(out)
    data = clean(audit)
    for part in audit_parts(data):
        page.put(*part)


class Page:
    """Prints text at an indent, in at most a hundred columns, in the characters the console has."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.encoding = console.encoding or "utf-8"
        self.width = min(console.width, _WIDEST)

    def put(self, label: str, body: Text, indent: int = 0, blank: bool = False) -> None:
        """One paragraph; with a label it hangs to the right of it."""
        if blank:
            self.console.print()
        margin = _MARGIN if label else indent
        body = self._fit(body)
        # Code is copied from here: a line of it stays one.
        lines = [body] if body.no_wrap else body.wrap(self.console, max(self.width - margin, 20))
        for i, line in enumerate(lines):
            line.rstrip()
            head = Text(" " * indent).append(label if i == 0 else "", style="dim")
            head.pad_right(max(margin - len(head), 0))
            self.console.print(head + line, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def _fit(self, text: Text) -> Text:
        try:
            text.plain.encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            raised = re.sub(f"(?=[{_RAISED}])(?<![{_RAISED}])", "^", text.plain)
            plain = raised.translate(_ASCII).encode(self.encoding, "backslashreplace").decode(self.encoding)
            return Text(plain, style=text.style, no_wrap=text.no_wrap)
        return text


def audit_text(audit: dict[str, Any], width: int = 80) -> str:
    """What :func:`print_audit` prints, as text without colors.

    Parameters
    ----------
    audit
        From ``Audit.to_dict()``.
    width
        Columns.

    Examples
    --------
    >>> import torch
    >>> from farfield.audit import audit
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    >>> audit_text(audit(model, torch.zeros(1, 3)).to_dict()).splitlines()[0]
    '✓ BOUNDED  Sequential'
    """
    return parts_text(audit_parts(clean(audit)), width)


def parts_text(parts: Iterable[Part], width: int = 80) -> str:
    """Paragraphs as text without colors."""
    out = io.StringIO()
    page = Page(Console(file=out, width=width, color_system=None, highlight=False))
    for part in parts:
        page.put(*part)
    return out.getvalue().rstrip("\n")


def audit_parts(audit: AuditData) -> Iterator[Part]:
    """The paragraphs of an audit, in their order: for a terminal, for ``print`` and for a notebook."""
    subject, verdict = audit["subject"], audit["verdict"]
    name = subject["name"]
    kind = f" ({subject['class']})" if subject["class"] != name else ""
    head = Text(f"{_SIGNS.get(verdict, '?')} {verdict}", style=_STYLES.get(verdict, "bold"))
    head.append(f"  {name}{kind}", style="not bold default")
    yield "", head
    yield "", Text(why(audit))
    deciding = headline_verdict(audit)
    said = list(deciding["paths"][:1]) if deciding is not None and verdict != "BOUNDED" else []
    for path in said:
        yield (
            "Escape path" if verdict == "UNBOUNDED" else "May escape",
            Text(short_path_text(audit, path)),
            0,
            True,
        )
    if about := data_text(audit):
        yield "Your data", Text(about), 0, not said
    for i, line in enumerate(_per_output(audit)):
        yield "Outputs" if i == 0 else " ", Text(line), 0, i == 0
    if subject["unseen"]:
        yield "Unseen", Text(listed(subject["unseen"], 4)), 0, True
    for i, finding in enumerate(audit["findings"]):
        yield "", _finding_head(audit, finding), 0, True
        message = _message(audit, finding, said, repeats=i == 0 and finding["code"] == "FF001")
        if message:
            yield "what", Text(message), 2
        yield "where", Text(place_text(finding["place"])), 2
        yield "do", Text(finding["action"]), 2
    assumptions = audit["growth"]["assumptions"]
    if verdict == "BOUNDED" and len(assumptions) == 1:  # then the first sentence says it
        assumptions = []
    for i, assumption in enumerate(assumptions[:4]):
        more = f" (and {len(assumptions) - 4} more)" if i == 3 and len(assumptions) > 4 else ""
        yield "Assumes" if i == 0 else " ", Text(assumption["text"] + more), 0, i == 0
    for i, (what, line) in enumerate(fixes(audit)):
        yield "Fix" if i == 0 else " ", Text(f"{what}:"), 0, i == 0
        yield " ", Text(f"  {line}", no_wrap=True)
    yield "Rules", Text(_rules(audit)), 0, True
    yield "Next", Text(next_step(audit))
    yield "Note", Text(caution(audit))


def _finding_head(audit: AuditData, finding: Mapping[str, Any]) -> Text:
    titles = {r["code"]: r["title"] for r in audit["rules"]}
    severity = finding["severity"]
    text = Text(f"{_SIGNS.get(severity, '-')} {finding['code']} {severity}", style=_STYLES.get(severity, ""))
    return text.append(f"  {titles.get(finding['code'], '')}", style="default")


def _message(
    audit: AuditData, finding: Mapping[str, Any], said: list[Mapping[str, Any]], *, repeats: bool
) -> str:
    """The message without what stands above it: the sentence of the verdict, the escape path."""
    if repeats:
        return ""
    message = str(finding["message"])
    for path in said:
        message = message.replace(path_text(path), "The escape path above")
    for path in (p for v in audit["growth"]["verdicts"] for p in v["paths"]):
        message = message.replace(path_text(path), short_path_text(audit, path))
    return message.replace(" Escape path: The escape path above.", "")


def _per_output(audit: AuditData) -> list[str]:
    """One line per output where there are several, or several inputs to tell apart."""
    outputs = joint_verdicts(audit)
    alone = [v for v in audit["growth"]["verdicts"] if v["input"] is not None]
    if len(outputs) < 2 and len(audit["subject"]["inputs"]) < 2:
        return []
    lines = []
    for verdict in outputs[:6]:
        each = [f"{v['input']} {v['status']}" for v in alone if v["output"] == verdict["output"]]
        several = len(audit["subject"]["inputs"]) > 1 and each
        lines.append(
            f"{verdict['output']} {verdict['status'].upper()}" + (f": {listed(each, 6)}" if several else "")
        )
    if len(outputs) > 6:
        lines.append(f"and {len(outputs) - 6} more")
    return lines


def _rules(audit: AuditData) -> str:
    words = ("failed", "passed", "not applicable", "unknown")
    outcomes = [r["outcome"] for r in audit["rules"]]
    # A bounded model has failed nothing: what is left is to be looked at.
    said = {"failed": "to look at" if audit["verdict"] == "BOUNDED" else "failed"}
    text = ", ".join(f"{outcomes.count(word)} {said.get(word, word)}" for word in words)
    open_rules = [r["code"] for r in audit["rules"] if r["outcome"] == "unknown"]
    return text + (f" ({listed(open_rules, 5)})" if open_rules else "")
