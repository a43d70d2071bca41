"""Isometry of a Gram matrix, the gap it leaves, and the Lyapunov function of P2."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import InvalidValueError
from farfield.geometry._gram import check_gram, normalized_gram

__all__ = ["feature_isometry_gap", "isometry", "isometry_gap", "lyapunov"]


def _gap_of_eigenvalues(values: Tensor) -> Tensor:
    """Gap = mean of (e − log(1 + e)), e = λ/mean(λ) − 1; +∞ where an eigenvalue is numerically zero.

    Since Σe = 0 this equals log AM − log GM exactly, but every term is ≥ 0 and none cancels: a gap of 1e-20 keeps
    its digits, where log AM − log GM would return rounding noise of either sign.
    """
    n = values.shape[-1]
    mean = values.mean(-1, keepdim=True)
    largest = values.detach().abs().amax(-1, keepdim=True)
    floor = n * torch.finfo(values.dtype).eps * largest
    singular = (values <= floor).any(-1)
    safe = torch.where(values <= floor, mean, values)
    excess = safe / mean - 1.0
    gap = (excess - torch.log1p(excess)).mean(-1)
    return torch.where(singular, torch.full_like(gap, torch.inf), gap)


def isometry_gap(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    r"""−log of the isometry of a positive semi-definite matrix: 0 for c·I, ∞ for a singular one.

    .. math:: -\log \mathcal I(G) = \log\frac{\operatorname{tr} G}{n} - \frac1n \log\det G

    Computed from the eigenvalues as a sum of non-negative terms, never through a determinant, so it neither
    over- nor underflows and small gaps keep their digits. Batched over leading axes, differentiable, O(n³).
    An eigenvalue below n·ε·λ_max cannot be told from zero and counts as zero; from features,
    :func:`feature_isometry_gap` resolves the square of that.

    Parameters
    ----------
    matrix
        Symmetric, positive semi-definite, not zero.

    Raises
    ------
    InvalidValueError
        If the matrix is not square, or has a clearly negative eigenvalue.

    References
    ----------
    [P2] §3. Invariant under scaling; zero exactly for multiples of the identity (the paper's Lemma A.1 says
    *the* identity).

    Examples
    --------
    >>> float(isometry_gap(3 * torch.eye(4)))
    0.0
    >>> float(isometry_gap(torch.ones(4, 4)))
    inf
    """
    check_gram(matrix)
    values = torch.linalg.eigvalsh(matrix)
    with torch.no_grad():
        smallest, largest = values.amin(-1), values.abs().amax(-1)
        tolerance = matrix.shape[-1] * torch.finfo(values.dtype).eps ** 0.5
        if bool((smallest < -tolerance * largest).any()):
            raise InvalidValueError(
                "A Gram matrix is positive semi-definite; this one has an eigenvalue of "
                f"{float(smallest.min()):.3g} beside one of {float(largest.max()):.3g}. Pass X @ X.T, symmetrised."
            )
        if bool((largest == 0).any()):
            raise InvalidValueError("The isometry of a zero matrix is undefined; every feature vanishes.")
    return _gap_of_eigenvalues(values)


def isometry(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    r"""Geometric over arithmetic mean of the eigenvalues, in [0, 1]; 1 exactly for a multiple of the identity.

    .. math:: \mathcal I(G) = \frac{\det(G)^{1/n}}{\operatorname{tr}(G)/n}

    References
    ----------
    [P2] §3.

    Examples
    --------
    >>> round(float(isometry(torch.tensor([[2.0, 0.0], [0.0, 8.0]]))), 6)
    0.8
    """
    return torch.exp(-isometry_gap(matrix))


def feature_isometry_gap(x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    """Isometry gap of X Xᵀ from the singular values of X, shape (..., n, d) with n ≤ d.

    Forming X Xᵀ squares the condition number; this does not, so in float64 it follows a collapsing batch to a
    ratio of 1e-32 between eigenvalues instead of 1e-16. O(n²d).

    Examples
    --------
    >>> float(feature_isometry_gap(torch.eye(2, 5)))
    0.0
    """
    if x.shape[-2] > x.shape[-1]:
        raise InvalidValueError(
            f"{x.shape[-2]} samples in {x.shape[-1]} dimensions always have a singular Gram matrix (gap ∞). "
            "Pass at most as many samples as features, or the transpose for a feature covariance."
        )
    singular = torch.linalg.svdvals(x)
    largest = singular.detach().amax(-1, keepdim=True)
    floor = max(x.shape[-2:]) * torch.finfo(x.dtype).eps * largest
    # Zeroed rather than squared: below the floor a singular value is noise.
    values = torch.where(singular <= floor, torch.zeros_like(singular), singular) ** 2
    mean = values.mean(-1, keepdim=True)
    dead = values == 0
    excess = torch.where(dead, torch.zeros_like(values), values / mean - 1.0)
    gap = (excess - torch.log1p(excess)).mean(-1)
    return torch.where(dead.any(-1), torch.full_like(gap, torch.inf), gap)


def lyapunov(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    r"""γ(G) = max_{i≠j} |G̃_ij| / (1 − |G̃_ij|): the quantity that every layer divides by at least β.

    Zero for orthogonal samples, ∞ where two samples are parallel or antipodal. G̃ is the unit-diagonal scaling.

    References
    ----------
    [P2] App. B.

    Examples
    --------
    >>> float(lyapunov(torch.tensor([[1.0, 0.5], [0.5, 1.0]])))
    1.0
    """
    unit = normalized_gram(matrix)
    n = unit.shape[-1]
    eye = torch.eye(n, dtype=torch.bool, device=unit.device)
    size = torch.where(eye, torch.zeros_like(unit), unit.abs())
    return (size / (1.0 - size)).flatten(-2).amax(-1)
