"""Fitting a kernel to data."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from farfield import engine as engines
from farfield._typing import Float
from farfield.errors import InvalidValueError, PrecisionError
from farfield.geometry import lanczos
from farfield.kernels import KernelFunction, NetworkKernel
from farfield.regression._covariance import Covariance, Kind, Work, fill, resolve
from farfield.regression._data import budget, check_finite, checked_data, refuse_conflicts
from farfield.regression._factor import Factor, factorize
from farfield.regression._pcg import FactorPreconditioner, LowRankPreconditioner, relative
from farfield.regression._pivoted import low_rank
from farfield.regression._posterior import Posterior
from farfield.regression._system import DenseSystem, System, TiledSystem

__all__ = ["fit"]

_CAP = 1e-6
"""Largest jitter chosen by itself, as a share of the mean diagonal."""
_TILES = 1_000_000_000
"""Most that tiles take of a budget, however large: more does not make them faster."""


def fit(
    kernel: NetworkKernel | Covariance,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n ..."],
    *,
    kind: Kind = "ntk",
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
    checkpoint: engines.Checkpoint | None = None,
) -> Posterior:
    r"""Solve :math:`(K + (\text{noise} + \text{jitter}) I)\,\alpha = y` with K = k(x, x), for one output or several.

    Inputs and targets are taken in float64. ``"cholesky"`` holds one n×n matrix, which the factor shares with
    the matrix itself: n³/3 operations. ``"pcg"`` holds none: n²/2 kernel entries an iteration. The residual
    is measured in float64 in every case.

    Parameters
    ----------
    kernel
        Of a network, or any :class:`Covariance`.
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
        Of the Cholesky factor. ``"float32"`` takes half the memory and about half the time, and its solution
        is corrected by conjugate gradients on kernel tiles recomputed in float64, with the factor as
        preconditioner.
    rank
        Of the preconditioner of ``"pcg"``, a pivoted Cholesky factor of n × rank; ``"auto"`` is 1000, or less
        for small n and memory.
    iterations
        Of conjugate gradients, at most.
    keep_tiles
        For ``"pcg"``: compute the tiles of the matrix once and keep them with the engine's workers, 4n² bytes over
        all of them, instead of computing them anew in every step. The result is the same to the last bit.
        They are dropped at the end: later solves, for variances, compute theirs.
    engine
        Where kernel tiles run: ``"auto"``, ``"local"``, ``"ray"`` or an :class:`farfield.engine.Engine`. The result
        is the same to the last bit if tasks compute with as many torch threads.
    memory
        For everything: matrix, preconditioner, tiles. ``"auto"`` is 60% of the machine's. Workers in other processes
        have as much each for their tiles.
    tolerance
        Largest relative residual ‖y − (K + sI)α‖/‖y‖ of any output.
    progress
        Called with (done, total) of the stage under way: kernel tiles, blocks of columns, iterations.
    checkpoint
        Keeps the tiles of a stored matrix, or the iterate of conjugate gradients, and an interrupted run goes on.

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
    covariance, network = resolve(kernel, kind)
    if isinstance(covariance, KernelFunction):
        kind = covariance.kind
    x, targets = checked_data(x, y)
    _check_settings(noise, jitter, tolerance, solver, precision)
    if noise == 0 and jitter in ("auto", 0):
        refuse_conflicts(x, targets)
    n, room = len(x), budget(memory)
    stored = n * n * (8 if precision == "float64" else 4)
    if solver == "auto":
        solver = "cholesky" if stored <= room or precision == "float32" else "pcg"
    if solver == "cholesky" and stored > room:
        raise InvalidValueError(
            f"The matrix of {n} inputs in {precision} takes {stored / 1e9:.3g} GB and the memory is "
            f"{room / 1e9:.3g} GB. Pass a larger memory=, precision='float32', solver='pcg', or use Nystrom."
        )
    runner = engines.engine(engine)
    if keep_tiles:
        _check_kept(n, room, runner, solver)
    # Kept tiles are not taken off: the size of tiles, and with it every bit, would depend on the workers.
    left = max(room - (stored if solver == "cholesky" else 0), 64_000_000)
    work = Work(runner, min(left, _TILES))
    fixed = 0.0 if jitter == "auto" else float(jitter)
    with torch.no_grad():
        if solver == "cholesky" and precision == "float64":
            system, weights, product = _exact(
                covariance, x, targets, noise, jitter, work, tolerance, checkpoint, progress
            )
        else:
            preconditioner = (
                _single_factor(covariance, x, noise + fixed, work, checkpoint, progress)
                if solver == "cholesky"
                else _preconditioner(covariance, x, noise + fixed, rank, left)
            )
            system = TiledSystem(
                covariance, x, noise + fixed, preconditioner, work, iterations, keep_tiles,
                None if solver == "cholesky" else checkpoint, progress,
            )  # fmt: skip
            weights = system.solve(targets, tolerance)
            product = system.product(weights)
            # Later solves, for variances, are no part of the run that the checkpoint and the callback follow, and
            # have no use for tiles that must first be kept.
            system = dataclasses.replace(system, keep=False, checkpoint=None, progress=None)
    residual = _residual(targets, weights, product, system.shift)
    single = y.dim() == 1
    energy = (weights * product).sum(0)
    return Posterior(
        weights=weights[:, 0] if single else weights,
        energy=energy[0] if single else energy,
        residual=residual,
        noise=float(noise),
        jitter=system.shift - noise if system.shift != noise else 0.0,
        solver=solver,
        x=x,
        kernel=covariance,
        network=network,
        kind=kind,
        tolerance=tolerance,
        product=product,
        system=system,
        work=work,
    )


# ------------------------------------------------------------------ Cholesky


def _exact(
    kernel: Covariance,
    x: Tensor,
    y: Tensor,
    noise: float,
    jitter: float | str,
    work: Work,
    tolerance: float,
    checkpoint: engines.Checkpoint | None,
    progress: engines.Progress | None,
) -> tuple[System, Tensor, Tensor]:
    n = len(x)
    matrix = engines.empty_matrix(n, n, dtype=torch.float64, device=x.device)
    diagonal = fill(matrix, kernel, x, work, checkpoint=checkpoint, progress=progress)
    check_finite(diagonal)
    mean = float(diagonal.mean())
    reached = float("inf")
    for again, extra in enumerate(_ladder(jitter, mean, torch.float64, _CAP)):
        factor = factorize(matrix, diagonal, noise + extra, again=again > 0, progress=progress)
        if factor is None:
            continue
        system = DenseSystem(factor, noise + extra)
        weights = system.solve(y, tolerance)
        product = system.product(weights)
        reached = _residual(y, weights, product, system.shift)
        if reached <= tolerance:
            return system, weights, product
    raise _not_solvable(Factor(matrix, diagonal, noise), x, noise, jitter, mean, reached, tolerance)


def _single_factor(
    kernel: Covariance,
    x: Tensor,
    shift: float,
    work: Work,
    checkpoint: engines.Checkpoint | None,
    progress: engines.Progress | None,
) -> FactorPreconditioner:
    """A factor in float32; its jitter is the preconditioner's alone."""
    n = len(x)
    matrix = engines.empty_matrix(n, n, dtype=torch.float32, device=x.device)
    diagonal = fill(matrix, kernel, x.to(torch.float32), work, checkpoint=checkpoint, progress=progress)
    check_finite(diagonal)
    mean = float(diagonal.mean())
    for again, extra in enumerate(_ladder("auto", mean, torch.float32, 1e-1)):
        factor = factorize(matrix, diagonal, shift + extra, again=again > 0, progress=progress)
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


def _not_solvable(
    factor: Factor,
    x: Tensor,
    noise: float,
    jitter: float | str,
    mean: float,
    reached: float,
    tolerance: float,
) -> PrecisionError:
    n = len(x)
    repeated = n - len(torch.unique(x, dim=0))
    estimate = lanczos(
        lambda v: factor.product(v[:, None])[:, 0],
        n,
        torch.Generator().manual_seed(0),
        steps=30,
        ends=("smallest",),
    ).smallest
    tried = f"up to {_CAP * mean:.3g}, 1e-6 of the mean diagonal," if jitter == "auto" else f"{jitter:g}"
    what = (
        f"is not positive definite with noise {noise:g} and a jitter of {tried}"
        if reached == float("inf")
        else f"with noise {noise:g} and a jitter of {tried} is solved to a relative residual of {reached:.3g} "
        f"only, not {tolerance:.3g},"
    )
    return PrecisionError(
        f"The {n}×{n} kernel matrix {what} in float64. Its smallest eigenvalue is about {estimate.value:.3g} (± "
        f"{estimate.error:.2g}), and {repeated} of the inputs repeat another. Pass noise={1e-4 * mean:.1g} "
        f"or more (a share of the mean diagonal, {mean:.3g}), drop repeated inputs, or scale inputs that "
        "the kernel cannot tell apart."
    )


# ------------------------------------------------------------------ conjugate gradients


def _preconditioner(
    kernel: Covariance, x: Tensor, shift: float, rank: int | str, memory: int
) -> LowRankPreconditioner:
    n = len(x)
    most = max(1, memory // (4 * 8 * n))  # G, Q, the product of Q, and what QR needs
    count = min(1000, max(n // 4, 1), most) if rank == "auto" else int(rank)
    if count > most:
        raise InvalidValueError(
            f"A preconditioner of rank {count} for {n} inputs takes {4 * 8 * n * count / 1e9:.3g} GB and there are "
            f"{memory / 1e9:.3g} GB. Pass a smaller rank= or a larger memory=."
        )
    columns, _ = low_rank(kernel, x, count)
    return LowRankPreconditioner.of(columns, shift)


# ------------------------------------------------------------------ arguments


def _check_settings(noise: float, jitter: float | str, tolerance: float, solver: str, precision: str) -> None:
    size = 0.0 if jitter == "auto" else jitter
    if not (noise >= 0 and isinstance(size, int | float) and size >= 0 and 0 < tolerance < 1):
        raise InvalidValueError(
            "noise is at least 0, jitter too or 'auto', and the tolerance lies between 0 and 1; got "
            f"noise={noise!r}, jitter={jitter!r}, tolerance={tolerance!r}."
        )
    if solver not in ("auto", "cholesky", "pcg") or precision not in ("float64", "float32"):
        raise InvalidValueError(
            "The solver is 'auto', 'cholesky' or 'pcg' and the precision 'float64' or 'float32'; got "
            f"{solver!r} and {precision!r}."
        )


def _check_kept(n: int, room: int, engine: engines.Engine, solver: str) -> None:
    if solver != "pcg":
        raise InvalidValueError(
            "keep_tiles is for conjugate gradients; the solver is Cholesky, which keeps the whole matrix. Pass "
            "solver='pcg', or leave it out."
        )
    if 4 * n * n > room * engine.memories:
        raise InvalidValueError(
            f"The upper tiles of {n} inputs take {4 * n * n / 1e9:.3g} GB, and {engine.memories} worker(s) have "
            f"{room / 1e9:.3g} GB each. Pass keep_tiles=False, a larger memory=, or an engine with more workers."
        )


def _residual(y: Tensor, weights: Tensor, product: Tensor, shift: float) -> float:
    return float(relative(y - product - shift * weights, y).max()) if y.numel() else 0.0
