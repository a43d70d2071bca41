"""The surroundings that torch's function transforms need."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

__all__ = ["GradientSwitch", "dense", "ordinary", "slope", "transforms"]


_LOCK = threading.RLock()


def slope(x: Tensor, weight: Tensor) -> Tensor:
    """The slopes of a PReLU, shaped to meet its input."""
    return weight.reshape(()) if weight.numel() == 1 else weight.reshape(-1, *(1,) * max(x.dim() - 2, 0))


class _Plain(TorchFunctionMode):
    """Takes PReLU apart: torch's own batching rule for it is wrong for inputs of one entry."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.prelu, torch.Tensor.prelu) and len(args) == 2:
            x, weight = args
            return torch.where(x > 0, x, slope(x, weight) * x)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def transforms() -> Iterator[None]:
    """For ``vmap``, ``jvp`` and ``vjp``: plain attention, no gradients outside, no notices about torch itself.

    The fused attention kernels have no batching rule; the plain one does. An operator without a batching rule
    is run input by input, which torch warns of; the first use of forward mode scripts a few functions, which it
    warns of too.

    One thread at a time: torch keeps the level of forward mode, and Python its filters of warnings, for the whole
    process.
    """
    with _LOCK, torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _Plain(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.script", category=DeprecationWarning)
        yield


def dense(gradient: Tensor) -> Tensor:
    """A gradient with every entry in its place: an embedding may give a sparse one."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def ordinary(x: Tensor) -> Tensor:
    """The tensor without its history, and one that autograd accepts even if it was made in inference mode."""
    return x.clone() if x.is_inference() else x.detach()


class GradientSwitch(TorchFunctionMode):
    """While active, notes whether gradients are switched off, which forward mode does not respect."""

    def __init__(self) -> None:
        super().__init__()
        self.off = False

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._C._set_grad_enabled and not args[0]:
            self.off = True
        return func(*args, **(kwargs or {}))
