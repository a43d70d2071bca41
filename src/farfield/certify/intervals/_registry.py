"""The table of interval rules: operator name → where its value lies, given where its operands lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from farfield.certify.intervals._interval import Interval, all_finite, point
from farfield.errors import FarfieldError, InvalidValueError
from farfield.graph import Node, RuleTable, compute_node, describe

__all__ = [
    "INTERVAL_RULES",
    "Bounds",
    "IntervalRule",
    "Place",
    "UnboundableError",
    "interval_rule",
    "interval_rule_names",
    "register_interval_rule",
    "unregister_interval_rule",
]

Bounds: TypeAlias = "Interval | tuple[Interval, ...]"
"""What a rule returns: one interval, or one per tensor for an operator that returns several."""


class UnboundableError(FarfieldError, ArithmeticError):
    """A node's value may be undefined (0/0, a logarithm of a negative number) or nothing is known about it."""

    def __init__(self, node: Node, reason: str) -> None:
        self.node, self.reason = node.name, reason
        what = node.target if node.op == "unknown" else node.op
        super().__init__(
            f"No interval holds the value of {node.name!r} ({what}) at {node.place}: {reason}. Restrict the inputs, "
            "or say where this node lies with `given`."
        )


@dataclass(frozen=True, slots=True)
class Place:
    """One node as its interval rule sees it.

    Parameters
    ----------
    node
        The operation, with its attributes; every size in it is a number.
    operands
        Where each tensor argument lies, in the order of ``node.inputs``; ``None`` where absent.
    tensors
        The value of each argument that is a constant of the program; ``None`` for the others.
    producers
        The nodes that compute the arguments; ``None`` where absent.
    lookup
        The node of a name, for rules that look further back.
    infinite
        Which entries of each argument can be truly infinite; ``None`` where none can.
    masked
        Names of the nodes that were computed from something infinite: a masked softmax is exactly 0.
    """

    node: Node
    operands: tuple[Bounds | None, ...]
    tensors: tuple[Tensor | None, ...]
    producers: tuple[Node | None, ...]
    lookup: Callable[[str], Node]
    infinite: tuple[Tensor | None, ...] = ()
    masked: frozenset[str] = frozenset()

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The non-tensor arguments."""
        return self.node.attributes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result, all numbers."""
        return tuple(int(size) for size in self.node.shape)

    def refuse(self, reason: str) -> UnboundableError:
        """The error to raise where the value may be undefined."""
        return UnboundableError(self.node, reason)

    def present(self, index: int) -> bool:
        """The argument is there, as a tensor."""
        return index < len(self.operands) and self.operands[index] is not None

    def interval(self, index: int = 0) -> Interval:
        """Where one tensor argument lies."""
        operand = self.operands[index] if index < len(self.operands) else None
        if not isinstance(operand, Interval):
            raise InvalidValueError(
                f"The interval rule of {self.node.op!r} needs one tensor as argument {index}, and at "
                f"{self.node.place} there is {'none' if operand is None else 'a tuple of them'}."
            )
        return operand

    def optional(self, index: int) -> Interval | None:
        """As :meth:`interval`, or ``None`` where the argument is absent."""
        return self.interval(index) if self.present(index) else None

    def operand(self, index: int, attribute: str) -> Interval:
        """A tensor argument, or the number that stands in its place among the attributes."""
        if self.present(index):
            return self.interval(index)
        value = self.attributes[attribute]
        if isinstance(value, complex) or math.isnan(value):
            raise self.refuse(f"the number {value} stands among its arguments")
        return point(value)

    def constant(self, index: int) -> Tensor | None:
        """The value of an argument that is a constant, as float64; ``None`` if it moves or is not finite."""
        tensor = self.tensors[index] if index < len(self.tensors) else None
        if tensor is None or tensor.is_complex():
            return None
        value = self.interval(index).lo
        return value if all_finite(value) else None

    def indices(self, index: int) -> Tensor | None:
        """An integer argument whose value is known, be it a constant or an input held in place."""
        tensor = self.tensors[index]
        if tensor is not None:
            return tensor
        box = self.interval(index)
        if not box.bounded or not box.degenerate:
            return None
        producer = self.producers[index]
        wanted = torch.int64 if producer is None or producer.dtype is None else producer.dtype
        return box.lo.to(wanted)

    def can_vanish(self, index: int) -> bool:
        """Some entry of an argument may be 0: its interval holds 0 and no operator keeps it positive."""
        box = self.interval(index)
        if not bool(((box.lo <= 0) & (box.hi >= 0)).any()):
            return False
        producer = self.producers[index]
        while producer is not None and _stays_positive(producer):
            name = producer.inputs[0]
            producer = None if name is None else self.lookup(name)
        if producer is None or not describe(producer).positive or producer.name in self.masked:
            return True
        return bool((box.lo < 0).any())

    def compute(self, *tensors: Any) -> Any:
        """The operator itself on plain float64 tensors, ``None`` where absent."""
        return compute_node(self.node, tensors, {}, torch.float64)

    def whole(self, index: int) -> Interval:
        """One interval for all entries of an argument (of shape ()); [0, 0] for an empty one."""
        box = self.interval(index)
        if box.lo.numel() == 0:
            return point(0.0)
        return Interval(box.lo.min(), box.hi.max())


def _stays_positive(node: Node) -> bool:
    """Whether every entry is positive where those of the only operand are: they are moved, or summed."""
    facts = describe(node)
    return node.op == "sum" or (facts.moves and not facts.fills and len(node.operands) == 1)


IntervalRule: TypeAlias = Callable[[Place], Bounds]
INTERVAL_RULES: RuleTable[IntervalRule] = RuleTable("interval rule")
interval_rule = INTERVAL_RULES.rule
"""Decorator: the function is the rule of these operators."""
interval_rule_names = INTERVAL_RULES.names
"""Operators that have a rule, sorted."""


def register_interval_rule(op: str, rule: IntervalRule) -> IntervalRule:
    """Say where an operator's value lies; the last registration counts.

    The rule must be sound in real arithmetic: what it returns has to hold for every value of the operands inside
    their intervals, rounding of its own included. The functions of ``_interval`` (``add``, ``mul``, …) are.

    Parameters
    ----------
    op
        Name of a registered graph operator, or of a captured function that nobody registered (``"aten.sinc"``).
    rule
        Takes a :class:`Place`, returns an :class:`Interval`, or a tuple of them for several results; raises
        ``place.refuse(reason)`` where the value may be undefined.

    Examples
    --------
    >>> from farfield.certify.intervals._interval import spread
    >>> squash = register_interval_rule("example_squash", lambda place: spread(-1.0, 1.0, place.shape))
    >>> unregister_interval_rule("example_squash")
    """
    return INTERVAL_RULES.register(op, rule)


def unregister_interval_rule(op: str) -> None:
    """Forget the rule of an operator, if there is one."""
    INTERVAL_RULES.unregister(op)
