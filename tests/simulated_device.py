"""A device that is none: tensors that say they lie on one, hold their numbers in main memory, and refuse to mix.

What torch does on a real device it does here: a tensor on the device with one in main memory raises, unless the other
is a single number; ``.cpu()`` brings numbers back. Nothing is faster, and no kernel of a device is tested.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DEVICE = torch.device("lazy", 0)
"""Of the types torch knows, one whose autograd asks for no driver."""
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class OnDevice(Tensor):
    """A tensor on the simulated device; ``held`` are its numbers."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=DEVICE, requires_grad=held.requires_grad,
        )  # fmt: skip

    def __init__(self, held):
        self.held = held.detach()

    def __repr__(self):
        return f"OnDevice({self.held!r})"

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            made = OnDevice(self.held.clone())
            memo[id(self)] = (
                nn.Parameter(made, self.requires_grad) if isinstance(self, nn.Parameter) else made
            )
        return memo[id(self)]

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatched(func, args, kwargs or {})


def dispatched(func, args, kwargs):
    """Run on the numbers, and put results where torch would."""
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [leaf for leaf in leaves if isinstance(leaf, OnDevice)]
    if there and func not in _COPIES:
        here = [leaf for leaf in leaves if not isinstance(leaf, OnDevice) and leaf.ndim]
        if here:
            raise RuntimeError(f"{func}: Expected all tensors to be on the same device, {DEVICE} and cpu")
    to = kwargs.get("device")
    device = bool(there) if to is None else torch.device(to).type == DEVICE.type
    if func is torch.ops.aten.copy_.default:
        device = isinstance(args[0], OnDevice)
    plain = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
    if to is not None:
        plain["device"] = torch.device("cpu")
    found = func(*tree_map(numbers, args), **tree_map(numbers, plain))
    if func._schema.name.endswith("_") and there:
        return args[0]
    return (
        tree_map(lambda leaf: OnDevice(leaf) if isinstance(leaf, Tensor) else leaf, found)
        if device
        else found
    )


def numbers(value):
    """In main memory."""
    return value.held if isinstance(value, OnDevice) else value


class Simulated(TorchDispatchMode):
    """``.to(DEVICE)``, and tensors made with ``device=DEVICE``, within it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return dispatched(func, args, kwargs or {})


def on_device(model):
    """The model with all of its parameters and buffers on the device."""
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None:
                module._parameters[name] = nn.Parameter(OnDevice(value.detach()), value.requires_grad)
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = OnDevice(value.detach())
    return model
