"""From inputs to the first state: unit vectors, stable angles, and maps of raw inputs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.kernels._state import NOTHING_TO_DIVIDE_BY, KernelState

__all__ = [
    "Rows",
    "angles",
    "embed",
    "half_angle_squares",
    "normalize_inputs",
    "separate_pairs",
    "separation",
]

_NEAR = 4e-6
"""Below this value of sin²(θ/2) a product of rounded unit vectors no longer fixes θ to 1e-13: differences are
taken."""


@dataclass(frozen=True)
class Rows:
    """Inputs as the first Dense layer sees them: unit vectors and mean squares.

    Parameters
    ----------
    unit
        (√(σ_w²/n₀) x, σ_b) divided by its length, float64, shape (..., n, n₀ + 1).
    q
        The square of that length, σ_w²|x|²/n₀ + σ_b², shape (..., n).
    """

    unit: Tensor
    q: Tensor

    def __getitem__(self, index: slice) -> Rows:
        return Rows(self.unit[..., index, :], self.q[..., index])

    def __len__(self) -> int:
        return self.q.shape[-1]

    def normalized(self) -> Rows:
        """The same behind a norm: mean square 1, however small or large it was before."""
        if bool((self.unit.detach() == 0).all(-1).any()):
            raise InvalidValueError(NOTHING_TO_DIVIDE_BY)
        return Rows(self.unit, torch.ones_like(self.q))

    def finite(self) -> Rows:
        """The same, refused where a mean square is too large for float64."""
        if not bool(torch.isfinite(self.q.detach()).all()):
            raise InvalidValueError(
                "The mean square of an input's pre-activations is not finite in float64: some input is not finite "
                "or larger than about 1e150. Only a norm directly above the first Dense layer takes any size: scale "
                "the inputs, or put one there."
            )
        return self


def embed(x: Tensor, weight_var: Tensor | float, bias_var: Tensor | float, *, far: bool = False) -> Rows:
    """The inputs' unit vectors and mean squares; ``far`` leaves the bias out, as at infinity."""
    x = x.to(torch.float64)
    n0 = x.shape[-1]
    w = torch.as_tensor(weight_var, dtype=torch.float64, device=x.device)
    b = torch.as_tensor(0.0 if far else bias_var, dtype=torch.float64, device=x.device)
    # A bias of 0 is a column of zeros, without the infinite derivative of its root.
    bias = torch.sqrt(b) if float(b.detach()) > 0 else 0.0 * b
    row = torch.cat([torch.sqrt(w / n0) * x, bias.expand(*x.shape[:-1], 1)], -1)
    # Lengths after division by the largest entry: squares of 1e200 overflow, angles need not.
    largest = row.detach().abs().amax(-1, keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    scaled = row / largest
    length = torch.sqrt((scaled * scaled).sum(-1, keepdim=True))
    unit = scaled / torch.where(length > 0, length, 1.0)
    q = (length * largest).squeeze(-1) ** 2
    return Rows(unit, q)


def half_angle_squares(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """sin²(θ/2) and cos²(θ/2) for unit vectors in rows, (n, d) and (m, d) → (n, m) each, by one product in float64.

    Near 0 and 1 the product has lost its digits; there, and only there, |u − v|²/4 and |u + v|²/4 are taken.
    """
    sine2 = (u @ v.mT).mul_(-0.5).add_(0.5)
    cosine2 = 1.0 - sine2
    _repair(sine2, u, v, -1.0)
    _repair(cosine2, u, v, 1.0)
    return sine2, cosine2


def _repair(square: Tensor, u: Tensor, v: Tensor, sign: float) -> None:
    if square.numel() == 0 or float(square.amin()) >= _NEAR:
        return
    near = torch.nonzero(square < _NEAR, as_tuple=True)
    batch, i, j = near[:-2], near[-2], near[-1]
    pairs_u = u.expand(*square.shape[:-2], *u.shape[-2:])
    pairs_v = v.expand(*square.shape[:-2], *v.shape[-2:])
    for part in torch.arange(len(i), device=i.device).split(1 << 18):
        b = tuple(k[part] for k in batch)
        total = pairs_u[(*b, i[part])] + sign * pairs_v[(*b, j[part])]
        square[(*b, i[part], j[part])] = 0.25 * (total * total).sum(-1)


def separation(u: Tensor, v: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The angles of the pairs (u_i, v_j) of unit vectors, without cancellation: shape (k,)."""
    found = [
        2.0 * torch.atan2(torch.linalg.vector_norm(a - b, dim=-1), torch.linalg.vector_norm(a + b, dim=-1))
        for part in torch.arange(len(i), device=i.device).split(1 << 18)
        for a, b in [(u[i[part]], v[j[part]])]
    ]
    return torch.cat(found)


class _Angles(torch.autograd.Function):
    """θ between unit vectors; the derivative is 0 at θ = 0 and π, where kernels are even in the angle."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, v: Tensor) -> Tensor:
        sine2, cosine2 = half_angle_squares(u, v)
        theta = 2.0 * torch.atan2(sine2.clamp_(min=0).sqrt_(), cosine2.clamp_(min=0).sqrt_())
        ctx.save_for_backward(u, v, theta)
        return theta

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        u, v, theta = ctx.saved_tensors
        sine = torch.sin(theta)
        weight = torch.where(sine > 1e-15, -grad / torch.where(sine > 1e-15, sine, 1.0), 0.0)
        # dθ = −(v − u cos θ)·du/sin θ: the radial part is kept out here, not left to cancel later.
        radial = weight * torch.cos(theta)
        grad_u = weight @ v - radial.sum(-1, keepdim=True) * u
        grad_v = weight.transpose(-1, -2) @ u - radial.sum(-2).unsqueeze(-1) * v
        return _unbroadcast(grad_u, u), _unbroadcast(grad_v, v)


def _unbroadcast(grad: Tensor, like: Tensor) -> Tensor:
    return grad.sum_to_size(like.shape) if grad.shape != like.shape else grad


def angles(u: Tensor, v: Tensor) -> Tensor:
    """θ of every pair of unit vectors, (..., n, d) and (..., m, d) → (..., n, m), absolute error a few 1e-16.

    2 atan2(|u − v|, |u + v|) where arccos would lose digits. Differentiable once.
    """
    theta: Tensor = _Angles.apply(u, v)  # type: ignore[no-untyped-call]
    return theta


def separate_pairs(rows: Rows, dtype: torch.dtype, *, tangent: bool) -> KernelState:
    """The state of every input paired with itself, behind the first Dense layer: shapes (..., n)."""
    q = rows.q.to(dtype)
    return KernelState(torch.zeros_like(q), q, q, q if tangent else None, gaussian=True)


def normalize_inputs(x: Tensor, *, center: bool) -> Tensor:
    """LayerNorm (or RMSNorm) of the raw inputs: a finite-dimensional map, ε = 0.

    In one dimension LayerNorm leaves nothing, in two only the sign of x₁ − x₂: the first is refused, the second
    warned of.
    """
    n0 = x.shape[-1]
    if center and n0 == 1:
        raise InvalidValueError(
            "LayerNorm over one input feature gives 0 for every input: the network would be constant. Put a "
            "Dense layer before it."
        )
    if n0 <= (2 if center else 1):
        warnings.warn(
            f"A norm over {n0} raw input feature{'s' if n0 > 1 else ''} keeps only a sign: the network can take "
            "two values. Put a Dense layer before it.",
            stacklevel=3,
        )
    x = x.to(torch.float64)
    # By the largest entry first: squares of 1e200 overflow, and a row of equal entries is centered to zeros exactly.
    largest = x.detach().abs().amax(-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1.0)
    if center:
        x = x - x.mean(-1, keepdim=True)
    size = torch.sqrt((x * x).mean(-1, keepdim=True))
    return x / torch.where(size > 0, size, 1.0)
