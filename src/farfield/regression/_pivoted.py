"""Pivoted Cholesky: the rows of a kernel matrix that say most about the others."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield._typing import Float, Int
from farfield.errors import InvalidValueError
from farfield.regression._covariance import Covariance, checked

__all__ = ["landmarks", "low_rank"]

_BATCH = 32
"""Pivots taken per pass over the rows."""
_CANDIDATES = 8
"""Times as many rows compete for them."""


def low_rank(
    kernel: Covariance,
    x: Float[Tensor, "n d"],
    rank: int,
    *,
    tolerance: float = 1e-14,
) -> tuple[Float[Tensor, "n r"], Int[Tensor, " r"]]:
    r"""G with K(x, x) ≈ GGᵀ, exact in the rows of the pivots, and those pivots.

    Pivots are greedy: those with the largest remaining variance k(x, x) − k_SᵀK_SS⁻¹k_S. They are chosen 32
    at a time, by pivoted Cholesky among the 256 rows with the largest ones. Cost: n·r kernel entries and
    2n·r² operations; memory n·r.

    Parameters
    ----------
    kernel
        The kernel.
    x
        Inputs, float64.
    rank
        The largest number of pivots.
    tolerance
        Stop once no remaining variance exceeds this share of the largest; r may be smaller than ``rank``.
    """
    n = len(x)
    remaining = kernel.diagonal(x).clone()
    floor = tolerance * float(remaining.max()) if n else 0.0
    rank = min(rank, n)
    columns = x.new_empty(n, rank)
    pivots: list[int] = []
    while len(pivots) < rank:
        done = len(pivots)
        order = remaining.topk(min(n, _BATCH * _CANDIDATES)).indices
        order = order[remaining[order] > floor]
        if len(order) == 0:
            break
        block = checked(kernel, x[order]) - columns[order, :done] @ columns[order, :done].mT
        chosen = order[_greedy(block, min(_BATCH, rank - done), floor)]
        if len(chosen) == 0:
            break
        part = checked(kernel, x, x[chosen]) - columns[:, :done] @ columns[chosen, :done].mT
        part[chosen] = checked(kernel, x[chosen]) - columns[chosen, :done] @ columns[chosen, :done].mT
        low, info = torch.linalg.cholesky_ex(part[chosen])
        if int(info) != 0:  # what is left is rounding
            break
        part = torch.linalg.solve_triangular(low.mT, part, upper=True, left=False)
        stop = done + len(chosen)
        columns[:, done:stop] = part
        remaining -= (part * part).sum(1)
        remaining[chosen] = -1.0
        pivots += chosen.tolist()
    return columns[:, : len(pivots)], torch.tensor(pivots, dtype=torch.long, device=x.device)


def _greedy(block: Tensor, count: int, floor: float) -> Tensor:
    """Indices of the pivots of a small matrix, largest remaining diagonal first."""
    size = len(block)
    diagonal = block.diagonal().clone()
    columns = block.new_zeros(size, count)
    chosen: list[int] = []
    for k in range(min(count, size)):
        index = int(diagonal.argmax())
        value = float(diagonal[index])
        if value <= floor:
            break
        column = (block[:, index] - columns[:, :k] @ columns[index, :k]) / value**0.5
        columns[:, k] = column
        diagonal -= column * column
        diagonal[index] = -float("inf")
        chosen.append(index)
    return torch.tensor(chosen, dtype=torch.long, device=block.device)


def landmarks(
    kernel: Covariance,
    x: Float[Tensor, "n d"],
    count: int,
    *,
    method: str = "greedy",
    generator: torch.Generator | None = None,
) -> Float[Tensor, "m d"]:
    """Rows of a sample to stand for all of it in :class:`Nystrom`.

    Parameters
    ----------
    kernel
        The kernel.
    x
        A sample of the inputs.
    count
        How many; greedy ones may be fewer, where the sample has no more to say.
    method
        ``"greedy"``: pivoted Cholesky, n·m kernel entries and 2n·m² operations. ``"uniform"``: at random.
    generator
        Draws the rows for ``"uniform"``.

    Examples
    --------
    >>> from farfield import kernels
    >>> k = kernels.mlp(depth=2, layer_norm="first", bias_var=0.1).function("ntk")
    >>> x = torch.linspace(-3, 3, 100, dtype=torch.float64)[:, None]
    >>> landmarks(k, x, 3).flatten().sort().values
    tensor([-2.3333, -0.0303,  0.6970], dtype=torch.float64)
    """
    if not 1 <= count <= len(x):
        raise InvalidValueError(
            f"Landmarks are rows of the sample, which has {len(x)}; got count={count}. Give 1 to {len(x)}."
        )
    if method == "greedy":
        return x[low_rank(kernel, x.to(torch.float64), count)[1]]
    if method != "uniform":
        raise InvalidValueError(f"The method is 'greedy' or 'uniform', got {method!r}.")
    if generator is None:
        raise InvalidValueError("Uniform landmarks are drawn at random: pass generator=torch.Generator().")
    return x[torch.randperm(len(x), generator=generator)[:count].to(x.device)]
