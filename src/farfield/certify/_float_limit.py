"""Where floating point stops following the real arithmetic that a certificate speaks of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from farfield.graph import OpaqueNodeError, Program

__all__ = ["float_limit"]

RAYS = 4
DECADES = 300
NEAR = 40
"""Decades that float32 has: one ray looks at each of them."""
NEAR_STRIDE, FAR_STRIDE = 4, 8
"""Decades from one look to the next: of the other rays, and of all of them further out."""
TOLERANCE = 0.01
SETTLED, STILL = 4, 1e-6
"""A reference that stood still over so many decades, to this relative change, and then jumps by ``TOLERANCE`` has
left the reals: what grows like a power of the input up to the third does not do so in one decade."""


@torch.no_grad()
def float_limit(model: Any, example: Any, program: Program) -> float | None:
    """Smallest power of ten λ at which the model, in its own types, leaves the program in float64 at λu.

    Leaves: is not finite, or is off by more than 1% of the largest value met along the ray (by more than 8 units of
    rounding where those are coarser, as in bfloat16: that is noise at any size). Where the reference stood still over
    decades and then jumps, the jump is float64's own end and counts too: a LayerNorm's variance overflows from 10¹⁵⁴
    on. Evidence along four random rays, not a proof; λ is the Euclidean norm of the input. One ray is looked at in
    every decade up to 10⁴⁰, the others in every fourth one, all of them in every eighth one beyond, and decade by
    decade wherever something has changed from one look to the next.

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
    limit = DECADES
    try:
        for number in range(RAYS):
            ray = _Ray(model, example, program, leaves, moving, source)
            limit = ray.limit(range(0, NEAR, 1 if number == 0 else NEAR_STRIDE), limit)
    except (RuntimeError, TypeError, ValueError, OpaqueNodeError):
        return None
    return 10.0**limit if limit < DECADES else None


class _Ray:
    """The model and its program along one random direction."""

    def __init__(
        self, model: Any, example: Any, program: Program, leaves: list[Tensor], moving: list[bool],
        source: torch.Generator,
    ) -> None:  # fmt: skip
        self.model, self.example, self.program = model, example, program
        self.leaves, self.moving = leaves, moving
        directions = [
            torch.randn(t.shape, generator=source, dtype=torch.float64) if move else t
            for t, move in zip(leaves, moving, strict=True)
        ]
        square = sum(float(d.square().sum()) for d, move in zip(directions, moving, strict=True) if move)
        length = max(math.sqrt(square), 1e-300)
        self.directions = [d / length if move else d for d, move in zip(directions, moving, strict=True)]
        rounding = max(torch.finfo(t.dtype).eps for t, move in zip(leaves, moving, strict=True) if move)
        self.tolerance = max(TOLERANCE, 8 * rounding)
        self.size = 0.0
        self.history: list[Tensor] = []

    def limit(self, near: range, below: int) -> int:
        """The first decade at which the model leaves; ``below`` where it does not before.

        Looks at the decades of ``near``, then at every few. Where something has changed since the last look, every
        decade in between is looked at, with some before them to tell what stood still.
        """
        last = -1
        for exponent in [*near, *range(NEAR, DECADES, FAR_STRIDE), DECADES]:
            here: int = min(exponent, below - 1)
            if here - last == 1 and self.leaves_at(here):
                return here
            if here - last > 1 and self._changed_at(here):
                self.history = []
                for between in range(max(0, last - SETTLED), here + 1):
                    if self.leaves_at(between):
                        return between
            if here < exponent:
                break
            last = here
        return below

    def _changed_at(self, exponent: int) -> bool:
        """Whether the decade differs from the last one that was looked at, or the model from its program there."""
        values = self._values_at(exponent)
        if values is None:
            return True
        computed, reference = values
        change = _largest(reference - self.history[-1]) if self.history else math.inf
        size = max(self.size, _largest(reference))
        if not change <= TOLERANCE * size or not _largest(computed - reference) <= self.tolerance * size:
            return True  # where something is not finite too
        self.size, self.history = size, [*self.history[-SETTLED:], reference]
        return False

    def leaves_at(self, exponent: int) -> bool:
        """Whether the model leaves its program at this decade, which is the largest so far."""
        values = self._values_at(exponent)
        if values is None:
            return True
        computed, reference = values
        jumped = _jumped(self.history, reference)
        self.history = [*self.history[-SETTLED:], reference]
        if bool(torch.isfinite(reference).all()) and not jumped:
            self.size = max(self.size, _largest(reference))
            return not _largest(computed - reference) <= self.tolerance * self.size  # nan too
        return jumped or not bool(torch.isfinite(computed).all())

    def _values_at(self, exponent: int) -> tuple[Tensor, Tensor] | None:
        """(what the model computes, what its program does); ``None`` where the input is no finite number."""
        own = [
            (10.0**exponent * d).to(t.dtype) if move else t
            for d, t, move in zip(self.directions, self.leaves, self.moving, strict=True)
        ]
        if not all(bool(torch.isfinite(o).all()) for o, move in zip(own, self.moving, strict=True) if move):
            return None
        # The same rounded input on both sides: what is compared is the arithmetic, not the input's rounding.
        wide = [o.double() if move else o for o, move in zip(own, self.moving, strict=True)]
        reference = _joined(self.program.evaluate(*wide, keep=self.program.outputs), self.program)
        computed = _own(self.model, self.example, self.program, own)
        if computed.shape != reference.shape:
            raise ValueError("the model and its program have different outputs")
        return computed, reference


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _jumped(history: list[Tensor], reference: Tensor) -> bool:
    if len(history) <= SETTLED or not reference.numel():
        return False
    last = history[-1]
    scale = _largest(last)
    if not math.isfinite(scale) or any(_largest(h - last) > STILL * scale for h in history):
        return False
    return not _largest(reference - last) <= TOLERANCE * scale


def _own(model: Any, example: Any, program: Program, inputs: list[Tensor]) -> Tensor:
    """Every output of the model in its own types, flat and joined."""
    if not isinstance(model, nn.Module):
        values = program.evaluate(*inputs, dtype=None, keep=program.outputs)
        return _joined(values, program)
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
        raise ValueError("the model has not its program's outputs")
    return _joined(dict(zip(program.outputs, found, strict=True)), program)


def _joined(values: Mapping[str, Any], program: Program) -> Tensor:
    return torch.cat([values[name].detach().double().reshape(-1) for name in program.outputs])
