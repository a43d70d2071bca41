"""One step of a captured program, and one of its inputs: plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch

from farfield.graph._size import Dimension

__all__ = ["InputKind", "InputSpec", "Node", "Role"]

Role: TypeAlias = Literal["input", "constant", "operation", "output"]
InputKind: TypeAlias = Literal["real", "bounded", "integer", "boolean"]


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a program and how it is computed.

    Parameters
    ----------
    name
        Unique within the program; every value is assigned once.
    op
        Name of a registered operator (``"linear"``, ``"layer_norm"``, …), ``"input"``, ``"constant"``, or
        ``"unknown"`` where no operator is registered for ``target``.
    target
        What the capture recorded, for example ``"aten.linear.default"``.
    inputs
        Names of the tensor arguments in the operator's declared order. ``None`` where an optional one is
        absent (no bias), or where a number stands in its place: that number is then in ``attributes`` under
        the argument's name. List-valued arguments (of ``cat``, ``stack``, ``index``) are flattened.
    attributes
        The other arguments by name, defaults filled in, axes counted from the front. Entries that depend on
        a dynamic axis are :class:`~farfield.graph.SymbolicSize`.
    shape
        A string stands for a dynamic axis. ``()`` for a node that returns several tensors: its ``getitem``
        nodes have the shapes.
    dtype
        ``None`` for a node that returns several tensors.
    role
        ``"input"``, ``"constant"``, ``"operation"``, or ``"output"`` (an ``identity`` of the value returned,
        named after the place it takes in what the model returns).
    module_path, module_type
        Dotted path and class name of the module whose ``forward`` ran the step; the path is ``""`` for the
        root.
    source
        ``"path/to/file.py:123"``, the innermost frame outside torch; ``None`` where there is none.
    """

    name: str
    op: str
    target: str = ""
    inputs: tuple[str | None, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[Dimension, ...] = ()
    dtype: torch.dtype | None = None
    role: Role = "operation"
    module_path: str = ""
    module_type: str = ""
    source: str | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        """The inputs that are present."""
        return tuple(name for name in self.inputs if name is not None)

    @property
    def place(self) -> str:
        """Where this is, for a person: module path, source line or, failing both, the node's name."""
        where = self.module_path or self.name
        return f"{where} ({self.source})" if self.source else where


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One tensor input of a program.

    ``kind`` says what values it can take: ``"real"`` (any number), ``"bounded"`` (declared so by whoever
    captured the program), ``"integer"`` (token ids, indices) or ``"boolean"`` (masks); the last two are
    bounded by nature.
    """

    name: str
    shape: tuple[Dimension, ...]
    dtype: torch.dtype
    kind: InputKind
