"""Confidence: a softmax over logits l is p_i = 1/(1 + Σ_{j≠i} e^{l_j − l_i}), so bounds on differences bound it.

From l_i − l_j ≤ D_ij for every input follow p_i ≤ 1/(1 + Σ_j e^{−D_ij}) and p_i ≥ 1/(1 + Σ_j e^{D_ji}); for two
classes nothing is lost. A program with the differences for an output is an ordinary program: bounded, proved and
checked as any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from farfield.graph import Node, Program

__all__ = ["DIFFERENCES", "LARGEST", "confidence", "difference_program", "pairs"]

DIFFERENCES = "logit_differences"
LARGEST = 8
"""Classes up to which every pair is compared."""


def pairs(classes: int) -> list[tuple[int, int]]:
    """The ordered pairs (i, j), i ≠ j, in the order of the differences."""
    return [(i, j) for i in range(classes) for j in range(classes) if i != j]


def difference_program(program: Program, output: str) -> Program | None:
    """The program with l_i − l_j for its only output; ``None`` unless ``output`` is a softmax over a few classes."""
    head = program.node(program.node(output).operands[0])
    while head.op in ("identity", "cast", "reshape") and head.operands:
        head = program.node(head.operands[0])
    if head.op != "softmax" or not head.shape:
        return None
    classes = int(head.shape[-1])
    rows = math.prod(int(d) for d in head.shape)
    if rows != classes or int(head.attributes["dim"]) != len(head.shape) - 1 or not 2 <= classes <= LARGEST:
        return None
    matrix = torch.zeros(classes * (classes - 1), classes, dtype=torch.float64)
    for row, (i, j) in enumerate(pairs(classes)):
        matrix[row, i], matrix[row, j] = 1.0, -1.0
    shape = (*head.shape[:-1], matrix.shape[0])
    weight = Node("logit_pairs", "constant", shape=tuple(matrix.shape), dtype=torch.float64, role="constant")
    logits = head.operands[0]
    step = Node(
        "logit_pairing", "linear", inputs=(logits, weight.name, None), shape=shape, dtype=torch.float64
    )
    end = Node(DIFFERENCES, "identity", inputs=(step.name,), shape=shape, dtype=torch.float64, role="output")
    kept = [node for node in program.nodes if node.role != "output"]
    return replace(
        program,
        nodes=(*kept, weight, step, end),
        outputs=(DIFFERENCES,),
        constants={**program.constants, weight.name: matrix},
    )


def confidence(bounds: Mapping[int, float] | Sequence[float], classes: int, index: int, upper: bool) -> float:
    """The bound on p_index from bounds on the differences, rounded outwards."""
    total = 1.0
    for row, (i, j) in enumerate(pairs(classes)):
        if upper and i == index:
            total += _exponential(-bounds[row], up=False)
        elif not upper and j == index:
            total += _exponential(bounds[row], up=True)
    value = 1.0 / total
    return min(1.0, value * (1 + 1e-13)) if upper else max(0.0, value * (1 - 1e-13))


def _exponential(x: float, *, up: bool) -> float:
    """e^x, rounded up or down; beyond ±700 by what the next float64 allows."""
    if x > 700.0:
        return math.inf if up else math.exp(700.0)
    if x < -700.0:
        return math.exp(-700.0) if up else 0.0
    return math.exp(x) * (1 + 1e-14 if up else 1 - 1e-14)
