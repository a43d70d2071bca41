"""A last layer that keeps any value inside an interval."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError

__all__ = ["RangeHead"]


class RangeHead(nn.Module):
    r"""x ↦ c + δ·tanh((x − c)/δ) with c = clip(x, low + δ, high − δ): into [low, high] for certain, C², increasing.

    On [low + δ, high − δ] it is the identity, exactly; beyond, δ·tanh bends what is left over so that the slope goes
    from 1 to 0 without a kink. At the end of a network it proves the range of the output by construction, for every
    input: in real arithmetic the image is the open interval, in floating point the closed one (limits rounded to the
    dtype), infinite inputs included. A value far outside has next to no gradient, so the interval should hold the
    targets with room to spare.

    Parameters
    ----------
    low, high
        The interval, low < high: numbers, or tensors that broadcast against a row (then they are buffers).
    knee
        δ as a share of high − low, in [0, ½]: where the bend begins, counted from either end. 0 is a plain clamp,
        which also sends NaN to the middle; with a bend NaN stays NaN, so that a fault in training is seen.

    Examples
    --------
    >>> head = RangeHead(-1.0, 3.0)
    >>> head(torch.tensor([-1e9, 0.5, 2.5, 1e9]))
    tensor([-1.0000,  0.5000,  2.5000,  3.0000])
    """

    def __init__(self, low: float | Tensor, high: float | Tensor, *, knee: float = 0.1) -> None:
        super().__init__()
        ends = tuple(
            e if isinstance(e, Tensor) else torch.tensor(e, dtype=torch.float64) for e in (low, high)
        )
        if not bool((torch.isfinite(ends[0]) & torch.isfinite(ends[1]) & (ends[0] < ends[1])).all()):
            raise InvalidValueError(f"A range is [low, high] with finite low < high, got [{low}, {high}].")
        if not 0.0 <= knee <= 0.5:
            raise InvalidValueError(
                f"The knee is a share of the range between 0 and ½ (at ½ only the middle is kept), got {knee!r}."
            )
        self.knee = float(knee)
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            self.register_buffer("low", ends[0].detach().clone())
            self.register_buffer("high", ends[1].detach().clone())
        else:
            self.low, self.high = float(low), float(high)

    low: Any
    high: Any

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        low, high = self.low, self.high
        if isinstance(low, Tensor):
            low, high = low.to(x.dtype), high.to(x.dtype)
        if self.knee == 0.0:
            return torch.where(torch.isnan(x), (low + high) / 2, x).clamp(low, high)
        delta = self.knee * (high - low)
        inner = high - delta
        kept = x.clamp(
            low + delta,
            torch.maximum(inner, low + delta) if isinstance(low, Tensor) else max(inner, low + delta),
        )
        bent: Tensor = kept + delta * torch.tanh((x - kept) / delta)
        return bent.clamp(low, high)  # a sum of rounded parts may end one unit outside

    def extra_repr(self) -> str:
        """What print shows."""
        ends = (
            f"{self.low:g}, {self.high:g}"
            if isinstance(self.low, float)
            else f"outputs={tuple(self.low.shape)}"
        )
        return f"{ends}, knee={self.knee:g}"
