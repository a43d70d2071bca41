"""Functions of one entry: ``Exp``, ``Erf``, ``Round``, … , and tests of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from farfield.graph.onnx._table import OnnxFunction, onnx_operator
from farfield.graph.onnx._values import Arguments, IntVector

__all__ = ["PLAIN"]

PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
"""Operators that torch has under the same meaning."""


def _plain(function: Callable[[Tensor], Tensor]) -> OnnxFunction:
    return lambda a: function(a.tensor(0))


for _name, _function in PLAIN.items():
    onnx_operator(_name)(_plain(_function))


@onnx_operator("Abs")
def _abs(a: Arguments) -> Any:
    sizes = a.inputs[0]
    if isinstance(sizes, IntVector):
        return IntVector(tuple(abs(v) for v in sizes.values), sizes.scalar, sizes.dtype)
    return torch.abs(a.tensor(0))


@onnx_operator("Neg")
def _neg(a: Arguments) -> Any:
    sizes = a.inputs[0]
    if isinstance(sizes, IntVector):
        return IntVector(tuple(-v for v in sizes.values), sizes.scalar, sizes.dtype)
    return torch.neg(a.tensor(0))


@onnx_operator("Identity")
def _identity(a: Arguments) -> Any:
    value = a.inputs[0]
    return value if isinstance(value, IntVector) else a.tensor(0)


@onnx_operator("IsInf")
def _is_inf(a: Arguments) -> Any:
    x = a.tensor(0)
    positive, negative = a.attribute("detect_positive", 1), a.attribute("detect_negative", 1)
    if positive and negative:
        return torch.isinf(x)
    if positive:
        return torch.isposinf(x)
    return torch.isneginf(x) if negative else torch.zeros_like(x, dtype=torch.bool)


@onnx_operator("Clip")
def _clip(a: Arguments) -> Any:
    x = a.tensor(0)
    limits: list[Any] = [a.attribute("min"), a.attribute("max")]
    for k in (1, 2):
        if a.has(k):
            literal = a.literals[k]
            known = literal is not None and literal.size == 1 and x.is_floating_point()
            limits[k - 1] = float(literal.reshape(-1)[0]) if known and literal is not None else a.tensor(k)
    low, high = limits
    if low is None and high is None:
        return x
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        bound = [
            v.reshape(()) if isinstance(v, Tensor) else None if v is None else torch.tensor(v, dtype=x.dtype)
            for v in limits
        ]
        return torch.clamp(x, bound[0], bound[1])
    return torch.clamp(x, low, high)
