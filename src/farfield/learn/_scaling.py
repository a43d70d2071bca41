"""Columns to mean 0 and variance 1, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Scaling"]

Array: TypeAlias = NDArray[Any]

_FAR = 1e50
"""Beyond it a network with a norm no longer changes in float64, and squares of squares overflow soon."""


@dataclass(frozen=True)
class Scaling:
    """v ↦ (v − offset)/scale for every column.

    Parameters
    ----------
    offset, scale
        Of every column; scalars for a vector. A constant column has scale 1; one that is constant
        but for rounding, at least that rounding.
    """

    offset: Array
    scale: Array

    @classmethod
    def of(cls, values: Array, *, standardize: bool, weights: Array | None = None) -> Scaling:
        """Mean and standard deviation of the columns, with weights of the rows if given; or 0 and 1."""
        if not standardize:
            return cls(np.zeros(values.shape[1:]), np.ones(values.shape[1:]))
        # In units of a power of two near the largest value, which rounds nothing: sums and squares of numbers near
        # 1e±300 would overflow, or vanish.
        unit = np.ldexp(1.0, np.frexp(np.abs(values).max(0))[1] - 1)
        values = values / unit
        if weights is None:
            offset, scale = np.asarray(values.mean(0)), np.asarray(values.std(0))
        else:
            offset = np.asarray(np.average(values, 0, weights))
            scale = np.sqrt(np.average((values - offset) ** 2, 0, weights))
        # Rounding leaves a constant column some 1e-16 of its size: that is not a scale. Nor is what has no inverse.
        constant = scale <= 10 * np.finfo(np.float64).eps * np.abs(values).max(0)
        constant |= unit * scale < np.finfo(np.float64).tiny
        same = values.min(0) == values.max(0)
        offset = np.where(same, values[0], offset)  # a mean is rounded
        rounding = np.where(same, 1.0, np.maximum(1.0, 10 * np.finfo(np.float64).eps * unit))
        return cls(np.asarray(unit * offset), np.where(constant, rounding, unit * scale))

    def apply(self, values: Array) -> Array:
        """Standardized."""
        # Halves: the difference of two large numbers of different sign may overflow where neither does.
        result: Array = (values / 2 - self.offset / 2) / (self.scale / 2)
        return result

    def apply_far(self, values: Array) -> Array:
        """Standardized inputs, those beyond 1e50 brought back to it along their ray: nothing overflows later."""
        with np.errstate(over="ignore"):
            result = self.apply(values)
        far = ~(np.abs(result).max(1, initial=0.0) <= _FAR)
        half = values[far] / 2 - self.offset / 2
        unit = half / np.abs(half).max(1, keepdims=True, initial=0.0) / self.scale
        result[far] = _FAR * (unit / np.abs(unit).max(1, keepdims=True, initial=0.0))
        return result

    def invert(self, values: Array) -> Array:
        """Return values in the units of the data."""
        result: Array = self.offset + self.scale * values
        return result
