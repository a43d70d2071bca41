"""Isometry of a Gram matrix, the gap it leaves, and the Lyapunov function of P2."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import InvalidValueError
from farfield.geometry._gram import check_gram, normalized_gram

__all__ = ["feature_isometry_gap", "isometry", "isometry_gap", "lyapunov"]


_SERIES = tuple((-1.0) ** k / (k + 2) for k in range(12))  # e − log(1+e) = e² Σ (−e)^k/(k+2)


def log_ratio_of_means(ratio: Tensor, excess: Tensor | None = None) -> Tensor:
    """Log AM − log GM over the last axis, of positive numbers given relative to their mean.

    Taken as the mean of e − log(1 + e), e = ratio − 1. Since Σe = 0 that is the same, but every term is ≥ 0 and
    none cancels: log AM − log GM would return rounding noise of either sign for a small gap. Small e go
    through the series, the others through a logarithm of whichever of e and 1 + e has the digits.

    Parameters
    ----------
    ratio
        Positive, mean one.
    excess
        e itself, where it is known better than ratio − 1.
    """
    e = ratio - 1.0 if excess is None else excess
    size = e.detach()
    tiny, low = size.abs() < 0.05, size < -0.5
    small = torch.where(tiny, e, 0.0)
    series = torch.zeros_like(small)
    for coefficient in reversed(_SERIES):
        series = series * small + coefficient
    logarithm = torch.where(
        low, torch.log(torch.where(low, ratio, 1.0)), torch.log1p(torch.where(low, 0.0, e))
    )
    return torch.where(tiny, series * small * small, e - logarithm).mean(-1)


def _refuse_indefinite(smallest: Tensor, largest: Tensor) -> None:
    worst = int((smallest / largest).argmin())
    raise InvalidValueError(
        "A Gram matrix is positive semi-definite; relative to the mean of its diagonal this one has an eigenvalue "
        f"of {float(smallest.flatten()[worst]):.3g} beside one of {float(largest.flatten()[worst]):.3g}. "
        "Pass X @ X.T."
    )


def _relative(matrix: Tensor) -> Tensor:
    """The symmetric matrix over the mean of its diagonal; raise where that means nothing."""
    with torch.no_grad():
        largest = matrix.abs().amax((-2, -1), keepdim=True)
        if not bool(torch.isfinite(largest).all()):
            raise InvalidValueError("A Gram matrix is finite; this one has an entry that is inf or nan.")
        if bool((largest == 0).any()):
            raise InvalidValueError("The isometry of a zero matrix is undefined; every feature vanishes.")
        skew = (matrix - matrix.mT).abs().amax((-2, -1), keepdim=True)
        if bool((skew > 1e-4 * largest).any()):
            raise InvalidValueError(
                "A Gram matrix is symmetric; here G_ij and G_ji differ by "
                f"{float((skew / largest).max()):.3g} of the largest entry. Pass X @ X.T."
            )
    # First by the largest entry, so that sums neither over- nor underflow.
    scaled = matrix / largest
    scaled = (scaled + scaled.mT) / 2.0
    mean = torch.diagonal(scaled, dim1=-2, dim2=-1).mean(-1)[..., None, None]
    if bool((mean <= 0).any()):
        raise InvalidValueError(
            "A Gram matrix is positive semi-definite, so its trace is positive; this one's is not. Pass X @ X.T."
        )
    return scaled / mean


def relative_spectrum(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues of a Gram matrix over their mean, what they exceed one by, and which can't be told from zero."""
    check_gram(matrix)
    n = matrix.shape[-1]
    relative = _relative(matrix)
    eye = torch.eye(n, dtype=relative.dtype, device=relative.device)
    # Near the identity, eigenvalues of the difference: absolute errors are then of its size, not of one.
    near = (relative.detach() - eye).abs().sum(-1).amax(-1)[..., None] < 0.5
    values = torch.linalg.eigvalsh(relative - near[..., None] * eye)
    ratio, excess = torch.where(near, values + 1.0, values), torch.where(near, values, values - 1.0)
    with torch.no_grad():
        smallest, largest = ratio.amin(-1), ratio.abs().amax(-1)
        epsilon = torch.finfo(ratio.dtype).eps
        if bool((smallest < -(epsilon**0.5) * largest).any()):
            _refuse_indefinite(smallest, largest)
        dead = ratio <= n * epsilon * largest[..., None]
    return ratio, excess, dead


def gap_of_spectrum(ratio: Tensor, excess: Tensor, dead: Tensor) -> Tensor:
    """The isometry gap from what :func:`relative_spectrum` gives; ∞ where an eigenvalue is zero."""
    gap = log_ratio_of_means(torch.where(dead, 1.0, ratio), torch.where(dead, 0.0, excess))
    return torch.where(dead.any(-1), torch.inf, gap)


def isometry_gap(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    r"""−log of the isometry of a positive semi-definite matrix: 0 for c·I, ∞ for a singular one.

    .. math:: -\log \mathcal I(G) = \log\frac{\operatorname{tr} G}{n} - \frac1n \log\det G

    Computed from eigenvalues as a mean of non-negative terms, never through a determinant: no scale over- or
    underflows it, and near the identity the eigenvalues are those of G/(tr G/n) − I, so a gap of 1e-20 between
    unit vectors keeps its digits (with an unequal diagonal, a relative error of about ε/√gap). An eigenvalue below
    n·ε·λ_max cannot be told from zero and counts as zero; :func:`feature_isometry_gap` follows
    features further. Batched over leading axes, differentiable, O(n³).

    Parameters
    ----------
    matrix
        Symmetric, positive semi-definite, not zero.

    Raises
    ------
    InvalidValueError
        If the matrix is not square, finite, symmetric (to 1e-4) and non-zero, or has a clearly negative eigenvalue.

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
    return gap_of_spectrum(*relative_spectrum(matrix))


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

    Forming X Xᵀ squares the condition number; this does not. A singular value below d·ε·s_max counts as zero, so a
    collapsing batch is followed until its eigenvalues are (d·ε)² apart (5e-30 in float64 at d = 10) instead of n·ε.
    Small gaps have a relative error of about ε/√gap. O(n²d).

    Raises
    ------
    InvalidValueError
        For more samples than features (the gap is always ∞), for integers and for a batch that is zero or not finite.

    Examples
    --------
    >>> float(feature_isometry_gap(torch.eye(2, 5)))
    0.0
    """
    if not x.is_floating_point():
        raise InvalidValueError(f"Features are floating point, got {x.dtype}. Call .double() on them.")
    if x.shape[-2] > x.shape[-1]:
        raise InvalidValueError(
            f"{x.shape[-2]} samples in {x.shape[-1]} dimensions always have a singular Gram matrix (gap ∞). "
            "Pass at most as many samples as features, or the transpose for a feature covariance."
        )
    largest = x.detach().abs().amax((-2, -1), keepdim=True)
    if not bool(((largest > 0) & torch.isfinite(largest)).all()):
        raise InvalidValueError(
            "The isometry of features that are all zero, or not finite, is undefined; the largest entry is "
            f"{float(largest.min()):.3g} to {float(largest.max()):.3g}."
        )
    # Scaled before squaring, so that no magnitude over- or underflows.
    singular = torch.linalg.svdvals(x / largest)
    with torch.no_grad():
        dead = singular <= x.shape[-1] * torch.finfo(x.dtype).eps * singular.amax(-1, keepdim=True)
    values = torch.where(dead, 1.0, singular) ** 2
    gap = log_ratio_of_means(values / values.mean(-1, keepdim=True))
    return torch.where(dead.any(-1), torch.inf, gap)


def lyapunov(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    r"""γ(G) = max_{i≠j} |G̃_ij| / (1 − |G̃_ij|): the quantity that every mean-field layer divides by β or more.

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
