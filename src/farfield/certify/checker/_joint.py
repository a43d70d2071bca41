"""The joint part of a dual proof: how large −vᵀMv can be."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from farfield.certify.checker._values import (
    TINY,
    Array,
    CertificateError,
    MidRad,
    U,
    positive_semidefinite,
    round_up,
)

__all__ = ["joint_bound"]

LIFTS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
"""Shares of M's diagonal that are tried as D."""
ROOMS = (1e-13, 1e-11, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
"""Shares of the bound that are tried as what the factorization's own rounding may cost."""


def joint_bound(matrix: MidRad, reach: Array, price: Callable[[Array], float], definite: bool) -> float:
    """At least max −vᵀMv over v = (1, …) with |v| ≤ ``reach``.

    What rounding leaves open in M costs reachᵀE reach, and a diagonal D that makes M positive costs ``price(D)``.
    Where M is positive by more than that already (``definite`` asks for a try), nothing depends on the ranges.
    """
    lowered = (matrix.mid + matrix.mid.T) / 2
    loose = np.maximum(matrix.rad, matrix.rad.T) + 2 * U * np.abs(matrix.mid)
    best = _everywhere(lowered, loose) if definite else math.inf
    size = len(lowered)
    open_ = float(reach @ (loose @ reach)) * (1 + 1e-12)
    # A variable may stand on no diagonal at all: D has a share of M's size for it as well.
    diagonal = np.abs(np.diagonal(lowered)) + 1e-3 * np.abs(lowered[0, 0]) / np.maximum(reach, TINY) ** 2
    for lift in LIFTS if best == math.inf else ():
        extra = (lift + 4 * U * (size + 2) ** 2) * (diagonal + TINY)
        extra[0] = 0.0
        best = min(best, _raised(lowered, extra, price(extra), open_, best))
    if best < math.inf:
        return best
    raise CertificateError(
        "These multipliers bound nothing: the joint part's quadratic form is not positive."
    )


def _everywhere(lowered: Array, loose: Array) -> float:
    """The same for every v, of any size: ∞ where M less what is open is not positive.

    Σ E_ij v_i v_j ≤ Σ_ij E_ij (v_i²s_j/s_i + v_j²s_i/s_j)/2 for any s > 0: a diagonal that is taken from M.
    """
    diagonal = np.diagonal(lowered)
    if not (diagonal[1:] > 0).all():
        return math.inf
    scale = 1.0 / np.sqrt(np.maximum(np.abs(diagonal), TINY))
    taken = round_up((loose @ scale) / scale) * (1 + 8 * U) + 4 * U * np.abs(diagonal)
    return _raised(lowered, -taken, 0.0, 0.0, math.inf)


def _raised(lowered: Array, extra: Array, price: float, open_: float, best: float) -> float:
    """The bound with a diagonal added to M; ∞ where it is not positive, or not better than ``best``."""
    size = len(lowered)
    raised = lowered + np.diag(extra)
    corner, line, inner = float(raised[0, 0]), raised[0, 1:], raised[1:, 1:]
    try:
        peak = float(line @ np.linalg.solve(inner, line)) if size > 1 else 0.0
    except np.linalg.LinAlgError:
        return math.inf
    for spare in ROOMS:
        room = spare * (abs(peak) + abs(corner) + price) + TINY
        raised[0, 0] = peak + room + 4 * U * (size + 2) ** 2 * (abs(peak) + abs(corner))
        gamma_ = float(raised[0, 0]) - corner
        made = (gamma_ + price + open_) + 8 * U * (abs(gamma_) + abs(corner) + price + open_)
        if not made < best:
            break
        if positive_semidefinite(raised):
            return made
    return math.inf
