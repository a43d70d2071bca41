"""What a certificate gives, read: numbers, lists, and the domain it speaks of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from farfield.certify.checker._cone import DomainCone
from farfield.certify.checker._values import CertificateError, Span
from farfield.graph import FREE, Program, over_ellipsoid

__all__ = [
    "WITNESS", "bounded_program", "box_around", "cone_of_domain", "finite", "is_inside", "listed", "number",
]  # fmt: skip

PARTS = {
    "box": ("lower", "upper"), "ball": ("center", "radius"), "ellipsoid": ("center", "axes"),
    "halfspace": ("normal", "offset"),
}  # fmt: skip
SINGLE = ("radius", "offset")
WITNESS = 1e-6
"""A witness's value in float64 may differ from the stored one, or pass a bound, by this much of max(1, |value|)."""


def number(value: Any, where: str) -> float:
    """A number, or "inf" and "-inf" as JSON has them."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise CertificateError(f"{where} is a number, not {value!r:.40}.")
    made = float(value)
    if math.isnan(made):
        raise CertificateError(f"{where} is not a number.")
    return made


def listed(value: Any, where: str) -> Sequence[Any]:
    """A list."""
    if not isinstance(value, list | tuple):
        raise CertificateError(f"{where} is a list, not {type(value).__name__}.")
    return value


def bounded_program(
    program: Program, domain: Mapping[str, Any]
) -> tuple[Program, dict[str, Span], str | None]:
    """(the program to bound, ranges of its real inputs, the one of them that runs through all of ℝⁿ)."""
    real = [spec for spec in program.inputs if spec.kind == "real"]
    kind = domain["kind"]
    if kind == "all":
        return program, {}, real[0].name if len(real) == 1 else None
    if kind not in PARTS or not real:
        raise CertificateError(
            "A certificate's domain is all inputs, or a box, ball, ellipsoid or half-space of the real ones."
        )
    shapes = [tuple(int(d) for d in spec.shape) for spec in real]
    total = sum(math.prod(s) for s in shapes)
    vectors = {name: _vector(domain[name], total, name) for name in PARTS[kind] if name not in SINGLE}
    if kind == "halfspace":
        raise CertificateError("A proof over a half-space is over its cone, or about every input.")
    if kind == "ball":
        vectors["axes"] = np.full(total, finite(domain["radius"], "the ball's radius"))
    if kind in ("ball", "ellipsoid"):
        return over_ellipsoid(program, *(torch.from_numpy(vectors[k]) for k in ("center", "axes"))), {}, FREE
    ends = vectors["lower"], vectors["upper"]
    if not (ends[0] <= ends[1]).all():
        raise CertificateError(f"The box needs {total} lower ends, each at most the upper one.")
    made, begin = {}, 0
    for spec, shape in zip(real, shapes, strict=True):
        part = slice(begin, begin + math.prod(shape))
        made[spec.name] = (ends[0][part].reshape(shape), ends[1][part].reshape(shape))
        begin = part.stop
    return program, made, None


def box_around(program: Program, domain: Mapping[str, Any]) -> Mapping[str, Any]:
    """The box around a ball or an ellipsoid, rounded outwards."""
    cone = cone_of_domain(program, domain)
    if cone is None or cone.kind != "ellipsoid":
        raise CertificateError("Only a ball or an ellipsoid has proofs over the box around it.")
    center, axes = cone.parts["center"], cone.parts["axes"]
    lower, upper = np.nextafter(center - axes, -math.inf), np.nextafter(center + axes, math.inf)
    return {"kind": "box", "lower": lower.tolist(), "upper": upper.tolist()}


def cone_of_domain(program: Program, domain: Mapping[str, Any]) -> DomainCone | None:
    """The domain in homogeneous coordinates; ``None`` for every input."""
    kind = domain["kind"]
    if kind == "all":
        return None
    if kind not in PARTS:
        raise CertificateError(f"There is no domain of kind {kind!r:.40}.")
    total = sum(math.prod(int(d) for d in s.shape) for s in program.inputs if s.kind == "real")
    parts = {
        name: np.full(total, finite(domain[name], name))
        if name in SINGLE
        else _vector(domain[name], total, name)
        for name in PARTS[kind]
    }
    if kind == "ball":
        kind, parts = "ellipsoid", {"center": parts["center"], "axes": parts["radius"]}
    if kind == "ellipsoid" and (parts["axes"] < 0).any():
        raise CertificateError("A ball's radius and an ellipsoid's axes are not negative.")
    return DomainCone(kind, parts)


def _vector(value: Any, size: int, name: str) -> Any:
    made = np.array([number(v, f"the domain's {name}") for v in listed(value, name)])
    if made.size != size:
        raise CertificateError(f"The domain's {name} needs {size} numbers, one for each real input entry.")
    return made


def finite(value: Any, where: str) -> float:
    """A finite number."""
    made = number(value, where)
    if math.isinf(made):
        raise CertificateError(f"{where} is a finite number.")
    return made


def is_inside(domain: Mapping[str, Any], point: Any) -> bool:
    """Whether a point of the real inputs lies in the domain, up to what a witness may be off by."""
    kind, loose = domain["kind"], WITNESS * np.maximum(1.0, np.abs(point))
    if kind == "box":
        low, high = (_vector(domain[k], point.size, k) for k in ("lower", "upper"))
        return bool(((point >= low - loose) & (point <= high + loose)).all())
    if kind in ("ball", "ellipsoid"):
        center = _vector(domain["center"], point.size, "center")
        given = [domain["radius"]] * point.size if kind == "ball" else domain["axes"]
        axes = _vector(given, point.size, "axes")
        away = np.maximum(0.0, np.abs(point - center) - loose)
        if (away[axes == 0] > 0).any():
            return False
        return bool(np.linalg.norm(away[axes > 0] / axes[axes > 0]) <= 1.0 + WITNESS)
    if kind == "halfspace":
        normal = _vector(domain["normal"], point.size, "normal")
        return bool(normal @ point <= finite(domain["offset"], "offset") + np.abs(normal) @ loose)
    return True
