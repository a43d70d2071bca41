"""The table of jet rules, and one step of running a program on jets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from farfield.errors import InvalidValueError
from farfield.graph import Node, RuleTable, compute_node
from farfield.growth._jet import Jet, constant

__all__ = [
    "JET_RULES",
    "JetRule",
    "JetValue",
    "Step",
    "jet_rule",
    "register_jet_rule",
]

JetValue: TypeAlias = "Jet | tuple[Jet, ...]"


@dataclass(frozen=True, slots=True)
class Step:
    """One node as its jet rule sees it.

    Parameters
    ----------
    node
        The operation; its attributes are plain numbers (dynamic sizes resolved, floating types read as
        float64).
    operands
        The jet of each tensor argument; ``None`` where absent.
    lowest
        Powers below this one may be dropped into the floor.
    phase
        Sines of affine functions of λ come back, all at once, to what they are here, as λ → ∞: then the result speaks
        of such a sequence of λ. ``None``: of every λ.
    """

    node: Node
    operands: tuple[JetValue | None, ...]
    lowest: float
    phase: float | None = None

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The non-tensor arguments."""
        return self.node.attributes

    def present(self, index: int) -> bool:
        """The argument is there, as a tensor."""
        return index < len(self.operands) and self.operands[index] is not None

    def jet(self, index: int = 0) -> Jet:
        """One tensor argument."""
        operand = self.operands[index] if index < len(self.operands) else None
        if not isinstance(operand, Jet):
            raise InvalidValueError(
                f"The jet rule of {self.node.op!r} needs one tensor as argument {index} at {self.node.place}."
            )
        return operand

    def operand(self, index: int, attribute: str) -> Jet:
        """A tensor argument, or the number that stands in its place among the attributes."""
        if self.present(index):
            return self.jet(index)
        return constant(torch.tensor(self.attributes[attribute], dtype=torch.float64))

    def compute(self, *tensors: Any) -> Any:
        """The operator itself on plain tensors (a tuple of them for what a multi-output node returned)."""
        return compute_node(self.node, tensors, {})


JetRule: TypeAlias = Callable[[Step], Any]
JET_RULES: RuleTable[JetRule] = RuleTable("jet rule")
jet_rule = JET_RULES.rule
"""Decorator: the function is the rule of these operators."""


def register_jet_rule(op: str, rule: JetRule) -> JetRule:
    """Say what an operator does at infinity; the last registration counts.

    Parameters
    ----------
    op
        Name of a registered graph operator, or of a captured function that nobody registered (``"aten.sinc"``).
    rule
        Takes a :class:`Step`, returns a :class:`Jet` (a tuple for several results) whose floor is honest.
    """
    return JET_RULES.register(op, rule)
