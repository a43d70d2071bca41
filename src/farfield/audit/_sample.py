"""One sample of the example inputs: a row where rows are samples."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from farfield.graph import Program, SymbolicSize
from farfield.growth._evaluate import rows_are_samples

__all__ = ["one_sample"]


def one_sample(program: Program, inputs: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """Inputs cut to their first row where rows are samples, whole where they are not; ``None`` if they do not fit."""
    if len(inputs) != len(program.inputs):
        return None
    pairs = list(zip(inputs, program.inputs, strict=True))
    # An axis of one row has nothing to cut.
    axes = {
        str(s.shape[0]) for t, s in pairs if s.shape and isinstance(s.shape[0], SymbolicSize) and len(t) > 1
    }
    free = {axis for axis in axes if rows_are_samples(program, inputs, axis)}
    return tuple(t[:1] if s.shape and str(s.shape[0]) in free else t for t, s in pairs)
