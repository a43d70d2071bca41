"""Networks trained many at a time, and estimators with scikit-learn's interface that know what they can never exceed.

Holds: the trainer of stacked networks; networks that stay bounded; regressors by the kernels of networks of infinite
width; sweeps.
May import: certify, data, engine, errors, growth, kernels, nn, regression, _budget, _intervals, _provenance, _typing;
scikit- learn in one place.
Never: computes a kernel or solves.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farfield.learn._far_field import FarFieldReport
from farfield.learn._protected import FarFieldChoice
from farfield.learn._stack import Stack
from farfield.learn._trainer import predict_all, train
from farfield.learn._training import Training, TrainingResult

if TYPE_CHECKING:
    from farfield.learn._kernel_regressors import NNGPRegressor as NNGPRegressor
    from farfield.learn._kernel_regressors import NTKRegressor as NTKRegressor
    from farfield.learn._nystrom import NystromNTKRegressor as NystromNTKRegressor
    from farfield.learn._stable_classifier import StableMLPClassifier as StableMLPClassifier
    from farfield.learn._stable_regressor import StableMLPRegressor as StableMLPRegressor
    from farfield.learn._sweep import Sweep as Sweep
    from farfield.learn._sweep import SweepRun as SweepRun
    from farfield.learn._sweep import sweep as sweep

__all__ = [
    "FarFieldChoice",
    "FarFieldReport",
    "NNGPRegressor",
    "NTKRegressor",
    "NystromNTKRegressor",
    "StableMLPClassifier",
    "StableMLPRegressor",
    "Stack",
    "Sweep",
    "SweepRun",
    "Training",
    "TrainingResult",
    "predict_all",
    "sweep",
    "train",
]

_ON_SCIKIT_LEARN = {
    "NNGPRegressor": "farfield.learn._kernel_regressors",
    "NTKRegressor": "farfield.learn._kernel_regressors",
    "NystromNTKRegressor": "farfield.learn._nystrom",
    "StableMLPClassifier": "farfield.learn._stable_classifier",
    "StableMLPRegressor": "farfield.learn._stable_regressor",
    "Sweep": "farfield.learn._sweep",
    "SweepRun": "farfield.learn._sweep",
    "sweep": "farfield.learn._sweep",
}
"""Loaded on first use: they need scikit-learn, and training does not."""


def __getattr__(name: str) -> Any:
    try:
        module = _ON_SCIKIT_LEARN[name]
    except KeyError:
        raise AttributeError(f"module 'farfield.learn' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_SCIKIT_LEARN})
