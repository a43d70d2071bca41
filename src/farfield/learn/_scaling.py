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
        Of every column; scalars for a vector. A constant column has scale 1.
    """

    offset: Array
    scale: Array

    @classmethod
    def of(cls, values: Array, *, standardize: bool, weights: Array | None = None) -> Scaling:
        """Mean and standard deviation of the columns, with weights of the rows if given; or 0 and 1."""
        if not standardize:
            return cls(np.zeros(values.shape[1:]), np.ones(values.shape[1:]))
        if weights is None:
            offset, scale = np.asarray(values.mean(0)), np.asarray(values.std(0))
        else:
            offset = np.asarray(np.average(values, 0, weights))
            scale = np.sqrt(np.average((values - offset) ** 2, 0, weights))
        # Rounding leaves a constant column some 1e-16 of its size: that is not a scale.
        constant = scale <= 10 * np.finfo(np.float64).eps * np.abs(values).max(0)
        return cls(offset, np.where(constant, 1.0, scale))

    def apply(self, values: Array) -> Array:
        """Standardised."""
        result: Array = (values - self.offset) / self.scale
        return result

    def apply_far(self, values: Array) -> Array:
        """Standardised inputs, those beyond 1e50 brought back to it along their ray: nothing overflows later."""
        # Halves: the difference of two large numbers of different sign may overflow where neither does.
        with np.errstate(over="ignore"):
            half = values / 2 - self.offset / 2
            largest = np.abs(half).max(1, keepdims=True, initial=0.0)
            near = (largest / self.scale.min(initial=1.0)) < _FAR / 2
            unit = half / np.where(largest > 0, largest, 1.0) / self.scale
            size = np.abs(unit).max(1, keepdims=True, initial=0.0)
            result: Array = np.where(
                near, (values - self.offset) / self.scale, _FAR * (unit / np.where(size > 0, size, 1.0))
            )
        return result

    def invert(self, values: Array) -> Array:
        """In the units of the data."""
        result: Array = self.offset + self.scale * values
        return result
