"""What regression is given: inputs, targets and memory, checked."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from farfield import engine as engines
from farfield.errors import InvalidValueError, PrecisionError

__all__ = ["budget", "check_finite", "checked_data", "pairs_of_targets", "refuse_conflicts"]

_SHARE = 0.6
"""The share of the machine's memory that memory='auto' takes."""


def budget(memory: int | str) -> int:
    """Bytes; ``"auto"`` is 60% of the machine's memory."""
    if memory != "auto":
        return engines.parse_memory(memory)
    return int(_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def checked_data(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets in float64, the latter with one column an output."""
    if x.dim() != 2 or y.dim() not in (1, 2) or len(x) != len(y) or len(x) == 0:
        raise InvalidValueError(
            "There are n ≥ 1 inputs of shape (n, d) and targets of shape (n,) or (n, k); got shapes "
            f"{tuple(x.shape)} and {tuple(y.shape)}."
        )
    x, y = x.detach().to(torch.float64), y.detach().to(torch.float64)
    for name, value in (("inputs", x), ("targets", y)):
        bad = int((~torch.isfinite(value)).sum())
        if bad:
            raise InvalidValueError(
                f"The {name} are finite; {bad} of their entries are not. Drop or replace those."
            )
    return x, y if y.dim() == 2 else y[:, None]


def pairs_of_targets(x: Tensor, y: Tensor) -> tuple[int, float]:
    """How many inputs occur more than once with different targets, and the largest difference."""
    _, group, counts = torch.unique(x, dim=0, return_inverse=True, return_counts=True)
    if len(counts) == len(x):
        return 0, 0.0
    index = group[:, None].expand_as(y)
    low, high = (
        torch.zeros(len(counts), y.shape[1], dtype=y.dtype, device=y.device).scatter_reduce(
            0, index, y, how, include_self=False
        )
        for how in ("amin", "amax")
    )
    spread = (high - low).amax(1)
    return int((spread > 0).sum()), float(spread.max())


def refuse_conflicts(x: Tensor, y: Tensor) -> None:
    groups, spread = pairs_of_targets(x, y)
    if groups:
        raise InvalidValueError(
            f"Without noise the fit goes through every target, and {groups} inputs occur more than once "
            f"with different targets (differences up to {spread:.3g}). Pass noise=, the variance of the "
            "targets at one input, or average them."
        )


def check_finite(diagonal: Tensor) -> None:
    if not bool(torch.isfinite(diagonal).all()):
        raise PrecisionError(
            "k(x, x) is not finite for some inputs: they overflow the kernel's floating point. Scale the inputs."
        )
