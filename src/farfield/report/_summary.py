"""Results as a notebook shows them: the words of the terminal in a few lines of HTML that style nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup, escape

from farfield.report._certificate import certificate_parts
from farfield.report._repair import repair_parts
from farfield.report._rollout import rollout_parts
from farfield.report._terminal import Part, audit_parts
from farfield.report._words import clean

__all__ = ["audit_summary", "certificate_summary", "repair_summary", "rollout_summary"]

_COLORS = {"green": "#1a7f4b", "red": "#c0392b", "yellow": "#b7791f", "cyan": "#2471a3"}
"""Read on white and on black."""
_GRID = (
    "display:grid;grid-template-columns:7em minmax(0,52em);gap:.25em 1.2em;text-align:left;line-height:1.45"
)


def audit_summary(audit: Mapping[str, Any]) -> str:
    """What ``print`` shows of an audit, as an HTML fragment for a notebook.

    Parameters
    ----------
    audit
        From ``Audit.to_dict()``.

    Examples
    --------
    >>> import torch
    >>> from farfield.audit import audit
    >>> "UNBOUNDED" in audit_summary(audit(torch.nn.Linear(3, 1), torch.zeros(1, 3)).to_dict())
    True
    """
    return _fragment(audit_parts(clean(audit)))


def certificate_summary(certificate: Mapping[str, Any], *, name: str = "") -> str:
    """What the command line prints of a certificate, as an HTML fragment for a notebook.

    Parameters
    ----------
    certificate
        From ``Certificate.to_dict()``.
    name
        What to call the model.
    """
    return _fragment(certificate_parts(certificate, name))


def repair_summary(repair: Mapping[str, Any]) -> str:
    """What ``print`` shows of a repair, as an HTML fragment for a notebook.

    Parameters
    ----------
    repair
        From ``Repair.to_dict()``.
    """
    return _fragment(repair_parts(clean(repair)))


def rollout_summary(rollout: Mapping[str, Any]) -> str:
    """What ``print`` shows of a rollout's certificate, as an HTML fragment for a notebook.

    Parameters
    ----------
    rollout
        From ``RolloutCertificate.to_dict()``, and under ``said`` the lines that it prints.
    """
    return _fragment(rollout_parts(clean(rollout)))


def _fragment(parts: Iterable[Part]) -> str:
    cells = []
    for label, body, *rest in parts:
        space = ";margin-top:.6em" if len(rest) > 1 and rest[1] else ""
        words = _words(body)
        if label:
            cells.append(Markup('<div style="opacity:.7{}">{}</div><div style="min-width:0{}">{}</div>').format(
                space, label.strip(), space, words
            ))  # fmt: skip
        else:
            cells.append(Markup('<div style="grid-column:1/-1;min-width:0{}">{}</div>').format(space, words))
    return str(Markup('<div style="{}">{}</div>').format(_GRID, Markup("").join(cells)))


def _words(body: Any) -> Markup:
    """Text with its verdict in color; a line of code as one."""
    if body.no_wrap:
        return Markup('<code style="white-space:pre-wrap">{}</code>').format(body.plain.strip())
    if not (style := str(body.style)):
        return escape(body.plain)
    color = next((value for word, value in _COLORS.items() if word in style), "inherit")
    head, _, tail = body.plain.partition("  ")
    return Markup('<strong style="color:{}">{}</strong>&ensp;{}').format(color, head, tail)
