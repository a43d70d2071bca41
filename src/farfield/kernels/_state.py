"""The one value that flows through a network of infinite width."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farfield.errors import InvalidValueError

__all__ = ["NOTHING_TO_DIVIDE_BY", "KernelState", "add_independent", "half_chord_angle", "root"]


NOTHING_TO_DIVIDE_BY = (
    "A norm with ε = 0 has nothing to divide by: without a bias an input of zeros gives features of zeros. Give the "
    "Dense layers below it a bias_var > 0, or leave such inputs out."
)


class _Root(torch.autograd.Function):
    """√a with derivative 0 at 0: a half-chord of zero belongs to two equal points, where the kernel is even."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        value = torch.sqrt(a.clamp(min=0))
        ctx.save_for_backward(value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (value,) = ctx.saved_tensors
        return torch.where(value > 0, grad / (2.0 * torch.where(value > 0, value, 1.0)), 0.0)


def root(a: Tensor) -> Tensor:
    """√max(a, 0), with derivative 0 where a ≤ 0."""
    if not (a.requires_grad and torch.is_grad_enabled()):
        return torch.sqrt(a.clamp(min=0))
    value: Tensor = _Root.apply(a)  # type: ignore[no-untyped-call]
    return value


def half_chord_angle(deficit: Tensor, surplus: Tensor) -> Tensor:
    """θ = 2 atan2(√(s − k), √(s + k)): the angle with cos θ = k/s, without the cancellation of arccos."""
    return 2.0 * torch.atan2(root(deficit), root(surplus))


@dataclass(frozen=True)
class KernelState:
    r"""Covariance and tangent kernel of one layer's features, for every pair of a first and a second input.

    The correlation is kept as an angle, because correlations near ±1 lose their digits and angles near 0 and π
    do not:

    .. math:: K(x, x') = \sqrt{q(x)\,q(x')}\,\cos\theta(x, x')

    All tensors broadcast against ``theta``; for a matrix of n × m pairs they have shapes (n, m), (n, 1) and (1,
    m), for n separate pairs (n,) each.

    Parameters
    ----------
    theta
        Angle θ ∈ [0, π] between the features of the two inputs, uncentered.
    q1, q2
        Mean square of the features, averaged over units, of the first and the second input.
    ntk
        The tangent kernel Θ of everything below, without the parameters of a layer above; None to leave it out.
    mean1, mean2
        Mean of the features over units: 0 after a Dense layer.
    gaussian
        Whether units are independent Gaussians of mean 0: an activation may follow only then.
    far
        Whether the first inputs stand for λu with λ → ∞; ``q1`` is then q/λ² and ``ntk`` is Θ/λ.
    span
        Least and largest variance over *all* inputs the kernel is evaluated on, of which this state may hold a
        part: the range a table must cover. None: as found in ``q1`` and ``q2``.

    References
    ----------
    [P1] App. A for the recursion; the angles are ours.
    """

    theta: Tensor
    q1: Tensor
    q2: Tensor
    ntk: Tensor | None = None
    mean1: Tensor | float = 0.0
    mean2: Tensor | float = 0.0
    gaussian: bool = False
    far: bool = False
    span: tuple[float, float] | None = None

    @property
    def nngp(self) -> Tensor:
        """K = √(q₁q₂) cos θ."""
        return torch.sqrt(self.q1 * self.q2) * torch.cos(self.theta)

    @property
    def common(self) -> bool:
        """Whether one variance holds for every input, as it does after a norm."""
        return self.q1 is self.q2 and self.q1.dim() == 0

    def variances(self) -> tuple[float, float]:
        """Least and largest variance: ``span``, or as found."""
        if self.span is not None:
            return self.span
        with torch.no_grad():
            low = min(float(self.q1.min()), float(self.q2.min()))
            high = max(float(self.q1.max()), float(self.q2.max()))
        return low, high

    def replace(self, **changes: object) -> KernelState:
        """The same state with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def add_independent(
    theta_a: Tensor | float,
    a1: Tensor,
    a2: Tensor,
    theta_b: Tensor | float,
    b1: Tensor,
    b2: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Angle and mean squares of a sum of two uncorrelated families of features.

    K = K_a + K_b and q = q_a + q_b. With R = √(q₁q₂), s = √(a₁a₂), t = √(b₁b₂):

    .. math:: R \mp K = \frac{(\sqrt{a_1 b_2}-\sqrt{a_2 b_1})^2}{R+s+t}
              + \begin{cases} 2s\sin^2\frac{\theta_a}2 + 2t\sin^2\frac{\theta_b}2\\
              2s\cos^2\frac{\theta_a}2 + 2t\cos^2\frac{\theta_b}2\end{cases}

    (Lagrange's identity for the first term; every term is ≥ 0, so nothing cancels.)
    """
    theta_a, theta_b = torch.as_tensor(theta_a), torch.as_tensor(theta_b)
    q1, q2 = a1 + b1, a2 + b2
    s, t = root(a1) * root(a2), root(b1) * root(b2)
    total = root(q1) * root(q2)
    cross = (root(a1) * root(b2) - root(a2) * root(b1)) ** 2
    excess = cross / torch.where(total > 0, total + s + t, 1.0)
    deficit = excess + 2.0 * s * torch.sin(theta_a / 2) ** 2 + 2.0 * t * torch.sin(theta_b / 2) ** 2
    surplus = excess + 2.0 * s * torch.cos(theta_a / 2) ** 2 + 2.0 * t * torch.cos(theta_b / 2) ** 2
    return half_chord_angle(deficit, surplus), q1, q2


def require_gaussian(state: KernelState, layer: str) -> None:
    """Refuse an activation on anything but Gaussian pre-activations."""
    if not state.gaussian:
        raise InvalidValueError(
            f"{layer} acts on Gaussian pre-activations, and these features are not: an input, another activation's "
            "output, or a sum with one. Put a Dense layer before it."
        )
