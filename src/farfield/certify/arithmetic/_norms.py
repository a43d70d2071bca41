r"""Norms: where rounding is amplified, and by how much.

A norm divides by s = √(v + ε). Errors δ of what it normalizes come out as about δ/s, so what counts is δ/s at every
input, not δ and s apart. Where z is affine in the input, z = C u with u = (x, 1), s² = uᵀGu, and |u_j|/s is at most
√(G⁻¹)_jj over *all* inputs: large inputs have large errors and large s. Elsewhere s ≥ √ε is all that is used. Where
errors come in that are larger than s itself, the computed entry is still in the norm's image, up to its own rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.certify.affine import Block
from farfield.certify.arithmetic._formats import FloatFormat
from farfield.certify.arithmetic._state import Drift
from farfield.graph import NormSpec

__all__ = ["input_shares", "norm_drift"]

ROOM = 1.01
"""Covers float64's own rounding in an inverse of condition up to ``WORST``."""
WORST = 1e10


def input_shares(block: Block | None, spec: NormSpec, size: int) -> tuple[Tensor, float] | None:
    """(sup |u_j|/s for u = (x, 1), sup |mean of z|/s) over every input; ``None`` unless z is affine in one input."""
    if block is None or block.form is None or block.form.degree != 1 or block.groups is None:
        return None
    if block.groups.shape[0] != 1 or len(block.form.matrices) != 1 or spec.order != 2.0 or not spec.eps > 0:
        return None
    (matrix,) = (m.clone() for m in block.form.matrices.values())
    matrix[:, -1] += block.form.offset
    matrix = matrix[block.groups[0]]
    mean = matrix.mean(0)
    centered = matrix - mean if spec.centered else matrix
    gram = centered.T @ centered / spec.count(size)
    # √v + ε and max(√v, ε) are at least √(v + ε²)/√2 and more.
    inside = spec.eps_mode == "inside"
    gram[-1, -1] += spec.eps if inside else spec.eps**2
    gram = gram if inside else gram / 2
    scale = torch.diagonal(gram).clamp_min(1e-300).rsqrt()
    rounded = scale[:, None] * gram * scale
    factor, info = torch.linalg.cholesky_ex(rounded)
    if int(info) or float(torch.linalg.cond(rounded)) > WORST:
        return None
    inverse = scale[:, None] * torch.cholesky_inverse(factor) * scale
    shares = torch.diagonal(inverse).clamp_min(0.0).sqrt() * ROOM
    drawn = float((mean @ inverse @ mean).clamp_min(0.0).sqrt()) * ROOM
    return shares, drawn


def norm_drift(
    spec: NormSpec,
    drift: Drift,
    shape: tuple[int, ...],
    block: Block | None,
    real: FloatFormat,
    image: Tensor,
) -> Tensor:
    """The error of the normalized value, before weight and bias; ``image`` is at least its size.

    With D_i = sup δ_i/s and ρ = sup rms(z)/s: |Δy_i| ≤ (D_i + mean D + |y_i|·rms D)/(1 − rms D) from the errors that
    come in, and γρ + |y_i|·(4γ(ρ + γρ²) + 8u) from computing mean, variance (by deviations: two passes or Welford's
    update) and quotient.
    """
    size = spec.size(shape)
    groups = spec.group_index(shape)
    inner = math.sqrt(spec.eps) if spec.eps_mode == "inside" else spec.eps
    found = input_shares(block, spec, size)
    entering, anywhere = torch.full_like(drift.error.reshape(-1), math.inf), math.inf
    if inner > 0:
        entering = drift.error.reshape(-1) / inner
        anywhere = 1.0 + (float(drift.computed_size.max()) / inner if spec.centered else 0.0)
    drawn = anywhere
    if found is not None and drift.relative is not None:
        shares, mean = found
        entering = torch.minimum(entering, drift.relative @ shares)
        drawn = min(drawn, 1.0 + (mean if spec.centered else 0.0))
    if drift.own is not None and not spec.centered:
        lost = real.smallest / inner if inner > 0 else math.inf
        entering = torch.minimum(entering, (drift.own * image).reshape(-1) + lost)
    # torch computes group norms of channels-last tensors from mean and mean of squares: the error of v is γρ²s².
    moments = spec.groups is not None and spec.groups > 0
    made = torch.empty_like(entering)
    y = image.reshape(-1)
    for group in groups:
        d = entering[group]
        middle, spread = float(d.mean()), float((d.square().sum() / spec.count(size)).sqrt())
        gamma = real.gamma(size + 8)
        if not spread < 0.5:  # what it divides by may be rounding alone
            safe = gamma * (anywhere**2 if moments else anywhere) < 0.1
            made[group] = (3.0 if moments else 2.5) * y[group] + 0.1 if safe else math.inf
            continue
        if not gamma * drawn < 0.1:
            made[group] = math.inf
            continue
        moved = (d + (middle if spec.centered else 0.0) + y[group] * spread) / (1.0 - spread)
        rho = drawn * (1.0 + spread) / (1.0 - spread)
        if moments and not gamma * rho**2 < 0.1:
            made[group] = math.inf
            continue
        own = (gamma * rho if spec.centered else 0.0) + y[group] * (
            4 * gamma * (rho + (1.0 if moments else gamma) * rho**2) + 2 * real.once
        )
        made[group] = moved + own + real.smallest
    return made.reshape(shape)
