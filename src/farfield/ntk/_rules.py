"""What is known of torch's functions: how each uses a parameter it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from farfield.ntk._calls import CallKind, ParameterCall, Recording
from farfield.ntk._transforms import slope

__all__ = ["RULES"]

CallRule = Callable[[Recording, Any, tuple[Any, ...], dict[str, Any]], tuple[bool, Any]]
_NO = (False, None)


def _bind(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _call(
    recording: Recording, kind: CallKind, weight: Any, bias: Any, options: tuple[tuple[str, Any], ...] = ()
) -> ParameterCall:
    factors = (recording.factor(weight), recording.factor(bias))
    return ParameterCall(kind, recording.name(weight), recording.name(bias), options, factors)


def _linear(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    given = _bind(("input", "weight", "bias"), args, kwargs)
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    w, b = recording.name(weight), recording.name(bias)
    if (w is None and b is None) or recording.known(x) is not None or weight.dim() != 2:
        return _NO
    if b is not None and given["bias"].shape != weight.shape[:1]:  # one number for all units
        return _NO
    return True, recording.add(_call(recording, "linear", weight, bias), x, func(x, weight, bias))


def _addmm(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    if kwargs or len(args) != 3:
        return _NO
    bias, x, weight = args
    w, b = recording.name(weight), recording.name(bias)
    if (w is None and b is None) or recording.known(x) is not None:
        return _NO
    if b is not None and bias.shape != weight.shape[1:]:
        return _NO
    return True, recording.add(_call(recording, "transposed", weight, bias), x, func(bias, x, weight))


def _matmul(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    if kwargs or len(args) != 2:
        return _NO
    x, weight = args
    w = recording.name(weight)
    if w is None or recording.known(x) is not None or weight.dim() != 2 or x.dim() < 2:
        return _NO
    return True, recording.add(_call(recording, "transposed", weight, None), x, func(x, weight))


def _convolution(dimension: int) -> CallRule:
    def rule(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
        names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        given = _bind(names, args, kwargs)
        x, weight, bias = given["input"], given["weight"], given.get("bias")
        w, b = recording.name(weight), recording.name(bias)
        padding = given.get("padding", 0)
        if (w is None and b is None) or recording.known(x) is not None or isinstance(padding, str):
            return _NO

        def pair(value: Any) -> tuple[int, ...]:
            values = (value,) if isinstance(value, int) else tuple(value)
            return values * dimension if len(values) == 1 else values

        options = (
            ("kernel", tuple(weight.shape[2:])),
            ("stride", pair(given.get("stride", 1))),
            ("padding", pair(padding)),
            ("dilation", pair(given.get("dilation", 1))),
            ("groups", given.get("groups", 1)),
            ("dimension", dimension),
        )
        return True, recording.add(
            _call(recording, "convolution", weight, bias, options), x, func(*args, **kwargs)
        )

    return rule


def _embedding(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    given = _bind(names, args, kwargs)
    index, weight, padding = given["input"], given["weight"], given.get("padding_idx")
    w = recording.name(weight)
    if w is None or given.get("max_norm") is not None or given.get("scale_grad_by_freq"):
        return _NO
    if padding is not None and padding < 0:
        padding += weight.shape[0]
    options = (("rows", weight.shape[0]), ("padding", padding))
    return True, recording.add(
        _call(recording, "embedding", weight, None, options), index, func(*args, **kwargs)
    )


def _affine(recording: Recording, plain: Tensor, weight: Any, bias: Any, shape: tuple[int, ...]) -> Tensor:
    """plain ⊙ weight + bias with the parameters shaped to broadcast, recorded."""
    y = plain
    if weight is not None:
        y = y * weight.reshape(shape)
    if bias is not None:
        y = y + bias.reshape(shape)
    return recording.add(_call(recording, "scale", weight, bias, (("shape", shape),)), plain, y)


def _norm(recording: Recording, given: dict[str, Any]) -> bool:
    weight, bias = given.get("weight"), given.get("bias")
    return recording.name(weight) is not None or recording.name(bias) is not None


def _layer_norm(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    given = _bind(("input", "normalized_shape", "weight", "bias", "eps"), args, kwargs)
    if not _norm(recording, given):
        return _NO
    shape = tuple(given["normalized_shape"])
    plain = func(given["input"], given["normalized_shape"], eps=given.get("eps", 1e-5))
    return True, _affine(recording, plain, given.get("weight"), given.get("bias"), shape)


def _rms_norm(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    given = _bind(("input", "normalized_shape", "weight", "eps"), args, kwargs)
    if not _norm(recording, given):
        return _NO
    plain = func(given["input"], given["normalized_shape"], eps=given.get("eps"))
    return True, _affine(recording, plain, given["weight"], None, tuple(given["normalized_shape"]))


def _group_norm(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    given = _bind(("input", "num_groups", "weight", "bias", "eps"), args, kwargs)
    if not _norm(recording, given):
        return _NO
    x = given["input"]
    plain = func(x, given["num_groups"], eps=given.get("eps", 1e-5))
    shape = (-1,) + (1,) * (x.dim() - 2)
    return True, _affine(recording, plain, given.get("weight"), given.get("bias"), shape)


def _batch_norm(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = _bind(names, args, kwargs)
    if not _norm(recording, given) or given.get("training"):
        return _NO
    x = given["input"]
    plain = func(x, given["running_mean"], given["running_var"], eps=given.get("eps", 1e-5))
    shape = (-1,) + (1,) * (x.dim() - 2)
    return True, _affine(recording, plain, given.get("weight"), given.get("bias"), shape)


def _multiply(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    if kwargs or len(args) != 2:
        return _NO
    for x, weight in (args, args[::-1]):
        w = recording.name(weight)
        if w is not None and isinstance(x, Tensor) and recording.known(x) is None:
            call = _call(recording, "scale", weight, None, (("shape", tuple(weight.shape)),))
            return True, recording.add(call, x, x * weight)
        if w is not None and isinstance(x, int | float):
            return True, _multiple(recording, weight, float(x), func(*args))
    return _NO


def _multiple(recording: Recording, parameter: Tensor, factor: float, y: Tensor) -> Tensor:
    recording.multiple(y, parameter, factor)
    return y


def _divide(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    if kwargs or len(args) != 2 or recording.name(args[0]) is None or not isinstance(args[1], int | float):
        return _NO
    return True, _multiple(recording, args[0], 1.0 / float(args[1]), func(*args))


def _same(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    """A cast that changes nothing, or a copy."""
    if recording.name(args[0]) is None:
        return _NO
    y = func(*args, **kwargs)
    if not isinstance(y, Tensor) or (y.dtype, y.device) != (args[0].dtype, args[0].device):
        return _NO
    return True, _multiple(recording, args[0], 1.0, y) if y is not args[0] else y


def _plus(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    if kwargs or len(args) != 2:
        return _NO
    for x, bias in (args, args[::-1]):
        b = recording.name(bias)
        if b is not None and isinstance(x, Tensor) and recording.known(x) is None:
            call = _call(recording, "shift", None, bias, (("shape", tuple(bias.shape)),))
            return True, recording.add(call, x, x + bias)
        if b is not None and isinstance(x, int | float):  # 1 + w, as some norms have it
            return True, _multiple(recording, bias, 1.0, func(*args))
    return _NO


def _prelu(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    if kwargs or len(args) != 2:
        return _NO
    x, weight = args
    w = recording.name(weight)
    if w is None or recording.known(x) is not None:
        return _NO
    shaped = slope(x, weight)
    zero = torch.zeros_like(x)
    negative = torch.where(x > 0, zero, x)
    y = torch.where(x > 0, x, zero) + negative * shaped
    call = _call(recording, "scale", weight, None, (("shape", tuple(shaped.shape)),))
    return True, recording.add(call, negative, y)


RULES: dict[Any, CallRule] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    torch.Tensor.mm: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.conv1d: _convolution(1),
    torch.conv2d: _convolution(2),
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.batch_norm: _batch_norm,
    torch.prelu: _prelu,
    torch.Tensor.prelu: _prelu,
    torch.mul: _multiply,
    torch.Tensor.mul: _multiply,
    torch.Tensor.__mul__: _multiply,
    torch.Tensor.__rmul__: _multiply,
    torch.div: _divide,
    torch.Tensor.div: _divide,
    torch.Tensor.__truediv__: _divide,
    torch.Tensor.to: _same,
    torch.Tensor.float: _same,
    torch.Tensor.double: _same,
    torch.Tensor.type_as: _same,
    torch.Tensor.contiguous: _same,
    torch.Tensor.clone: _same,
    torch.clone: _same,
    torch.add: _plus,
    torch.Tensor.add: _plus,
    torch.Tensor.__add__: _plus,
    torch.Tensor.__radd__: _plus,
}
