"""Jets of pooling and resampling: averages are linear; a window's maximum is a tournament."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.growth._jet import Jet, linear_map
from farfield.growth._leading import maximum_over, spread_floor
from farfield.growth._step import Step, jet_rule
from farfield.growth.jets.linear import reshaped

__all__: list[str] = []

INF = math.inf


@jet_rule("avg_pool", "adaptive_avg_pool", "interpolate")
def _average(step: Step) -> Jet:
    """Averages with weights in [0, 1] that sum to at most 1 take squared errors to no more than squared errors."""
    x = step.jet(0)
    spatial = step.attributes.get("spatial", x.ndim - 2)
    axes = tuple(range(x.ndim - spatial, x.ndim))
    if step.attributes.get("mode") == "bicubic":
        return linear_map(
            x, step.compute, lambda v: 4.0 * v.amax(axes, keepdim=True), spread_floor(x.full_floor(), axes)
        )
    return linear_map(x, step.compute, step.compute, spread_floor(x.full_floor(), axes))


def _windows(
    size: int, kernel: int, stride: int, padding: int, dilation: int, count: int
) -> tuple[Tensor, Tensor]:
    """Positions that each window of one axis covers, and which of them are inside."""
    start = torch.arange(count) * stride - padding
    place = start[:, None] + torch.arange(kernel)[None, :] * dilation
    return place.clamp(0, size - 1), (place >= 0) & (place < size)


@jet_rule("max_pool")
def _max_pool(step: Step) -> Jet:
    x, a = step.jet(0), step.attributes
    spatial = a["spatial"]
    with torch.no_grad():
        shape = step.compute(x.values[0].detach()).shape[-spatial:]
    table = [
        _windows(
            x.shape[x.ndim - spatial + i],
            a["kernel_size"][i],
            a["stride"][i],
            a["padding"][i],
            a["dilation"][i],
            n,
        )
        for i, n in enumerate(shape)
    ]
    return _tournament(x, table, spatial)


@jet_rule("adaptive_max_pool")
def _adaptive_max_pool(step: Step) -> Jet:
    x, spatial = step.jet(0), step.attributes["spatial"]
    with torch.no_grad():
        shape = step.compute(x.values[0].detach()).shape[-spatial:]
    table = []
    for i, count in enumerate(shape):
        size = x.shape[x.ndim - spatial + i]
        bounds = [(math.floor(k * size / count), math.ceil((k + 1) * size / count)) for k in range(count)]
        width = max(end - begin for begin, end in bounds)
        place = torch.tensor([[begin + j for j in range(width)] for begin, _ in bounds])
        inside = torch.tensor([[begin + j < end for j in range(width)] for begin, end in bounds])
        table.append((place.clamp(0, size - 1), inside))
    return _tournament(x, table, spatial)


def _tournament(x: Jet, table: list[tuple[Tensor, Tensor]], spatial: int) -> Jet:
    """Gather every window along a new last axis and take the largest entry."""
    device = x.values.device
    flat = torch.zeros((), dtype=torch.long)
    inside = torch.ones((), dtype=torch.bool)
    for i, (place, valid) in enumerate(table):
        size = x.shape[x.ndim - spatial + i]
        view = [1] * (2 * spatial)
        view[i], view[spatial + i] = place.shape
        flat = flat * size + place.reshape(view)
        inside = inside & valid.reshape(view)
    windows = flat.shape[:spatial]
    flat = flat.reshape(math.prod(windows), -1).to(device)
    inside = inside.expand((*windows, *inside.shape[spatial:])).reshape(flat.shape).to(device)
    # A place outside the tensor is replaced by one inside the same window: a maximum ignores repetitions.
    first = flat.gather(1, inside.to(torch.uint8).argmax(1, keepdim=True))
    flat = torch.where(inside, flat, first)
    lead_shape = x.shape[: x.ndim - spatial]

    def gathered(tensor: Tensor) -> Tensor:
        return tensor.flatten(-spatial)[..., flat]

    wide = Jet(x.powers, gathered(x.values), gathered(x.errors), gathered(x.full_floor()))
    best = maximum_over(wide, wide.ndim - 1)
    return reshaped(best, (*lead_shape, *windows))
