"""Differences of two entries of one table, a fixed number of places apart: knots[i] − knots[i − 1]."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from farfield.graph import Node, Program
from farfield.growth._extent import Extent, widened
from farfield.growth._registry import Claim

__all__ = ["of_neighbors"]


def of_neighbors(program: Program, node: Node, table: Mapping[str, Claim], claim: Extent) -> Extent:
    """The claim about a difference, with what its values at all places add to it."""
    if node.op != "sub" or None in node.inputs or node.attributes.get("alpha", 1) != 1:
        return claim
    left, right = (_place(program, program.node(str(name))) for name in node.inputs)
    if left is None or right is None or left[:2] != right[:2]:
        return claim
    (source, index, first), second = left, right[2]
    entries, where = program.constants[source].detach().to(torch.float64), table[index]
    if isinstance(where, tuple) or not where.bounded or math.isinf(where.lo) or math.isinf(where.hi):
        return claim
    at = torch.arange(math.ceil(where.lo), math.floor(where.hi) + 1)
    if not len(at) or int(at[0]) + min(first, second) < 0 or int(at[-1]) + max(first, second) >= len(entries):
        return claim
    values = entries[at + first] - entries[at + second]
    if not bool(torch.isfinite(values).all()):
        return claim
    lo, hi = widened(float(values.min()), up=False), widened(float(values.max()), up=True)
    gap = widened(float(values.abs().min()), up=False)
    return replace(claim, lo=max(claim.lo, lo), hi=min(claim.hi, hi), gap=max(claim.gap, gap))


def _place(program: Program, node: Node) -> tuple[str, str, int] | None:
    """(table, node of an index, number added to it) of an entry that is read out of a constant row."""
    if node.op not in ("index", "take") or len(node.inputs) != 2:
        return None
    source, name = (str(n) for n in node.inputs)
    tensor, shift = program.constants.get(source), 0
    index = program.node(name)
    while (
        index.op in ("add", "sub")
        and index.inputs[1] is None
        and isinstance(index.attributes.get("other"), int)
    ):
        shift += (
            (1 if index.op == "add" else -1) * index.attributes["other"] * index.attributes.get("alpha", 1)
        )
        index = program.node(str(index.inputs[0]))
    whole = index.dtype is not None and not index.dtype.is_floating_point and index.dtype != torch.bool
    readable = tensor is not None and tensor.ndim == 1 and tensor.is_floating_point()
    return (source, index.name, shift) if whole and readable else None
