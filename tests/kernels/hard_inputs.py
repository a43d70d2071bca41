"""Inputs on which a careless kernel recursion loses its digits."""

import torch
from torch import Tensor

__all__ = ["hard_rows"]


def hard_rows(d: int = 5) -> Tensor:
    """One point, and rows that are hard beside it: near duplicates, antipodes, multiples, others. Shape (13, d)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, d, generator=generator, dtype=torch.float64)
    noise = torch.randn(5, d, generator=generator, dtype=torch.float64)
    near = x[0] + torch.tensor([1e-12, 1e-9, 1e-7, 1e-5, 1e-3], dtype=torch.float64)[:, None] * noise
    opposite = [-x[0], -x[0] * (1 + 1e-9) + 1e-9 * x[1], -x[0] + 1e-5 * x[1], -x[0] + 1e-3 * x[2]]
    return torch.cat([x, near, torch.stack(opposite), 2.0 * x[:1]])
