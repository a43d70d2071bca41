"""Where one input of a model was seen: each feature's range, and an ellipsoid around all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from farfield.calibration import FeatureStatistics, UpperQuantile, cap_axes
from farfield.nn import FeatureClamp, NormCap

__all__ = ["Excess", "InputLimits"]


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

    def __init__(self, seen: FeatureStatistics, sizes: UpperQuantile, keep: float, like: Tensor) -> None:
        super().__init__()
        dtype, self.axes = like.dtype, cap_axes(like)
        wide = torch.float32 if dtype.itemsize < 4 else dtype
        self.dtype = dtype
        self.features = FeatureClamp(
            seen.low.to(wide),
            seen.high.to(wide),
            center=seen.mean.to(wide).clamp(seen.low.to(wide), seen.high.to(wide)),
        )
        weight = 1.0 / scale_of(seen)
        # A touch wider: rows come again in batches of another size, and in the model's own type.
        radius = max(sizes.at_least(keep) * (1.0 + 1e-5), 1e-30)
        self.size = NormCap(radius, center=seen.mean.to(wide), weight=weight.to(wide), axes=self.axes)

    def typed(self, x: Tensor) -> Tensor:
        """In the type that the model was calibrated with."""
        return x.to(self.dtype)

    def capped(self, x: Tensor) -> Tensor:
        """The nearest that was seen: the same to the last bit inside, a broken feature at its mean."""
        made: Tensor = self.size(self.features(x))
        return made

    def excesses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, features) and (rows,): how far outside each feature is, and all together; ∞ for NaN and ∞."""
        x = x.float() if x.dtype.itemsize < 4 else x
        each = torch.where(torch.isfinite(x), self.features.excess(x), math.inf)
        together = self.size.excess(x)
        together = torch.where(torch.isnan(together), math.inf, together)
        return each.flatten(1), together.reshape(x.shape[0], -1).amax(-1)

    def forward(self, x: Tensor) -> Tensor:
        """The score of each row."""
        each, together = self.excesses(x)
        return torch.maximum(each.amax(-1), together)

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
                radius = float(self.size.radius)
                one = Excess(
                    row, float(together[row]), f"size of {name}", float(together[row]) * radius, 0.0, radius
                )
            found.append(one)
        return found


def scale_of(seen: FeatureStatistics) -> Tensor:
    """Deviations; for a feature that never moved, what rounding may move it by."""
    least = 1e-6 * torch.maximum(seen.low.abs(), seen.high.abs()).clamp_min(1e-12)
    return torch.maximum(seen.deviation, least)
