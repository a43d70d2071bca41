"""What projecting rows to a sphere does to isometry: P2's Theorem 1 and its corollaries, as they hold."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.geometry._gram import check_gram, gram, squared_lengths
from farfield.geometry._isometry import isometry, log_ratio_of_means

__all__ = ["corollary2_bound", "corollary3_bound", "normalization_gain", "theorem1_bound"]


def normalization_gain(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    r"""Log I(G̃) − log I(G), exactly: what scaling every row to unit length adds to log-isometry.

    .. math:: \frac{\mathcal I(\tilde G)}{\mathcal I(G)} = \frac{\operatorname{AM}(a^2)}{\operatorname{GM}(a^2)}
              \ge 1, \qquad a_i = \sqrt{G_{ii}}

    [P2] Theorem 1 states a lower bound for this ratio; det G̃ = det G / Π a_i² makes it an identity (where G is
    singular both isometries are zero, and the value is the ratio of the means). It holds for projection alone
    (RMSNorm without affine): **centering is a different operation and has no such guarantee**.

    Examples
    --------
    >>> float(normalization_gain(torch.eye(3)))
    0.0
    """
    squares = squared_lengths(matrix)
    return log_ratio_of_means(squares / squares.mean(-1, keepdim=True))


def _spread(a: Tensor) -> Tensor:
    """1 + var(a)/mean(a)², population variance."""
    return (a * a).mean(-1) / a.mean(-1) ** 2


def theorem1_bound(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    r"""Lower bound on I(G̃): [P2] Theorem 1.

    .. math:: \mathcal I(\tilde G) \ge \mathcal I(G)\left(1 + \frac{\operatorname{var}(a)}{\bar a^2}\right),
              \qquad a_i = \sqrt{G_{ii}},\; \bar a = \frac1n \sum_i a_i

    Read the paper's "=" in Eq. 8 as "≥" and the 1/d in Eq. 7 as 1/n. :func:`normalization_gain` is the exact value.
    """
    check_gram(matrix)
    a = torch.sqrt(torch.diagonal(matrix, dim1=-2, dim2=-1))
    return isometry(matrix) * _spread(a)


def corollary2_bound(x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    """Lower bound on the isometry of a batch after RMS projection of every sample: [P2] Corollary 2, corrected.

    Theorem 1 for G = X Xᵀ. The paper prints it for "LayerNorm", whose definition there (its Table 1) does not center:
    with a centering LayerNorm the inequality fails, and isometry itself can fall (a test shows both). Split the
    layer: :class:`farfield.nn.Project` carries this guarantee, :class:`farfield.nn.Center` carries none.

    Parameters
    ----------
    x
        Features, one sample a row.
    """
    return theorem1_bound(gram(x))


def corollary3_bound(x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    r"""Lower bound on the isometry of the feature covariance after BatchNorm's scaling: [P2] Corollary 3, corrected.

    .. math:: \mathcal I(\tilde C) \ge \mathcal I(C)\left(1 + \frac{\operatorname{var}(a)}{\bar a^2}\right),
              \quad C = X^\top X,\; a_j = \lVert X_{\cdot j}\rVert,\; \bar a = \frac1d \sum_{j\le d} a_j

    Every feature (column of X) is scaled to unit length over the batch, without centering. The paper divides by the
    batch size n instead of d in ā, which multiplies var(a)/ā² by (n/d)²: for n well above d the inequality then
    fails for most batches (a test counts them).

    Parameters
    ----------
    x
        Features, one sample a row; C is regular only if n ≥ d.
    """
    return theorem1_bound(gram(x.mT))
