"""Mean, linear part and variance of an activation under a Gaussian; isometry strength."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.gaussian._activation import Activation
from farfield.gaussian._quadrature import gaussian_expectation
from farfield.gaussian._registry import ActivationLike, activation

__all__ = ["Moments", "isometry_strength", "mean_field_constants", "moments"]


@dataclass(frozen=True)
class Moments:
    """The three integrals that decide what a layer does to correlations.

    Parameters
    ----------
    mean
        c₀ = E σ(√q z), the mean-field offset.
    linear
        c₁ = E z σ(√q z).
    variance
        Var σ(√q z) = Σ_{k≥1} c_k².
    second
        E σ(√q z)² = mean² + variance.
    error
        Estimate of the largest absolute error among the four.
    """

    mean: float
    linear: float
    variance: float
    second: float
    error: float

    @property
    def scale(self) -> float:
        """Standard deviation of σ(√q z): what mean-field projection divides by."""
        return math.sqrt(self.variance)

    @property
    def constant(self) -> bool:
        """Whether σ(√q z) is constant as far as the precision of the integrals can tell."""
        return self.variance <= 64 * max(self.error, torch.finfo(torch.float64).tiny)


@functools.lru_cache(maxsize=4096)
@torch.no_grad()
def _moments(sigma: Activation, variance: float) -> Moments:
    root = math.sqrt(variance)

    def first_pass(x: Tensor) -> Tensor:
        y = sigma(x)
        return torch.stack([y, x * y / root, y * y]) if root else torch.stack([y, 0 * y, y * y])

    first = gaussian_expectation(first_pass, variance=variance, kinks=sigma.kinks)
    mean, linear, second = (float(v) for v in first.value)
    # E(σ − c₀)², not Eσ² − c₀²: the latter loses half the digits when the mean dominates.
    centred = gaussian_expectation(lambda x: (sigma(x) - mean) ** 2, variance=variance, kinks=sigma.kinks)
    return Moments(
        mean=mean,
        linear=linear,
        variance=float(centred.value),
        second=second,
        error=max(float(first.error.max()), float(centred.error)),
    )


def moments(sigma: ActivationLike, *, variance: float = 1.0) -> Moments:
    r"""c₀, c₁, Var and second moment of σ(x), x ~ N(0, q).

    .. math:: c_0 = \mathbb E\,\sigma(\sqrt q z),\quad c_1 = \mathbb E\,z\,\sigma(\sqrt q z),\quad
              \sum_{k\ge1} c_k^2 = \operatorname{Var} \sigma(\sqrt q z)

    Exact to rounding by quadrature; a few milliseconds, then cached.

    Parameters
    ----------
    sigma
        Name, :class:`Activation`, callable or elementwise module.
    variance
        q > 0.

    Examples
    --------
    >>> m = moments("relu")
    >>> round(m.mean, 12), m.linear, m.second
    (0.398942280401, 0.5, 0.5)
    """
    return _moments(activation(sigma), float(variance))


def mean_field_constants(sigma: ActivationLike, *, variance: float = 1.0) -> tuple[float, float]:
    """Offset c₀ and scale √Var σ(x).

    At infinite width centring subtracts the one and projection divides by the other.

    Reference: [P2] §6.

    Examples
    --------
    >>> offset, scale = mean_field_constants("relu")
    >>> round(offset, 6), round(scale, 6)
    (0.398942, 0.583819)
    """
    m = moments(sigma, variance=variance)
    return (0.0 if abs(m.mean) <= m.error else m.mean), m.scale


def isometry_strength(sigma: ActivationLike, *, gain: float = 1.0) -> float:
    r"""β of σ(gain · x): how strongly a layer pulls correlations towards zero, from 1 (not at all) to 2.

    .. math:: \beta = 2 - \frac{c_1^2}{\sum_{k\ge1} c_k^2}
                    = 2 - \frac{(\mathbb E\,x\,\sigma(x))^2}{\operatorname{Var}\sigma(x)}

    Two scalar integrals, never a truncated series. The identity has β = 1, an even function β = 2; for a
    positively homogeneous activation the gain makes no difference.

    Parameters
    ----------
    sigma
        Name, :class:`Activation`, callable or elementwise module.
    gain
        α in σ(αx), non-zero and finite.

    Raises
    ------
    InvalidValueError
        If σ is constant under the Gaussian: β is then undefined.

    References
    ----------
    [P2] Definition of isometry strength, §5; closed forms in Table 2.

    Examples
    --------
    >>> round(isometry_strength("relu"), 10)
    1.2665288965
    >>> isometry_strength("identity")
    1.0
    """
    if not (math.isfinite(gain) and gain != 0):
        raise InvalidValueError(f"A gain is finite and non-zero, got {gain!r}.")
    sigma = activation(sigma)
    if gain < 0:
        # σ(−|α|x) has the same law as σ(|α|x), and c₁ enters squared.
        gain = -gain
    m = _moments(sigma, float(gain) ** 2)
    if m.constant:
        raise InvalidValueError(
            f"{sigma.name} is constant under N(0, {gain:g}²) (variance {m.variance:.3g}), so its isometry "
            "strength is undefined. Use another gain or a non-constant activation."
        )
    ratio = m.linear**2 / m.variance
    return 2.0 - min(ratio, 1.0)
