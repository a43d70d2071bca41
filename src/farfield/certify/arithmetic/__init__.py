"""Rounding of a model's own forward pass: how far float32 or bfloat16 can be from real arithmetic.

Holds: ``rounding_error``, the number formats, and the rules by which errors move through operators.
May import: certify.intervals, certify.affine, errors, graph.
Never: searches; looks at what a model attains.
"""

from __future__ import annotations

from farfield.certify.arithmetic._analysis import Rounding, rounding_error
from farfield.certify.arithmetic._formats import FORMATS, FloatFormat
from farfield.certify.arithmetic._state import RoundingError

__all__ = ["FORMATS", "FloatFormat", "Rounding", "RoundingError", "rounding_error"]
