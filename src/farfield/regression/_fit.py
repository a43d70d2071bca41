"""Fitting a kernel to data."""

from __future__ import annotations

import os
from typing import Literal

import torch
from torch import Tensor

from farfield import engine as engines
from farfield._typing import Float
from farfield.kernels import KernelKind, NetworkKernel
from farfield.regression._covariance import Covariance, identity, resolve
from farfield.regression._data import budget, checked_data
from farfield.regression._job import FitJob
from farfield.regression._posterior import Posterior
from farfield.regression._solve import solve

__all__ = ["fit"]


def fit(
    kernel: NetworkKernel | Covariance,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n ..."],
    *,
    kind: KernelKind = "ntk",
    noise: float = 0.0,
    jitter: float | Literal["auto"] = "auto",
    solver: Literal["auto", "cholesky", "pcg"] = "auto",
    precision: Literal["float64", "float32"] = "float64",
    rank: int | Literal["auto"] = "auto",
    iterations: int = 1000,
    keep_tiles: bool = False,
    engine: str | engines.Engine = "auto",
    memory: int | str = "auto",
    tolerance: float = 1e-6,
    progress: engines.Progress | None = None,
    checkpoint: engines.Checkpoint | str | os.PathLike[str] | None = None,
) -> Posterior:
    r"""Solve :math:`(K + (\text{noise} + \text{jitter}) I)\,\alpha = y` with K = k(x, x), for one output or several.

    Inputs and targets are taken in float64. ``"cholesky"`` holds one n×n matrix, which the factor shares with
    the matrix itself: n³/3 operations. ``"pcg"`` holds none: n²/2 kernel entries an iteration. The residual
    is measured in float64 in every case.

    Parameters
    ----------
    kernel
        The kernel of a network, or any :class:`Covariance`.
    x, y
        Inputs, one a row, and their targets.
    kind
        ``"ntk"`` or ``"nngp"``, if the kernel is a :class:`farfield.kernels.NetworkKernel`.
    noise
        Variance of the targets' noise, ≥ 0; 0 interpolates.
    jitter
        Added to the diagonal beside the noise, for rounding's sake. ``"auto"`` begins with none and grows,
        tenfold from ε times the mean diagonal up to 1e-6 of it, until Cholesky succeeds and the residual is
        within tolerance; a number is used as it is. See :attr:`Posterior.jitter`.
    solver
        ``"auto"`` is ``"cholesky"`` if the matrix fits the memory.
    precision
        Precision of the Cholesky factor. ``"float32"`` takes half the memory and about half the time, and its
        solution is corrected by conjugate gradients on kernel tiles recomputed in float64, with the factor as
        preconditioner.
    rank
        Rank of the preconditioner of ``"pcg"``, a pivoted Cholesky factor of n × rank; ``"auto"`` is 1000, or less
        for small n and memory.
    iterations
        Most iterations of conjugate gradients.
    keep_tiles
        For ``"pcg"``: compute the tiles of the matrix once and keep them with the engine's workers, 4n² bytes over
        all of them, instead of computing them anew in every step. The result is the same to the last bit.
        They are dropped at the end: later solves, for variances, compute theirs.
    engine
        Where kernel tiles run: ``"auto"``, ``"local"``, ``"ray"`` or an :class:`farfield.engine.Engine`. The result
        is the same to the last bit if tasks compute with as many torch threads.
    memory
        Memory budget for everything: matrix, preconditioner, tiles. ``"auto"`` is 60% of the machine's. Workers in
        other processes have as much each for their tiles.
    tolerance
        Largest relative residual ‖y − (K + sI)α‖/‖y‖ of any output.
    progress
        Called with (done, total) of the stage under way: kernel tiles, blocks of columns, iterations.
    checkpoint
        A folder, or a :class:`farfield.engine.Checkpoint`: keeps the tiles of a stored matrix, or the iterate of
        conjugate gradients, and an interrupted run goes on.

    Raises
    ------
    InvalidValueError
        If equal inputs have different targets and there is no noise, or the matrix does not fit the memory.
    PrecisionError
        If the matrix is not positive definite with the jitter allowed, or the tolerance is not reached.

    Examples
    --------
    >>> from farfield import kernels
    >>> x = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    >>> f = fit(kernels.mlp(depth=2, layer_norm="first", bias_var=0.1), x, torch.sin(x[:, 0]))
    >>> f.mean(torch.tensor([[0.5], [1e9]], dtype=torch.float64)), f.jitter
    (tensor([0.4794, 0.8647], dtype=torch.float64), 0.0)
    """
    covariance, network, kind = resolve(kernel, kind)
    inputs, targets = checked_data(x, y)
    kept = engines.Checkpoint.at(
        checkpoint, lambda: ("fit", identity(covariance, inputs), inputs, solver, precision, str(memory))
    )
    job = FitJob(
        covariance, network, kind, inputs, targets, y.dim() == 1, engines.engine(engine), budget(memory),
        noise, jitter, solver, precision, rank, iterations, keep_tiles, tolerance, progress, kept,
    )  # fmt: skip
    with torch.no_grad():
        return solve(job.checked())
