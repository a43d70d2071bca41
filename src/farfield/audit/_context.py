"""What every rule sees: the model, its program, and the growth analysis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from farfield.audit._result import Place
from farfield.audit._sample import one_sample
from farfield.audit._special import structure_warnings
from farfield.graph import Node, Program, describe
from farfield.growth import EscapePath, GrowthReport, Status, Verdict

__all__ = ["Context", "by_stored_statistics"]


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
        return tuple(n for n in self.program.nodes if n.role == "operation" and describe(n).norm is not None)

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
            elif node.role == "operation" and describe(node).moves:
                stack.extend(node.operands)
            elif node.role != "constant":
                return ()
        return tuple(dict.fromkeys(found))

    def one_sample(self) -> tuple[Tensor, ...] | None:
        """The example inputs cut to one row each where rows are samples; None if they do not fit."""
        return one_sample(self.program, self.inputs)

    def advice(self, verdict: Verdict) -> str:
        """Where a norm would bound an output, or why none should be put there."""
        cut = verdict.cut
        if cut is not None and cut.labels:
            where = f"Put a LayerNorm or RMSNorm after {cut}: every path from input to output then passes it."
        else:
            where = (
                "No hidden layer of three features or more is passed by every path from input to output: make "
                "one and put a LayerNorm or RMSNorm on it, or bound the output itself (tanh, clamp)."
            )
        return " ".join([where, *structure_warnings(self.program, self.inputs)])

    def real_inputs(self) -> Iterator[str]:
        """Names of the inputs that can take any real value."""
        return (spec.name for spec in self.program.inputs if spec.kind == "real")
