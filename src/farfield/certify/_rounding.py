"""Rounding, bounded: what a float64 product, norm or factorization may be off by, on the safe side."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["TINY", "UNIT_ROUNDOFF", "gamma", "positive_definite", "row_norms", "spectral_bound", "with_room"]

UNIT_ROUNDOFF = 2.0**-53
TINY = 2.0**-1000


def gamma(count: float) -> float:
    """γ_k = k·u/(1 − k·u): the relative error of a sum of k products, in any order of summation.

    Higham, *Accuracy and Stability of Numerical Algorithms*, §3.1.
    """
    product = count * UNIT_ROUNDOFF
    return product / (1.0 - product)


def with_room(bound: float) -> float:
    """A bound of an activation, a little larger: room for a checker with numbers of its own.

    Up to four decimals, and by at least 1e-4 of it and at most 1e-3; what has no more than four stays.
    """
    short = round(bound, 4)
    if abs(bound - short) <= 1e-9 * (1 + abs(bound)):
        return bound * (1 + 1e-12)
    return min(bound * (1 + 1e-3), max(math.ceil(bound * 1e4) / 1e4, bound * (1 + 1e-4)))


def row_norms(matrix: Tensor) -> Tensor:
    """‖row‖₂ of every row, rounded upwards."""
    norms: Tensor = torch.linalg.vector_norm(matrix, dim=-1)
    return norms * (1.0 + gamma(matrix.shape[-1] + 4)) + TINY


def spectral_bound(matrix: Tensor, squarings: int = 5) -> float:
    """An upper bound on ‖A‖₂: ‖(AᵀA)^m‖_∞^{1/2m} for m = 2^squarings, rounded upwards.

    Within a factor size^{1/2m} of the norm: below 1.1 for 500 columns and five squarings.
    """
    if matrix.numel() == 0:
        return 0.0
    small = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    gram = small.T @ small
    error = gamma(small.shape[0] + 2) * float((small.abs().T @ small.abs()).sum(1).max())
    # A bound for the exact Gram matrix is the bound for the computed one plus ‖error‖_∞.
    logarithm, exponent = 0.0, 1.0
    size = gram.shape[0]
    for _ in range(squarings):
        top = float(gram.abs().sum(1).max())
        if top == 0.0:
            return math.sqrt(error)
        gram = gram / top
        logarithm += exponent * math.log(top)
        gram = gram @ gram
        exponent /= 2.0
    top = float(gram.abs().sum(1).max()) + squarings * 4 * gamma(size + 4) * size
    return math.sqrt(math.exp(logarithm + exponent * math.log(top)) * (1.0 + 1e-12) + error)


def positive_definite(matrix: Tensor, error: Tensor | float) -> bool:
    """Whether every symmetric matrix within ``error`` (entrywise) of this one is positive definite.

    Proof: Cholesky in floating point that runs to its end on A − cI, with c above the backward error of the
    factorization, γ_{n+2}·tr(A)/(1 − γ_{n+2}), and above the spectral norm of every admitted perturbation (at most
    its largest row sum), proves A + E positive definite. Rump, *Verification of positive definiteness*, BIT 2006.
    """
    size = matrix.shape[0]
    diagonal = torch.diagonal(matrix)
    if not bool(torch.isfinite(matrix).all()) or bool((diagonal <= 0).any()):
        return False
    off = float(error.sum(1).max()) * (1.0 + gamma(size + 2)) if isinstance(error, Tensor) else error * size
    bound = gamma(size + 3)
    shift = 1.01 * (bound / (1.0 - bound) * float(diagonal.sum()) * 2.0 + off) + TINY
    shifted = matrix - shift * torch.eye(size, dtype=matrix.dtype)
    return int(torch.linalg.cholesky_ex((shifted + shifted.T) / 2).info) == 0
