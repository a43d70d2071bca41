"""Dual activations as functions of the angle: the per-layer step of infinite-width kernels.

Holds: ``angular_dual``, which picks the form that fits an activation and its variances, and the forms: homogeneous,
one common variance, a table over variances.
May import: errors, gaussian, _typing.
Never: knows of layers, networks or data.
"""

from __future__ import annotations

from farfield.gaussian.angular._base import AngularDual
from farfield.gaussian.angular._choose import angular_dual
from farfield.gaussian.angular._series import to_coefficients

__all__ = ["AngularDual", "angular_dual", "to_coefficients"]
