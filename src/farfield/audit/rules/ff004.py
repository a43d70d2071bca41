"""FF004: a norm over one or two features destroys what it is given."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from farfield.audit._context import Context
from farfield.audit._result import Finding, Outcome
from farfield.audit.rules import Judgement, Rule
from farfield.graph import Node

__all__ = ["RULE", "normalised_size"]


def normalised_size(node: Node, operand: Node) -> int | None:
    """How many numbers are normalised together; None where a dynamic axis is among them."""
    shape: list[Any] = list(operand.shape)
    attributes = node.attributes
    if node.op in ("layer_norm", "rms_norm"):
        axes = attributes.get("normalized_shape")
        if axes is not None:
            sizes = list(axes)
        else:
            dims = attributes.get("dim", (-1,))
            dims = (dims,) if isinstance(dims, int) else tuple(dims)
            sizes = [shape[d] for d in dims]
    elif node.op == "l2_normalize":
        dims = attributes.get("dim", (-1,))
        dims = (dims,) if isinstance(dims, int) else tuple(dims)
        sizes = [shape[d] for d in dims]
    elif node.op == "group_norm":
        groups = attributes.get("num_groups")
        if not isinstance(groups, int) or not isinstance(shape[1], int):
            return None
        sizes = [shape[1] // groups, *shape[2:]]
    elif node.op == "instance_norm":
        sizes = shape[2:]
    else:
        return None
    return math.prod(sizes) if sizes and all(isinstance(s, int) for s in sizes) else None


_CENTRES = ("layer_norm", "group_norm", "instance_norm")


def check(context: Context) -> Judgement:
    """Fires for a centring norm over at most two numbers, or any norm over one."""
    if not context.norms:
        return Outcome.NOT_APPLICABLE, (), "the program has no norm"
    findings = []
    for node in context.norms:
        size = normalised_size(node, context.program.node(node.operands[0]))
        if size is None or size > (2 if node.op in _CENTRES else 1):
            continue
        left = "nothing: its output is constant" if size == 1 and node.op in _CENTRES else "only a sign"
        findings.append(
            Finding(
                "FF004",
                "warning",
                f"{node.module_path or node.name} normalises {size} number{'s' if size > 1 else ''} at a time, which "
                f"leaves {left}.",
                context.place(node.name),
                "Normalise a wider layer: after the first Linear, not before it.",
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
