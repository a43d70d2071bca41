"""Correlation of a few numbers, and how often chance alone would give as much."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

__all__ = ["chance", "pearson", "ranks", "spearman"]


def pearson(x: Tensor, y: Tensor) -> Tensor:
    """Correlation along the last axis; leading axes are broadcast.

    Examples
    --------
    >>> x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    >>> round(float(pearson(x, -2 * x)), 12)
    -1.0
    """
    u, v = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    return (u * v).sum(-1) / (u.square().sum(-1) * v.square().sum(-1)).sqrt()


def ranks(x: Tensor) -> Tensor:
    """Places 0, 1, … along the last axis, equal values sharing the mean of theirs."""
    below = (x[..., None, :] < x[..., :, None]).sum(-1)
    same = (x[..., None, :] == x[..., :, None]).sum(-1)
    return below + (same - 1) / 2.0


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Correlation of the ranks along the last axis."""
    return pearson(ranks(x).double(), ranks(y).double())


def chance(x: Tensor, y: Tensor) -> float:
    """Share of all reorderings of x whose Pearson correlation with y is at least that of x as it is: one-sided.

    All n! are tried, for n of at most 8.
    """
    orders = torch.tensor(list(itertools.permutations(range(len(x)))))
    found = pearson(x[orders], y)
    return float((found >= found[0] - 1e-12).double().mean())
