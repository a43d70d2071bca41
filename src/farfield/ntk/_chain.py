r"""The tangent kernel of a plain chain of Linear layers and activations, by its formula.

.. math:: \Theta = \sum_l (A_l A_l^\top + 1) \odot (B_l B_l^\top)

with the inputs A of every layer and the derivatives B of the output by what it gives. A model that is such a chain
and nothing else needs no record of its calls and no autograd: what is left are the products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

__all__ = ["chain_kernel"]


def _relu(g: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(g, y, 0)  # type: ignore[no-any-return]


_BACK: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.ReLU: _relu, nn.Tanh: torch.ops.aten.tanh_backward, nn.Sigmoid: torch.ops.aten.sigmoid_backward,
}  # fmt: skip
"""From the derivative by an activation's output and that output to the derivative by its input."""


@dataclass(frozen=True)
class _Stage:
    layer: nn.Linear
    back: Callable[[Tensor, Tensor], Tensor] | None
    activate: nn.Module | None


def chain_kernel(model: nn.Module, x1: Tensor, x2: Tensor | None, room: int) -> Tensor | None:
    """Θ(x₁, x₂) for one output, all parameters counted, within ``room`` bytes; None for any other model or input."""
    stages = _stages(model)
    if stages is None or not all(_plain(x, stages[0]) for x in (x1, x2) if x is not None):
        return None
    numbers = sum(2 * (s.layer.in_features + s.layer.out_features) for s in stages)
    n, m = len(x1), len(x1 if x2 is None else x2)
    if ((n + m) * numbers + 4 * n * m) * x1.element_size() > room:
        return None
    with torch.no_grad():
        total: Tensor | None = None
        for first, second, bias in zip(
            _sides(stages, x1),
            _sides(stages, x2) if x2 is not None else _twice(),
            (s.layer.bias is not None for s in reversed(stages)),
            strict=False,
        ):
            (a, b), (c, d) = first, first if second is None else second
            inner = a @ c.mT
            if bias:
                inner += 1
            part = inner.mul_(b @ d.mT)
            total = part if total is None else total.add_(part)
        assert total is not None
        if x2 is None:  # a product with a transpose is symmetric to rounding only
            upper = total.triu_()
            total = upper + upper.mT
            total.diagonal().mul_(0.5)
    return total


def _twice() -> Iterator[None]:
    while True:
        yield None


def _sides(stages: list[_Stage], x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(A, B) of every layer, the last one first."""
    inputs, h = [], x
    for stage in stages:
        inputs.append(h)
        h = nn.functional.linear(h, stage.layer.weight, stage.layer.bias)
        if stage.activate is not None:
            h = stage.activate(h)
    g = torch.ones_like(h)
    for k in range(len(stages) - 1, -1, -1):
        if stages[k].back is not None:
            g = stages[k].back(g, inputs[k + 1] if k + 1 < len(stages) else h)  # type: ignore[misc]
        yield inputs[k], g
        if k:
            g = g @ stages[k].layer.weight


def _plain(x: Tensor, first: _Stage) -> bool:
    layer = first.layer
    return (
        type(x) is Tensor
        and x.dim() == 2
        and len(x) > 0
        and x.shape[1] == layer.in_features
        and x.dtype == layer.weight.dtype
        and x.device == layer.weight.device
        and not x.is_inference()
    )


def _stages(model: nn.Module) -> list[_Stage] | None:
    """The layers of a chain, each with the activation above it; None if the model is not one, or might do more."""
    if type(model) is not nn.Sequential or _hooked(model) or _watched():
        return None
    stages: list[_Stage] = []
    seen: set[int] = set()
    for child in model._modules.values():
        kind = type(child)
        if child is None or _hooked(child):
            return None
        if kind is nn.Linear:
            first = stages[0].layer.weight if stages else child.weight
            for p in child.parameters(recurse=False):
                if type(p) is not nn.Parameter or not p.requires_grad or id(p) in seen:
                    return None
                if not p.is_floating_point() or p.dtype != first.dtype or p.device != first.device:
                    return None
                seen.add(id(p))
            stages.append(_Stage(child, None, None))  # type: ignore[arg-type]
        elif kind in _BACK and stages and stages[-1].back is None and not getattr(child, "inplace", False):
            stages[-1] = _Stage(stages[-1].layer, _BACK[kind], child)
        else:
            return None
    return stages if stages and stages[-1].layer.out_features == 1 else None


def _hooked(module: nn.Module) -> bool:
    """Whether something beside the module's own forward runs when it is called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def _watched() -> bool:
    """Whether somebody looks at, or changes, what every module or operation does."""
    return bool(
        modules._global_forward_hooks
        or modules._global_forward_pre_hooks
        or modules._global_backward_hooks
        or modules._global_backward_pre_hooks
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled("cuda")
    )
