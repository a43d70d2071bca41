"""Extreme eigenvalues of a symmetric operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.errors import InvalidValueError

__all__ = ["Eigenvalue", "Spectrum", "lanczos"]


@dataclass(frozen=True)
class Eigenvalue:
    """An eigenvalue and how far from it the true one may be.

    Parameters
    ----------
    value
        The estimate.
    error
        Residual of its vector, rounding included. A true eigenvalue lies within it. That this is the extreme
        one holds with probability close to 1 over the random start, not with certainty, unless the method is
        ``"dense"``.
    method
        ``"dense"`` (all eigenvalues), ``"inverse"`` (Lanczos on a factorized inverse) or ``"lanczos"``.
    """

    value: float
    error: float
    method: str


@dataclass(frozen=True)
class Spectrum:
    """Both ends of a spectrum, and how many products they took."""

    smallest: Eigenvalue
    largest: Eigenvalue
    steps: int


def lanczos(
    operator: Callable[[Tensor], Tensor],
    n: int,
    generator: torch.Generator,
    *,
    steps: int = 100,
    tolerance: float = 1e-10,
    ends: tuple[str, ...] = ("smallest", "largest"),
) -> Spectrum:
    r"""Smallest and largest eigenvalue of a symmetric operator by Lanczos with full reorthogonalization.

    Of the tridiagonal :math:`T = Q^\top A Q` on a Krylov space, with the residuals :math:`\|Aq - \theta q\|` as error
    estimates. Cost: ``steps`` products and 4n·steps² operations; memory n·steps numbers.

    Parameters
    ----------
    operator
        v ↦ Av for v of shape (n,), float64.
    n
        Size.
    generator
        For the start vector, on the processor.
    steps
        At most so many products.
    tolerance
        Stop once the errors of ``ends`` are below this share of the largest absolute eigenvalue.
    ends
        Those that must converge.

    Examples
    --------
    >>> d = torch.linspace(1.0, 9.0, 50, dtype=torch.float64)
    >>> found = lanczos(lambda v: d * v, 50, torch.Generator().manual_seed(0))
    >>> round(found.smallest.value, 9), round(found.largest.value, 9)
    (1.0, 9.0)
    """
    if n < 1 or steps < 1:
        raise InvalidValueError(f"There is at least one row and one step; got n={n} and steps={steps}.")
    start = torch.randn(n, dtype=torch.float64, generator=generator)
    basis = [start / start.norm()]
    alphas: list[float] = []
    betas: list[float] = []
    unit = torch.finfo(torch.float64).eps
    while True:
        image = operator(basis[-1])
        alphas.append(float(basis[-1] @ image))
        known = torch.stack(basis, 1)
        for _ in range(2):  # twice is enough: Gram–Schmidt loses digits once
            image = image - known @ (known.mT @ image)
        beta = float(image.norm())
        values, vectors = _tridiagonal(alphas, betas)
        scale = max(abs(float(values[0])), abs(float(values[-1])), torch.finfo(torch.float64).tiny)
        rounding = unit * scale * (10 + n**0.5)
        low, high = (
            Eigenvalue(float(values[k]), beta * abs(float(vectors[-1, k])) + rounding, "lanczos")
            for k in (0, -1)
        )
        errors = {"smallest": low.error, "largest": high.error}
        done = max(errors[end] for end in ends) <= tolerance * scale + rounding
        # β = 0: the space is invariant, and from a random start it holds every eigenvalue.
        if done or len(alphas) >= min(n, steps) or beta <= rounding:
            return Spectrum(low, high, len(alphas))
        betas.append(beta)
        basis.append(image / beta)


def _tridiagonal(alphas: list[float], betas: list[float]) -> tuple[Tensor, Tensor]:
    matrix = torch.diag(torch.tensor(alphas, dtype=torch.float64))
    if betas:
        off = torch.tensor(betas, dtype=torch.float64)
        matrix += torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors
