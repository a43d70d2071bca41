"""Pooling."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from farfield.graph.onnx._table import onnx_operator
from farfield.graph.onnx._values import Arguments, UnsupportedOnnxError
from farfield.graph.onnx.operators.linear import padded, paddings

__all__: list[str] = []

_AVERAGES = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
_LARGEST = (F.max_pool1d, F.max_pool2d, F.max_pool3d)


def _window(
    a: Arguments, x: Tensor
) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int]]:
    """Kernel, strides, dilations, padding before, padding after, and what ``ceil_mode`` adds behind it."""
    kernel = list(a.attribute("kernel_shape"))
    count = len(kernel)
    if not 1 <= count <= 3:
        raise UnsupportedOnnxError(f"pooling over {count} axes")
    strides = list(a.attribute("strides") or [1] * count)
    dilations = list(a.attribute("dilations") or [1] * count)
    before, after = paddings(a, x.shape[2:], kernel, strides, dilations)
    extra = [0] * count
    if a.attribute("ceil_mode", 0):
        for k in range(count):
            size = x.shape[2 + k]
            if not isinstance(size, int):
                raise UnsupportedOnnxError("pooling with ceil_mode over an open size")
            room = size + before[k] + after[k] - dilations[k] * (kernel[k] - 1) - 1
            windows = math.ceil(room / strides[k]) + 1
            if (windows - 1) * strides[k] >= size + before[k]:  # a window has to start inside
                windows -= 1
            extra[k] = max(0, (windows - 1) * strides[k] - room)
    return kernel, strides, dilations, before, after, extra


def _sums(x: Tensor, kernel: list[int], strides: list[int], dilations: list[int]) -> Tensor:
    """Sum over every window."""
    if all(d == 1 for d in dilations):
        return _AVERAGES[len(kernel) - 1](x, kernel, strides) * math.prod(kernel)
    channels = x.shape[1]
    ones = x.new_ones((channels, 1, *kernel))
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
    return convolve(x, ones, None, strides, 0, dilations, channels)


@onnx_operator("AveragePool")
def _average_pool(a: Arguments) -> Any:
    x = a.tensor(0)
    kernel, strides, dilations, before, after, extra = _window(a, x)
    plain = not any((*before, *after, *extra)) and all(d == 1 for d in dilations)
    if plain:
        return _AVERAGES[len(kernel) - 1](x, kernel, strides)
    behind = [p + e for p, e in zip(after, extra, strict=True)]
    total = _sums(padded(x, before, behind), kernel, strides, dilations)
    ones = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype)
    inner = padded(ones, before, after, 1.0 if a.attribute("count_include_pad", 0) else 0.0)
    return total / _sums(padded(inner, [0] * len(extra), extra), kernel, strides, dilations)


@onnx_operator("MaxPool")
def _max_pool(a: Arguments) -> Any:
    x = a.tensor(0)
    if a.outputs > 1:
        raise UnsupportedOnnxError("MaxPool with its second output, the places of the maxima")
    kernel, strides, dilations, before, after, extra = _window(a, x)
    behind = [p + e for p, e in zip(after, extra, strict=True)]
    if not x.is_floating_point():
        low: float = torch.iinfo(x.dtype).min
        wide = padded(x, before, behind, low).to(torch.float32)
        return _LARGEST[len(kernel) - 1](wide, kernel, strides, 0, dilations).to(x.dtype)
    if before == behind and all(2 * p <= k for p, k in zip(before, kernel, strict=True)):
        return _LARGEST[len(kernel) - 1](x, kernel, strides, before, dilations)
    wide = padded(x, before, behind, -math.inf)
    return _LARGEST[len(kernel) - 1](wide, kernel, strides, 0, dilations)


@onnx_operator("LpPool")
def _lp_pool(a: Arguments) -> Any:
    x, p = a.tensor(0), a.attribute("p", 2)
    kernel, strides, dilations, before, after, extra = _window(a, x)
    behind = [q + e for q, e in zip(after, extra, strict=True)]
    powers = padded(x.abs().pow(p), before, behind)
    return _sums(powers, kernel, strides, dilations).pow(1.0 / p)


@onnx_operator("GlobalAveragePool")
def _global_average_pool(a: Arguments) -> Any:
    x = a.tensor(0)
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


@onnx_operator("GlobalMaxPool")
def _global_max_pool(a: Arguments) -> Any:
    x = a.tensor(0)
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


@onnx_operator("GlobalLpPool")
def _global_lp_pool(a: Arguments) -> Any:
    x = a.tensor(0)
    return torch.linalg.vector_norm(x, a.attribute("p", 2), tuple(range(2, x.ndim)), keepdim=True)
