r"""Chebyshev series in the angle: the slope, and from it the distance to the limits without cancellation.

With S(θ) = dE σ(x)σ(y)/dρ at ρ = cos θ, divided by √(V₁V₂), and equal variances,

.. math:: \frac{\text{deficit}}{\sqrt{V_1V_2}} = \int_0^\theta S(t)\sin t\,dt = 2\sin^2(\theta/2)\,M(\theta),

where M(θ), the mean of S over the correlations between cos θ and 1, is as smooth as S and is what the second
series holds: no difference of large numbers is taken anywhere. Where σ jumps, S(t) sin t is tabulated in place of
S(t) and M(θ) is its mean over [0, θ], so that deficit = θ·M(θ).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from farfield.errors import PrecisionError
from farfield.gaussian._activation import Activation
from farfield.gaussian._quadrature import legendre_rule

__all__ = [
    "AngleSeries",
    "Parity",
    "angle_nodes",
    "clenshaw_angle",
    "fit_series",
    "fold",
    "parity_of",
    "unfold",
]

Parity = Literal["even", "odd", "none"]

_COUNTS = (9, 27, 81, 243)  # the points of one are among those of the next


def parity_of(sigma: Activation, *variances: float) -> Parity:
    """Whether σ is even or odd, as far as Gaussians of these variances can tell (1e-14 of its norm)."""
    nodes, weights = legendre_rule(20)
    z = (torch.arange(0, 9, dtype=torch.float64)[:, None] + nodes).reshape(-1)
    weight = weights.repeat(9) * torch.exp(-0.5 * z * z)
    even = odd = 0.0
    with torch.no_grad():
        for q in variances:
            right, left = sigma(math.sqrt(q) * z), sigma(-math.sqrt(q) * z)
            size = float(((right**2 + left**2) * weight).sum()) or 1.0
            even = max(even, float(((right + left) ** 2 * weight).sum()) / size)
            odd = max(odd, float(((right - left) ** 2 * weight).sum()) / size)
    return "odd" if even < 1e-28 else "even" if odd < 1e-28 else "none"


def fold(theta: Tensor, parity: Parity) -> Tensor:
    """The angle, or where σ is even or odd the smaller of θ and π − θ: the two differ by a sign at most."""
    return theta if parity == "none" else torch.minimum(theta, math.pi - theta)


def unfold(theta: Tensor, near: Tensor, twice: Tensor | float, parity: Parity) -> tuple[Tensor, Tensor]:
    """(deficit, surplus) from the distance to the nearer limit and 2√(V₁V₂)."""
    near = near.clamp(min=0)
    far = twice - near
    if parity != "odd":
        return near, far
    beyond = theta > math.pi / 2
    return torch.where(beyond, far, near), torch.where(beyond, near, far)


def angle_nodes(count: int, top: float) -> Tensor:
    """Chebyshev points of [0, top], increasing, none at an end; small ones to full relative precision."""
    j = torch.arange(count, dtype=torch.float64)
    return top * torch.sin(math.pi / (4 * count) * (2 * j + 1)) ** 2


def basis(x: Tensor, count: int) -> Tensor:
    """T₀ … T_{count−1} at x, stacked on a new last axis."""
    columns = [torch.ones_like(x), x]
    for _ in range(2, count):
        columns.append(2.0 * x * columns[-1] - columns[-2])
    return torch.stack(columns[:count], -1)


@functools.lru_cache(maxsize=64)
def to_coefficients(count: int) -> Tensor:
    """The matrix from values at the Chebyshev points x_j = cos(π(2j+1)/2n) to coefficients."""
    j = np.arange(count)
    # Reduced as a whole number: a cosine of a large angle has lost digits of the angle.
    turns = ((2 * j + 1) * j[:, None]) % (4 * count)
    matrix = np.cos(math.pi / (2 * count) * turns) * (2.0 / count)
    matrix[0] /= 2.0
    return torch.from_numpy(matrix)


@functools.lru_cache(maxsize=64)
def to_means(count: int, top: float, jumps: bool) -> Tensor:
    """The matrix from the coefficients of S to those of M."""
    theta = angle_nodes(count, top)
    v, weights = legendre_rule(count // 2 + 20)
    reach = theta[:, None] * v
    if jumps:
        kernel = weights.expand_as(reach)
    else:
        kernel = weights * torch.sin(reach) * (theta / 2 / torch.sin(theta / 2) ** 2)[:, None]
    values = torch.einsum("jg,jgk->jk", kernel, basis(1.0 - reach * (2.0 / top), count))
    return to_coefficients(count) @ values


def clenshaw_angle(coefficients: Tensor, theta: Tensor, top: float) -> Tensor:
    """Σ c_k T_k(1 − 2θ/top), in the dtype of θ; no memory beyond three tensors unless a gradient is asked for."""
    twice = 2.0 - theta * (4.0 / top)
    if torch.is_grad_enabled() and (theta.requires_grad or coefficients.requires_grad):
        terms = coefficients.to(theta)
        later, latest = torch.zeros_like(theta), torch.zeros_like(theta)
        for c in terms[1:].flip(0):
            later, latest = torch.mul(twice, later).sub_(latest).add_(c), later
        return twice * later / 2.0 - latest + terms[0]
    if theta.dtype != torch.float64:
        # What a shorter float cannot tell from rounding is left out; the tolerance is as if it were its own.
        coefficients = _cut(coefficients, 16.0 * torch.finfo(theta.dtype).eps)
    first, *rest = coefficients.tolist()
    later, latest = torch.zeros_like(theta), torch.zeros_like(theta)
    for c in reversed(rest):
        later, latest = latest.neg_().addcmul_(twice, later).add_(c), later
    return latest.neg_().addcmul_(twice, later, value=0.5).add_(first)


@dataclass(frozen=True)
class AngleSeries:
    """S and M of one activation at one pair of variances, as series over [0, π], or [0, π/2] with a parity.

    Parameters
    ----------
    slopes, means
        Chebyshev coefficients of S and of M, float64.
    parity, jumps
        Of the activation.
    error
        Twice the largest error of S met between the nodes, relative to the largest |S|.
    """

    slopes: Tensor
    means: Tensor
    parity: Parity
    jumps: bool
    error: float

    @property
    def top(self) -> float:
        """The end of the interval the series cover."""
        return math.pi if self.parity == "none" else math.pi / 2

    def pair(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Deficit and surplus over √(V₁V₂)."""
        folded = fold(theta, self.parity)
        mean = clenshaw_angle(self.means, folded, self.top)
        near = folded * mean if self.jumps else 2.0 * torch.sin(folded / 2) ** 2 * mean
        return unfold(theta, near, 2.0, self.parity)

    def slope(self, theta: Tensor) -> Tensor:
        """S(θ)."""
        value = clenshaw_angle(self.slopes, fold(theta, self.parity), self.top)
        # σ′ of an even σ is odd.
        return torch.where(theta > math.pi / 2, -value, value) if self.parity == "even" else value

    @classmethod
    def from_values(cls, values: Tensor, parity: Parity, jumps: bool, error: float) -> AngleSeries:
        """From S (times sin θ where σ jumps) at the Chebyshev points; differentiable."""
        slopes = to_coefficients(len(values)) @ values
        top = math.pi if parity == "none" else math.pi / 2
        return cls(slopes, to_means(len(values), top, jumps) @ slopes, parity, jumps, error)


def _cut(coefficients: Tensor, tolerance: float) -> Tensor:
    """Without the last terms, as far as they are rounding noise beside the tolerance: each costs a pass."""
    size = coefficients.abs()
    large = torch.nonzero(size > 3e-3 * tolerance * size.sum()).flatten()
    return coefficients[: int(large[-1]) + 1 if large.numel() else 1].clone()


def fit_series(
    sample: Callable[[Tensor], Tensor], parity: Parity, jumps: bool, tolerance: float, what: str
) -> AngleSeries:
    """The shortest series within the tolerance, relative to the largest |S|; checked between its nodes."""
    top = math.pi if parity == "none" else math.pi / 2
    # Between the outermost points of a long series, too: features near an end show there first.
    edge = angle_nodes(81, top)[:2].mean()
    inner = torch.linspace(0.02, 0.98, 13, dtype=torch.float64) * top
    check = torch.cat([edge[None], inner, top - edge[None]])
    truth = sample(check)
    values = torch.empty(0, dtype=torch.float64)
    error = math.inf
    for count in _COUNTS:
        nodes = angle_nodes(count, top)
        if count == _COUNTS[0]:
            values = sample(nodes)
        else:
            fresh = sample(torch.cat([nodes[0::3], nodes[2::3]])).reshape(2, -1)
            values = torch.stack([fresh[0], values, fresh[1]], -1).reshape(-1)
        slopes = to_coefficients(count) @ values
        size = float(values.abs().max()) or 1.0
        # Doubled: the largest error lies between the points looked at.
        error = 2.0 * float((clenshaw_angle(slopes, check, top) - truth).abs().max()) / size
        error = max(error, float(slopes[-3:].abs().max()) / size)
        if error <= tolerance:
            means = to_means(count, top, jumps) @ slopes
            return AngleSeries(_cut(slopes, tolerance), _cut(means, tolerance), parity, jumps, error)
    raise PrecisionError(
        f"The slope of the dual of {what} is not resolved to {tolerance:g} by a series of degree "
        f"{_COUNTS[-1] - 1} in the angle (reached {error:.1e}). Use a smaller variance or a larger tolerance."
    )
