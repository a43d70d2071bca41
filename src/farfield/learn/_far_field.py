"""What a fitted estimator says far away, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
_PROOFS = {
    "construction": "The range is built into the network.",
    "certificate": "The range is proved for the fitted weights; certificates(…) with a larger budget tightens it.",
    "": "",
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
        For each output (low, high), which no prediction leaves; infinite unless bounded. For a classifier, of each
        class's probability.
    training_range
        For each output (least, greatest) target or, for a classifier, (0, 1).
    radii
        Distances from the center of the training inputs, in their standard deviations.
    seen
        At each radius, for each output, the least and greatest prediction along the directions that were tried.
    largest_slope
        For each output the greatest |f(2λu) − f(λu)|/λ over those directions at the largest radius: 0 where
        predictions are bounded. For a classifier, of the logits.
    directions
        How many were tried.
    proof
        ``"construction"``: the range is built into the network; ``"certificate"``: proved for the fitted weights;
        ``""``: there is none.
    far_field
        ``"norm"`` or ``"cap"``: what the networks have.
    choice
        What ``far_field="auto"`` compared, a :class:`~farfield.learn.FarFieldChoice` as plain data; None otherwise.
    said
        Sentences about that choice.
    classes
        Labels of a classifier, as text; empty for a regressor.
    """

    verdict: str
    output_range: tuple[tuple[float, float], ...]
    training_range: tuple[tuple[float, float], ...]
    radii: tuple[float, ...]
    seen: tuple[tuple[tuple[float, float], ...], ...]
    largest_slope: tuple[float, ...]
    directions: int
    proof: str = ""
    far_field: str = "norm"
    choice: Mapping[str, Any] | None = None
    said: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @property
    def relative_width(self) -> tuple[float, ...]:
        """For each output, width of the proved range over that of the targets: 1 is the least that holds them."""
        return tuple(
            (high - low) / (greatest - least) if greatest > least else math.nan
            for (low, high), (least, greatest) in zip(self.output_range, self.training_range, strict=True)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain lists and numbers."""
        return {**asdict(self), "relative_width": self.relative_width}

    def __str__(self) -> str:
        """A few lines to read; outputs apart."""
        lines = [f"{self.verdict}: {_MEANING[self.verdict]}"]
        lines += [words for words in (_PROOFS[self.proof], *self.said) if words]
        if self.classes:
            ceiling = max(high for _, high in self.output_range)
            lines.append(
                f"No class ever gets a probability above {_below_one(ceiling)}."
                if ceiling < 1.0
                else "Probabilities have no ceiling below 1."
            )
        for k in range(len(self.output_range)):
            lines.append(self._sentence(k))
            for radius, found in zip(self.radii, self.seen, strict=True):
                lines.append(f"  seen at radius {radius:>7.0e}: [{found[k][0]:.4g}, {found[k][1]:.4g}]")
            if self.verdict != "BOUNDED":
                what = "logits" if self.classes else "predictions"
                lines.append(
                    f"  largest slope of the {what} in {self.directions} directions: {self.largest_slope[k]:.4g} "
                    "for each standard deviation of the inputs"
                )
        return "\n".join(lines)

    def _sentence(self, k: int) -> str:
        low, high = self.output_range[k]
        least, greatest = self.training_range[k]
        if self.classes:
            return f"class {self.classes[k]}: probability always in [{low:.4g}, {_below_one(high)}]"
        targets = f"targets were in [{least:.4g}, {greatest:.4g}]"
        if not (math.isfinite(low) and math.isfinite(high)):
            return f"output {k}: no bound; {targets}"
        times = (
            f", so the proved range is {self.relative_width[k]:.3g} times theirs" if greatest > least else ""
        )
        return f"output {k}: always in [{low:.4g}, {high:.4g}]; {targets}{times}"


def _below_one(value: float) -> str:
    """Four digits, more if they would say 1."""
    return next((t for d in (4, 6, 9, 12) if float(t := f"{value:.{d}g}") < 1.0), f"{value:.4g}")


def pairs(values: Array) -> tuple[tuple[float, float], ...]:
    """(k, 2) as tuples."""
    return tuple((float(low), float(high)) for low, high in np.asarray(values).reshape(-1, 2))
