"""How much a map bends: the squared Frobenius norms of its Hessians, exact, by autograd or estimated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import jacrev, jvp, vmap

from farfield._typing import Float
from farfield.engine import parse_memory
from farfield.errors import InvalidValueError
from farfield.lnnet._closed import closed_curvature

__all__ = ["CurvatureEstimate", "curvature", "estimate_curvature"]

_AT_ONCE = 64
"""Probes that share a pass."""


@dataclass(frozen=True)
class CurvatureEstimate:
    """A mean over random probes, with its standard error.

    Parameters
    ----------
    value
        Unbiased estimates of H, shape (...).
    standard_error
        Of the mean, from the spread of the probes, shape (...).
    probes
        How many there were.
    """

    value: Tensor
    standard_error: Tensor
    probes: int


def curvature(
    f: nn.Module | Callable[[Tensor], Tensor],
    x: Float[Tensor, "*batch d"],
    *,
    method: Literal["auto", "closed", "autograd", "hutchinson"] = "auto",
    probes: int = 64,
    generator: torch.Generator | None = None,
    memory: int | str = "1GB",
) -> Float[Tensor, "*batch"]:
    r"""P3's measure of nonlinearity at a point: the squared Frobenius norms of the Hessians of all outputs.

    .. math:: H(f; x) = \sum_i \left\| \frac{\partial^2 f_i}{\partial x^2} \right\|_F^2

    For a norm alone there is a closed form, exact for any ε and any scale; without either, for groups of m features
    with standard deviations σ_g, it is :math:`\sum_g 3(m-2)/(m\sigma_g^4)`. At equal σ_g that is largest for groups
    of four, and 0 for groups of two, which keep only a sign. Any other map goes through autograd: d passes, forward
    over reverse, for each point, exact to rounding, and 0 wherever a network of ReLUs is differentiable. Nothing is
    estimated unless asked for. The result carries no gradients.

    Parameters
    ----------
    f
        Maps (n, d) to (n, k), each row by itself; called with n = 1 by ``torch.func`` where there is no closed form.
    x
        Points.
    method
        ``"closed"`` refuses what is not one of torch's LayerNorm and RMSNorm or farfield's LayerNorm, Project and
        GroupedLayerNorm; ``"auto"`` is the closed form where there is one and autograd elsewhere;
        ``"hutchinson"`` is the value of :func:`estimate_curvature`, which also says how good it is.
    probes, generator
        For ``"hutchinson"``.
    memory
        What the second derivatives of one pass may take with autograd.

    References
    ----------
    [P3] H(f; x); the closed form with ε and scale is ours.

    Examples
    --------
    >>> x = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)  # variance 3.5
    >>> curvature(nn.LayerNorm(4, eps=0.0), x)
    tensor(0.1224, dtype=torch.float64)
    >>> 3 * (4 - 2) / (4 * 3.5**2)
    0.12244897959183673
    """
    _checked(x)
    if method == "hutchinson":
        return estimate_curvature(f, x, probes=probes, generator=generator).value
    if method not in ("auto", "closed", "autograd"):
        raise InvalidValueError(
            f"The methods are 'auto', 'closed', 'autograd' and 'hutchinson'; got {method!r}."
        )
    if method != "autograd":
        value = closed_curvature(f, x)
        if value is not None:
            return value.detach()
        if method == "closed":
            raise InvalidValueError(
                "The closed form is that of one norm: torch's LayerNorm or RMSNorm, farfield's LayerNorm, Project "
                f"or GroupedLayerNorm, over the last axis. This is {type(f).__name__}; use method='autograd'."
            )
    points = x.reshape(-1, x.shape[-1])
    outputs = _rowwise(f)(points[0]).numel() if len(points) else 1
    # The Jacobian, its tangent and the copies that products make of them.
    size = 4 * outputs * points.shape[1] * x.element_size()
    columns = parse_memory(memory) // size
    if columns < 1:
        raise InvalidValueError(
            f"One column of the second derivatives takes {size} bytes, and the budget is {memory!r}. Raise it, or "
            "use estimate_curvature."
        )
    jacobian = jacrev(_rowwise(f))
    eye = torch.eye(points.shape[1], dtype=x.dtype, device=x.device)

    def column(point: Tensor, direction: Tensor) -> Tensor:
        tangent: Tensor = jvp(jacobian, (point,), (direction,))[1]
        return tangent.square().sum()

    over_columns = vmap(column, in_dims=(None, 0), chunk_size=min(columns, len(eye)))
    values = [over_columns(point, eye).sum().detach() for point in points.detach()]
    return torch.stack(values).reshape(x.shape[:-1]) if values else x.new_zeros(x.shape[:-1])


def estimate_curvature(
    f: nn.Module | Callable[[Tensor], Tensor],
    x: Float[Tensor, "*batch d"],
    *,
    probes: int = 64,
    generator: torch.Generator | None = None,
) -> CurvatureEstimate:
    r"""An unbiased estimate of :func:`curvature` from Hessian-vector products, with its standard error.

    .. math:: H(f; x) = \mathbb E \left\| \nabla^2 (u \cdot f)(x)\, v \right\|^2, \qquad u_i, v_j = \pm 1

    A probe costs one forward-over-reverse pass, 64 of them at a time, and memory for what f keeps in it, whatever the
    number of outputs: take it where d passes over Jacobians are too many. The standard error falls as 1/√probes.

    Parameters
    ----------
    f, x
        As for :func:`curvature`.
    probes
        Random pairs (u, v) for each point; at least 2.
    generator
        Source of the signs.

    Examples
    --------
    >>> found = estimate_curvature(nn.LayerNorm(8), torch.arange(8.0), generator=torch.Generator().manual_seed(0))
    >>> bool((found.value - curvature(nn.LayerNorm(8), torch.arange(8.0))).abs() < 4 * found.standard_error)
    True
    """
    _checked(x)
    if probes < 2:
        raise InvalidValueError(f"A standard error takes 2 probes or more, got {probes}.")
    one = _rowwise(f)
    means, errors = [x.new_zeros(0)], [x.new_zeros(0)]
    for point in x.detach().reshape(-1, x.shape[-1]):
        outputs = one(point).numel()
        u = _signs((probes, outputs), x, generator)
        v = _signs((probes, len(point)), x, generator)

        def probe(u: Tensor, v: Tensor, point: Tensor = point) -> Tensor:
            def slope(z: Tensor) -> Tensor:
                gradient: Tensor = jacrev(lambda w: (u * one(w)).sum())(z)
                return gradient

            product: Tensor = jvp(slope, (point,), (v,))[1]
            return product.square().sum()

        values = vmap(probe, chunk_size=_AT_ONCE)(u, v)
        means.append(values.mean()[None])
        errors.append(values.std()[None] / math.sqrt(probes))
    shape = x.shape[:-1]
    return CurvatureEstimate(
        torch.cat(means).reshape(shape).detach(), torch.cat(errors).reshape(shape).detach(), probes
    )


def _checked(x: Tensor) -> None:
    if x.ndim < 1 or not x.is_floating_point():
        raise InvalidValueError(
            f"Points are floating numbers, features on the last axis; got {x.dtype} of shape {tuple(x.shape)}."
        )


def _signs(shape: tuple[int, int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    drawn = torch.randint(0, 2, shape, generator=generator, device=generator.device if generator else None)
    return (2 * drawn - 1).to(like)


def _rowwise(f: nn.Module | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def one(point: Tensor) -> Tensor:
        result: Tensor = f(point[None])
        return result.reshape(-1)

    return one
