"""The provers: each takes one entry and side of an output and a clock, and gives a proof of a bound, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from farfield._budget import Budget, Clock
from farfield.certify._cone import Cone
from farfield.certify._proofs import CellsProof, DualProof, Proof
from farfield.certify._search import Attained
from farfield.certify.affine import Network
from farfield.certify.cells import branch
from farfield.certify.dual import (
    Anchor,
    Dual,
    LayerSearch,
    Multipliers,
    Nested,
    NoProblemError,
    Problem,
    build_problem,
    find_anchor,
    homogeneous_source,
    layer_costs,
    nest,
    objective,
    optimize,
    optimize_nested,
    prove,
    publish,
    publish_nested,
    restore,
    restore_nested,
    single_multipliers,
    subproblem,
    tightened,
)
from farfield.errors import FarfieldError, PrecisionError
from farfield.graph import Program

__all__ = [
    "AttainedPoint",
    "Key",
    "OutputCase",
    "Prover",
    "Together",
    "by_dual",
    "by_nested",
    "dimensions",
    "knows_region",
    "prepare",
    "provers",
    "reached",
]

WORTH_RANGES = 2
"""Layers behind others, from which on ranges of their own are searched: decision 0043."""
CELL_DIMENSIONS = 5
"""Branch and bound over cells is tried up to this many inputs."""
TOLERANCE = 1e-3
"""A bound this close to the attained value, in units of the attained range, is close enough."""
ANCHOR_SHARES = (0.12, 0.25)
"""Of the time that is left, for the anchor of a nested problem: at first, and again where none was found."""
NESTED_STEPS = 100
"""Fewer steps of a nested search than these end above the plain problem's bound."""
SECOND_STEPS = 30
"""Of a second search, where the first one found nothing that float64 can prove."""
PLAIN_SHARE = 0.12
"""Of the dual's time where there is a nested problem, for the plain one it begins with."""
RECHECK_SECONDS = 8e-6
"""For every neuron of a deep layer and neuron before it, to check its range again; 6e-6 was measured."""
ROUNDING = 2e-9
"""And so is one this close in units of the value itself: publishing it loses as much."""
Key: TypeAlias = tuple[int, int]
"""(entry of the flattened output, sign)."""


@dataclass(frozen=True)
class AttainedPoint:
    """sign·f reaches ``value`` at an input."""

    value: float
    point: tuple[float, ...]


@dataclass(frozen=True)
class Together:
    """What a search of several sides at once has found: their multipliers share all that is quadratic."""

    keys: tuple[Key, ...]
    multipliers: Multipliers

    def start(self, key: Key, forms: int) -> Multipliers | None:
        """Where a search of one of them may begin."""
        if key not in self.keys:
            return None
        made = single_multipliers(self.multipliers, forms, self.keys.index(key))
        del made["room"]  # the shift is in the multipliers already
        return made


@dataclass(frozen=True)
class OutputCase:
    """One output in the forms that provers take; ``problem`` where it can be written as one."""

    network: Network
    problem: Problem | None
    dimensions: int | None
    found: Attained
    cone: Cone | None = None
    layers: tuple[LayerSearch, ...] = ()
    """What is behind the problem's ranges, where those of deep layers were made smaller."""
    nested: Nested | None = None
    """The problem with what its norm normalizes, where there is one."""
    anchor: Anchor | None = None
    """Where a search of the nested problem begins."""
    together: Together | None = None
    """Where searches of single sides begin, if not at a first guess of their own."""

    def anchored(self, clock: Clock) -> OutputCase:
        """The same with an anchor, if one is found: in a small share of the clock, or else in a larger one."""
        if self.nested is None:
            return self
        found = find_anchor(self.nested, clock.share(ANCHOR_SHARES[0]))
        return replace(self, anchor=found or find_anchor(self.nested, clock.share(ANCHOR_SHARES[1])))

    def nesting_pays(self, clock: Clock, sides: int) -> bool:
        """Whether there is an anchor, and time for as many steps as it takes to gain something, on every side."""
        if self.anchor is None:
            return False
        return clock.seconds_left >= sides * NESTED_STEPS * self.anchor.step_seconds

    def tightened(self, clock: Clock) -> OutputCase:
        """The same with smaller ranges of deep layers; what they rest on goes into every dual proof."""
        if self.problem is None:
            return self
        problem, layers = tightened(self.problem, clock)
        return replace(self, problem=problem, layers=layers)

    @cached_property
    def behind(self) -> int:
        """Layers that lie behind other ones, with nothing but norms before them."""
        if self.problem is None:
            return 0
        return sum(subproblem(self.problem, i) is not None for i in range(1, len(self.problem.curves)))

    @property
    def deep(self) -> bool:
        """Whether there are so many that smaller ranges of their arguments pay for the time they take."""
        return self.behind >= WORTH_RANGES

    def recheck_share(self, seconds: float) -> float:
        """Share of so many seconds that checking the ranges of deep layers again will take, at most a third."""
        if self.problem is None or not self.deep:
            return 0.0
        pairs = sum(layer_costs(self.problem).values())
        return min(1 / 3, RECHECK_SECONDS * pairs / max(seconds, 1e-3))

    def tolerance(self, output: int) -> float:
        """How close to the attained value a bound of this entry need come."""
        low, high = float(self.found.lower[output]), float(self.found.upper[output])
        return max(TOLERANCE * (high - low), ROUNDING * max(1.0, abs(low), abs(high))) if low <= high else 0.0

    def close(self, key: Key, bound: float) -> bool:
        """Whether a bound is so near to what is attained that no more time is spent on it."""
        return bound - reached(self.found, key) <= self.tolerance(key[0])


Prover: TypeAlias = Callable[[OutputCase, Key, Proof, Clock], tuple[Proof | None, AttainedPoint | None]]
"""(case, entry and side, best proof so far, clock) ↦ (a proof, a value met on the way)."""


def prepare(program: Program, network: Network, found: Attained, cone: Cone | None = None) -> OutputCase:
    """The case of an output, from the network it is."""
    sizes = _typical(program, network)
    try:
        problem = build_problem(network, sizes, cone=cone)
    except NoProblemError:
        problem = None
    case = OutputCase(network, problem, dimensions(network) if network.compact() else None, found, cone)
    if problem is None or case.behind:
        return case
    return replace(case, nested=nest(network, problem, sizes, cone))


def knows_region(network: Network | None) -> bool:
    """Whether provers gain most from a region's cone: a norm divides an affine map of the input.

    With few inputs cells gain as much from the program over the region.
    """
    if network is None:
        return False
    few = network.compact() and (dimensions(network) or 0) <= CELL_DIMENSIONS
    return not few and any(homogeneous_source(network, block) is not None for block in network.blocks)


def provers(case: OutputCase) -> Sequence[tuple[Prover, float]]:
    """Provers in order, each with its share of what time is left."""
    cells = case.dimensions is not None and case.dimensions <= CELL_DIMENSIONS
    share = 1.0 if case.problem is None else 0.8 if (case.dimensions or 0) <= 3 else 0.3
    chosen: list[tuple[Prover, float]] = [(by_cells, share)] if cells else []
    if case.nested is not None:
        return [*chosen, (by_dual, PLAIN_SHARE), (by_nested, 0.97)]
    return [*chosen, (by_dual, 0.97)] if case.problem is not None else chosen


def reached(found: Attained, key: Key) -> float:
    """sign·f at the best point known."""
    return float(found.upper[key[0]]) if key[1] > 0 else -float(found.lower[key[0]])


def by_cells(
    case: OutputCase, key: Key, best: Proof, clock: Clock
) -> tuple[CellsProof | None, AttainedPoint | None]:
    """Branch and bound over cells; ``None`` where the network is too wide for it."""
    try:
        proof, _ = branch(
            case.network,
            *key,
            time_budget=clock,
            tolerance=case.tolerance(key[0]),
            attained=reached(case.found, key),
            cone=case.cone,
        )
    except FarfieldError:
        return None, None
    return proof, AttainedPoint(proof.attained, proof.point) if proof.finite and proof.point else None


def by_dual(case: OutputCase, key: Key, best: Proof, clock: Clock) -> tuple[DualProof | None, None]:
    """The Lagrangian dual, from the multipliers of an earlier proof where there is one."""
    network, problem = case.network, case.problem
    if problem is None or (isinstance(best, DualProof) and best.nested):
        return None, None
    goal, start = objective(problem, *key), _restored(network, problem, best)
    if start is None and case.together is not None:
        start = case.together.start(key, Dual(problem, goal).count)
    for budget in (clock, Budget(steps=SECOND_STEPS)):
        found, _ = optimize(problem, goal, time_budget=budget, start=start)
        try:
            proved = prove(problem, goal, found, key[0])
        except PrecisionError:  # a long search can end where H is singular; a short one does not
            start = None
            continue
        return publish(network, problem, proved, *key, case.layers), None
    return None, None


def by_nested(case: OutputCase, key: Key, best: Proof, clock: Clock) -> tuple[DualProof | None, None]:
    """The dual of the nested problem, from an earlier proof of it, or from one of the plain problem."""
    problem, nested = case.problem, case.nested
    if problem is None or nested is None:
        return None, None
    goal, start = objective(problem, *key), None
    if isinstance(best, DualProof):
        start = restore_nested(case.network, nested, best)
    if start is None:
        if case.anchor is None:
            return None, None
        plain, bound = _restored(case.network, problem, best), best.bound
        if plain is None:
            plain, bound = optimize(problem, goal, time_budget=clock.share(PLAIN_SHARE))
        start = case.anchor.beside(nested, plain, bound - goal.offset)
    found = optimize_nested(nested, goal, start, clock)
    return None if found is None else publish_nested(case.network, nested, found, *key), None


def _restored(network: Network, problem: Problem, proof: Proof) -> Multipliers | None:
    """Multipliers of an earlier dual proof; ``None`` where it is none, or one of another problem."""
    if not isinstance(proof, DualProof):
        return None
    try:
        return restore(network, problem, proof)
    except (KeyError, RuntimeError):
        return None


def dimensions(network: Network) -> int | None:
    """How many inputs there are; ``None`` where they are not one bounded or homogeneous block."""
    sources = [b for b in network.blocks if b.kind == "input" or (b.kind == "box" and b.op == "input")]
    if len(sources) != 1:
        return None
    return sources[0].size - (1 if sources[0].kind == "input" else 0)


def _typical(program: Program, network: Network, points: int = 40) -> dict[int, Tensor]:
    """Curve → about the largest |z| met over a few inputs: units for the search."""
    wanted = {i: program.node(b.node).operands[0] for i, b in enumerate(network.blocks) if b.kind == "curve"}
    generator = torch.Generator().manual_seed(0)
    largest: dict[int, Tensor] = {}
    for k in range(points):
        size = 10.0 ** (-2 + 6 * k / points)
        given = [
            size * torch.randn([int(d) for d in spec.shape], generator=generator, dtype=torch.float64)
            if spec.kind in ("real", "bounded")
            else torch.zeros([int(d) for d in spec.shape], dtype=spec.dtype)
            for spec in program.inputs
        ]
        values = program.evaluate(*given, keep=set(wanted.values()))
        for i, name in wanted.items():
            met = values[name].reshape(-1).abs().nan_to_num(0.0)
            largest[i] = torch.maximum(largest[i], met) if i in largest else met
    return {i: 1.5 * v for i, v in largest.items()}
