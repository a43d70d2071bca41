"""The checker's arithmetic: numbers that err on the safe side.

A :class:`MidRad` array is (mid, rad): the true number lies within rad of mid. Sums and products add what float64 may
lose, by the standard bound |fl(Σ a·b) − Σ a·b| ≤ γ_k Σ|a||b|, γ_k = k·u/(1 − k·u), in any order of summation
(Higham, *Accuracy and Stability of Numerical Algorithms*, §3.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from farfield.errors import FarfieldError
from farfield.graph import Node, compute_node

__all__ = [
    "EVALUATION",
    "TINY",
    "Array",
    "CertificateError",
    "MidRad",
    "Span",
    "U",
    "gamma",
    "positive_semidefinite",
    "round_up",
    "run",
    "sizes",
    "spectral_norm",
]

Array: TypeAlias = npt.NDArray[np.float64]
Span: TypeAlias = tuple[Array, Array]
"""Lower and upper ends."""
U = 2.0**-53
OVER = 1.0 + 2.0**-36
"""Above what rounding takes from a sum of up to 2¹⁶ numbers that are not negative."""
TINY = 1e-290
"""Above what underflow takes."""
EVALUATION = 2.0**-46
"""One evaluation of an activation is right to this share of 1 + |z| + |σ(z)|."""


class CertificateError(FarfieldError):
    """A certificate was refused; the message says which check failed, where, and by how much."""


def gamma(terms: float) -> float:
    """What a sum of this many products may lose, of the sum of their sizes."""
    return terms * U / (1.0 - terms * U) * OVER


def round_up(value: Array) -> Array:
    """A little more than a computed sum of non-negative numbers."""
    return value * OVER + TINY


@dataclass(frozen=True)
class MidRad:
    """Numbers within ``rad`` of ``mid``."""

    mid: Array
    rad: Array

    @staticmethod
    def exact(mid: Array) -> MidRad:
        """Exact values: radius 0."""
        return MidRad(mid, np.zeros_like(mid))

    @staticmethod
    def between(low: Array, high: Array) -> MidRad:
        """The interval [low, high]."""
        mid = low / 2 + high / 2
        return MidRad(mid, round_up(np.maximum(high - mid, mid - low) + U * np.abs(mid)))

    @property
    def top(self) -> Array:
        """The largest size."""
        return round_up(np.abs(self.mid) + self.rad)

    @property
    def span(self) -> Span:
        """Lower and upper ends."""
        reach = round_up(self.rad + 2 * U * np.abs(self.mid))
        return self.mid - reach, self.mid + reach

    @property
    def T(self) -> MidRad:  # noqa: N802
        """Transposed."""
        return MidRad(self.mid.T, self.rad.T)

    def __add__(self, other: MidRad) -> MidRad:
        mid = self.mid + other.mid
        return MidRad(mid, round_up(self.rad + other.rad + U * np.abs(mid)))

    def __mul__(self, other: MidRad) -> MidRad:
        mid = self.mid * other.mid
        rad = np.abs(self.mid) * other.rad + self.rad * (np.abs(other.mid) + other.rad) + U * np.abs(mid)
        return MidRad(mid, round_up(rad))

    def __neg__(self) -> MidRad:
        return MidRad(-self.mid, self.rad)

    def __matmul__(self, other: MidRad) -> MidRad:
        left, right = np.abs(self.mid), np.abs(other.mid)
        rad = left @ (gamma(self.mid.shape[-1] + 2) * right + other.rad)
        if self.rad.any():
            rad = rad + self.rad @ (right + other.rad)
        return MidRad(self.mid @ other.mid, round_up(rad))

    def __getitem__(self, key: Any) -> MidRad:
        return MidRad(self.mid[key], self.rad[key])

    def reshape(self, *shape: int) -> MidRad:
        """The same numbers in another shape."""
        return MidRad(self.mid.reshape(shape), self.rad.reshape(shape))


def positive_semidefinite(matrix: Array) -> bool:
    """Whether this symmetric matrix, taken as exact, is positive semidefinite.

    With A scaled by powers of two: if Cholesky runs to its end on A − D, D diagonal, then A − D + Δ is positive
    semidefinite for some |Δ_ij| ≤ γ/(1 − γ)·√(a_ii a_jj), γ = γ_{n+1} (Demmel). A symmetric matrix with entries below
    e_ij is at least −diag(Σ_j e_ij). So D = the row sums of that bound proves the claim.
    """
    diagonal = np.diagonal(matrix)
    if not (np.isfinite(matrix).all() and (diagonal > 0).all()):
        return False
    scale = np.exp2(-np.round(0.5 * np.log2(diagonal)))
    scaled = scale[:, None] * matrix * scale
    root = np.sqrt(np.diagonal(scaled)) * (1 + 4 * U)
    backward = gamma(len(matrix) + 1) / (1.0 - gamma(len(matrix) + 1)) * np.outer(root, root)
    shift = round_up(backward.sum(1)) * (1 + 2.0**-30) + 4 * U * np.diagonal(scaled)
    lowered = scaled - np.diag(shift)
    try:
        return bool(np.isfinite(np.linalg.cholesky(lowered)).all() and (np.diagonal(lowered) > 0).all())
    except np.linalg.LinAlgError:
        return False


def spectral_norm(matrix: MidRad) -> float:
    """A proved upper bound of the largest singular value: ‖mid‖₂ + ‖rad‖_F."""
    if matrix.mid.size == 0:
        return 0.0
    small = matrix.mid if matrix.mid.shape[0] >= matrix.mid.shape[1] else matrix.mid.T
    gram = MidRad.exact(small.T.copy()) @ MidRad.exact(small)
    loose = math.sqrt(float((matrix.rad**2).sum()) * OVER + TINY) + math.sqrt(float(gram.rad.sum()) * OVER)
    guess = max(float(np.linalg.eigvalsh(gram.mid)[-1]), 0.0)
    for spare in (1e-9, 1e-6, 1e-3):
        top = guess * (1 + spare) + TINY
        if positive_semidefinite(top * np.eye(len(gram.mid)) - (gram.mid + gram.mid.T) / 2):
            return (math.sqrt(top) * (1 + 1e-12) + loose) * (1 + 4 * U)
    return math.sqrt(float((small * small).sum()) * OVER + TINY) * (1 + 4 * U) + loose


def sizes(node: Node) -> tuple[int, ...]:
    """A node's shape as numbers."""
    return tuple(int(d) for d in node.shape)


def run(node: Node, arrays: Sequence[Any], rows: Sequence[int] = ()) -> Any:
    """What an operation computes in float64; for every row of the operands in ``rows``, if there are any.

    Numpy in, numpy out; tensors (masks, indices) and ``None`` are passed on as they are.
    """
    tensors = [torch.from_numpy(np.ascontiguousarray(a)) if isinstance(a, np.ndarray) else a for a in arrays]

    def step(*moving: torch.Tensor) -> Any:
        full = list(tensors)
        for i, tensor in zip(rows, moving, strict=True):
            full[i] = tensor
        return compute_node(node, full, {}, torch.float64)

    made: Any = torch.vmap(step)(*(tensors[i] for i in rows)) if rows else step()
    return tuple(m.numpy() for m in made) if isinstance(made, tuple) else made.numpy()
