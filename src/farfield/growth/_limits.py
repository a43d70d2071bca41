"""Functions of one number that settle at both ends: x·σ(x)·(1 − σ(x)), derivatives of activations, x·e^{−x²}.

Where a node is a function F of one earlier node z, entry by entry, it is bounded if F is bounded for bounded z (what
the growth rules say with z as the input) and if its jets for z → +∞ and z → −∞ have no growing term: on a line, two
rays are all there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from farfield.graph import InputSpec, Node, Program, describe
from farfield.growth._extent import Extent, join
from farfield.growth._jet import Jet, ray
from farfield.growth._leading import lead
from farfield.growth._rate import BOUNDED, LINEAR
from farfield.growth._rays import LOWEST, run_jets
from farfield.growth._registry import Claim, Rules, is_complex

__all__ = ["LineLimits"]

LONGEST = 24
"""Nodes between z and F(z)."""
SMALLEST, LARGEST, FARTHEST = 1e-15, 1e15, 20.0
"""Sizes of coefficients, and of finite limits, at which no power or exponential of them underflows."""


class LineLimits:
    """Claims about functions of one earlier node, for one program under one table of extents."""

    def __init__(self, program: Program, table: Mapping[str, Claim], rules: Rules) -> None:
        self.program, self.table, self.rules = program, table, rules
        self._place = {node.name: k for k, node in enumerate(program.nodes)}

    def extent(self, node: Node, claim: Extent) -> Extent | None:
        """Bounded, where the node is found to be; ``None`` where nothing is found."""
        if node.op not in ("add", "sub", "mul", "div") or not claim.known or is_complex(node):
            return None
        if node.dtype is None or not node.dtype.is_floating_point:
            return None
        frontier, chain = {node.name}, set[str]()
        while len(chain) < LONGEST:
            last = self.program.node(max(frontier, key=self._place.__getitem__))
            if last.role != "operation" or not describe(last).entrywise:
                return None
            chain.add(last.name)
            moving = {name for name in last.operands if self.program.node(name).role != "constant"}
            frontier = (frontier - {last.name}) | moving
            if len(frontier) == 1 and self._settles(next(iter(frontier)), chain, node):
                return replace(claim, lower=min(claim.lower, BOUNDED), upper=min(claim.upper, BOUNDED))
            if not frontier:
                return None
        return None

    def _settles(self, base: str, chain: set[str], end: Node) -> bool:
        """Whether F is bounded, where ``base`` is z and the chain computes F(z)."""
        source, whole = self.program.node(base), self.table[base]
        if isinstance(whole, tuple) or not whole.known or is_complex(source):
            return False
        if source.dtype is None or not source.dtype.is_floating_point:
            return False
        nodes = [node for node in self.program.nodes if node.name in chain]
        known: dict[str, Claim] = {base: Extent(LINEAR, LINEAR, whole.lo, whole.hi, whole.gap)}
        for node in nodes:
            claims = {name: known.get(name, self.table[name]) for name in node.operands}
            known[node.name] = self.rules(self.program, node, claims)
        local = known[end.name]
        if isinstance(local, tuple) or not join(local).known:
            return False
        used = {name for node in nodes for name in node.operands}
        constants = [n for n in self.program.nodes if n.role == "constant" and n.name in used]
        if any(n.name not in self.program.constants for n in constants):
            return False
        plain = all(self.program.constants[n.name].numel() == 1 for n in constants)
        sizes = [size if isinstance(size, int) and not plain else 1 for size in source.shape]
        start = replace(source, op="input", role="input", inputs=(), attributes={}, shape=tuple(sizes))
        small = replace(
            self.program,
            nodes=(start, *constants, *nodes),
            inputs=(InputSpec(base, start.shape, source.dtype, "real"),),
            outputs=(end.name,),
            constants={n.name: self.program.constants[n.name] for n in constants},
        )
        ends = [sign for sign, far in ((1.0, whole.hi), (-1.0, -whole.lo)) if far == float("inf")]
        return all(_ends(small, base, torch.full(sizes, sign, dtype=torch.float64)) for sign in ends)


@torch.no_grad()
def _ends(program: Program, base: str, direction: torch.Tensor) -> bool:
    """Whether the output stays bounded as the only input goes to infinity, beyond all doubt of rounding."""
    names = [node.name for node in program.nodes if node.role == "operation"]
    try:
        jets, notes = run_jets(program, {base: ray(direction)}, lowest=LOWEST, keep=names)
    except Exception:  # a size that can't be told apart from the input's
        return False
    for jet in jets.values():
        if not isinstance(jet, Jet) or not jet.values.is_floating_point():
            continue
        sizes = jet.values.abs()
        if bool(((sizes != 0) & ((sizes < SMALLEST) | (sizes > LARGEST))).any()):
            return False
        settled = lead(jet).power <= 0.0
        if bool((settled & (jet.at(0.0).abs() > FARTHEST)).any()):
            return False
    value = jets[program.outputs[0]]
    if notes or not isinstance(value, Jet):
        return False
    first = lead(value)
    return bool((torch.where(first.certain, first.power, first.limit) <= 0.0).all())
