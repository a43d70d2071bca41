"""What a fitted estimator says far away, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from farfield.learn._scaling import Array

__all__ = ["FarFieldReport"]


_MEANING = {
    "BOUNDED": "predictions are bounded, proved for every real input. A bound is not a claim of accuracy.",
    "UNBOUNDED": "predictions grow without limit far from the data.",
    "UNKNOWN": "neither a bound nor a direction of growth was found.",
}


@dataclass(frozen=True)
class FarFieldReport:
    """What predictions do as inputs leave the data.

    Parameters
    ----------
    verdict
        ``"BOUNDED"``: proved; ``"UNBOUNDED"``: a direction was found along which predictions grow without limit;
        ``"UNKNOWN"``: neither.
    output_range
        For each output (low, high), which no prediction leaves; infinite unless bounded.
    training_range
        For each output (least, greatest) target or, for a classifier, (0, 1).
    radii
        Distances from the centre of the training inputs, in their standard deviations.
    seen
        At each radius, for each output, the least and greatest prediction along the directions that were tried.
    largest_slope
        For each output the greatest |lim f(λu)/λ| over those directions: 0 where predictions tend to a limit.
    directions
        How many were tried.
    """

    verdict: str
    output_range: tuple[tuple[float, float], ...]
    training_range: tuple[tuple[float, float], ...]
    radii: tuple[float, ...]
    seen: tuple[tuple[tuple[float, float], ...], ...]
    largest_slope: tuple[float, ...]
    directions: int

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain lists and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        """A few lines to read; outputs apart."""
        lines = [f"{self.verdict}: {_MEANING[self.verdict]}"]
        for k, ((low, high), (least, greatest)) in enumerate(
            zip(self.output_range, self.training_range, strict=True)
        ):
            lines.append(
                f"output {k}: never outside [{low:.4g}, {high:.4g}]; targets were in [{least:.4g}, {greatest:.4g}]"
            )
            for radius, found in zip(self.radii, self.seen, strict=True):
                lines.append(f"  seen at radius {radius:>7.0e}: [{found[k][0]:.4g}, {found[k][1]:.4g}]")
            lines.append(
                f"  largest slope at infinity, {self.directions} directions: {self.largest_slope[k]:.4g}"
            )
        return "\n".join(lines)


def pairs(values: Array) -> tuple[tuple[float, float], ...]:
    """(k, 2) as tuples."""
    return tuple((float(low), float(high)) for low, high in np.asarray(values).reshape(-1, 2))
