"""What is known of torch's functions: how each uses a parameter it is given."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal

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


def _norm(*names: str, eps: float | None = 1e-5) -> CallRule:
    """A norm as what it is without parameters, and those applied to that; by its arguments' names."""

    def rule(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
        given = _bind(names, args, kwargs)
        weight, bias = given.get("weight"), given.get("bias")
        if (recording.name(weight) is None and recording.name(bias) is None) or given.get("training"):
            return _NO
        before = names[: names.index("weight")]
        plain = func(*(given[name] for name in before), eps=given.get("eps", eps))
        axes = given.get("normalized_shape")
        shape = (-1,) + (1,) * (plain.dim() - 2) if axes is None else tuple(axes)
        return True, _affine(recording, plain, weight, bias, shape)

    return rule


def _elementwise(kind: Literal["scale", "shift"], apply: Callable[[Tensor, Tensor], Tensor]) -> CallRule:
    """A tensor times a parameter, or plus one; a number beside it leaves a multiple of it, as 1 + w in some norms."""

    def rule(recording: Recording, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
        if kwargs or len(args) != 2:
            return _NO
        for x, parameter in (args, args[::-1]):
            known = recording.name(parameter) is not None
            if known and isinstance(x, Tensor) and recording.known(x) is None:
                weight, bias = (parameter, None) if kind == "scale" else (None, parameter)
                call = _call(recording, kind, weight, bias, (("shape", tuple(parameter.shape)),))
                return True, recording.add(call, x, apply(x, parameter))
            if known and isinstance(x, int | float):
                factor = float(x) if kind == "scale" else 1.0
                return True, _multiple(recording, parameter, factor, func(*args))
        return _NO

    return rule


_multiply = _elementwise("scale", operator.mul)
_plus = _elementwise("shift", operator.add)


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
    F.layer_norm: _norm("input", "normalized_shape", "weight", "bias", "eps"),
    F.rms_norm: _norm("input", "normalized_shape", "weight", "eps", eps=None),
    F.group_norm: _norm("input", "num_groups", "weight", "bias", "eps"),
    F.batch_norm: _norm(
        "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"
    ),
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
