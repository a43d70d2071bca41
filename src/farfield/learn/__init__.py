"""Estimators with scikit-learn's interface that know what they can never exceed.

Holds: regressors by the kernels of networks of infinite width. May import: everything below, and scikit-learn in one
place. Never: computes a kernel or solves a system itself.
"""

from __future__ import annotations

from farfield.learn._kernel_regressors import NNGPRegressor, NTKRegressor
from farfield.learn._nystrom import NystromNTKRegressor

__all__ = ["NNGPRegressor", "NTKRegressor", "NystromNTKRegressor"]
