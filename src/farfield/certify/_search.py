"""What a network really attains: gradient search over all of Rⁿ, far and near alike.

A point is x = r·u with ‖u‖ = 1, and the search moves u along the sphere and log r along the line, so a step is as
good at ‖x‖ = 10⁹ as at 10⁻³ and the horizon is within reach. Everything found is a value taken at a point that is
reported: an inner bound, whatever the search missed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from farfield._budget import Budget, Clock, running
from farfield._typing import Float, Int
from farfield.certify._search_region import Region, search_region
from farfield.errors import InvalidValueError
from farfield.graph import Program, compute_node
from farfield.growth._verdict import zeros_for

__all__ = ["Attained", "attained", "moving_inputs"]

NEAR, FAR = math.log(1e-3), math.log(1e9)
"""Range of log r."""
MAGNITUDES = 13
MOST_TARGETS = 64
"""Outputs searched one by one; of more, only the extremes over all of them are aimed at."""
STARTS, BATCH = 12, 96
"""Starts per output and side in one round, and points in all where there are few of those."""
ELITE = 4
STEPS = 60
MOMENTUM = 0.7
ENTRIES = 20_000_000
"""Numbers that one batch may hold at once, over all nodes."""


@dataclass(frozen=True)
class Attained:
    """Values that a network takes, and where.

    Parameters
    ----------
    lower, upper
        Smallest and largest value met of every flat output; ``inf`` and ``-inf`` where none was finite.
    points
        The points behind them: the real inputs, flattened and joined.
    lower_point, upper_point
        Row of ``points`` for every flat output; −1 where none was finite.
    evaluations
        How many times the network was evaluated, gradients included.
    """

    lower: Float[Tensor, " outputs"]
    upper: Float[Tensor, " outputs"]
    points: Float[Tensor, "points size"]
    lower_point: Int[Tensor, " outputs"]
    upper_point: Int[Tensor, " outputs"]
    evaluations: int

    def witnesses(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Both sides as a certificate takes them."""
        sides = ((self.lower, self.lower_point), (self.upper, self.upper_point))
        lower, upper = (
            [
                {
                    "point": self.points[row].tolist() if row >= 0 else None,
                    "direction": None,
                    "value": value,
                }
                for value, row in zip(values.tolist(), rows.tolist(), strict=True)
            ]
            for values, rows in sides
        )
        return lower, upper


def moving_inputs(program: Program) -> tuple[int, ...]:
    """Positions of the inputs that take any real value; the others are held at the example."""
    return tuple(i for i, spec in enumerate(program.inputs) if spec.kind == "real")


@torch.enable_grad()
def attained(
    program: Program,
    output: str,
    *,
    time_budget: float | Budget | Clock,
    generator: torch.Generator,
    domain: Mapping[str, Any] | None = None,
    start: Sequence[Tensor] | None = None,
) -> Attained:
    """Search for the smallest and largest value of every entry of an output.

    Random directions at thirteen magnitudes, then rounds of normalized gradient ascent with momentum from the best of
    them and from fresh ones, steps shrinking from 0.5 to 10⁻⁵ radians. Costs what it is given: rounds go on until the
    budget is spent, so a little time finds little and more never finds less.

    Parameters
    ----------
    program
        The network; gradients go through its operators.
    output
        Name of one of its outputs.
    time_budget
        Seconds to spend, or a budget; a step is one gradient step of a batch of points.
    generator
        Source of starts.
    domain
        As in :class:`~farfield.certify._certificate.Certificate`; every real input by default.
    start
        One tensor per input: where to begin, and what integer, boolean and bounded inputs are held at. Zeros by
        default.

    Returns
    -------
    Attained
        Every value re-evaluated with :meth:`farfield.graph.Program.evaluate` in float64, at a point of the domain.

    Examples
    --------
    >>> from torch import nn
    >>> from farfield.graph import capture
    >>> program = capture(nn.Sequential(nn.Linear(2, 1), nn.Tanh()), torch.zeros(1, 2), dynamic_batch=False)
    >>> found = attained(program, "output", time_budget=0.1, generator=torch.Generator().manual_seed(0))
    >>> found.lower, found.upper
    (tensor([-1.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    network = _Network(program, output, start)
    region = search_region(domain, network.size)
    clock = running(time_budget)
    return _Search(network, region, clock, generator).run()


class _Network:
    """One output as a function of the moving inputs, flattened and joined."""

    def __init__(self, program: Program, output: str, start: Sequence[Tensor] | None) -> None:
        self.program, self.output = program, output
        program.node(output)
        self.start = [zeros_for(spec) for spec in program.inputs] if start is None else list(start)
        if len(self.start) != len(program.inputs):
            raise InvalidValueError(
                f"start has one tensor for each of the {len(program.inputs)} inputs, received {len(self.start)}."
            )
        self.moving = moving_inputs(program)
        self.shapes = [tuple(self.start[i].shape) for i in self.moving]
        self.size = sum(math.prod(shape) for shape in self.shapes)
        self.center = torch.cat(
            [self.start[i].double().reshape(-1) for i in self.moving] or [torch.zeros(0).double()]
        )
        self.nodes = _needed(program, output)
        self.constants = {
            n.name: _wide(program.constants[n.name]) for n in self.nodes if n.role == "constant"
        }
        self.vectorized = True
        self.evaluations = 0
        load = sum(
            math.prod(d if isinstance(d, int) else 1 for d in n.shape)
            for n in self.nodes
            if n.role != "constant"
        )
        self.chunk = max(1, ENTRIES // max(load, 1))

    def inputs(self, flat: Tensor) -> list[Tensor]:
        """The program's inputs at one point."""
        inputs = list(self.start)
        parts = flat.split([math.prod(shape) for shape in self.shapes])
        for i, part, shape in zip(self.moving, parts, self.shapes, strict=True):
            inputs[i] = part.reshape(shape)
        return inputs

    def exact(self, flat: Tensor) -> Tensor:
        """The flat output at one point, through the reference interpreter."""
        self.evaluations += 1
        value: Tensor = self.program.evaluate(*self.inputs(flat), keep=[self.output])[self.output]
        return value.detach().to(torch.float64).reshape(-1)

    def batch(self, rows: Tensor) -> Tensor:
        """The flat output at many points; differentiable."""
        self.evaluations += rows.shape[0]
        # Fused attention has no batching rule, the plain formula has one; other operators without are only slow.
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            warnings.filterwarnings("ignore", message="There is a performance drop")
            if self.vectorized:
                try:
                    return torch.cat([torch.vmap(self._one)(part) for part in rows.split(self.chunk)])
                except (
                    RuntimeError,
                    NotImplementedError,
                ):  # an operator that can't be batched, or looks at values
                    self.vectorized = False
            return torch.stack([self._one(row) for row in rows])

    def _one(self, flat: Tensor) -> Tensor:
        values: dict[str, Any] = dict(self.constants)
        sizes: dict[str, int] = {}
        for spec, tensor in zip(self.program.inputs, self.inputs(flat), strict=True):
            values[spec.name] = _wide(tensor)
            sizes.update(
                {str(d): n for d, n in zip(spec.shape, tensor.shape, strict=True) if isinstance(d, str)}
            )
        for node in self.nodes:
            if node.role not in ("constant", "input"):
                operands = [None if name is None else values[name] for name in node.inputs]
                values[node.name] = compute_node(node, operands, sizes, torch.float64)
        result: Tensor = values[self.output].to(torch.float64).reshape(-1)
        return result


class _Search:
    def __init__(self, network: _Network, region: Region, clock: Clock, generator: torch.Generator) -> None:
        self.network, self.region, self.generator, self.clock = network, region, generator, clock
        self.size = network.size

    def run(self) -> Attained:
        """Rounds until the time is up, then the best points evaluated again."""
        first = self._first()
        with torch.no_grad():
            values = self.network.batch(first)
        self.outputs = values.shape[1]
        self.targets = self._targets()
        gains = self._gains(values)
        best = torch.full((len(self.targets),), -math.inf, dtype=torch.float64)
        kept = torch.zeros(len(self.targets), self.size, dtype=torch.float64)
        best, kept = self._improved(best, kept, gains.T, first.expand(len(self.targets), *first.shape))
        if self.size and len(self.targets):
            kept = self._climb(first, gains, best, kept)
        return self._result(torch.cat([kept, first[:1]]), first)

    def _targets(self) -> list[tuple[int, float]]:
        """(flat output, sign); −1 stands for the extreme over all outputs."""
        if self.outputs > MOST_TARGETS:
            return [(-1, -1.0), (-1, 1.0)]
        return [(j, sign) for j in range(self.outputs) for sign in (-1.0, 1.0)]

    def _gains(self, values: Tensor) -> Tensor:
        """(points, targets): what each target wants large; −∞ where it is not a number."""
        columns = [(sign * values).amax(1) if j < 0 else sign * values[:, j] for j, sign in self.targets]
        gains = torch.stack(columns, 1) if columns else values.new_zeros(values.shape[0], 0)
        return torch.where(torch.isfinite(gains), gains, -math.inf)

    def _own_gains(self, values: Tensor, count: int) -> Tensor:
        """(targets · count): each block of ``count`` points against its own target."""
        blocks = values.reshape(len(self.targets), count, self.outputs)
        return torch.stack([
            (sign * block).amax(1) if j < 0 else sign * block[:, j]
            for (j, sign), block in zip(self.targets, blocks, strict=True)
        ]).reshape(-1)  # fmt: skip

    def _first(self) -> Tensor:
        """The example, the origin, axes and random directions, at every magnitude."""
        base = torch.stack([self.network.center, torch.zeros(self.size, dtype=torch.float64)])
        count = max(8, min(256, 2_000_000 // max(self.size, 1) // MAGNITUDES))
        inside = self.region.sample(count * 4, self.generator)
        if inside is not None:
            return self.region.project(torch.cat([base, inside]))
        directions = self._directions(count)
        if self.size <= 64:
            eye = torch.eye(self.size, dtype=torch.float64)
            directions = torch.cat([eye, -eye, directions])
        radii = torch.logspace(-3, 9, MAGNITUDES, dtype=torch.float64)
        spread = (radii[:, None, None] * directions).flatten(0, 1)
        return self.region.project(torch.cat([base, spread]))

    def _directions(self, count: int) -> Tensor:
        normal = torch.randn(count, self.size, generator=self.generator, dtype=torch.float64)
        length: Tensor = torch.linalg.vector_norm(normal, dim=1, keepdim=True)
        return normal / length.clamp(min=1e-300)

    def _fresh(self, count: int) -> Tensor:
        inside = self.region.sample(count, self.generator)
        if inside is not None:
            return inside
        logs = NEAR + (FAR - NEAR) * torch.rand(count, 1, generator=self.generator, dtype=torch.float64)
        return self.region.project(logs.exp() * self._directions(count))

    def _climb(self, first: Tensor, gains: Tensor, best: Tensor, kept: Tensor) -> Tensor:
        """Rounds of ascent: first from the best samples, then from fresh points; each ends by polishing the best."""
        count = min(max(STARTS, BATCH // len(self.targets)), first.shape[0])
        starts = first[gains.topk(count, dim=0).indices.T]
        while True:
            found, points = self._ascend(starts, 0.5, 5e-3)
            best, kept = self._improved(best, kept, found, points)
            if self._late():
                break
            elite = kept[:, None].expand(-1, ELITE, -1)
            for high in (0.05, 2e-3):
                found, points = self._ascend(elite, high, high / 200, spread=high / 5)
                best, kept = self._improved(best, kept, found, points)
            if self._late():
                break
            fresh = self._fresh(len(self.targets) * (count - 1)).reshape(len(self.targets), -1, self.size)
            starts = torch.cat([fresh, kept[:, None]], 1)
        return kept

    def _late(self) -> bool:
        return self.clock.over

    def _improved(self, best: Tensor, kept: Tensor, found: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Per target the best of what is kept and what was found, (targets, count)."""
        value, place = found.max(1)
        better = value > best
        rows = points[torch.arange(len(self.targets)), place]
        return torch.where(better, value, best), torch.where(better[:, None], rows, kept)

    def _ascend(self, starts: Tensor, high: float, low: float, spread: float = 0.0) -> tuple[Tensor, Tensor]:
        """Momentum ascent with steps falling from high to low; the best value and point along every way."""
        count = starts.shape[1]
        rows = starts.reshape(-1, self.size).clone()
        if spread:
            noise = torch.randn(rows.shape, generator=self.generator, dtype=torch.float64)
            noise[::count] = 0.0
            rows = self._moved(rows, noise / math.sqrt(self.size), torch.zeros(len(rows)).double(), spread)
        best = torch.full((len(rows),), -math.inf, dtype=torch.float64)
        kept = rows.clone()
        across = torch.zeros_like(rows)
        along = torch.zeros(len(rows), dtype=torch.float64)
        for step in range(STEPS + 1):
            rows = rows.detach().requires_grad_(True)
            self.clock.spend()
            gain = self._own_gains(self.network.batch(rows), count)
            with torch.no_grad():
                value = torch.where(torch.isfinite(gain), gain, -math.inf)
                better = value > best
                best = torch.where(better, value, best)
                kept = torch.where(better[:, None], rows, kept)
            if step == STEPS or not gain.requires_grad or self.clock.over:
                break
            (slope,) = torch.autograd.grad(gain.sum(), rows, materialize_grads=True)
            with torch.no_grad():
                turn, grow = self._direction(rows, torch.nan_to_num(slope, 0.0, 0.0, 0.0))
                across = MOMENTUM * across + (1 - MOMENTUM) * turn
                along = MOMENTUM * along + (1 - MOMENTUM) * grow
                size = high * (low / high) ** (step / STEPS)
                rows = self._moved(rows, across, along, size / (1 - MOMENTUM) / 2)
        shape = (len(self.targets), count)
        return best.reshape(shape), kept.detach().reshape(*shape, self.size)

    def _direction(self, rows: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient in the search's coordinates, made one long: (along the sphere, along log r), or of the box."""
        width = self.region.extent()
        if width is not None:
            scaled = slope * width
            return scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True).clamp(min=1e-300), (
                torch.zeros(len(rows), dtype=torch.float64)
            )
        radius = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        unit = rows / radius.clamp(min=1e-300)
        # Scaled first: the slope of a bounded network 10⁹ away is 10⁻⁹ or, radially, 10⁻¹⁸.
        scaled = slope * radius.clamp(min=math.exp(NEAR))
        grow = (scaled * unit).sum(1, keepdim=True)
        turn = scaled - grow * unit
        length = torch.sqrt(turn.square().sum(1, keepdim=True) + grow.square()).clamp(min=1e-300)
        return turn / length, (grow / length)[:, 0]

    def _moved(self, rows: Tensor, across: Tensor, along: Tensor, size: float) -> Tensor:
        width = self.region.extent()
        if width is not None:
            return self.region.project(rows + size * width * across)
        radius = torch.linalg.vector_norm(rows, dim=1).clamp(min=math.exp(NEAR))
        moved = rows / radius[:, None] + size * across
        length = torch.linalg.vector_norm(moved, dim=1, keepdim=True).clamp(min=1e-300)
        logs = (radius.log() + size * along).clamp(NEAR, FAR)
        return self.region.project(logs.exp()[:, None] * moved / length)

    def _result(self, points: Tensor, first: Tensor) -> Attained:
        """Values of the reference interpreter at the points kept, those outside the domain left out."""
        inside = [row for row in points if self.region.contains(row)]
        inside = inside or [row for row in first if self.region.contains(row)][:1]
        if not inside:
            raise InvalidValueError("No point of the domain could be found: is it empty?")
        pool = torch.stack(inside)
        values = torch.stack([self.network.exact(row) for row in pool])
        finite = torch.isfinite(values)
        low, low_row = torch.where(finite, values, math.inf).min(0)
        high, high_row = torch.where(finite, values, -math.inf).max(0)
        none = ~finite.any(0)
        return Attained(
            low,
            high,
            pool,
            torch.where(none, -1, low_row),
            torch.where(none, -1, high_row),
            self.network.evaluations,
        )


def _needed(program: Program, output: str) -> list[Any]:
    wanted = {output}
    for node in reversed(program.nodes):
        if node.name in wanted:
            wanted.update(node.operands)
    return [node for node in program.nodes if node.name in wanted]


def _wide(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor.to(torch.float64)
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor
