"""What is used of scikit-learn: the one place that imports it."""

from __future__ import annotations

from farfield.errors import MissingExtraError

try:
    from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtraError("An estimator", "scikit-learn", "sklearn") from error

__all__ = [
    "BaseEstimator",
    "MultiOutputMixin",
    "RegressorMixin",
    "check_is_fitted",
    "check_random_state",
    "validate_data",
]
