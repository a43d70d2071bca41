"""FF004: a norm over one or two features destroys what it is given."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from farfield.audit._context import Context
from farfield.audit._result import Finding, Outcome
from farfield.audit.rules import Judgment, Rule
from farfield.graph import Node, describe

__all__ = ["RULE", "normalized_size"]


def normalized_size(node: Node, operand: Node) -> int | None:
    """How many numbers are normalized together; None where a dynamic axis is among them."""
    spec = describe(node).norm
    try:
        return None if spec is None else spec.size(operand.shape)
    except ValueError:  # the size of an axis is a symbol
        return None


def check(context: Context) -> Judgment:
    """Fires for a centering norm over at most two numbers, or any norm over one."""
    if not context.norms:
        return Outcome.NOT_APPLICABLE, (), "the program has no norm"
    findings = []
    for node in context.norms:
        spec = describe(node).norm
        centered = spec is not None and spec.centered
        size = normalized_size(node, context.program.node(node.operands[0]))
        if size is None or size > (2 if centered else 1):
            continue
        left = "nothing: its output is constant" if size == 1 and centered else "only a sign"
        findings.append(
            Finding(
                "FF004",
                "warning",
                f"{node.module_path or node.name} normalizes {size} number{'s' if size > 1 else ''} at a time, which "
                f"leaves {left}.",
                context.place(node.name),
                "Normalize a wider layer: after the first Linear, not before it.",
                {"size": size, "op": node.op},
            )
        )
    return (
        (Outcome.FAILED, findings, "")
        if findings
        else (Outcome.PASSED, (), "every norm is over three features or more")
    )


def triggers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """LayerNorm on a two-dimensional input."""
    return nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)), (torch.zeros(1, 2),)


def passes() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """LayerNorm after the first Linear."""
    return nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1)), (torch.zeros(1, 2),)


RULE = Rule("FF004", "a norm over one or two features", check, triggers, passes)
