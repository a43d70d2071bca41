"""Networks of one structure as one: their parameters stacked, every operation done for all of them at once."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from farfield.errors import InvalidValueError
from farfield.learn._by_hand import AffineStep, FirstAffineStep, Layer, Local, Relu, RowNorm, WrittenOut
from farfield.learn._members import OutputUnits
from farfield.nn import Center, Elementwise, GroupedLayerNorm, Project, RangeHead, ScaledLinear

__all__ = ["Stack", "settings", "structure"]


class Stack:
    """G modules of one structure: x ↦ (f₁(x₁), …, f_G(x_G)).

    Chains of linear layers, norms and activations are computed by batched matrix products; any other module through
    ``torch.func.vmap``, which takes some third longer. Either way a member's outputs and gradients are those it has
    alone, up to the order of sums.

    Parameters
    ----------
    models
        Not changed: their parameters are copied.

    Attributes
    ----------
    chain
        Its gradients written out, which is faster; None where only autograd has them.

    Examples
    --------
    >>> stack = Stack([nn.Linear(2, 1), nn.Linear(2, 1)])
    >>> stack(torch.zeros(1, 5, 2)).shape
    torch.Size([2, 5, 1])
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        if not models:
            raise InvalidValueError("A stack holds at least one model.")
        first = structure(models[0]), settings(models[0])
        other = next(
            (k for k, model in enumerate(models) if (structure(model), settings(model)) != first), None
        )
        if other is not None:
            raise InvalidValueError(
                f"Models of a stack have one structure and one value of every setting; number {other} differs from "
                "number 0."
            )
        self.size = len(models)
        self.training = True
        trained = {name for name, p in models[0].named_parameters() if p.requires_grad}
        self.parameters = _stacked([dict(model.named_parameters()) for model in models])
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(name in trained)
        self.buffers = _stacked([dict(model.named_buffers()) for model in models])
        self._base = copy.deepcopy(models[0]).to("meta")
        self._steps = _steps(models[0])
        layers = None if self._steps is None else _layers(models[0])
        self.chain = None if layers is None else WrittenOut(layers, self.parameters)
        self.needs_whole_batch = any(
            isinstance(module, nn.modules.batchnorm._BatchNorm) for module in models[0].modules()
        )

    @property
    def structured(self) -> bool:
        """Whether batched products serve, and not vmap."""
        return self._steps is not None

    @property
    def widest(self) -> int:
        """The most numbers that one row of one member has between two layers, as far as the parameters tell."""
        return max((p.shape[1] for p in self.parameters.values() if p.ndim > 1), default=1)

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, each with the members in front; not copied."""
        return {**self.parameters, **self.buffers}

    def __call__(self, x: Tensor) -> Tensor:
        """Shape (G or 1, rows, …) → (G, rows, …): row i of a member's inputs to row i of its outputs."""
        if self._steps is not None and x.ndim == 3:
            x = x.expand(self.size, -1, -1)
            for name, step in self._steps:
                x = step(self, name, x)
            return x
        base = self._base.train(self.training)

        def one(state: tuple[dict[str, Tensor], dict[str, Tensor]], inputs: Tensor) -> Tensor:
            result: Tensor = functional_call(base, state, (inputs,))
            return result

        shared = x.shape[0] == 1 and self.size > 1
        mapped = torch.func.vmap(one, in_dims=(0, None if shared else 0))
        with _plain_attention():
            result: Tensor = mapped((self.parameters, self.buffers), x[0] if shared else x)
        return result

    def write(self, state: dict[str, Tensor], models: Sequence[nn.Module]) -> tuple[nn.Module, ...]:
        """Copies of models with a state's parameters and buffers, in evaluation mode."""
        made = []
        for k, model in enumerate(models):
            fresh = copy.deepcopy(model)
            with torch.no_grad():
                for name, value in (*fresh.named_parameters(), *fresh.named_buffers()):
                    value.copy_(state[name][k])
            made.append(fresh.eval())
        return tuple(made)


def _stacked(tables: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([table[name].detach() for table in tables]) for name in tables[0]}


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """The fused kernels of attention have no batched form; the plain products do."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def structure(model: nn.Module) -> tuple[Any, ...]:
    """What models must share to be stacked: modules with their settings, names and shapes of their tensors."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return (
        repr(model),
        tuple((name, tuple(t.shape), t.dtype, t.requires_grad) for name, t in tensors),
    )


def settings(model: nn.Module) -> tuple[Any, ...]:
    """What models must share beside: every attribute of theirs that is not a tensor to stack.

    A stack computes with the first model's modules, and what print shows of a module may leave out a number or a
    function. Two things that can't be compared count as different: such models are right, one stack each.
    """
    return tuple((name, *_attributes(module)) for name, module in model.named_modules(remove_duplicate=False))


_OF_EVERY_MODULE = frozenset(nn.Module().__dict__)


def _attributes(module: nn.Module) -> tuple[Any, ...]:
    own = {name: value for name, value in module.__dict__.items() if name not in _OF_EVERY_MODULE}
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return type(module), _value(own), _value(hooks)


def _value(given: Any) -> Any:
    """Something that is equal for equal values and can be hashed."""
    if isinstance(given, Tensor | np.ndarray):
        array = given.detach().cpu() if isinstance(given, Tensor) else given
        return type(given), tuple(array.shape), str(array.dtype), repr(array.tolist())
    if isinstance(given, nn.Module):
        return settings(given), tuple((name, _value(t)) for name, t in given.state_dict().items())
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        fields = tuple((f.name, _value(getattr(given, f.name))) for f in dataclasses.fields(given))
        return type(given), fields
    if isinstance(given, Mapping):
        return type(given), tuple((_value(k), _value(v)) for k, v in given.items())
    if isinstance(given, list | tuple):
        return type(given), tuple(map(_value, given))
    if isinstance(given, partial):
        return partial, _value(given.func), _value(given.args), _value(given.keywords)
    try:
        hash(given)
    except TypeError:
        return _Itself(given)
    return type(given), given


@dataclasses.dataclass(frozen=True, eq=False)
class _Itself:
    """Equal to nothing else."""

    given: Any


# ------------------------------------------------------------------ a chain, layer by layer

Step = Callable[[Stack, str, Tensor], Tensor]


def _steps(model: nn.Module) -> tuple[tuple[str, Step], ...] | None:
    """The layers of a chain with their rules, or None if there is one without."""
    named = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    made: list[tuple[str, Step]] = []
    fresh = False
    for name, module in _leaves(model, ""):
        # What a layer has just made and does not need for its own gradients is overwritten.
        rule = _relu_in_place if fresh and type(module) is nn.ReLU else _rule(module)
        fresh = type(module) in (nn.Linear, ScaledLinear, nn.LayerNorm)
        # A tied parameter or buffer is listed under its first name only.
        tensors = (*module.named_parameters(), *module.named_buffers())
        known = all(f"{name}{own}" in named for own, _ in tensors)
        if rule is None or not known or _hooked(module):
            return None
        made.append((name, rule))
    return tuple(made)


def _leaves(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    plain = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    if plain and not _hooked(module):
        # Not named_children: it leaves out a module that stands there a second time.
        for name, child in module._modules.items():
            assert child is not None
            yield from _leaves(child, f"{prefix}{name}.")
    else:
        yield prefix, module


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


_ALONG_THE_LAST_AXIS: tuple[type[nn.Module], ...] = (
    nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Mish,
    nn.Hardtanh, nn.ReLU6, nn.Softsign, nn.LogSigmoid, nn.Identity, Center, Elementwise, GroupedLayerNorm, Project,
    RangeHead, OutputUnits,
)  # fmt: skip
"""Modules that treat every row the same way, whatever axes stand before it."""


def _rule(module: nn.Module) -> Step | None:
    # Exactly these types: a subclass may compute something else.
    if type(module) in _ALONG_THE_LAST_AXIS and not any(True for _ in module.parameters()):
        return lambda stack, name, x: module(x)
    if type(module) is nn.Linear:
        return _linear
    if type(module) is ScaledLinear:
        return partial(_scaled_linear, module)
    if type(module) in (nn.LayerNorm, nn.RMSNorm):
        assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
        return partial(_row_norm, module) if len(module.normalized_shape) == 1 else None
    if type(module) is nn.BatchNorm1d and module.momentum is not None:
        return partial(_batch_norm, module)
    return None


def _layers(model: nn.Module) -> list[Layer] | None:
    """The layers of a chain (:func:`_steps` has looked at their types) with their gradients, or None if there is one
    that sees other rows too.
    """
    layers: list[Layer] = []
    for name, module in _leaves(model, ""):
        before = layers[-1] if layers else None
        if isinstance(module, nn.Linear | ScaledLinear):
            first = before is None and module.in_features < module.out_features // _FEW_INPUTS
            layers.append((FirstAffineStep if first else AffineStep)(name, *_scales(module)))
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            if module.eps is None:  # it depends on the precision
                return None
            centers = isinstance(module, nn.LayerNorm)
            plain = not any(True for _ in module.parameters())
            if plain and isinstance(before, FirstAffineStep) and before.eps is None:
                layers[-1] = dataclasses.replace(before, eps=module.eps, centers=centers)
                continue
            if centers and isinstance(before, AffineStep):
                layers[-1], centers = dataclasses.replace(before, centers=True), False
            # Behind a first layer with a norm of its own, that norm needs its output again.
            fresh = isinstance(before, AffineStep) or (
                isinstance(before, FirstAffineStep) and before.eps is None
            )
            layers.append(RowNorm(name, module.eps, centers, fresh))
        elif isinstance(module, nn.ReLU):
            layers.append(Relu(name, isinstance(before, AffineStep | FirstAffineStep)))
        elif isinstance(module, nn.BatchNorm1d):
            return None
        else:
            layers.append(Local(module))
    return layers


_FEW_INPUTS = 4
"""Inputs are few if the first layer is more than so many times as wide."""


def _scales(module: nn.Linear | ScaledLinear) -> tuple[float, float]:
    """What the weights and the bias are multiplied by."""
    if isinstance(module, nn.Linear):
        return 1.0, 1.0
    return math.sqrt(module.weight_var / module.in_features), math.sqrt(module.bias_var)


def _relu_in_place(stack: Stack, name: str, x: Tensor) -> Tensor:
    return torch.relu_(x)


def _linear(stack: Stack, name: str, x: Tensor) -> Tensor:
    weight, bias = stack.parameters[f"{name}weight"].mT, stack.parameters.get(f"{name}bias")
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias[:, None], x, weight)


def _scaled_linear(module: ScaledLinear, stack: Stack, name: str, x: Tensor) -> Tensor:
    weight, bias = stack.parameters[f"{name}weight"].mT, stack.parameters.get(f"{name}bias")
    scale, bias_scale = _scales(module)
    weight = scale * weight
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias_scale * bias[:, None], x, weight)


def _row_norm(module: nn.LayerNorm | nn.RMSNorm, stack: Stack, name: str, x: Tensor) -> Tensor:
    shape, eps = list(module.normalized_shape), module.eps
    if isinstance(module, nn.LayerNorm):
        assert eps is not None
        x = F.layer_norm(x, shape, eps=eps)
    else:
        x = F.rms_norm(x, shape, eps=eps)
    weight, bias = stack.parameters.get(f"{name}weight"), stack.parameters.get(f"{name}bias")
    x = x if weight is None else x * weight[:, None]
    return x if bias is None else x + bias[:, None]


def _batch_norm(module: nn.BatchNorm1d, stack: Stack, name: str, x: Tensor) -> Tensor:
    # Channels of all members side by side are the channels of one norm.
    members, rows, width = x.shape
    flat = {
        own: None if value is None else value.reshape(members * width)
        for own in ("running_mean", "running_var", "weight", "bias")
        for value in (stack.buffers.get(f"{name}{own}", stack.parameters.get(f"{name}{own}")),)
    }
    if stack.training and f"{name}num_batches_tracked" in stack.buffers:
        stack.buffers[f"{name}num_batches_tracked"] += 1
    y = F.batch_norm(
        x.transpose(0, 1).reshape(rows, members * width),
        flat["running_mean"],
        flat["running_var"],
        flat["weight"],
        flat["bias"],
        training=stack.training or flat["running_mean"] is None,
        momentum=float(module.momentum or 0.0),
        eps=module.eps,
    )
    return y.reshape(rows, members, width).transpose(0, 1)
