"""A vector's size kept at what was seen: the direction stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError

__all__ = ["NormCap"]


class NormCap(nn.Module):
    r"""z ↦ c + (z − c)·min(1, R/‖w ⊙ (z − c)‖₂): into an ellipsoid around c, the direction from c unchanged.

    Inside the ellipsoid the result is z itself, selected and not multiplied, so that it is the same to the last bit.
    Outside, the direction is computed from numbers of size 1: no overflow up to the largest float. An infinite entry
    counts as the largest finite one, NaN as the center.

    Parameters
    ----------
    radius
        R > 0.
    center
        c, a number or a tensor that broadcasts against the last axes; 0 by default.
    weight
        w > 0, likewise; 1 by default.
    axes
        The axes the norm is taken over.
    soft
        Let the size run into 1.1·R by R·(1 + 0.1·tanh((r − 1)/0.1)), r = ‖·‖/R, instead of stopping at R: once
        differentiable.

    Examples
    --------
    >>> cap = NormCap(5.0)
    >>> cap(torch.tensor([[3.0, 4.0], [30.0, 40.0], [3e38, 3e38]]))
    tensor([[3.0000, 4.0000],
            [3.0000, 4.0000],
            [3.5355, 3.5355]])
    """

    radius: Tensor
    center: Tensor
    weight: Tensor

    def __init__(
        self,
        radius: float,
        *,
        center: Any = 0.0,
        weight: Any = 1.0,
        axes: Sequence[int] = (-1,),
        soft: bool = False,
    ) -> None:
        super().__init__()
        dtype = center.dtype if isinstance(center, Tensor) else torch.get_default_dtype()
        middle = torch.as_tensor(center, dtype=dtype).detach().clone()
        scale = torch.as_tensor(weight, dtype=dtype).detach().clone()
        if not float(radius) > 0 or not bool((torch.isfinite(scale) & (scale > 0)).all()):
            raise InvalidValueError(f"Radius and weights are positive numbers, got a radius of {radius!r}.")
        self.register_buffer("radius", torch.as_tensor(float(radius), dtype=dtype))
        self.register_buffer("center", middle)
        self.register_buffer("weight", scale)
        self.axes, self.soft = tuple(int(a) for a in axes), bool(soft)

    def forward(self, z: Tensor) -> Tensor:
        """Any leading axes."""
        center, weight, radius = (t.to(z.dtype) for t in (self.center, self.weight, self.radius))
        z = torch.where(torch.isnan(z), center, z)
        unit, size = self._polar((z - center) * weight)
        if not self.soft:
            return torch.where(size <= radius, z, unit * radius / weight + center)
        target = radius * (1.0 + 0.1 * torch.tanh((size / radius - 1.0) / 0.1))
        # The last clamp changes nothing but makes the bound plain to see.
        reach = 1.1 * radius / weight * (1.0 + 1e-6)
        return torch.where(size <= radius, z, unit * target / weight + center).clamp(
            center - reach, center + reach
        )

    def _polar(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """(v/‖v‖, ‖v‖) without overflow; what is infinite counts as the largest float."""
        real = torch.finfo(v.dtype)
        v = torch.where(torch.isinf(v), v.clamp(-real.max, real.max), v)
        scale = v.abs().amax(self.axes, keepdim=True).clamp_min(real.tiny)
        share = v / scale
        length = torch.linalg.vector_norm(share, 2, self.axes, keepdim=True).clamp_min(real.tiny)
        return share / length, length * scale

    def excess(self, z: Tensor) -> Tensor:
        """‖w ⊙ (z − c)‖ / R, one number for each place that the axes leave; at most 1 inside, ∞ for NaN."""
        center, weight = self.center.to(z.dtype), self.weight.to(z.dtype)
        missing = torch.isnan(z)
        _, size = self._polar((torch.where(missing, center, z) - center) * weight)
        found = (size / self.radius.to(z.dtype)).squeeze(self.axes)
        return torch.where(missing.any(self.axes), float("inf"), found)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"radius={float(self.radius):g}, axes={self.axes}" + (", soft" * self.soft)
