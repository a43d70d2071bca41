"""One table for a million correlations: the reduced dual as a Chebyshev series in the angle arccos ρ."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.errors import PrecisionError
from farfield.gaussian._activation import Activation
from farfield.gaussian._dual import mean_reduced_dual
from farfield.gaussian._moments import Moments, moments
from farfield.gaussian._registry import ActivationLike, activation

__all__ = ["DualInterpolant", "tabulate_dual"]


@dataclass(frozen=True)
class DualInterpolant:
    r"""σ̄(cos θ) as a Chebyshev series in θ ∈ [0, π].

    In ρ itself the dual of a kinked activation has a square-root singularity at ±1 and its series converges
    like 1/degree; in θ it is analytic and converges geometrically.

    Parameters
    ----------
    sigma
        The activation tabulated.
    variance
        q, the common variance of both arguments.
    coefficients
        Chebyshev coefficients, float64, shape (degree + 1,).
    moments
        Mean and variance of σ under N(0, q).
    error
        Largest difference from :func:`mean_reduced_dual` at the check points between the nodes,
        relative to Var σ.
    """

    sigma: Activation
    variance: float
    coefficients: Tensor
    moments: Moments
    error: float

    def reduced(self, rho: Tensor) -> Tensor:
        """σ̄(ρ), elementwise, in the dtype of ``rho``; autograd works inside (−1, 1)."""
        theta = torch.arccos(rho.clamp(-1.0, 1.0))
        x = 1.0 - theta * (2.0 / math.pi)
        return clenshaw(self.coefficients.to(rho), x)

    def normalized(self, rho: Tensor) -> Tensor:
        """σ̄(ρ)/σ̄(1), one mean-field layer."""
        return self.reduced(rho) / self.moments.variance


def clenshaw(coefficients: Tensor, x: Tensor) -> Tensor:
    """Σ c_k T_k(x) by Clenshaw's recurrence."""
    b1, b2 = torch.zeros_like(x), torch.zeros_like(x)
    for c in coefficients[1:].flip(0):
        b1, b2 = 2.0 * x * b1 - b2 + c, b1
    return x * b1 - b2 + coefficients[0]


def _chebyshev_coefficients(values: Tensor) -> Tensor:
    """Coefficients from values at the points cos(πj/n), j = 0 … n."""
    n = len(values) - 1
    j = torch.arange(n + 1, dtype=torch.float64)
    transform = torch.cos(math.pi * j[:, None] * j / n) * (2.0 / n)
    transform[:, [0, -1]] /= 2.0
    transform[[0, -1]] /= 2.0
    return transform @ values


@functools.lru_cache(maxsize=512)
def _tabulate(sigma: Activation, variance: float, tolerance: float) -> DualInterpolant:
    m = moments(sigma, variance=variance)

    def sample(theta: Tensor) -> Tensor:
        return mean_reduced_dual(sigma, torch.cos(theta), variance)

    check = torch.linspace(0.01, math.pi - 0.01, 23, dtype=torch.float64)
    truth = sample(check)
    values = torch.empty(0, dtype=torch.float64)
    for degree in (16, 32, 64, 128, 256):
        theta = (
            math.pi / 2 * (1.0 - torch.cos(math.pi * torch.arange(degree + 1, dtype=torch.float64) / degree))
        )
        # The points of one degree are every other point of the next.
        if degree == 16:
            values = sample(theta)
        else:
            between = torch.stack([values[:-1], sample(theta[1::2])], -1)
            values = torch.cat([between.reshape(-1), values[-1:]])
        coefficients = _chebyshev_coefficients(values)
        error = float((clenshaw(coefficients, 1.0 - check * (2 / math.pi)) - truth).abs().max()) / m.variance
        tail = float(coefficients[-4:].abs().max()) / m.variance
        if max(error, tail) <= tolerance:
            return DualInterpolant(sigma, variance, coefficients, m, max(error, tail))
    raise PrecisionError(
        f"The dual of {sigma.name} at variance {variance:g} is not resolved to {tolerance:g} by a series of "
        f"degree 256 (reached {max(error, tail):.1e}). Use a smaller variance or a larger tolerance."
    )


def tabulate_dual(
    sigma: ActivationLike, *, variance: float = 1.0, tolerance: float = 1e-12
) -> DualInterpolant:
    """Tabulate σ̄ once, evaluate it anywhere at a few multiplications an entry.

    Parameters
    ----------
    sigma
        Name, :class:`Activation`, callable or elementwise module.
    variance
        q > 0.
    tolerance
        Largest error allowed, relative to Var σ; checked between the nodes before returning.

    Raises
    ------
    PrecisionError
        If a series of degree 256 does not reach the tolerance.

    Examples
    --------
    >>> table = tabulate_dual("tanh")
    >>> table.error < 1e-12
    True
    >>> bool(torch.isclose(table.normalized(torch.tensor(1.0)), torch.tensor(1.0)))
    True
    """
    return _tabulate(activation(sigma), float(variance), float(tolerance))
