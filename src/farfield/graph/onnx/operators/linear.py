"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from farfield.graph.onnx._table import onnx_operator
from farfield.graph.onnx._values import Arguments, UnsupportedOnnxError

__all__ = ["padded", "paddings"]

_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def paddings(
    a: Arguments,
    sizes: Sequence[Any],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Padding before and after each spatial axis, from ``pads`` or ``auto_pad``."""
    count = len(kernel)
    auto = a.attribute("auto_pad", "NOTSET") or "NOTSET"
    if auto in ("NOTSET", "VALID"):
        pads = a.attribute("pads") if auto == "NOTSET" else None
        pads = list(pads or [0] * (2 * count))
        return pads[:count], pads[count:]
    before, after = [], []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        if not isinstance(size, int):
            raise UnsupportedOnnxError(f"auto_pad={auto} over an open size")
        total = max(0, (-(-size // s) - 1) * s + d * (k - 1) + 1 - size)
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return before, after


def padded(x: Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Tensor:
    """The tensor with a margin around its last axes."""
    flat = [p for pair in zip(reversed(before), reversed(after), strict=True) for p in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


@onnx_operator("MatMul")
def _matmul(a: Arguments) -> Any:
    return torch.matmul(a.tensor(0), a.tensor(1))


@onnx_operator("Gemm")
def _gemm(a: Arguments) -> Any:
    x, w, c = a.tensor(0), a.tensor(1), a.optional(2)
    alpha, beta = a.attribute("alpha", 1.0), a.attribute("beta", 1.0)
    x = x.t() if a.attribute("transA", 0) else x
    if alpha == 1.0 and beta == 1.0 and (c is None or c.ndim == 1) and x.is_floating_point():
        w = w if a.attribute("transB", 0) else w.t()
        if c is None or c.shape[0] == w.shape[0]:
            return F.linear(x, w, c)
        w = w.t()
    else:
        w = w.t() if a.attribute("transB", 0) else w
    product = torch.matmul(x, w)
    product = product if alpha == 1.0 else product * alpha
    return product if c is None else product + (c if beta == 1.0 else c * beta)


@onnx_operator("FusedMatMul", domain="com.microsoft")
def _fused_matmul(a: Arguments) -> Any:
    x, w = a.tensor(0), a.tensor(1)
    x = x.transpose(-1, -2) if a.attribute("transA", 0) else x
    w = w.transpose(-1, -2) if a.attribute("transB", 0) else w
    if a.attribute("transBatchA", 0) or a.attribute("transBatchB", 0):
        raise UnsupportedOnnxError("FusedMatMul with transposed batch axes")
    return torch.matmul(x, w) * a.attribute("alpha", 1.0)


@onnx_operator("Einsum")
def _einsum(a: Arguments) -> Any:
    return torch.einsum(a.attribute("equation").replace(" ", ""), *a.tensors())


@onnx_operator("Det")
def _det(a: Arguments) -> Any:
    return torch.linalg.det(a.tensor(0))


def convolve(a: Arguments, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution with the node's strides, dilations, groups and padding."""
    count = w.ndim - 2
    if not 1 <= count <= 3:
        raise UnsupportedOnnxError(f"a convolution over {count} axes")
    strides = a.attribute("strides") or [1] * count
    dilations = a.attribute("dilations") or [1] * count
    before, after = paddings(a, x.shape[2:], list(w.shape[2:]), strides, dilations)
    if before != after:
        x, before = padded(x, before, after), [0] * count
    return _CONVOLUTIONS[count - 1](x, w, bias, strides, before, dilations, a.attribute("group", 1))


@onnx_operator("Conv")
def _conv(a: Arguments) -> Any:
    return convolve(a, a.tensor(0), a.tensor(1), a.optional(2))


@onnx_operator("ConvTranspose")
def _conv_transpose(a: Arguments) -> Any:
    x, w, bias = a.tensor(0), a.tensor(1), a.optional(2)
    count = w.ndim - 2
    if not 1 <= count <= 3:
        raise UnsupportedOnnxError(f"a convolution over {count} axes")
    strides = list(a.attribute("strides") or [1] * count)
    dilations = list(a.attribute("dilations") or [1] * count)
    extra = list(a.attribute("output_padding") or [0] * count)
    auto = a.attribute("auto_pad", "NOTSET") or "NOTSET"
    wanted = a.attribute("output_shape")
    pads = list(a.attribute("pads") or [0] * (2 * count))
    before, after = pads[:count], pads[count:]
    if wanted is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        before, after = [], []
        for k in range(count):
            size = x.shape[2 + k]
            goal = wanted[-count:][k] if wanted is not None else size * strides[k]
            total = strides[k] * (size - 1) + extra[k] + dilations[k] * (w.shape[2 + k] - 1) + 1 - goal
            if not isinstance(total, int) or total < 0:
                raise UnsupportedOnnxError("a transposed convolution with an output shape beyond its reach")
            small, large = total // 2, total - total // 2
            before.append(large if auto != "SAME_UPPER" else small)
            after.append(small if auto != "SAME_UPPER" else large)
            if auto != "SAME_UPPER":
                before[-1], after[-1] = large, small
    whole = _TRANSPOSED[count - 1](x, w, bias, strides, 0, extra, a.attribute("group", 1), dilations)
    for k in range(count):
        if before[k] or after[k]:
            whole = whole.narrow(2 + k, before[k], whole.shape[2 + k] - before[k] - after[k])
    return whole


@onnx_operator("MatMulInteger")
def _matmul_integer(a: Arguments) -> Any:
    x, w = a.tensor(0).to(torch.int32), a.tensor(1).to(torch.int32)
    left, right = a.optional(2), a.optional(3)
    if left is not None:
        left = left.to(torch.int32)
        x = x - (left.unsqueeze(-1) if left.ndim and left.numel() > 1 else left)
    if right is not None:
        w = w - right.to(torch.int32)
    return torch.matmul(x, w)


@onnx_operator("ConvInteger")
def _conv_integer(a: Arguments) -> Any:
    x, w = a.tensor(0).to(torch.float64), a.tensor(1).to(torch.float64)
    left, right = a.optional(2), a.optional(3)
    x = x if left is None else x - left.to(torch.float64)
    if right is not None:
        zero = right.to(torch.float64)
        w = w - (zero.reshape(-1, *[1] * (w.ndim - 1)) if zero.ndim else zero)
    return convolve(a, x, w, None).to(torch.int32)
