"""What the report draws: both models along rays, with each feature swept alone, and the sizes that a cap met."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from farfield.calibration import Batches, UpperQuantile, floating, map_call, output_tensors, run

__all__ = ["ComparedCurve", "SizeHistogram", "curves", "size_histogram"]

RAYS = 3
RAY_SCALES = 61
FEATURES = 12
SWEEP_POINTS = 81
SWEEP_DEVIATIONS = 40.0
ROWS = 256
BINS = 40


@dataclass(frozen=True)
class ComparedCurve:
    """The first output of both models along a line.

    Parameters
    ----------
    label
        In words.
    kind
        ``"ray"``: ``x`` multiplies a row; ``"feature"``: ``x`` is the feature, in deviations from its mean, with all
        others at theirs.
    x, before, after
        Positions and values.
    seen
        The part of ``x`` that the rows cover.
    """

    label: str
    kind: Literal["ray", "feature"]
    x: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    seen: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class SizeHistogram:
    """How many rows had which size behind a submodule, and the radius of the cap there."""

    at: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    radius: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def curves(before: nn.Module, after: nn.Module, batches: Batches) -> tuple[ComparedCurve, ...]:
    """Three rays through rows, and up to twelve features swept alone; a few hundred rows through each model."""
    call = map_call(batches.some(), lambda name, t: t[:ROWS])
    given = floating(call)
    if not given or any(len(t) < 2 for t in given.values()):
        return ()
    found = []
    scales = torch.logspace(-1, 6, RAY_SCALES)
    for row in range(min(RAYS, *(len(t) for t in given.values()))):
        far = map_call(call, partial(_along, row=row, scales=scales))
        was, now = _first(before, far), _first(after, far)
        found.append(ComparedCurve(f"row {row}", "ray", _numbers(scales), was, now, (0.1, 1.0)))
    wide = max(given, key=lambda name: given[name].shape[-1])
    if given[wide].ndim == 2:
        found += _swept(before, after, call, wide, batches)
    return tuple(found)


def _swept(
    before: nn.Module, after: nn.Module, call: Any, name: int | str, batches: Batches
) -> list[ComparedCurve]:
    rows = floating(call)[name]
    mean, deviation = rows.mean(0), rows.std(0)
    steps = torch.linspace(-SWEEP_DEVIATIONS, SWEEP_DEVIATIONS, SWEEP_POINTS)
    found = []
    for feature in range(min(rows.shape[1], FEATURES)):
        if not deviation[feature] > 0:
            continue

        def moved(n: int | str, t: Tensor, feature: int = feature) -> Tensor:
            usual = t.mean(0) if t.is_floating_point() else t[0]
            same = usual.expand(len(steps), *t.shape[1:]).clone()
            if n == name:
                same[:, feature] += steps.to(t.dtype) * deviation[feature]
            return same

        was, now = (_first(model, map_call(call, moved)) for model in (before, after))
        away = (rows[:, feature] - mean[feature]) / deviation[feature]
        seen = (float(away.min()), float(away.max()))
        found.append(ComparedCurve(batches.entry(name, feature), "feature", _numbers(steps), was, now, seen))
    return found


def _along(name: int | str, rows: Tensor, row: int, scales: Tensor) -> Tensor:
    repeated = rows[row : row + 1].expand(len(scales), *rows.shape[1:])
    if not rows.is_floating_point():
        return repeated.clone()
    return repeated * scales.to(rows.dtype).reshape(-1, *(1,) * (rows.ndim - 1))


def _first(model: nn.Module, call: Any) -> tuple[float, ...]:
    for value in output_tensors(run(model, call)):
        if value.is_floating_point() and value.ndim:
            return _numbers(value.reshape(len(value), -1)[:, 0])
    return ()


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.double().tolist())


def size_histogram(at: str, sizes: UpperQuantile, radius: float) -> SizeHistogram:
    """Bins of equal width, from the counts of a quantile."""
    edges = torch.linspace(0.0, max(sizes.largest, radius) * 1.02, BINS + 1, dtype=torch.float64)
    counts = [0] * BINS
    for value, count in sizes.centers().items():
        place = int(torch.searchsorted(edges, value, right=True)) - 1
        counts[min(max(place, 0), BINS - 1)] += count
    return SizeHistogram(at, _numbers(edges), tuple(counts), radius)
