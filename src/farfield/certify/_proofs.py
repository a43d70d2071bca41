"""Proofs as frozen values, and as the plain data that certificates store and the checker reads.

A proof says sign·output ≤ bound for every input, sign 1 on the upper side and −1 on the lower. Four kinds:

``interval``
    The bound of interval propagation; nothing else is stored.
``cells``
    Trees that divide the domain into cells, on each of which the bound holds.
``dual``
    Multipliers of the Lagrangian, by node name and in natural units (y = σ(z) as the model computes them): see
    :class:`DualProof`.
``softmax``
    Bounds on the differences of the logits.

Arrays are little-endian float64 (products float32), deflated, in base 64.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from farfield.errors import InvalidValueError

__all__ = [
    "BoxMultipliers",
    "CellsProof",
    "CurveMultipliers",
    "DualProof",
    "Enclosure",
    "IntervalProof",
    "NormMultipliers",
    "Proof",
    "SoftmaxProof",
    "pack",
    "read_proof",
    "weakened",
]


def pack(values: Tensor, kind: str = "<f8") -> str:
    """A tensor's entries as text."""
    raw = values.detach().numpy().astype(kind).tobytes()
    return base64.b64encode(zlib.compress(raw, 3)).decode("ascii")


def _unpack(text: str, kind: str = "<f8") -> Tensor:
    """The inverse of :func:`_pack`, flat and float64."""
    raw = zlib.decompress(base64.b64decode(text))
    return torch.from_numpy(np.frombuffer(raw, dtype=kind).astype(np.float64))


@dataclass(frozen=True)
class _Proof:
    """A bound of sign·f for entry ``output`` of the flattened output."""

    kind: ClassVar[str]
    output: int
    sign: int
    bound: float

    def _head(self) -> dict[str, Any]:
        return {"kind": self.kind, "output": self.output, "side": "upper" if self.sign > 0 else "lower"}

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**self._head(), "bound": self.bound}


@dataclass(frozen=True)
class IntervalProof(_Proof):
    """Interval propagation."""

    kind: ClassVar[str] = "interval"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> IntervalProof:
        """What ``to_dict`` gave."""
        return cls(*_common(data))


@dataclass(frozen=True)
class CellsProof(_Proof):
    """The cells that prove a bound.

    Parameters
    ----------
    attained
        sign·f reaches this in float64.
    point, finite
        Where: an input, or, where ``finite`` is false, a direction in which it is approached.
    trees
        Per face, preorder: a digit is the axis halved, ``.`` a cell, ``x`` a cell outside the domain.
    matrix, shift
        u = matrix @ p + shift.
    cells, bounded, seconds
        Cells in the trees, cells bounded on the way, time taken.
    status
        ``"met"``, ``"deadline"`` or ``"memory"``.
    """

    kind: ClassVar[str] = "cells"
    attained: float
    point: tuple[float, ...]
    finite: bool
    trees: tuple[str, ...]
    matrix: tuple[tuple[float, ...], ...]
    shift: tuple[float, ...]
    cells: int
    bounded: int
    seconds: float
    status: str

    @property
    def ratio(self) -> float:
        """1 + (bound − attained)/|attained|: 1 is tight."""
        if not self.attained:
            return math.inf if self.bound > self.attained else 1.0
        return 1.0 + (self.bound - self.attained) / abs(self.attained)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**self._head(), "output_index": self.output, **asdict(self), "output": self.output}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CellsProof:
        """What ``to_dict`` gave, also after a way through JSON."""
        output, sign, bound = _common(data)
        rest = {f.name: data[f.name] for f in fields(cls)[3:]}
        rest |= {name: tuple(rest[name]) for name in ("point", "trees", "shift")}
        rest["matrix"] = tuple(tuple(row) for row in rest["matrix"])
        return cls(output, sign, bound, **rest)


class _Arrays:
    """Tensors by name, as text; ``None`` is left out."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        return {name: pack(value) for name, value in values if value is not None}


@dataclass(frozen=True)
class CurveMultipliers(_Arrays):
    """θ and r of z, and, where y is a variable of the joint part, t, e, s; the range of z maxima were taken over."""

    theta: Tensor
    r: Tensor
    lo: Tensor
    hi: Tensor
    t: Tensor | None = None
    e: Tensor | None = None
    s: Tensor | None = None


@dataclass(frozen=True)
class BoxMultipliers(_Arrays):
    """t, s and the range of a node that is known by its range alone."""

    t: Tensor
    s: Tensor
    lo: Tensor
    hi: Tensor


@dataclass(frozen=True)
class Enclosure:
    """Weights that prove an ellipsoid around what a norm makes of a region (:mod:`farfield.certify._enclosure`).

    Parameters
    ----------
    shift
        c: the region is described around it, u = ((x − c)·t, t).
    largest, least
        One weight μ per form of the region, for the largest and the least t; no ``least`` where none is proved.
    weights
        α of uᵀGu − 1, θ of t's range, then μ of every form.
    center
        Where the ellipsoid's variables have their 0.
    """

    shift: tuple[float, ...]
    largest: tuple[float, ...]
    least: tuple[float, ...]
    weights: tuple[float, ...]
    center: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {name: list(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Enclosure:
        """What ``to_dict`` gave."""
        return cls(*(tuple(float(v) for v in data[name]) for name in cls.__dataclass_fields__))


@dataclass(frozen=True)
class NormMultipliers:
    """κ per group, ω where the norm centers (0 elsewhere).

    ``parametrized``: whether the norm's value is C u on {u : ‖C u‖²/count + ε t² = 1} (C the centered affine map of
    the homogeneous input), or only its image. ``enclosure``: what proves a smaller ellipsoid over a region; ``mu``,
    in earlier certificates: weights of the region's forms in an ellipsoid around 0.
    ``nested``: whether the value is C x̂ with ‖C x̂‖² + count·ε τ² = count instead, C the centered affine map of the
    layers before it, all of whose variables are multiplied by τ then. κ of an ellipsoid may be negative where no
    region makes it smaller.
    """

    parametrized: bool
    kappa: tuple[float, ...]
    omega: tuple[float, ...]
    mu: tuple[float, ...] = ()
    nested: bool = False
    enclosure: Enclosure | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "parametrized": self.parametrized,
            "kappa": list(self.kappa),
            "omega": list(self.omega),
            **({"mu": list(self.mu)} if self.mu else {}),
            **({"nested": True} if self.nested else {}),
            **({"enclosure": self.enclosure.to_dict()} if self.enclosure else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NormMultipliers:
        """What ``to_dict`` gave."""
        kappa, omega, mu = (tuple(data.get(name, ())) for name in ("kappa", "omega", "mu"))
        held = data.get("enclosure")
        enclosure = None if held is None else Enclosure.from_dict(held)
        return cls(bool(data["parametrized"]), kappa, omega, mu, bool(data.get("nested")), enclosure)


@dataclass(frozen=True)
class DualProof(_Proof):
    """Multipliers of the Lagrangian, by node name.

    Parameters
    ----------
    joint
        γ: the joint part is at most this.
    curves, norms, boxes
        One number per entry of the node (per group for norms).
    forms, products
        Rows of the matrix N of pairwise products, in order: the constant 1; t of every parametrized norm, less its
        least value over a region; τ of every
        nested one; then for every listed (node, a, b, c) the forms a·y + b·z + c ≥ 0 of all its entries, times τ
        where those are. N is symmetric and not negative; in plain data only what is on and above its diagonal is
        stored, the latter twice, and a reader takes the mean of what it finds and its transpose.
    ranges
        Node of a curve → multipliers that prove a smaller range of its arguments, as plain data
        (:mod:`farfield.certify.checker._layers` says what they mean).
    """

    kind: ClassVar[str] = "dual"
    joint: float
    curves: Mapping[str, CurveMultipliers]
    norms: Mapping[str, NormMultipliers]
    boxes: Mapping[str, BoxMultipliers]
    forms: tuple[tuple[str, float, float, float], ...]
    products: Tensor
    ranges: Mapping[str, Any] = field(default_factory=dict)

    @property
    def by_checker(self) -> bool:
        """Whether the bound is rigorous only as the checker derives it."""
        return bool(self.ranges) or self.nested or any(norm.enclosure for norm in self.norms.values())

    @property
    def nested(self) -> bool:
        """Whether one of its norms is."""
        return any(norm.nested for norm in self.norms.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        parts = {name: getattr(self, name) for name in ("curves", "norms", "boxes")}
        return {
            **super().to_dict(),
            "joint": self.joint,
            **{name: {k: v.to_dict() for k, v in part.items()} for name, part in parts.items()},
            "forms": [list(form) for form in self.forms],
            "products": pack(self.products.triu() + self.products.triu(1), "<f4"),
            **({"ranges": dict(self.ranges)} if self.ranges else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DualProof:
        """What ``to_dict`` gave."""
        products = _unpack(data["products"], "<f4")
        products = products.reshape(math.isqrt(products.numel()), -1)
        return cls(
            *_common(data),
            float(data["joint"]),
            {k: CurveMultipliers(**_tensors(v)) for k, v in data["curves"].items()},
            {k: NormMultipliers.from_dict(v) for k, v in data["norms"].items()},
            {k: BoxMultipliers(**_tensors(v)) for k, v in data["boxes"].items()},
            tuple((str(n), float(a), float(b), float(c)) for n, a, b, c in data["forms"]),
            (products + products.T) / 2,
            dict(data.get("ranges", {})),
        )


@dataclass(frozen=True)
class SoftmaxProof(_Proof):
    """A bound on a probability from bounds on the differences of the logits."""

    kind: ClassVar[str] = "softmax"
    differences: tuple[Proof, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**super().to_dict(), "differences": [proof.to_dict() for proof in self.differences]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SoftmaxProof:
        """What ``to_dict`` gave."""
        return cls(*_common(data), tuple(read_proof(part) for part in data["differences"]))


Proof: TypeAlias = IntervalProof | CellsProof | DualProof | SoftmaxProof
_KINDS: Mapping[str, type[Proof]] = {
    kind.kind: kind for kind in (IntervalProof, CellsProof, DualProof, SoftmaxProof)
}


def read_proof(data: Mapping[str, Any]) -> Proof:
    """The proof behind plain data."""
    kind = str(data.get("kind"))
    if kind not in _KINDS:
        raise InvalidValueError(f"A proof's kind is one of {', '.join(_KINDS)}, not {kind!r}.")
    return _KINDS[kind].from_dict(data)


def weakened(proof: Proof, bound: float) -> Proof:
    """The same proof of a larger bound."""
    return replace(proof, bound=bound)


def _common(data: Mapping[str, Any]) -> tuple[int, int, float]:
    return int(data["output"]), 1 if data["side"] == "upper" else -1, float(data["bound"])


def _tensors(data: Mapping[str, str]) -> dict[str, Tensor]:
    return {name: _unpack(text) for name, text in data.items()}
