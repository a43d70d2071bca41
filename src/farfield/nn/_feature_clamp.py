"""Features kept near where they were seen: the identity there, flat beyond, back to the center when absurd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError

__all__ = ["FeatureClamp"]


class FeatureClamp(nn.Module):
    r"""x ↦ x inside [low, high]; flat up to ``flat`` times as far from the center; the center from ``end`` times on.

    With a = center − low (and likewise above), on the lower side::

        x                      for x ≥ low
        low                    for center − flat·a ≤ x < low
        a straight line        from low at center − flat·a to center at center − end·a
        center                 below that, and for −∞

    Continuous and piecewise linear (Hampel's function of robust statistics, with a flat part). A sensor that reads
    nonsense then counts as missing, and the other features keep their say. NaN gives the center.
    Inside [low, high] the result is the input to the last bit.

    Parameters
    ----------
    low, high
        Limits, numbers or tensors that broadcast against a row; low ≤ center ≤ high.
    center
        Where absurd values are sent; the middle of the limits by default.
    flat, end
        Multiples of the distance from the center to a limit, 1 ≤ flat < end. ``end=inf`` is plain clamping.
    soft
        Bend instead of kinks: between the limit and ``flat`` the value runs into the limit plus a tenth of the
        distance by tanh, and the way back is a cubic; once differentiable everywhere.

    Examples
    --------
    >>> clamp = FeatureClamp(-1.0, 1.0)
    >>> clamp(torch.tensor([0.5, 1.5, 3.0, 100.0, -float("inf"), float("nan")]))
    tensor([0.5000, 1.0000, 0.5000, 0.0000, 0.0000, 0.0000])
    """

    low: Tensor
    high: Tensor
    center: Tensor

    def __init__(
        self,
        low: Any,
        high: Any,
        *,
        center: Any = None,
        flat: float = 2.0,
        end: float = 4.0,
        soft: bool = False,
    ) -> None:
        super().__init__()
        low, high = _tensor(low), _tensor(high)
        middle = (low + high) / 2 if center is None else _tensor(center)
        low, high, middle = (t.clone() for t in torch.broadcast_tensors(low, high, middle))
        ordered = (low <= middle) & (middle <= high)
        if not bool((torch.isfinite(low) & torch.isfinite(high) & ordered).all()):
            raise InvalidValueError("Limits are finite numbers with low ≤ center ≤ high for every feature.")
        if not 1.0 <= flat < end:
            raise InvalidValueError(f"flat and end must satisfy 1 ≤ flat < end; got {flat}, {end}.")
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        self.register_buffer("center", middle)
        self.flat, self.end, self.soft = float(flat), float(end), bool(soft)

    def forward(self, x: Tensor) -> Tensor:
        """Rows of features, any leading axes."""
        low, high, center = (t.to(x.dtype) for t in (self.low, self.high, self.center))
        x = torch.where(torch.isnan(x), center, x)
        kept = x.clamp(low, high)
        if self.soft:
            width = 0.1 * (high - low) + torch.finfo(x.dtype).tiny
            kept = kept + width * torch.tanh((x - kept) / width)
        if self.end == float("inf"):
            return kept
        back = self._return(x, center, high - center) + self._return(-x, -center, center - low)
        # Inside, ``back`` is 0 and the value stays to the last bit.
        return kept + back * (center - kept)

    def _return(self, x: Tensor, center: Tensor, reach: Tensor) -> Tensor:
        """0 up to the end of the flat part, 1 from where the center is reached."""
        start, length = self.way_back(center, reach)
        share = ((x - start) / length).clamp(0.0, 1.0)
        return share * share * (3.0 - 2.0 * share) if self.soft else share

    def way_back(self, center: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
        """Where the way back to the center begins and how long it is, as finite numbers of their type."""
        real = torch.finfo(reach.dtype)
        reach = reach.clamp(real.tiny, real.max)
        start, length = center + self.flat * reach, (self.end - self.flat) * reach
        return start.clamp(max=real.max), length.clamp(max=real.max)

    def excess(self, x: Tensor) -> Tensor:
        """How far outside each feature is: |x − center| over the distance from the center to that limit.

        At most 1 inside, ∞ for NaN.
        """
        low, high, center = (t.to(x.dtype) for t in (self.low, self.high, self.center))
        tiny = torch.finfo(x.dtype).tiny
        above = (x - center) / (high - center).clamp_min(tiny)
        below = (center - x) / (center - low).clamp_min(tiny)
        found = torch.maximum(above, below)
        found = torch.where((x >= low) & (x <= high), found.clamp(max=1.0), found)
        return torch.where(torch.isnan(x), torch.full_like(found, float("inf")), found)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"features={tuple(self.low.shape)}, flat={self.flat:g}, end={self.end:g}" + (
            ", soft" * self.soft
        )


def _tensor(value: Any) -> Tensor:
    return (
        value.detach()
        if isinstance(value, Tensor)
        else torch.as_tensor(value, dtype=torch.get_default_dtype())
    )
