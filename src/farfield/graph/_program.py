"""The value every analysis takes: a model as a straight-line program over registered operators."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import networkx as nx
import torch
from torch import Tensor

from farfield.errors import InvalidValueError, UnknownNameError
from farfield.graph._interpret import interpret
from farfield.graph._node import InputSpec, Node

__all__ = ["CaptureMethod", "Program"]

CaptureMethod: TypeAlias = Literal["export", "fx", "modules"]
LARGE = 5_000_000
"""Weights, or numbers computed for one sample, beyond which a program is large."""
_INPUT = re.compile(r"\bL\['(\w+)'\]")
"""An input of the model, as torch.export writes it in a guard."""
_SAME_BATCH = re.compile(r"\w+\.shape\[0\] == \w+\.shape\[0\]")


@dataclass(frozen=True)
class Program:
    """A model as a list of nodes, each of which uses only earlier ones.

    Parameters
    ----------
    nodes
        In topological order; inputs, constants and outputs are among them.
    inputs
        The tensor inputs, in the order :meth:`evaluate` takes them (nested structures are flattened).
    outputs
        Names of the nodes whose values are returned, flattened. Each is an ``identity`` with the role
        ``"output"``, named after its place in what the model returns: ``output``, ``output_1``,
        ``output_logits``.
    constants
        Node name → tensor: parameters, buffers, literals and what was folded from them. Parameters share
        their storage with the model.
    constant_names
        Node name → the parameter's or buffer's qualified name (for a folded constant: the names it was
        computed from, joined by ``+``).
    capture
        How the program was obtained.
    unseen
        What the capture could not see, in words; empty when nothing was missed.
    modules
        Every module path of the model → its class name, called or not.
    guards
        Conditions on sizes under which the model takes the way that was captured, as torch.export writes them.
    raw
        The program as the tracer gave it, operation for operation the module's forward: before anything was folded,
        renamed or recognized.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    constant_names: Mapping[str, str] = field(default_factory=dict, repr=False)
    capture: CaptureMethod = "export"
    unseen: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict, repr=False)
    guards: tuple[str, ...] = ()
    raw: Program | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        defined: set[str] = set()
        for node in self.nodes:
            undefined = [name for name in node.operands if name not in defined]
            if undefined:
                raise InvalidValueError(
                    f"Every node uses only earlier nodes, but {node.name!r} ({node.op}) uses {undefined}."
                )
            if node.name in defined:
                raise InvalidValueError(f"Node names are unique, but {node.name!r} occurs twice.")
            defined.add(node.name)
        lost = [name for name in (*self.outputs, *self.constants) if name not in defined]
        if lost:
            raise InvalidValueError(f"Outputs and constants are nodes of the program, but {lost} are not.")

    @property
    def conditions(self) -> tuple[str, ...]:
        """The guards in words, each once; not that a batch is not empty, or as large in every input."""
        said = [_INPUT.sub(r"\1", guard).replace(".size()[0]", ".shape[0]") for guard in self.guards]
        return tuple(
            f"the forward was followed for batches with {guard}; for other sizes it may take another way"
            for guard in dict.fromkeys(said)
            if not guard.endswith(" != 0") and not _SAME_BATCH.fullmatch(guard)
        )

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _users(self) -> dict[str, tuple[str, ...]]:
        users: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for name in dict.fromkeys(node.operands):
                users[name].append(node.name)
        return {name: tuple(found) for name, found in users.items()}

    @cached_property
    def _graph(self) -> nx.DiGraph:
        graph = nx.DiGraph()
        for node in self.nodes:
            graph.add_node(node.name, node=node)
        graph.add_edges_from((name, node.name) for node in self.nodes for name in node.operands)
        return graph

    def node(self, name: str) -> Node:
        """The node of this name."""
        try:
            return self._by_name[name]
        except KeyError:
            raise UnknownNameError("node", name, self._by_name) from None

    def users(self, name: str) -> tuple[str, ...]:
        """Names of the nodes that take this one's value, in program order."""
        self.node(name)
        return self._users[name]

    def to_networkx(self) -> nx.DiGraph:
        """The program as a directed graph: edges from operands to users, each vertex with its ``node``.

        Built once and kept; copy it before changing it.
        """
        return self._graph

    def find(self, *ops: str) -> tuple[Node, ...]:
        """Every node whose operator is one of these, in program order."""
        return tuple(node for node in self.nodes if node.op in ops)

    @property
    def is_large(self) -> bool:
        """One evaluation is work, by its weights or by what it computes: such a program is run at few points only."""
        return max(self.computed(), sum(tensor.numel() for tensor in self.constants.values())) > LARGE

    def computed(self, sizes: Mapping[str, int] | None = None) -> int:
        """How many numbers one evaluation computes.

        Parameters
        ----------
        sizes
            Name of an open axis → its size; 1 for those not given.
        """
        known = {} if sizes is None else sizes
        nodes = (node for node in self.nodes if node.role == "operation")
        return sum(
            math.prod(d if isinstance(d, int) else known.get(str(d), 1) for d in n.shape) for n in nodes
        )

    def evaluate(
        self,
        *inputs: Any,
        dtype: torch.dtype | None = torch.float64,
        keep: Iterable[str] | None = None,
    ) -> dict[str, Any]:
        """Run the program with the reference interpreter and return every node's value.

        Parameters
        ----------
        inputs
            One tensor per entry of ``inputs``, in that order (nested lists and dictionaries are flattened).
        dtype
            Floating type in which *everything* is computed, whatever types the model names: parameters,
            literals and casts are all brought to it, so that ``float64`` shows the model's mathematics apart
            from its rounding. ``None`` runs the model in its own types.
        keep
            Names of the values wanted; the others are freed as soon as they are used up. All by default,
            constants included.

        Returns
        -------
        dict
            Node name → value. A node that returns several tensors holds a tuple.
        """
        return interpret(
            self.nodes,
            self.inputs,
            self.constants,
            inputs,
            dtype=dtype,
            keep=None if keep is None else frozenset(keep),
        )
