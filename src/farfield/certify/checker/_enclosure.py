"""An ellipsoid around what a norm makes of a bounded region, proved from the weights that a certificate lists.

This checker's own arithmetic; what the weights are is said in :mod:`farfield.certify._enclosure`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from farfield.certify.checker._cone import DomainCone
from farfield.certify.checker._dual_data import lengths, numbers, whitened
from farfield.certify.checker._values import (
    TINY,
    Array,
    CertificateError,
    MidRad,
    U,
    positive_semidefinite,
    round_up,
)

__all__ = ["Ellipsoid", "enclosing_ellipsoid"]

LEAST_WEIGHT = 1e-200
"""Smaller ones are 0 or none: products with them may lose more than the radii hold."""
SPARES = (1e-12, 1e-9, 1e-6, 1e-3, 0.1)
"""Of a pivot, that are tried as what rounding may take from it."""


@dataclass(frozen=True)
class Ellipsoid:
    """q(x) = vᵀ form v ≤ 0 for v = (1, x), x = u − center; x in white·(unit ball); t at least ``least``."""

    center: Array
    form: MidRad
    white: MidRad
    least: float


def enclosing_ellipsoid(gram: MidRad, cone: DomainCone, data: Mapping[str, Any], name: str) -> Ellipsoid:
    """What the listed weights prove of the u with uᵀ gram u = 1 in a region's cone, both around the same point."""
    size, forms = len(gram.mid), cone.count
    largest, center, weights = (
        numbers(data[key], count, f"{key} of {name}")
        for key, count in (("largest", forms), ("center", size), ("weights", forms + 2))
    )
    if (weights < 0).any():
        raise CertificateError(f"The ellipsoid around {name!r} has a negative weight: {weights.min():.3g}.")
    if ((weights > 0) & (weights < LEAST_WEIGHT)).any():
        raise CertificateError(f"The ellipsoid around {name!r} has a weight below {LEAST_WEIGHT:g}.")
    pivot = _pivot(gram + cone.quadratic(largest))
    if not pivot > 0:
        raise CertificateError(f"The weights for the region of {name!r} prove no largest t.")
    high, low = 1.0 / math.sqrt(pivot) * (1 + 8 * U), 0.0
    if data["least"]:
        pivot = _pivot(cone.quadratic(numbers(data["least"], forms, f"least of {name}")) + -gram)
        low = 1.0 / math.sqrt(-pivot) * (1 - 8 * U) if pivot < 0 else 0.0
    alpha, theta = (MidRad.exact(np.full((1, 1), w)) for w in weights[:2])
    last = np.zeros((size, size))
    last[-1, -1] = 1.0
    matrix = gram * alpha + MidRad.exact(last) * theta + cone.quadratic(weights[2:])
    ends = MidRad.exact(np.array([[low]])), MidRad.exact(np.array([[high]]))
    half = (ends[0] + ends[1]) * theta * MidRad.exact(np.array([[-0.5]]))
    line = MidRad.exact(np.zeros((size, 1)))
    line.mid[-1], line.rad[-1] = half.mid[0], half.rad[0]
    at = MidRad.exact(center[:, None])
    image = matrix @ at
    tilt = image + line
    corner = at.T @ (image + line + line) + ends[0] * ends[1] * theta + -alpha
    white = whitened(matrix)
    if white is None:
        raise CertificateError(f"The weights for the region of {name!r} make no ellipsoid.")
    # xᵀAx + 2·tilt·x + corner ≤ 0, and |tilt·x| ≤ ‖Wᵀtilt‖·s for xᵀAx = s².
    slip = float(lengths(tilt.T @ white)[0])
    square = max(0.0, float(round_up(corner.rad - corner.mid)[0, 0]))
    reach = (slip + math.sqrt(slip**2 + square)) * (1 + 16 * U) + TINY
    if not np.isfinite([reach, *corner.top.flat, *tilt.top.flat]).all():
        raise CertificateError(f"The weights for the region of {name!r} are too large for float64.")
    mid, rad = np.zeros((2, size + 1, size + 1))
    for made, part in ((mid, "mid"), (rad, "rad")):
        made[1:, 1:], made[:1, :1] = getattr(matrix, part), getattr(corner, part)
        made[1:, :1], made[:1, 1:] = getattr(tilt, part), getattr(tilt, part).T
    return Ellipsoid(center, MidRad(mid, rad), white * MidRad.exact(np.full((1, 1), reach)), low)


def _pivot(matrix: MidRad) -> float:
    """γ, proved: matrix − γ·e eᵀ is positive semidefinite, e the last unit vector; −∞ where none was found."""
    middle = (matrix.mid + matrix.mid.T) / 2
    loose = np.maximum(matrix.rad, matrix.rad.T) + 2 * U * np.abs(matrix.mid)
    # Σ E_ij v_i v_j ≤ Σ_i v_i² Σ_j E_ij s_j/s_i for any s > 0.
    root = np.sqrt(np.maximum(np.abs(np.diagonal(middle)), TINY))
    taken = round_up((loose @ (1.0 / root)) * root) * (1 + 8 * U)
    lowered = middle - np.diag(taken + 4 * U * (np.abs(np.diagonal(middle)) + taken))
    try:
        column = lowered[:-1, -1]
        guess = float(lowered[-1, -1] - column @ np.linalg.solve(lowered[:-1, :-1], column))
    except np.linalg.LinAlgError:
        return -math.inf
    if not math.isfinite(guess):
        return -math.inf
    corner = float(lowered[-1, -1])
    for spare in SPARES:
        pivot = guess - spare * (abs(guess) + U * abs(corner))
        tried = lowered.copy()
        tried[-1, -1] = corner - pivot - 8 * U * (abs(corner) + abs(pivot))
        if positive_semidefinite(tried):
            return pivot
    return -math.inf
