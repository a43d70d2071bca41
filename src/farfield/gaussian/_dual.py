"""Dual activations and their slopes, by closed form where there is one and by quadrature otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.gaussian._activation import Activation
from farfield.gaussian._moments import moments
from farfield.gaussian._pair import (
    centered_factor,
    derivative_factor,
    equal_variances,
    pair_expectation,
    stretch_factor,
    value_factor,
)
from farfield.gaussian._registry import ActivationLike, activation

__all__ = ["dual", "dual_slope", "mean_reduced_dual"]


def _dual_value(sigma: Activation, rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    if sigma.closed_form is not None:
        return sigma.closed_form.dual(rho, q1, q2)
    f = value_factor(sigma)
    return pair_expectation(f, f, rho, q1, q2)


def _partial(formula: Callable[[Tensor], Tensor], at: Tensor, *others: Tensor) -> Tensor:
    """The derivative of an elementwise formula in one of its arguments, differentiable again in all of them."""
    again = torch.is_grad_enabled() and any(t.requires_grad for t in (at, *others))
    with torch.enable_grad():
        # A view of its own, so that the gradient stops here: two arguments may be one and the same tensor.
        own = at.view_as(at) if at.requires_grad else at.detach().requires_grad_()
        (slope,) = torch.autograd.grad(formula(own).sum(), own, create_graph=again)
    return slope


def _slope_value(sigma: Activation, rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    closed = sigma.closed_form
    if closed is not None:
        if closed.slope is not None:
            return closed.slope(rho, q1, q2)
        return _partial(lambda r: closed.dual(r, q1, q2), rho, q1, q2)
    f = derivative_factor(sigma)
    # Price's theorem; the point masses of a jump are part of σ′.
    return torch.sqrt(q1) * torch.sqrt(q2) * pair_expectation(f, f, rho, q1, q2)


def _variance_slope(sigma: Activation, rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    """∂/∂q₁ of the dual at fixed ρ: E[xσ′(x)σ(y)]/(2q₁)."""
    closed = sigma.closed_form
    if closed is not None:
        return _partial(lambda q: closed.dual(rho, q, q2), q1, rho, q2)
    return pair_expectation(stretch_factor(sigma), value_factor(sigma), rho, q1, q2) / (2.0 * q1)


def _reduced_value(sigma: Activation, rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
    closed = sigma.closed_form
    if closed is not None and closed.reduced is not None:
        return closed.reduced(rho, q1, q2)
    flat = [t.reshape(-1) for t in (rho, q1, q2)]
    value = torch.empty_like(flat[0])
    for v1, v2, index in equal_variances(flat[1], flat[2]):
        m1, m2 = (moments(sigma, variance=v).mean for v in (v1, v2))
        r, p1, p2 = (t[index] for t in flat)
        if closed is not None:
            value[index] = closed.dual(r, p1, p2) - m1 * m2
        else:
            value[index] = pair_expectation(centered_factor(sigma, m1), centered_factor(sigma, m2), r, p1, p2)
    return torch.where(rho == 0, 0.0, value.reshape(rho.shape))


class _Dual(torch.autograd.Function):
    """The dual, or the reduced one, with its known slope as derivative: finite at ρ = ±1 wherever that is."""

    @staticmethod
    def forward(ctx: Any, sigma: Activation, reduced: bool, rho: Tensor, q1: Tensor, q2: Tensor) -> Tensor:
        ctx.sigma, ctx.reduced = sigma, reduced
        ctx.save_for_backward(rho, q1, q2)
        return (_reduced_value if reduced else _dual_value)(sigma, rho, q1, q2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        rho, q1, q2 = ctx.saved_tensors

        def along(q: Tensor, other: Tensor) -> Tensor:
            slope = _variance_slope(ctx.sigma, rho, q, other)
            # What is subtracted, E σ(x)E σ(y), is the dual at ρ = 0.
            return slope - _variance_slope(ctx.sigma, 0.0 * rho, q, other) if ctx.reduced else slope

        needs = ctx.needs_input_grad
        return (
            None,
            None,
            grad * _slope_value(ctx.sigma, rho, q1, q2) if needs[2] else None,
            grad * along(q1, q2) if needs[3] else None,
            grad * along(q2, q1) if needs[4] else None,
        )


def _prepare(
    rho: Tensor | float, variance: Tensor | float, variance2: Tensor | float | None
) -> tuple[Tensor, Tensor, Tensor]:
    variance2 = variance if variance2 is None else variance2
    r, q1, q2 = (torch.as_tensor(t, dtype=torch.float64) for t in (rho, variance, variance2))
    r, q1, q2 = torch.broadcast_tensors(r, q1, q2)
    with torch.no_grad():
        if not bool((r.abs() <= 1.0).all()):  # nan included
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
    result: Tensor = _Dual.apply(  # type: ignore[no-untyped-call]
        activation(sigma), False, *_prepare(rho, variance, variance2)
    )
    return result


def dual_slope(
    sigma: ActivationLike,
    rho: Tensor | float,
    variance: Tensor | float = 1.0,
    *,
    variance2: Tensor | float | None = None,
) -> Tensor:
    r"""dσ̂/dρ = √(q₁q₂) E σ′(x)σ′(y), with σ′ a distribution where σ jumps.

    Infinite at ρ = ±1 where two jumps of σ meet: at ρ = 1 for equal variances, at either end for a jump at 0.
    Otherwise as :func:`dual`, of which it is the derivative in ρ.

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

    Not as that difference, which cancels where the mean dominates: by a formula without cancellation where one
    is registered, else as E (σ(x) − c₀)(σ(y) − c₀′) by quadrature. ρ = 0 gives exactly 0. Differentiable like
    :func:`dual`.

    References
    ----------
    [P2] §5: the mean-field step is G ← σ̄(G)/σ̄(1).

    Examples
    --------
    >>> float(mean_reduced_dual("relu", 0.0))
    0.0
    """
    result: Tensor = _Dual.apply(  # type: ignore[no-untyped-call]
        activation(sigma), True, *_prepare(rho, variance, variance2)
    )
    return result
