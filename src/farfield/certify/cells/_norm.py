"""A norm over cells, to first order with a remainder of second order."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.certify.cells._clouds import INFLATE, ROUND, SLIP, TINY, Blame, Clouds
from farfield.certify.cells._reach import Reach, length, swing

__all__ = ["apply_norm"]


def apply_norm(
    centered: Clouds, groups: int, count: float, norm_eps: float, limit: float, time: Clouds | None,
    reach: Reach | None = None,
) -> tuple[Clouds, Blame]:  # fmt: skip
    """c/√q over cells, q = Σc²/count + ε·t² within each group, and the error attributed to each axis.

    q = q₀ + q₁δ + [0, Q] ± e with Q the largest δᵀBᵀBδ/count; 1/√q is its tangent at q₀ plus [0, R], R attained at
    an end of q's range because 1/√ is convex; the product with c = a + Bδ ± ρ keeps the diagonal of its quadratic
    part as a one-sided term. Where q may vanish, and where that is smaller, the image |y| ≤ limit is all that is
    used.

    Parameters
    ----------
    centered
        c, entries ordered group by group, (C, groups·m).
    groups, count, norm_eps, limit
        Their number, the divisor, ε, the bound on |y_i|.
    time
        t as a value over cells, (C, 1), for a form of degree 1.
    reach
        How far offsets go, where that is less than everywhere.
    """
    k1, cells, width = centered.values.shape
    size = width // groups
    c = centered.values.reshape(k1, cells, groups, size)
    rho = centered.radius.reshape(cells, groups, size)
    a, b = c[0], c[1:]
    dev = swing(b, reach)
    products = torch.einsum("icgm,jcgm->ijcg", c, c) / count
    loss = (size + 8.0) * 2 * ROUND
    wander = 2 * ((a.abs() + dev) * rho).sum(-1) / count + rho.square().sum(-1) / count
    floor = c.new_full((1, 1), norm_eps)
    if time is None:
        products[0, 0] += norm_eps
    else:
        products += norm_eps * torch.einsum("ic,jc->ijc", time.values[..., 0], time.values[..., 0])[..., None]
        t_rho, t_size = time.radius, time.values.abs().sum(0)
        wander = wander + norm_eps * t_rho * (2 * t_size + t_rho)
        floor = norm_eps * time.range()[0].clamp_min(0.0).square()
    q0, q1 = products[0, 0], 2 * products[0, 1:]
    quad = _largest_square(products[1:, 1:], reach) * INFLATE
    # |Σ aB|/count may cancel: its rounding is measured by √(q₀·BᵀB).
    scale = torch.diagonal(products[1:, 1:], dim1=0, dim2=1).clamp_min(0.0).sqrt().sum(-1)
    wander = (wander + loss * (q0 + 2 * q0.sqrt() * scale + scale.square())) * INFLATE + TINY
    rise = swing(q1, reach)
    drift = rho.square().sum(-1).sqrt() / math.sqrt(count)
    if time is not None:
        drift = drift + math.sqrt(norm_eps) * time.radius
    span = (q0.sqrt() + quad.sqrt() + drift) * (1 + 64 * loss)
    near = (q0.sqrt() * (1 - 8 * loss) - (quad.sqrt() + drift) * (1 + 64 * loss)).clamp_min(0.0)
    low = torch.maximum((q0 - rise - wander) * (1 - SLIP) - SLIP * (q0 + rise), near.square() * (1 - SLIP))
    low = torch.maximum(low, floor * (1 - SLIP))
    high = torch.minimum((q0 + rise + quad + wander) * (1 + SLIP), span.square() * (1 + SLIP))
    low = torch.minimum(low, q0)
    good = low > 1e-200
    q0, low = torch.where(good, q0, 1.0), torch.where(good, low, 1.0)
    high = torch.where(good, torch.maximum(high, q0), 1.0)
    g0 = q0.rsqrt()
    cube = g0 / q0
    steepest = low.rsqrt()
    above = steepest - g0 - 0.5 * cube * (q0 - low)
    below = high.rsqrt() - g0 + 0.5 * cube * (high - q0)
    rest = torch.maximum(above, below).clamp_min(0.0) + SLIP * (steepest + cube * (high + low))
    gain = g0 + 0.5 * rest - 0.25 * cube * quad
    tilt = -0.5 * cube * q1
    unsure = 0.5 * rest + 0.25 * cube * quad + 0.5 * cube * wander
    unsure = (unsure + SLIP * (g0 + rest + cube * (quad + rise))) * INFLATE
    made = c * gain[..., None]
    made[1:] += a * tilt[..., None]
    loose = (a.abs() + dev) * unsure[..., None] + rho * (steepest * (1 + SLIP))[..., None]
    middle, swung = _product(b, tilt[..., None], reach)
    made[0] += middle
    loose += swung
    total = (a.abs() + dev) * (gain.abs() + tilt.abs().sum(0))[..., None]
    loose = (loose + SLIP * total) * INFLATE + TINY
    bad = ~(good[..., None] & (loose < limit))  # also what is not a number
    loose = torch.where(bad, limit, loose)
    made = torch.where(bad, torch.zeros_like(made), made)
    loose = loose.reshape(cells, width)
    leverage = torch.diagonal(products[1:, 1:], dim1=0, dim2=1).clamp_min(0.0).sqrt().permute(2, 0, 1)
    leverage = leverage[..., None].expand(-1, -1, -1, size).reshape(k1 - 1, cells, width)
    return Clouds(made.reshape(k1, cells, width), loose), Blame(loose, leverage)


def _largest_square(products: Tensor, reach: Reach | None) -> Tensor:
    """max δᵀPδ of a positive semidefinite P = (k, k, C, groups): Σ|P|, or by ‖P‖ on the axes that are whole.

    √(δᵀPδ) is a norm of δ: it is at most the sum of those of both parts.
    """
    if reach is None:
        return products.abs().sum((0, 1))
    whole = reach.whole.T.to(products.dtype)
    halved, kept = (products * (m[:, None] * m[None])[..., None] for m in (1.0 - whole, whole))
    square = reach.radius.square()[:, None] * length(kept.reshape(-1, *kept.shape[2:]))
    return (halved.abs().sum((0, 1)).sqrt() + square.sqrt()).square()


def _product(b: Tensor, tilt: Tensor, reach: Reach | None) -> tuple[Tensor, Tensor]:
    """(middle, half-width) of (Σ b_j δ_j)(Σ tilt_j δ_j) over a cell, entry by entry."""
    whole = None
    if reach is not None:
        (b, whole), (tilt, turned) = reach.split(b), reach.split(tilt)
    middle, swung = torch.zeros_like(b[0]), torch.zeros_like(b[0])
    for j in range(len(b)):
        square = b[j] * tilt[j]
        middle += 0.5 * square
        swung += 0.5 * square.abs()
        for other in range(j):
            swung += (b[j] * tilt[other] + b[other] * tilt[j]).abs()
    if reach is None or whole is None:
        return middle, swung
    # Over the ball δᵀ(b·tiltᵀ)δ lies between the eigenvalues (b·tilt ± ‖b‖‖tilt‖)/2 of its symmetric part, times r².
    far, turn = reach.ball(whole), reach.ball(turned)
    middle += 0.5 * reach.radius.square()[:, None, None] * (whole * turned).sum(0)
    return middle, swung + 0.5 * far * turn + b.abs().sum(0) * turn + far * tilt.abs().sum(0)
