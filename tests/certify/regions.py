"""Random boxes, balls, ellipsoids and half-spaces, and attacks that stay inside of them."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

KINDS = ("box", "ball", "ellipsoid", "halfspace")


def random_region(seed: int, dim: int) -> tuple[dict[str, Any], str]:
    """(a region, what it is): sizes from 1e-4 to 100, 0 to 1,000 away from 0, some with axes of many lengths."""
    rng, source = random.Random(seed), torch.Generator().manual_seed(seed)
    kind, size = rng.choice(KINDS), 10 ** rng.uniform(-4, 2)
    away = rng.choice([0.0, 1.0, 1.0, 30.0, 1e3])
    center = away * torch.randn(dim, generator=source, dtype=torch.float64)
    spread = rng.choice([0.0, 1.0])
    axes = size * 10 ** (spread * torch.rand(dim, generator=source, dtype=torch.float64))
    made: dict[str, Any] = {"kind": kind}
    if kind == "box":
        made |= {"lower": (center - axes).tolist(), "upper": (center + axes).tolist()}
    elif kind == "ball":
        made |= {"center": center.tolist(), "radius": size}
    elif kind == "ellipsoid":
        made |= {"center": center.tolist(), "axes": axes.tolist()}
    else:
        normal = torch.randn(dim, generator=source, dtype=torch.float64)
        made |= {"normal": normal.tolist(), "offset": float(normal @ center)}
    return made, f"{kind} of {size:.2g} at {away:g}"


def points(domain: dict[str, Any], count: int, dim: int, source: torch.Generator) -> Tensor:
    """Points of a region: corners, the rim, the inside; far ones where it has no end."""
    raw = torch.randn(count, dim, generator=source, dtype=torch.float64)
    share = torch.rand(count, dim, generator=source, dtype=torch.float64)
    if domain["kind"] == "box":
        low, high = _vector(domain["lower"]), _vector(domain["upper"])
        share[: count // 2] = share[: count // 2].round()
        return into(domain, low + share * (high - low))
    if domain["kind"] == "halfspace":
        return into(domain, raw * 10 ** (10 * share[:, :1] - 3))
    rim = torch.where(torch.arange(count)[:, None] < count // 2, 1.0, share[:, :1])
    direction = raw / raw.norm(dim=1, keepdim=True)
    return into(domain, _vector(domain["center"]) + rim * _axes(domain) * direction)


def into(domain: dict[str, Any], x: Tensor) -> Tensor:
    """Points brought into a region, a little inside of its rim where rounding could put them outside."""
    if domain["kind"] == "box":
        return torch.minimum(torch.maximum(x, _vector(domain["lower"])), _vector(domain["upper"]))
    if domain["kind"] == "halfspace":
        normal, size = _vector(domain["normal"]), x.norm(dim=1) + abs(domain["offset"])
        over = x @ normal - domain["offset"]
        moved = over + 1e-12 * size * normal.norm() + 1e-12
        return torch.where((over > -1e-12)[:, None], x - (moved / normal.square().sum())[:, None] * normal, x)
    center, axes = _vector(domain["center"]), _axes(domain)
    length = ((x - center) / axes).norm(dim=1, keepdim=True)
    inner = 1 - 1e-9 - 1e-15 * float((center.abs() / axes).max())
    return center + (x - center) * (inner / length).clamp_max(1.0)


def attack(
    model: nn.Module, domain: dict[str, Any], dim: int, seed: int, steps: int = 60
) -> tuple[Tensor, Tensor]:
    """(least, greatest) of every output over samples and projected gradient ascent."""
    start = points(domain, 3000, dim, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        y = model(start)
    low, high = y.amin(0), y.amax(0)
    size = (start.amax(0) - start.amin(0)).clamp_max(1e3 + start.abs().median() * 10)
    for output in range(y.shape[1]):
        for sign in (1.0, -1.0):
            x = start[(sign * y[:, output]).topk(8).indices].clone()
            for step in range(steps):
                x.requires_grad_(True)
                value = model(x)[:, output]
                (slope,) = torch.autograd.grad(sign * value.sum(), x)
                with torch.no_grad():
                    move = 0.3 * 0.9**step * size * slope.sign()
                    x = into(domain, x + move)
            with torch.no_grad():
                value = model(x)[:, output]
            low[output] = torch.minimum(low[output], value.min())
            high[output] = torch.maximum(high[output], value.max())
    return low, high


def _vector(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _axes(domain: dict[str, Any]) -> Tensor:
    return _vector(domain.get("axes", domain.get("radius")))
