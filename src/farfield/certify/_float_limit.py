"""Where floating point stops following the real arithmetic that a certificate speaks of."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from farfield.graph import OpaqueNodeError, Program

__all__ = ["float_limit"]

RAYS = 4
DECADES = 300
TOLERANCE = 0.01
SETTLED, STILL = 4, 1e-3
"""A reference that stood still over so many decades, to this relative change, and then jumps has left the reals."""


@torch.no_grad()
def float_limit(model: Any, example: Any, program: Program) -> float | None:
    """Smallest power of ten λ at which the model, in its own types, leaves the program in float64 at λu.

    Leaves: is not finite, or is off by more than 1% of the largest value met along the ray (by more than 8 units of
    rounding where those are coarser, as in bfloat16: that is noise at any size). Where the reference stood still over
    decades and then jumps, the jump is float64's own end and counts too: a LayerNorm's variance overflows from 10¹⁵⁴
    on. Evidence along four random rays, not a proof; λ is the Euclidean norm of the input.

    Parameters
    ----------
    model
        The module; anything else (a file, an exported program) is run as its program, in the program's own types.
    example
        As for :func:`farfield.graph.capture`.
    program
        Captured from it.

    Returns
    -------
    float or None
        None where nothing was found below 10³⁰⁰, or the model can't be run this way.

    Examples
    --------
    >>> from farfield.graph import capture
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    >>> example = torch.zeros(1, 3)
    >>> 1e18 <= float_limit(model, example, capture(model, example)) <= 1e21
    True
    """
    leaves = [t for t in tree_leaves(example) if isinstance(t, Tensor)]
    moving = [spec.kind == "real" for spec in program.inputs]
    if len(leaves) != len(moving) or not any(moving):
        return None
    source = torch.Generator().manual_seed(0)
    limits = [_along(model, example, program, leaves, moving, source) for _ in range(RAYS)]
    found = [limit for limit in limits if limit is not None]
    return min(found) if found else None


def _along(
    model: Any,
    example: Any,
    program: Program,
    leaves: list[Tensor],
    moving: list[bool],
    source: torch.Generator,
) -> float | None:
    directions = [
        torch.randn(t.shape, generator=source, dtype=torch.float64) if move else t
        for t, move in zip(leaves, moving, strict=True)
    ]
    length = math.sqrt(sum(float(d.square().sum()) for d, m in zip(directions, moving, strict=True) if m))
    rounding = max(torch.finfo(t.dtype).eps for t, m in zip(leaves, moving, strict=True) if m)
    tolerance = max(TOLERANCE, 8 * rounding)
    size = 0.0
    history: list[Tensor] = []
    for exponent in range(DECADES):
        scale = 10.0**exponent / max(length, 1e-300)
        own = [
            (scale * d).to(t.dtype) if m else t for d, t, m in zip(directions, leaves, moving, strict=True)
        ]
        if not all(bool(torch.isfinite(o).all()) for o, m in zip(own, moving, strict=True) if m):
            return 10.0**exponent
        try:
            # The same rounded input on both sides: what is compared is the arithmetic, not the input's rounding.
            wide = [o.double() if m else o for o, m in zip(own, moving, strict=True)]
            reference = _joined(list(program.evaluate(*wide, keep=program.outputs).items()), program)
            computed = _own(model, example, program, own)
        except (RuntimeError, TypeError, ValueError, OpaqueNodeError):
            return None
        if computed is None or computed.shape != reference.shape:
            return None
        jumped = _jumped(history, reference)
        if bool(torch.isfinite(reference).all()) and not jumped:
            size = max(size, float(reference.abs().max()) if reference.numel() else 0.0)
            off = float((computed - reference).abs().max()) if reference.numel() else 0.0
            if not off <= tolerance * size:  # nan too
                return 10.0**exponent
        elif jumped or not bool(torch.isfinite(computed).all()):
            return 10.0**exponent
        history = [*history[-SETTLED:], reference]
    return None


def _jumped(history: list[Tensor], reference: Tensor) -> bool:
    if len(history) <= SETTLED or not reference.numel():
        return False
    last = history[-1]
    scale = float(last.abs().max())
    if not math.isfinite(scale) or any(float((h - last).abs().max()) > STILL * scale for h in history):
        return False
    return not float((reference - last).abs().max()) <= TOLERANCE * scale


def _own(model: Any, example: Any, program: Program, inputs: list[Tensor]) -> Tensor | None:
    """Every output of the model in its own types, flat and joined; None where it has not the program's outputs."""
    if not isinstance(model, nn.Module):
        values = program.evaluate(*inputs, dtype=None, keep=program.outputs)
        return _joined(list(values.items()), program)
    queue = list(inputs)
    filled = tree_map(lambda leaf: queue.pop(0) if isinstance(leaf, Tensor) else leaf, example)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        if isinstance(filled, Tensor):
            result = model(filled)
        elif isinstance(filled, dict):
            result = model(**filled)
        else:
            result = model(*filled)
    finally:
        for module, mode in modes:
            module.training = mode
    found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    if len(found) != len(program.outputs):
        return None
    return _joined(list(zip(program.outputs, found, strict=True)), program)


def _joined(values: list[tuple[str, Any]], program: Program) -> Tensor:
    by_name = dict(values)
    return torch.cat([by_name[name].detach().double().reshape(-1) for name in program.outputs])
