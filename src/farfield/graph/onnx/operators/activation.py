"""Activations with attributes, and the softmax family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from farfield.graph.onnx._table import OnnxFunction, onnx_operator
from farfield.graph.onnx._values import Arguments, UnsupportedOnnxError

__all__: list[str] = []


@onnx_operator("PRelu")
def _prelu(a: Arguments) -> Any:
    x, slope = a.tensor(0), a.tensor(1)
    return torch.where(x < 0, x * slope, x)


@onnx_operator("Selu")
def _selu(a: Arguments) -> Any:
    x = a.tensor(0)
    alpha, gamma = (
        a.attribute("alpha", 1.67326319217681884765625),
        a.attribute("gamma", 1.05070102214813232421875),
    )
    return gamma * F.elu(x, alpha)


@onnx_operator("Softplus")
def _softplus(a: Arguments) -> Any:
    x = a.tensor(0)
    return F.softplus(x) if x.dtype != torch.float64 else torch.logaddexp(x, torch.zeros((), dtype=x.dtype))


@onnx_operator("HardSigmoid")
def _hard_sigmoid(a: Arguments) -> Any:
    return torch.clamp(a.attribute("alpha", 0.2) * a.tensor(0) + a.attribute("beta", 0.5), 0.0, 1.0)


@onnx_operator("Swish")
def _swish(a: Arguments) -> Any:
    x, alpha = a.tensor(0), a.attribute("alpha", 1.0)
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


@onnx_operator("QuickGelu", domain="com.microsoft")
def _quick_gelu(a: Arguments) -> Any:
    x = a.tensor(0)
    return x * torch.sigmoid(a.attribute("alpha", 1.702) * x)


@onnx_operator("ThresholdedRelu")
def _thresholded_relu(a: Arguments) -> Any:
    x = a.tensor(0)
    return torch.where(x > a.attribute("alpha", 1.0), x, torch.zeros_like(x))


@onnx_operator("Shrink")
def _shrink(a: Arguments) -> Any:
    x, bias, lambd = a.tensor(0), a.attribute("bias", 0.0), a.attribute("lambd", 0.5)
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero))


@onnx_operator("Gelu", domain="com.microsoft")
def _microsoft_gelu(a: Arguments) -> Any:
    return F.gelu(a.tensor(0))


@onnx_operator("BiasGelu", domain="com.microsoft")
def _bias_gelu(a: Arguments) -> Any:
    return F.gelu(a.tensor(0) + a.tensor(1))


@onnx_operator("FastGelu", domain="com.microsoft")
def _fast_gelu(a: Arguments) -> Any:
    x, bias = a.tensor(0), a.optional(1)
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


def _along(a: Arguments, function: Callable[[Tensor, int], Tensor]) -> Tensor:
    """A function along one axis; before operator set 13 over that axis and all behind it, taken as one."""
    x, axis = a.tensor(0), a.attribute("axis", -1 if a.opset >= 13 else 1)
    if a.opset >= 13 or axis % x.ndim == x.ndim - 1:
        return function(x, axis)
    return function(x.flatten(axis % x.ndim), -1).reshape(x.shape)


def _largest_only(x: Tensor, axis: int) -> Tensor:
    return F.one_hot(torch.argmax(x, axis), x.shape[axis]).movedim(-1, axis).to(x.dtype)


@onnx_operator("Dropout")
def _dropout(a: Arguments) -> Any:
    x = a.tensor(0)
    training = a.literals[2] if a.has(2) else None
    if a.has(2) and (training is None or bool(training.reshape(-1)[0])):
        raise UnsupportedOnnxError("Dropout is in training mode, so the output is random")
    return (x, torch.ones_like(x, dtype=torch.bool)) if a.outputs > 1 else x


_SHORT: dict[str, OnnxFunction] = {
    "Relu": lambda a: torch.relu(a.tensor(0)),
    "LeakyRelu": lambda a: F.leaky_relu(a.tensor(0), a.attribute("alpha", 0.01)),
    "Elu": lambda a: F.elu(a.tensor(0), a.attribute("alpha", 1.0)),
    "Celu": lambda a: F.celu(a.tensor(0), a.attribute("alpha", 1.0)),
    "Softsign": lambda a: F.softsign(a.tensor(0)),
    "HardSwish": lambda a: F.hardswish(a.tensor(0)),
    "Mish": lambda a: F.mish(a.tensor(0)),
    "Gelu": lambda a: F.gelu(a.tensor(0), approximate=a.attribute("approximate", "none")),
    "Softmax": lambda a: _along(a, torch.softmax),
    "LogSoftmax": lambda a: _along(a, torch.log_softmax),
    "Hardmax": lambda a: _along(a, _largest_only),
}
"""Operators that are one expression."""
for _name, _short in _SHORT.items():
    onnx_operator(_name)(_short)
