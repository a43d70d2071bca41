"""Independent checks of what growth claims, by evaluation in float64 and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from farfield.graph import Program
from farfield.growth._analysis import Analysis
from farfield.growth._horizon import follow, read
from farfield.growth._rate import Level

RADII = (1e-2, 1.0, 10.0, 1e2, 1e4, 1e6, 1e8)
ROUNDING = 1e-9
"""The claims are about real arithmetic; the evaluations round. Nothing else is forgiven."""


def trusted_values(program: Program, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Every node's value in float64, without those that rounding has made meaningless.

    torch's group norm subtracts two large squares: on a row of equal numbers of size 1e24 it returns 1e9 where the
    answer is 0. What follows from such a value says nothing about real arithmetic.
    """
    values = program.evaluate(*inputs)
    lost: set[str] = set()
    for node in program.nodes:
        if any(name in lost for name in node.operands):
            lost.add(node.name)
        elif node.op in ("group_norm", "instance_norm"):
            x = values[node.operands[0]].to(torch.float64)
            groups = node.attributes.get("num_groups", x.shape[1])
            rows = x.reshape(x.shape[0], groups, -1)
            spread = (rows - rows.mean(-1, keepdim=True)).abs().amax(-1)
            if bool((spread < 1e-6 * rows.abs().amax(-1)).any()):
                lost.add(node.name)
    return {name: value for name, value in values.items() if name not in lost}


def interval_violations(
    program: Program, analysis: Analysis, batches: Iterable[Sequence[Tensor]]
) -> list[tuple[str, str, float, float, float, float]]:
    """Nodes whose value leaves the interval claimed, or comes nearer to 0: (node, op, least, largest, lo, hi)."""
    found = []
    for batch in batches:
        values = trusted_values(program, batch)
        for node in program.nodes:
            value = values.get(node.name)
            if node.role == "constant" or not isinstance(value, Tensor) or value.numel() == 0:
                continue
            extent = analysis.extent(node.name)
            if extent.doubts:
                continue
            value = torch.view_as_real(value) if value.is_complex() else value.to(torch.float64)
            if bool(torch.isnan(value).any()):
                if node.op != "input" and _operands_finite(values, node.operands):
                    found.append((node.name, node.op, math.nan, math.nan, extent.lo, extent.hi))
                continue
            least, largest = float(value.min()), float(value.max())
            slack = ROUNDING * max(1.0, *(abs(v) for v in (extent.lo, extent.hi) if math.isfinite(v)), 1.0)
            nearest = math.inf if value.is_complex() else float(value.abs().min())
            if (
                least < extent.lo - slack
                or largest > extent.hi + slack
                or nearest < extent.gap * (1 - ROUNDING)
            ):
                found.append((node.name, node.op, least, largest, extent.lo, extent.hi))
    return found


def _operands_finite(values: dict[str, Tensor], names: Iterable[str]) -> bool:
    tensors = [values[name] for name in names]
    return all(
        isinstance(t, Tensor) and bool(torch.isfinite(t).all()) for t in tensors if not isinstance(t, tuple)
    )


def rate_violations(
    program: Program, analysis: Analysis, directions: Sequence[Tensor], moving: str | None = None
) -> list[tuple[str, str, str, float, float]]:
    """Nodes that grow faster between radius 1e4 and 1e8 than claimed: (node, op, side, size before, size after)."""
    sizes: dict[float, dict[str, tuple[float, float]]] = {}
    for radius in RADII:
        values = trusted_values(program, [radius * u if u.is_floating_point() else u for u in directions])
        sizes[radius] = {}
        for name, value in values.items():
            if isinstance(value, Tensor) and value.numel() and not value.is_complex():
                value = value.to(torch.float64)
                if bool(torch.isfinite(value).all()):
                    sizes[radius][name] = (max(0.0, -float(value.min())), max(0.0, float(value.max())))
    found = []
    for node in program.nodes:
        extent = analysis.extent(node.name, moving)
        if node.role == "constant" or extent.doubts or node.name not in sizes[1e8]:
            continue
        for index, side, rate in ((0, "lower", extent.lower), (1, "upper", extent.upper)):
            before = [sizes[r][node.name] for r in RADII if r <= 1e4 and node.name in sizes[r]]
            own = max([1.0, *(pair[index] for pair in before)])
            either = max([1.0, *(max(pair) for pair in before)])  # x·sin x changes sides as it goes
            after = sizes[1e8][node.name][index]
            if rate.level <= Level.BOUNDED:
                limit = 3.0 * own
            elif rate.level == Level.POWER:
                limit = 30.0 * either * 1e4 ** (rate.degree + 0.1)
            else:
                continue
            if after > limit:
                found.append((node.name, node.op, side, own, after))
    return found


def horizon_violations(
    program: Program,
    directions: Sequence[Tensor | None],
    starts: Sequence[Tensor | None],
    evaluate: Callable[[float], Tensor],
    *,
    radius: float = 1e8,
    tolerance: float = 1e-4,
) -> list[str]:
    """Limits, slopes and leading terms that an evaluation at a large radius contradicts."""
    jet, notes = follow(program, directions, starts)
    if notes:
        return [str(note) for note in notes]
    seen = read(jet)
    far = evaluate(radius)
    if far.dtype == torch.bool:
        known = ~seen.degenerate
        return [] if bool((seen.value == far)[known].all()) else ["a discrete limit is not attained"]
    far = far.to(torch.float64)
    further = evaluate(1e3 * radius).to(torch.float64)
    tolerance = max(tolerance, 10 * radius**-0.5)
    found = []

    def off(error: Tensor, later: Tensor, mask: Tensor, allowed: float) -> float:
        """The largest error that is not on its way to 0: a slow limit shows less of it a thousand times further."""
        staying = mask & (error > allowed) & ~(later < 0.3 * error)
        return float(error[staying].max()) if bool(staying.any()) else 0.0

    settled = ~torch.isnan(seen.value)
    errors = [(seen.value - f).abs() / (1.0 + f.abs()) for f in (far, further)]
    if (worst := off(*errors, settled, tolerance)) > 0.0:
        found.append(f"limit off by {worst:.3g}")
    flat = ~torch.isnan(seen.slope)
    errors = [
        (seen.slope - f / r).abs() / (1.0 + seen.slope.abs())
        for f, r in ((far, radius), (further, 1e3 * radius))
    ]
    if (worst := off(*errors, flat, tolerance)) > 0.0:
        found.append(f"slope off by {worst:.3g}")
    growing = (seen.degree >= 0.5) & torch.isfinite(far) & torch.isfinite(further)
    errors = [
        (f / r**seen.degree - seen.coefficient).abs() / seen.coefficient.abs()
        for f, r in ((far, radius), (further, 1e3 * radius))
    ]
    if (worst := off(*errors, growing, 0.05)) > 0.0:
        found.append(f"leading coefficient off by {worst:.3g}")
    return found
