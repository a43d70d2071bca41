"""How a model uses its parameters: every call that multiplies or adds one, recorded for one input.

A call's output gets a zero tensor added to it, its *perturbation*. The derivative of the model's output by that
tensor is what, with the call's input, makes up the gradient of the parameter. The Jacobian itself is never
formed.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

__all__ = ["Call", "Recorder", "Tracked"]

Kind = Literal["linear", "transposed", "convolution", "embedding", "scale", "shift"]


@dataclass(frozen=True)
class Call:
    """One use of one or two parameters.

    Parameters
    ----------
    kind
        ``"linear"`` (y = x Wᵀ + b), ``"transposed"`` (y = x W + b), ``"convolution"``, ``"embedding"``,
        ``"scale"`` (y = x ⊙ w), ``"shift"`` (y = x + b, scaled).
    weight, bias
        Names of the parameters, None where there is none or where it is not tracked.
    options
        What else the contribution depends on, plain values.
    """

    kind: Kind
    weight: str | None
    bias: str | None
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str, default: Any = None) -> Any:
        """One of the options."""
        return dict(self.options).get(name, default)


@dataclass(frozen=True)
class Tracked:
    """The parameters whose gradients count, by name and by identity.

    Parameters
    ----------
    names
        id of a parameter → its name.
    parameters
        Name → parameter; a shared one counts once.
    places
        Name → one path for every module that holds it.
    """

    names: dict[int, str]
    parameters: dict[str, Tensor]
    places: dict[str, tuple[str, ...]]

    @staticmethod
    def of(model: nn.Module, chosen: Callable[[str, Tensor], bool]) -> Tracked:
        """Parameters that require a gradient and are chosen."""
        names: dict[int, str] = {}
        parameters: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and chosen(name, parameter):
                names[id(parameter)] = name
                parameters[name] = parameter
        places: dict[str, list[str]] = {name: [] for name in parameters}
        for path, module in model.named_modules():  # each module once, however often it is used
            for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                name = names.get(id(parameter), "")
                if name:
                    places[name].append(f"{path}.{attribute}" if path else attribute)
        return Tracked(names, parameters, {name: tuple(found) for name, found in places.items()})

    def substitute(self, model: nn.Module, values: dict[str, Tensor], x: Tensor) -> Any:
        """model(x) with other values of some of the parameters."""
        if not values:
            return model(x)
        # Torch's own handling of tied weights sets a module that is used twice twice, and leaves the wrong
        # tensor behind.
        everywhere = {place: value for name, value in values.items() for place in self.places[name]}
        return functional_call(model, everywhere, (x,), tie_weights=False)

    def name(self, value: Any) -> str | None:
        """The name of a tracked parameter, None for anything else."""
        return self.names.get(id(value)) if isinstance(value, Tensor) else None


@dataclass
class Recorder(TorchFunctionMode):
    """While active, records calls on tracked parameters and adds their perturbations.

    Parameters
    ----------
    tracked
        The parameters.
    perturbations
        One for every call, in order; None on the first run, which finds out their shapes.
    keep
        Whether to keep the calls' outputs themselves, to differentiate by.
    opaque
        Parameters whose use is not understood: they are left alone here, and their gradients are taken as they are.
    """

    tracked: Tracked
    perturbations: tuple[Tensor, ...] | None = None
    opaque: set[str] = field(default_factory=set)
    keep: bool = False
    calls: list[Call] = field(default_factory=list)
    inputs: list[Tensor | None] = field(default_factory=list)
    outputs: list[tuple[torch.Size, torch.dtype, torch.device]] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None:
            done, value = rule(self, func, args, kwargs)
            if done:
                return value
        self._leave(func, args, kwargs)
        if func in _COMPOSITE:
            with self:
                return _unguarded(func)(*args, **kwargs)
        return func(*args, **kwargs)

    def name(self, value: Any) -> str | None:
        """The name of a parameter tracked and understood so far."""
        name = self.tracked.name(value)
        return None if name in self.opaque else name

    def _leave(self, func: Any, args: Any, kwargs: Any) -> None:
        """Mark every tracked parameter among the arguments of a call that no rule understands."""
        if func in _HARMLESS or func in _COMPOSITE:
            return
        stack = [*args, *kwargs.values()]
        while stack:
            value = stack.pop()
            if isinstance(value, Tensor):
                name = self.tracked.name(value)
                if name is not None:
                    self.opaque.add(name)
            elif isinstance(value, list | tuple):
                stack.extend(value)

    def add(self, call: Call, x: Tensor | None, y: Tensor) -> Tensor:
        """Record a call with input x and output y; the output with its perturbation."""
        index = len(self.calls)
        self.calls.append(call)
        self.inputs.append(x)
        self.outputs.append((y.shape, y.dtype, y.device))
        if self.keep:
            self.kept.append(y)
            return y.clone()  # what follows may work in place
        return y if self.perturbations is None else y + self.perturbations[index]


Rule = Callable[[Recorder, Any, tuple[Any, ...], dict[str, Any]], tuple[bool, Any]]
_NO = (False, None)


def _bind(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _linear(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    given = _bind(("input", "weight", "bias"), args, kwargs)
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    w, b = recorder.name(weight), recorder.name(bias)
    if (w is None and b is None) or recorder.tracked.name(x) is not None or weight.dim() != 2:
        return _NO
    y = func(x, weight, bias)
    return True, recorder.add(Call("linear", w, b), x, y)


def _addmm(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    if kwargs or len(args) != 3:
        return _NO
    bias, x, weight = args
    w, b = recorder.name(weight), recorder.name(bias)
    if (w is None and b is None) or recorder.tracked.name(x) is not None or bias.dim() != 1:
        return _NO
    return True, recorder.add(Call("transposed", w, b), x, func(bias, x, weight))


def _matmul(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    if kwargs or len(args) != 2:
        return _NO
    x, weight = args
    w = recorder.name(weight)
    if w is None or recorder.tracked.name(x) is not None or weight.dim() != 2 or x.dim() < 2:
        return _NO
    return True, recorder.add(Call("transposed", w, None), x, func(x, weight))


def _convolution(dimension: int) -> Rule:
    def rule(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
        names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        given = _bind(names, args, kwargs)
        x, weight, bias = given["input"], given["weight"], given.get("bias")
        w, b = recorder.name(weight), recorder.name(bias)
        padding = given.get("padding", 0)
        if (w is None and b is None) or recorder.tracked.name(x) is not None or isinstance(padding, str):
            return _NO

        def pair(value: Any) -> tuple[int, ...]:
            return (value,) * dimension if isinstance(value, int) else tuple(value)

        options = (
            ("kernel", tuple(weight.shape[2:])),
            ("stride", pair(given.get("stride", 1))),
            ("padding", pair(padding)),
            ("dilation", pair(given.get("dilation", 1))),
            ("groups", given.get("groups", 1)),
            ("dimension", dimension),
        )
        return True, recorder.add(Call("convolution", w, b, options), x, func(*args, **kwargs))

    return rule


def _embedding(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    given = _bind(names, args, kwargs)
    index, weight, padding = given["input"], given["weight"], given.get("padding_idx")
    w = recorder.name(weight)
    if w is None or given.get("max_norm") is not None or given.get("scale_grad_by_freq"):
        return _NO
    if padding is not None and padding < 0:
        padding += weight.shape[0]
    options = (("rows", weight.shape[0]), ("padding", padding))
    return True, recorder.add(Call("embedding", w, None, options), index, func(*args, **kwargs))


def _affine(recorder: Recorder, plain: Tensor, weight: Any, bias: Any, shape: tuple[int, ...]) -> Tensor:
    """Plain ⊙ weight + bias with the parameters shaped to broadcast, recorded."""
    y = plain
    w, b = recorder.name(weight), recorder.name(bias)
    if weight is not None:
        y = y * weight.reshape(shape)
    if bias is not None:
        y = y + bias.reshape(shape)
    call = Call("scale", w, b, (("shape", shape),))
    return recorder.add(call, plain, y)


def _norm(recorder: Recorder, given: dict[str, Any]) -> bool:
    weight, bias = given.get("weight"), given.get("bias")
    return recorder.name(weight) is not None or recorder.name(bias) is not None


def _layer_norm(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    given = _bind(("input", "normalized_shape", "weight", "bias", "eps"), args, kwargs)
    if not _norm(recorder, given):
        return _NO
    shape = tuple(given["normalized_shape"])
    plain = func(given["input"], given["normalized_shape"], eps=given.get("eps", 1e-5))
    return True, _affine(recorder, plain, given.get("weight"), given.get("bias"), shape)


def _rms_norm(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    given = _bind(("input", "normalized_shape", "weight", "eps"), args, kwargs)
    if not _norm(recorder, given):
        return _NO
    plain = func(given["input"], given["normalized_shape"], eps=given.get("eps"))
    return True, _affine(recorder, plain, given["weight"], None, tuple(given["normalized_shape"]))


def _group_norm(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    given = _bind(("input", "num_groups", "weight", "bias", "eps"), args, kwargs)
    if not _norm(recorder, given):
        return _NO
    x = given["input"]
    plain = func(x, given["num_groups"], eps=given.get("eps", 1e-5))
    shape = (-1,) + (1,) * (x.dim() - 2)
    return True, _affine(recorder, plain, given.get("weight"), given.get("bias"), shape)


def _batch_norm(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = _bind(names, args, kwargs)
    if not _norm(recorder, given) or given.get("training"):
        return _NO
    x = given["input"]
    plain = func(x, given["running_mean"], given["running_var"], eps=given.get("eps", 1e-5))
    shape = (-1,) + (1,) * (x.dim() - 2)
    return True, _affine(recorder, plain, given.get("weight"), given.get("bias"), shape)


def _multiply(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    if kwargs or len(args) != 2:
        return _NO
    for x, weight in (args, args[::-1]):
        w = recorder.name(weight)
        if w is not None and isinstance(x, Tensor) and recorder.tracked.name(x) is None:
            return True, recorder.add(
                Call("scale", w, None, (("shape", tuple(weight.shape)),)), x, x * weight
            )
    return _NO


def _plus(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    if kwargs or len(args) != 2:
        return _NO
    for x, bias in (args, args[::-1]):
        b = recorder.name(bias)
        if b is not None and isinstance(x, Tensor) and recorder.tracked.name(x) is None:
            return True, recorder.add(Call("shift", None, b, (("shape", tuple(bias.shape)),)), None, x + bias)
    return _NO


_RULES: dict[Any, Rule] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.conv1d: _convolution(1),
    torch.conv2d: _convolution(2),
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.batch_norm: _batch_norm,
    torch.mul: _multiply,
    torch.Tensor.mul: _multiply,
    torch.Tensor.__mul__: _multiply,
    torch.Tensor.__rmul__: _multiply,
    torch.add: _plus,
    torch.Tensor.add: _plus,
    torch.Tensor.__add__: _plus,
    torch.Tensor.__radd__: _plus,
}


@functools.cache
def _unguarded(func: Any) -> Any:
    """A copy of a Python function of torch that does not hand itself to the mode again, so that its body is
    looked into.
    """
    scope = {**func.__globals__, "has_torch_function": lambda arguments: False}
    copy = types.FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


_COMPOSITE = {F.multi_head_attention_forward}
"""Python functions that call the others with the parameters they are given."""

_ATTRIBUTES = (
    "shape",
    "dtype",
    "device",
    "requires_grad",
    "is_cuda",
    "ndim",
    "layout",
    "is_sparse",
    "is_nested",
)
_HARMLESS: set[Any] = {
    *(vars(torch._C.TensorBase)[name].__get__ for name in _ATTRIBUTES),
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
    torch.Tensor.is_floating_point,
    torch.Tensor.__len__,
    torch.Tensor.data_ptr,
}
"""What may be asked of a parameter without using it."""
