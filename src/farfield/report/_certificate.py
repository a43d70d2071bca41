"""A certificate as one HTML file, as a section of an audit's page, and on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rich.console import Console
from rich.text import Text

from farfield.report._advice import NO_CLAIM
from farfield.report._pages import rendered
from farfield.report._terminal import Page, Part
from farfield.report._words import (
    attained_text,
    clean,
    interval_text,
    number,
    power_of_ten,
    provenance_rows,
    ratio_text,
)

__all__ = [
    "BoundRow",
    "CertificateData",
    "bound_drawing",
    "bound_rows",
    "certificate_parts",
    "certificate_view",
    "entry_name",
    "print_certificate",
    "render_certificate",
]

CertificateData: TypeAlias = Mapping[str, Any]
"""What ``Certificate.to_dict()`` returns."""

_METHODS = {
    "interval": "interval propagation",
    "dual": "Lagrangian dual",
    "cells": "branch and bound",
    "mixed": "several methods",
}
_DRAWN, _LISTED, _PRINTED = 24, 256, 8
"""Outputs in the drawing, in the table, on a terminal; the rest is counted."""
_ALIKE = 30.0
"""Widest over narrowest range up to which all outputs share one axis."""
_FARTHEST = 1e300
"""Beyond this a length would leave float64."""
WIDTH, RIGHT, TOP, ROW, LABEL = 760.0, 744.0, 8.0, 34.0, 24
LETTER = 7.4
"""Width of a label's letter, generously."""


@dataclass(frozen=True, slots=True)
class BoundRow:
    """One output: its bounds, what was attained, and where."""

    name: str
    lower: float
    upper: float
    low: float
    high: float
    tightness: float
    met_at: tuple[str, str]

    @property
    def proved(self) -> str:
        """The proved range, rounded outwards."""
        return _range(self.lower, self.upper)

    @property
    def attained(self) -> str:
        """The attained range, rounded inwards."""
        return attained_text(self.low, self.high) if self.low <= self.high else "none seen"

    @property
    def says(self) -> str:
        """Everything on one line."""
        return f"proved {self.proved}, attained {self.attained}, tightness {ratio_text(self.tightness)}"


@dataclass(frozen=True, slots=True)
class _Bar:
    name: str
    title: str
    y: float
    proved: tuple[float, float]
    attained: tuple[float, float]
    open_left: bool
    open_right: bool


def render_certificate(
    certificate: dict[str, Any], *, name: str = "", file: str = "", target: str = ""
) -> str:
    """Render a certificate as a self-contained page: no script, no network, light and dark.

    Parameters
    ----------
    certificate
        From ``Certificate.to_dict()``.
    name
        What to call the model.
    file
        The certificate's file, for the command that checks it; empty if it is not in one.
    target
        What that command takes as the model; the name by default.

    Returns
    -------
    str
        A whole HTML document.

    Examples
    --------
    >>> data = {"output": "y", "shape": [1], "lower": [-2.0], "upper": [2.0], "attained_lower": [-1.0],
    ...         "attained_upper": [1.0], "method": "dual", "model_hash": "ab" * 32}
    >>> page = render_certificate(data, name="net.pt2", file="cert.json")
    >>> "farfield verify cert.json net.pt2" in page
    True
    """
    view = certificate_view(certificate, name=name, file=file, target=target)
    return rendered("certificate.html.j2", "audit.css", "certificate.css", certificate=view)


def certificate_view(
    certificate: CertificateData, *, name: str = "", file: str = "", target: str = ""
) -> dict[str, Any]:
    """Everything the templates print of a certificate, ready to print."""
    data = clean(certificate)
    rows = bound_rows(data)
    bounded = _bounded(rows)
    target, file = clean(target) or clean(name) or "MODEL", clean(file)
    return {
        "name": clean(name) or data["output"],
        "verdict": "BOUNDED" if bounded else "UNKNOWN",
        "word": "BOUNDED" if bounded else "NOT PROVED BOUNDED",
        "why": _why(data, rows),
        "caution": _CAUTION.format(domain=_domain(data), arithmetic=_arithmetic(data)) if bounded else _OPEN,
        "next": _next(bounded, file),
        "run": (f"farfield verify {file} {target}" if file else "")
        if bounded
        else f"farfield audit {target}",
        "facts": _facts(data, rows),
        "drawing": bound_drawing(rows),
        "rows": rows[:_LISTED],
        "hidden": max(len(rows) - _LISTED, 0),
        "within": _second(data),
        "advice": [str(text) for text in data.get("advice", ())],
        "assumptions": _assumptions(data),
        "hash": data.get("model_hash", ""),
        "command": f"farfield verify {file or 'CERTIFICATE.json'} {target}",
        "provenance": provenance_rows(data.get("provenance") or {}),
        "date": (data.get("provenance") or {}).get("date", ""),
    }


def print_certificate(
    certificate: dict[str, Any],
    console: Console | None = None,
    *,
    name: str = "",
    file: str = "",
    target: str = "",
) -> None:
    """Print a certificate: what is proved, what was attained, what it assumes, how to check it again.

    Parameters
    ----------
    certificate
        From ``Certificate.to_dict()``.
    console
        Where to print; standard output by default.
    name, file, target
        As for :func:`render_certificate`.

    Examples
    --------
    >>> data = {"output": "y", "shape": [], "lower": [-2.0], "upper": [2.0], "attained_lower": [-1.0],
    ...         "attained_upper": [1.0], "method": "dual", "model_hash": "ab" * 32}
    >>> print_certificate(data, name="net")  # doctest: +ELLIPSIS
    ✓ BOUNDED  net
    y lies in [-2, 2] for every real input.
    ...
    """
    page = Page(Console(highlight=False) if console is None else console)
    for part in certificate_parts(certificate, name, file, target):
        page.put(*part)


def certificate_parts(
    certificate: CertificateData, name: str = "", file: str = "", target: str = ""
) -> Iterator[Part]:
    """The paragraphs of a certificate, in their order: for a terminal and for a notebook."""
    view = certificate_view(certificate, name=name, file=file, target=target)
    bounded = view["verdict"] == "BOUNDED"
    head = Text(f"{'✓' if bounded else '?'} {view['word']}", style="bold green" if bounded else "bold yellow")
    yield "", head.append(f"  {view['name']}", style="not bold default")
    yield "", Text(view["why"])
    shown = view["rows"][:_PRINTED]
    if bounded and len(shown) == 1:  # its range is the first sentence
        yield "Attained", Text(f"{shown[0].attained}, tightness {ratio_text(shown[0].tightness)}"), 0, True
        shown = []
    for i, row in enumerate(shown):
        yield "Outputs" if i == 0 else " ", Text(f"{row.name}: {row.says}"), 0, i == 0
    hidden = len(view["rows"]) + view["hidden"] - _PRINTED
    if hidden > 0:
        yield " ", Text(f"and {hidden:,} more")
    if view["within"]:
        yield "Besides", Text(view["within"]), 0, True
    for i, advice in enumerate(view["advice"]):
        yield "Tighter" if i == 0 else " ", Text(advice), 0, i == 0
    for i, assumption in enumerate(view["assumptions"]):
        yield "Assumes" if i == 0 else " ", Text(assumption), 0, i == 0
    yield "Proved by", Text(_METHODS.get(certificate.get("method", ""), "unknown")), 0, True
    if view["hash"]:
        yield "Model", Text(f"sha256 {view['hash'][:16]}…")
    yield "Next", Text(view["next"])
    if view["run"]:
        yield " ", Text(f"  {view['run']}", no_wrap=True)
    yield "Note", Text(view["caution"])


# ------------------------------------------------------------------ words

_CAUTION = f"Proved for {{domain}}. {NO_CLAIM} The proof is about {{arithmetic}}."
_OPEN = f"An infinite bound does not prove that the model is unbounded: nothing was proved on that side. {NO_CLAIM}"


def _next(bounded: bool, file: str) -> str:
    if not bounded:
        return "find out where it escapes:"
    if file:
        return "let somebody else check it:"
    return "write the certificate to a file (--out, or .save(path)), so that somebody else can check it."


def _why(data: CertificateData, rows: Sequence[BoundRow]) -> str:
    where = _domain(data)
    if not rows:
        return f"{data['output']} has no entries."
    if _bounded(rows):
        low, high = min(r.lower for r in rows), max(r.upper for r in rows)
        if len(rows) == 1:
            return f"{rows[0].name} lies in {_range(low, high)} for {where}."
        return f"All {len(rows):,} entries of {data['output']} lie in {_range(low, high)} for {where}."
    finite = sum(math.isfinite(r.lower) and math.isfinite(r.upper) for r in rows)
    return f"{finite:,} of {len(rows):,} entries of {data['output']} have both bounds for {where}."


def _domain(data: CertificateData) -> str:
    domain = data.get("domain") or {"kind": "all"}
    if domain["kind"] == "box":
        ends = {(a, b) for a, b in zip(domain["lower"], domain["upper"], strict=True)}
        if len(ends) == 1:
            low, high = next(iter(ends))
            return f"every input with all entries in [{number(low)}, {number(high)}]"
        return "every input in a box"
    shapes = {"halfspace": "a half-space", "ball": "a ball", "ellipsoid": "an ellipsoid"}
    kind = str(domain["kind"])
    return f"every input in {shapes[kind]}" if kind in shapes else "every real input"


def _arithmetic(data: CertificateData) -> str:
    """What kind of numbers the bounds are about, and for which inputs."""
    found = data.get("arithmetic")
    if not found:
        return "real arithmetic"
    most = max((float(v) for v in found["error"]), default=0.0)
    where = ""
    if (data.get("domain") or {"kind": "all"})["kind"] in ("all", "halfspace"):
        where = f", at inputs with entries up to {power_of_ten(float(found['magnitude']))}"
    return f"what the model computes in {found['format']}{where}; rounding adds at most {number(most, 2)}"


def _second(data: CertificateData) -> str:
    """The bounds over a second domain, in a sentence; empty where there is none."""
    inner = data.get("within")
    return _why(inner, bound_rows(inner)) if inner else ""


def _assumptions(data: CertificateData) -> list[str]:
    texts = [str(text) for text in data.get("assumptions", ())]
    if not data.get("arithmetic") and not any("real arithmetic" in text.lower() for text in texts):
        texts.insert(0, "Real arithmetic, and the weights and mode the model had when it was certified.")
    limit = data.get("float_limit")
    if limit is not None:
        texts.append(
            f"Floating-point results can differ from the proof beyond ‖x‖ ≈ {power_of_ten(float(limit))}, the first "
            "size at which they did on the rays tried."
        )
    return texts


def _facts(data: CertificateData, rows: Sequence[BoundRow]) -> list[tuple[str, str]]:
    worst = max((r.tightness for r in rows), default=1.0)
    facts = [
        ("output", f"{data['output']} {list(data['shape'])}"),
        ("holds for", _domain(data)),
        ("proved by", _METHODS.get(data.get("method", ""), "unknown")),
        ("tightness" if len(rows) == 1 else "loosest tightness", ratio_text(worst)),
    ]
    if data.get("input_shape"):
        facts.append(("input", ", ".join("×".join(map(str, shape)) for shape in data["input_shape"])))
    if data.get("proofs"):
        facts.append(("proofs in the file", number(len(data["proofs"]))))
    if data.get("seconds"):
        facts.append(("time", f"{number(float(data['seconds']), 3)} s"))
    return facts


def _range(low: float, high: float) -> str:
    return (
        interval_text([low if math.isfinite(low) else None, high if math.isfinite(high) else None])
        or "(-∞, ∞)"
    )


# ------------------------------------------------------------------ numbers


def bound_rows(data: CertificateData) -> list[BoundRow]:
    """One row for every entry of the output."""
    arrays = [[float(v) for v in data[key]] for key in ("lower", "upper", "attained_lower", "attained_upper")]
    witnesses = data.get("witnesses") or {}
    sides = [witnesses.get(side) or () for side in ("lower", "upper")]
    rows = []
    for place, (lower, upper, low, high) in enumerate(zip(*arrays, strict=True)):
        proved, met = upper - lower, high - low
        tightness = proved / met if met > 0 else 1.0 if proved == 0 else math.inf
        met_at = tuple(_where(side[place]) if place < len(side) else "" for side in sides)
        rows.append(
            BoundRow(
                entry_name(data["output"], place, data["shape"]),
                lower,
                upper,
                low,
                high,
                tightness,
                (met_at[0], met_at[1]),
            )
        )
    return rows


def _where(witness: Mapping[str, Any]) -> str:
    if witness.get("point") is not None:
        norm = math.hypot(*(float(v) for v in witness["point"]))
        return f"‖x‖ = {power_of_ten(float(f'{norm:.2g}'))}"
    return "the horizon" if witness.get("direction") is not None else ""


def entry_name(output: str, place: int, shape: Sequence[int]) -> str:
    """An entry by its index: ``y[0, 2]``."""
    index: list[str] = []
    for size in reversed(shape):
        place, here = divmod(place, int(size))
        index.append(str(here))
    return f"{output}[{', '.join(reversed(index))}]" if index else output


def _bounded(rows: Sequence[BoundRow]) -> bool:
    return all(math.isfinite(r.lower) and math.isfinite(r.upper) for r in rows)


# ------------------------------------------------------------------ drawing


def bound_drawing(rows: Sequence[BoundRow]) -> dict[str, Any] | None:
    """Where the bars go; None where nothing finite was attained."""
    shown = [r for r in rows if math.isfinite(r.low) and math.isfinite(r.high)][:_DRAWN]
    if not shown:
        return None
    spans = [_span(r) for r in shown]
    widths = [high - low for low, high in spans]
    shared = max(widths) <= _ALIKE * min(widths)
    whole = (min(low for low, _ in spans), max(high for _, high in spans))
    if shared and whole[1] - whole[0] > _ALIKE * min(widths):  # far apart, however alike
        shared = False
    names = [r.name if len(r.name) <= LABEL else f"…{r.name[1 - LABEL :]}" for r in shown]
    left = 18 + LETTER * max(map(len, names))

    def across(value: float, low: float, high: float) -> float:
        share = (value - low) / (high - low)
        return left + (RIGHT - left) * min(max(share, 0.0), 1.0)

    bars = []
    for i, (row, span) in enumerate(zip(shown, spans, strict=True)):
        low, high = whole if shared else span
        bars.append(
            _Bar(
                name=names[i],
                title=f"{row.name}: {row.says}",
                y=TOP + ROW * i,
                proved=(across(row.lower, low, high), across(row.upper, low, high)),
                attained=(across(row.low, low, high), across(row.high, low, high)),
                open_left=not math.isfinite(row.lower),
                open_right=not math.isfinite(row.upper),
            )
        )
    bottom = TOP + ROW * len(bars)
    ticks = [(across(t, *whole), number(t)) for t in _ticks(*whole)] if shared else []
    return {
        "bars": bars,
        "ticks": ticks,
        "shared": shared,
        "width": WIDTH,
        "height": bottom + (26 if shared else 4),
        "bottom": bottom,
        "left": left,
        "right": RIGHT,
        "row": ROW,
        "hidden": len(rows) - len(shown),
    }


def _span(row: BoundRow) -> tuple[float, float]:
    """What the bar of an output covers; an infinite end stands a little outside what was attained."""
    room = 0.5 * (row.high - row.low) or 0.5 * max(abs(row.low), 1e-300)
    low = row.lower if math.isfinite(row.lower) else row.low - room
    high = row.upper if math.isfinite(row.upper) else row.high + room
    if not high > low:
        low, high = low - room, high + room
    return max(low, -_FARTHEST), min(high, _FARTHEST)


def _ticks(low: float, high: float) -> list[float]:
    """Up to eight round numbers."""
    step: float = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(s * step for s in (1.0, 2.0, 5.0, 10.0) if (high - low) / (s * step) <= 8)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [k * step for k in range(first, last + 1)]
