"""The pass: every pattern tried on every node, in program order, so that patterns see earlier finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from farfield.graph._node import Node
from farfield.graph._program import Program
from farfield.graph._simplify import prune
from farfield.graph.recognition._activations import match_gated, match_shrink
from farfield.graph.recognition._caps import match_cap
from farfield.graph.recognition._norms import match_norm
from farfield.graph.recognition._softmax import match_log, match_sigmoid, match_softmax, match_softplus
from farfield.graph.recognition._view import View

__all__ = ["recognize"]

PATTERNS: tuple[Callable[[View, Node], Node | tuple[Node, ...] | None], ...] = (
    match_cap,
    match_norm,
    match_softmax,
    match_sigmoid,
    match_softplus,
    match_log,
    match_shrink,
    match_gated,
)


def recognize(program: Program) -> Program:
    """The program with hand-written norms, softmaxes and activations as one node each, caps as a norm and a product.

    A replacing node keeps the name and place of the last step of the pattern and carries
    ``attributes["recognized"] = True``; steps that nothing else uses are dropped. Equal in real arithmetic:
    casts between floating types are looked through, nothing else.
    """
    nodes: dict[str, Node] = {}
    names = {node.name for node in program.nodes}
    view = View(nodes, program.constants)
    for node in program.nodes:
        nodes[node.name] = node
        if node.role != "operation":
            continue
        for match in PATTERNS:
            found = match(view, node)
            if found is not None:
                steps = (found,) if isinstance(found, Node) else found
                if names.isdisjoint(step.name for step in steps[:-1]):
                    del nodes[node.name]
                    nodes.update({step.name: step for step in steps})
                break
    return prune(replace(program, nodes=tuple(nodes.values())))
