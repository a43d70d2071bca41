"""The program evaluated along a few rays, for a plot: as few and as large evaluations as the model allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from farfield.audit._sample import one_sample
from farfield.graph import Program, SymbolicSize
from farfield.graph._program import LARGE
from farfield.growth import GrowthReport

__all__ = ["LARGEST_BATCH", "is_batched", "numbers_per_sample", "rays", "takes_long"]

FULL, FEW = range(-4, 25), range(-4, 25, 4)
"""Exponents of λ in quarters of a decade; few for a program that takes long."""
LARGEST_BATCH = 20_000_000
"""Numbers computed in one evaluation; more samples than that go in several."""


def rays(report: GrowthReport, inputs: Sequence[Tensor], count: int) -> Mapping[str, Any]:
    """Largest |f(λu)| over the entries of the first output, for a few directions and λ from 0.1 to 10⁶.

    All radii and directions are one batch where rows of the model's batch are samples. A large program (from five
    million weights or values on) is tried in two directions besides the witness, at a fourth of the radii.

    Parameters
    ----------
    report
        From :func:`farfield.growth.analyze`.
    inputs
        The example, flattened: inputs that do not move stay at its first sample.
    count
        Number of random directions; the witness, if there is one, comes on top.

    Returns
    -------
    Mapping
        ``output``, ``radii``, ``series`` (each with ``label`` and ``values``), and ``note`` where nothing was drawn.
    """
    program = report.program
    nothing: dict[str, Any] = {"output": "", "radii": [], "series": []}
    if count == 0 or program.capture == "modules" or not any(s.kind == "real" for s in program.inputs):
        return nothing
    try:
        return _evaluated(report, inputs, count)
    except Exception as error:  # a plot is never worth a verdict
        return {**nothing, "note": f"no rays: {type(error).__name__}: {str(error)[:200]}"}


def _evaluated(report: GrowthReport, inputs: Sequence[Tensor], count: int) -> Mapping[str, Any]:
    program = report.program
    witness = report.witness
    whole = witness is not None and any(
        s.name in witness.directions and witness.directions[s.name].shape == t.shape
        for s, t in zip(program.inputs, inputs, strict=False)
    )
    sample = tuple(inputs) if whole else one_sample(program, inputs)
    if sample is None:
        raise ValueError(f"the program takes {len(program.inputs)} tensors and {len(inputs)} were given")
    work = numbers_per_sample(program, sample)
    large = takes_long(program, work)
    radii = [10.0 ** (k / 4.0) for k in (FEW if large else FULL)]
    directions = _directions(report, sample, min(count, 2) if large else count)
    points = [(direction, radius) for _, direction in directions for radius in radii]
    together = max(1, LARGEST_BATCH // max(work, 1)) if is_batched(program, sample) else 1
    sizes: list[float] = []
    for begin in range(0, len(points), together):
        sizes += _sizes(program, sample, points[begin : begin + together])
    series = [
        {"label": label, "values": sizes[k * len(radii) : (k + 1) * len(radii)]}
        for k, (label, _) in enumerate(directions)
    ]
    return {"output": program.outputs[0], "radii": radii, "series": series}


def is_batched(program: Program, sample: Sequence[Tensor]) -> bool:
    """Whether several samples go in one evaluation: every input, and the output, has one and the same open axis."""
    shapes = [*(spec.shape for spec in program.inputs), program.node(program.outputs[0]).shape]
    axes = {shape[0] if shape else 0 for shape in shapes}
    return len(axes) == 1 and isinstance(next(iter(axes)), SymbolicSize) and all(len(t) == 1 for t in sample)


def numbers_per_sample(program: Program, sample: Sequence[Tensor]) -> int:
    """How many numbers one evaluation computes, open axes counted with the sample's own sizes."""
    known = {
        str(d): n
        for spec, t in zip(program.inputs, sample, strict=True)
        for d, n in zip(spec.shape, t.shape, strict=True)
    }
    return program.computed(known)


def takes_long(program: Program, work: int) -> bool:
    """Whether the program is evaluated at few points only: it is large, or this sample makes it so."""
    return program.is_large or work > LARGE


def _directions(
    report: GrowthReport, sample: Sequence[Tensor], count: int
) -> list[tuple[str, list[Tensor | None]]]:
    """Unit directions of the real inputs with their labels; ``None`` for inputs that stand still."""
    source = torch.Generator().manual_seed(1)
    specs = report.program.inputs
    found: list[tuple[str, list[Tensor | None]]] = []
    for _ in range(count):
        drawn = [
            torch.randn(t.shape, generator=source, dtype=_wide(t)) if s.kind == "real" else None
            for s, t in zip(specs, sample, strict=True)
        ]
        found.append(("random direction", drawn))
    witness = report.witness
    if witness is not None:
        along = [
            witness.directions[s.name].to(_wide(t)).expand(t.shape) if s.name in witness.directions else None
            for s, t in zip(specs, sample, strict=True)
        ]
        found.append(("witness", along))
    return [(label, _unit(direction)) for label, direction in found]


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _unit(direction: list[Tensor | None]) -> list[Tensor | None]:
    length = math.sqrt(sum(float(d.abs().square().sum()) for d in direction if d is not None)) or 1.0
    return [None if d is None else d / length for d in direction]


def _sizes(
    program: Program, sample: Sequence[Tensor], points: Sequence[tuple[list[Tensor | None], float]]
) -> list[float]:
    """Largest entry of the first output at each of the points, all in one evaluation."""
    inputs = []
    for index, held in enumerate(sample):
        moved = [(u[index], radius) for u, radius in points]
        rows = [held if u is None else radius * u for u, radius in moved]
        inputs.append(torch.cat(rows) if len(rows) > 1 else rows[0])
    output = program.outputs[0]
    value = program.evaluate(*inputs, keep=[output])[output].abs().double()
    parts = value.split(1) if len(points) > 1 else (value,)
    return [float(part.max()) if part.numel() else 0.0 for part in parts]
