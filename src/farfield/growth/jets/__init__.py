"""Jet rules, one operator family per file.

Holds: for each operator, what it does to a truncated series in λ along a ray.
May import: gaussian, graph, growth.
Never: looks at a whole program, searches or judges.
"""

from __future__ import annotations

from farfield.growth.jets import (
    attention,
    elementwise,
    linear,
    norm,
    pool,
    recurrent,
    reduce,
    scatter,
    select,
    shape,
)
from farfield.growth.jets._fallback import rule_of

__all__ = [
    "attention",
    "elementwise",
    "linear",
    "norm",
    "pool",
    "recurrent",
    "reduce",
    "rule_of",
    "scatter",
    "select",
    "shape",
]
