"""Hessians of norms in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from farfield.nn import GroupedLayerNorm, LayerNorm, Project

__all__ = ["closed_curvature"]


@dataclass(frozen=True)
class _Norm:
    """f = γ ⊙ z/√(mean z² + ε) in each of some groups, z = x or x less its mean."""

    groups: int
    norm_eps: float
    centered: bool
    weight: Tensor | None


def _recognized(f: Any, features: int, dtype: torch.dtype) -> _Norm | None:
    if type(f) is GroupedLayerNorm and f.num_features == features:
        return _Norm(f.groups, f.norm_eps, True, f.weight)
    if type(f) is LayerNorm:
        return _Norm(1, next(m for m in f.modules() if isinstance(m, Project)).norm_eps, True, None)
    if type(f) is Project:
        return _Norm(1, f.norm_eps, False, None)
    if type(f) is nn.LayerNorm and f.normalized_shape == (features,):
        return _Norm(1, f.eps, True, f.weight)
    if type(f) is nn.RMSNorm and tuple(f.normalized_shape) == (features,):
        norm_eps = torch.finfo(dtype).eps if f.eps is None else f.eps
        return _Norm(1, norm_eps, False, f.weight)
    return None


def closed_curvature(f: Any, x: Tensor) -> Tensor | None:
    r"""Σ_i ‖∂²f_i/∂x²‖_F² of a norm over the last axis; None for anything else.

    With z = Cx, C the centering (or the identity), q = |z|², s² = q/m + ε and ρ = q/(m s²), the Hessian of
    f_i = z_i/s is

    .. math:: -\frac{c_i z^T + z c_i^T + z_i C}{m s^3} + \frac{3 z_i z z^T}{m^2 s^5}

    and its squared norm, since c_i·z = z_i,

    .. math:: \frac{2|c_i|^2 q + z_i^2 (\operatorname{tr} C - 3 + 9(1-\rho)^2)}{m^2 s^6} .

    1 − ρ = ε/s² is taken as such, and the sixth power of s is not formed: nothing cancels, and what leaves the range
    of numbers is H itself. Where tr C = 1 (a centered pair, one feature alone) the first two terms cancel exactly.
    """
    norm = _recognized(f, x.shape[-1], x.dtype)
    if norm is None:
        return None
    m = x.shape[-1] // norm.groups
    z = x.reshape(*x.shape[:-1], norm.groups, m)
    if norm.centered:
        z = z - z.mean(-1, keepdim=True)
    trace, diagonal = (m - 1, 1 - 1 / m) if norm.centered else (m, 1.0)
    q = z.square().sum(-1, keepdim=True)
    variance = q / m + norm.norm_eps
    unit = z.square() / variance
    bent = 9 * (norm.norm_eps / variance).square() * unit
    if trace > 1:
        bent = bent + 2 * diagonal * (q / variance) + (trace - 3) * unit
    elif norm.norm_eps == 0.0:
        bent = torch.zeros_like(bent)  # a sign: flat on both sides
    square = bent / variance / variance / (m * m)
    if norm.weight is not None:
        square = square * norm.weight.detach().to(x).reshape(norm.groups, m).square()
    return square.sum((-2, -1))
