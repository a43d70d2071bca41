"""The torch functions of ONNX operators, one family a file; importing the package fills the table.

Holds: one function for every ONNX operator that is translated.
May import: graph.onnx.
Never: reads a file.
"""

from __future__ import annotations

from farfield.graph.onnx._table import OnnxFunction, table
from farfield.graph.onnx.operators import (
    activation,
    arithmetic,
    attention,
    create,
    elementwise,
    index,
    linear,
    ml,
    norm,
    pool,
    quantize,
    recurrent,
    reduce,
    resize,
    shape,
    signal,
)

__all__ = [
    "activation",
    "arithmetic",
    "attention",
    "create",
    "elementwise",
    "find_function",
    "index",
    "linear",
    "ml",
    "norm",
    "onnx_operator_names",
    "pool",
    "quantize",
    "recurrent",
    "reduce",
    "resize",
    "shape",
    "signal",
]


def find_function(domain: str, name: str) -> OnnxFunction | None:
    """The function of an operator; ``None`` if nobody entered one."""
    return table().get((domain, name))


def onnx_operator_names() -> tuple[str, ...]:
    """Operators that have a translation, with their domain where it is not ``ai.onnx``; sorted."""
    return tuple(sorted(f"{domain}.{name}" if domain else name for domain, name in table()))
