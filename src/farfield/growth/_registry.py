"""The table of growth rules: operator name → what its value can do, given what its operands can do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.graph import Node, Program, RuleTable, SymbolicSize
from farfield.growth._extent import ZERO, Extent, interval, join
from farfield.growth._rate import CONSTANT, SINGULAR

__all__ = [
    "GROWTH_RULES",
    "Claim",
    "GrowthRule",
    "Rules",
    "Site",
    "growth_rule",
    "is_complex",
    "register_growth_rule",
    "unregister_growth_rule",
]

Claim: TypeAlias = "Extent | tuple[Extent, ...]"
"""What a rule returns: one extent, or one per tensor for an operator that returns several."""


@dataclass(frozen=True, slots=True)
class Site:
    """One node as its growth rule sees it.

    Parameters
    ----------
    node
        The operation, with its attributes.
    operands
        What is known of each tensor argument, in the order of ``node.inputs``; ``None`` where absent.
    tensors
        The value of each argument that is a constant of the program; ``None`` for the others.
    producers
        The nodes that compute the arguments; ``None`` where absent.
    lookup
        The node of a name, for rules that look further back.
    """

    node: Node
    operands: tuple[Claim | None, ...]
    tensors: tuple[Tensor | None, ...]
    producers: tuple[Node | None, ...]
    lookup: Callable[[str], Node]

    @property
    def name(self) -> str:
        """Name of the node, for reasons and assumptions."""
        return self.node.name

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The non-tensor arguments."""
        return self.node.attributes

    def present(self, index: int) -> bool:
        """The argument is there, as a tensor."""
        return index < len(self.operands) and self.operands[index] is not None

    def extent(self, index: int = 0) -> Extent:
        """What is known of one tensor argument (of all its parts together, if it has several)."""
        operand = self.operands[index] if index < len(self.operands) else None
        if operand is None:
            raise InvalidValueError(
                f"The growth rule of {self.node.op!r} needs tensor argument {index}, absent at {self.node.place}."
            )
        return join(*operand) if isinstance(operand, tuple) else operand

    def optional(self, index: int) -> Extent | None:
        """As :meth:`extent`, or ``None`` where the argument is absent."""
        return self.extent(index) if self.present(index) else None

    def operand(self, index: int, attribute: str) -> Extent:
        """A tensor argument, or the number that stands in its place among the attributes.

        Beside complex numbers a real one has the imaginary part 0, which a claim about both parts includes.
        """
        if self.present(index):
            return self.extent(index)
        value = number(self.attributes[attribute])
        return join(value, ZERO) if self.complex else value

    @property
    def complex(self) -> bool:
        """Complex numbers go in or come out."""
        return is_complex(self.node) or any(is_complex(producer) for producer in self.producers)

    def everything(self) -> tuple[Extent, ...]:
        """Every tensor argument that is there."""
        return tuple(self.extent(i) for i in range(len(self.operands)) if self.present(i))

    def length(self, index: int, dims: tuple[int, ...]) -> float:
        """How many entries the given axes of an argument hold; ``inf`` where one of them is dynamic."""
        producer = self.producers[index]
        if producer is None:
            return math.inf
        return size_of(tuple(producer.shape[d] for d in dims))


GrowthRule: TypeAlias = Callable[[Site], "Claim | None"]
"""``None`` stands for: see what the operator is composed of, or what its facts say."""
Rules: TypeAlias = "Callable[[Program, Node, Mapping[str, Claim]], Claim]"
"""(program, node, extents of its operands) ↦ the node's extent."""

GROWTH_RULES: RuleTable[GrowthRule] = RuleTable("growth rule")
growth_rule = GROWTH_RULES.rule
"""Decorator: the function is the rule of these operators."""


def is_complex(node: Node | None) -> bool:
    """The node holds complex numbers."""
    return node is not None and node.dtype is not None and node.dtype.is_complex


def number(value: Any) -> Extent:
    """The extent of a plain number."""
    if isinstance(value, SymbolicSize):  # fixed before any input moves
        return Extent(CONSTANT, CONSTANT, *value.bounds)
    if isinstance(value, complex):
        parts = (value.real, value.imag)
        return Extent(CONSTANT, CONSTANT, min(parts), max(parts), min(abs(part) for part in parts))
    value = float(value)
    if math.isnan(value):
        raise InvalidValueError(
            "A number among an operator's arguments is NaN: nothing can be said about it."
        )
    return interval(value, value) if math.isfinite(value) else infinite(value)


def infinite(value: float) -> Extent:
    """The extent of ±∞ written as a literal: a pole on that side."""
    if value > 0:
        return Extent(CONSTANT, SINGULAR, lo=0.0)
    return Extent(SINGULAR, CONSTANT, hi=0.0)


def size_of(shape: tuple[Any, ...]) -> float:
    """Number of entries of a shape; ``inf`` where an axis is dynamic."""
    total = 1.0
    for dimension in shape:
        if isinstance(dimension, str):
            return math.inf
        total *= dimension
    return total


def register_growth_rule(op: str, rule: GrowthRule) -> GrowthRule:
    """Say how an operator grows; the last registration counts.

    The rule must be sound: what it returns has to hold for every value its operands may take according to
    their extents. The functions in ``farfield.growth.extents`` (``add``, ``multiply``, ``interval``, …) are.

    Parameters
    ----------
    op
        Name of a registered graph operator, or of a captured function that nobody registered (``"aten.sinc"``).
    rule
        Takes a :class:`Site`, returns an :class:`Extent`, or a tuple of them for several results.

    Examples
    --------
    >>> squash = register_growth_rule("example_squash", lambda site: interval(-1.0, 1.0, *site.everything()))
    >>> unregister_growth_rule("example_squash")
    """
    return GROWTH_RULES.register(op, rule)


def unregister_growth_rule(op: str) -> None:
    """Forget the rule of an operator, if there is one."""
    GROWTH_RULES.unregister(op)
