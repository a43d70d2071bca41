"""A model run while every call on its parameters is noted.

A call's output gets a zero tensor added to it, its *perturbation*. The derivative of the model's output by that
tensor is what, with the call's input, makes up the gradient of the parameter. The Jacobian itself is never
formed.
"""

from __future__ import annotations

import functools
import math
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from farfield.errors import InvalidValueError
from farfield.ntk._calls import Recording
from farfield.ntk._rules import RULES

__all__ = ["Abandoned", "Recorder", "hidden"]


class Abandoned(Exception):  # noqa: N818  (caught where the run began; nobody else sees it)
    """A run within a given room has come to a call that might take more."""


@dataclass
class Recorder(Recording, TorchFunctionMode):
    """While active, records calls on tracked parameters and adds their perturbations."""

    def __post_init__(self) -> None:
        TorchFunctionMode.__init__(self)

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.room is not None:
            self._take_room(func, args)
        rule = RULES.get(func)
        if rule is not None and not any(isinstance(v, Tensor) and v.is_complex() for v in args):
            done, value = rule(self, func, args, kwargs)
            if done:
                if self.trace:
                    given = (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor))
                    self.sources.extend(v.grad_fn for v in given if self.name(v) is None)
                return value
        self.plain = self.plain and (func in _ENTRYWISE or func in _HARMLESS)
        self._leave(func, args, kwargs)
        if func in _RANDOM:
            _refuse_random(func, args, kwargs)
        if not self.moved:
            self.moved = func in _MOVES or (func in _INDEXES and _chooses(args[1]))
        if func in _COMPOSITE:
            with self:
                return _unguarded(func)(*args, **kwargs)
        return func(*args, **kwargs)

    def _take_room(self, func: Any, args: Any) -> None:
        """Count a call's output before it is made; abandon the run where its size isn't known or is too much."""
        if func in _HARMLESS:
            return
        assert self.room is not None
        if func is F.linear and len(args) > 1 and args[0].dim() > 1:
            numbers = math.prod(args[0].shape[:-1]) * args[1].shape[0]
        elif func in _ENTRYWISE and args:
            numbers = args[0].numel()
        else:
            self.room = -1
            raise Abandoned
        self.room -= numbers * args[0].element_size()
        if self.room < 0:
            raise Abandoned

    def _leave(self, func: Any, args: Any, kwargs: Any) -> None:
        """Mark every tracked parameter among the arguments of a call that no rule understands."""
        if func in _HARMLESS or func in _COMPOSITE:
            return
        stack = [*args, *kwargs.values()]
        while stack:
            value = stack.pop()
            if isinstance(value, Tensor):
                name = self.known(value)
                if name is not None:
                    self.opaque.add(name)
            elif isinstance(value, list | tuple):
                stack.extend(value)


def hidden(recorder: Recorder, y: Tensor) -> set[str]:
    """Tracked parameters that y depends on otherwise than through recorded calls.

    A custom autograd function, say, does not ask function modes. Found by walking the graph of a run that kept its
    calls, from the output and from every call's input down to the next calls.
    """
    stops = {kept.grad_fn for kept in recorder.kept}
    stack = [y.grad_fn, *recorder.sources]
    seen: set[Any] = {None}
    found: set[str] = set()
    while stack:
        node = stack.pop()
        if node in seen or node in stops:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):  # its inside is not seen
            recorder.plain = False
        name = recorder.tracked.name(getattr(node, "variable", None))
        if name is not None:
            found.add(name)
        stack.extend(below for below, _ in node.next_functions)
    return found


def _chooses(index: Any) -> bool:
    """Whether an index picks entries by their numbers, in any order."""
    if isinstance(index, tuple):
        return any(_chooses(part) for part in index)
    return isinstance(index, Tensor | list | range | np.ndarray)


def _refuse_random(func: Any, args: Any, kwargs: Any) -> None:
    """Refuse dropout that is switched on, however it is called."""
    names, default, rate, active = _RANDOM[func]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if given.get(active, default) and given.get(rate, 0.5):
        raise InvalidValueError(
            f"The model calls {getattr(func, '__name__', func)} with dropout switched on: its gradients are random. "
            "Call model.eval() first, and pass training=self.training where it is called."
        )


_DROPOUT = (("input", "p", "training"), True, "p", "training")
_RANDOM: dict[Any, tuple[tuple[str, ...], Any, str, str]] = {
    F.dropout: _DROPOUT, F.dropout1d: _DROPOUT, F.dropout2d: _DROPOUT, F.dropout3d: _DROPOUT,
    F.alpha_dropout: _DROPOUT, F.feature_alpha_dropout: _DROPOUT, torch.dropout: _DROPOUT,
    F.rrelu: (("input", "lower", "upper", "training"), False, "upper", "training"),
    F.scaled_dot_product_attention: (
        ("query", "key", "value", "attn_mask", "dropout_p"), 0.0, "dropout_p", "dropout_p",
    ),
    F.multi_head_attention_forward: (
        (
            "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k",
            "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias", "training",
        ), True, "dropout_p", "training",
    ),
}  # fmt: skip
"""Names of the arguments, whether it is on if nothing is said, which argument is the rate, which switches it on."""

_MOVES = {
    getattr(place, name + ending)
    for place in (torch, torch.Tensor)
    for ending in ("", "_")
    for name in (
        "sort", "msort", "topk", "flip", "roll", "gather", "index_select", "take", "take_along_dim", "masked_select",
        "index_add", "index_copy", "index_put", "scatter", "scatter_add", "unique", "kthvalue", "rot90",
    )
    if hasattr(place, name + ending)
}  # fmt: skip
_ENTRYWISE = {
    F.relu, F.gelu, F.silu, F.elu, F.softplus, F.leaky_relu, F.relu6, F.selu, torch.relu, torch.tanh, torch.sigmoid,
    torch.erf, torch.sin, torch.cos, torch.exp, torch.Tensor.relu, torch.Tensor.tanh, torch.Tensor.sigmoid,
}  # fmt: skip
"""Models of these and recorded calls alone need no probe."""
_INDEXES = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
"""What may put the rows of a batch into another order."""


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
