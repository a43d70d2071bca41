"""A last layer that keeps any value inside an interval."""

from __future__ import annotations

import math

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
        The interval, low < high.
    knee
        δ as a share of high − low, in (0, ½]: where the bend begins, counted from either end.

    Examples
    --------
    >>> head = RangeHead(-1.0, 3.0)
    >>> head(torch.tensor([-1e9, 0.5, 2.5, 1e9]))
    tensor([-1.0000,  0.5000,  2.5000,  3.0000])
    """

    def __init__(self, low: float, high: float, *, knee: float = 0.1) -> None:
        super().__init__()
        if not -math.inf < low < high < math.inf:
            raise InvalidValueError(f"A range is [low, high] with finite low < high, got [{low}, {high}].")
        if not 0.0 < knee <= 0.5:
            raise InvalidValueError(
                f"The knee is a share of the range between 0 and ½ (at ½ only the middle is kept), got {knee!r}."
            )
        self.low, self.high, self.knee = float(low), float(high), float(knee)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        delta = self.knee * (self.high - self.low)
        kept = x.clamp(self.low + delta, max(self.high - delta, self.low + delta))
        bent = kept + delta * torch.tanh((x - kept) / delta)
        return bent.clamp(self.low, self.high)  # a sum of rounded parts may end one unit outside

    def extra_repr(self) -> str:
        """What print shows."""
        return f"{self.low:g}, {self.high:g}, knee={self.knee:g}"
