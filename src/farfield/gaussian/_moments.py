"""Mean, linear part and variance of an activation under a Gaussian; isometry strength."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.errors import InvalidValueError, PrecisionError
from farfield.gaussian._activation import Activation
from farfield.gaussian._quadrature import centered_square, gaussian_expectation
from farfield.gaussian._registry import ActivationLike, activation

__all__ = ["Moments", "isometry_strength", "mean_field_constants", "moments"]

_STRENGTH_TOLERANCE = 1e-8


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
    linear_error, variance_error
        Estimates of the absolute errors of ``linear`` and ``variance``.
    """

    mean: float
    linear: float
    variance: float
    second: float
    error: float
    linear_error: float
    variance_error: float

    @property
    def scale(self) -> float:
        """Standard deviation of σ(√q z): what mean-field projection divides by."""
        return math.sqrt(self.variance)

    @property
    def constant(self) -> bool:
        """Whether σ(√q z) is constant as far as the precision of the integrals can tell."""
        return self.scale <= 16 * torch.finfo(torch.float64).eps * abs(self.mean)


@functools.lru_cache(maxsize=4096)
@torch.no_grad()
def _moments(sigma: Activation, variance: float) -> Moments:
    if not (math.isfinite(variance) and variance >= 0):
        raise InvalidValueError(f"A variance is a finite number >= 0, got {variance!r}.")
    root = math.sqrt(variance)

    def first_pass(x: Tensor) -> Tensor:
        y = sigma(x)
        return torch.stack([y, x / root * y, y * y]) if root else torch.stack([y, 0 * y, y * y])

    first = gaussian_expectation(first_pass, variance=variance, kinks=sigma.kinks)
    mean, linear, second = (float(v) for v in first.value)
    # E(σ − c₀)², not Eσ² − c₀²: the latter loses half the digits when the mean dominates.
    centered = centered_square(sigma, mean, variance=variance, kinks=sigma.kinks)
    return Moments(
        mean=mean,
        linear=linear,
        variance=float(centered.value),
        second=second,
        error=max(float(first.error.max()), float(centered.error)),
        linear_error=float(first.error[1]),
        variance_error=float(centered.error),
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
        q ≥ 0. Zero means the value at the origin.

    Examples
    --------
    >>> m = moments("relu")
    >>> round(m.mean, 12), m.linear, m.second
    (0.398942280401, 0.5, 0.5)
    """
    return _moments(activation(sigma), float(variance))


def mean_field_constants(sigma: ActivationLike, *, variance: float = 1.0) -> tuple[float, float]:
    """Offset c₀ and scale √Var σ(x).

    At infinite width centering subtracts the one and projection divides by the other.

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
    PrecisionError
        If the two integrals do not fix β to 1e-8 (a gain so small that σ hardly moves, or so large that an
        oscillating σ is not resolved).

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
    gain = float(gain)
    # σ(−|α|x) has the same law as σ(|α|x), and c₁ enters squared: only α² matters.
    squared = gain * gain
    if not (math.isfinite(squared) and squared > 0):
        raise InvalidValueError(f"A gain is finite and non-zero, and so is its square, got {gain!r}.")
    sigma = activation(sigma)
    m = _moments(sigma, squared if sigma.homogeneity is None else 1.0)
    if m.constant:
        raise InvalidValueError(
            f"{sigma.name} is constant under N(0, {gain:g}²) (variance {m.variance:.3g}), so its isometry "
            "strength is undefined. Use another gain or a non-constant activation."
        )
    ratio = m.linear**2 / m.variance
    error = (2 * abs(m.linear) + m.linear_error) * m.linear_error / m.variance
    error += min(ratio, 1.0) * m.variance_error / m.variance
    if error > _STRENGTH_TOLERANCE:
        raise PrecisionError(
            f"The isometry strength of {sigma.name} at gain {gain:g} is only known to ±{error:.1e}: its variance "
            f"{m.variance:.3g} is near the rounding of its mean {m.mean:.3g}, or it turns too often under so wide "
            "a Gaussian. Use a gain nearer to 1."
        )
    return 2.0 - min(ratio, 1.0)
