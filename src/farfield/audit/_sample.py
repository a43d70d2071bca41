"""Samples of the example inputs: as many rows as a program takes, and one where rows are samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from farfield.graph import Program, SymbolicSize
from farfield.growth._evaluate import rows_are_samples

__all__ = ["as_sized", "one_sample"]


def as_sized(program: Program, inputs: Any) -> Any:
    """Inputs cut to the rows that a program takes, where it takes a fixed number and they are more: data is data."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    if len(tensors) != len(program.inputs):
        return inputs
    sizes = iter([spec.shape[0] if spec.shape else None for spec in program.inputs])

    def cut(leaf: Any) -> Any:
        size = next(sizes) if isinstance(leaf, Tensor) else None
        return leaf[:size] if isinstance(size, int) and leaf.ndim and 0 < size < len(leaf) else leaf

    return tree_map(cut, inputs)


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
    return tuple(t[:1] if s.shape and (s.shape[0] == 1 or str(s.shape[0]) in free) else t for t, s in pairs)
