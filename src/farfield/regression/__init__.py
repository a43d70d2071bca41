"""Regression with a kernel: exact, iterated or streamed, with bounds that hold for every input.

Holds: covariances, fits and their posteriors, gradient flow, Nyström, Lanczos, output bounds.
May import: data, engine, errors, gaussian, geometry, kernels, _typing.
Never: builds a kernel, or sets a seed of torch's.
"""

from __future__ import annotations

from farfield.regression._covariance import Covariance
from farfield.regression._fit import fit
from farfield.regression._flow import GradientFlow, gradient_flow
from farfield.regression._nystrom import Nystrom, NystromPosterior
from farfield.regression._parquet import predict_parquet, stream_parquet
from farfield.regression._pivoted import landmarks
from farfield.regression._posterior import Posterior

__all__ = [
    "Covariance",
    "GradientFlow",
    "Nystrom",
    "NystromPosterior",
    "Posterior",
    "fit",
    "gradient_flow",
    "landmarks",
    "predict_parquet",
    "stream_parquet",
]
