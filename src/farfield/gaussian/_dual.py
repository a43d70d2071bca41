"""Dual activations and their slopes, by closed form where there is one and by quadrature otherwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.gaussian._activation import Activation
from farfield.gaussian._moments import moments
from farfield.gaussian._pair import derivative_factor, pair_expectation, stretch_factor, value_factor
from farfield.gaussian._registry import ActivationLike, activation

__all__ = ["dual", "dual_slope", "mean_reduced_dual"]


def _dual_value(sigma: Activation, rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    if sigma.closed_form is not None:
        return sigma.closed_form.dual(rho, q1, q2)
    f = value_factor(sigma)
    return pair_expectation(f, f, rho, q1, q2)


def _slope_value(sigma: Activation, rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    closed = sigma.closed_form
    if closed is not None and closed.slope is not None:
        return closed.slope(rho, q1, q2)
    if closed is not None:
        with torch.enable_grad():
            leaf = rho if rho.requires_grad else rho.detach().requires_grad_()
            total = closed.dual(leaf, q1, q2).sum()
            (slope,) = torch.autograd.grad(total, leaf, create_graph=rho.requires_grad or q1.requires_grad)
        return slope
    f = derivative_factor(sigma)
    # Price's theorem; the point masses of a jump are part of σ′.
    return torch.sqrt(q1) * torch.sqrt(q2) * pair_expectation(f, f, rho, q1, q2)


def _variance_slope(sigma: Activation, rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    """∂/∂q₁ of the dual at fixed ρ: E[xσ′(x)σ(y)]/(2q₁)."""
    if sigma.closed_form is not None:
        with torch.enable_grad():
            leaf = q1 if q1.requires_grad else q1.detach().requires_grad_()
            total = sigma.closed_form.dual(rho, leaf, q2).sum()
            (slope,) = torch.autograd.grad(total, leaf, create_graph=q1.requires_grad)
        return slope
    return pair_expectation(stretch_factor(sigma), value_factor(sigma), rho, q1, q2) / (2.0 * q1)


class _Dual(torch.autograd.Function):
    """The dual with its known slope as derivative: finite at ρ = ±1 wherever the slope is."""

    @staticmethod
    def forward(ctx: Any, sigma: Activation, rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
        ctx.sigma = sigma
        ctx.save_for_backward(rho, q1, q2)
        return _dual_value(sigma, rho, q1, q2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        rho, q1, q2 = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (
            None,
            grad * _slope_value(ctx.sigma, rho, q1, q2) if needs[1] else None,
            grad * _variance_slope(ctx.sigma, rho, q1, q2) if needs[2] else None,
            grad * _variance_slope(ctx.sigma, rho, q2, q1) if needs[3] else None,
        )


def _differentiable(sigma: Activation, rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    result: Tensor = _Dual.apply(sigma, rho, q1, q2)  # type: ignore[no-untyped-call]
    return result


def _prepare(
    rho: Tensor | float, variance: Tensor | float, variance2: Tensor | float | None
) -> tuple[Tensor, Tensor, Tensor]:
    variance2 = variance if variance2 is None else variance2
    r, q1, q2 = (torch.as_tensor(t, dtype=torch.float64) for t in (rho, variance, variance2))
    r, q1, q2 = torch.broadcast_tensors(r, q1, q2)
    with torch.no_grad():
        if bool((r.abs() > 1.0).any()):
            worst = float(r.abs().max())
            raise InvalidValueError(
                f"A correlation lies in [-1, 1], got one of magnitude {worst!r}. Rounding in a Gram matrix "
                "can push it past 1: clamp it, or use farfield.geometry.normalized_gram, which sets the diagonal."
            )
        if not bool((torch.isfinite(q1) & torch.isfinite(q2) & (q1 > 0) & (q2 > 0)).all()):
            raise InvalidValueError("A variance is finite and > 0; got one that is not.")
    return r, q1, q2


def dual(
    sigma: ActivationLike,
    rho: Tensor | float,
    variance: Tensor | float = 1.0,
    *,
    variance2: Tensor | float | None = None,
) -> Tensor:
    r"""σ̂(ρ) = E σ(x)σ(y) for x ~ N(0, q₁), y ~ N(0, q₂) with correlation ρ.

    .. math:: \hat\sigma(\rho) = \mathbb E\,\sigma(x)\,\sigma(y) = \sum_{k\ge 0} c_k^2 \rho^k
              \quad (q_1 = q_2)

    Exact to rounding: by closed form where one is registered, else by nested quadrature split at kinks
    (about 10⁵ evaluations an entry). Differentiable in ρ and both variances, including ρ = ±1 where the slope
    is finite. Returns float64.

    Parameters
    ----------
    sigma
        Name, :class:`Activation`, callable or elementwise module.
    rho
        Correlations in [−1, 1], any shape.
    variance
        q₁ > 0, broadcast against ``rho``.
    variance2
        q₂; the same as ``variance`` unless given.

    See Also
    --------
    mean_reduced_dual : the covariance σ̂(ρ) − c₀².
    tabulate_dual : one table for a million correlations.

    References
    ----------
    [P2] §5, App. C.1.

    Examples
    --------
    >>> import torch
    >>> dual("relu", torch.tensor([0.0, 1.0]))
    tensor([0.1592, 0.5000], dtype=torch.float64)
    """
    sigma = activation(sigma)
    return _differentiable(sigma, *_prepare(rho, variance, variance2))


def dual_slope(
    sigma: ActivationLike,
    rho: Tensor | float,
    variance: Tensor | float = 1.0,
    *,
    variance2: Tensor | float | None = None,
) -> Tensor:
    r"""dσ̂/dρ = √(q₁q₂) E σ′(x)σ′(y), with σ′ a distribution where σ jumps.

    Infinite at ρ = ±1 for an activation with a jump. Otherwise as :func:`dual`, of which it is the derivative
    in ρ.

    Examples
    --------
    >>> float(dual_slope("relu", 1.0)), float(dual_slope("step", 0.0)) * 6.283185307179586
    (0.5, 1.0)
    """
    return _slope_value(activation(sigma), *_prepare(rho, variance, variance2))


def mean_reduced_dual(
    sigma: ActivationLike,
    rho: Tensor | float,
    variance: Tensor | float = 1.0,
    *,
    variance2: Tensor | float | None = None,
) -> Tensor:
    r"""σ̄(ρ) = Cov(σ(x), σ(y)) = σ̂(ρ) − E σ(x)·E σ(y).

    .. math:: \bar\sigma(\rho) = \sum_{k\ge1} c_k^2 \rho^k, \qquad \bar\sigma(1) = \operatorname{Var}\sigma(x)

    Uses a formula without cancellation where one is registered; otherwise its absolute error is that of
    :func:`dual`. ρ = 0 gives exactly 0.

    References
    ----------
    [P2] §5: the mean-field step is G ← σ̄(G)/σ̄(1).

    Examples
    --------
    >>> float(mean_reduced_dual("relu", 0.0))
    0.0
    """
    sigma = activation(sigma)
    r, q1, q2 = _prepare(rho, variance, variance2)
    tracked = r.requires_grad or q1.requires_grad or q2.requires_grad
    if sigma.closed_form is not None and sigma.closed_form.reduced is not None and not tracked:
        return sigma.closed_form.reduced(r, q1, q2)
    value = _differentiable(sigma, r, q1, q2)
    if q1.requires_grad or q2.requires_grad:
        # E σ(x)E σ(y) is the dual at ρ = 0, whose derivative in the variances is wanted as well.
        offset = _differentiable(sigma, torch.zeros_like(r), q1, q2)
    else:
        offset = _means(sigma, q1) * _means(sigma, q2)
    return torch.where(r == 0, value * 0.0, value - offset)


def _means(sigma: Activation, q: Tensor) -> Tensor:
    values, inverse = torch.unique(q.detach(), return_inverse=True)
    table = torch.tensor([moments(sigma, variance=float(v)).mean for v in values], dtype=torch.float64)
    return table[inverse]
