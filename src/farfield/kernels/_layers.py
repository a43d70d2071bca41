"""What each layer does to a kernel state at infinite width."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from farfield.errors import InvalidValueError, PrecisionError
from farfield.gaussian import Activation, AngularDual, activation, angular_dual, moments
from farfield.gaussian._registry import ActivationLike
from farfield.kernels._state import (
    NOTHING_TO_DIVIDE_BY,
    KernelState,
    add_independent,
    half_chord_angle,
    require_gaussian,
)

__all__ = ["Activate", "Dense", "Identity", "Layer", "LayerNorm", "RMSNorm", "Residual"]

Variance: TypeAlias = float | Tensor


def number(value: Variance) -> float:
    """A variance as a plain number."""
    return float(value.detach()) if isinstance(value, Tensor) else float(value)


def _check_variance(name: str, value: Variance) -> None:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise InvalidValueError(f"{name} is one number, got a tensor of shape {tuple(value.shape)}.")
    plain, positive = number(value), name == "weight_var"
    if not (math.isfinite(plain) and (plain > 0 or (plain == 0 and not positive))):
        raise InvalidValueError(f"A {name} is finite and {'> 0' if positive else '>= 0'}, got {plain!r}.")


class Layer:
    """A map of kernel states; final subclasses are frozen values."""

    def __call__(self, state: KernelState) -> KernelState:
        """The state above this layer."""
        raise NotImplementedError

    @property
    def cuts(self) -> bool:
        """Whether every input leaves with the same mean square: from there on one angle says everything."""
        return False


@dataclass(frozen=True)
class Dense(Layer):
    r"""z = √(σ_w²/fan_in) W ξ + σ_b b, entries of W and b standard normal: the NTK parametrization.

    .. math:: K^+ = \sigma_w^2 K + \sigma_b^2, \qquad \Theta^+ = K^+ + \sigma_w^2\,\Theta

    where K and Θ are those of the features ξ below. Units are independent Gaussians of mean 0 above.

    Parameters
    ----------
    weight_var, bias_var
        σ_w² > 0 and σ_b² ≥ 0; numbers, or 0-dimensional tensors to differentiate by.

    References
    ----------
    [P1] App. A.
    """

    weight_var: Variance = 1.0
    bias_var: Variance = 0.0

    def __post_init__(self) -> None:
        _check_variance("weight_var", self.weight_var)
        _check_variance("bias_var", self.bias_var)
        if isinstance(self.bias_var, Tensor) and self.bias_var.requires_grad and number(self.bias_var) == 0:
            raise InvalidValueError(
                "A bias_var to differentiate by is > 0: angles move like its square root. Start from a small one."
            )

    def __call__(self, state: KernelState) -> KernelState:
        """The state above this layer."""
        w, b = self.weight_var, self.bias_var
        a1, a2 = w * state.q1, w * state.q2
        bias = torch.as_tensor(b, dtype=a1.dtype, device=a1.device)
        # Infinitely far away the bias of the first input is nothing beside its features.
        bias1 = torch.zeros_like(bias) if state.far else bias
        theta, q1, q2 = add_independent(state.theta, a1, a2, 0.0, bias1, bias)
        if state.common:
            q2 = q1
        ntk = None
        if state.ntk is not None:
            ntk = torch.sqrt(q1 * q2) * torch.cos(theta) + w * state.ntk
        span = None
        if state.span is not None:
            scale, shift = number(w), number(b)
            span = (scale * state.span[0] + shift, scale * state.span[1] + shift)
        return KernelState(theta, q1, q2, ntk, gaussian=True, far=state.far, span=span)


@functools.lru_cache(maxsize=1024)
def _second_moment(sigma: Activation) -> float:
    return moments(sigma).second


@dataclass(frozen=True, init=False)
class Activate(Layer):
    r"""ξ = √c φ(z) with c = 1/E φ(u)², u ~ N(0, 1), or with another factor √c.

    .. math:: K^+ = c\,\mathbb E\,\varphi(z)\varphi(z'), \qquad
              \Theta^+ = c\,\mathbb E\,\varphi'(z)\varphi'(z')\;\Theta

    Exact to rounding for positively homogeneous φ of degree 1; for any other activation from tables with a relative
    error below 1e-13 (1e-12 for variances of several thousand), built on first use. Before the
    first norm these cover variances from about 1e-6 to 1e4 for an activation that is not homogeneous; beyond that
    they raise PrecisionError.

    Parameters
    ----------
    sigma
        Name, Activation, callable or elementwise module.
    scale
        √c; the one that makes E ξ² = 1 at unit variance if None ([P1]), 1.0 for the plain activation.

    References
    ----------
    [P1] App. A; arc-cosine kernels for x₊ⁿ.
    """

    sigma: Activation
    scale: float | None

    def __init__(self, sigma: ActivationLike, scale: float | None = None) -> None:
        if scale is not None and not (math.isfinite(scale) and scale != 0):
            raise InvalidValueError(f"An activation's scale is finite and not 0, got {scale!r}.")
        object.__setattr__(self, "sigma", activation(sigma))
        object.__setattr__(self, "scale", scale)

    @property
    def factor(self) -> float:
        """The constant c."""
        return 1.0 / _second_moment(self.sigma) if self.scale is None else self.scale**2

    def dual(self, state: KernelState) -> AngularDual:
        """The activation's expectations over the range of variances found in the state."""
        if self.sigma.homogeneity is not None:
            return _table(self.sigma, 1.0, 1.0)
        if state.common:
            q = state.q1
            if q.requires_grad and torch.is_grad_enabled():
                return _resolved(self.sigma, q)
            return _table(self.sigma, float(q), float(q))
        return _table(self.sigma, *_rounded_range(*state.variances()))

    def __call__(self, state: KernelState) -> KernelState:
        """The state above this layer."""
        require_gaussian(state, f"The activation {self.sigma.name}")
        if state.far and self.sigma.homogeneity != 1:
            raise InvalidValueError(
                f"The slope at infinity is known for activations with φ(ax) = aφ(x), a > 0; {self.sigma.name} "
                f"is not one."
            )
        if self.sigma.jumps and state.ntk is not None:
            raise InvalidValueError(
                f"{self.sigma.name} jumps, so its tangent kernel is infinite on the diagonal. Only the nngp exists."
            )
        dual, c = self.dual(state), self.factor
        root = math.copysign(math.sqrt(c), 1.0 if self.scale is None else self.scale)
        theta = half_chord_angle(*dual.pair(state.theta, state.q1, state.q2))
        q1 = c * dual.second(state.q1)
        q2 = q1 if state.common else c * dual.second(state.q2)
        mean1 = root * dual.mean(state.q1)
        mean2 = mean1 if state.common else root * dual.mean(state.q2)
        ntk = None
        if state.ntk is not None:
            ntk = c * dual.slope(state.theta, state.q1, state.q2) * state.ntk
        span = None
        if state.span is not None and not state.common:
            span = _image_span(dual, c, state.span, state.q1)
        return KernelState(theta, q1, q2, ntk, mean1, mean2, far=state.far, span=span)


def _resolved(sigma: Activation, variances: tuple[float, float] | Tensor) -> AngularDual:
    """To 1e-13, or at variances where rounding alone is more to 1e-12."""
    try:
        return angular_dual(sigma, variances=variances)
    except PrecisionError:
        return angular_dual(sigma, variances=variances, tolerance=1e-12)


@functools.lru_cache(maxsize=256)
def _table(sigma: Activation, low: float, high: float) -> AngularDual:
    return _resolved(sigma, (low, high))


def _rounded_range(low: float, high: float) -> tuple[float, float]:
    """Outward to a power of 2, so that data sets of like spread share a table."""
    return 2.0 ** math.floor(math.log2(low)), 2.0 ** math.ceil(math.log2(high))


def _image_span(dual: AngularDual, c: float, span: tuple[float, float], like: Tensor) -> tuple[float, float]:
    """Range of c·E φ² over a range of variances: its ends for a power of x, else sampled, with a margin."""
    if dual.sigma.homogeneity is not None:
        low, high = (c * dual.second(q) for q in span)
        return float(low), float(high)
    grid = torch.logspace(
        math.log10(span[0]), math.log10(span[1]), 129, dtype=torch.float64, device=like.device
    )
    with torch.no_grad():
        values = c * dual.second(grid)
    return float(values.min()) * 0.99, float(values.max()) * 1.01


def _divide(state: KernelState, v1: Tensor, v2: Tensor, theta: Tensor, gaussian: bool) -> KernelState:
    if bool((v1.detach() == 0).any()) or bool((v2.detach() == 0).any()):
        raise InvalidValueError(NOTHING_TO_DIVIDE_BY)
    one = torch.ones((), dtype=state.theta.dtype, device=state.theta.device)
    ntk = None if state.ntk is None else state.ntk / (torch.sqrt(v1) * torch.sqrt(v2))
    return KernelState(theta, one, one, ntk, gaussian=gaussian, far=False, span=(1.0, 1.0))


@dataclass(frozen=True)
class LayerNorm(Layer):
    r"""LayerNorm over units, ε = 0, no affine: center, then divide by the standard deviation.

    After a Dense layer (pre-activation, [P1]) the mean over units is 0 and K → K/√(q q′), Θ → Θ/√(q q′). After an
    activation (post-activation, [P2]'s order), with m = E ξ and v = q − m²,

    .. math:: K^+ = \frac{K - m m'}{\sqrt{v v'}}, \qquad \Theta^+ = \frac{\Theta}{\sqrt{v v'}}

    Either way every input has mean square 1 above it, and the rest of the network is a function of one angle.
    """

    def __call__(self, state: KernelState) -> KernelState:
        """The state above this layer."""
        if state.gaussian:
            return _divide(state, state.q1, state.q2, state.theta, True)
        m1, m2 = (torch.as_tensor(m, dtype=state.theta.dtype) for m in (state.mean1, state.mean2))
        v1, v2 = state.q1 - m1 * m1, state.q2 - m2 * m2
        pairs = ((v1.detach(), state.q1.detach()), (v2.detach(), state.q2.detach()))
        if any(bool((v <= 1e-14 * q).logical_and(q > 0).any()) for v, q in pairs):
            raise InvalidValueError(
                "LayerNorm divides by the spread of the features over units, and there is none: the activation "
                "below is constant at this variance."
            )
        # With w = √(v₁v₂) and R = √(q₁q₂), w ∓ (K − m₁m₂) = (R ∓ K) − (R − w ∓ m₁m₂), and R − w ∓ m₁m₂ without
        # cancellation: both limits keep their digits, the opposite one too where the mean is 0.
        big = torch.sqrt(state.q1) * torch.sqrt(state.q2)
        small = torch.sqrt(v1) * torch.sqrt(v2)
        product = m1 * m2
        lost = (torch.sqrt(v1) * m2 - torch.sqrt(v2) * m1) ** 2 / (big + small + product)
        gained = product + (m1 * m1 * v2 + m2 * m2 * v1 + product * product) / (big + small)
        deficit = 2.0 * big * torch.sin(state.theta / 2) ** 2 - lost
        surplus = 2.0 * big * torch.cos(state.theta / 2) ** 2 - gained
        theta = half_chord_angle(deficit, surplus)
        return _divide(state, v1, v2, theta, False)

    @property
    def cuts(self) -> bool:
        """Every input leaves with mean square 1."""
        return True


@dataclass(frozen=True)
class RMSNorm(Layer):
    """Division by the root mean square over units, ε = 0, no affine: K → K/√(q q′), Θ → Θ/√(q q′).

    After a Dense layer the same as :class:`LayerNorm`; after an activation the mean stays.
    """

    def __call__(self, state: KernelState) -> KernelState:
        """The state above this layer."""
        out = _divide(state, state.q1, state.q2, state.theta, state.gaussian)
        return out.replace(mean1=state.mean1 / torch.sqrt(state.q1), mean2=state.mean2 / torch.sqrt(state.q2))

    @property
    def cuts(self) -> bool:
        """Every input leaves with mean square 1."""
        return True


@dataclass(frozen=True)
class Identity(Layer):
    """Nothing: a flatten, or dropout at evaluation."""

    def __call__(self, state: KernelState) -> KernelState:
        """The state itself."""
        return state


@dataclass(frozen=True)
class Residual(Layer):
    r"""ξ + branch(ξ): K⁺ = K + K_branch, Θ⁺ = Θ + Θ_branch.

    The cross terms vanish because the branch ends in a Dense layer of its own, whose weights have mean 0:
    anything else is refused.

    Parameters
    ----------
    branch
        Layers of the branch, a Dense layer among them with nothing but norms above it.
    """

    branch: tuple[Layer, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "branch", tuple(self.branch))
        above = [k for k, layer in enumerate(self.branch) if isinstance(layer, Dense)]
        tail = self.branch[above[-1] + 1 :] if above else ()
        if not above or any(not isinstance(layer, LayerNorm | RMSNorm | Identity) for layer in tail):
            raise InvalidValueError(
                "A residual branch ends in a Dense layer (norms may follow): without its mean-zero weights the "
                "branch is correlated with what it is added to. Got "
                f"{', '.join(map(repr, self.branch)) or 'an empty branch'}."
            )

    def __call__(self, state: KernelState) -> KernelState:
        """The state above this layer."""
        if state.far:
            raise InvalidValueError("The slope at infinity is not implemented for residual networks.")
        side = state
        for layer in self.branch:
            side = layer(side)
        theta, q1, q2 = add_independent(state.theta, state.q1, state.q2, side.theta, side.q1, side.q2)
        if state.common and side.common:
            q2 = q1
        ntk = None if state.ntk is None or side.ntk is None else state.ntk + side.ntk
        span = None
        if state.span is not None and side.span is not None:
            span = (state.span[0] + side.span[0], state.span[1] + side.span[1])
        return KernelState(
            theta, q1, q2, ntk, state.mean1, state.mean2, state.gaussian and side.gaussian, span=span
        )
