"""The facts of one node, and the linear part of a node that is affine in some of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from farfield.gaussian import scalar_function
from farfield.graph._node import Node
from farfield.graph._unknown import torch_function
from farfield.graph.operators import NOTHING, Facts, operator

__all__ = ["describe", "linear_part"]


def describe(node: Node) -> Facts:
    """What a node is: does it only move entries, where is it linear or monotone, its norm, its scalar function.

    Read from its operator's table entry with the node's own attributes, result type and mode.

    Examples
    --------
    >>> describe(Node("y", "add", inputs=("a", "b"))).linear
    ((0, 1),)
    >>> describe(Node("y", "div", inputs=("a", "b"), attributes={"rounding_mode": "floor"})).linear
    ()
    """
    if node.role in ("input", "constant"):
        return NOTHING
    if node.op == "unknown":
        return replace(NOTHING, deterministic=_repeatable(node))
    stated = operator(node.op).facts
    facts = stated(node) if callable(stated) else stated
    scalar = facts.scalar or (scalar_function(node.op, node.attributes) if facts.entrywise else None)
    if scalar is None or (node.dtype is not None and node.dtype.is_complex):
        return facts
    return replace(facts, scalar=scalar, monotone=(scalar.monotone,), positive=scalar.positive)


def _repeatable(node: Node) -> bool:
    """Whether running a call that nobody registered again gives the same value."""
    function = torch_function(node.target)
    if function is None or "call" not in node.attributes or not node.operands:
        return False
    return torch.Tag.nondeterministic_seeded not in getattr(function, "tags", ())


def linear_part(
    node: Node, tensors: Sequence[Any], group: Sequence[int], moving: Sequence[int]
) -> tuple[Node, list[Any]]:
    """The node and its operands with everything that is added to the linear part set to 0.

    For a node that is linear in ``group`` jointly, f(x) = L·x + f(0): operands of the group that do not move
    (a bias, a constant summand) become zeros, and so does a plain number that stands in such a place. What is
    returned computes L alone when the moving operands are filled in.

    Parameters
    ----------
    node
        The operation.
    tensors
        Its operands in the order of ``node.inputs``; ``None`` where absent. Entries at ``moving`` are left alone.
    group
        One of ``describe(node).linear``.
    moving
        The operands that move; all in ``group``.
    """
    kept = list(tensors)
    numbers: dict[str, Any] = {}
    arguments = operator(node.op).arguments
    for position in group:
        if position in moving:
            continue
        if position < len(kept) and isinstance(kept[position], Tensor):
            kept[position] = torch.zeros_like(kept[position])
        elif position < len(arguments) and isinstance(
            node.attributes.get(arguments[position]), int | float | complex
        ):
            numbers[arguments[position]] = 0.0
    for name in describe(node).offsets:
        if isinstance(node.attributes.get(name), int | float | complex):
            numbers[name] = 0.0
    return (replace(node, attributes={**node.attributes, **numbers}) if numbers else node), kept
