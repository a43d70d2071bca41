"""Where one input of a model was seen: each feature's range, and an ellipsoid around all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from farfield.calibration import FeatureStatistics, UpperQuantile, cap_axes, flat_rows
from farfield.nn import FeatureClamp, NormCap

__all__ = ["Excess", "InputLimits", "explained_output", "finite_or_inf", "runs_eagerly", "scale_of"]


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
        return (
            f"Row {self.row} is outside (score {self.score:.3g}): {self.what} is {self.value:.4g}; the "
            f"calibration rows had {self.low:.4g} to {self.high:.4g}."
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
        A batch: its type and number of axes. Rows of one number, without an axis, are one feature.
    """

    middle: Tensor
    slope: Tensor
    unit: Tensor

    def __init__(self, seen: FeatureStatistics, sizes: UpperQuantile, keep: float, like: Tensor) -> None:
        super().__init__()
        self.dtype, self.axes, self.single = like.dtype, cap_axes(like), like.ndim == 1
        self.row_shape = tuple(like.shape[1:])
        wide = torch.float32 if self.dtype.itemsize < 4 else self.dtype
        low, high = seen.low.to(wide), seen.high.to(wide)
        center, weight = seen.mean.to(wide).clamp(low, high), (1.0 / scale_of(seen)).to(wide)
        self.features = FeatureClamp(low, high, center=center)
        # A touch wider: rows come again in batches of another size, and in the model's own type. The cap a touch
        # wider still, so that what has a score of at most 1 is not moved by a rounding.
        radius = max(sizes.at_least(keep), 1e-30)
        self.radius = radius * (1.0 + 1e-5)
        self.size = NormCap(radius * (1.0 + 3e-5), center=center, weight=weight, axes=self.axes)
        self.register_buffer("middle", low / 2 + high / 2)
        self.register_buffer("slope", 1.0 / (high / 2 - low / 2).clamp_min(torch.finfo(wide).tiny))
        self.register_buffer("unit", weight / self.radius)

    def typed(self, x: Tensor) -> Tensor:
        """In the type that the model was calibrated with."""
        return x.to(self.dtype)

    def capped(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """The nearest that was seen: the same to the last bit inside, a broken feature at its mean.

        With ``rows`` only those are asked about, the rest being inside.
        """
        own = x if rows is None else x[rows]
        made: Tensor = self.size(self.features(self._featured(own))).reshape(own.shape)
        return made if rows is None else x.index_copy(0, rows, made)

    def outside(self, x: Tensor) -> Tensor:
        """(rows, features): whether a feature lies outside its range; NaN does."""
        x = _wide(self._featured(x))
        return flat_rows(x.clamp(self.features.low, self.features.high) != x)

    def excesses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, features) and (rows,): how far outside each feature is, and all together; ∞ for NaN and ∞ alone."""
        x = _wide(self._featured(x))
        each = ((x - self.middle) * self.slope).abs()
        told = _told(each, x.clamp(self.features.low, self.features.high) == x)
        finite = torch.isfinite(x)
        together = finite_or_inf(self._size(x), flat_rows(finite).all(-1))
        return flat_rows(finite_or_inf(told, finite)), together

    def _featured(self, x: Tensor) -> Tensor:
        return x[:, None] if self.single else x

    def forward(self, x: Tensor) -> Tensor:
        """The score of each row: the largest excess, in as few passes over the input as it takes."""
        x = _wide(self._featured(x))
        each = flat_rows(((x - self.middle) * self.slope).abs()).amax(-1)
        kept = x.clamp(self.features.low, self.features.high)
        if runs_eagerly() and torch.equal(kept, x):  # the common case: every row within, and no NaN
            each = each.clamp(max=1.0)
            return torch.maximum(each, self._size(x))
        told = _told(each, flat_rows(kept == x).all(-1))
        return finite_or_inf(torch.maximum(told, self._size(x)), flat_rows(torch.isfinite(x)).all(-1))

    def _size(self, x: Tensor) -> Tensor:
        """‖(x − center)·weight‖ over the radius, the largest over the places of a row."""
        away = (x - self.features.center) * self.unit
        # In float64, where squares of float32 don't overflow.
        size: Tensor = torch.linalg.vector_norm(away, 2, self.axes, dtype=torch.float64).to(x.dtype)
        return size if size.ndim == 1 else flat_rows(size).amax(-1)

    def explain(self, x: Tensor, entry: Callable[..., str]) -> list[Excess]:
        """The largest excess of each row, and whose it is; ``entry`` gives the name of an entry from its indices."""
        x = self.typed(x)
        each, together = self.excesses(x)
        x = self._featured(x)
        low, high = (t.expand(x.shape[1:]) for t in (self.features.low, self.features.high))
        found = []
        whole = (lambda *place: entry()) if self.single else entry
        for row, one in enumerate(_farthest(each, x, low, high, whole)):
            if float(together[row]) > one.score:
                size = float(together[row])
                one = Excess(row, size, f"size of {entry()}", size * self.radius, 0.0, self.radius)
            found.append(one)
        return found


def explained_output(value: Tensor, middle: Tensor, half: Tensor, entry: Callable[..., str]) -> list[Excess]:
    """The entry of an output that lies farthest outside, for each row."""
    value = _wide(value)
    each = finite_or_inf(((value - middle) / half).abs(), torch.isfinite(value))
    low, high = ((middle + side * half).expand(value.shape[1:]) for side in (-1, 1))
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


def runs_eagerly() -> bool:
    """Whether tensors hold numbers now, so that Python may ask for one; not while a graph is made of them."""
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return not (tracing or torch.compiler.is_compiling())


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype.itemsize < 4 else x


def _told(excess: Tensor, inside: Tensor) -> Tensor:
    """An excess that is at most 1 just where the value lies within its limits."""
    return torch.where(inside, excess.clamp(max=1.0), excess.clamp(min=1.0 + torch.finfo(excess.dtype).eps))


def finite_or_inf(score: Tensor, finite: Tensor) -> Tensor:
    """A number where what it is about is finite, even if it overflowed; ∞ where not."""
    return torch.where(finite, score.clamp(max=torch.finfo(score.dtype).max), math.inf)


def scale_of(seen: FeatureStatistics) -> Tensor:
    """Deviations; for a feature that never moved, what rounding may move it by."""
    least = 1e-6 * torch.maximum(seen.low.abs(), seen.high.abs()).clamp_min(1e-12)
    return torch.maximum(seen.deviation, least)
