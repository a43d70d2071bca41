"""What a kernel matrix says: its spectrum, how it fits labels, how far it is from another."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.geometry.spectrum import Eigenvalue, lanczos
from farfield.ntk._products import NTKOperator

__all__ = [
    "ExtremeEigenvalues",
    "KernelSpectrum",
    "alignment",
    "extreme_eigenvalues",
    "kernel_distance",
    "spectrum",
]


@dataclass(frozen=True)
class KernelSpectrum:
    """All eigenvalues of a kernel matrix.

    Parameters
    ----------
    eigenvalues
        From the largest to the smallest.
    condition
        λ_max / λ_min; infinite where λ_min is no larger than the rounding of the matrix.
    effective_rank
        exp(−Σ p log p) with p = λ/Σλ: n if all are equal, 1 if one is all there is.
    """

    eigenvalues: Tensor
    condition: float
    effective_rank: float


def spectrum(kernel: Tensor) -> KernelSpectrum:
    r"""Eigenvalues, condition number and effective rank of a kernel matrix.

    Exact to rounding, n³ operations; for large n see :func:`extreme_eigenvalues`.

    Parameters
    ----------
    kernel
        (n, n), or (n, n, K, K) as ``outputs="full"`` gives it, taken as one matrix of n·K rows.

    Examples
    --------
    >>> found = spectrum(torch.diag(torch.tensor([1.0, 4.0])))
    >>> found.eigenvalues, found.condition
    (tensor([4., 1.], dtype=torch.float64), 4.0)
    """
    matrix = _square(kernel)
    values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2).flip(0)
    top, bottom = float(values[0]), float(values[-1])
    rounding = len(values) * torch.finfo(kernel.dtype).eps * max(top, 0.0)
    shares = values.clamp(min=0) / values.clamp(min=0).sum()
    return KernelSpectrum(
        values,
        top / bottom if bottom > rounding else math.inf,
        math.exp(float(torch.special.entr(shares).sum())) if top > 0 else 0.0,
    )


@dataclass(frozen=True)
class ExtremeEigenvalues:
    """Both ends of a kernel's spectrum, each with the error it may have.

    Parameters
    ----------
    largest, smallest
        Estimates, with residuals as errors.
    steps
        Products with the kernel that they took.
    """

    largest: Eigenvalue
    smallest: Eigenvalue
    steps: int

    @property
    def condition(self) -> float:
        """λ_max / λ_min from the estimates; infinite where λ_min is not known to be positive."""
        return (
            self.largest.value / self.smallest.value
            if self.smallest.value > self.smallest.error
            else math.inf
        )

    @property
    def condition_range(self) -> tuple[float, float]:
        """Between which the condition number lies if both errors are as large as they may be."""
        low = self.smallest.value - self.smallest.error
        high = self.smallest.value + self.smallest.error
        top = self.largest.error
        return (
            (self.largest.value - top) / high if high > 0 else math.inf,
            (self.largest.value + top) / low if low > 0 else math.inf,
        )


def extreme_eigenvalues(
    kernel: NTKOperator | Tensor,
    *,
    steps: int = 100,
    tolerance: float = 1e-6,
    generator: torch.Generator | None = None,
) -> ExtremeEigenvalues:
    """λ_max and λ_min from products with the kernel, which is never formed.

    By Lanczos: the large end is found in a few steps, the small one of an ill-conditioned kernel only slowly, and its
    error says how well. Cost: a product a step, and n·K·steps numbers of memory.

    Parameters
    ----------
    kernel
        An :class:`NTKOperator`, or a symmetric matrix.
    steps
        Largest number of products.
    tolerance
        Errors below this share of λ_max are good enough.
    generator
        Draws the start vector; seed 0 if None.

    Examples
    --------
    >>> found = extreme_eigenvalues(torch.diag(torch.arange(1.0, 21.0, dtype=torch.float64)))
    >>> round(found.condition, 6)
    20.0
    """
    eps = torch.finfo(kernel.dtype).eps
    whole = _square(kernel) if isinstance(kernel, Tensor) else kernel
    size = whole.shape[0]
    dtype, device = whole.dtype, whole.device if isinstance(whole, Tensor) else whole.x.device

    def apply(v: Tensor) -> Tensor:
        moved: Tensor = whole @ v.to(dtype=dtype, device=device)
        return moved.to(dtype=torch.float64, device="cpu")

    generator = torch.Generator().manual_seed(0) if generator is None else generator
    found = lanczos(apply, size, generator, steps=steps, tolerance=max(tolerance, eps))
    # What a product in single precision loses is not seen by a residual computed from that product.
    lost = eps * math.sqrt(size) * abs(found.largest.value) if eps > 1e-12 else 0.0
    ends = [Eigenvalue(e.value, e.error + lost, e.method) for e in (found.largest, found.smallest)]
    return ExtremeEigenvalues(ends[0], ends[1], found.steps)


def alignment(kernel: Tensor, y: Tensor, *, centered: bool = False) -> float:
    r"""Kernel–target alignment: the cosine between Θ and YYᵀ, between 0 and 1.

    .. math:: A = \frac{\langle\Theta, YY^\top\rangle_F}{\|\Theta\|_F\,\|YY^\top\|_F}

    Parameters
    ----------
    kernel
        (n, n).
    y
        Targets (n,) or (n, C): numbers, signs, or classes one-hot.
    centered
        Whether Θ and Y have their means removed first, so that a constant part counts for nothing.

    References
    ----------
    Cristianini et al., On kernel-target alignment, 2001; centered: Cortes, Mohri, Rostamizadeh, 2012.

    Examples
    --------
    >>> y = torch.tensor([1.0, 1.0, -1.0])
    >>> alignment(torch.outer(y, y), y)
    1.0
    """
    matrix = _square(kernel)
    if not y.is_floating_point() or y.dim() not in (1, 2) or len(y) != len(matrix):
        raise InvalidValueError(
            f"Targets are floating point, a row for each of the kernel's {len(matrix)} inputs: (n,) or (n, C), "
            f"classes one-hot; got {y.dtype} of shape {tuple(y.shape)}."
        )
    target = y.to(torch.float64).reshape(len(y), -1)
    if centered:
        target = target - target.mean(0)
        matrix = matrix - matrix.mean(0, keepdim=True) - matrix.mean(1, keepdim=True) + matrix.mean()
    # ⟨Θ, YYᵀ⟩ and ‖YYᵀ‖ without forming YYᵀ.
    inner = float((target * (matrix @ target)).sum())
    sizes = float(torch.linalg.matrix_norm(matrix) * torch.linalg.matrix_norm(target.mT @ target))
    if sizes == 0:
        raise InvalidValueError("A cosine needs something to compare: the kernel or the targets vanish.")
    return max(-1.0, min(1.0, inner / sizes))


def kernel_distance(first: Tensor, second: Tensor) -> float:
    r"""1 − ⟨Θ₁, Θ₂⟩ / (‖Θ₁‖ ‖Θ₂‖): how much a kernel has turned, 0 if one is a multiple of the other.

    Between a network's kernel before and during training it says how far the network is from its linearization.

    Parameters
    ----------
    first, second
        Of the same shape, any.

    References
    ----------
    Fort et al., Deep learning versus kernel learning, 2020.

    Examples
    --------
    >>> round(kernel_distance(torch.eye(2), torch.ones(2, 2)), 4), kernel_distance(torch.eye(2), 4 * torch.eye(2))
    (0.2929, 0.0)
    """
    if first.shape != second.shape:
        raise InvalidValueError(
            f"Kernels are compared entry by entry and have one shape; got {tuple(first.shape)} and "
            f"{tuple(second.shape)}."
        )
    a, b = (k.to(torch.float64).reshape(-1) for k in (first, second))
    if not bool(a.any()) or not bool(b.any()):
        raise InvalidValueError("A cosine needs something to compare: one of the kernels vanishes.")
    # Of unit vectors 1 − cos is half the squared distance, which keeps its digits where they are close.
    a, b = a / a.norm(), b / b.norm()
    return float((a - b).square().sum() / 2)


def _square(kernel: Tensor) -> Tensor:
    """The kernel as one float64 matrix."""
    if kernel.dim() == 4 and kernel.shape[0] == kernel.shape[1] and kernel.shape[2] == kernel.shape[3]:
        n, _, k, _ = kernel.shape
        kernel = kernel.permute(0, 2, 1, 3).reshape(n * k, n * k)
    if (
        kernel.dim() != 2
        or kernel.shape[0] != kernel.shape[1]
        or not len(kernel)
        or not kernel.is_floating_point()
    ):
        raise InvalidValueError(
            "A kernel matrix is of the inputs with themselves, (n, n) or (n, n, K, K), in floating point; got "
            f"{kernel.dtype} of shape {tuple(kernel.shape)}."
        )
    return kernel.detach().to(torch.float64)
