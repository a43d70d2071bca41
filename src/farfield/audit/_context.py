"""What every rule sees: the model, its program, and the growth analysis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from farfield.audit._result import Place
from farfield.audit._sample import one_sample
from farfield.graph import Node, Program
from farfield.growth import BOUNDING_NORMS, EscapePath, GrowthReport, Status, Verdict

__all__ = ["BOUNDING_NORMS", "CARRIERS", "Context", "by_stored_statistics"]

CARRIERS = frozenset({
    "identity", "reshape", "permute", "expand", "squeeze", "unsqueeze", "cast", "getitem", "dropout", "slice",
    "select", "split", "chunk", "unbind", "repeat", "flip", "roll", "cat", "stack",
})  # fmt: skip
"""Operators that only move entries about."""


def by_stored_statistics(node: Node) -> bool:
    """BatchNorm in evaluation mode, or InstanceNorm that tracks statistics: affine, whatever its name."""
    if node.op == "instance_norm":
        return not node.attributes.get("use_input_stats", True)
    return node.op == "batch_norm"


@dataclass(frozen=True)
class Context:
    """The subject of an audit.

    Parameters
    ----------
    report
        Growth of every node, verdicts, witnesses, escape paths.
    model
        The module itself, where there is one (not for a file or an exported program).
    inputs
        The example inputs, flattened.
    """

    report: GrowthReport
    model: nn.Module | None
    inputs: tuple[Tensor, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The captured program."""
        return self.report.program

    @property
    def status(self) -> Status:
        """The overall verdict."""
        return self.report.status

    @property
    def escaping(self) -> tuple[Verdict, ...]:
        """Verdicts, all inputs moving, of the outputs that are not proved bounded."""
        return tuple(v for v in self.report.verdicts if v.input is None and v.status is not Status.BOUNDED)

    @property
    def paths(self) -> tuple[EscapePath, ...]:
        """Escape paths of every such output, each once."""
        return tuple(dict.fromkeys(p for v in self.escaping for p in v.paths))

    @property
    def norms(self) -> tuple[Node, ...]:
        """Nodes of the program that bound whatever they are given."""
        return tuple(n for n in self.program.find(*BOUNDING_NORMS) if not by_stored_statistics(n))

    def place(self, name: str) -> Place:
        """A node as a place a person can go to."""
        node = self.program.node(name)
        return Place(node.module_path, node.module_type, node.source, node.name)

    def reaches_raw(self, name: str) -> tuple[str, ...]:
        """The model inputs that a node takes as they are, through operators that only move entries; else empty."""
        found: list[str] = []
        stack = [name]
        while stack:
            node = self.program.node(stack.pop())
            if node.role == "input":
                found.append(node.name)
            elif node.role == "operation" and node.op in CARRIERS:
                stack.extend(node.operands)
            elif node.role != "constant":
                return ()
        return tuple(dict.fromkeys(found))

    def one_sample(self) -> tuple[Tensor, ...] | None:
        """The example inputs cut to one row each where rows are samples; None if they do not fit."""
        return one_sample(self.program, self.inputs)

    def real_inputs(self) -> Iterator[str]:
        """Names of the inputs that can take any real value."""
        return (spec.name for spec in self.program.inputs if spec.kind == "real")
