"""The tangent kernel from the structure of layers: small Gram matrices, never a Jacobian."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farfield.engine import Tile
from farfield.ntk._calls import ParameterCall
from farfield.ntk._factors import Factors, FullGradients, Gradients, Outer
from farfield.ntk._gram import contract, contributions
from farfield.ntk._plan import CallPlan

__all__ = ["LayerwiseTile", "bytes_per_input", "sliced"]


def sliced(factors: Factors, rows: slice) -> Factors:
    """The factors of some of the inputs."""
    return {
        name: [FullGradients(t.value[rows]) if isinstance(t, FullGradients) else t[rows] for t in terms]
        for name, terms in factors.items()
    }


def joined(parts: list[Factors]) -> Factors:
    """The factors of several batches, one after another."""
    if len(parts) == 1:
        return parts[0]
    result: Factors = {}
    for name, terms in parts[0].items():
        columns = [[part[name][k] for part in parts] for k in range(len(terms))]
        result[name] = [_cat(column) for column in columns]
    return result


def _cat(terms: list[Any]) -> Outer | FullGradients:
    if isinstance(terms[0], FullGradients):
        return FullGradients(torch.cat([t.value for t in terms]))
    return Outer(torch.cat([t.left for t in terms]), torch.cat([t.right for t in terms]), terms[0].ones)


def bytes_per_input(found: CallPlan, parameters: dict[str, Tensor]) -> int:
    """What one input's factors take, inputs of the calls and derivatives of every output."""
    uses = Counter(call.weight for call in found.calls)
    widest = max(p.itemsize for p in parameters.values())
    total = sum(parameters[name].numel() * found.outputs * widest for name in found.opaque)
    for call, (shape, dtype, _), given in zip(found.calls, found.shapes, found.inputs, strict=True):
        numbers = math.prod(shape) * found.outputs
        if call.weight is not None:
            # Several uses of one parameter are put together, with a copy of the input for each output.
            numbers += _input_size(call, given, shape) * (found.outputs if uses[call.weight] > 1 else 1)
        total += numbers * max(dtype.itemsize, widest)
    return total


def _input_size(call: ParameterCall, given: torch.Size, output: torch.Size) -> int:
    if call.kind == "convolution":
        dimension: int = call.option("dimension")
        kernel: tuple[int, ...] = call.option("kernel")
        pictures = math.prod(given[: -dimension - 1])
        return pictures * math.prod(kernel) * given[-dimension - 1] * math.prod(output[-dimension:])
    if call.kind == "embedding":
        return math.prod(given) * int(call.option("rows"))
    return math.prod(given)


@dataclass(frozen=True)
class LayerwiseTile:
    """Task: one tile of the kernel from the factors of its rows and of its columns.

    Parameters
    ----------
    gradients
        From inputs to factors.
    x1, x2
        All inputs; the same object for a symmetric kernel.
    trace
        Whether one number a pair is asked for.
    batch
        Inputs that go through the model at once.
    room
        Bytes for what is held while a tile is contracted.
    """

    gradients: Gradients
    x1: Tensor
    x2: Tensor
    trace: bool
    batch: int
    room: int

    def _factors(self, x: Tensor, place: tuple[int, int], side: str) -> Factors:
        """Of some rows; the last ones asked for on each side are kept, for the tiles of one row of tiles share
        them.
        """
        kept = self.__dict__.setdefault("_kept", {})
        key = (place, id(x))
        for held in kept.values():
            if held[0] == key:
                return held[1]  # type: ignore[no-any-return]
        rows = x[slice(*place)]
        found = joined([self.gradients(part) for part in rows.split(self.batch)])
        kept[side] = (key, found)
        return found

    def __call__(self, tile: Tile) -> Tensor:
        """(rows, columns) if one number a pair is asked for, else (K, K, rows, columns)."""
        a = self._factors(self.x1, tile.rows, "rows")
        b = self._factors(self.x2, tile.columns, "columns")
        if not a:  # the outputs depend on none of the parameters
            k = self.gradients.plan.outputs
            return self.gradients.zeros((*tile.shape,) if self.trace else (k, k, *tile.shape))
        value = contract(a, b, trace=self.trace, room=self.room)
        return value if self.trace else value.permute(2, 3, 0, 1).contiguous()

    def parts(self, tile: Tile) -> dict[str, Tensor]:
        """Every parameter's part of a tile."""
        a = self._factors(self.x1, tile.rows, "rows")
        b = self._factors(self.x2, tile.columns, "columns")
        return contributions(a, b, trace=self.trace, room=self.room)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_kept"}
