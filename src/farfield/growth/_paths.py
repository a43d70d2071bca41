"""Escape paths and cuts: along which nodes growth reaches an output, what stops it, and where a norm would."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import networkx as nx

from farfield.graph import Node, Program, describe, operator
from farfield.growth._analysis import Analysis, apply_rule, extents
from farfield.growth._extent import Extent, join
from farfield.growth._rate import BOUNDED, LINEAR
from farfield.growth._registry import Claim

__all__ = [
    "Cut",
    "EscapePath",
    "bounding_cut",
    "escape_path",
    "escape_paths",
    "insertion_cut",
]

MIXING = ("linear", "attention", "recurrent")
"""Families of operators that combine features with weights: what comes after the last of them is a prediction."""
Side: TypeAlias = Literal["input", "output"]
NARROWEST = 3
"""A norm over fewer features leaves nothing but signs, so no norm is proposed there."""


@dataclass(frozen=True, slots=True)
class EscapePath:
    """A way from an input to an output along which growth is never cut.

    Parameters
    ----------
    nodes
        Names of the nodes, input first; each is unbounded and passes its growth to the next.
    labels
        The same for a person: module paths where there are any, operators elsewhere; silent nodes left out.
    bypassed
        Norms that stand between the same input and output on other ways, but not on this one.
    """

    nodes: tuple[str, ...]
    labels: tuple[str, ...]
    bypassed: tuple[str, ...]

    def __str__(self) -> str:
        text = " → ".join(self.labels)
        return f"{text} bypasses {', '.join(self.bypassed)}" if self.bypassed else text

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"nodes": list(self.nodes), "labels": list(self.labels), "bypassed": list(self.bypassed)}


@dataclass(frozen=True, slots=True)
class Cut:
    """A smallest set of nodes that separates the inputs from an output.

    Parameters
    ----------
    nodes
        Their names, in program order.
    labels
        The same for a person.
    verified
        Checked by running the analysis again with these nodes taken as bounded and nothing else changed.
    """

    nodes: tuple[str, ...]
    labels: tuple[str, ...]
    verified: bool

    def __str__(self) -> str:
        return ", ".join(self.labels) if self.labels else "none"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"nodes": list(self.nodes), "labels": list(self.labels), "verified": self.verified}


def label(node: Node) -> str:
    """What to call a node: its module where the node is what the module computes, else module and operator."""
    if node.role == "input":
        return node.name
    if not node.module_path:
        return node.op if node.op != "unknown" else node.target
    plain = node.op.replace("_", "")
    if plain in node.module_type.lower() or (node.op == "conv" and "conv" in node.module_type.lower()):
        return node.module_path
    return f"{node.module_path}.{node.op}"


def _table(analysis: Analysis, moving: str | None) -> Mapping[str, Claim]:
    return analysis.joint if moving is None else analysis.alone[moving]


def _sources(program: Program, moving: str | None) -> list[str]:
    return [spec.name for spec in program.inputs if spec.kind == "real"] if moving is None else [moving]


def _whole(claim: Claim) -> Extent:
    return join(*claim) if isinstance(claim, tuple) else claim


def _limited(claim: Claim) -> Claim:
    """The same operand if it did not grow."""
    if isinstance(claim, tuple):
        return tuple(_limited_extent(part) for part in claim)
    return _limited_extent(claim)


def _limited_extent(extent: Extent) -> Extent:
    if not extent.known:
        return Extent(BOUNDED, BOUNDED)
    return replace(extent, lower=min(extent.lower, BOUNDED), upper=min(extent.upper, BOUNDED))


def _carriers(program: Program, node: Node, table: Mapping[str, Claim]) -> list[str]:
    """Operands that, growing alone, already make this node grow; all growing ones where it takes several at once."""
    growing = [name for name in dict.fromkeys(node.operands) if not _whole(table[name]).bounded]
    if len(growing) <= 1:
        return growing
    alone = []
    for name in growing:
        others = {o: table[o] if o == name else _limited(table[o]) for o in node.operands}
        if not _whole(apply_rule(program, node, others)).bounded:
            alone.append(name)
    return alone or growing


def growing_graph(analysis: Analysis, moving: str | None) -> nx.DiGraph:
    """The nodes that are not bounded, and the edges along which growth is passed on."""
    program, table = analysis.program, _table(analysis, moving)
    graph = nx.DiGraph()
    for node in program.nodes:
        if node.role == "constant" or _whole(table[node.name]).bounded:
            continue
        graph.add_node(node.name)
        graph.add_edges_from((name, node.name) for name in _carriers(program, node, table) if name in graph)
    return graph


def escape_paths(
    analysis: Analysis, output: str, moving: str | None = None, *, limit: int = 3
) -> tuple[EscapePath, ...]:
    """Shortest ways from an input to an output along which growth is never cut.

    Parameters
    ----------
    analysis
        From :func:`farfield.growth.analyze_growth`.
    output
        Name of an output node.
    moving
        One real input; all of them by default.
    limit
        How many at most, shortest first.

    Returns
    -------
    tuple of EscapePath
        Empty when the output is bounded, or when its growth starts inside the program (a pole).
    """
    program = analysis.program
    graph = growing_graph(analysis, moving)
    if output not in graph:
        return ()
    start = object()
    graph.add_edges_from((start, name) for name in _sources(program, moving) if name in graph)
    if start not in graph or not nx.has_path(graph, start, output):
        return ()
    found: Iterator[list[Any]] = nx.shortest_simple_paths(graph, start, output)
    return tuple(_described(program, tuple(path[1:])) for path in itertools.islice(found, limit))


def escape_path(analysis: Analysis, output: str, moving: str | None = None) -> EscapePath | None:
    """The shortest of :func:`escape_paths`, if there is one."""
    paths = escape_paths(analysis, output, moving, limit=1)
    return paths[0] if paths else None


def _described(program: Program, names: tuple[str, ...]) -> EscapePath:
    graph = program.to_networkx()
    between = nx.descendants(graph, names[0]) & nx.ancestors(graph, names[-1])
    norms = [n for n in program.nodes if n.name in between and n.name not in names and describe(n).norm]
    shown = [program.node(n) for n in names]
    spoken = [label(n) for n in shown if n.role != "output" and not _silent(n)]
    labels = tuple(text for text, _ in itertools.groupby(spoken))
    return EscapePath(names, labels, tuple(dict.fromkeys(label(n) for n in norms)))


def _silent(node: Node) -> bool:
    """It only moves the entries of one tensor: left out when a path is printed."""
    return len(node.operands) == 1 and describe(node).moves


def _minimum(graph: nx.DiGraph, source: Any, sink: Any, near: Side = "output") -> set[Any] | None:
    """Vertices of a minimum cut between two others, each split in two; ``None`` where only infinite ones exist."""
    if source not in graph or sink not in graph or not nx.has_path(graph, source, sink):
        return set()
    if _endless(graph, source, sink):
        return None
    # networkx returns the cut nearest the sink; reversing the graph gives the one nearest the source.
    if near == "output":
        _, (before, _) = nx.minimum_cut(graph, source, sink)
    else:
        _, (_, before) = nx.minimum_cut(graph.reverse(copy=True), sink, source)
    return {a[0] for a in before for b in graph.successors(a) if b not in before}


def _endless(graph: nx.DiGraph, source: Any, sink: Any) -> bool:
    """Some way from source to sink has no finite capacity."""
    endless = nx.DiGraph((a, b) for a, b, c in graph.edges(data="capacity") if math.isinf(c))
    return source in endless and sink in endless and nx.has_path(endless, source, sink)


def insertion_cut(
    analysis: Analysis, output: str, moving: str | None = None, *, near: Side = "output"
) -> Cut | None:
    """The smallest set of places where a norm would bound an output that is not bounded now.

    Vertices are the growing nodes. A norm is proposed on a hidden value only: a floating tensor with at least three
    features in its last axis (and three channels) that is neither a prediction (what follows the last weights before
    an output), nor an input as it came, nor summed over its features next, which would leave 0. A minimum vertex cut
    of the growing graph, then checked by running the analysis with those nodes bounded.

    Parameters
    ----------
    analysis, output, moving
        As for :func:`escape_paths`.
    near
        Which of several smallest cuts: the one nearest the output (a final norm) or nearest the input.

    Returns
    -------
    Cut or None
        ``None`` when there is no such place, or growth does not come from an input (a pole).
    """
    program = analysis.program
    growing = growing_graph(analysis, moving)
    if output not in growing:
        return Cut((), (), True)
    graph = nx.DiGraph()
    barred = _predictions(program) | _raw(program)
    for name in growing.nodes:
        free = name not in barred and _takes_norm(program, program.node(name))
        graph.add_edge((name, "in"), (name, "out"), capacity=1.0 if free else math.inf)
    for a, b in growing.edges:
        graph.add_edge((a, "out"), (b, "in"), capacity=math.inf)
    for name in _sources(program, moving):
        if name in growing:
            graph.add_edge(("", "source"), (name, "in"), capacity=math.inf)
    names = _minimum(graph, ("", "source"), (output, "out"), near)
    if not names:
        return None
    return _cut(analysis, names, output, moving)


def _takes_norm(program: Program, node: Node) -> bool:
    if node.role != "operation" or not node.shape or node.dtype is None or not node.dtype.is_floating_point:
        return False
    # Images have their features in axis 1.
    widths = (node.shape[-1], node.shape[1]) if len(node.shape) > 3 else node.shape[-1:]
    wide = all(isinstance(width, int) and width >= NARROWEST for width in widths)
    return wide and not _silent(node) and not _summed_over_features(program, node)


def _summed_over_features(program: Program, node: Node) -> bool:
    """A sum or mean over the last axis takes this value next: after a centered norm it would be 0."""
    for name in program.users(node.name):
        user = program.node(name)
        if user.op in ("sum", "mean"):
            dims = user.attributes.get("dim")
            if not dims or len(node.shape) - 1 in (dims if isinstance(dims, tuple) else (dims,)):
                return True
        elif describe(user).moves and _summed_over_features(program, user):
            return True
    return False


def _predictions(program: Program) -> set[str]:
    """Nodes from the last weights on to an output, those included: a norm there would be on what is predicted."""
    found: set[str] = set()
    stack = list(program.outputs)
    while stack:
        name = stack.pop()
        node = program.node(name)
        if name in found or node.role not in ("operation", "output"):
            continue
        found.add(name)
        if node.op == "unknown" or operator(node.op).family not in MIXING:
            stack.extend(node.operands)
    return found


def _raw(program: Program) -> set[str]:
    """Inputs as they came: moved about, or scaled and shifted by constants."""
    found = {spec.name for spec in program.inputs}
    still = {node.name for node in program.nodes if node.role == "constant"}
    for node in program.nodes:
        operands = set(node.operands)
        if node.role != "operation" or not operands:
            continue
        if operands <= still:
            still.add(node.name)
        elif operands <= found | still:
            facts = describe(node)
            if facts.moves or (facts.entrywise and facts.linear):
                found.add(node.name)
    return found


def _cut(analysis: Analysis, names: set[Any], output: str, moving: str | None) -> Cut:
    program = analysis.program
    ordered = tuple(n.name for n in program.nodes if n.name in names)
    movers = frozenset(s.name for s in program.inputs) if moving is None else frozenset({moving})
    graph = program.to_networkx()
    changed = set(ordered).union(*(nx.descendants(graph, name) for name in ordered))
    # What no cut node reaches stays as it was found.
    forced: dict[str, Claim] = {n: claim for n, claim in _table(analysis, moving).items() if n not in changed}
    forced |= {name: Extent(BOUNDED, BOUNDED) for name in ordered}
    after = extents(program, movers, forced)
    labels = tuple(label(program.node(name)) for name in ordered)
    return Cut(ordered, labels, _whole(after[output]).bounded)


def bounding_cut(analysis: Analysis, output: str, moving: str | None = None) -> Cut | None:
    """The smallest set of bounding nodes that cuts every way from the inputs to a bounded output.

    A node bounds an operand when its value stays bounded though that operand grows linearly and the others do
    not. A minimum cut that uses bounding nodes only; where boundedness comes from several one-sided limits
    together (a minimum here, a maximum there), the frontier: nodes that are bounded while an operand is not.
    """
    program, table = analysis.program, _table(analysis, moving)
    if not _whole(table[output]).bounded:
        return None
    graph = nx.DiGraph()
    reached = set(_sources(program, moving))
    for name in tuple(reached):
        graph.add_edge(("", "source"), (name, "out"), capacity=math.inf)
    for node in program.nodes:
        movers = [name for name in dict.fromkeys(node.operands) if name in reached]
        if not movers:
            continue
        reached.add(node.name)
        for name in movers:
            if _passes(program, node, name, table):
                graph.add_edge((name, "out"), (node.name, "out"), capacity=math.inf)
            else:
                graph.add_edge((name, "out"), (node.name, "gate"), capacity=math.inf)
                graph.add_edge((node.name, "gate"), (node.name, "out"), capacity=1.0)
    names = _minimum(graph, ("", "source"), (output, "out"))
    if names is None:
        before = nx.ancestors(program.to_networkx(), output) | {output}
        names = {
            node.name
            for node in program.nodes
            if node.name in before
            and _whole(table[node.name]).bounded
            and any(not _whole(table[o]).bounded for o in node.operands)
        }
    ordered = tuple(n.name for n in program.nodes if n.name in names)
    return Cut(ordered, tuple(label(program.node(n)) for n in ordered), True)


def _passes(program: Program, node: Node, operand: str, table: Mapping[str, Claim]) -> bool:
    """Linear growth of this operand alone makes the node grow."""
    claims = {name: _limited(table[name]) for name in node.operands}
    claims[operand] = Extent(LINEAR, LINEAR)
    return not _whole(apply_rule(program, node, claims)).bounded
