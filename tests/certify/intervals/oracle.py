"""What intervals claim, against evaluation in float64 at points of the boxes and nothing else. No slack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from captured import Plain
from farfield.certify.intervals import Interval, propagate, register_interval_rule
from farfield.certify.intervals._registry import INTERVAL_RULES, IntervalRule, unregister_interval_rule
from farfield.graph import Example, Node, Program, Sample

DOUBLE = torch.float64
Violation = tuple[str, str, float, float, float]


@contextmanager
def rule_of(op: str, rule: IntervalRule) -> Iterator[None]:
    """Another interval rule for the length of a test."""
    before = INTERVAL_RULES.find(Node("", op))
    register_interval_rule(op, rule)
    try:
        yield
    finally:
        if before is None:
            unregister_interval_rule(op)
        else:
            register_interval_rule(op, before)


def _outside(values: list[Tensor], box: Interval) -> tuple[float, float, float] | None:
    """Of what one node gave at every point: the first entry that lies outside of its claim, with the ends."""
    if any(tuple(value.shape) != tuple(box.shape) for value in values):
        return math.nan, math.nan, math.nan
    value = torch.stack(values)
    value = value if value.is_complex() else value.to(DOUBLE)
    bad = ~box.contains(value)
    if not bool(bad.any()):
        return None
    worst = torch.view_as_real(value[bad])[0, 0] if value.is_complex() else value[bad][0]
    lo, hi = (end.expand(value.shape)[bad][0] for end in (box.lo, box.hi))
    return float(worst), float(lo), float(hi)


def violations(
    program: Program,
    boxes: Mapping[str, Interval],
    points: Iterable[Sequence[Tensor]],
    given: Mapping[str, Interval] | None = None,
) -> list[Violation]:
    """Nodes whose value at some point leaves its interval: (node, op, value, lo, hi)."""
    claims = propagate(program, boxes, given)
    evaluated = [program.evaluate(*batch) for batch in points]
    found: list[Violation] = []
    for node in program.nodes:
        values, claim = [v[node.name] for v in evaluated], claims[node.name]
        parts = zip(*values, strict=True) if isinstance(claim, tuple) else [values]
        of_parts = claim if isinstance(claim, tuple) else (claim,)
        for part, box in zip(parts, of_parts, strict=True):
            out = _outside(list(part), box)
            if out is not None:
                found.append((node.name, node.op, *out))
    return found


# ------------------------------------------------------------------ boxes and points

KINDS = ("point", "tiny", "narrow", "wide", "huge", "half", "free")
RADII = {"point": 0.0, "tiny": 1e-9, "narrow": 1e-2, "wide": 1.0, "huge": 1e6}


def box_around(
    sample: Sample, center: Tensor, kind: str, generator: torch.Generator, domain: tuple[float, float] | None
) -> Interval | None:
    """A box of this kind for one input; ``None`` leaves it free."""
    if not (center.is_floating_point() or center.is_complex()):
        if kind in ("half", "free"):
            return None
        end = center.to(DOUBLE)
        return Interval(end, end)
    if center.is_complex():
        if kind == "free":
            return None
        ends = torch.view_as_real(center)
        radius = RADII.get(kind, 1.0)
        return Interval(ends.amin(-1) - radius, ends.amax(-1) + radius)
    if kind == "free" and domain is None:
        return None
    if kind in ("half", "free"):
        low = domain[0] if domain else -math.inf
        high = domain[1] if domain else math.inf
        up = torch.rand(center.shape, generator=generator, dtype=DOUBLE) > 0.5
        lo = torch.where(up, center, torch.full_like(center, low))
        hi = torch.where(up, torch.full_like(center, high), center)
        return Interval(lo, hi)
    scale = torch.rand(center.shape, generator=generator, dtype=DOUBLE) + 0.5
    lo, hi = (
        center - RADII[kind] * scale,
        center + RADII[kind] * scale.flip(-1) if scale.ndim else center + RADII[kind],
    )
    if domain is not None:
        lo, hi = lo.clamp(*domain), hi.clamp(*domain)
    return Interval(lo, hi)


def point_in(
    sample: Sample, center: Tensor, box: Interval | None, how: str, generator: torch.Generator
) -> Tensor:
    """One value of an input inside its box: a corner, near a corner, or anywhere."""
    if box is None:
        if center.is_floating_point():
            scale = 10.0 ** float(6 * torch.rand((), generator=generator) - 3)
            return scale * torch.randn(center.shape, generator=generator, dtype=DOUBLE)
        if center.is_complex():
            return torch.randn(center.shape, generator=generator, dtype=torch.complex128)
        return sample.draw(generator)
    if center.is_complex():
        parts = [point_in(sample, center.real, box, how, generator) for _ in range(2)]
        return torch.complex(*parts)
    if not center.is_floating_point():
        return center
    far = 10.0 ** float(5 * torch.rand((), generator=generator) - 2)
    spread = far * torch.rand(center.shape, generator=generator, dtype=DOUBLE)
    free = torch.isinf(box.lo) & torch.isinf(box.hi)
    lo = torch.where(torch.isinf(box.lo), torch.where(free, -spread, box.hi - spread), box.lo)
    hi = torch.where(torch.isinf(box.hi), torch.where(free, spread, box.lo + spread), box.hi)
    u = torch.rand(center.shape, generator=generator, dtype=DOUBLE)
    if how == "corner":
        return torch.where(u > 0.5, lo, hi)
    if how == "one corner":
        # One entry at one end, the rest at the other: where norms and softmax are extreme.
        first = torch.zeros(center.numel(), dtype=torch.bool)
        if center.numel():
            first[int(torch.randint(center.numel(), (), generator=generator))] = True
        flip = bool(torch.rand((), generator=generator) > 0.5)
        return torch.where(first.reshape(center.shape) ^ flip, lo, hi)
    if how == "edge":
        u = (3.0 * u - 1.0).clamp(0.0, 1.0)
    return (lo + u * (hi - lo)).clamp(lo, hi)


def points(
    example: Example,
    centers: Sequence[Tensor],
    boxes: Sequence[Interval | None],
    generator: torch.Generator,
    count: int,
) -> Iterator[list[Tensor]]:
    """Points of the boxes: corners, edges and the inside by turns."""
    ways = ("corner", "inside", "one corner", "edge")
    for k in range(count):
        yield [
            point_in(sample, center, box, ways[k % 4], generator)
            for sample, center, box in zip(example.samples, centers, boxes, strict=True)
        ]


# ------------------------------------------------------------------ small models


def network(middle: Callable[[Tensor], Tensor] | nn.Module, width: int = 6, seed: int = 0) -> nn.Module:
    """Linear, something, Linear, with weights from a generator of their own."""
    model = nn.Sequential(
        nn.Linear(4, width), middle if isinstance(middle, nn.Module) else Plain(middle), nn.LazyLinear(2)
    ).double()
    model(torch.zeros(2, 4, dtype=DOUBLE))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=DOUBLE))
    return model.eval()
