"""Operators of two or more tensors, entry by entry; sizes stay symbolic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from farfield.graph.onnx._table import OnnxFunction, onnx_operator
from farfield.graph.onnx._values import Arguments, IntVector

__all__: list[str] = []


def _vectors(
    function: Callable[..., Any], parts: Sequence[IntVector], dtype: torch.dtype | None = None
) -> IntVector | None:
    """A function of integers applied to known sizes, entry by entry with broadcasting; of the operands' own type."""
    lengths = {len(p.values) for p in parts} - {1}
    if len(lengths) > 1:
        return None
    length = lengths.pop() if lengths else 1
    rows = [p.values * (length if len(p.values) == 1 else 1) for p in parts]
    return IntVector(
        tuple(function(*row) for row in zip(*rows, strict=True)),
        all(p.scalar for p in parts),
        parts[-1].dtype if dtype is None else dtype,
    )


def _binary(
    real: Callable[[Tensor, Any], Tensor],
    sizes: Callable[[Any, Any], Any] | None = None,
    dtype: torch.dtype | None = None,
    *,
    number: bool = False,
    commutes: bool = False,
) -> OnnxFunction:
    """A function of two tensors; with ``number`` its second may be a Python number, as people write them.

    Where it ``commutes``, a constant of one entry stands second, wherever the file has it.
    """

    def run(a: Arguments) -> Any:
        known = a.vectors() if sizes is not None else None
        if known is not None and sizes is not None:
            found = _vectors(sizes, known, dtype)
            if found is not None:
                return found
        first, second = (1, 0) if commutes and _single(a, 0) and not _single(a, 1) else (0, 1)
        x, literal = a.tensor(first), a.literals[second]
        if number and literal is not None and literal.ndim == 0 and x.is_floating_point():
            return real(x, float(literal))
        return real(x, a.tensor(second))

    return run


def _single(a: Arguments, index: int) -> bool:
    """Whether an input is a constant of one entry."""
    literal = a.literals[index]
    return literal is not None and literal.size == 1


def _div(x: Tensor, y: Any) -> Tensor:
    return x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


_DIVIDED = _binary(_div, lambda x, y: _quotient(x, y), number=True)


def _divided(a: Arguments) -> Any:
    """A quotient; 1/x as a reciprocal, which is what torch makes of it and what norms by hand are found by."""
    literal = a.literals[0]
    if (
        literal is not None
        and literal.size == 1
        and literal.dtype.kind == "f"
        and literal.reshape(-1)[0] == 1
    ):
        x = a.tensor(1)
        if literal.ndim <= x.ndim and x.is_floating_point():
            return torch.reciprocal(x)
    return _DIVIDED(a)


def _quotient(x: Any, y: Any) -> Any:
    """Integer division of sizes, towards zero where both numbers are known."""
    if isinstance(x, int) and isinstance(y, int):
        return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return x // y


def _pow(x: Tensor, y: Tensor) -> Tensor:
    return torch.pow(x, y).to(x.dtype)


def _choose(test: Any, x: Any, y: Any) -> Any:
    return x if test else y


onnx_operator("Add")(_binary(torch.add, lambda x, y: x + y, number=True, commutes=True))
onnx_operator("Sub")(_binary(torch.sub, lambda x, y: x - y, number=True))
onnx_operator("Mul")(_binary(torch.mul, lambda x, y: x * y, number=True, commutes=True))
onnx_operator("Div")(_divided)
onnx_operator("And")(_binary(torch.logical_and))
onnx_operator("Or")(_binary(torch.logical_or))
onnx_operator("Xor")(_binary(torch.logical_xor))
onnx_operator("BitwiseAnd")(_binary(torch.bitwise_and))
onnx_operator("BitwiseOr")(_binary(torch.bitwise_or))
onnx_operator("BitwiseXor")(_binary(torch.bitwise_xor))
onnx_operator("Equal")(_binary(torch.eq, lambda x, y: int(bool(x == y)), torch.bool))
onnx_operator("Greater")(_binary(torch.gt, lambda x, y: int(bool(x > y)), torch.bool))
onnx_operator("GreaterOrEqual")(_binary(torch.ge, lambda x, y: int(bool(x >= y)), torch.bool))
onnx_operator("Less")(_binary(torch.lt, lambda x, y: int(bool(x < y)), torch.bool))
onnx_operator("LessOrEqual")(_binary(torch.le, lambda x, y: int(bool(x <= y)), torch.bool))


@onnx_operator("Pow")
def _power(a: Arguments) -> Any:
    x, literal = a.tensor(0), a.literals[1]
    if literal is not None and literal.size == 1 and literal.ndim <= x.ndim and x.is_floating_point():
        exponent = float(literal.reshape(-1)[0])
        return torch.pow(x, int(exponent) if exponent == int(exponent) else exponent)
    return _pow(x, a.tensor(1))


@onnx_operator("Mod")
def _mod(a: Arguments) -> Any:
    known = a.vectors()
    found = None if known is None else _vectors(lambda x, y: x % y, known)
    if found is not None:
        return found
    x, y = a.tensor(0), a.tensor(1)
    return torch.fmod(x, y) if a.attribute("fmod", 0) else torch.remainder(x, y)


@onnx_operator("BitShift")
def _bit_shift(a: Arguments) -> Any:
    x, y = a.tensor(0), a.tensor(1)
    wide = (torch.uint16, torch.uint32, torch.uint64)
    if x.dtype in wide:
        shift = torch.bitwise_left_shift if a.attribute("direction") == "LEFT" else torch.bitwise_right_shift
        mask = (1 << 8 * x.dtype.itemsize) - 1 if x.dtype != torch.uint64 else -1
        return torch.bitwise_and(shift(x.to(torch.int64), y.to(torch.int64)), mask).to(x.dtype)
    if a.attribute("direction") == "LEFT":
        return torch.bitwise_left_shift(x, y)
    return torch.bitwise_right_shift(x, y)


@onnx_operator("Max")
def _max(a: Arguments) -> Any:
    known = a.vectors()
    found = None if known is None else _vectors(lambda *v: functools.reduce(torch.sym_max, v), known)
    return found if found is not None else functools.reduce(torch.maximum, a.tensors())


@onnx_operator("Min")
def _min(a: Arguments) -> Any:
    known = a.vectors()
    found = None if known is None else _vectors(lambda *v: functools.reduce(torch.sym_min, v), known)
    return found if found is not None else functools.reduce(torch.minimum, a.tensors())


@onnx_operator("Sum")
def _sum(a: Arguments) -> Any:
    return functools.reduce(torch.add, a.tensors())


@onnx_operator("Mean")
def _mean(a: Arguments) -> Any:
    return functools.reduce(torch.add, a.tensors()) / len(a)


@onnx_operator("Where")
def _where(a: Arguments) -> Any:
    known = a.vectors()
    found = None if known is None else _vectors(_choose, known)
    return found if found is not None else torch.where(a.tensor(0), a.tensor(1), a.tensor(2))
