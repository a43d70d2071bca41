"""What a repair changed: on the rows, and far from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from farfield.calibration import (
    Batches,
    Call,
    FeatureStatistics,
    UpperQuantile,
    flat_rows,
    floating,
    map_call,
    output_tensors,
    rows_of,
    run,
)

__all__ = ["BROKEN", "Change", "FarRow", "far_rows", "measure_change"]

SCALES = (2.0, 10.0, 100.0, 1e6)
BROKEN = 100.0
"""A broken feature reads this many of its deviations."""
FAR_ROWS = 256
MOST_FEATURES = 64


@dataclass(frozen=True)
class Change:
    """What changed on the calibration rows.

    ``unchanged`` is the share of rows whose every output is the same to the last bit; ``p99`` and ``largest`` are of
    the largest absolute change in a row; ``variance_kept`` compares the outputs' variances, the smallest of them.
    """

    rows: int
    unchanged: float
    p99: float
    largest: float
    variance_kept: float

    def __str__(self) -> str:
        return (
            f"On the {self.rows:,} calibration rows: {self.unchanged:.1%} unchanged to the last bit, largest change "
            f"{self.largest:.3g}."
        )

    def to_dict(self) -> dict[str, float]:
        """Plain data."""
        return {
            "rows": self.rows,
            "unchanged": self.unchanged,
            "p99": self.p99,
            "largest": self.largest,
            "variance_kept": self.variance_kept,
        }


@dataclass(frozen=True)
class FarRow:
    """The largest |output| before and after, on rows ``scale`` times as far, or with one ``feature`` broken."""

    scale: float
    feature: str | None
    before: float
    after: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"scale": self.scale, "feature": self.feature, "before": self.before, "after": self.after}


def measure_change(before: nn.Module, after: nn.Module, batches: Batches) -> Change:
    """Both models on every row."""
    rows = same = 0
    sizes, largest = UpperQuantile(), 0.0
    spreads = (FeatureStatistics(), FeatureStatistics())
    for call in batches:
        count = rows_of(call)
        if not count:
            continue
        pairs = list(zip(*(output_tensors(run(m, call)) for m in (before, after)), strict=True))
        equal = torch.ones(count, dtype=torch.bool)
        change = torch.zeros(count, dtype=torch.float64)
        for was, now in pairs:
            per_row = was.ndim > 0 and len(was) == count
            flat = [t.reshape(count if per_row else 1, -1) for t in (was, now)]
            equal &= (flat[0] == flat[1]).all(-1).cpu()
            if was.is_floating_point():
                change = torch.maximum(change, (flat[0].double() - flat[1].double()).abs().amax(-1).cpu())
        rows, same = rows + count, same + int(equal.sum())
        sizes.add(change)
        largest = max(largest, float(change.max()))
        first = next((p for p in pairs if p[0].is_floating_point() and p[0].ndim), None)
        for spread, value in zip(spreads, first or (), strict=False):
            spread.add(flat_rows(value))
    kept = 1.0
    if spreads[0].count:
        ratio = spreads[1].deviation.square() / spreads[0].deviation.square().clamp_min(1e-300)
        moving = spreads[0].deviation > 0
        kept = float(ratio[moving].min()) if bool(moving.any()) else 1.0
    return Change(rows, same / max(rows, 1), sizes.at_least(0.99), largest, kept)


def far_rows(before: nn.Module, after: nn.Module, batches: Batches) -> tuple[FarRow, ...]:
    """Outputs of both on a few hundred rows: scaled, and with each feature alone at 100 deviations."""
    call = map_call(batches.some(), lambda name, t: t[:FAR_ROWS])
    found = []
    for scale in SCALES:
        far = map_call(call, partial(_scaled, scale=scale))
        found.append(FarRow(scale, None, *(_largest(m, far) for m in (before, after))))
    for name, tensor in floating(call).items():
        if tensor.ndim != 2 or len(tensor) < 2:  # of one row nobody knows what its features deviate by
            continue
        deviation, mean = tensor.std(0), tensor.mean(0)
        for feature in range(min(tensor.shape[1], MOST_FEATURES)):
            broken = tensor.clone()
            broken[:, feature] = mean[feature] + BROKEN * deviation[feature]
            changed = map_call(call, partial(_replaced, name=name, value=broken))
            label = batches.entry(name, feature)
            found.append(FarRow(1.0, label, *(_largest(m, changed) for m in (before, after))))
    return tuple(found)


def _scaled(name: int | str, tensor: Tensor, scale: float) -> Tensor:
    return tensor * scale if tensor.is_floating_point() else tensor


def _replaced(at: int | str, tensor: Tensor, name: int | str, value: Tensor) -> Tensor:
    return value if at == name else tensor


def _largest(model: nn.Module, call: Call) -> float:
    values = [t.double().abs() for t in output_tensors(run(model, call)) if t.is_floating_point()]
    # What is not finite stays so: the largest float would be a number that no model gave.
    sizes = (float(torch.where(v.isnan(), torch.inf, v).max()) for v in values if v.numel())
    return max(sizes, default=0.0)
