"""One scalar activation under a Gaussian.

Holds: the activations and what is known of each (``Activation`` for integrals, ``ScalarFunction`` for bounds),
quadrature split at kinks, Hermite coefficients, dual activations, isometry strength.
May import: errors, _typing.
Never: knows of layers, networks or data.
"""

from __future__ import annotations

from farfield.gaussian._activation import Activation, ClosedForm, Growth, Tail
from farfield.gaussian._dual import dual, dual_slope, mean_reduced_dual
from farfield.gaussian._hermite import hermite_coefficients, hermite_polynomials
from farfield.gaussian._interpolant import DualInterpolant, tabulate_dual
from farfield.gaussian._moments import Moments, isometry_strength, mean_field_constants, moments
from farfield.gaussian._quadrature import Expectation, gaussian_expectation
from farfield.gaussian._registry import activation, activation_names, register_activation
from farfield.gaussian._scalar_function import ScalarFunction
from farfield.gaussian._scalar_table import scalar_function, scalar_function_names
from farfield.gaussian._wrap import wrap_activation
from farfield.gaussian.angular import AngularDual, angular_dual

__all__ = [
    "Activation",
    "AngularDual",
    "ClosedForm",
    "DualInterpolant",
    "Expectation",
    "Growth",
    "Moments",
    "ScalarFunction",
    "Tail",
    "activation",
    "activation_names",
    "angular_dual",
    "dual",
    "dual_slope",
    "gaussian_expectation",
    "hermite_coefficients",
    "hermite_polynomials",
    "isometry_strength",
    "mean_field_constants",
    "mean_reduced_dual",
    "moments",
    "register_activation",
    "scalar_function",
    "scalar_function_names",
    "tabulate_dual",
    "wrap_activation",
]
