"""How much: limits of the three protections from what the calibration rows show."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from farfield.calibration import (
    Batches,
    FeatureStatistics,
    UpperQuantile,
    cap_axes,
    flat_rows,
    floating,
    output_tensors,
    rows_of,
    run,
)
from farfield.errors import InvalidValueError
from farfield.nn import FeatureClamp, NormCap, RangeHead
from farfield.repair._insert import Insertion

__all__ = [
    "DEVIATIONS",
    "Observed",
    "feature_insertions",
    "observe",
    "range_insertions",
    "require_rows",
    "warn_of_few_rows",
]

DEVIATIONS = 5.0
"""A feature is trusted to this many standard deviations, or to what was seen where that is wider."""
_MARGIN = 1e-5
"""Limits lie outside what was met by this much of it: a batch of another size rounds differently."""


FEWEST_ROWS = 8
"""Fewer rows are an example of what a model takes, and show no spread."""


def require_rows(batches: Batches) -> None:
    """Raise where there are too few rows to learn limits from: the repaired model would be a constant, or nearly."""
    count = batches.count(FEWEST_ROWS)
    if count < FEWEST_ROWS:
        raise InvalidValueError(
            f"Limits are learned from what rows show, and there {'is' if count == 1 else 'are'} {count} "
            f"row{'' if count == 1 else 's'}: with fewer than {FEWEST_ROWS} the model would be held to these few "
            "answers. Pass the rows it was trained on, or a few hundred of them."
        )


def warn_of_few_rows(rows: int, keep: float) -> None:
    """Warn where the share to keep is all of the rows: the limit is then the largest row, not a quantile."""
    needed = math.ceil(1.0 / (1.0 - keep) - 1e-9) if keep < 1.0 else 0
    if rows < needed:
        warnings.warn(
            f"There are {rows} rows, and the limit that {keep:.4g} of them keep needs {needed} to leave one out: the "
            "largest row is the limit now. Pass more rows for limits that hold for the next ones too.",
            stacklevel=3,
        )


def observe_inputs(batches: Batches) -> tuple[dict[str, FeatureStatistics], int]:
    """Argument → its statistics, and the number of rows; no forward pass."""
    found: dict[str, FeatureStatistics] = {}
    rows = 0
    for call in batches:
        rows += rows_of(call)
        for name, tensor in floating(call).items():
            found.setdefault(str(name), FeatureStatistics()).add(tensor)
    return found, rows


def feature_insertions(
    statistics: Mapping[str, FeatureStatistics], dtypes: Mapping[str, torch.dtype], *, soft: bool
) -> list[Insertion]:
    """One clamp for every real-valued argument."""
    made = []
    for name, seen in statistics.items():
        low = _finite(torch.minimum(seen.low, seen.mean - DEVIATIONS * seen.deviation), dtypes[name])
        high = _finite(torch.maximum(seen.high, seen.mean + DEVIATIONS * seen.deviation), dtypes[name])
        center = seen.mean.to(dtypes[name]).clamp(low, high)
        made.append(Insertion("input", name, FeatureClamp(low, high, center=center, soft=soft)))
    return made


@dataclass(frozen=True)
class Observed:
    """What a forward pass over the rows showed: hidden sizes by submodule, and every output's range."""

    sizes: Mapping[str, UpperQuantile]
    outputs: tuple[FeatureStatistics, ...]
    dtypes: tuple[torch.dtype, ...]


def observe(
    model: nn.Module, batches: Batches, paths: Sequence[str], centers: Mapping[str, Tensor] | None = None
) -> Observed:
    """One forward pass over all rows. Sizes behind a submodule are the largest over the places of a row."""
    sizes = {path: UpperQuantile() for path in paths}
    outputs: list[FeatureStatistics] = []
    dtypes: list[torch.dtype] = []
    handles = []
    for path in paths:

        def measure(module: nn.Module, args: Any, output: Any, path: str = path) -> None:
            value = first_rows(output, path)
            away = value if centers is None else value - centers[path]
            size = torch.linalg.vector_norm(away.to(torch.float64), 2, cap_axes(value))
            sizes[path].add(flat_rows(size).amax(-1))

        handles.append(model.get_submodule(path).register_forward_hook(measure))
    try:
        for call in batches:
            for number, tensor in enumerate(output_tensors(run(model, call))):
                if number == len(outputs):
                    outputs.append(FeatureStatistics())
                    dtypes.append(tensor.dtype)
                outputs[number].add(tensor if tensor.ndim else tensor[None], of_model=True)
    finally:
        for handle in handles:
            handle.remove()
    return Observed(sizes, tuple(outputs), tuple(dtypes))


def first_rows(output: Any, path: str) -> Tensor:
    """The first tensor that a submodule returns, which is what a cap goes on."""
    for value in output_tensors(output):
        if value.is_floating_point() and value.ndim >= 2:
            return value
        break
    raise InvalidValueError(
        f"{path!r} can't be capped: the first tensor it returns is not a batch of rows of real numbers. Name another "
        "submodule with at=."
    )


def cap_insertion(
    path: str, sizes: UpperQuantile, keep: float, axes: Sequence[int], *, soft: bool
) -> Insertion:
    """A cap behind a submodule that leaves at least ``keep`` of the rows alone."""
    radius = sizes.at_least(keep) * (1.0 + _MARGIN)
    return Insertion("hidden", path, NormCap(max(radius, 1e-30), axes=axes, soft=soft))


def range_insertions(
    outputs: Sequence[FeatureStatistics], dtypes: Sequence[torch.dtype], *, soft: bool
) -> list[Insertion]:
    """One head for every floating output: the range of the predictions, a hair wider."""
    made = []
    for number, (seen, dtype) in enumerate(zip(outputs, dtypes, strict=True)):
        if not dtype.is_floating_point:
            continue
        real = torch.finfo(dtype)
        size = torch.maximum(seen.high - seen.low, torch.maximum(seen.low.abs(), seen.high.abs()))
        room = (max(_MARGIN, 2 * real.eps) * size).clamp_min(max(1e-30, real.tiny))
        low, high = seen.low - room, seen.high + room
        knee = 0.0
        if soft:  # the bend lies outside what was seen
            knee = 0.1
            width = (high - low) * knee / (1 - 2 * knee)
            low, high = low - width, high + width
        head = RangeHead(_finite(low, dtype), _finite(high, dtype), knee=knee)
        made.append(Insertion("output", str(number), head))
    return made


def _finite(limit: Tensor, dtype: torch.dtype) -> Tensor:
    """In a type of numbers, within its range."""
    return limit.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)
