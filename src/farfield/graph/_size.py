"""Axis lengths that are known only when the program runs: a batch, a sequence, a count of selected rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from farfield.errors import InvalidValueError

__all__ = ["Dimension", "SymbolicSize", "resolve", "size_of", "symbols_in"]


class SymbolicSize(str):
    """The length of a dynamic axis: text (``"s0"``, ``"4*s0"``) that remembers its expression.

    A string, so that shapes print and compare plainly; a subclass, so that a size among an operator's
    attributes is never mistaken for an ordinary string such as ``rounding_mode="floor"``.

    Examples
    --------
    >>> import sympy
    >>> size = SymbolicSize(4 * sympy.Symbol("s0"))
    >>> size, size.value({"s0": 3})
    ('4*s0', 12)
    """

    __slots__ = ("expression",)
    expression: Any

    def __new__(cls, expression: Any) -> SymbolicSize:
        self = super().__new__(cls, str(expression))
        self.expression = expression
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SymbolicSize, (self.expression,)

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the free symbols."""
        return frozenset(s.name for s in self.expression.free_symbols)

    def value(self, sizes: Mapping[str, int]) -> int | float:
        """The number this expression takes when each symbol takes the size given for it."""
        missing = self.symbols - set(sizes)
        if missing:
            raise InvalidValueError(
                f"The size {str(self)!r} depends on {sorted(missing)}, which no input of this program fixes. "
                "Capture again with dynamic_batch=False to get plain numbers."
            )
        number = self.expression.subs({s: sizes[s.name] for s in self.expression.free_symbols})
        return int(number) if number.is_integer else float(number)

    @property
    def bounds(self) -> tuple[float, float]:
        """Numbers between which the expression stays, whatever its symbols are.

        The length of an input's axis is at least 1; a count that only running tells (``u0``: how many entries of a
        mask are true) at least 0. An expression in them, such as ``s0 - 3`` or ``s0//3``, can be 0 or negative.

        Examples
        --------
        >>> import sympy
        >>> SymbolicSize(sympy.Symbol("s0") - 3).bounds
        (-2.0, inf)
        """
        return _bounds(self.expression)


def _bounds(expression: Any) -> tuple[float, float]:
    """The range of a sympy expression, by interval arithmetic over its tree."""
    if expression.is_number:
        return float(expression), float(expression)
    if expression.is_Symbol:
        return (0.0 if expression.name.startswith("u") else 1.0), math.inf
    parts = [_bounds(argument) for argument in expression.args]
    if expression.is_Add:
        return sum(lo for lo, _ in parts), sum(hi for _, hi in parts)
    if expression.is_Mul:
        lo, hi = 1.0, 1.0
        for part in parts:
            corners = [0.0 if 0.0 in (a, b) else a * b for a in (lo, hi) for b in part]
            lo, hi = min(corners), max(corners)
        return lo, hi
    name = type(expression).__name__
    if expression.is_Pow and parts[0][0] >= 0.0 and parts[1][0] == parts[1][1] >= 0.0:
        return parts[0][0] ** parts[1][0], parts[0][1] ** parts[1][0]
    if name in ("FloorDiv", "CleanDiv", "IntTrueDiv") and parts[0][0] >= 0.0 and parts[1][0] > 0.0:
        return 0.0, parts[0][1]
    if name in ("Mod", "PythonMod") and parts[0][0] >= 0.0 and parts[1][0] > 0.0:
        return 0.0, parts[1][1]
    if name == "Max":
        return max(lo for lo, _ in parts), max(hi for _, hi in parts)
    if name == "Min":
        return min(lo for lo, _ in parts), min(hi for _, hi in parts)
    return -math.inf, math.inf


Dimension: TypeAlias = "int | str"
"""One entry of a shape: a number, or a :class:`SymbolicSize` (which is a string) for a dynamic axis."""


def size_of(value: Any) -> Any:
    """A plain int or float for a fixed size, a :class:`SymbolicSize` for one that is not."""
    if isinstance(value, bool | int | float):
        return value
    expression = value.node.expr
    if expression.is_number:
        return int(expression) if expression.is_integer else float(expression)
    return SymbolicSize(expression)


def symbols_in(value: Any) -> frozenset[str]:
    """Every symbol met in an attribute, however deep in tuples."""
    if isinstance(value, SymbolicSize):
        return value.symbols
    if isinstance(value, tuple | list):
        return frozenset().union(*(symbols_in(v) for v in value))
    return frozenset()


def resolve(value: Any, sizes: Mapping[str, int]) -> Any:
    """The same value with every symbolic size replaced by its number."""
    if isinstance(value, SymbolicSize):
        return value.value(sizes)
    if isinstance(value, tuple | list):
        return tuple(resolve(v, sizes) for v in value)
    return value
