"""The abstract interpretation: every node's extent, for all inputs at once and for each real input alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import networkx as nx
import torch
from torch import Tensor

from farfield.errors import UnknownNameError
from farfield.graph import InputSpec, Node, Program
from farfield.growth import rules as _rules  # noqa: F401  registers the rules
from farfield.growth._claims import claim_of
from farfield.growth._entries import of_neighbors
from farfield.growth._extent import Extent, Reason, interval, join, undefined
from farfield.growth._growth import Growth, growth_of
from farfield.growth._limits import LineLimits
from farfield.growth._rate import BOUNDED, CONSTANT, LINEAR, SINGULAR
from farfield.growth._registry import Claim, Site
from farfield.growth._slices import Slicer, piece_of, slice_of
from farfield.growth._supports import Supports
from farfield.growth._tails import TailForm, refined, tail_form

__all__ = ["Analysis", "analyze_growth", "extents"]

INF = math.inf
GAP_SIZE = 1_000_000
"""Constants up to this many entries have their distance from 0 measured."""


@dataclass(frozen=True)
class Analysis:
    """What every node of a program can do as its inputs grow.

    Parameters
    ----------
    program
        The program analyzed.
    joint
        Node → extent with every input moving at once.
    alone
        Real input → node → extent with that input moving and the others held at arbitrary fixed values.
    """

    program: Program
    joint: Mapping[str, Claim]
    alone: Mapping[str, Mapping[str, Claim]]

    def extent(self, node: str, moving: str | None = None) -> Extent:
        """The abstract value of a node with respect to one input, or to all of them."""
        table = self.joint if moving is None else self._of(moving)
        claim = table[node]
        return join(*claim) if isinstance(claim, tuple) else claim

    def growth(self, node: str, moving: str | None = None) -> Growth:
        """The same in public words."""
        return growth_of(self.extent(node, moving))

    def _of(self, moving: str) -> Mapping[str, Claim]:
        try:
            return self.alone[moving]
        except KeyError:
            raise UnknownNameError("real-valued input", moving, self.alone) from None

    def to_dict(self) -> dict[str, dict[str, object]]:
        """Plain data: for every operation and output, its growth for all inputs and for each."""
        return {
            node.name: {
                "all inputs": self.growth(node.name).to_dict(),
                **{name: self.growth(node.name, name).to_dict() for name in self.alone},
            }
            for node in self.program.nodes
            if node.role != "constant"
        }


def analyze_growth(program: Program) -> Analysis:
    """Bound the growth of every node of a program, for every input in Rⁿ at once.

    A forward pass of sound rules over the pairs (sided rate, interval): see :mod:`farfield.growth._extent`
    for what is claimed. Real arithmetic; degrees of products are exact, cancellation is not seen. Boundedness
    is a property of paths [P1]: a node is BOUNDED if every path to it is cut.

    Parameters
    ----------
    program
        From :func:`farfield.graph.capture`.

    Returns
    -------
    Analysis
        One joint table and one per real-valued input. Cost: one pass over the weights per table.
    """
    joint = extents(program, frozenset(spec.name for spec in program.inputs))
    real = [spec.name for spec in program.inputs if spec.kind == "real"]
    if len(program.inputs) == 1:
        return Analysis(program, joint, dict.fromkeys(real, joint))
    return Analysis(program, joint, {name: extents(program, frozenset({name})) for name in real})


def extents(
    program: Program, moving: frozenset[str], forced: Mapping[str, Claim] | None = None
) -> dict[str, Claim]:
    """Every node's extent when the inputs of ``moving`` move and the others are fixed at unknown values.

    Parameters
    ----------
    forced
        Extents to take for granted at some nodes, in place of what their rule says: for questions of the kind
        "what if a norm stood here?".
    """
    graph = program.to_networkx()
    reached = set(moving)
    for name in moving:
        reached |= nx.descendants(graph, name)
    specs = {spec.name: spec for spec in program.inputs}
    table: dict[str, Claim] = {}
    forms: dict[str, TailForm] = {}
    slicer, supports = Slicer(program, table, apply_rule), Supports(program, table, apply_rule)
    limits = LineLimits(program, table, apply_rule)

    def whole(name: str) -> Extent:
        claim = table[name]
        return join(*claim) if isinstance(claim, tuple) else claim

    for node in program.nodes:
        if forced is not None and node.name in forced:
            table[node.name] = forced[node.name]
        elif node.role == "constant":
            table[node.name] = _constant_extent(program, node)
        elif node.role == "input":
            table[node.name] = _input_extent(specs[node.name], node.name in moving)
        else:
            claim = _sliced(slicer, node, apply_rule(program, node, table))
            if not isinstance(claim, tuple) and not claim.bounded:
                claim = supports.extent(node) or limits.extent(node, claim) or claim
            elif not isinstance(claim, tuple):
                claim = of_neighbors(program, node, table, claim)
            table[node.name] = claim if node.name in reached else _still(claim)
        forms[node.name] = tail_form(node, forms, whole(node.name), program.node)
        if node.op in ("add", "sub") and whole(node.name).known and node.name not in forms[node.name]:
            table[node.name] = refined(whole(node.name), forms[node.name], whole)
    return table


def _sliced(slicer: Slicer, node: Node, claim: Claim) -> Claim:
    """A slice of something that grows may itself stand still."""
    if node.op not in ("select", "slice", "getitem") or isinstance(claim, tuple) or claim.bounded:
        return claim
    source = slicer.program.node(node.operands[0])
    part = slice_of(node, source)
    if node.op == "getitem" and source.operands:
        parts, source = source, slicer.program.node(source.operands[0])
        part = piece_of(node, parts, source)
    return claim if part is None else slicer.extent(source.name, part)


def apply_rule(program: Program, node: Node, table: Mapping[str, Claim]) -> Claim:
    """One node's extent from its operands'."""
    names = node.inputs
    operands = tuple(None if name is None else table[name] for name in names)
    producers = tuple(None if name is None else program.node(name) for name in names)
    tensors = tuple(None if name is None else program.constants.get(name) for name in names)
    return claim_of(Site(node, operands, tensors, producers, program.node))


def _still(claim: Claim) -> Claim:
    """The extent of something no moving input reaches."""
    if isinstance(claim, tuple):
        return tuple(_fixed(part) for part in claim)
    return _fixed(claim)


def _fixed(extent: Extent) -> Extent:
    return replace(
        extent,
        lower=extent.lower if extent.lower == SINGULAR else CONSTANT,
        upper=extent.upper if extent.upper == SINGULAR else CONSTANT,
    )


def _input_extent(spec: InputSpec, moving: bool) -> Extent:
    if spec.kind == "boolean":
        mask = interval(0.0, 1.0) if not moving else Extent(BOUNDED, BOUNDED, 0.0, 1.0)
        word = Reason(spec.name, f"input {spec.name!r} is declared a mask of zeros and ones")
        return mask if spec.dtype == torch.bool else mask.assuming(word)
    if not moving:
        return Extent(CONSTANT, CONSTANT)
    if spec.kind == "real":
        return Extent(LINEAR, LINEAR)
    said = "is bounded by nature (integers)"
    if spec.kind == "bounded":
        said = "is bounded by nature (declared bounded)"
    elif spec.dtype.is_floating_point:
        said = "is declared to hold ids, of which there are finitely many"
    return Extent(BOUNDED, BOUNDED).assuming(Reason(spec.name, f"input {spec.name!r} {said}"))


def _constant_extent(program: Program, node: Node) -> Extent:
    if (tensor := program.constants.get(node.name)) is not None:
        return constant_extent(tensor, node.name)
    if node.dtype == torch.bool:
        return Extent(CONSTANT, CONSTANT, 0.0, 1.0)
    stored = program.constant_names.get(node.name, "")
    if stored.rpartition(".")[2] == "running_var":
        return Extent(CONSTANT, CONSTANT, 0.0).assuming(
            Reason(node.name, "running variances are not negative")
        )
    return Extent(CONSTANT, CONSTANT)  # a weight whose value was left open: any finite number


def constant_extent(tensor: Tensor, name: str) -> Extent:
    """The range of a constant's entries; infinite entries make that side singular, NaN makes it undefined."""
    tensor = tensor.detach()
    if tensor.numel() == 0:
        return interval(0.0, 0.0)
    if tensor.is_complex():
        low, high = torch.view_as_real(tensor.resolve_conj()).aminmax()
        gap = 0.0
    else:
        plain = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
        low, high = plain.aminmax()
        gap = float(plain.abs().amin()) if plain.numel() <= GAP_SIZE else 0.0
    lo, hi = float(low), float(high)
    if math.isnan(lo) or math.isnan(hi):
        return undefined(name, "a constant of the model holds NaN")
    if math.isinf(lo) or math.isinf(hi):
        which = Reason(name, "a constant of the model is infinite")
        return Extent(
            SINGULAR if lo == -INF else CONSTANT, SINGULAR if hi == INF else CONSTANT, lo, hi, poles=(which,)
        )
    return Extent(CONSTANT, CONSTANT, lo, hi, 0.0 if math.isinf(gap) else gap)
