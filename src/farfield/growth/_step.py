"""The table of jet rules, and one step of running a program on jets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import torch

from farfield.errors import InvalidValueError
from farfield.graph import Node, SymbolicSize
from farfield.graph._interpret import compute_node
from farfield.growth._jet import Jet, constant

__all__ = [
    "JetRule",
    "JetValue",
    "Step",
    "find_jet_rule",
    "jet_rule",
    "jet_rule_names",
    "learn_sizes",
    "register_jet_rule",
    "resolved",
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
    """

    node: Node
    operands: tuple[JetValue | None, ...]
    lowest: float

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
_Rule = TypeVar("_Rule", bound=Callable[[Step], Any])

_RULES: dict[str, JetRule] = {}


def register_jet_rule(op: str, rule: JetRule) -> JetRule:
    """Say what an operator does at infinity; the last registration counts.

    Parameters
    ----------
    op
        Name of a registered graph operator.
    rule
        Takes a :class:`Step`, returns a :class:`Jet` (a tuple for several results) whose floor is honest.
    """
    _RULES[op] = rule
    return rule


def jet_rule(*ops: str) -> Callable[[_Rule], _Rule]:
    """Decorator: the function is the rule of these operators."""

    def register(rule: _Rule) -> _Rule:
        for op in ops:
            _RULES[op] = rule
        return rule

    return register


def find_jet_rule(op: str) -> JetRule | None:
    """The rule of an operator, ``None`` where nobody registered one."""
    return _RULES.get(op)


def jet_rule_names() -> tuple[str, ...]:
    """Operators that have a rule, sorted."""
    return tuple(sorted(_RULES))


def resolved(node: Node, sizes: Mapping[str, int]) -> Node:
    """The node with numbers for its dynamic sizes and float64 for every floating type it names."""
    attributes = {key: _plain(value, sizes) for key, value in node.attributes.items()}
    return replace(node, attributes=attributes, shape=tuple(_size(d, sizes) for d in node.shape))


def _size(dimension: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(dimension, SymbolicSize) and dimension.symbols <= set(sizes):
        return int(dimension.value(sizes))
    return dimension


def _plain(value: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, SymbolicSize):
        return value.value(sizes)
    if isinstance(value, tuple | list):
        return tuple(_plain(v, sizes) for v in value)
    if isinstance(value, torch.dtype):
        if value.is_floating_point:
            return torch.float64
        return torch.complex128 if value.is_complex else value
    return value


def learn_sizes(shape: Sequence[Any], value: Any, sizes: dict[str, int]) -> None:
    """Note the numbers that dynamic axes take in a value (a tensor or a jet)."""
    found = getattr(value, "shape", ())
    if len(found) == len(shape):
        for wanted, got in zip(shape, found, strict=True):
            if isinstance(wanted, SymbolicSize) and wanted in wanted.symbols:
                sizes.setdefault(str(wanted), int(got))
