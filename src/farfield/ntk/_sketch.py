"""The tangent kernel estimated from random directions in parameter space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError
from farfield.ntk._calls import Tracked
from farfield.ntk._model import Selection
from farfield.ntk._products import push

__all__ = ["Sketch", "sketch"]


@dataclass(frozen=True)
class Sketch:
    """An unbiased estimate of the tangent kernel, and the standard error of every entry."""

    value: Tensor
    standard_error: Tensor
    directions: int


def sketch(
    model: nn.Module,
    tracked: Tracked,
    select: Selection,
    x1: Tensor,
    x2: Tensor | None,
    *,
    directions: int,
    generator: torch.Generator | None,
    batch: int,
) -> Sketch:
    r"""Θ ≈ (1/r) Σ_s (J ω_s)(J ω_s)ᵀ with independent standard normal ω_s: unbiased, entries known to 1/√r.

    Each direction costs one forward-mode pass over the inputs. The standard error is that of the r terms of the
    mean.
    """
    if directions < 2:
        raise InvalidValueError(f"A standard error needs at least two directions, got {directions}.")
    first: Tensor | None = None
    second: Tensor | None = None
    for _ in range(directions):
        direction = {
            name: torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device)
            for name, p in tracked.parameters.items()
        }
        a = torch.cat([push(model, tracked, select, part, direction) for part in x1.split(batch)])
        b = (
            a
            if x2 is None
            else torch.cat([push(model, tracked, select, part, direction) for part in x2.split(batch)])
        )
        term = a @ b.T if select.trace else torch.einsum("nk,ml->nmkl", a, b)
        first = term if first is None else first + term
        second = term * term if second is None else second + term * term
    assert first is not None
    assert second is not None
    mean = first / directions
    spread = (second / directions - mean * mean).clamp(min=0) / (directions - 1)
    return Sketch(mean, torch.sqrt(spread), directions)
