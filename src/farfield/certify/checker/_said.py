"""What a certificate says beside its bounds: held against the model and the proofs, or named as unchecked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farfield.certify.checker._given import listed, number
from farfield.certify.checker._values import CertificateError
from farfield.graph import Program, describe

__all__ = ["Verification", "check_said"]

FORMATS = ("float64", "float32", "bfloat16")
"""Formats whose rounding a certificate may cover."""
_ARRAYS = ("lower", "upper", "attained_lower", "attained_upper")
_ADDED = (
    "arithmetic: how much rounding adds (the checker only sees that this much was added, and that the format is the "
    "model's)"
)
_ALWAYS = (
    "float_limit: where floating-point results begin to differ was tried on a few rays",
    "advice, seconds and provenance",
)


@dataclass(frozen=True)
class Verification:
    """An accepted certificate: true, with what its bounds rest on and what was not checked.

    Parameters
    ----------
    assumptions
        What the bounds rest on, by the checker's own reading of the model.
    unchecked
        Fields of the certificate that nobody checked, in words.
    """

    assumptions: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"accepted; not checked: {'; '.join(self.unchecked) or 'nothing'}"


def check_said(program: Program, data: Mapping[str, Any]) -> Verification:
    """Refuse what contradicts the model, the bounds or the proofs; list what can't be told.

    The proofs and the witnesses themselves are checked elsewhere.
    """
    _check_shapes(program, data)
    _check_figures(data)
    kinds = {str(proof["kind"]) for proof in listed(data["proofs"], "proofs")}
    if data.get("method", "mixed") != "mixed" and kinds - {data["method"]}:
        raise CertificateError(
            f"Its method is {data['method']!r:.40}; its proofs are {', '.join(sorted(kinds))}."
        )
    required = _required(program, data)
    stored = listed(data.get("assumptions", ()), "assumptions")
    for text in required:
        if text not in stored:
            raise CertificateError(f"It leaves out what its bounds rest on: {text!r}")
    seen = (f"The capture could not see: {text}" for text in program.unseen)
    unchecked = [_ADDED] if data.get("arithmetic") is not None else []
    unchecked += _attained(program, data)
    return Verification(tuple(dict.fromkeys((*required, *seen))), (*unchecked, *_ALWAYS))


def _check_shapes(program: Program, data: Mapping[str, Any]) -> None:
    for what, real in (
        ("shape", program.node(data["output"]).shape),
        ("input_shape", [spec.shape for spec in program.inputs]),
        ("input_dtype", [str(s.dtype).removeprefix("torch.") for s in program.inputs]),
    ):
        if what in data and _plain(data[what]) != _plain(real):
            raise CertificateError(f"Its {what} is {data[what]!r:.60}; the model's is {_plain(real)!r:.60}.")


def _plain(value: Any) -> Any:
    """Lists for tuples, so that what was read from JSON compares."""
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _check_figures(data: Mapping[str, Any]) -> None:
    """What is computed from the bounds is what comes out; what was attained lies between them. Absent is no claim."""
    known = {"attained_lower": data["lower"], "attained_upper": data["upper"], **data}
    lower, upper, low, high = ([number(v, name) for v in listed(known[name], name)] for name in _ARRAYS)
    if not len(lower) == len(upper) == len(low) == len(high):
        raise CertificateError("It has as many attained values as bounds.")
    finite = all(map(math.isfinite, (*lower, *upper)))
    if data.get("bounded", finite) is not finite:
        raise CertificateError("It is called bounded, or not bounded, against its bounds.")
    tightness = [number(v, "tightness") for v in listed(data.get("tightness", []), "tightness")]
    if tightness and len(tightness) != len(lower):
        raise CertificateError("It has a tightness for every bound.")
    for place, (a, b, c, d) in enumerate(zip(lower, low, high, upper, strict=True)):
        if not a <= b <= c <= d:
            raise CertificateError(
                f"Entry {place}: what it attained, [{b:.6g}, {c:.6g}], is not between its bounds."
            )
        if tightness:
            met = c - b
            real = (d - a) / met if met > 0 else 1.0 if d == a and met == 0 else math.inf
            if not (tightness[place] == real or abs(tightness[place] - real) <= 1e-9 * real):
                raise CertificateError(
                    f"The tightness of entry {place} is {real:.6g}, not {tightness[place]:.6g}."
                )


def _required(program: Program, data: Mapping[str, Any]) -> list[str]:
    """The assumptions of every certificate of this program; what they say is part of the format."""
    arithmetic = data.get("arithmetic")
    first = "Real arithmetic: rounding of the model's own forward pass is not covered; see float_limit."
    if arithmetic is not None:
        _check_format(program, arithmetic)
        first = (
            f"Arithmetic: {arithmetic['format']} rounded to nearest; sums in any order, in float32 or better; "
            "variances from deviations; functions (exp, tanh, erf, …) right to 16 units in the last place; no TF32, "
            "no autocast."
        )
    said = [
        first,
        "The model as captured: eval mode, one row, fixed sizes and weights.",
        "float64 functions of the platform (exp, tanh, erf, …) are right to four units in the last place.",
    ]
    if any(not describe(node).deterministic for node in program.nodes):
        said.append(
            "The model draws random numbers: the bounds hold for every draw; attained values are of one draw."
        )
    held = (f"Input {s.name!r} is {s.kind}: bounded by nature." for s in program.inputs if s.kind != "real")
    return [*said, *held]


def _check_format(program: Program, arithmetic: Any) -> None:
    """Rounding is of the format in which every number of the model is kept, up to a magnitude."""
    if not isinstance(arithmetic, Mapping) or arithmetic["format"] not in FORMATS:
        raise CertificateError(
            f"A certificate's arithmetic is a table; its format one of {', '.join(FORMATS)}."
        )
    dtypes = {n.dtype for n in program.nodes if n.dtype is not None and n.dtype.is_floating_point}
    found = {str(dtype).removeprefix("torch.") for dtype in dtypes}
    if found - {arithmetic["format"]}:
        raise CertificateError(
            f"Its arithmetic is {arithmetic['format']}; the model has numbers in {', '.join(sorted(found))}."
        )
    magnitude = number(arithmetic["magnitude"], "the magnitude")
    if not 0 < magnitude < math.inf:
        raise CertificateError(
            f"The magnitude of its inputs is a finite number above 0, not {magnitude:.6g}."
        )


def _attained(program: Program, data: Mapping[str, Any]) -> list[str]:
    """How many attained values have no point at which they could be evaluated again."""
    sides = data.get("witnesses") or {}
    real = all(spec.kind == "real" for spec in program.inputs)
    found: Sequence[Any] = [w for side in ("lower", "upper") for w in (sides.get(side) or ())] if real else ()
    bare = 2 * len(data["lower"]) - sum(witness.get("point") is not None for witness in found)
    return [f"attained values of {bare} sides, which have no point to be evaluated at"] if bare else []
