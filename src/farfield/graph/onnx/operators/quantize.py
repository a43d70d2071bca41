"""Numbers in few bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from farfield.graph.onnx._table import onnx_operator
from farfield.graph.onnx._values import Arguments, UnsupportedOnnxError
from farfield.graph.onnx.operators.create import torch_type
from farfield.graph.onnx.operators.linear import convolve

__all__: list[str] = []


def _spread(value: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """A scale or zero point against its tensor: one number, one for each slice, or one for each block."""
    if block:
        out = value.repeat_interleave(block, axis)
        return out.narrow(axis, 0, x.shape[axis]) if out.shape[axis] != x.shape[axis] else out
    if value.ndim == 1 and x.ndim >= 1 and value.numel() > 1:
        sizes = [1] * x.ndim
        sizes[axis % x.ndim] = -1
        return value.reshape(sizes)
    return value.reshape(()) if value.numel() == 1 else value


def _rounded(x: Tensor, scale: Tensor, zero: Tensor | None, kind: torch.dtype) -> Tensor:
    if kind.is_floating_point:
        raise UnsupportedOnnxError("quantization to 8-bit floating point")
    info = torch.iinfo(kind)
    steps = torch.round(x / scale)
    steps = steps if zero is None else steps + zero.to(steps.dtype)
    return torch.clamp(steps, info.min, info.max).to(kind)


@onnx_operator("QuantizeLinear")
def _quantize(a: Arguments) -> Any:
    x, scale, zero = a.tensor(0), a.tensor(1), a.optional(2)
    axis, block = a.attribute("axis", 1), a.attribute("block_size", 0)
    code = a.attribute("output_dtype", 0)
    kind = zero.dtype if zero is not None else torch_type(code) if code else torch.uint8
    scale = _spread(scale, x, axis, block)
    return _rounded(x, scale, None if zero is None else _spread(zero, x, axis, block), kind)


@onnx_operator("DequantizeLinear")
def _dequantize(a: Arguments) -> Any:
    x, scale, zero = a.tensor(0), a.tensor(1), a.optional(2)
    axis, block = a.attribute("axis", 1), a.attribute("block_size", 0)
    wide = scale.dtype
    spread = _spread(scale, x, axis, block)
    if zero is None:
        return x.to(wide) * spread
    return (x.to(torch.int32) - _spread(zero, x, axis, block).to(torch.int32)).to(wide) * spread


@onnx_operator("DynamicQuantizeLinear")
def _dynamic_quantize(a: Arguments) -> Any:
    x = a.tensor(0)
    high, low = x.amax().clamp_min(0.0), x.amin().clamp_max(0.0)
    scale = (high - low) / 255.0
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.clamp(torch.round(-low / scale), 0, 255)
    out = torch.clamp(torch.round(x / scale) + zero, 0, 255)
    return out.to(torch.uint8), scale, zero.to(torch.uint8)


def _real(x: Tensor, scale: Tensor, zero: Tensor, axis: int) -> Tensor:
    zero = _spread(zero, x, axis, 0).to(torch.float64)
    return (x.to(torch.float64) - zero) * _spread(scale, x, axis, 0).to(torch.float64)


@onnx_operator("QLinearMatMul")
def _quantized_matmul(a: Arguments) -> Any:
    x, w = a.tensor(0), a.tensor(3)
    left, right = _real(x, a.tensor(1), a.tensor(2), -2), _real(w, a.tensor(4), a.tensor(5), -1)
    return _rounded(torch.matmul(left, right), a.tensor(6).to(torch.float64), a.tensor(7), a.tensor(7).dtype)


@onnx_operator("QLinearConv")
def _quantized_conv(a: Arguments) -> Any:
    x, w, bias = a.tensor(0), a.tensor(3), a.optional(8)
    left, right = _real(x, a.tensor(1), a.tensor(2), 1), _real(w, a.tensor(4), a.tensor(5), 0)
    if bias is not None:
        bias = bias.to(torch.float64) * a.tensor(1).to(torch.float64) * a.tensor(4).to(torch.float64)
    out = convolve(a, left, right, bias)
    return _rounded(out, a.tensor(6).to(torch.float64), a.tensor(7), a.tensor(7).dtype)
