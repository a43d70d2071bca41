"""Products of two tensors that both move."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from farfield.certify.intervals._interval import UNDERFLOW, Interval, gamma, mul, settled, up

__all__ = ["bilinear_image", "product", "total"]

INF = math.inf
LARGEST_TABLE = 2**21
"""Matrix products of up to this many terms are bounded term by term; larger ones by centers and radii."""


def total(terms: Interval, dims: tuple[int, ...]) -> Interval:
    """Σ over axes: rounded outwards by γ_k Σ|end|; one-signed sums keep their sign."""
    if not dims or terms.lo.ndim == 0:
        return terms
    count = math.prod(terms.shape[d] for d in dims)
    error = gamma(count + 4)

    def end(values: Tensor, sign: float) -> Tensor:
        margin = values.abs().sum(dims) * error
        rounded = values.sum(dims) + sign * torch.where(margin > 0, margin + UNDERFLOW, margin)
        return torch.where(
            rounded == -sign * INF, sign * INF, rounded.nan_to_num(nan=sign * INF, posinf=INF, neginf=-INF)
        )

    lo, hi = end(terms.lo, -1.0), end(terms.hi, 1.0)
    lo = torch.where(_all(terms.lo >= 0, dims), lo.clamp_min(0.0), lo)
    return Interval(lo, torch.where(_all(terms.hi <= 0, dims), hi.clamp_max(0.0), hi))


def _all(flags: Tensor, dims: tuple[int, ...]) -> Tensor:
    for dim in sorted(dims, reverse=True):
        flags = flags.all(dim)
    return flags


def product(a: Interval, b: Interval) -> Interval:
    """a · b over the last two axes (vectors as torch.matmul takes them), both in boxes.

    Small ones term by term, which is the exact hull of Σ_k a_ik b_kj when no entry occurs twice. Larger ones as
    A_c B_c ± (|A_c| B_r + A_r (|B_c| + B_r)), at most half as wide again, in three products.
    """
    first, second = a.lo.ndim == 1, b.lo.ndim == 1
    if first:
        a = a.map(lambda end: end.unsqueeze(0))
    if second:
        b = b.map(lambda end: end.unsqueeze(-1))
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    batch = math.prod(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    if batch * rows * inner * columns <= LARGEST_TABLE:
        table = mul(a.map(lambda end: end.unsqueeze(-1)), b.map(lambda end: end.unsqueeze(-3)))
        result = total(table, (table.lo.ndim - 2,))
    else:
        result = bilinear_image(torch.matmul, a, b, inner)
    if second:
        result = result.map(lambda end: end.squeeze(-1))
    return result.map(lambda end: end.squeeze(-1 if second else -2)) if first else result


def bilinear_image(
    apply: Callable[[Tensor, Tensor], Tensor], a: Interval, b: Interval, terms: int
) -> Interval:
    """A map linear in each of two tensors in boxes, by centers and radii; no bound where an open end counts."""
    opened = None
    if not (a.bounded and b.bounded):
        moves_a, moves_b = (((x.lo != 0) | (x.hi != 0)).to(torch.float64) for x in (a, b))
        open_a, open_b = ((torch.isinf(x.lo) | torch.isinf(x.hi)).to(torch.float64) for x in (a, b))
        opened = apply(open_a, moves_b) + apply(moves_a, open_b) > 0.5
        a, b = (_closed(x) for x in (a, b))
    (ca, ra), (cb, rb) = _centered(a), _centered(b)
    error = gamma(terms + 6)
    middle = apply(ca, cb)
    ra = ra + error * ca.abs()
    reach = (apply(ca.abs(), rb) + apply(ra, cb.abs() + rb)) * (1.0 + 4.0 * error)
    reach = torch.where(reach > 0, reach + UNDERFLOW, reach)
    ends = settled(middle - reach, middle + reach)
    if opened is None:
        return ends
    return Interval(torch.where(opened, -INF, ends.lo), torch.where(opened, INF, ends.hi))


def _closed(x: Interval) -> Interval:
    keep = torch.isfinite(x.lo) & torch.isfinite(x.hi)
    return Interval(torch.where(keep, x.lo, 0.0), torch.where(keep, x.hi, 0.0))


def _centered(x: Interval) -> tuple[Tensor, Tensor]:
    if x.lo is x.hi:
        return x.lo, torch.zeros_like(x.lo)
    center = x.lo / 2 + x.hi / 2
    return center, up(torch.maximum(up(x.hi - center), up(center - x.lo)).clamp_min(0.0))
