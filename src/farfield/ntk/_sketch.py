"""The tangent kernel estimated from random directions in parameter space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError
from farfield.ntk._calls import TrackedParameters
from farfield.ntk._model import Selection
from farfield.ntk._products import push_many

__all__ = ["Sketch", "sketch"]


_AT_ONCE, _BYTES = 512, 1 << 26
"""Pairs of an input and a direction, and bytes of directions, that go through the model at once."""


@dataclass(frozen=True)
class Sketch:
    """An unbiased estimate of the tangent kernel, and the standard error of every entry."""

    value: Tensor
    standard_error: Tensor
    directions: int


def sketch(
    model: nn.Module,
    tracked: TrackedParameters,
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
    size = sum(p.numel() * p.itemsize for p in tracked.parameters.values())
    longest = min(batch, max(len(x1), 0 if x2 is None else len(x2)))
    together = max(1, min(_AT_ONCE // longest, _BYTES // size))
    wide = torch.promote_types(tracked.dtype, torch.float32)
    first: Tensor | None = None
    second: Tensor | None = None
    for start in range(0, directions, together):
        drawn = [
            {
                name: torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device)
                for name, p in tracked.parameters.items()
            }
            for _ in range(min(together, directions - start))
        ]

        def moved(x: Tensor, drawn: list[dict[str, Tensor]] = drawn) -> Tensor:
            return torch.cat([push_many(model, tracked, select, part, drawn) for part in x.split(batch)], 1)

        # Squares of half-precision numbers overflow, and sums of many of them stand still.
        a = moved(x1).to(wide)
        b = a if x2 is None else moved(x2).to(wide)
        if select.trace:
            terms = torch.einsum("rnk,rmk->rnm", a, b)
            total, squares = terms.sum(0), (terms * terms).sum(0)
        else:  # a term is one product, so the terms of each direction need not be held for their squares
            total, squares = (torch.einsum("rnk,rml->nmkl", u, v) for u, v in ((a, b), (a * a, b * b)))
        first = total if first is None else first + total
        second = squares if second is None else second + squares
    assert first is not None
    assert second is not None
    mean = first / directions
    spread = (second / directions - mean * mean).clamp(min=0) / (directions - 1)
    return Sketch(mean.to(tracked.dtype), torch.sqrt(spread).to(tracked.dtype), directions)
