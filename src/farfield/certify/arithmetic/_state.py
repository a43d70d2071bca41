"""What is known of one value as it is really computed: how far it can be from its value in real arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from farfield.certify.arithmetic._formats import FloatFormat
from farfield.errors import FarfieldError
from farfield.graph import Node, Program

__all__ = ["Drift", "RoundingError", "Walker", "node_shape", "of_farfield", "still"]

_LAYERS = Path(__file__).resolve().parents[2] / "nn"


class RoundingError(FarfieldError):
    """There is no bound of the rounding: the message says which operator or size is in the way."""

    def __init__(self, message: str, *, by_size: bool = False) -> None:
        super().__init__(message)
        self.by_size = by_size


@dataclass(frozen=True)
class Drift:
    r"""|computed − real| ≤ error, |real| ≤ size, entry by entry.

    ``relative`` and ``coefficients`` say the same in terms of the input, which may be of any size:
    |computed − real| ≤ relative @ (|x|, 1) and |real| ≤ coefficients @ (|x|, 1), rows over the value's entries, x the
    real inputs flattened and joined. ``own`` says it in terms of the value itself: |computed − real| ≤ own·|real|.
    ``None`` where that is not followed. All hold; the smallest counts.
    """

    error: Tensor
    size: Tensor
    relative: Tensor | None = None
    coefficients: Tensor | None = None
    own: Tensor | None = None

    @property
    def computed_size(self) -> Tensor:
        """At least |computed|."""
        return self.size + self.error

    @property
    def exact(self) -> bool:
        """Nothing is rounded so far."""
        return not bool(self.error.any()) and (self.relative is None or not bool(self.relative.any()))


class Walker(Protocol):
    """What a rule may ask of the walk over a program."""

    program: Program
    claims: dict[str, Any]
    real: FloatFormat

    def linear(self, node: Node, operands: tuple[Drift | None, ...]) -> Drift:
        """The drift of an operator that is linear, or a product."""
        ...

    def claimed_size(self, node: Node) -> Tensor | None:
        """At least |value|, by the claimed range."""
        ...


def still(value: Tensor) -> Drift:
    """A known constant: no error."""
    size = value.detach().to(torch.float64).abs()
    return Drift(torch.zeros_like(size), size)


def of_farfield(node: Node) -> bool:
    """Whether a step was written in farfield's own layers, which are made not to overflow."""
    return node.source is not None and Path(node.source.rpartition(":")[0]).resolve().is_relative_to(_LAYERS)


def node_shape(node: Node) -> tuple[int, ...]:
    """Sizes of a value, all of them numbers."""
    return tuple(int(d) for d in node.shape)
