r"""One-scalar compression: everything above the first norm, as a short polynomial in one angle.

Above a norm every input has the same mean square, so K and Θ of the output depend on the angle θ alone (and
affinely on the tangent kernel that enters). Each layer is analytic in θ on [0, π]. The polynomial's variable is

.. math:: x(\theta) = \frac{2(1+a)\,v}{v + a} - 1 \in [-1, 1], \qquad v = \frac\theta\pi,

the angle itself for a = ∞, which is what shallow networks take: the arcsine of the product of two unit vectors, up
to a factor that goes into the coefficients. Small a gathers the nodes at θ = 0, where a deep kernel has its peak:
three more passes, and half the degree at depth 50. Either way the coefficients in powers of x are as small as the
function itself, so that Horner's rule is as good as Clenshaw's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farfield.errors import InvalidValueError, PrecisionError
from farfield.gaussian._interpolant import clenshaw
from farfield.gaussian.angular import to_coefficients

__all__ = ["Interpolant", "fit", "horner_", "position"]

_STRENGTHS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, math.inf)
_MAP = 4
"""Degrees that a finite strength must save: the map takes three passes, a division among them."""
_LARGEST_DEGREE = 256
_NEGLIGIBLE = 1e-20
"""A function below this share of the largest one in its stack need not be resolved: it never shows."""
_LONGEST_HORNER = 64
_CANCELS = 1e6
"""Coefficients in powers of x this much larger than the function cancel away what Horner's rule would add up."""


def _angle_of(x: Tensor, strength: float) -> Tensor:
    if strength == math.inf:
        return 0.5 * math.pi * (x + 1.0)
    y = 0.5 * (x + 1.0) / (1.0 + strength)
    return math.pi * strength * y / (1.0 - y)


def position(theta: Tensor, strength: float) -> Tensor:
    """x(θ) ∈ [−1, 1], differentiable."""
    v = theta / math.pi
    if strength == math.inf:
        return 2.0 * v - 1.0
    return 2.0 * (1.0 + strength) * v / (v + strength) - 1.0


def _nodes(count: int) -> Tensor:
    """The Chebyshev points that ``to_coefficients`` takes values at."""
    j = torch.arange(count, dtype=torch.float64)
    return torch.cos(math.pi * (2.0 * j + 1.0) / (2.0 * count))


@functools.lru_cache(maxsize=64)
def _to_powers(degree: int) -> Tensor:
    """The matrix from Chebyshev coefficients to coefficients in powers of x."""
    matrix = np.zeros((degree + 1, degree + 1))
    for k in range(degree + 1):
        unit = np.zeros(k + 1)
        unit[k] = 1.0
        matrix[: k + 1, k] = np.polynomial.chebyshev.cheb2poly(unit)
    return torch.from_numpy(matrix)


@dataclass(frozen=True)
class Interpolant:
    """Several functions of one angle as polynomials in x(θ).

    Parameters
    ----------
    strength
        a, the map's parameter; ∞ for the angle itself.
    coefficients
        Chebyshev coefficients, float64, shape (functions, degree + 1).
    error
        Largest measured error at points between the nodes, relative to the largest value of each function.
    powers
        Whether Horner's rule in powers of x keeps that error; Clenshaw's recurrence is used otherwise.
    """

    strength: float
    coefficients: Tensor
    error: float
    powers: bool

    @property
    def degree(self) -> int:
        """Degree of the polynomials."""
        return self.coefficients.shape[-1] - 1

    @functools.cached_property
    def _monomials(self) -> list[list[float]]:
        detached = self.coefficients.detach().cpu()
        return (detached @ _to_powers(self.degree).T).tolist()

    def horner(self, function: int, scale: float, like: Tensor) -> tuple[Tensor, ...]:
        """Coefficients in powers of w = x/scale, the constant one first, as 0-dimensional tensors."""
        terms = [c * scale**k for k, c in enumerate(self._monomials[function])]
        return torch.tensor(terms, dtype=like.dtype, device=like.device).unbind()

    def evaluate_(self, x: Tensor, function: int, out: Tensor) -> Tensor:
        """The polynomial at x ∈ [−1, 1] into ``out``; no gradients, no memory beyond ``out`` with Horner's rule."""
        if self.powers:
            return horner_(self.horner(function, 1.0, x), x, out, out)
        return out.copy_(clenshaw(self.coefficients[function].detach().to(x), x))

    def __call__(self, theta: Tensor, function: int = 0) -> Tensor:
        """The function at θ, differentiable in θ and in the coefficients."""
        x = position(theta, self.strength)
        value: Tensor = _Polynomial.apply(x, self.coefficients[function].to(x))  # type: ignore[no-untyped-call]
        return value


def horner_(terms: tuple[Tensor, ...], w: Tensor, partial: Tensor, out: Tensor) -> Tensor:
    """A polynomial in w by Horner's rule: sums in ``partial``, in place, and the last of them in ``out``."""
    if len(terms) == 1:
        return out.copy_(terms[0].expand_as(out))
    if len(terms) == 2:
        return torch.addcmul(terms[0], terms[1], w, out=out)
    torch.addcmul(terms[-2], terms[-1], w, out=partial)
    for c in terms[-3:0:-1]:
        torch.addcmul(c, partial, w, out=partial)
    return torch.addcmul(terms[0], partial, w, out=out)


class _Polynomial(torch.autograd.Function):
    """A Chebyshev series; memory does not grow with its degree."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, coefficients: Tensor) -> Tensor:
        ctx.save_for_backward(x, coefficients)
        return clenshaw(coefficients, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, coefficients = ctx.saved_tensors
        grad_x = grad_c = None
        if ctx.needs_input_grad[0]:
            derivative = np.polynomial.chebyshev.chebder(coefficients.detach().cpu().double().numpy())
            grad_x = grad * clenshaw(torch.from_numpy(np.atleast_1d(derivative)).to(x), x)
        if ctx.needs_input_grad[1]:
            t0, t1 = torch.ones_like(x), x
            sums = []
            for _ in range(len(coefficients)):
                sums.append((grad * t0).sum())
                t0, t1 = t1, 2.0 * x * t1 - t0
            grad_c = torch.stack(sums)
        return grad_x, grad_c


def _scales(values: Tensor) -> Tensor:
    """The largest value of each function: what its error is compared with."""
    largest = values.abs().amax(-1)
    floor = torch.clamp(_NEGLIGIBLE * largest.max(), min=1e-300)
    return torch.maximum(largest, floor)


def _measure(
    functions: Callable[[Tensor], Tensor], tried: Interpolant, scales: Tensor, dtype: torch.dtype
) -> tuple[float, float]:
    """Errors of Clenshaw in float64 and of Horner in ``dtype``, relative to the scales."""
    x = torch.cos(torch.linspace(0.0, math.pi, 4 * tried.degree + 37, dtype=torch.float64))
    low = x.to(dtype)
    with torch.no_grad():
        truth = functions(_angle_of(x, tried.strength))
        series = torch.stack([clenshaw(c, x) for c in tried.coefficients.detach()])
        by_series = float(((series - truth).abs().amax(-1) / scales).max())
        if tried.degree > _LONGEST_HORNER:
            return by_series, math.inf
        powers = (tried.coefficients.detach() @ _to_powers(tried.degree).T).abs().amax(-1)
        if float((powers / scales).max()) > _CANCELS:
            return by_series, math.inf
        horner = torch.stack(
            [tried.evaluate_(low, k, torch.empty_like(low)).double() for k in range(len(truth))]
        )
        at_low = functions(_angle_of(low.double(), tried.strength)) if dtype != torch.float64 else truth
    return by_series, float(((horner - at_low).abs().amax(-1) / scales).max())


def _cost(degree: int, k: int) -> int:
    """Passes over the entries."""
    return degree + (_MAP if _STRENGTHS[k] < math.inf else 0)


def fit(
    functions: Callable[[Tensor], Tensor], *, tolerance: float, dtype: torch.dtype = torch.float64
) -> Interpolant:
    """Polynomials for several functions of θ ∈ [0, π], of the lowest degree that reaches the tolerance.

    The functions are evaluated once, at the nodes of the largest degree for every strength of the map; the decay of
    the coefficients then says which strength needs the lowest degree.

    Parameters
    ----------
    functions
        (k,) angles → (functions, k) values; may carry gradients to hyperparameters.
    tolerance
        Largest error allowed, relative to each function's largest value; measured between the nodes, in the
        arithmetic the polynomial will be evaluated in.
    dtype
        That arithmetic.

    Raises
    ------
    PrecisionError
        If degree 256 does not reach it.
    InvalidValueError
        If a function is not finite.
    """
    x, transform = _nodes(_LARGEST_DEGREE + 1), to_coefficients(_LARGEST_DEGREE + 1)
    with torch.no_grad():
        theta = torch.stack([_angle_of(x, strength) for strength in _STRENGTHS])
        # The ends too: a peak at 0 may be narrower than any spacing of nodes, and then nothing else shows it.
        ends = torch.tensor([0.0, math.pi], dtype=torch.float64)
        sampled = functions(torch.cat([theta.reshape(-1), ends]))
    if not bool(sampled.isfinite().all()):
        raise InvalidValueError(
            "The kernel above the first norm is not finite in float64: its variances grow beyond all bounds with "
            "depth. Use fewer layers, smaller variances or a norm at every layer."
        )
    values, scales = sampled[:, :-2].unflatten(-1, theta.shape), _scales(sampled)
    series = values @ transform.T
    # What the coefficients beyond a degree amount to; rounding noise in them adds as squares do.
    size = (series / scales[:, None, None]).abs().amax(0)
    beyond = (size * size).flip(-1).cumsum(-1).flip(-1).sqrt()
    needed = (beyond > 0.25 * tolerance).sum(-1).tolist()
    # The cheapest first, from a little below what the tail of the series asks for: every degree is a pass over the
    # entries, and a map of the angle costs as much as _MAP of them.
    order = [(degree, k) for k, degree in enumerate(needed) if degree <= _LARGEST_DEGREE - 8]
    order = sorted(order, key=lambda tried: _cost(*tried))[:4]
    reached = math.inf
    spare: Interpolant | None = None
    tries = [(max(degree + more, 2), k, more) for degree, k in order for more in (-2, -1, 0, 3, 8)]
    for degree, k, more in sorted(tries, key=lambda tried: _cost(*tried[:2])):
        coefficients = series[:, k, :degree].clone()
        tried = Interpolant(_STRENGTHS[k], coefficients, math.inf, True)
        by_series, horner = _measure(functions, tried, scales, dtype)
        reached = min(reached, by_series, horner)
        if horner <= (tolerance if more >= 0 else 0.5 * tolerance):
            return Interpolant(_STRENGTHS[k], coefficients, horner, True)
        if more >= 0 and by_series <= tolerance and spare is None:
            spare = Interpolant(_STRENGTHS[k], coefficients, by_series, False)
    if spare is not None:
        return spare
    if not order:
        reached = float(beyond[:, -8].min())
    raise PrecisionError(
        f"The network above its first norm is not resolved to {tolerance:g} by a polynomial of degree "
        f"{_LARGEST_DEGREE} in the angle (reached {reached:.1e}). Ask for a larger tolerance, or evaluate layer by "
        "layer with compress=False."
    )


def refit(functions: Callable[[Tensor], Tensor], like: Interpolant) -> Interpolant:
    """The same polynomial spaces, with coefficients that carry gradients."""
    values = functions(_angle_of(_nodes(like.degree + 1), like.strength))
    return Interpolant(like.strength, values @ to_coefficients(like.degree + 1).T, like.error, like.powers)
