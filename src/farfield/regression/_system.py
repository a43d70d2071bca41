"""(K + sI)⁻¹ in three ways: factorized, factorized in float32 and corrected, iterated on tiles."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield import engine as engines
from farfield.geometry.spectrum import Eigenvalue, lanczos
from farfield.regression._covariance import kept_product, symmetric_product
from farfield.regression._factor import CholeskyFactor
from farfield.regression._job import FitJob
from farfield.regression._pcg import Preconditioner, conjugate_gradients, relative

__all__ = ["DenseSystem", "System", "TiledSystem"]

_REFINEMENTS = 5
_DENSE = 1000
"""Up to this size all eigenvalues are computed."""


class System(ABC):
    """A kernel matrix K with a shift s ≥ 0, and what regression asks of A = K + sI."""

    shift: float

    @abstractmethod
    def product(self, v: Tensor) -> Tensor:
        """Kv for v of shape (n, k)."""

    @abstractmethod
    def solve(self, b: Tensor, tolerance: float) -> Tensor:
        """A⁻¹b for b of shape (n, k), to a relative residual of ``tolerance`` where that can be reached."""

    @abstractmethod
    def smallest_eigenvalue(self) -> Eigenvalue:
        """The smallest eigenvalue of A, with an error estimate."""

    @abstractmethod
    def quadratic(self, b: Tensor, tolerance: float) -> Tensor:
        """bᵀA⁻¹b for every column of b, shape (k,)."""

    def apply(self, v: Tensor) -> Tensor:
        """Av."""
        return self.product(v).add_(v, alpha=self.shift)


@dataclass(frozen=True)
class DenseSystem(System):
    """Solves by a Cholesky factor in float64, and refines against K, which is stored above the factor."""

    factor: CholeskyFactor
    shift: float

    def product(self, v: Tensor) -> Tensor:
        """Kv."""
        return self.factor.product(v)

    def solve(self, b: Tensor, tolerance: float) -> Tensor:
        """A⁻¹b; refined only while the residual is above the tolerance and falls."""
        return self.solve_with_product(b, tolerance)[0]

    def solve_with_product(self, b: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        """x = A⁻¹b and Kx, which the check of the residual has computed."""
        x = self.factor.solve(b)
        best = float("inf")
        for _ in range(_REFINEMENTS):
            product = self.product(x)
            residual = (b - product).sub_(x, alpha=self.shift)
            reached = float(relative(residual, b).max()) if b.numel() else 0.0
            if reached <= tolerance or not reached < 0.5 * best:
                return x, product
            best = reached
            x = x + self.factor.solve(residual)
        return x, self.product(x)

    def quadratic(self, b: Tensor, tolerance: float) -> Tensor:
        """‖L⁻¹b‖², half the work of a solve."""
        half = self.factor.half_solve(b)
        return (half * half).sum(0)

    def smallest_eigenvalue(self) -> Eigenvalue:
        """Dense up to n = 1000; above, Lanczos on A⁻¹. Computed once."""
        return self._smallest

    @functools.cached_property
    def _smallest(self) -> Eigenvalue:
        n = len(self.factor.matrix)
        unit = torch.finfo(torch.float64).eps
        if n <= _DENSE:
            upper = torch.triu(self.factor.matrix, 1)
            full = upper + upper.mT + torch.diag(self.factor.diagonal + self.shift)
            values = torch.linalg.eigvalsh(full)
            return Eigenvalue(float(values[0]), n * unit * float(values[-1].abs()), "dense")

        def inverse(v: Tensor) -> Tensor:
            return self.factor.solve(v[:, None])[:, 0]

        def forward(v: Tensor) -> Tensor:
            return self.apply(v[:, None])[:, 0]

        found = lanczos(inverse, n, _generator(), steps=60, tolerance=1e-6, ends=("largest",)).largest
        top = lanczos(forward, n, _generator(), steps=10, ends=("largest",), tolerance=1e-2).largest
        value = 1.0 / found.value
        spread = value - 1.0 / (found.value + found.error)
        return Eigenvalue(value, spread + 10 * n**0.5 * unit * (top.value + top.error), "inverse")


@dataclass(frozen=True)
class TiledSystem(System):
    """Solves by conjugate gradients on tiles that are recomputed in every product, or kept where they were computed.

    Parameters
    ----------
    job
        Its kernel, inputs and engine; it says how many iterations there may be and whether the tiles stay with their
        workers during a solve.
    shift
        s.
    preconditioner
        A preconditioner of rank r, or a Cholesky factor in float32.
    """

    job: FitJob
    shift: float
    preconditioner: Preconditioner

    def product(self, v: Tensor) -> Tensor:
        """Kv."""
        return symmetric_product(self.job.kernel, self.job.x, v, self.job.work)

    def solve(self, b: Tensor, tolerance: float) -> Tensor:
        """A⁻¹b, or :class:`PrecisionError`."""
        key = "" if self.job.checkpoint is None else engines.fingerprint(self.job.x, b, self.shift)
        with self._applied() as apply:
            return conjugate_gradients(apply, b, self.preconditioner, self.job, tolerance=tolerance, key=key)

    @contextlib.contextmanager
    def _applied(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """V ↦ AV for the length of a solve."""
        if not self.job.keep_tiles:
            yield self.apply
            return
        with kept_product(self.job.kernel, self.job.x, self.job.work) as product:
            yield lambda v: product(v).add_(v, alpha=self.shift)

    def quadratic(self, b: Tensor, tolerance: float) -> Tensor:
        """With x ≈ A⁻¹b and r = b − Ax, xᵀ(b + r): its error is of second order, rᵀA⁻¹r."""
        x = self.solve(b, tolerance)
        return (x * (2 * b - self.apply(x))).sum(0)

    def smallest_eigenvalue(self) -> Eigenvalue:
        """Lanczos on A itself; what is known is that it is at least the shift. Computed once."""
        return self._smallest

    @functools.cached_property
    def _smallest(self) -> Eigenvalue:
        found = lanczos(
            lambda v: self.apply(v[:, None])[:, 0], self.job.n, _generator(), steps=60, ends=("smallest",)
        ).smallest
        if found.value - found.error < self.shift:
            value = max(found.value, self.shift)
            return Eigenvalue(value, value - self.shift, "lanczos")
        return found


def _generator() -> torch.Generator:
    """A start vector must only be generic; a fixed one gives the same answer every time."""
    return torch.Generator().manual_seed(0)
