"""How much of the spread of points lies within their classes, as they are and after the best linear map."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import InvalidValueError

__all__ = ["lssr", "ssr"]


def ssr(x: Float[Tensor, "n d"], y: Tensor) -> Float[Tensor, ""]:
    r"""The part of the sum of squares that lies within the classes: 0 if every class is one point, at most 1.

    .. math:: \mathrm{SSR} = \frac{\sum_c SS(X_c)}{SS(X)}, \qquad SS(X) = \sum_i \|x_i - \bar x\|^2

    P3 has two classes; with more, the sum runs over all. Exact to rounding; O(nd).

    Parameters
    ----------
    x
        Points, one a row, not all equal.
    y
        A label for every point, (n,), of any dtype.

    References
    ----------
    [P3] SSR and LSSR.

    Examples
    --------
    >>> ssr(torch.tensor([[0.0], [1.0], [4.0], [5.0]]), torch.tensor([0, 0, 1, 1]))
    tensor(0.0588)
    """
    centered, index = _prepared(x, y)
    return _within(centered, index).square().sum() / centered.square().sum()


def lssr(x: Float[Tensor, "n d"], y: Tensor) -> Float[Tensor, ""]:
    r"""The least SSR over all linear maps of the points: 0 if some projection sends every class to one point.

    .. math:: \mathrm{LSSR} = \inf_\varphi \mathrm{SSR}(\varphi X) = \lambda_{\min}(S_w, S_t)

    with S_w and S_t the scatter within classes and in all. A map to several dimensions averages Rayleigh quotients,
    so that one direction attains the infimum; S_t is inverted on its range alone, outside of which there is nothing
    to see. For two classes this is 1 − R² of the least-squares fit of the labels; with more, 1 − the largest squared
    canonical correlation between points and labels. No linear map lowers it (P3's Proposition 1): that takes a
    nonlinearity, and one LayerNorm brings XOR from 1 to 0.

    Closed form from two singular value decompositions, never through a product of the points with themselves: the
    error is of the size of rounding, and a value near 0 is the square of one, O(nd·min(n, d)). Directions whose
    spread is below rounding, in units of each feature's own, count as none.

    Parameters
    ----------
    x
        Points, one a row, not all equal.
    y
        A label for every point, (n,), of any dtype.

    References
    ----------
    [P3] LSSR; the closed form is ours.

    Examples
    --------
    >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    >>> round(float(lssr(x, torch.tensor([0, 1, 1, 0]))), 12), round(float(lssr(x, torch.tensor([0, 0, 0, 1]))), 12)
    (1.0, 0.333333333333)
    """
    # Each feature by its own size: the value does not change, and the rank no longer depends on units.
    scaled, index = _prepared(x, y, each=True)
    basis, spread, _ = torch.linalg.svd(scaled, full_matrices=False)
    rank = int((spread > max(x.shape) * torch.finfo(spread.dtype).eps * spread[0]).sum())
    within = _within(basis[:, :rank], index)
    least: Tensor = torch.linalg.svdvals(within)[-1]
    return least.square().clamp(max=1.0)


def _prepared(x: Tensor, y: Tensor, *, each: bool = False) -> tuple[Tensor, Tensor]:
    """Centered points in units of the largest difference, or each feature in its own; and classes from 0."""
    wrong = x.ndim != 2 or y.shape != x.shape[:1] or x.numel() == 0 or x.is_complex()
    if wrong or not bool(torch.isfinite(x).all()):
        raise InvalidValueError(
            f"Points are real and finite, one a row, with one label each; got {x.dtype} of shape "
            f"{tuple(x.shape)} and labels of shape {tuple(y.shape)}"
            f"{'' if bool(torch.isfinite(x).all()) else ', with entries that are not finite'}."
        )
    if x.dtype not in (torch.float32, torch.float64):
        x = x.to(torch.float32 if x.is_floating_point() else torch.float64)
    # From the first point and in units of the largest difference, so that squares neither cancel nor overflow.
    moved = x - x[0]
    if not bool(torch.isfinite(moved).all()):
        moved = x / 2 - x[0] / 2
    largest = moved.abs().amax(0) if each else moved.abs().max()
    if not bool((largest > 0).any()):
        raise InvalidValueError(
            f"All {len(x)} points are equal: they have no spread to divide. Give points that differ."
        )
    moved = moved / torch.where(largest > 0, largest, 1.0)
    return moved - moved.mean(0), torch.unique(y, return_inverse=True)[1]


def _within(values: Tensor, index: Tensor) -> Tensor:
    """Each row less the mean of its class."""
    count = torch.bincount(index).to(values.dtype)
    total = torch.zeros(len(count), values.shape[1], dtype=values.dtype, device=values.device)
    return values - (total.index_add(0, index, values) / count[:, None])[index]
