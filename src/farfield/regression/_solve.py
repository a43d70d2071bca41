"""Ways to solve a job: Cholesky in float64, Cholesky in float32 with correction, conjugate gradients."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from farfield.errors import InvalidValueError, PrecisionError
from farfield.geometry.spectrum import lanczos
from farfield.regression._data import check_finite
from farfield.regression._factor import CholeskyFactor, factorize
from farfield.regression._job import FitJob
from farfield.regression._pcg import FactorPreconditioner, LowRankPreconditioner
from farfield.regression._pivoted import low_rank
from farfield.regression._posterior import Posterior
from farfield.regression._system import DenseSystem, TiledSystem

__all__ = ["solve"]

_CAP = 1e-6
"""Largest jitter chosen by itself, as a share of the mean diagonal."""


def solve(job: FitJob) -> Posterior:
    """The job's posterior, by the solver and the precision that it names."""
    if job.solver == "cholesky" and job.precision == "float64":
        return _exact(job)
    if job.solver == "cholesky":
        # The checkpoint holds the matrix's tiles, and nothing of the correction that follows.
        preconditioner, job = _single_factor(job), dataclasses.replace(job, checkpoint=None)
        return _iterated(TiledSystem(job, job.known_shift, preconditioner))
    return _iterated(TiledSystem(job, job.known_shift, _low_rank(job)))


# ------------------------------------------------------------------ Cholesky


def _exact(job: FitJob) -> Posterior:
    matrix, diagonal = job.matrix()
    check_finite(diagonal)
    mean = float(diagonal.mean())
    reached = float("inf")
    for again, extra in enumerate(_ladder(job.jitter, mean, torch.float64, _CAP)):
        factor = factorize(matrix, diagonal, job.noise + extra, again=again > 0, progress=job.progress)
        if factor is None:
            continue
        system = DenseSystem(factor, job.noise + extra)
        weights, product = system.solve_with_product(job.y, job.tolerance)
        found = Posterior.of(job, system, weights, product)
        if found.residual <= job.tolerance:
            return found
        reached = found.residual
    raise _not_solvable(job, CholeskyFactor(matrix, diagonal, job.noise), mean, reached)


def _single_factor(job: FitJob) -> FactorPreconditioner:
    """A factor in float32; its jitter is the preconditioner's alone."""
    matrix, diagonal = job.matrix()
    check_finite(diagonal)
    mean = float(diagonal.mean())
    for again, extra in enumerate(_ladder("auto", mean, torch.float32, 1e-1)):
        factor = factorize(matrix, diagonal, job.known_shift + extra, again=again > 0, progress=job.progress)
        if factor is not None:
            return FactorPreconditioner(factor)
    raise PrecisionError(
        "The kernel matrix has no Cholesky factor in float32 even with a tenth of its mean diagonal added: "
        "it is far from positive semi-definite. Use precision='float64', and check the kernel."
    )


def _ladder(jitter: float | str, mean: float, dtype: torch.dtype, cap: float) -> list[float]:
    """Jitters to try, smallest first."""
    if jitter != "auto":
        return [float(jitter)]
    steps, value = [0.0], torch.finfo(dtype).eps
    while value <= cap:
        steps.append(value * mean)
        value *= 10
    return steps


def _not_solvable(job: FitJob, factor: CholeskyFactor, mean: float, reached: float) -> PrecisionError:
    def product(v: Tensor) -> Tensor:
        return factor.product(v[:, None])[:, 0]

    repeated = job.n - len(torch.unique(job.x, dim=0))
    start = torch.Generator().manual_seed(0)
    estimate = lanczos(product, job.n, start, steps=30, ends=("smallest",)).smallest
    tried = (
        f"up to {_CAP * mean:.3g}, 1e-6 of the mean diagonal," if job.jitter == "auto" else f"{job.jitter:g}"
    )
    what = (
        f"is not positive definite with noise {job.noise:g} and a jitter of {tried}"
        if reached == float("inf")
        else f"with noise {job.noise:g} and a jitter of {tried} is solved to a relative residual of {reached:.3g} "
        f"only, not {job.tolerance:.3g},"
    )
    return PrecisionError(
        f"The {job.n}×{job.n} kernel matrix {what} in float64. Its smallest eigenvalue is about "
        f"{estimate.value:.3g} (± {estimate.error:.2g}), and {repeated} of the inputs repeat another. Pass "
        f"noise={1e-4 * mean:.1g} or more (a share of the mean diagonal, {mean:.3g}), drop repeated inputs, "
        "or scale inputs that the kernel cannot tell apart."
    )


# ------------------------------------------------------------------ conjugate gradients


def _iterated(system: TiledSystem) -> Posterior:
    job = system.job
    weights = system.solve(job.y, job.tolerance)
    product = system.product(weights)
    return Posterior.of(job, dataclasses.replace(system, job=job.solved()), weights, product)


def _low_rank(job: FitJob) -> LowRankPreconditioner:
    most = max(1, job.spare_memory // (4 * 8 * job.n))  # G, Q, the product of Q, and what QR needs
    count = min(1000, max(job.n // 4, 1), most) if job.rank == "auto" else int(job.rank)
    if count > most:
        raise InvalidValueError(
            f"A preconditioner of rank {count} for {job.n} inputs takes {4 * 8 * job.n * count / 1e9:.3g} GB and "
            f"there are {job.spare_memory / 1e9:.3g} GB. Pass a smaller rank= or a larger memory=."
        )
    columns, _ = low_rank(job.kernel, job.x, count)
    return LowRankPreconditioner.of(columns, job.known_shift)
