"""Where one input of a model was seen: each feature's range, and an ellipsoid around all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from farfield.calibration import FeatureStatistics, UpperQuantile, cap_axes
from farfield.nn import FeatureClamp, NormCap

__all__ = ["Excess", "InputLimits", "scale_of"]


@dataclass(frozen=True)
class Excess:
    """Why a row is outside: ``what`` lies at ``value``, where ``low`` to ``high`` was seen.

    ``what`` is a feature (``"0[3]"``, the fourth of the first argument), ``"size of 0"`` (no feature by itself, but
    all together are too far from the middle) or an output.
    """

    row: int
    score: float
    what: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if not self.score > 1.0:
            return f"Row {self.row} is inside (score {self.score:.3g})."
        return (
            f"Row {self.row} is outside (score {self.score:.3g}): {self.what} is {self.value:.4g}, and "
            f"{self.low:.4g} to {self.high:.4g} was seen."
        )


class InputLimits(nn.Module):
    """The limits of one argument, as buffers.

    Parameters
    ----------
    seen
        Mean, deviation and range of its features.
    sizes
        ‖(x − mean)/deviation‖ of its rows, the largest over the places of a row.
    keep
        Share of the rows inside the ellipsoid.
    like
        A batch: its type and number of axes.
    """

    above: Tensor
    below: Tensor
    unit: Tensor

    def __init__(self, seen: FeatureStatistics, sizes: UpperQuantile, keep: float, like: Tensor) -> None:
        super().__init__()
        self.dtype, self.axes = like.dtype, cap_axes(like)
        wide = torch.float32 if self.dtype.itemsize < 4 else self.dtype
        low, high = seen.low.to(wide), seen.high.to(wide)
        center, weight = seen.mean.to(wide).clamp(low, high), (1.0 / scale_of(seen)).to(wide)
        self.features = FeatureClamp(low, high, center=center)
        # A touch wider: rows come again in batches of another size, and in the model's own type. The cap a touch
        # wider still, so that what has a score of at most 1 is not moved by a rounding.
        radius = max(sizes.at_least(keep), 1e-30)
        self.radius = radius * (1.0 + 1e-5)
        self.size = NormCap(radius * (1.0 + 3e-5), center=center, weight=weight, axes=self.axes)
        tiny = torch.finfo(wide).tiny
        self.register_buffer("above", 1.0 / (high - center).clamp_min(tiny))
        self.register_buffer("below", -1.0 / (center - low).clamp_min(tiny))
        self.register_buffer("unit", weight / self.radius)

    def typed(self, x: Tensor) -> Tensor:
        """In the type that the model was calibrated with."""
        return x.to(self.dtype)

    def capped(self, x: Tensor) -> Tensor:
        """The nearest that was seen: the same to the last bit inside, a broken feature at its mean."""
        made: Tensor = self.size(self.features(x))
        return made

    def excesses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, features) and (rows,): how far outside each feature is, and all together; ∞ for NaN and ∞."""
        each, inside, together = self._parts(x)
        return _told(each, inside).flatten(1), together

    def forward(self, x: Tensor) -> Tensor:
        """The score of each row: the largest excess, in as few passes over the input as it takes."""
        each, inside, together = self._parts(x)
        return torch.maximum(_told(each.flatten(1).amax(-1), inside.flatten(1).all(-1)), together)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(|x − center| over the distance to that limit, whether x lies within, the size over the radius)."""
        x = x.float() if x.dtype.itemsize < 4 else x
        away = x - self.features.center
        each = torch.maximum(away * self.above, away * self.below)
        inside = x.clamp(self.features.low, self.features.high) == x
        # In float64, where squares of float32 don't overflow.
        together = torch.linalg.vector_norm(away * self.unit, 2, self.axes, dtype=torch.float64).to(x.dtype)
        together = together.reshape(x.shape[0], -1).amax(-1)
        return each, inside, torch.where(torch.isnan(together), math.inf, together)

    def explain(self, x: Tensor, name: str) -> list[Excess]:
        """The largest excess of each row, and whose it is."""
        each, together = self.excesses(self.typed(x))
        largest, where = each.max(-1)
        shape = x.shape[1:]
        low, high = (t.expand(shape).reshape(-1) for t in (self.features.low, self.features.high))
        found = []
        for row in range(len(x)):
            k = int(where[row])
            place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(k), shape))
            one = Excess(
                row,
                float(largest[row]),
                f"{name}[{place}]",
                float(x[row].reshape(-1)[k]),
                float(low[k]),
                float(high[k]),
            )
            if float(together[row]) > one.score:
                size = float(together[row])
                one = Excess(row, size, f"size of {name}", size * self.radius, 0.0, self.radius)
            found.append(one)
        return found


def _told(excess: Tensor, inside: Tensor) -> Tensor:
    """An excess that is at most 1 just where the value lies within its limits; ∞ for NaN."""
    told = torch.where(inside, excess.clamp(max=1.0), excess.clamp(min=1.0 + torch.finfo(excess.dtype).eps))
    return torch.where(torch.isnan(told), math.inf, told)


def scale_of(seen: FeatureStatistics) -> Tensor:
    """Deviations; for a feature that never moved, what rounding may move it by."""
    least = 1e-6 * torch.maximum(seen.low.abs(), seen.high.abs()).clamp_min(1e-12)
    return torch.maximum(seen.deviation, least)
