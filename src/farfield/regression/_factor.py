"""Cholesky in the memory of the matrix, which it keeps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.engine import Progress

__all__ = ["CholeskyFactor", "factorize"]

_BLOCK = 512
"""Columns factorized at once: the products run at the speed of a large GEMM and the copies stay under 1% of
the matrix."""
_ROWS = 2048
"""Rows of a block of columns solved at once; also the side of blocks in products."""


@dataclass(frozen=True)
class CholeskyFactor:
    """K + sI = LLᵀ in one n×n tensor: L on and below the diagonal, K above it.

    The diagonal of K is kept beside. So products with K, residuals and another try with a larger s need
    neither a second matrix nor the kernel.

    Parameters
    ----------
    matrix
        L and K as said, row-major.
    diagonal
        The diagonal of K.
    shift
        s.
    """

    matrix: Tensor
    diagonal: Tensor
    shift: float

    def half_solve(self, b: Tensor) -> Tensor:
        """L⁻¹ b for b of shape (n, k)."""
        half: Tensor = torch.linalg.solve_triangular(self.matrix, b, upper=False)
        return half

    def solve(self, b: Tensor) -> Tensor:
        """(K + sI)⁻¹ b for b of shape (n, k)."""
        half = self.half_solve(b.to(self.matrix.dtype))
        full: Tensor = torch.linalg.solve_triangular(self.matrix.mT, half, upper=True)
        return full.to(b.dtype)

    def product(self, v: Tensor) -> Tensor:
        """K v for v of shape (n, k), from the upper triangle."""
        n = len(self.matrix)
        total = self.diagonal[:, None] * v
        for start in range(0, n, _ROWS):
            stop = min(start + _ROWS, n)
            upper = torch.triu(self.matrix[start:stop, start:stop], 1)
            total[start:stop].addmm_(upper, v[start:stop]).addmm_(upper.mT, v[start:stop])
            if stop < n:
                right = self.matrix[start:stop, stop:]
                total[start:stop].addmm_(right, v[stop:])
                total[stop:].addmm_(right.mT, v[start:stop])
        return total


def factorize(
    matrix: Tensor, diagonal: Tensor, shift: float, *, again: bool = False, progress: Progress | None = None
) -> CholeskyFactor | None:
    """Cholesky of K + sI over K itself, by blocks of columns from the left; None if it is not positive
    definite, to rounding.

    n³/3 operations, nearly all in matrix products; memory beside the matrix: 512 × n numbers at most.

    Parameters
    ----------
    matrix
        K, symmetric, row-major; overwritten below the diagonal.
    diagonal
        The diagonal of K.
    shift
        s ≥ 0.
    again
        The lower part holds a failed try: copy it from the upper one first.
    progress
        Told of every block of columns.
    """
    n = len(matrix)
    if again:
        _mirror(matrix)
    unit = torch.finfo(matrix.dtype).eps
    blocks = range(0, n, _BLOCK)
    for done, start in enumerate(blocks):
        if progress is not None:
            progress(done, len(blocks))
        stop = min(start + _BLOCK, n)
        square, before = matrix[start:stop, start:stop], matrix[start:stop, :start]
        pivot = torch.tril(square.mT.contiguous())
        pivot.diagonal().copy_(diagonal[start:stop] + shift)
        if start:
            pivot.addmm_(before, before.mT, alpha=-1.0)
        low, info = torch.linalg.cholesky_ex(pivot)
        # A pivot within rounding of 0 is one: what follows from it is noise, however positive.
        if int(info) != 0 or bool((low.diagonal() ** 2 <= unit * diagonal[start:stop]).any()):
            return None
        square.copy_(torch.triu(square, 1).add_(low))
        below = matrix[stop:, start:stop]
        if start and stop < n:
            below.addmm_(matrix[stop:, :start], before.mT, alpha=-1.0)
        for rows in below.split(_ROWS):
            rows.copy_(torch.linalg.solve_triangular(low.mT, rows, upper=True, left=False))
    if progress is not None:
        progress(len(blocks), len(blocks))
    return CholeskyFactor(matrix, diagonal, shift)


def _mirror(matrix: Tensor) -> None:
    n = len(matrix)
    for start in range(0, n, _ROWS):
        stop = min(start + _ROWS, n)
        for left in range(0, stop, _ROWS):
            right = min(left + _ROWS, n)
            source = matrix[left:right, start:stop].mT.contiguous()
            if left == start:
                square = matrix[start:stop, start:stop]
                source = torch.tril(source, -1).add_(torch.triu(square))
            matrix[start:stop, left:right] = source
