"""farfield: know, prove and fix what a neural network does far from its training data.

Holds: the public names, each loaded on first use, so that ``import farfield`` itself imports neither torch nor
any optional dependency. May import: every package below, lazily. Never: computes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farfield import data as data
    from farfield import gaussian as gaussian
    from farfield import geometry as geometry
    from farfield import kernels as kernels
    from farfield import nn as nn
    from farfield._budget import Budget as Budget
    from farfield.audit import assert_bounded as assert_bounded
    from farfield.audit import audit as audit
    from farfield.certify import certify as certify
    from farfield.certify import certify_rollout as certify_rollout
    from farfield.certify import verify_certificate as verify_certificate
    from farfield.gaussian import Activation as Activation
    from farfield.gaussian import activation as activation
    from farfield.gaussian import dual as dual
    from farfield.gaussian import hermite_coefficients as hermite_coefficients
    from farfield.gaussian import isometry_strength as isometry_strength
    from farfield.geometry import isometry as isometry
    from farfield.geometry import isometry_gap as isometry_gap
    from farfield.growth import horizon as horizon
    from farfield.learn import NNGPRegressor as NNGPRegressor
    from farfield.learn import NTKRegressor as NTKRegressor
    from farfield.learn import NystromNTKRegressor as NystromNTKRegressor
    from farfield.learn import StableMLPClassifier as StableMLPClassifier
    from farfield.learn import StableMLPRegressor as StableMLPRegressor
    from farfield.monitor import guard as guard
    from farfield.monitor import record_isometry as record_isometry
    from farfield.ntk import empirical_ntk as empirical_ntk
    from farfield.repair import compare_repairs, restore
    from farfield.repair import repair as _repair

    class _RepairRoom:
        """What ``farfield.repair`` is to a type checker: the function, and a package of its name."""

        __call__ = staticmethod(_repair)
        compare_repairs = staticmethod(compare_repairs)
        restore = staticmethod(restore)

    repair: _RepairRoom

__version__ = "0.2.0"

_ROOMS = frozenset(["data", "gaussian", "geometry", "kernels", "monitor", "nn"])
"""Packages that are there as attributes, loaded when they are asked for."""
_LAZY = {
    "Budget": "farfield._budget:Budget",
    "assert_bounded": "farfield.audit:assert_bounded",
    "audit": "farfield.audit",  # callable: see _callable_module
    "verify_certificate": "farfield.certify:verify_certificate",
    "certify": "farfield.certify",  # callable, as audit
    "certify_rollout": "farfield.certify:certify_rollout",
    "repair": "farfield.repair",  # callable, as audit
    "guard": "farfield.monitor:guard",
    "record_isometry": "farfield.monitor:record_isometry",
    "horizon": "farfield.growth:horizon",
    "empirical_ntk": "farfield.ntk:empirical_ntk",
    "Activation": "farfield.gaussian:Activation",
    "activation": "farfield.gaussian:activation",
    "dual": "farfield.gaussian:dual",
    "hermite_coefficients": "farfield.gaussian:hermite_coefficients",
    "isometry_strength": "farfield.gaussian:isometry_strength",
    "isometry": "farfield.geometry:isometry",
    "isometry_gap": "farfield.geometry:isometry_gap",
    # These are scikit-learn estimators, and load it.
    "NNGPRegressor": "farfield.learn:NNGPRegressor",
    "NTKRegressor": "farfield.learn:NTKRegressor",
    "NystromNTKRegressor": "farfield.learn:NystromNTKRegressor",
    "StableMLPClassifier": "farfield.learn:StableMLPClassifier",
    "StableMLPRegressor": "farfield.learn:StableMLPRegressor",
}

__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    try:
        module, _, attribute = (f"farfield.{name}" if name in _ROOMS else _LAZY[name]).partition(":")
    except KeyError:
        raise AttributeError(f"module 'farfield' has no attribute {name!r}") from None
    value: Any = importlib.import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_ROOMS})
