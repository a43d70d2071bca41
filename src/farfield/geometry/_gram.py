"""Gram matrices and their unit-diagonal scalings."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import InvalidValueError

__all__ = ["check_gram", "gram", "normalized_gram", "soft_cosine"]


def check_gram(matrix: Tensor) -> None:
    """Raise unless the last two axes are equal, non-empty and floating."""
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] == 0:
        raise InvalidValueError(
            f"A Gram matrix is square, with shape (..., n, n) and n >= 1; got shape {tuple(matrix.shape)}. "
            "From a batch of features of shape (n, d), make one with farfield.geometry.gram."
        )
    if not matrix.is_floating_point():
        raise InvalidValueError(f"A Gram matrix is floating point, got {matrix.dtype}. Call .double() on it.")


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

    The diagonal is exactly one and off-diagonal entries are kept in [−1, 1]; a row of zero length has no
    direction and raises. Differentiable.

    Examples
    --------
    >>> normalized_gram(torch.tensor([[4.0, 1.0], [1.0, 1.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    check_gram(matrix)
    squares = torch.diagonal(matrix, dim1=-2, dim2=-1)
    if not bool((squares > 0).all()):
        raise InvalidValueError(
            "Every diagonal entry of a Gram matrix must be positive to normalise it; the smallest is "
            f"{float(squares.detach().min()):.3g}. Drop the samples whose features vanish."
        )
    scale = torch.rsqrt(squares)
    unit = (matrix * scale[..., :, None] * scale[..., None, :]).clamp(-1.0, 1.0)
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
        σ_b² ≥ 0.

    References
    ----------
    [P1] App. A.

    Examples
    --------
    >>> soft_cosine(torch.tensor([[1.0], [-1.0]]), bias_var=1.0)
    tensor([[1., 0.],
            [0., 1.]])
    """
    if bias_var < 0:
        raise InvalidValueError(f"A variance is >= 0, got bias_var={bias_var}.")
    other = x if y is None else y
    width = x.shape[-1]
    inner = x @ other.mT / width + bias_var
    left = (x * x).sum(-1) / width + bias_var
    right = (other * other).sum(-1) / width + bias_var
    value = (inner / torch.sqrt(left)[..., :, None] / torch.sqrt(right)[..., None, :]).clamp(-1.0, 1.0)
    if y is None:
        eye = torch.eye(value.shape[-1], dtype=torch.bool, device=value.device)
        value = torch.where(eye, torch.ones_like(value), value)
    return value
