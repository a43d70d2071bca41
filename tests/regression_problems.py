"""Kernels and data for the tests of regression, and dense references in numpy."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from farfield import kernels


@dataclass(frozen=True)
class RBF:
    """exp(−|x − x′|²/2ℓ²): a covariance that is no network's."""

    length: float = 1.0
    size: float = 1.0

    def __call__(self, x1, x2=None):
        value = self.size * torch.exp(-0.5 * (torch.cdist(x1, x1 if x2 is None else x2) / self.length) ** 2)
        if x2 is None:
            value = (value + value.mT) / 2
            value.diagonal().fill_(self.size)
        return value

    def diagonal(self, x):
        return torch.full((len(x),), self.size, dtype=x.dtype)

    def sup_diagonal(self):
        return self.size


@dataclass(frozen=True)
class Explicit:
    """Any matrix as a kernel of the inputs 0, 1, …: what a test wants it to be."""

    matrix: Tensor
    supremum: float = math.inf

    def __call__(self, x1, x2=None):
        rows = x1[:, 0].long()
        columns = rows if x2 is None else x2[:, 0].long()
        return self.matrix[rows][:, columns].to(x1.dtype)

    def diagonal(self, x):
        return self.matrix.diagonal()[x[:, 0].long()].to(x.dtype)

    def sup_diagonal(self):
        return self.supremum


@functools.cache
def network(layer_norm="first", depth=2, bias_var=0.1, **options):
    return kernels.mlp(depth=depth, layer_norm=layer_norm, bias_var=bias_var, **options)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def data(n=40, d=3, k=None, seed=0):
    g = generator(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    shape = (n,) if k is None else (n, k)
    return x, torch.sin(x[:, 0]).reshape(n, *[1] * (len(shape) - 1)) + 0.1 * torch.randn(
        shape, generator=g, dtype=torch.float64
    )


def queries(m=15, d=3, seed=9, spread=2.0):
    return spread * torch.randn(m, d, generator=generator(seed), dtype=torch.float64)


def dense(kernel, x, y, q, noise=0.0):
    """Mean and posterior variance by numpy's general solver."""
    K, kq = kernel(x).numpy(), kernel(q, x).numpy()
    A = K + noise * np.eye(len(K))
    mean = kq @ np.linalg.solve(A, y.numpy())
    variance = kernel.diagonal(q).numpy() - np.einsum("ij,ij->i", kq, np.linalg.solve(A, kq.T).T)
    return torch.from_numpy(mean), torch.from_numpy(variance)
