"""Gram matrices of a batch: how close to orthogonal, and what normalization and depth do to that.

Holds: isometry and its gap, Lyapunov γ, soft cosine, mean-field dynamics, the gap along a network; in ``bounds`` P2's
statements as they hold, in ``spectrum`` the ends of a spectrum.
May import: errors, gaussian, _typing.
Never: builds networks or touches data.
"""

from __future__ import annotations

from farfield.geometry._gram import gram, normalized_gram, soft_cosine
from farfield.geometry._isometry import feature_isometry_gap, isometry, isometry_gap, lyapunov
from farfield.geometry._mean_field import mean_field_gaps, mean_field_step
from farfield.geometry._normalization import normalization_gain
from farfield.geometry._record import IsometryRecord, record_isometry

__all__ = [
    "IsometryRecord",
    "feature_isometry_gap",
    "gram",
    "isometry",
    "isometry_gap",
    "lyapunov",
    "mean_field_gaps",
    "mean_field_step",
    "normalization_gain",
    "normalized_gram",
    "record_isometry",
    "soft_cosine",
]
