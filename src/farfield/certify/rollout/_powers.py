"""Powers of a matrix that is known up to an error: is it a contraction, and how much do its powers add up to?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Powers", "powers"]

_UNIT = 2.0**-52
_SMALL = 1e-13
_WORK = 2e10
"""Multiplications to spend on powers one by one; further ones come by doubling, which is cruder."""
_ENTRIES = 10_000_000
_DOUBLINGS = 24
_HOPELESS = 1e60


@dataclass(frozen=True)
class Powers:
    """What is proved of Aᵏ, k = 0, 1, …, for every matrix A within the error.

    Parameters
    ----------
    steps, factor
        ‖A^steps‖∞ ≤ factor < 1.
    total
        At least Σ |Aᵏ| over k < steps, entry by entry.
    peak
        At least every |Aᵏ|, k < steps, entry by entry.
    """

    steps: int
    factor: float
    total: Tensor
    peak: Tensor

    def gathered(self, size: Tensor) -> Tensor:
        """At least Σ_{k ≥ 0} |Aᵏ|·size: what disturbances of at most ``size`` in every step add up to."""
        once = (self.total @ size) * (1 + 1e-12)
        return once + self.factor / (1.0 - self.factor) * once.max() * (1 + 1e-12)


def powers(matrix: Tensor, error: Tensor) -> Powers | None:
    """Powers until they are small; ``None`` if they don't get below 1.

    A matrix whose eigenvalues lie inside the unit circle has powers that go to 0 in any norm, so this finds a proof
    for all but the slowest of them. What rounding hides is carried along: |Aᵏ_true − Aᵏ| ≤ error of the power.

    Parameters
    ----------
    matrix
        A, (n, n), float64.
    error
        Not negative; by how much the entries of the true matrix may differ.
    """
    count = len(matrix)
    eye = torch.eye(count, dtype=torch.float64)
    known = [(eye, torch.zeros_like(eye)), (matrix, error)]
    most = max(2, min(512, int(_WORK / max(1, count) ** 3), _ENTRIES // max(1, count) ** 2))
    # Each power from two of half its size: errors grow with the depth of that, not with the power.
    while len(known) < most and _SMALL < _factor(known[-1]) < _HOPELESS:
        half = len(known) // 2
        known.append(_product(known[half], known[len(known) - half]))
    power, steps = known[-1], len(known) - 1  # the power is Aˢᵗᵉᵖˢ, the sum is of those below it
    sizes = torch.stack([_size(one) for one in known[:-1]])
    total, peak = sizes.sum(0), sizes.amax(0)
    for _ in range(_DOUBLINGS):
        if not _SMALL < _factor(power) < _HOPELESS:
            break
        size = _size(power)
        total = (total + size @ total) * (1 + 1e-12)
        peak = torch.maximum(peak, size @ peak * (1 + 1e-12))
        power, steps = _product(power, power), 2 * steps
    factor = _factor(power)
    return Powers(steps, factor, total * (1 + 1e-12), peak) if factor < 1.0 else None


def _size(power: tuple[Tensor, Tensor]) -> Tensor:
    return power[0].abs() + power[1]


def _factor(power: tuple[Tensor, Tensor]) -> float:
    """At least ‖·‖∞."""
    return float(_size(power).sum(1).max()) * (1 + 1e-12)


def _product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The product and what rounding and the factors' errors may hide of it."""
    sizes = a[0].abs(), b[0].abs()
    hidden = sizes[0] @ b[1] + a[1] @ sizes[1] + a[1] @ b[1]
    rounding = 2 * len(a[0]) * _UNIT * (sizes[0] @ sizes[1])
    return a[0] @ b[0], (hidden + rounding) * (1 + 1e-10)
