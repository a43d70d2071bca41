"""Bounds on |E f(x)| for every input, and at one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.errors import InvalidValueError, UnknownNameError
from farfield.kernels import Dense, KernelFunction
from farfield.regression._covariance import Covariance

__all__ = [
    "BOUNDS",
    "at",
    "beside_constant",
    "check_supremum",
    "crude",
    "eigenvalue",
    "energy_above",
    "named",
    "rkhs",
    "size",
    "slack",
]

BOUNDS = ("rkhs", "tight", "eigenvalue", "crude")
_ENTRY = 1e-12
"""What a kernel's entries may be off, as a share of √(k(x,x)k(x′,x′)); farfield.kernels keeps to it by default."""


def named(name: str) -> str:
    """The name, if it is one of a bound; the printed one is refused."""
    if name == "printed":
        raise InvalidValueError(
            "C·max|y|/(λ_min·N), as P1's summary prints it, is not a bound: with x = (e₁, e₂), y = (1, −1) "
            "and the NTK of two hidden ReLU layers, LayerNorm first, σ_b² = 0.1, it gives 0.76, and the "
            "interpolating predictor is 1 at e₁. N belongs in the numerator. Use "
            f"{', '.join(map(repr, BOUNDS))}."
        )
    if name not in BOUNDS:
        raise UnknownNameError("bound", name, BOUNDS)
    return name


def check_supremum(supremum: float, diagonal: Tensor) -> float:
    """C, refused if a diagonal entry exceeds it."""
    largest = float(diagonal.max()) if diagonal.numel() else 0.0
    if not supremum >= largest * (1 - 1e-9):
        raise InvalidValueError(
            f"sup_diagonal() is at least every k(x, x); it gave {supremum:g}, and a training input has "
            f"{largest:g}. No bound follows from it."
        )
    return max(supremum, largest)


def slack(n: int, kernel: Covariance) -> float:
    """Share of Σ|αᵢ|√kᵢᵢ by which a sum of n products with kernel entries may be off."""
    entry = _ENTRY
    if isinstance(kernel, KernelFunction) and kernel.network.compress:
        entry = max(entry, kernel.network.tolerance or 0.0)
    return entry + (2 * n + 8) * torch.finfo(torch.float64).eps


def size(weights: Tensor, diagonal: Tensor) -> Tensor:
    """Σ|αᵢ|√kᵢᵢ for every column of α."""
    return (weights.abs() * diagonal.clamp(min=0).sqrt()[:, None]).sum(0)


def energy_above(kernel: Covariance, weights: Tensor, product: Tensor, diagonal: Tensor) -> Tensor:
    """An upper bound on αᵀKα for every column of α, given Kα as computed.

    |kᵢⱼ| ≤ √(kᵢᵢkⱼⱼ), so errors in the sums and in the entries come to a share ``slack`` of (Σ|αᵢ|√kᵢᵢ)².
    """
    spare = 2 * slack(len(weights), kernel) * size(weights, diagonal) ** 2
    return (weights * product).sum(0).clamp(min=0) + spare


def rkhs(supremum: float, energy: Tensor) -> Tensor:
    """√(C·αᵀKα)."""
    if math.isinf(supremum):
        return torch.where(energy > 0, math.inf, 0.0).to(energy)
    return _up((supremum * energy).sqrt())


def beside_constant(
    kernel: Covariance, supremum: float, weights: Tensor, product: Tensor, diagonal: Tensor
) -> Tensor:
    """The least of |tΣα| + √((C − t)·αᵀ(K − t)α) over some t between 0 and the variance of the readout's bias.

    The bias is a constant part of the kernel: k − t is positive semi-definite up to t = σ_b², so f is tΣα and a
    function of that kernel's RKHS.
    """
    best = rkhs(supremum, energy_above(kernel, weights, product, diagonal))
    if not isinstance(kernel, KernelFunction) or math.isinf(supremum):
        return best
    last = kernel.network.layers[-1]
    constant = float(last.bias_var) if isinstance(last, Dense) else 0.0
    total = weights.sum(0)
    spare = 4 * slack(len(weights), kernel) * size(weights, diagonal)
    for share in (0.25, 0.5, 0.75, 1.0):
        t = share * constant
        energy = energy_above(kernel, weights, product, diagonal) - t * total**2
        rest = rkhs(supremum - t, energy.clamp(min=0) + spare * t * weights.abs().sum(0))
        best = torch.minimum(best, _up((t * total).abs() + rest + spare * t))
    return best


def at(diagonal: Tensor, energy: Tensor) -> Tensor:
    """‖f‖√k(x,x) for every input and output, from k(x,x) and ‖f‖²."""
    return (diagonal.clamp(min=0)[:, None] * energy).sqrt() * (1 + 1e-14)


def eigenvalue(supremum: float, n: int, smallest: float, shift: float, largest: Tensor) -> Tensor:
    """√(C·N·h)·max|y|, with h = 1/λ_min without noise.

    αᵀKα = Σ zᵢ² λᵢ/(λᵢ + s)² over the eigenvalues of K, z the targets in their basis, and λ/(λ + s)² = (μ − s)/μ²
    with μ = λ + s: largest at μ = 2s, falling above.
    """
    if smallest <= 0 or math.isinf(supremum):
        return torch.full_like(largest, math.inf)
    height = (smallest - shift) / smallest**2 if smallest >= 2 * shift else 1 / (4 * shift)
    return _up(math.sqrt(supremum * n * height) * largest)


def crude(supremum: float, n: int, smallest: float, largest: Tensor) -> Tensor:
    """C·N·max|y|/λ_min: |k_xᵀA⁻¹y| ≤ ‖k_x‖‖y‖/λ_min with ‖k_x‖ ≤ √N·C and ‖y‖ ≤ √N·max|y|."""
    if smallest <= 0 or math.isinf(supremum):
        return torch.full_like(largest, math.inf)
    return _up(supremum * n / smallest * largest)


def _up(value: Tensor) -> Tensor:
    """A few units in the last place larger: roots and products round."""
    return value * (1 + 8 * torch.finfo(torch.float64).eps)
