"""A model without weights: built on the meta device, and given tensors that have a shape and take no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["build_hollow", "is_hollow"]


def build_hollow(make: Callable[[], nn.Module]) -> nn.Module:
    """The module that ``make`` makes, in eval mode; no weight of it takes memory where its code allows that.

    Built on the meta device, then every parameter and buffer is replaced by one number that is seen everywhere
    (stride 0): shapes and types are the model's, values mean nothing. Code that needs values while it builds is run
    again on the processor, with weights as it draws them.
    """
    try:
        with torch.device("meta"):
            model = make()
    except Exception:  # whatever it is that does not work without numbers
        return make().eval()
    standing: dict[int, Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None and tensor.is_meta:
                    table[name] = standing.setdefault(id(tensor), _stand_in(tensor))  # type: ignore[assignment]
    return model.eval()


def is_hollow(model: nn.Module) -> bool:
    """Whether some weight of it has no value of its own."""
    return any(p.numel() > 1 and not any(p.stride()) for p in model.parameters())


def _stand_in(tensor: Tensor) -> Any:
    kind = tensor.dtype
    number = (
        torch.ones((), dtype=kind)
        if kind.is_floating_point or kind.is_complex
        else torch.zeros((), dtype=kind)
    )
    wide = number.expand(tensor.shape)
    return nn.Parameter(wide, requires_grad=False) if isinstance(tensor, nn.Parameter) else wide
