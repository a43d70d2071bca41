"""The operators farfield knows, one family per file.

Holds: for each operator its name, the captured functions that mean it, how it computes, examples.
May import: errors, gaussian, graph.
Never: says how an operator grows or bounds its input.
"""

from __future__ import annotations

from farfield.graph.operators import activation as _activation
from farfield.graph.operators import attention as _attention
from farfield.graph.operators import create as _create
from farfield.graph.operators import elementwise as _elementwise
from farfield.graph.operators import fourier as _fourier
from farfield.graph.operators import index as _index
from farfield.graph.operators import join as _join
from farfield.graph.operators import linear as _linear
from farfield.graph.operators import norm as _norm
from farfield.graph.operators import pool as _pool
from farfield.graph.operators import recurrent as _recurrent
from farfield.graph.operators import reduce as _reduce
from farfield.graph.operators import select as _select
from farfield.graph.operators import shape as _shape
from farfield.graph.operators._facts import NOTHING, Facts, NormSpec
from farfield.graph.operators._registry import (
    Call,
    Example,
    Operator,
    Reference,
    Sample,
    Target,
    find_operator,
    operator,
    operator_names,
    operators,
    register_all,
    register_operator,
    registered_targets,
    unregister_operator,
)

__all__ = [
    "NOTHING",
    "Call",
    "Example",
    "Facts",
    "NormSpec",
    "Operator",
    "Reference",
    "Sample",
    "Target",
    "find_operator",
    "operator",
    "operator_names",
    "operators",
    "register_operator",
    "registered_targets",
    "unregister_operator",
]

for _family in (
    _elementwise,
    _activation,
    _linear,
    _norm,
    _reduce,
    _shape,
    _join,
    _select,
    _index,
    _create,
    _attention,
    _recurrent,
    _pool,
    _fourier,
):
    register_all(_family.OPERATORS)
