"""Gradient flow: the fit at any time of training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from farfield import engine as engines
from farfield._typing import Float
from farfield.errors import InvalidValueError, PrecisionError
from farfield.geometry.spectrum import Eigenvalue
from farfield.kernels import KernelKind, NetworkKernel
from farfield.regression._covariance import Covariance, resolve
from farfield.regression._data import budget, checked_data
from farfield.regression._job import FitJob
from farfield.regression._posterior import Posterior
from farfield.regression._system import System

__all__ = ["GradientFlow", "gradient_flow"]


@dataclass(frozen=True)
class _FlowSystem(System):
    """K = VΛVᵀ, with (I − e^{−Kτ})K⁻¹ in place of the inverse."""

    values: Tensor
    vectors: Tensor
    scaled_time: float
    shift: float = 0.0

    def product(self, v: Tensor) -> Tensor:
        """Kv."""
        return self.vectors @ (self.values[:, None] * (self.vectors.mT @ v))

    def solve(self, b: Tensor, tolerance: float) -> Tensor:
        """(I − e^{−Kτ})K⁻¹b; exact, so the tolerance plays no part."""
        return self.vectors @ (self._factors()[:, None] * (self.vectors.mT @ b))

    def quadratic(self, b: Tensor, tolerance: float) -> Tensor:
        """bᵀK⁻¹b, at the end of training only."""
        if not math.isinf(self.scaled_time):
            raise InvalidValueError(
                "A Gaussian process has its posterior variance given all of the data, at time ∞. At a "
                "finite time there is the variance over='initializations', of the network's NTK."
            )
        half = self.vectors.mT @ b
        return (self._factors()[:, None] * half * half).sum(0)

    def smallest_eigenvalue(self) -> Eigenvalue:
        """The smallest eigenvalue of K, with its rounding."""
        rounding = len(self.values) * torch.finfo(torch.float64).eps * float(self.values[-1])
        return Eigenvalue(float(self.values[0]), rounding, "dense")

    def _factors(self) -> Tensor:
        """(1 − e^{−λτ})/λ, τ where λ = 0."""
        if math.isinf(self.scaled_time):
            return 1.0 / self.values
        positive = self.values > 0
        safe = torch.where(positive, self.values, 1.0)
        return torch.where(positive, -torch.expm1(-safe * self.scaled_time) / safe, self.scaled_time)


@dataclass(frozen=True)
class GradientFlow:
    """The whole course of training, decomposed once; made by :func:`gradient_flow`.

    Attributes
    ----------
    values, vectors
        Eigenvalues of K, smallest first, none below 0, and their vectors in columns.
    learning_rate
        η.
    """

    values: Float[Tensor, " n"]
    vectors: Float[Tensor, "n n"] = field(repr=False)
    learning_rate: float
    job: FitJob = field(repr=False)

    def at(self, time: float) -> Posterior:
        """The fit at a time ≥ 0, ``math.inf`` for the end.

        Its ``residual`` is the share of the targets not learned yet; its ``variance``, over initializations,
        and its bounds hold for that time. Cost: n²·k.

        Raises
        ------
        PrecisionError
            At ∞, if K is singular to rounding.
        """
        if not time >= 0:
            raise InvalidValueError(f"A time is at least 0, got {time!r}.")
        scaled = time if math.isinf(time) else self.learning_rate * time
        rounding = len(self.values) * torch.finfo(torch.float64).eps * float(self.values[-1])
        if math.isinf(scaled) and float(self.values[0]) <= rounding:
            raise PrecisionError(
                "At the end of training the targets are interpolated, and the smallest eigenvalue of the "
                f"kernel matrix, {float(self.values[0]):.3g}, is 0 to rounding ({rounding:.2g}). Ask for a "
                "finite time, or use fit(noise=…)."
            )
        system = _FlowSystem(self.values, self.vectors, scaled)
        weights = system.solve(self.job.y, 0.0)
        return Posterior.of(self.job, system, weights, system.product(weights))


def gradient_flow(
    kernel: NetworkKernel | Covariance,
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n ..."],
    *,
    kind: KernelKind = "ntk",
    learning_rate: float = 1.0,
    engine: str | engines.Engine = "auto",
    memory: int | str = "auto",
    progress: engines.Progress | None = None,
) -> GradientFlow:
    r"""Training by gradient flow on ½Σ(f(x_i) − y_i)², in closed form at every time.

    .. math:: \mathbb E f_t(x) = \Theta_x \Theta^{-1}\bigl(I - e^{-\eta\Theta t}\bigr)\, y

    By one eigendecomposition, about 9n³ operations and four n×n matrices; any number of times follow. At t =
    ∞ it is :func:`fit` without noise.

    Parameters
    ----------
    kernel, x, y, kind, engine, progress
        As in :func:`fit`.
    learning_rate
        η; for the mean squared error instead of the sum, 2η/n.
    memory
        Budget for the matrices; a larger problem is refused.

    Examples
    --------
    >>> from farfield import kernels
    >>> x = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    >>> flow = gradient_flow(kernels.mlp(depth=2, layer_norm="first", bias_var=0.1), x, torch.sin(x[:, 0]))
    >>> [round(flow.at(t).residual, 6) for t in (0.0, 1.0, 100.0, math.inf)]
    [1.0, 0.118334, 0.000743, 0.0]
    """
    covariance, network, kind = resolve(kernel, kind)
    inputs, targets = checked_data(x, y)
    if not 0 < learning_rate < math.inf:
        raise InvalidValueError(f"A learning rate is positive, got {learning_rate!r}.")
    job = FitJob(
        covariance, network, kind, inputs, targets, y.dim() == 1, engines.engine(engine), budget(memory),
        solver="flow", progress=progress,
    )  # fmt: skip
    n, need, room = job.n, job.matrix_bytes, job.memory
    if need > room:
        raise InvalidValueError(
            f"The eigendecomposition for {n} inputs takes about {need / 1e9:.3g} GB and the memory is "
            f"{room / 1e9:.3g} GB: at most {math.isqrt(room * n * n // need)} inputs fit. Pass a larger "
            "memory=, fewer inputs, or use fit for the end of training."
        )
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(job.matrix()[0])
    floor = 100 * n * torch.finfo(torch.float64).eps * float(values[-1])
    if not float(values[0]) >= -floor:
        raise PrecisionError(
            f"A kernel matrix has no negative eigenvalues; here the smallest is {float(values[0]):.3g}, far "
            f"below rounding ({floor:.2g}). Check the kernel."
        )
    return GradientFlow(
        values=values.clamp_(min=0),
        vectors=vectors,
        learning_rate=float(learning_rate),
        job=job.solved(),
    )
