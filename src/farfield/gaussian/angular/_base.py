"""What a layer does to a pair of Gaussians held as an angle and two variances: the interface, and its folding."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.gaussian._activation import Activation

__all__ = ["AngularDual", "like", "refuse_slope"]


class AngularDual(ABC):
    r"""E σ(x)σ(y) for x ~ N(0, q₁), y ~ N(0, q₂) with correlation cos θ, without loss near θ = 0 and θ = π.

    A correlation near 1 has lost its angle: θ = 10⁻⁸ and θ = 0 have the same cosine in double precision. Here
    a pair is held as (θ, q₁, q₂), and what is computed is not the product moment but its distance from both
    of its limits, with V(q) = E σ(√q z)²:

    .. math:: \text{deficit} = \sqrt{V_1V_2} - \mathbb E\,\sigma(x)\sigma(y) \ge 0, \qquad
              \text{surplus} = \sqrt{V_1V_2} + \mathbb E\,\sigma(x)\sigma(y) \ge 0,

    so that the angle of the pair after the layer, θ′ = 2·atan2(√deficit, √surplus), keeps its digits.

    Built by :func:`angular_dual`. Every method is elementwise over broadcast tensors, works in the dtype and on
    the device of ``theta`` (or ``q``), and is differentiable in all of them.

    Attributes
    ----------
    sigma
        The activation.
    error
        Largest error met between the nodes of the tables, relative to √(V₁V₂); 0 for a formula.
    """

    sigma: Activation
    error: float

    @abstractmethod
    def second(self, q: Tensor | float) -> Tensor:
        """V(q) = E σ(√q z)², elementwise."""

    @abstractmethod
    def mean(self, q: Tensor | float) -> Tensor:
        """E σ(√q z), elementwise."""

    @abstractmethod
    def pair(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> tuple[Tensor, Tensor]:
        """(deficit, surplus): both at the cost of one."""

    @abstractmethod
    def slope(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> Tensor:
        """E σ′(x)σ′(y); refused for an activation that jumps, where it is infinite at θ = 0."""

    def deficit(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> Tensor:
        """√(V(q₁)V(q₂)) − E σ(x)σ(y) ≥ 0."""
        return self.pair(theta, q1, q2)[0]

    def surplus(self, theta: Tensor, q1: Tensor | float, q2: Tensor | float) -> Tensor:
        """√(V(q₁)V(q₂)) + E σ(x)σ(y) ≥ 0."""
        return self.pair(theta, q1, q2)[1]


def like(q: Tensor | float, theta: Tensor) -> Tensor:
    """A variance in the dtype and on the device of the angle; a gradient passes."""
    return (
        q.to(theta) if isinstance(q, Tensor) else torch.as_tensor(q, dtype=theta.dtype, device=theta.device)
    )


def refuse_slope(sigma: Activation) -> None:
    """An error for an activation that jumps."""
    if sigma.jumps:
        raise InvalidValueError(
            f"{sigma.name} jumps (at {', '.join(f'{at:g}' for at, _ in sigma.jumps)}), so E σ′(x)σ′(y) is infinite "
            "on the diagonal and a network of infinite width has no finite NTK. Use its NNGP kernel, or a "
            "continuous activation."
        )
