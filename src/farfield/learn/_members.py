"""An ensemble with its scaling, as one module in the units of the data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from farfield.learn._scaling import Scaling
from farfield.nn import GroupedLayerNorm, Project, RangeHead

__all__ = ["KNEE", "Ensemble", "OutputUnits", "Standardized", "evaluate", "range_head", "tempered"]

KNEE = 0.1
"""Share of a range at either end in which its head bends; between them it is the identity."""


class _Columns(nn.Module):
    """An offset and a scale for every entry of the last axis, constants that are not trained."""

    offset: Tensor
    scale: Tensor

    def __init__(self, offset: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("offset", offset.clone())
        self.register_buffer("scale", scale.clone())

    def extra_repr(self) -> str:
        """What print shows."""
        return f"{self.offset.tolist()}, {self.scale.tolist()}"


class OutputUnits(_Columns):
    """x ↦ offset + scale·x along the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        """Shape (…, columns)."""
        return self.offset + self.scale * x


class Standardized(_Columns):
    """x ↦ (x − offset)/scale along the last axis. The difference first: where the offset is many times the scale,
    x/scale − offset/scale would lose that many digits.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Shape (…, columns)."""
        return (x - self.offset) / self.scale


def range_head(low: Tensor, high: Tensor) -> nn.Sequential:
    """Keeps output k in [low_k, high_k], whatever the units: a head of range [−1, 1] between two scalings."""
    middle, half = (low + high) / 2, (high - low) / 2
    return nn.Sequential(
        OutputUnits(-middle / half, 1 / half), RangeHead(-1.0, 1.0, knee=KNEE), OutputUnits(middle, half)
    )


def evaluate(module: nn.Module, x: Tensor) -> Tensor:
    """``module(x)`` for a chain, with norms that keep to their sphere in floating point too.

    Torch takes x·r − m·r with r = 1/σ and a rounded mean m. Where x is large and all but constant (a direction u with
    W u = 1, which a layer narrower than its inputs has) that is rounding times |x|/√ε, at any size. Differences to
    the first entry have no rounding but their own, and their spread is of their own size: what is made of them lies
    on the sphere to some 1e-16 · width.
    """
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for child in module:
            x = evaluate(child, x)
        return x
    if type(module) is nn.LayerNorm and len(module.normalized_shape) == 1:
        return _affine(_on_the_sphere(x, module.eps), module.weight, module.bias)
    if type(module) is GroupedLayerNorm:
        grouped = x.unflatten(-1, (module.groups, -1))
        return _affine(_on_the_sphere(grouped, module.norm_eps).flatten(-2), module.weight, module.bias)
    result: Tensor = module(x)
    return result


def _on_the_sphere(x: Tensor, eps: float) -> Tensor:
    x = x - x[..., :1]
    projected: Tensor = Project(eps)(x - x.mean(-1, keepdim=True))
    return projected


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def tempered(logits: Tensor, inputs: Tensor, radius: float | None) -> Tensor:
    """Logits of rows beyond a radius divided by how many times as far they lie; all as they are if it is None."""
    if radius is None:
        return logits
    share: Tensor = (radius / torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)).clamp(max=1.0)
    return logits * share


class Ensemble(nn.Module):
    """Inputs standardized, the mean of the members, tempered beyond a radius, outputs in the units of the targets."""

    def __init__(
        self,
        members: Sequence[nn.Module],
        inputs: Scaling,
        outputs: Scaling | None,
        radius: float | None = None,
    ) -> None:
        super().__init__()
        self.radius = radius
        offset, scale = (torch.from_numpy(v).reshape(-1) for v in (inputs.offset, inputs.scale))
        self.inputs = Standardized(offset, scale)
        self.members = nn.ModuleList(members)
        self.outputs: nn.Module = nn.Identity()
        if outputs is not None:
            self.outputs = OutputUnits(
                *(torch.from_numpy(v).reshape(-1) for v in (outputs.offset, outputs.scale))
            )

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, features) → (n, outputs)."""
        x = self.inputs(x)
        outputs = [member(x) for member in self.members]
        mean: Tensor = self.outputs(tempered(torch.stack(outputs).mean(0), x, self.radius))
        return mean
