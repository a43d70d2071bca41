"""Gram matrices and their unit-diagonal scalings."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import InvalidValueError

__all__ = ["check_gram", "gram", "normalized_gram", "soft_cosine", "squared_lengths"]


def check_gram(matrix: Tensor) -> None:
    """Raise unless the last two axes are equal, non-empty and floating."""
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] == 0:
        raise InvalidValueError(
            f"A Gram matrix is square, with shape (..., n, n) and n >= 1; got shape {tuple(matrix.shape)}. "
            "From a batch of features of shape (n, d), make one with farfield.geometry.gram."
        )
    if not matrix.is_floating_point():
        raise InvalidValueError(f"A Gram matrix is floating point, got {matrix.dtype}. Call .double() on it.")


def squared_lengths(matrix: Tensor) -> Tensor:
    """The diagonal of a Gram matrix; raise unless every entry is positive and finite."""
    check_gram(matrix)
    squares = torch.diagonal(matrix, dim1=-2, dim2=-1)
    with torch.no_grad():
        if not bool(((squares > 0) & torch.isfinite(squares)).all()):
            raise InvalidValueError(
                "Every diagonal entry of a Gram matrix must be positive and finite to normalize it; the smallest "
                f"is {float(squares.min()):.3g} and the largest {float(squares.max()):.3g}. Drop the samples whose "
                "features vanish or overflow."
            )
    return squares


def gram(x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n n"]:
    """G = X Xᵀ: inner products of the rows of a batch of features, shape (..., n, d) → (..., n, n).

    Examples
    --------
    >>> gram(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))
    tensor([[25.,  3.],
            [ 3.,  1.]])
    """
    return x @ x.mT


def normalized_gram(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    r"""G̃_ij = G_ij / √(G_ii G_jj): the Gram matrix after projecting every row to the unit sphere.

    The diagonal is exactly one, the result is as symmetric as the input, and what rounding pushes past ±1 is put
    back there. Differentiable.

    Raises
    ------
    InvalidValueError
        For a sample of zero length (it has no direction), and for an entry beyond ±1 by more than rounding, which
        no Gram matrix has (Cauchy–Schwarz).

    Examples
    --------
    >>> normalized_gram(torch.tensor([[4.0, 1.0], [1.0, 1.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    lengths = torch.sqrt(squared_lengths(matrix))
    # One product of lengths: symmetric to the last bit, and in range wherever the diagonal is.
    unit = matrix / (lengths[..., :, None] * lengths[..., None, :])
    with torch.no_grad():
        if not bool((unit.abs() <= 1.0 + torch.finfo(unit.dtype).eps ** 0.5).all()):
            raise InvalidValueError(
                "In a Gram matrix |G_ij| <= √(G_ii G_jj); here the ratio reaches "
                f"{float(unit.abs().max()):.6g}: not positive semi-definite, or not finite. Pass X @ X.T."
            )
    unit = unit.clamp(-1.0, 1.0)
    eye = torch.eye(matrix.shape[-1], dtype=torch.bool, device=matrix.device)
    return torch.where(eye, torch.ones_like(unit), unit)


def soft_cosine(
    x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch m d"] | None = None, *, bias_var: float = 0.0
) -> Float[Tensor, "*batch n m"]:
    r"""Cosine of the angle between inputs once a bias has been added.

    .. math:: S(x, y) = \frac{x\cdot y/d + \sigma_b^2}{\sqrt{(x\cdot x/d + \sigma_b^2)(y\cdot y/d + \sigma_b^2)}}

    What a LayerNorm after the first wide layer leaves of its input: invariant to scale only in the limit
    ‖x‖ → ∞ when σ_b² > 0, and the plain cosine when σ_b² = 0.

    Parameters
    ----------
    x, y
        Rows of features; ``y`` defaults to ``x``.
    bias_var
        σ_b² ≥ 0, finite.

    Raises
    ------
    InvalidValueError
        For a row of zeros without a bias: it has no direction.

    References
    ----------
    [P1] App. A.

    Examples
    --------
    >>> soft_cosine(torch.tensor([[1.0], [-1.0]]), bias_var=1.0)
    tensor([[1., 0.],
            [0., 1.]])
    """
    if not 0.0 <= bias_var < math.inf:
        raise InvalidValueError(f"A variance is finite and >= 0, got bias_var={bias_var}.")
    left = _unit_rows(x, bias_var)
    right = left if y is None else _unit_rows(y, bias_var)
    value = (left @ right.mT).clamp(-1.0, 1.0)
    if y is None:
        eye = torch.eye(value.shape[-1], dtype=torch.bool, device=value.device)
        value = torch.where(eye, torch.ones_like(value), value)
    return value


def _unit_rows(x: Tensor, bias_var: float) -> Tensor:
    """(x, √d·σ_b) scaled to unit length: the soft cosine is the plain cosine of these."""
    bias = x.new_full((*x.shape[:-1], 1), math.sqrt(bias_var * x.shape[-1]))
    extended = torch.cat([x, bias], -1)
    # Divided by the largest entry first: squares neither over- nor underflow.
    largest = extended.detach().abs().amax(-1, keepdim=True)
    if not bool(((largest > 0) & torch.isfinite(largest)).all()):
        raise InvalidValueError(
            "Without a bias (bias_var=0) every row needs a direction, and every entry must be finite; a row's "
            f"largest entry is {float(largest.min()):.3g} to {float(largest.max()):.3g}. Drop that row."
        )
    return torch.nn.functional.normalize(extended / largest, dim=-1)
