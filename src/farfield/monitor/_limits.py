"""Where one input of a model was seen: each feature's range, and an ellipsoid around all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from farfield.calibration import FeatureStatistics, UpperQuantile, cap_axes, flat_rows
from farfield.nn import FeatureClamp, NormCap

__all__ = ["MOST", "Excess", "InputLimits", "OutputLimits", "scale_of"]

MOST = 1e30
"""The largest score of numbers: above it farther is no longer more, and so the score is bounded."""
_MARGIN = 1e-5
"""Outputs may lie outside what was met by this much of it: a batch of another size rounds differently."""


@dataclass(frozen=True)
class Excess:
    """Why a row is outside: ``what`` lies at ``value``, where ``low`` to ``high`` was seen.

    ``what`` is a feature (its column's name, or ``"x[:, 3]"``, the fourth of the argument ``x``), ``"size of x"`` (no
    feature by itself, but all together are too far from the middle) or an output (``"output[:, 1]"``).
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
        start = f"Row {self.row} is outside (score {self.score:.3g}): {self.what} is {self.value:.4g}; "
        if self.low == self.high:
            return (
                f"{start}every calibration row had {self.low:.4g}. What never moved has no scale of its own: its "
                "score counts in half the range of the others, at their median."
            )
        return f"{start}the calibration rows had {self.low:.4g} to {self.high:.4g}."


class ScoredRange(nn.Module):
    """Each entry's range, as buffers that stay in float32 or wider: a limit that half precision rounds lets rows out.

    The score of an entry is its distance from the middle over half its range; one that never moved has no scale of
    its own and counts in the median of those that did. It is at most 1 just where the entry lies in its range, grows
    up to ``MOST`` and is ∞ for NaN and infinity alone: so the score is bounded where every input is a number.
    """

    low: Tensor
    high: Tensor
    slope: Tensor

    def excess(self, x: Tensor) -> Tensor:
        """How far outside its range each entry lies, in halves of it: at most 0 just inside, NaN for NaN."""
        return torch.maximum(x - self.high, self.low - x) * self.slope

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def widely(tensor: Tensor) -> Tensor:
            made = fn(tensor)
            narrow = made.is_floating_point() and made.dtype.itemsize < 4
            return tensor.to(made.device) if narrow and tensor.numel() else made

        return super()._apply(widely, recurse)  # type: ignore[no-untyped-call, no-any-return]


class InputLimits(ScoredRange):
    """The limits of one argument.

    Parameters
    ----------
    seen
        Mean, deviation and range of its features.
    sizes
        ‖(x − mean)/deviation‖ of its rows, the largest over the places of a row.
    keep
        Share of the rows inside the ellipsoid.
    like
        A batch: its type and number of axes. Rows of one number, without an axis, are one feature.
    """

    unit: Tensor
    like: Tensor

    def __init__(self, seen: FeatureStatistics, sizes: UpperQuantile, keep: float, like: Tensor) -> None:
        super().__init__()
        self.axes, self.single = cap_axes(like), like.ndim == 1
        self.row_shape = tuple(like.shape[1:])
        # Without entries: it says the type of the model's inputs, and follows .to() and .half().
        self.register_buffer("like", torch.empty(0, dtype=like.dtype), persistent=False)
        wide = torch.float32 if like.dtype.itemsize < 4 else like.dtype
        low, high = seen.low.to(wide), seen.high.to(wide)
        center, weight = seen.mean.to(wide).clamp(low, high), (1.0 / scale_of(seen)).to(wide)
        self.features = FeatureClamp(low, high, center=center)
        # A touch wider: rows come again in batches of another size, and in the model's own type. The cap a touch
        # wider still, so that what has a score of at most 1 is not moved by a rounding.
        radius = sizes.at_least(keep)
        radius = radius if radius > 1e-6 else 1.0  # where rows are all the same, up to rounding
        self.size = NormCap(radius * (1.0 + 3e-5), center=center, weight=weight, axes=self.axes)
        self.radius = radius * (1.0 + 1e-5)
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        self.register_buffer("slope", _slope(seen).to(wide))
        self.register_buffer("unit", weight / self.radius)

    def typed(self, x: Tensor) -> Tensor:
        """In the type that the model takes."""
        return x.to(self.like.dtype)

    def capped(self, x: Tensor) -> Tensor:
        """The nearest that was seen: the same to the last bit inside, a broken feature at its mean."""
        made: Tensor = self.size(self.features(self._featured(x)))
        return made.reshape(x.shape)

    def excesses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, features) and (rows,): how far outside each feature is, and all together; ∞ for NaN and ∞ alone."""
        x = _wide(self._featured(x))
        broken = _broken(x)
        each = _up_to_most(_told(self.excess(x)), broken)
        return flat_rows(each), _up_to_most(self._size(x), flat_rows(broken).any(-1))

    def _featured(self, x: Tensor) -> Tensor:
        return x[:, None] if self.single else x

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The score of each row, and the excess of each entry."""
        x = _wide(self._featured(x))
        excess = self.excess(x)
        score = torch.maximum(_told(flat_rows(excess).amax(-1)), self._size(x))
        return _up_to_most(score, flat_rows(_broken(x)).any(-1)), excess

    def outside(self, excess: Tensor) -> Tensor:
        """How many rows have each feature outside its range, NaN included, at whatever place."""
        places = [axis for axis, length in enumerate(self.low.shape, 1) if length == 1]
        rows = torch.logical_not(excess <= 0)
        return (rows.any(places) if places else rows).sum(0).reshape(-1)

    def _size(self, x: Tensor) -> Tensor:
        """‖(x − center)·weight‖ over the radius, the largest over the places of a row."""
        away = (x - self.size.center) * self.unit
        # In float64, where squares of float32 don't overflow; a device without it overflows at 1e19 radii.
        wide = torch.float32 if x.device.type == "mps" else torch.float64
        size: Tensor = torch.linalg.vector_norm(away, 2, self.axes, dtype=wide).to(x.dtype)
        return size if size.ndim == 1 else flat_rows(size).amax(-1)

    def explain(self, x: Tensor, entry: Callable[..., str]) -> list[Excess]:
        """The largest excess of each row, and whose it is; ``entry`` gives the name of an entry from its indices."""
        x = self.typed(x)
        each, together = self.excesses(x)
        x = self._featured(x)
        low, high = (end.expand(x.shape[1:]) for end in (self.low, self.high))
        found = []
        whole = (lambda *place: entry()) if self.single else entry
        for row, one in enumerate(_farthest(each, x, low, high, whole)):
            if float(together[row]) > one.score:
                size = float(together[row])
                one = Excess(row, size, f"size of {entry()}", size * self.radius, 0.0, self.radius)
            found.append(one)
        return found


class OutputLimits(ScoredRange):
    """Where one output lay on the calibration rows, a hair wider, and what is answered for a row outside.

    Parameters
    ----------
    seen
        Its mean and range.
    answer
        What is answered instead; the mean where it is None.
    promised
        Proved bounds, if there are any: a value outside them has the largest score.
    wide
        The type in which limits are kept.
    """

    answer: Tensor
    promised_low: Tensor
    promised_high: Tensor

    def __init__(
        self, seen: FeatureStatistics, answer: Any, promised: tuple[Tensor, Tensor] | None, wide: torch.dtype
    ) -> None:
        super().__init__()
        room = _MARGIN * torch.maximum(seen.high - seen.low, torch.maximum(seen.low.abs(), seen.high.abs()))
        room = room.clamp_min(1e-30)
        self.register_buffer("low", (seen.low - room).to(wide))
        self.register_buffer("high", (seen.high + room).to(wide))
        self.register_buffer("slope", _slope(seen).to(wide))
        self.register_buffer("answer", torch.as_tensor(seen.mean if answer is None else answer).to(wide))
        self.promised = promised is not None
        if promised is not None:
            self.register_buffer("promised_low", promised[0])
            self.register_buffer("promised_high", promised[1])

    def forward(self, value: Tensor) -> Tensor:
        """The score of each row."""
        value = _wide(value)
        score = _told(flat_rows(self.excess(value)).amax(-1))
        if self.promised:  # the largest score and not ∞: an analysis that knows no proof sees a bound
            kept = (value >= self.promised_low) & (value <= self.promised_high)
            score = torch.where(flat_rows(kept).all(-1), score, MOST)
        return _up_to_most(score, flat_rows(_broken(value)).any(-1))

    def explain(self, value: Tensor, entry: Callable[..., str]) -> list[Excess]:
        """The entry that lies farthest outside, for each row; ``entry`` gives its name from its indices."""
        value = _wide(value)
        each = _up_to_most(_told(self.excess(value)), _broken(value))
        low, high = (end.expand(value.shape[1:]) for end in (self.low, self.high))
        return _farthest(flat_rows(each), value, low, high, entry)


def _farthest(each: Tensor, x: Tensor, low: Tensor, high: Tensor, entry: Callable[..., str]) -> list[Excess]:
    """Of each row the feature with the largest excess."""
    if not len(x):
        return []
    largest, where = each.max(-1)
    low, high, rows = low.reshape(-1), high.reshape(-1), flat_rows(x)
    found = []
    for row, k in enumerate(where.tolist()):
        what = entry(*(int(i) for i in torch.unravel_index(torch.tensor(k), x.shape[1:])))
        found.append(
            Excess(row, float(largest[row]), what, float(rows[row, k]), float(low[k]), float(high[k]))
        )
    return found


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype.itemsize < 4 else x


def _told(excess: Tensor) -> Tensor:
    """The score of an excess: at most 1 just where the excess is at most 0, whatever rounding does."""
    score = 1.0 + excess
    return torch.where(excess > 0, score.clamp(min=1.0 + torch.finfo(score.dtype).eps), score)


def _broken(x: Tensor) -> Tensor:
    """Whether each entry is no number; written so that analyses of real numbers see that none is."""
    return torch.isnan(x) | torch.isinf(x)


def _up_to_most(score: Tensor, broken: Tensor) -> Tensor:
    """A number of at most ``MOST`` where what it is about is finite, even if it overflowed; ∞ where not."""
    return torch.where(broken, math.inf, score.clamp(0.0, MOST))


def scale_of(seen: FeatureStatistics) -> Tensor:
    """Deviations, those that never moved with the others' median."""
    return _with_scale(seen.deviation, seen)


def _slope(seen: FeatureStatistics) -> Tensor:
    return 1.0 / _with_scale(seen.high / 2 - seen.low / 2, seen)


def _with_scale(own: Tensor, seen: FeatureStatistics) -> Tensor:
    """Lengths of entries; the median of the others, or its own size, for one that moved no more than rounding may."""
    size = torch.maximum(seen.low.abs(), seen.high.abs())
    still = seen.high - seen.low <= 1e-6 * size
    others = own[~still]
    unit = others.median() if len(others) else torch.where(size > 0, size, 1.0)
    return torch.where(still, unit, own).clamp_min(1e-18)
