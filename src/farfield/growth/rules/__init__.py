"""Growth rules, one operator family per file.

Holds: for each operator, what its value can do as inputs grow, given what its operands can do.
May import: gaussian, graph, growth.
Never: looks at a whole program or evaluates a model.
"""

from __future__ import annotations

from farfield.growth.rules import (
    activation,
    arithmetic,
    attention,
    create,
    fourier,
    linear,
    norm,
    pool,
    recurrent,
    reduce,
    select,
    shape,
    transcendental,
)

__all__ = [
    "activation",
    "arithmetic",
    "attention",
    "create",
    "fourier",
    "linear",
    "norm",
    "pool",
    "recurrent",
    "reduce",
    "select",
    "shape",
    "transcendental",
]
