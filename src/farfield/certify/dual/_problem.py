"""The maximization behind a bound: one affine objective over balls, boxes and scalar curves.

    maximize  c·x + Σ w·y_last   over   x = (sources, curves),  y = σ(Fx + b),  ball: xᵀGx ≤ ρ²,  box: lo ≤ x ≤ hi

A norm met straight behind the homogeneous input is *parametrized*, not only enclosed: on the ellipsoid
{u : uᵀGu = 1}, G = CᵀC/count + ε e_t e_tᵀ, its value is C u exactly, so the ball has the input's dimension plus one
instead of the layer's width. Every other norm is its image: ‖y‖ ≤ ρ, Σy = 0 where it centers. Over a region the u
lie in a smaller ellipsoid with a center p of its own (:mod:`farfield.certify._enclosure`), and x is u − p.

All variables are scaled by powers of two, which round nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from farfield.certify._proofs import Enclosure
from farfield.gaussian import ScalarFunction

__all__ = ["Ball", "Box", "Curve", "Problem"]


@dataclass(frozen=True)
class Ball:
    """xᵀ gram x ≤ radius² for the variables of ``columns``; with Σx = 0 where ``centered``.

    Over a region ``gram`` is as good as float64 makes it: only the checker proves what rests on an ``enclosure``.
    """

    columns: slice
    gram: Tensor
    gram_magnitude: Tensor
    radius: float
    centered: bool
    block: int
    parametrized: bool = False
    enclosure: Enclosure | None = None
    """The weights that make ``gram`` what it is over a region."""


@dataclass(frozen=True)
class Box:
    """lo ≤ x ≤ hi for the variables of ``columns``."""

    columns: slice
    lo: Tensor
    hi: Tensor
    scale: Tensor
    block: int


@dataclass(frozen=True)
class Curve:
    """y = σ(z), z = matrix @ x + offset within [lo, hi]; both y and z are divided by ``unit``.

    ``columns`` is ``None`` where y enters nothing but the objective: then it isn't a variable.
    """

    columns: slice | None
    matrix: Tensor
    magnitude: Tensor
    offset: Tensor
    offset_magnitude: Tensor
    lo: Tensor
    hi: Tensor
    unit: Tensor
    scalar: ScalarFunction
    block: int


@dataclass(frozen=True)
class Problem:
    """See the module. ``objective`` is (outputs, size), ``last`` per curve (outputs, entries)."""

    size: int
    balls: tuple[Ball, ...]
    boxes: tuple[Box, ...]
    curves: tuple[Curve, ...]
    objective: Tensor
    objective_magnitude: Tensor
    last: tuple[Tensor | None, ...]
    last_magnitude: tuple[Tensor | None, ...]
    offset: Tensor
    offset_magnitude: Tensor
    cone: Tensor
    """(rows, size): rows·x + cone_offset is never negative."""
    cone_offset: Tensor
    cone_scale: Tensor
    """(rows,): the units of those rows."""

    def reference(self) -> tuple[Tensor, list[Tensor]]:
        """(x₀, every curve's argument there): a point near the variables' ranges, with 0 where a range holds it."""
        x = torch.zeros(self.size, dtype=self.objective.dtype)
        for box in self.boxes:
            x[box.columns] = _nearby(box.lo, box.hi)
        arguments = []
        for curve in self.curves:
            arguments.append(curve.matrix @ x + curve.offset)
            if curve.columns is not None:
                low, high = curve.scalar.rough_image(curve.lo * curve.unit, curve.hi * curve.unit)
                x[curve.columns] = _nearby(low / curve.unit, high / curve.unit)
        return x, arguments

    def to(self, dtype: torch.dtype) -> Problem:
        """The same in another type: for a search, never for a proof."""
        made = _cast(self, dtype)
        assert isinstance(made, Problem)
        return made


def _nearby(lo: Tensor, hi: Tensor) -> Tensor:
    """0 where a range holds it, else the middle."""
    return torch.where((lo > 0) | (hi < 0), lo + 0.5 * (hi - lo), torch.zeros_like(lo))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Every tensor of a problem's parts in another type."""
    if isinstance(value, Tensor):
        return value.to(dtype)
    if isinstance(value, tuple):
        return tuple(_cast(part, dtype) for part in value)
    if isinstance(value, Problem | Ball | Box | Curve):
        return replace(value, **{f.name: _cast(getattr(value, f.name), dtype) for f in fields(value)})
    return value
