"""Number formats that models run in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["FORMATS", "FloatFormat"]


@dataclass(frozen=True)
class FloatFormat:
    """A binary format, rounded to nearest.

    ``unit`` is what storing a result may change it by, relative to its size; ``summing`` the same of the format that
    sums of products are kept in (float32 for bfloat16, as torch has it); ``largest`` the largest finite number;
    ``smallest`` what a result may lose by underflow.
    """

    name: str
    unit: float
    summing: float
    largest: float
    smallest: float

    def gamma(self, count: float) -> float:
        """γ_k = k·u/(1 − k·u), u of sums: relative error of a sum of k products in any order; ∞ where k·u ≥ 1."""
        product = count * self.summing
        return product / (1.0 - product) if product < 1.0 else float("inf")

    def holds(self, value: Any) -> bool:
        """Whether a number is stored as it is; infinities are, and what is no float is none of its business."""
        if not isinstance(value, float) or not math.isfinite(value):
            return True
        return float(torch.tensor(value, dtype=getattr(torch, self.name))) == value

    @property
    def once(self) -> float:
        """Relative error of one operation: computed in the summing format and stored."""
        return 1.01 * self.unit + 4 * self.summing

    @property
    def function(self) -> float:
        """Relative error of a scalar function, against its argument and its value."""
        return 1.01 * self.unit + 16 * self.summing


FORMATS: Mapping[str, FloatFormat] = {
    "float64": FloatFormat("float64", 2.0**-53, 2.0**-53, (2.0 - 2.0**-52) * 2.0**1023, 2.0**-1022),
    "float32": FloatFormat("float32", 2.0**-24, 2.0**-24, (2.0 - 2.0**-23) * 2.0**127, 2.0**-126),
    "bfloat16": FloatFormat("bfloat16", 2.0**-8, 2.0**-24, (2.0 - 2.0**-7) * 2.0**127, 2.0**-126),
}
