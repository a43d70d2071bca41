"""A network without a norm, bounded by what its training rows showed; and how the two kinds are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from farfield.learn._members import evaluate
from farfield.learn._scaling import Array
from farfield.nn import MLP, FeatureClamp, NormCap

__all__ = ["FarFieldChoice", "outer_rows", "protected"]

_DEVIATIONS = 5.0
"""A feature is trusted to this many standard deviations, or to what was seen where that is wider."""
_MARGIN = 1e-5
"""Limits lie outside what was met by this much of it: a batch of another size rounds differently."""
_OUTER = 0.1
"""Share of the rows that are left out of training to compare the two kinds on."""
_FEWEST = 100
"""Rows from which a tenth of them can tell two networks apart at all."""


@torch.no_grad()
def protected(net: nn.Module, inputs: Tensor) -> nn.Sequential:
    """A trained network whose features and first hidden layer stay where the training rows were.

    Every feature keeps its value to five standard deviations, or as far as a training row went; it stays flat to
    twice that distance from the mean, and is back at the mean at four times. The first hidden layer keeps its
    direction, and its norm never exceeds the largest on a training row. On the training rows nothing changes.
    """
    assert isinstance(net, MLP)
    mean, deviation = inputs.mean(0), inputs.std(0, correction=0)
    low = torch.minimum(inputs.amin(0), mean - _DEVIATIONS * deviation)
    high = torch.maximum(inputs.amax(0), mean + _DEVIATIONS * deviation)
    features = FeatureClamp(low, high, center=mean.clamp(low, high))
    layers = list(net)  # a linear layer and its activation, and what follows
    first, rest = nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:])
    largest = max(
        float(torch.linalg.vector_norm(evaluate(first, features(piece)), dim=1).max())
        for piece in inputs.split(65_536)
    )
    cap = NormCap(max(largest * (1.0 + _MARGIN), 1e-30), center=torch.zeros((), dtype=inputs.dtype))
    return nn.Sequential(features, first, cap, rest)


def outer_rows(inputs: Array) -> Array | None:
    """Which rows are of the tenth with the largest norm; None if there are too few rows to leave any out."""
    if len(inputs) < _FEWEST:
        return None
    size = np.linalg.norm(inputs, axis=1)
    chosen: Array = np.zeros(len(inputs), dtype=bool)
    chosen[np.argsort(-size, kind="stable")[: round(_OUTER * len(inputs))]] = True
    return chosen


@dataclass(frozen=True)
class FarFieldChoice:
    """What ``far_field="auto"`` chose, and why.

    Parameters
    ----------
    chosen
        ``"norm"`` or ``"cap"``.
    errors
        Mean loss of each kind on the outermost tenth of the rows, after training without them: squared errors in
        units of the targets' variance, or cross-entropy. Empty if there were too few rows to compare.
    rows
        How many were left out.
    difference, standard_error
        Mean of (loss of the kind that was not chosen − loss of the chosen one) over those rows, and its standard
        error.
    """

    chosen: str
    errors: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0
    difference: float = math.nan
    standard_error: float = math.nan

    @classmethod
    def between(cls, losses: Mapping[str, Array], weights: Array | None) -> FarFieldChoice:
        """Take the kind with the smaller mean loss; a norm, if they are level."""
        count = max(len(values) for values in losses.values())
        share = np.ones(count) if weights is None else weights
        errors = {
            kind: float(np.average(values, weights=share)) if len(values) == count else math.inf
            for kind, values in losses.items()
        }
        chosen = min(errors, key=lambda kind: (errors[kind], kind != "norm"))
        other = next(kind for kind in errors if kind != chosen)
        if not math.isfinite(errors[other]):
            return cls(chosen, errors, count)
        apart = losses[other] - losses[chosen]
        mean = float(np.average(apart, weights=share))
        error = math.sqrt(float((share**2 * (apart - mean) ** 2).sum())) / float(share.sum())
        return cls(chosen, errors, count, mean, error)

    def __str__(self) -> str:
        if not self.errors:
            return (
                f"far_field='auto' took {self.chosen!r}: there are fewer than {_FEWEST} rows to compare on."
            )
        other = next(kind for kind in self.errors if kind != self.chosen)
        return (
            f"far_field='auto' took {self.chosen!r}: trained without the {self.rows} outermost rows, its loss there "
            f"is {self.errors[self.chosen]:.3g}; that of {other!r} is {self.errors[other]:.3g} "
            f"(difference {self.difference:.2g} ± {self.standard_error:.2g}, one standard error)."
        )
