"""What flows between the nodes of an ONNX graph: tensors, and vectors of sizes that stay symbolic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from farfield.errors import FarfieldError

__all__ = ["Arguments", "IntVector", "UnsupportedOnnxError", "Value", "as_tensor"]


class UnsupportedOnnxError(FarfieldError, NotImplementedError):
    """An ONNX node that has no translation; it becomes an unknown node with this reason."""


@dataclass(frozen=True)
class IntVector:
    """Sizes and what is computed from them: an int64 vector (or scalar) that a dynamic batch keeps symbolic.

    ``torch.export`` can't read numbers out of a tensor, so what comes out of ``Shape`` is kept as Python integers and
    symbolic ones for as long as possible.
    """

    values: tuple[Any, ...]
    scalar: bool = False
    dtype: torch.dtype = torch.int64


Value: TypeAlias = "Tensor | IntVector"


def as_tensor(value: Value) -> Tensor:
    """The value as a tensor; symbolic sizes become entries of one."""
    if isinstance(value, Tensor):
        return value
    if all(isinstance(v, int) for v in value.values):
        flat = torch.tensor([int(v) for v in value.values], dtype=value.dtype)
    elif not value.values:
        flat = torch.zeros(0, dtype=value.dtype)
    else:
        flat = torch.stack([torch.scalar_tensor(v, dtype=value.dtype) for v in value.values])
    return flat[0] if value.scalar else flat


@dataclass(frozen=True)
class Arguments:
    """One node's inputs and attributes, as its function reads them.

    Parameters
    ----------
    inputs
        Values in the node's order; ``None`` for an optional input that is left out.
    literals
        For every input its entries as an array, where the file fixes them and they are few; else ``None``.
    attributes
        Name → number, text, list or tensor.
    opset
        Version of the operator set that the node belongs to.
    outputs
        Number of results, up to the last one that is used.
    """

    inputs: Sequence[Value | None]
    literals: Sequence[np.ndarray | None]
    attributes: Mapping[str, Any]
    opset: int
    outputs: int = 1

    def __len__(self) -> int:
        return len(self.inputs)

    def has(self, index: int) -> bool:
        """Whether an optional input is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int) -> Tensor:
        """An input as a tensor."""
        if not self.has(index):
            raise UnsupportedOnnxError(f"input {index} is missing")
        value = self.inputs[index]
        assert value is not None
        return as_tensor(value)

    def optional(self, index: int) -> Tensor | None:
        """An input as a tensor, or ``None`` where it is left out."""
        return self.tensor(index) if self.has(index) else None

    def tensors(self) -> list[Tensor]:
        """All inputs as tensors."""
        return [self.tensor(k) for k in range(len(self.inputs))]

    def vector(self, index: int) -> IntVector | None:
        """An input as integers known without looking into a tensor; ``None`` if there are none."""
        if not self.has(index):
            return None
        value, literal = self.inputs[index], self.literals[index]
        if isinstance(value, IntVector):
            return value
        if literal is not None and literal.dtype.kind in "iub" and literal.ndim <= 1:
            dtype = value.dtype if value is not None else torch.int64
            return IntVector(tuple(int(v) for v in literal.reshape(-1)), literal.ndim == 0, dtype)
        return None

    def vectors(self) -> list[IntVector] | None:
        """All inputs as known integers, at least one of them from a shape; ``None`` otherwise."""
        if not any(isinstance(value, IntVector) for value in self.inputs):
            return None
        found = [self.vector(k) for k in range(len(self.inputs))]
        return None if any(v is None for v in found) else [v for v in found if v is not None]

    def ints(self, index: int, default: Sequence[int] | None = None) -> list[Any] | None:
        """Known integers of an input (sizes, axes, pads), or the default where it is left out."""
        if not self.has(index):
            return None if default is None else list(default)
        found = self.vector(index)
        if found is None:
            raise UnsupportedOnnxError(f"input {index} (sizes, axes or counts) depends on data")
        return list(found.values)

    def numbers(self, index: int) -> list[float] | None:
        """Known real numbers of an input; ``None`` where it is left out."""
        if not self.has(index):
            return None
        literal, value = self.literals[index], self.inputs[index]
        if literal is not None:
            return [float(v) for v in literal.reshape(-1)]
        if isinstance(value, IntVector):
            return list(value.values)
        raise UnsupportedOnnxError(f"input {index} (numbers) depends on data")

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)

    def axes(self, index: int, since: int, default: Sequence[int] | None = None) -> list[int] | None:
        """Axes, an attribute before operator set ``since`` and an input from then on."""
        given = self.attribute("axes")
        if self.opset < since or given is not None:
            return list(default) if given is None and default is not None else given
        return self.ints(index, default)
