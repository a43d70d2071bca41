"""Sums, extremes and orders along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from farfield.graph.onnx._table import OnnxFunction, onnx_operator
from farfield.graph.onnx._values import Arguments, IntVector

__all__: list[str] = []

_SINCE = {"ReduceSum": 13}
"""Operator set from which axes are an input; 18 for the others."""


def _prod(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted((k % x.ndim for k in axes), reverse=True):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.is_floating_point():
        return x.mean(axes, keepdim=keep)
    count = math.prod(x.shape[k] for k in axes)
    return torch.div(x.sum(axes, keepdim=keep), count, rounding_mode="trunc").to(x.dtype)


_REDUCTIONS: dict[str, Callable[[Tensor, tuple[int, ...], bool], Tensor]] = {
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep, dtype=x.dtype),
    "ReduceL2": lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keepdim=keep),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keepdim=keep).log(),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "ReduceMean": _mean,
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "ReduceProd": _prod,
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep, dtype=x.dtype),
    "ReduceSumSquare": lambda x, axes, keep: x.square().sum(axes, keepdim=keep, dtype=x.dtype),
}
_OF_SIZES: dict[str, Callable[[list[Any]], Any]] = {
    "ReduceProd": lambda values: math.prod(values),
    "ReduceSum": lambda values: sum(values),
    "ReduceMax": lambda values: values[0] if len(values) == 1 else _largest(values),
}


def _largest(values: list[Any]) -> Any:
    found = values[0]
    for value in values[1:]:
        found = torch.sym_max(found, value)
    return found


def _reduction(name: str) -> OnnxFunction:
    function = _REDUCTIONS[name]

    def run(a: Arguments) -> Any:
        keep = bool(a.attribute("keepdims", 1))
        sizes = a.inputs[0]
        if isinstance(sizes, IntVector) and not sizes.scalar and name in _OF_SIZES and sizes.values:
            return IntVector((_OF_SIZES[name](list(sizes.values)),), not keep, sizes.dtype)
        x = a.tensor(0)
        axes = a.axes(1, _SINCE.get(name, 18))
        if not axes:
            if a.attribute("noop_with_empty_axes", 0):
                return _alone(name, x)
            axes = list(range(x.ndim))
        if x.ndim == 0:
            return _alone(name, x)
        if x.dtype == torch.bool:
            return function(x.to(torch.uint8), tuple(axes), keep).to(torch.bool)
        return function(x, tuple(k % x.ndim for k in axes), keep)

    return run


def _alone(name: str, x: Tensor) -> Tensor:
    """The reduction of every entry by itself."""
    if name in ("ReduceL1", "ReduceL2"):
        return x.abs()
    if name == "ReduceLogSum":
        return x.log()
    return x.square() if name == "ReduceSumSquare" else x


for _name in _REDUCTIONS:
    onnx_operator(_name)(_reduction(_name))


def _arg(a: Arguments, function: Callable[..., Tensor]) -> Tensor:
    x, axis, keep = a.tensor(0), a.attribute("axis", 0), bool(a.attribute("keepdims", 1))
    if not a.attribute("select_last_index", 0):
        return function(x, axis, keepdim=keep)
    last = function(torch.flip(x, [axis]), axis, keepdim=keep)
    found: Tensor = x.shape[axis] - 1 - last
    return found


@onnx_operator("ArgMax")
def _argmax(a: Arguments) -> Any:
    return _arg(a, torch.argmax)


@onnx_operator("ArgMin")
def _argmin(a: Arguments) -> Any:
    return _arg(a, torch.argmin)


def _running(a: Arguments, function: Callable[..., Tensor], start: int) -> Tensor:
    x = a.tensor(0)
    axis = (a.ints(1) or [0])[0] % x.ndim
    reverse, exclusive = a.attribute("reverse", 0), a.attribute("exclusive", 0)
    x = torch.flip(x, [axis]) if reverse else x
    out = function(x, axis, dtype=x.dtype)
    if exclusive:
        first = torch.full_like(x.narrow(axis, 0, 1), start)
        out = torch.cat([first, out.narrow(axis, 0, x.shape[axis] - 1)], axis)
    return torch.flip(out, [axis]) if reverse else out


@onnx_operator("CumSum")
def _cumsum(a: Arguments) -> Any:
    return _running(a, torch.cumsum, 0)


@onnx_operator("CumProd")
def _cumprod(a: Arguments) -> Any:
    return _running(a, torch.cumprod, 1)


@onnx_operator("TopK")
def _topk(a: Arguments) -> Any:
    count = a.attribute("k") if a.opset < 10 else (a.ints(1) or [1])[0]
    largest, axis = bool(a.attribute("largest", 1)), a.attribute("axis", -1)
    values, indices = torch.topk(a.tensor(0), count, axis, largest, bool(a.attribute("sorted", 1)))
    return values, indices
