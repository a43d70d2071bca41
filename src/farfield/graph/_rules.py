"""One table of rules and one walk over a program: what every analysis is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from farfield.graph._node import Node

__all__ = ["RuleTable", "last_uses", "walk"]

Rule = TypeVar("Rule", bound=Callable[..., Any])
Function = TypeVar("Function", bound=Callable[..., Any])
Value = TypeVar("Value")


class RuleTable(Generic[Rule]):
    """Operator name → the rule of one analysis. The last registration counts.

    A node that no operator is registered for is looked up by its target (``"aten.sinc.default"``), with or without
    the overload (``"aten.sinc"``), so that a user can add a rule under the name that a message gave.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._rules: dict[str, Rule] = {}

    def register(self, name: str, rule: Rule) -> Rule:
        """Add a rule, or replace the one there is."""
        self._rules[name] = rule
        return rule

    def unregister(self, name: str) -> None:
        """Forget a rule, if there is one."""
        self._rules.pop(name, None)

    def rule(self, *names: str) -> Callable[[Function], Function]:
        """Decorator: the function is the rule of these operators."""

        def register(rule: Function) -> Function:
            for name in names:
                self._rules[name] = cast("Rule", rule)
            return rule

        return register

    def find(self, node: Node) -> Rule | None:
        """The rule of a node, ``None`` where nobody registered one."""
        if node.op != "unknown":
            return self._rules.get(node.op)
        found = self._rules.get(node.target)
        return found if found is not None else self._rules.get(node.target.rpartition(".")[0])

    def names(self) -> tuple[str, ...]:
        """Operators that have a rule, sorted."""
        return tuple(sorted(self._rules))


def walk(
    nodes: Sequence[Node],
    step: Callable[[Node, tuple[Value | None, ...]], Value],
    *,
    keep: Iterable[str] | None = None,
) -> dict[str, Value]:
    """Give every node a value, in order, from the values of its operands.

    Parameters
    ----------
    nodes
        Of a program, in order; inputs and constants are visited too, with no operands.
    step
        (node, values of ``node.inputs``, ``None`` where absent) ↦ the node's value.
    keep
        Names of the values wanted; the others are dropped as soon as they are used up. All by default.
    """
    wanted = None if keep is None else frozenset(keep)
    last = {} if wanted is None else last_uses(nodes)
    values: dict[str, Value] = {}
    for position, node in enumerate(nodes):
        values[node.name] = step(node, tuple(None if name is None else values[name] for name in node.inputs))
        if wanted is not None:
            for name in (*node.operands, node.name):
                if last[name] <= position and name not in wanted:
                    values.pop(name, None)
    return values


def last_uses(nodes: Iterable[Node]) -> Mapping[str, int]:
    """Node name → the position of the last node that uses it (its own where none does)."""
    last: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for name in (*node.operands, node.name):
            last[name] = position
    return last
