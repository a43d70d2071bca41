"""What is used of scikit-learn: the one place that imports it."""

from __future__ import annotations

from farfield.errors import MissingExtraError

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
    from sklearn.utils import check_random_state, compute_sample_weight
    from sklearn.utils._param_validation import Interval, StrOptions
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight as check_sample_weight
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtraError("An estimator", "scikit-learn", "sklearn") from error

__all__ = [
    "BaseEstimator",
    "ClassifierMixin",
    "Interval",
    "MultiOutputMixin",
    "RegressorMixin",
    "StrOptions",
    "check_classification_targets",
    "check_is_fitted",
    "check_random_state",
    "check_sample_weight",
    "clone",
    "compute_sample_weight",
    "validate_data",
]
