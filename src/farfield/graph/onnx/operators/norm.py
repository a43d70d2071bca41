"""Norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from farfield.graph.onnx._table import onnx_operator
from farfield.graph.onnx._values import Arguments, UnsupportedOnnxError

__all__ = ["unit"]


@onnx_operator("BatchNormalization")
def _batch_norm(a: Arguments) -> Any:
    x, scale, bias, mean, var = (a.tensor(k) for k in range(5))
    if a.attribute("training_mode", 0):
        raise UnsupportedOnnxError("BatchNormalization is in training mode")
    if not a.attribute("spatial", 1) and x.ndim > 2:
        raise UnsupportedOnnxError("BatchNormalization with statistics of every place")
    return F.batch_norm(x, mean, var, scale, bias, False, 0.0, a.attribute("epsilon", 1e-5))


@onnx_operator("InstanceNormalization")
def _instance_norm(a: Arguments) -> Any:
    return F.instance_norm(
        a.tensor(0), weight=a.tensor(1), bias=a.tensor(2), eps=a.attribute("epsilon", 1e-5)
    )


@onnx_operator("LayerNormalization")
def _layer_norm(a: Arguments) -> Any:
    x, scale, bias = a.tensor(0), a.tensor(1), a.optional(2)
    axis, norm_eps = a.attribute("axis", -1) % x.ndim, a.attribute("epsilon", 1e-5)
    sizes = list(x.shape[axis:])
    if list(scale.shape) == sizes and (bias is None or list(bias.shape) == sizes):
        out = F.layer_norm(x, sizes, scale, bias, norm_eps)
    else:
        out = F.layer_norm(x, sizes, None, None, norm_eps) * scale
        out = out if bias is None else out + bias
    if a.outputs == 1:
        return out
    axes = tuple(range(axis, x.ndim))
    mean = x.mean(axes, keepdim=True)
    variance = (x - mean).square().mean(axes, keepdim=True)
    return out, mean, torch.rsqrt(variance + norm_eps)


@onnx_operator("RMSNormalization")
def _rms_norm(a: Arguments) -> Any:
    x, scale = a.tensor(0), a.tensor(1)
    axis = a.attribute("axis", -1) % x.ndim
    sizes = list(x.shape[axis:])
    norm_eps = a.attribute("epsilon", 1e-5)
    if list(scale.shape) == sizes:
        return F.rms_norm(x, sizes, scale, norm_eps)
    return F.rms_norm(x, sizes, None, norm_eps) * scale


@onnx_operator("SimplifiedLayerNormalization")
def _simplified_layer_norm(a: Arguments) -> Any:
    return _rms_norm(a)


@onnx_operator("SkipLayerNormalization", domain="com.microsoft")
def _skip_layer_norm(a: Arguments) -> Any:
    x, skip, gamma, beta, bias = a.tensor(0), a.tensor(1), a.tensor(2), a.optional(3), a.optional(4)
    total = x + skip if bias is None else x + skip + bias
    out = F.layer_norm(total, list(gamma.shape), gamma, beta, a.attribute("epsilon", 1e-12))
    if a.outputs == 1:
        return out
    empty = total.new_zeros(0)
    return (out, empty, empty, total)[: a.outputs]


@onnx_operator("SkipSimplifiedLayerNormalization", domain="com.microsoft")
def _skip_rms_norm(a: Arguments) -> Any:
    x, skip, gamma, bias = a.tensor(0), a.tensor(1), a.tensor(2), a.optional(3)
    total = x + skip if bias is None else x + skip + bias
    out = F.rms_norm(total, list(gamma.shape), gamma, a.attribute("epsilon", 1e-12))
    if a.outputs == 1:
        return out
    empty = total.new_zeros(0)
    return (out, empty, empty, total)[: a.outputs]


@onnx_operator("GroupNormalization")
def _group_norm(a: Arguments) -> Any:
    x, scale, bias = a.tensor(0), a.tensor(1), a.tensor(2)
    groups, norm_eps = a.attribute("num_groups"), a.attribute("epsilon", 1e-5)
    if a.opset < 21:  # one scale for each group
        repeats = x.shape[1] // groups
        scale, bias = (v.repeat_interleave(repeats) for v in (scale, bias))
    return F.group_norm(x, groups, scale, bias, norm_eps)


def unit(x: Tensor, p: float, axis: int) -> Tensor:
    """Entries over their p-norm; zeros stay zeros, and so small a row that its squares vanish is not blown up."""
    tiny = torch.finfo(x.dtype).tiny
    return F.normalize(x, float(p), axis, tiny**0.5 if x.dtype.itemsize > 2 else tiny)


@onnx_operator("LpNormalization")
def _lp_norm(a: Arguments) -> Any:
    x, axis, p = a.tensor(0), a.attribute("axis", -1), a.attribute("p", 2)
    return unit(x, p, axis)


@onnx_operator("LRN")
def _lrn(a: Arguments) -> Any:
    x, size = a.tensor(0), a.attribute("size")
    alpha, beta, bias = a.attribute("alpha", 1e-4), a.attribute("beta", 0.75), a.attribute("bias", 1.0)
    before, after = (size - 1) // 2, size // 2
    squares = x.square()
    flat = squares.reshape(squares.shape[0], 1, squares.shape[1], -1)
    wide = F.pad(flat, (0, 0, before, after))
    total = F.avg_pool2d(wide, (size, 1), stride=1).reshape(squares.shape) * size
    return x / (bias + alpha / size * total).pow(beta)


@onnx_operator("MeanVarianceNormalization")
def _mean_variance_norm(a: Arguments) -> Any:
    x, axes = a.tensor(0), tuple(a.attribute("axes") or (0, 2, 3))
    away: Tensor = x - x.mean(axes, keepdim=True)
    deviation = away.square().mean(axes, keepdim=True).sqrt()
    return away / (deviation + 1e-9)
