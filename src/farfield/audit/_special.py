"""Models that a norm would break: flows, which have to stay invertible, and networks that rotate with their input."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import torch
from torch import Tensor

from farfield.graph import Node, Program, describe

__all__ = ["structure_warnings"]

FLOW = (
    "This looks like a flow (a part of the input times the exponential of another): a norm between its layers would "
    "make it impossible to invert. Bound the exponent instead (a tanh around the log-scale)."
)
ROTATES = (
    "Its vectors rotate with the input: a norm over their components would break that. Normalize what does not "
    "rotate (lengths, scalar features) instead."
)


def structure_warnings(program: Program, inputs: Sequence[Tensor]) -> tuple[str, ...]:
    """What to know before a norm is put into this model; empty for most.

    Cost: two evaluations where inputs and outputs are 3-vectors, nothing elsewhere.
    """
    found = [FLOW] if _couples(program) else []
    return (*found, ROTATES) if _rotates(program, inputs) else tuple(found)


def _couples(program: Program) -> bool:
    """An affine coupling: x₂ · exp(s(x₁)), both parts of one value."""
    graph = program.to_networkx()
    for node in program.find("mul"):
        for factor, other in (node.operands, node.operands[::-1]) if len(node.operands) == 2 else ():
            scale, part = _source(program, factor), _source(program, other)
            if scale.op != "exp" or part.role == "constant":
                continue
            if part.name in nx.ancestors(graph, scale.name) and node.shape[-1:] != part.shape[-1:]:
                return True
    return False


def _source(program: Program, name: str) -> Node:
    """The value that a node moves entries of, however often."""
    node = program.node(name)
    while node.role == "operation" and len(node.operands) == 1 and describe(node).moves:
        node = program.node(node.operands[0])
    return node


def _rotates(program: Program, inputs: Sequence[Tensor]) -> bool:
    """Some output of 3-vectors turns with the inputs that are 3-vectors; tried with one rotation."""
    turning = [
        spec.kind == "real" and len(spec.shape) > 1 and spec.shape[-1] == 3 and not t.is_complex()
        for spec, t in zip(program.inputs, inputs, strict=False)
    ]
    names = [n for n in program.outputs if len(s := program.node(n).shape) > 1 and s[-1] == 3]
    if not any(turning) or not names or len(inputs) != len(program.inputs) or program.capture == "modules":
        return False
    source = torch.Generator().manual_seed(3)
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=source, dtype=torch.float64)).Q
    rotation = rotation * torch.linalg.det(rotation)
    drawn = [
        torch.randn(t.shape, generator=source, dtype=torch.float64) if turn else t
        for t, turn in zip(inputs, turning, strict=True)
    ]
    turned = [t @ rotation if turn else t for t, turn in zip(drawn, turning, strict=True)]
    try:
        before, after = (program.evaluate(*given, keep=names) for given in (drawn, turned))
    except Exception:
        return False
    for name in names:
        a, b = before[name].double(), after[name].double()
        size = float(a.abs().max()) if a.numel() else 0.0
        if size > 0.0 and a.shape == b.shape and float((a @ rotation - b).abs().max()) <= 1e-6 * size:
            return True
    return False
