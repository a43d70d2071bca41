"""Networks trained many at a time, and estimators with scikit-learn's interface that know what they can never exceed.

Holds: the trainer of stacked networks; regressors by the kernels of networks of infinite width. May import:
everything below, and scikit-learn in one place. Never: computes a kernel or solves a system itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farfield.learn._stack import Stack
from farfield.learn._trainer import predict_all, train
from farfield.learn._training import Training, TrainingResult

if TYPE_CHECKING:
    from farfield.learn._kernel_regressors import NNGPRegressor as NNGPRegressor
    from farfield.learn._kernel_regressors import NTKRegressor as NTKRegressor
    from farfield.learn._nystrom import NystromNTKRegressor as NystromNTKRegressor

__all__ = [
    "NNGPRegressor",
    "NTKRegressor",
    "NystromNTKRegressor",
    "Stack",
    "Training",
    "TrainingResult",
    "predict_all",
    "train",
]

_ESTIMATORS = {
    "NNGPRegressor": "farfield.learn._kernel_regressors",
    "NTKRegressor": "farfield.learn._kernel_regressors",
    "NystromNTKRegressor": "farfield.learn._nystrom",
}
"""Loaded on first use: they need scikit-learn, and training does not."""


def __getattr__(name: str) -> Any:
    try:
        module = _ESTIMATORS[name]
    except KeyError:
        raise AttributeError(f"module 'farfield.learn' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ESTIMATORS})
