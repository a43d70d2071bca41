"""Normalized Hermite polynomials and the expansion of an activation in them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import InvalidValueError
from farfield.gaussian._quadrature import (
    adaptive_panels,
    check_resolved,
    rim,
    sorted_unique,
    standard_edges,
)
from farfield.gaussian._registry import ActivationLike, activation

__all__ = ["hermite_coefficients", "hermite_polynomials"]


def hermite_polynomials(x: Tensor, count: int) -> Tensor:
    r"""The first ``count`` normalized probabilists' Hermite polynomials at x, stacked on a new first axis.

    .. math:: he_0 = 1,\; he_1 = x,\;
              he_{k+1} = \frac{x\,he_k - \sqrt{k}\,he_{k-1}}{\sqrt{k+1}},
              \qquad \mathbb E\,he_j(z)\,he_k(z) = \delta_{jk}

    Examples
    --------
    >>> hermite_polynomials(torch.tensor([2.0]), 3).T
    tensor([[1.0000, 2.0000, 2.1213]])
    """
    if count < 1:
        raise InvalidValueError(f"At least one polynomial must be asked for, got count={count}.")
    columns = [torch.ones_like(x)]
    if count > 1:
        columns.append(x)
    for k in range(1, count - 1):
        columns.append((x * columns[k] - math.sqrt(k) * columns[k - 1]) / math.sqrt(k + 1))
    return torch.stack(columns)


@torch.no_grad()
def hermite_coefficients(
    sigma: ActivationLike, count: int, *, variance: float = 1.0
) -> Float[Tensor, " count"]:
    r"""c_k = E σ(√q z) he_k(z) for k = 0 … count − 1, float64.

    With them :math:`\hat\sigma(\rho) = \sum_k c_k^2 \rho^k`. For an activation with a kink c_k² falls only
    like k^{-5/2} (like k^{-3/2} for a jump): use :func:`dual` for values of the dual, the coefficients for
    structure.

    Parameters
    ----------
    sigma
        Name, :class:`Activation`, callable or elementwise module.
    count
        Number of coefficients, at most 512 (he_k oscillates at wavelength π/√k; panels resolve that far).
    variance
        q > 0.

    Raises
    ------
    PrecisionError
        If the integrand overflows or turns too often at this variance.

    References
    ----------
    [P2] §5 and App. B.3.

    Examples
    --------
    >>> hermite_coefficients("he2", 4).round(decimals=12).tolist()
    [0.0, 0.0, 1.0, 0.0]
    """
    if not 1 <= count <= 512:
        raise InvalidValueError(f"Between 1 and 512 coefficients can be computed, got count={count}.")
    if not (math.isfinite(variance) and variance > 0):
        raise InvalidValueError(f"A variance is finite and > 0, got {variance!r}.")
    sigma = activation(sigma)
    root = math.sqrt(variance)
    constant = 1.0 / math.sqrt(2.0 * math.pi)

    def weighted(z: Tensor) -> Tensor:
        # The weight is split, √φ on each factor: he_k alone overflows no sooner than k = 512 at z = 38.
        half = torch.exp(-0.25 * z * z)
        return (constant * sigma(root * z) * half) * (hermite_polynomials(z, count) * half)

    edges = standard_edges(weighted, sigma.kinks, root)
    middles = (edges[1:] + edges[:-1]) / 2
    value, error, magnitude, _, _ = adaptive_panels(weighted, sorted_unique(torch.cat([edges, middles])))
    error = error + rim(weighted, edges, magnitude, variance)
    check_resolved(error, magnitude, variance, f"A coefficient of {sigma.name}")
    # Below its own error estimate a coefficient is rounding noise: odd/even functions have exact zeros.
    return torch.where(value.abs() <= error, torch.zeros_like(value), value)
