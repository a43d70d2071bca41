"""Probabilities from logits: p_i = 1/(1 + Σ_{j≠i} e^{l_j − l_i}), so bounds D_ij of l_i − l_j bound it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from farfield.graph import Node, Program, describe

__all__ = ["DIFFERENCES", "difference_program", "probability_bound"]

DIFFERENCES = "logit_differences"
KEEPING = frozenset(["identity", "cast", "dropout", "reshape", "squeeze", "unsqueeze"])
"""Operators that keep the order of the entries, where their facts say that they only move them."""


def difference_program(program: Program, output: str) -> Program | None:
    """The program with l_i − l_j for every ordered pair i ≠ j as its output; ``None`` unless this is a softmax."""
    head = program.node(output)
    while head.op in KEEPING and head.role != "input" and describe(head).moves:
        head = program.node(head.operands[0])
    if head.op != "softmax" or head.role == "input" or not head.shape:
        return None
    classes = int(head.shape[int(head.attributes["dim"])])
    if classes < 2 or math.prod(int(d) for d in head.shape) != classes:
        return None
    pairs = _pairs(classes)
    matrix = torch.zeros(len(pairs), classes, dtype=torch.float64)
    for row, (i, j) in enumerate(pairs):
        matrix[row, i], matrix[row, j] = 1.0, -1.0
    flat = Node(
        "flat_logits", "reshape", "", (head.operands[0],), {"shape": (classes,)}, (classes,), torch.float64
    )
    weight = Node("logit_pairs", "constant", shape=tuple(matrix.shape), dtype=torch.float64, role="constant")
    step = Node(
        "logit_pairing", "linear", "", (flat.name, weight.name, None), {}, (len(pairs),), torch.float64
    )
    end = Node(DIFFERENCES, "identity", "", (step.name,), {}, (len(pairs),), torch.float64, "output")
    return replace(
        program,
        nodes=(*(n for n in program.nodes if n.role != "output"), flat, weight, step, end),
        outputs=(DIFFERENCES,),
        constants={**program.constants, weight.name: matrix},
    )


def probability_bound(proved: Mapping[int, float], classes: int, index: int, sign: float) -> float:
    """The bound of sign·p_index that bounds of the differences, by row, give."""
    total = 1.0
    for row, (i, j) in enumerate(_pairs(classes)):
        bound = proved.get(row, math.inf)
        if sign > 0 and i == index:
            total += math.exp(min(-bound, 700.0)) * (1 - 1e-14) if bound < 700 else 0.0
        elif sign < 0 and j == index:
            total += math.exp(bound) * (1 + 1e-14) if bound < 700 else math.inf
    return sign / total + 1e-13


def _pairs(classes: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(classes) for j in range(classes) if i != j]
