"""Operators that are compositions of others, taken apart into nodes of simpler ones.

An operator whose table entry has ``composed`` needs no rule in an analysis: the analysis runs the small nodes that
:func:`compose` returns, with its own rules, in the place of the node. A rule of its own takes precedence, where
it is tighter. ``composed`` takes the node and a :class:`PartBuilder`, makes every small node by calling it, and
returns the name of the last one::

    def _hypot(node, parts):
        return parts("sqrt", parts("add", parts("square", parts[0]), parts("square", parts[1])))

The checks in ``tests/graph`` hold every composition against the operator's own ``compute``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from farfield.graph._node import Node
from farfield.graph.operators import operator

__all__ = ["PartBuilder", "compose"]


class PartBuilder:
    """Collects the small nodes of one composition.

    ``parts[i]`` is the i-th operand: its name, or the number that stands in its place. ``parts(op, …)`` adds a node
    and returns its name; numbers among its arguments become attributes, as in a captured program. Shape and type are
    the composed node's own unless given.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.nodes: list[Node] = []

    def __getitem__(self, position: int) -> Any:
        name = self.node.inputs[position] if position < len(self.node.inputs) else None
        return self.node.attributes.get(operator(self.node.op).arguments[position]) if name is None else name

    def __call__(self, op: str, *arguments: Any, shape: Any = None, **attributes: Any) -> str:
        names = operator(op).arguments
        numbers = {names[i]: a for i, a in enumerate(arguments) if not isinstance(a, str) and a is not None}
        made = replace(
            self.node,
            name=f"{self.node.name}__{len(self.nodes)}",
            op=op,
            inputs=tuple(a if isinstance(a, str) else None for a in arguments),
            attributes={**attributes, **numbers},
            shape=self.node.shape if shape is None else shape,
        )
        self.nodes.append(made)
        return made.name


def compose(node: Node) -> tuple[Node, ...]:
    """The small nodes that compute a node, in order, the last under the node's own name; empty if there are none."""
    if node.op == "unknown" or node.role in ("input", "constant"):
        return ()
    composed = operator(node.op).composed
    if composed is None:
        return ()
    parts = PartBuilder(node)
    last = composed(node, parts)
    if last is None:
        return ()
    assert parts.nodes[-1].name == last, f"the composition of {node.op!r} must end with the node it returns"
    return (*parts.nodes[:-1], replace(parts.nodes[-1], name=node.name))
