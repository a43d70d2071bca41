"""The checker's own arithmetic: numbers that err on the safe side.

Nothing here is shared with the code that finds bounds. A ``Rough`` array is (mid, rad): the true number lies within
rad of mid. Sums and products add what float64 may lose, by the standard bound |fl(Σ a·b) − Σ a·b| ≤ γ_k Σ|a||b|,
γ_k = k·u/(1 − k·u), in any order of summation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from farfield.errors import FarfieldError

__all__ = [
    "EVALUATION",
    "LARGEST",
    "OVER",
    "TINY",
    "Array",
    "CertificateError",
    "Rough",
    "U",
    "gamma",
    "over",
    "positive_semidefinite",
    "spectral_norm",
]

Array: TypeAlias = npt.NDArray[np.float64]
U = 2.0**-53
OVER = 1.0 + 2.0**-36
"""Above what rounding takes from a sum of up to 2¹⁶ numbers that are not negative."""
TINY = 1e-290
"""Above what underflow takes."""
EVALUATION = 2.0**-46
"""One evaluation of an activation is right to this share of 1 + |z| + |σ(z)|."""
LARGEST = 60_000_000


class CertificateError(FarfieldError):
    """A certificate was refused; the message says which check failed, where, and by how much."""


def gamma(terms: float) -> float:
    """What a sum of this many products may lose, of the sum of their sizes."""
    return terms * U / (1.0 - terms * U) * OVER


def over(value: Array) -> Array:
    """A little more than a computed sum of numbers that are not negative."""
    return value * OVER + TINY


# -- midpoint and radius -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rough:
    """Numbers within ``rad`` of ``mid``."""

    mid: Array
    rad: Array

    @staticmethod
    def exact(mid: Array) -> Rough:
        """Numbers that are what they are."""
        return Rough(mid, np.zeros_like(mid))

    @property
    def top(self) -> Array:
        """The largest size."""
        return over(np.abs(self.mid) + self.rad)

    @property
    def T(self) -> Rough:  # noqa: N802
        """Transposed."""
        return Rough(self.mid.T, self.rad.T)

    def __add__(self, other: Rough) -> Rough:
        mid = self.mid + other.mid
        lost = np.where((self.mid == 0) | (other.mid == 0), 0.0, np.abs(mid)) * U
        rad = self.rad + other.rad + lost
        return Rough(mid, np.where(rad > 0, over(rad), 0.0))

    def __mul__(self, other: Rough) -> Rough:
        mid = self.mid * other.mid
        trivial = (self.mid == 0) | (np.abs(self.mid) == 1) | (other.mid == 0) | (np.abs(other.mid) == 1)
        rad = np.abs(self.mid) * other.rad + self.rad * (np.abs(other.mid) + other.rad)
        rad = rad + np.where(trivial, 0.0, np.abs(mid) * U + TINY)
        return Rough(mid, np.where(rad > 0, over(rad), 0.0))

    def __neg__(self) -> Rough:
        return Rough(-self.mid, self.rad)

    def __matmul__(self, other: Rough) -> Rough:
        left, right = np.abs(self.mid), np.abs(other.mid)
        rad = gamma(self.mid.shape[-1] + 2) * (left @ right)
        if other.rad.any():
            rad = rad + left @ other.rad
        if self.rad.any():
            rad = rad + self.rad @ (right + other.rad)
        return Rough(self.mid @ other.mid, over(rad))

    def __getitem__(self, key: Any) -> Rough:
        return Rough(self.mid[key], self.rad[key])


def positive_semidefinite(matrix: Rough) -> bool:
    """Whether every symmetric matrix within the radii is positive semidefinite.

    With A scaled by powers of two: if Cholesky runs to its end on A − D, D diagonal, then A − D + Δ is positive
    semidefinite for some |Δ_ij| ≤ γ/(1 − γ)·√(a_ii a_jj), γ = γ_{n+1} (Demmel). A symmetric matrix with entries below
    e_ij is at least −diag(Σ_j e_ij). So D = the row sums of the radii and of that bound proves the claim.
    """
    mid = (matrix.mid + matrix.mid.T) / 2
    rad = np.maximum(matrix.rad, matrix.rad.T) + U * np.abs(mid)
    size, diagonal = mid.shape[0], np.diagonal(mid)
    if not (np.isfinite(mid).all() and np.isfinite(rad).all() and (diagonal > 0).all()):
        return False
    scale = np.exp2(-np.round(0.5 * np.log2(diagonal)))
    mid, rad = scale[:, None] * mid * scale, scale[:, None] * rad * scale
    root = np.sqrt(np.diagonal(mid)) * (1 + 4 * U)
    backward = gamma(size + 1) / (1.0 - gamma(size + 1)) * np.outer(root, root)
    shift = over(rad.sum(1) + backward.sum(1)) * (1 + 2.0**-30) + 4 * U * np.diagonal(mid) + TINY
    lowered = mid - np.diag(shift)
    try:
        return bool(np.isfinite(np.linalg.cholesky(lowered)).all() and (np.diagonal(lowered) > 0).all())
    except np.linalg.LinAlgError:
        return False


def spectral_norm(matrix: Rough) -> float:
    """A proved upper bound of the largest singular value."""
    if matrix.mid.size == 0:
        return 0.0
    small = matrix if matrix.mid.shape[0] >= matrix.mid.shape[1] else matrix.T
    gram = small.T @ small
    guess = float(np.linalg.norm(small.mid, 2)) ** 2
    for spare in (1e-9, 1e-6, 1e-3):
        top = guess * (1 + spare) + TINY
        if positive_semidefinite(Rough.exact(top * np.eye(len(gram.mid))) + -gram):
            return math.sqrt(top) * (1 + 4 * U)
    return math.sqrt(float((small.top * small.top).sum()) * OVER + TINY) * (1 + 4 * U)
