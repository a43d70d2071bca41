"""Preconditioned conjugate gradients for several right-hand sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from farfield import engine as engines
from farfield.errors import PrecisionError
from farfield.regression._factor import CholeskyFactor
from farfield.regression._job import FitJob

__all__ = ["FactorPreconditioner", "LowRankPreconditioner", "Preconditioner", "conjugate_gradients"]

_PATIENCE = 100
"""Iterations without progress that mean a stall."""
_RESTARTS = 5
"""Times the recursion may be started again from the true residual."""


Preconditioner: TypeAlias = Callable[[Tensor], Tensor]
"""v ↦ P⁻¹v for v of shape (n, k), P close to the matrix."""


@dataclass(frozen=True)
class LowRankPreconditioner:
    r"""The inverse of a low-rank approximation GGᵀ = UΛUᵀ plus a multiple of the identity.

    .. math:: P^{-1} = (\lambda_r + s)\, U (\Lambda + s)^{-1} U^\top + (I - UU^\top)

    Where the approximation ends its eigenvalues are taken to be all like the last one, λ_r.

    References
    ----------
    Frangella, Tropp, Udell 2023, Randomized Nyström preconditioning.
    """

    basis: Tensor
    factors: Tensor

    @staticmethod
    def of(columns: Tensor, shift: float) -> LowRankPreconditioner:
        """From G, of shape (n, r). Cost: 4n·r² operations."""
        if columns.shape[1] == 0:
            return LowRankPreconditioner(columns, columns.new_empty(0))
        q, r = torch.linalg.qr(columns)
        u, s, _ = torch.linalg.svd(r)
        values = s * s
        return LowRankPreconditioner(q @ u, (values[-1] + shift) / (values + shift) - 1.0)

    def __call__(self, v: Tensor, /) -> Tensor:
        """P⁻¹v."""
        return v + self.basis @ (self.factors[:, None] * (self.basis.mT @ v))


@dataclass(frozen=True)
class FactorPreconditioner:
    """The inverse by a Cholesky factor of lower precision."""

    factor: CholeskyFactor

    def __call__(self, v: Tensor, /) -> Tensor:
        """P⁻¹v."""
        # Scaled to one: a small residual's square would underflow in float32.
        size = v.abs().amax(0).clamp(min=torch.finfo(v.dtype).tiny)
        return self.factor.solve(v / size) * size


def relative(residual: Tensor, b: Tensor) -> Tensor:
    """‖r‖/‖b‖ a column; 0 where b is 0."""
    size = b.norm(dim=0)
    return torch.where(size > 0, residual.norm(dim=0) / torch.where(size > 0, size, 1.0), 0.0)


@dataclass
class _State:
    """What a run needs to go on, bit for bit."""

    iteration: int
    x: Tensor
    r: Tensor
    p: Tensor
    rz: Tensor

    def stored(self) -> dict[str, object]:
        return {"iteration": self.iteration, "x": self.x, "r": self.r, "p": self.p, "rz": self.rz}


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor],
    b: Tensor,
    precondition: Preconditioner,
    job: FitJob,
    *,
    tolerance: float,
    key: str = "",
) -> Tensor:
    """Solve AX = B to ‖B − AX‖ ≤ tolerance·‖B‖, column by column but with one product with A an iteration.

    Columns that are there leave the product. The residual that counts is the true one, computed anew at the
    end; where the recursion has drifted from it, it starts again from there.

    Parameters
    ----------
    apply
        V ↦ AV, A symmetric positive definite.
    b
        B, shape (n, k).
    precondition
        V ↦ P⁻¹V.
    job
        How many iterations it may take, who is told of each, and the checkpoint that keeps the iterate.
    tolerance
        Largest relative residual; the job's own, or a larger one where a rough solution will do.
    key
        Names the iterate in the checkpoint: a run with the same key goes on from it.

    Raises
    ------
    PrecisionError
        If the residual stalls, the iterations run out or A turns out not to be positive definite.
    """
    item, iterations, progress, checkpoint = ("pcg", key), job.iterations, job.progress, job.checkpoint
    state = _restore(checkpoint, item) or _start(torch.zeros_like(b), b, precondition, 0)
    best, since = float("inf"), 0
    restarts = 0
    while True:
        now = relative(state.r, b)
        worst = float(now.max()) if now.numel() else 0.0
        if progress is not None:
            progress(state.iteration, iterations)
        if worst <= tolerance:
            true = b - apply(state.x)
            reached = float(relative(true, b).max()) if now.numel() else 0.0
            if reached <= tolerance:
                if progress is not None:
                    progress(iterations, iterations)
                return state.x
            restarts += 1
            if restarts > _RESTARTS:
                raise _stalled(reached, tolerance, state.iteration, "rounding errors keep it there")
            state = _start(state.x, true, precondition, state.iteration)
            continue
        since = 0 if worst < 0.99 * best else since + 1
        best = min(best, worst)
        if since >= _PATIENCE:
            raise _stalled(best, tolerance, state.iteration, f"no progress in {_PATIENCE} iterations")
        if state.iteration >= iterations:
            raise _stalled(best, tolerance, state.iteration, "the iterations ran out")
        _step(state, apply, precondition, torch.nonzero(now > tolerance)[:, 0], worst)
        if checkpoint is not None:
            checkpoint.save(item, state.stored())


def _start(x: Tensor, residual: Tensor, precondition: Preconditioner, iteration: int) -> _State:
    z = precondition(residual)
    return _State(iteration, x.clone(), residual.clone(), z.clone(), (residual * z).sum(0))


def _step(
    state: _State,
    apply: Callable[[Tensor], Tensor],
    precondition: Preconditioner,
    active: Tensor,
    worst: float,
) -> None:
    p = state.p[:, active]
    image = apply(p)
    curvature = (p * image).sum(0)
    if not bool((curvature > 0).all()):
        raise PrecisionError(
            f"Conjugate gradients met a direction p with pᵀAp = {float(curvature.min()):.3g} after {state.iteration} "
            f"iterations, at relative residual {worst:.3g}: the kernel matrix is not positive definite to rounding. "
            "Pass a larger noise=, or a jitter=."
        )
    step = state.rz[active] / curvature
    state.x[:, active] += step * p
    state.r[:, active] -= step * image
    r = state.r[:, active]
    z = precondition(r)
    rz = (r * z).sum(0)
    state.p[:, active] = z + (rz / state.rz[active]) * p
    state.rz[active] = rz
    state.iteration += 1


def _restore(checkpoint: engines.Checkpoint | None, item: object) -> _State | None:
    found = None if checkpoint is None else checkpoint.load(item)
    return None if found is None else _State(**found)


def _stalled(reached: float, tolerance: float, iteration: int, why: str) -> PrecisionError:
    return PrecisionError(
        f"Conjugate gradients stopped at a relative residual of {reached:.3g} after {iteration} iterations; "
        f"asked for was {tolerance:.3g} ({why}). The matrix is too ill-conditioned for this preconditioner: "
        "raise noise= or rank=, allow a larger tolerance=, or use solver='cholesky' if n² numbers fit in "
        "memory."
    )
