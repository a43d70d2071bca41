"""Constants, ranges and types."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from farfield.graph.onnx._table import onnx_operator
from farfield.graph.onnx._values import Arguments, IntVector, UnsupportedOnnxError

__all__ = ["TYPES", "torch_type"]

TYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    14: torch.complex64,
    15: torch.complex128,
    16: torch.bfloat16,
    17: torch.float8_e4m3fn,
    18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2,
    20: torch.float8_e5m2fnuz,
}
"""``TensorProto.DataType`` → torch's type."""


def torch_type(code: int) -> torch.dtype:
    """The torch type of an ONNX one."""
    if code not in TYPES:
        raise UnsupportedOnnxError("texts" if code == 8 else f"the ONNX element type {code}")
    return TYPES[code]


@onnx_operator("Constant")
def _constant(a: Arguments) -> Any:
    for name, kind in (("value_float", torch.float32), ("value_int", torch.int64)):
        if name in a.attributes:
            return torch.tensor(a.attributes[name], dtype=kind)
    for name, kind in (("value_floats", torch.float32), ("value_ints", torch.int64)):
        if name in a.attributes:
            return torch.tensor(list(a.attributes[name]), dtype=kind)
    if isinstance(a.attribute("value"), torch.Tensor):
        return a.attributes["value"]
    raise UnsupportedOnnxError("a constant that is no tensor of numbers")


@onnx_operator("ConstantOfShape")
def _constant_of_shape(a: Arguments) -> Any:
    sizes = a.ints(0)
    assert sizes is not None
    value = a.attribute("value")
    if value is None:
        return torch.zeros(sizes)
    if value.dtype == torch.int64 and len(sizes) == 1 and isinstance(sizes[0], int) and sizes[0] <= 64:
        return IntVector((int(a.attribute("value_number", 0)),) * sizes[0])
    return torch.full(sizes, a.attribute("value_number", 0), dtype=value.dtype)


@onnx_operator("Range")
def _range(a: Arguments) -> Any:
    parts: list[Any] = []
    for k in range(3):
        literal, value = a.literals[k], a.inputs[k]
        if isinstance(value, IntVector):
            parts.append(value.values[0])
        elif literal is not None:
            parts.append(literal.reshape(-1)[0].item())
        else:
            raise UnsupportedOnnxError("the limits of Range depend on data")
    first = a.inputs[0]
    return torch.arange(parts[0], parts[1], parts[2], dtype=first.dtype if first is not None else torch.int64)


@onnx_operator("EyeLike")
def _eye_like(a: Arguments) -> Any:
    x, code, k = a.tensor(0), a.attribute("dtype"), a.attribute("k", 0)
    rows, columns = torch.arange(x.shape[0]), torch.arange(x.shape[1])
    return (columns[None, :] - rows[:, None] == k).to(x.dtype if code is None else torch_type(code))


@onnx_operator("Cast")
def _cast(a: Arguments) -> Any:
    kind, value = torch_type(a.attribute("to")), a.inputs[0]
    if isinstance(value, IntVector) and kind in (torch.int64, torch.int32):
        return IntVector(value.values, value.scalar, kind)
    if isinstance(value, IntVector) and kind == torch.bool and all(isinstance(v, int) for v in value.values):
        return IntVector(tuple(int(v != 0) for v in value.values), value.scalar, kind)
    return a.tensor(0).to(kind)


@onnx_operator("CastLike")
def _cast_like(a: Arguments) -> Any:
    other = a.inputs[1]
    assert other is not None
    return a.tensor(0).to(other.dtype)


def number_of(value: np.ndarray) -> Any:
    """The one entry of an array."""
    return value.reshape(-1)[0].item()
