"""What one pass over the rows keeps: ranges, means and deviations, and a quantile with a proved side."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from farfield.errors import InvalidValueError

__all__ = ["FeatureStatistics", "UpperQuantile", "cap_axes", "feature_axes", "flat_rows"]


def feature_axes(x: Tensor) -> tuple[int, ...]:
    """Axes that hold no features: the batch, and space (or time) behind the channels.

    Rows of a table and tokens have their features last; images and volumes have channels in axis 1.
    """
    if x.ndim <= 2:
        return (0,)
    return (0, 1) if x.ndim == 3 else (0, *range(2, x.ndim))


def cap_axes(value: Tensor) -> tuple[int, ...]:
    """The axes a size is taken over: features of a row or token, everything of an image."""
    return (-1,) if value.ndim <= 3 else tuple(range(1 - value.ndim, 0))


def flat_rows(x: Tensor) -> Tensor:
    """(rows, everything else), also for no rows and for rows of one number."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


@dataclass
class FeatureStatistics:
    """Mean, deviation and range of every feature, streamed in float64 (Chan's update of mean and squares)."""

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares: Tensor = field(default_factory=lambda: torch.zeros(()))
    low: Tensor = field(default_factory=lambda: torch.tensor(math.inf))
    high: Tensor = field(default_factory=lambda: torch.tensor(-math.inf))

    def add(self, x: Tensor, *, of_model: bool = False) -> None:
        """Take in a batch; the axes that hold no features are kept with length 1. ``of_model``: it gave these."""
        axes = feature_axes(x)
        if not bool(torch.isfinite(x).all()):
            raise InvalidValueError(
                "The model's outputs on the calibration rows hold NaN or infinity, so nothing can be said of their "
                "range. Let the model return finite numbers (mask by a large one, not by infinity)."
                if of_model
                else "The calibration rows hold NaN or infinity. Drop or impute those rows first: what is usual "
                "can't be learned from them."
            )
        x = x.detach().cpu().to(torch.float64)
        count = math.prod(x.shape[a] for a in axes)
        if not count:
            return
        mean = x.mean(axes, keepdim=True)[0]
        if self.count and mean.shape != self.mean.shape:
            raise InvalidValueError(
                f"{'Outputs' if of_model else 'Rows'} have limits for each feature, so all of them have one shape; "
                f"there are {tuple(self.mean.shape)} and {tuple(mean.shape)}. Pad them to one length."
            )
        squares = (x - mean).square().sum(axes, keepdim=True)[0]
        total = self.count + count
        shift = mean - self.mean
        self.squares = self.squares + squares + shift.square() * (self.count * count / total)
        self.mean = self.mean + shift * (count / total)
        self.low = torch.minimum(self.low, x.amin(axes, keepdim=True)[0])
        self.high = torch.maximum(self.high, x.amax(axes, keepdim=True)[0])
        self.count = total

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of every feature."""
        return (self.squares / max(self.count, 1)).sqrt()


_BITS = 12


@dataclass
class UpperQuantile:
    """Counts of positive numbers by their leading bits: mergeable, of a fixed size, wrong to one side only.

    Numbers are binned by exponent and the first 12 bits of the mantissa, so :meth:`at_least` is at most 2.5·10⁻⁴
    too large and never too small.
    """

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    zeros: int = 0
    largest: float = 0.0

    def add(self, values: Tensor) -> None:
        """Take in non-negative numbers."""
        values = values.detach().cpu().to(torch.float64).reshape(-1)
        if not values.numel():
            return
        self.total += values.numel()
        self.largest = max(self.largest, float(values.max()))
        self.zeros += int((values == 0).sum())
        values = values[values != 0]
        bins, counts = (values.view(torch.int64) >> (52 - _BITS)).unique(return_counts=True)
        for name, count in zip(bins.tolist(), counts.tolist(), strict=True):
            self.counts[name] = self.counts.get(name, 0) + count

    def at_least(self, share: float) -> float:
        """A number that at least this share of the values does not exceed."""
        wanted, seen = math.ceil(share * self.total), self.zeros
        if seen >= wanted:
            return 0.0
        for name in sorted(self.counts):
            seen += self.counts[name]
            if seen >= wanted:
                edge = torch.tensor((name + 1) << (52 - _BITS), dtype=torch.int64).view(torch.float64)
                return min(float(edge), self.largest)
        return self.largest

    def centers(self) -> dict[float, int]:
        """Middle of every bin → its count; 0 for itself."""
        middle = [(name << (52 - _BITS)) + (1 << (51 - _BITS)) for name in self.counts]
        values = torch.tensor(middle, dtype=torch.int64).view(torch.float64).tolist()
        found = dict(zip(values, self.counts.values(), strict=True))
        return {0.0: self.zeros, **found} if self.zeros else found
