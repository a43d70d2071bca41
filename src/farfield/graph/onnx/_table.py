"""The table of ONNX operators: (domain, name) → the torch function that computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from farfield.graph.onnx._values import Arguments

__all__ = ["OnnxFunction", "onnx_operator", "table"]

OnnxFunction: TypeAlias = Callable[[Arguments], Any]
"""A node's results from its arguments: one value, or a tuple of them."""

_TABLE: dict[tuple[str, str], OnnxFunction] = {}


def onnx_operator(*names: str, domain: str = "") -> Callable[[OnnxFunction], OnnxFunction]:
    """Enter a function under one or more operator names of a domain (``""`` is ``ai.onnx``)."""

    def enter(function: OnnxFunction) -> OnnxFunction:
        for name in names:
            if (domain, name) in _TABLE:
                raise ValueError(f"{domain}.{name} is in the table twice.")
            _TABLE[domain, name] = function
        return function

    return enter


def table() -> Mapping[tuple[str, str], OnnxFunction]:
    """(Domain, name) → function, as far as the families of operators have been imported."""
    return _TABLE
