"""Interval rules, one operator family per file.

Holds: for each operator, where each entry of its value lies, given where its operands' entries lie.
May import: certify.intervals, gaussian, graph, growth.
Never: looks at a whole program.
"""

from __future__ import annotations

from farfield.certify.intervals.rules import (
    activation,
    arithmetic,
    attention,
    bilinear,
    create,
    index,
    linear,
    norm,
    pool,
    reduce,
    select,
    shape,
    softmax,
    transcendental,
)

__all__ = [
    "activation",
    "arithmetic",
    "attention",
    "bilinear",
    "create",
    "index",
    "linear",
    "norm",
    "pool",
    "reduce",
    "select",
    "shape",
    "softmax",
    "transcendental",
]
