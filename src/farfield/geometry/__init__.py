"""Gram matrices of a batch: how close to orthogonal, and what normalisation and depth do to that.

Holds: isometry and its gap, Lyapunov γ, soft cosine, P2's statements as they hold, mean-field dynamics, the gap along
a network, ends of a spectrum.
May import: errors, gaussian, _typing.
Never: builds networks or touches data.
"""

from __future__ import annotations

from farfield.geometry._bounds import (
    correlation_contraction,
    gap_bound_from_lyapunov,
    lyapunov_bound_from_isometry,
    theorem4_bound,
    theorem4_depth,
)
from farfield.geometry._gram import gram, normalized_gram, soft_cosine
from farfield.geometry._isometry import feature_isometry_gap, isometry, isometry_gap, lyapunov
from farfield.geometry._lanczos import Eigenvalue, Spectrum, lanczos
from farfield.geometry._mean_field import GapPrediction, mean_field_gaps, mean_field_step, predict_gap
from farfield.geometry._normalization import (
    corollary2_bound,
    corollary3_bound,
    normalization_gain,
    theorem1_bound,
)
from farfield.geometry._record import IsometryRecord, record_isometry

__all__ = [
    "Eigenvalue",
    "GapPrediction",
    "IsometryRecord",
    "Spectrum",
    "corollary2_bound",
    "corollary3_bound",
    "correlation_contraction",
    "feature_isometry_gap",
    "gap_bound_from_lyapunov",
    "gram",
    "isometry",
    "isometry_gap",
    "lanczos",
    "lyapunov",
    "lyapunov_bound_from_isometry",
    "mean_field_gaps",
    "mean_field_step",
    "normalization_gain",
    "normalized_gram",
    "predict_gap",
    "record_isometry",
    "soft_cosine",
    "theorem1_bound",
    "theorem4_bound",
    "theorem4_depth",
]
