"""Where a module can be put so that growth is cut: inputs, the user's own submodules, outputs."""

from __future__ import annotations

import math
from collections.abc import Container

import networkx as nx
from torch import fx, nn

from farfield.graph import Node, Program, describe
from farfield.growth import GrowthReport
from farfield.repair._program import operations, place_path

__all__ = ["hidden_cut", "module_outputs"]

NARROWEST = 3
"""A cap over fewer features leaves little of a direction."""
_LINEAR_TYPES = (nn.Linear, nn.modules.conv._ConvNd, nn.Bilinear)


def module_outputs(program: Program, model: nn.Module) -> dict[str, str]:
    """Node name → path of the submodule whose result it is, for submodules that are called once.

    A node is a submodule's result if the submodule ran it and everything that uses it runs elsewhere.
    """
    owners = dict(model.named_modules())
    found: dict[str, str] = {}
    for node in program.nodes:
        path = node.module_path
        if node.role != "operation" or not path or path not in owners:
            continue
        users = [program.node(name) for name in program.users(node.name)]
        if all(_outside(user, path) for user in users):
            found[node.name] = path
    calls: dict[str, int] = {}
    for path in found.values():
        calls[path] = calls.get(path, 0) + 1
    return {name: path for name, path in found.items() if calls[path] == 1}


def _outside(node: Node, path: str) -> bool:
    return node.module_path != path and not node.module_path.startswith(f"{path}.")


def hidden_cut(
    report: GrowthReport, model: nn.Module, usable: Container[str] | None = None
) -> tuple[str, ...]:
    """Paths of the submodules behind which a cap cuts every escape path, nearest the inputs; () if there are none.

    A minimum vertex cut of the growing nodes, in which only results of submodules (of a program, of operations) with
    at least three features count, activations a little less than linear maps (behind an activation a cap did better).
    Inputs, outputs and a scaler do not count: a size in units of the inputs is that of the feature with the largest.
    ``usable``: paths of the submodules that return one tensor, if that is known.
    """
    analysis, program = report.analysis, report.program
    if isinstance(model, fx.GraphModule):
        linear = operations(model)  # capture gives them the same names
        places = {node.name: place_path(node.name) for node in program.nodes if node.name in linear}
    else:
        owners = dict(model.named_modules())
        places = module_outputs(program, model)
        if usable is not None:
            places = {name: path for name, path in places.items() if path in usable}
        linear = {name: isinstance(owners[path], _LINEAR_TYPES) for name, path in places.items()}
    raw = _raw(program)
    final = {name for output in program.outputs for name in _aliases(program, output)}
    graph = nx.DiGraph()
    growing = [node for node in program.nodes if not analysis.growth(node.name, None).bounded]
    names = {node.name for node in growing}
    for node in growing:
        capacity = math.inf
        if node.name in places and node.name not in final | raw and _wide(node):
            capacity = 1.001 if linear[node.name] else 1.0
        graph.add_edge((node.name, "in"), (node.name, "out"), capacity=capacity)
        for operand in node.operands:
            if operand in names:
                graph.add_edge((operand, "out"), (node.name, "in"), capacity=math.inf)
        if node.role == "input":
            graph.add_edge("source", (node.name, "in"), capacity=math.inf)
        if node.name in program.outputs:
            graph.add_edge((node.name, "out"), "sink", capacity=math.inf)
    if "source" not in graph or "sink" not in graph or _endless(graph):
        return ()
    # networkx returns the cut nearest the sink; on the reversed graph, that is the one nearest the inputs.
    _, (_, before) = nx.minimum_cut(graph.reverse(copy=True), "sink", "source")
    cut = {a[0] for a in before if a != "source" for b in graph.successors(a) if b not in before}
    return tuple(places[node.name] for node in program.nodes if node.name in cut)


def _raw(program: Program) -> set[str]:
    """Inputs, and what is made of each entry by itself: scaled, shifted, cut off, put beside others."""
    found: set[str] = set()
    for node in program.nodes:
        moving = [name for name in node.operands if program.node(name).role != "constant"]
        facts = describe(node)
        alone = facts.entrywise or facts.moves
        if node.role == "input" or (moving and alone and found.issuperset(moving)):
            found.add(node.name)
    return found


def _endless(graph: nx.DiGraph) -> bool:
    """Some way from the inputs to an output has no place in it."""
    free = nx.DiGraph((a, b) for a, b, c in graph.edges(data="capacity") if math.isinf(c))
    return "source" in free and "sink" in free and nx.has_path(free, "source", "sink")


def _aliases(program: Program, output: str) -> list[str]:
    """The output node and what it is the identity of."""
    names = [output]
    while (node := program.node(names[-1])).op in (
        "identity",
        "reshape",
        "squeeze",
        "unsqueeze",
    ) and node.operands:
        names.append(node.operands[0])
    return names


def _wide(node: Node) -> bool:
    sizes = [d for d in node.shape[1:] if isinstance(d, int)]
    floating = node.dtype is not None and node.dtype.is_floating_point
    return floating and len(node.shape) >= 2 and math.prod(sizes) >= NARROWEST
