"""Batches of features and Gram matrices that the geometry tests draw their cases from."""

import torch
from torch import Tensor


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features(
    seed: int, cases: int, n: int, d: int, *, spread: float = 0.0, common: float = 0.0, dtype=torch.float64
) -> Tensor:
    """Gaussian features, shape (cases, n, d).

    ``spread`` is the deviation of the rows' log-lengths, ``common`` the size of a part shared by all rows.
    """
    g = generator(seed)
    x = torch.randn(cases, n, d, generator=g, dtype=dtype)
    x = x + common * torch.randn(cases, 1, d, generator=g, dtype=dtype)
    return x * torch.exp(spread * torch.randn(cases, n, 1, generator=g, dtype=dtype))


def unit_grams(seed: int, cases: int, n: int, *, d: int | None = None, common: float = 0.0) -> Tensor:
    """Unit-diagonal Gram matrices of Gaussian features, built without farfield's own normalization."""
    x = features(seed, cases, n, d if d is not None else 2 * n, common=common)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    G = x @ x.mT
    G = (G + G.mT) / 2
    torch.diagonal(G, dim1=-2, dim2=-1).fill_(1.0)
    return G


def weakly_correlated(seed: int, cases: int, n: int, largest: float) -> Tensor:
    """Unit-diagonal matrices with off-diagonal entries uniform in ±largest."""
    e = (2.0 * torch.rand(cases, n, n, generator=generator(seed), dtype=torch.float64) - 1.0) * largest
    e = torch.triu(e, diagonal=1)
    return e + e.mT + torch.eye(n, dtype=torch.float64)


def near_duplicates(seed: int, cases: int, n: int, distance: float) -> Tensor:
    """Unit-diagonal Gram matrices of samples that all lie within about ``distance`` of each other."""
    return unit_grams(seed, cases, n, common=1.0 / distance)
