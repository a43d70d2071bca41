"""An ensemble with its scaling, as one module in the units of the data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from farfield.learn._scaling import Scaling
from farfield.nn import RangeHead

__all__ = ["Ensemble", "Units", "range_head"]


class Units(nn.Module):
    """x ↦ offset + scale·x along the last axis, with constants that are not trained."""

    offset: Tensor
    scale: Tensor

    def __init__(self, offset: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("offset", offset.clone())
        self.register_buffer("scale", scale.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Shape (…, columns)."""
        return self.offset + self.scale * x

    def extra_repr(self) -> str:
        """What print shows."""
        return f"{self.offset.tolist()}, {self.scale.tolist()}"


def range_head(low: Tensor, high: Tensor) -> nn.Sequential:
    """Keeps output k in [low_k, high_k], whatever the units: a head of range [−1, 1] between two scalings."""
    middle, half = (low + high) / 2, (high - low) / 2
    return nn.Sequential(Units(-middle / half, 1 / half), RangeHead(-1.0, 1.0), Units(middle, half))


class Ensemble(nn.Module):
    """Inputs standardised, the mean of the members, outputs in the units of the targets."""

    def __init__(self, members: Sequence[nn.Module], inputs: Scaling, outputs: Scaling | None) -> None:
        super().__init__()
        offset, scale = (torch.from_numpy(v).reshape(-1) for v in (inputs.offset, inputs.scale))
        self.inputs = Units(-offset / scale, 1 / scale)
        self.members = nn.ModuleList(members)
        self.outputs: nn.Module = nn.Identity()
        if outputs is not None:
            self.outputs = Units(*(torch.from_numpy(v).reshape(-1) for v in (outputs.offset, outputs.scale)))

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, features) → (n, outputs)."""
        x = self.inputs(x)
        outputs = [member(x) for member in self.members]
        mean: Tensor = self.outputs(torch.stack(outputs).mean(0))
        return mean
