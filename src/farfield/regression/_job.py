"""One kernel fit from beginning to end: what was asked for, checked once and read by every stage."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from farfield import engine as engines
from farfield.errors import InvalidValueError
from farfield.kernels import KernelFunction, KernelKind, NetworkKernel
from farfield.regression._covariance import Covariance, MatrixTile, Work
from farfield.regression._data import refuse_conflicts

__all__ = ["FitJob", "Solver"]

Solver: TypeAlias = Literal["auto", "cholesky", "pcg", "flow"]

_TILES = 1_000_000_000
"""Most bytes that tiles take of a budget, however large: more does not make them faster."""
_COPIES = 4
"""n×n matrices that an eigendecomposition holds at its peak: the matrix, its vectors, and twice that as workspace."""


@dataclass(frozen=True)
class FitJob:
    """A kernel, its data, and how they are to be solved.

    :func:`fit` and :func:`gradient_flow` make one, the solvers read it, and a :class:`Posterior` keeps it.

    Attributes
    ----------
    kernel, network, kind
        The kernel as a function of inputs; the network it belongs to, if there is one; ``"ntk"`` or ``"nngp"``.
    x, y
        Inputs (n, d) and targets (n, k), float64.
    single
        Whether the targets were given as a vector: results then have no axis of outputs.
    engine
        Where tiles run.
    memory
        Bytes for everything: matrix, preconditioner, tiles.
    noise, jitter, solver, precision, rank, iterations, keep_tiles, tolerance, progress, checkpoint
        As in :func:`fit`. The solver ``"flow"`` is that of :func:`gradient_flow`.
    """

    kernel: Covariance
    network: NetworkKernel | None
    kind: KernelKind
    x: Tensor
    y: Tensor
    single: bool
    engine: engines.Engine
    memory: int
    noise: float = 0.0
    jitter: float | Literal["auto"] = "auto"
    solver: Solver = "auto"
    precision: Literal["float64", "float32"] = "float64"
    rank: int | Literal["auto"] = "auto"
    iterations: int = 1000
    keep_tiles: bool = False
    tolerance: float = 1e-6
    progress: engines.Progress | None = None
    checkpoint: engines.Checkpoint | None = None

    # ------------------------------------------------------------------ derived

    @property
    def n(self) -> int:
        """The number of inputs."""
        return len(self.x)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of a stored matrix."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the matrices that the solver stores."""
        square = self.n * self.n
        return {"cholesky": self.dtype.itemsize * square, "flow": _COPIES * 8 * square}.get(self.solver, 0)

    @property
    def spare_memory(self) -> int:
        """Bytes left beside the stored matrices, at least 64 MB.

        Kept tiles are not taken off: the size of tiles, and with it every bit, would depend on the workers.
        """
        return max(self.memory - self.matrix_bytes, 64_000_000)

    @property
    def work(self) -> Work:
        """Where tiles run, and the memory they may take."""
        return Work(self.engine, min(self.spare_memory, _TILES))

    @property
    def known_shift(self) -> float:
        """The noise and the jitter that was given as a number."""
        return self.noise + (0.0 if self.jitter == "auto" else float(self.jitter))

    # ------------------------------------------------------------------ stages

    def checked(self) -> FitJob:
        """The same job with its solver chosen, or :class:`InvalidValueError` for what can't be solved."""
        size = 0.0 if self.jitter == "auto" else self.jitter
        if not (self.noise >= 0 and isinstance(size, int | float) and size >= 0 and 0 < self.tolerance < 1):
            raise InvalidValueError(
                "noise is at least 0, jitter too or 'auto', and the tolerance lies between 0 and 1; got "
                f"noise={self.noise!r}, jitter={self.jitter!r}, tolerance={self.tolerance!r}."
            )
        if self.solver not in ("auto", "cholesky", "pcg") or self.precision not in ("float64", "float32"):
            raise InvalidValueError(
                "The solver is 'auto', 'cholesky' or 'pcg' and the precision 'float64' or 'float32'; got "
                f"{self.solver!r} and {self.precision!r}."
            )
        if self.noise == 0 and self.jitter in ("auto", 0):
            refuse_conflicts(self.x, self.y)
        dense = dataclasses.replace(self, solver="cholesky")
        fits = dense.matrix_bytes <= self.memory
        if self.solver == "pcg" or (self.solver == "auto" and not fits and self.precision == "float64"):
            job = dataclasses.replace(self, solver="pcg")
        elif fits:
            job = dense
        else:
            raise InvalidValueError(
                f"The matrix of {self.n} inputs in {self.precision} takes {dense.matrix_bytes / 1e9:.3g} GB and the "
                f"memory is {self.memory / 1e9:.3g} GB. Pass a larger memory=, precision='float32', "
                "solver='pcg', or use Nystrom."
            )
        if self.keep_tiles:
            job._check_kept()
        return job

    def solved(self) -> FitJob:
        """The job as its result keeps it.

        Later solves, for variances, are no part of the run that the checkpoint and the callback follow, and have no
        use for tiles that must first be kept.
        """
        return dataclasses.replace(self, keep_tiles=False, checkpoint=None, progress=None)

    def matrix(self) -> tuple[Tensor, Tensor]:
        """K(x, x) in the job's precision, symmetric to the last bit, and its diagonal as a tensor of its own."""
        out = engines.empty_matrix(self.n, self.n, dtype=self.dtype, device=self.x.device)
        kernel, x, work = self.kernel, self.x.to(self.dtype), self.work
        checkpoint, progress = self.checkpoint, self.progress
        if isinstance(kernel, KernelFunction):
            where = "auto" if work.engine == engines.local() else work.engine
            kernel(x, out=out, engine=where, memory=work.memory, checkpoint=checkpoint, progress=progress)
        else:
            work.engine.fill(
                out, MatrixTile(kernel, x), engines.tiles(len(x), height=work.side(), symmetric=True),
                symmetric=True, checkpoint=checkpoint, progress=progress,
            )  # fmt: skip
            out.diagonal().copy_(kernel.diagonal(x))
        return out, out.diagonal().clone()

    def _check_kept(self) -> None:
        if self.solver != "pcg":
            raise InvalidValueError(
                "keep_tiles is for conjugate gradients; the solver is Cholesky, which keeps the whole matrix. Pass "
                "solver='pcg', or leave it out."
            )
        upper = 4 * self.n * self.n
        if upper > self.memory * self.engine.memories:
            raise InvalidValueError(
                f"The upper tiles of {self.n} inputs take {upper / 1e9:.3g} GB, and {self.engine.memories} worker(s) "
                f"have {self.memory / 1e9:.3g} GB each. Pass keep_tiles=False, a larger memory=, or an engine with "
                "more workers."
            )
