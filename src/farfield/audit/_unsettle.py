"""Weights as after training: nothing holds only because a parameter starts at zero or one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["unsettle"]


@torch.no_grad()
def unsettle(model: nn.Module) -> None:
    """Draw anew, from torch's generator, every parameter whose entries are all equal, and running statistics.

    A gate or a layer scale that starts at zero would otherwise cut a path that a trained model has.
    """
    for parameter in model.parameters():
        if not parameter.is_floating_point() or parameter.numel() == 0:
            continue
        first = float(parameter.flatten()[0])
        if not bool((parameter == first).all()):
            continue
        noise = torch.randn(parameter.shape, dtype=parameter.dtype)
        parameter.copy_(0.1 * noise if first == 0.0 else first * (1.0 + 0.2 * noise))
    for module in model.modules():
        mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
        if isinstance(mean, Tensor) and isinstance(variance, Tensor):
            mean.normal_()
            variance.uniform_(0.5, 2.0)
