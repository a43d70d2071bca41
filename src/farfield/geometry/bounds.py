"""P2's statements about isometry as they hold: what normalization gains, and how fast depth removes correlations."""

from __future__ import annotations

from farfield.geometry._bounds import (
    correlation_contraction,
    gap_bound_from_lyapunov,
    lyapunov_bound_from_isometry,
    theorem4_bound,
    theorem4_depth,
)
from farfield.geometry._mean_field import GapPrediction, predict_gap
from farfield.geometry._normalization import corollary2_bound, corollary3_bound, theorem1_bound

__all__ = [
    "GapPrediction",
    "corollary2_bound",
    "corollary3_bound",
    "correlation_contraction",
    "gap_bound_from_lyapunov",
    "lyapunov_bound_from_isometry",
    "predict_gap",
    "theorem1_bound",
    "theorem4_bound",
    "theorem4_depth",
]
