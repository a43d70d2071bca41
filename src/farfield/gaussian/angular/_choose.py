"""The per-layer step of infinite-width kernels in the angle: which form fits an activation and its variances."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.gaussian._registry import ActivationLike, activation
from farfield.gaussian.angular._base import AngularDual
from farfield.gaussian.angular._build import table_dual
from farfield.gaussian.angular._common import common_dual
from farfield.gaussian.angular._homogeneous import homogeneous_dual

__all__ = ["angular_dual"]


def angular_dual(
    sigma: ActivationLike, *, variances: tuple[float, float] | Tensor | float, tolerance: float = 1e-13
) -> AngularDual:
    r"""The pair (deficit, surplus) of an activation as functions of an angle and two variances, ready to evaluate.

    - Positively homogeneous of degree one (ReLU, leaky ReLU, \|x\|, identity): a formula, exact to rounding, whatever
      the variances.
    - Homogeneous of another degree (powers of ReLU, step, sign): one series in the angle, whatever the variances;
      between ½ and 2 three, as the slope has a branch at θ = 0 that none could follow.
    - Anything else at one variance: one series in the angle, 10 to 80 terms; a second to build, then cached.
    - Anything smooth but for kinks at 0, over a range of variances: a table in (log q₁, log q₂, θ), evaluated by one
      product of thin matrices for each of its 40 to 90 degrees in θ; seconds to build, up to a minute over four
      decades, nothing to speak of where the dual has a formula; then cached.

    Parameters
    ----------
    sigma
        Name, :class:`Activation`, callable or elementwise module.
    variances
        One variance q₁ = q₂ = q, or the range (low, high) both lie in. A 0-dim tensor that requires a
        gradient makes everything differentiable in it (and is built anew each time).
    tolerance
        Largest error allowed, relative to √(V(q₁)V(q₂)): of the deficit over θ²/2 near θ = 0, so that θ′ has it as
        its absolute error. Checked between the nodes before returning.

    Raises
    ------
    PrecisionError
        If the tolerance is not reached; over a range of variances also for an activation with jumps or with kinks
        other than 0, whose dual is not smooth at q₁ = q₂, θ = 0.
    InvalidValueError
        For a variance that is not finite and positive.

    References
    ----------
    [P1] App. A; the recursion in the angle, after Cho and Saul's arc-cosine kernels.

    Examples
    --------
    >>> import torch
    >>> relu = angular_dual("relu", variances=1.0)
    >>> theta = torch.tensor([1e-9, 1.0], dtype=torch.float64)
    >>> deficit, surplus = relu.pair(theta, 1.0, 4.0)
    >>> 2 * torch.atan2(deficit.sqrt(), surplus.sqrt())
    tensor([1.0000e-09, 8.8128e-01], dtype=torch.float64)
    >>> angular_dual("tanh", variances=2.0).slope(torch.tensor(0.5), 2.0, 2.0)
    tensor(0.3048)
    >>> gelu = angular_dual("gelu", variances=(0.5, 2.0))
    >>> gelu.deficit(theta, torch.tensor([[0.5], [1.0]]), torch.tensor([1.0, 2.0])).shape
    torch.Size([2, 2])
    """
    sigma = activation(sigma)
    single = not isinstance(variances, tuple)
    given = torch.as_tensor(variances, dtype=torch.float64).detach()
    if given.numel() != (1 if single else 2) or not (
        0 < given.min() <= given.max() == given.reshape(-1)[-1] < math.inf
    ):
        raise InvalidValueError(
            f"Variances are one finite number > 0 or a range (low, high) of such, got {variances!r}."
        )
    low, high = float(given.min()), float(given.max())
    if sigma.homogeneity is not None:
        return homogeneous_dual(sigma, float(tolerance))
    if low == high:
        return common_dual(sigma, variances if isinstance(variances, Tensor) else low, float(tolerance))
    return table_dual(sigma, low, high, float(tolerance))
