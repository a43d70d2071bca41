"""Signals, and losses that are part of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from farfield.graph.onnx._table import OnnxFunction, onnx_operator
from farfield.graph.onnx._values import Arguments, UnsupportedOnnxError
from farfield.graph.onnx.operators.create import torch_type

__all__: list[str] = []


@onnx_operator("DFT")
def _dft(a: Arguments) -> Any:
    x = a.tensor(0)
    length = (a.ints(1) or [None])[0] if a.has(1) else None
    axis = a.attribute("axis", 1) if a.opset < 20 else (a.ints(2, [-2]) or [-2])[0]
    axis = axis % x.ndim
    inverse, onesided = bool(a.attribute("inverse", 0)), bool(a.attribute("onesided", 0))
    if onesided and inverse:
        raise UnsupportedOnnxError("an inverse one-sided DFT")
    if x.shape[-1] == 2:
        whole = torch.view_as_complex(x.contiguous())
    else:
        whole = torch.complex(x[..., 0], torch.zeros_like(x[..., 0]))
    out = torch.fft.ifft(whole, length, axis) if inverse else torch.fft.fft(whole, length, axis)
    if onesided:
        out = out.narrow(axis, 0, out.shape[axis] // 2 + 1)
    return torch.view_as_real(out)


def _window(make: Callable[[int, bool], Tensor]) -> OnnxFunction:
    def run(a: Arguments) -> Any:
        size = (a.ints(0) or [0])[0]
        if not isinstance(size, int):
            raise UnsupportedOnnxError("a window of open size")
        return make(size, bool(a.attribute("periodic", 1))).to(torch_type(a.attribute("output_datatype", 1)))

    return run


onnx_operator("HannWindow")(_window(lambda n, p: torch.hann_window(n, p, dtype=torch.float64)))
onnx_operator("BlackmanWindow")(_window(lambda n, p: torch.blackman_window(n, p, dtype=torch.float64)))
onnx_operator("HammingWindow")(
    _window(lambda n, p: torch.hamming_window(n, p, 25 / 46, 21 / 46, dtype=torch.float64))
)


def _loss(a: Arguments, logs: Tensor) -> Tensor:
    ignored = a.attribute("ignore_index")
    return F.nll_loss(
        logs,
        a.tensor(1).to(torch.int64),
        a.optional(2),
        ignore_index=-100 if ignored is None else ignored,
        reduction=a.attribute("reduction", "mean"),
    )


@onnx_operator("NegativeLogLikelihoodLoss")
def _nll_loss(a: Arguments) -> Any:
    return _loss(a, a.tensor(0))


@onnx_operator("SoftmaxCrossEntropyLoss")
def _cross_entropy(a: Arguments) -> Any:
    logs = torch.log_softmax(a.tensor(0), 1)
    return (_loss(a, logs), logs) if a.outputs > 1 else _loss(a, logs)
