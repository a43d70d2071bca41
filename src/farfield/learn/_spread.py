"""From how far members disagree to how large an error to expect: fitted on rows that were held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farfield.learn._scaling import Array

__all__ = ["Spread"]

_SHARE, _DEVIATIONS = 0.9, 1.645
"""Of a Gaussian's errors so many are within so many standard deviations."""
_RATIOS = np.concatenate([[0.0], np.logspace(-2, 3, 41)])
"""Values of k·mean(v)/a that are tried."""


@dataclass(frozen=True)
class Spread:
    """Error variance = a + k·v, where v is the variance over the members: one a and one k for every output.

    Parameters
    ----------
    floor
        a: the error that remains where members agree, in the network's units.
    factor
        k.
    rows
        How many held-out rows they were fitted on.
    """

    floor: Array
    factor: Array
    rows: int

    @classmethod
    def of(cls, errors: Array, disagreement: Array, weights: Array | None = None) -> Spread:
        """Maximum likelihood for Gaussian errors, given errors and variances over members, shapes (rows, outputs).

        Both are then scaled together so that ±1.645 deviations hold 90 % of the errors, counted as split conformal
        prediction counts: ⌈0.9·(rows + 1)⌉ of them.
        """
        share = np.ones(len(errors)) if weights is None else weights
        found = np.array(
            [
                _scaled(e**2, v, share, *_fitted(e**2, v, share))
                for e, v in zip(errors.T, disagreement.T, strict=True)
            ]
        ).reshape(-1, 2)
        return cls(found[:, 0], found[:, 1], len(errors))

    def deviation(self, disagreement: Array) -> Array:
        """The standard deviation for variances over members, shape (rows, outputs)."""
        result: Array = np.sqrt(self.floor + self.factor * disagreement)
        return result


def _fitted(squares: Array, v: Array, share: Array) -> tuple[float, float]:
    mean = float(np.average(v, weights=share))
    if not mean > 0.0:
        return float(np.average(squares, weights=share)), 0.0
    # For one ratio r = k·mean/a the best a is a mean: what is left is a search along a line.
    shape = 1.0 + _RATIOS[:, None] * (v / mean)
    floor = np.average(squares / shape, axis=1, weights=share)
    if not (floor > 0.0).all():
        return 0.0, 0.0  # no error on any row
    likelihood = np.log(floor) + np.average(np.log(shape), axis=1, weights=share)
    best = int(likelihood.argmin())
    return float(floor[best]), float(floor[best] * _RATIOS[best] / mean)


def _scaled(squares: Array, v: Array, share: Array, floor: float, factor: float) -> tuple[float, float]:
    expected = floor + factor * v
    if not (expected > 0.0).all():
        return floor, factor
    ratios = squares / expected
    order = np.argsort(ratios)
    counted = np.cumsum(share[order]) * (len(share) / share.sum())
    at = min(int(np.searchsorted(counted, _SHARE * (len(share) + 1) - 1e-9)), len(share) - 1)
    times = float(ratios[order[at]]) / _DEVIATIONS**2
    return floor * times, factor * times
