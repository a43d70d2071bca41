"""The value that describes an operator, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from farfield.errors import InvalidValueError, UnknownNameError
from farfield.graph._node import Node
from farfield.graph._size import Dimension
from farfield.graph.operators._facts import NOTHING, FactsOf

__all__ = [
    "Binding",
    "Call",
    "Compute",
    "Example",
    "Operator",
    "Reference",
    "Sample",
    "Target",
    "Value",
    "calling",
    "find_operator",
    "operand",
    "operator",
    "operator_names",
    "operators",
    "register_operator",
    "registered_targets",
    "required",
    "unregister_operator",
]

Value: TypeAlias = "Tensor | tuple[Tensor, ...]"
"""What a node holds when it runs: one tensor, or several for an operator that returns several."""

Compute: TypeAlias = Callable[[Node, Sequence[Any]], Any]
"""(node, tensors in the order of ``node.inputs``, ``None`` where absent) ↦ the node's value."""

RESERVED = frozenset({"input", "constant", "unknown"})


@dataclass(frozen=True, slots=True)
class Reference:
    """A tensor argument of a captured call: the node that makes it, with its shape and type."""

    name: str
    shape: tuple[Dimension, ...]
    dtype: torch.dtype | None


@dataclass(frozen=True, slots=True)
class Call:
    """A captured call before it becomes a node.

    ``arguments`` holds every argument by its name in the target's schema (``self`` is spelled ``input``),
    defaults filled in; tensors are :class:`Reference`. ``shape`` and ``dtype`` describe the result.
    """

    target: str
    arguments: Mapping[str, Any]
    shape: tuple[Dimension, ...] = ()
    dtype: torch.dtype | None = None


Binding: TypeAlias = Callable[[Call], Mapping[str, Any] | None]
"""Turns a captured call's arguments into the operator's own: renamed, completed, axes counted from the front.
``None`` where this call is not the operator after all; it's then unknown."""


@dataclass(frozen=True, slots=True)
class Target:
    """A captured function that means this operator.

    Parameters
    ----------
    name
        As the capture spells it: ``"aten.addmm.default"``.
    bind
        How its arguments become the operator's; ``None`` if they already have the right names.
    item
        Where the captured function returns several tensors and only this one of them is the operator's value
        (``native_layer_norm`` returns the result, the mean and the reciprocal deviation).
    """

    name: str
    bind: Binding | None = None
    item: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """A recipe for one tensor of an example."""

    shape: tuple[int, ...]
    kind: str = "real"
    bound: int = 0

    def draw(self, generator: torch.Generator) -> Tensor:
        """A float64 (or integer, boolean, complex) tensor of this kind."""
        if self.kind == "integer":
            return torch.randint(self.bound, self.shape, generator=generator)
        uniform = torch.rand(self.shape, generator=generator, dtype=torch.float64)
        if self.kind == "boolean":
            return uniform > 0.5
        if self.kind == "unit":
            return 0.9 * uniform + 0.05
        if self.kind == "positive":
            return 3 * uniform + 0.1
        real = torch.randn(self.shape, generator=generator, dtype=torch.float64)
        if self.kind == "complex":
            return torch.complex(real, uniform)
        return real


@dataclass(frozen=True, slots=True)
class Example:
    """A small call written in plain torch, and the tensors to call it with.

    Contract suites capture ``function``, expect the operator among the nodes and compare the interpreter
    with calling ``function`` directly.
    """

    function: Callable[..., Any]
    samples: tuple[Sample, ...]

    def inputs(self, seed: int = 0) -> tuple[Tensor, ...]:
        """The tensors, drawn from a generator of their own."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(sample.draw(generator) for sample in self.samples)


@dataclass(frozen=True, slots=True)
class Operator:
    """What farfield knows about one operator before any analysis.

    Parameters
    ----------
    name
        The name that stands in ``Node.op``.
    family
        The file it lives in, one idea each: ``"elementwise"``, ``"linear"``, ``"norm"``, ….
    summary
        What it computes, as a formula where there is one.
    arguments
        Names of the tensor arguments in the order of ``Node.inputs``. A last name that starts with ``*``
        takes a list.
    targets
        The captured functions that mean it. Each is kept whole at capture: it's taken out of the table of
        decompositions.
    compute
        Evaluates it with plain torch, on the values of its inputs.
    examples
        At least one small call per way of spelling it.
    facts
        What its nodes *are* (moves entries, linear, monotone, a norm, random …): a value, or a function of the node
        where that depends on its attributes, result type or mode. Every analysis reads it through
        :func:`farfield.graph.describe`.
    returns_tuple
        True where the value is a tuple of tensors, taken apart by ``getitem`` nodes.
    composed
        For a composition of simpler operators: makes their nodes, see :mod:`farfield.graph._compose`. Returns
        ``None`` for a call that it does not cover.
    """

    name: str
    family: str
    summary: str
    arguments: tuple[str, ...]
    targets: tuple[Target, ...]
    compute: Compute
    examples: tuple[Example, ...] = field(default=())
    facts: FactsOf = NOTHING
    returns_tuple: bool = False
    composed: Callable[[Node, Any], str | None] | None = None

    @property
    def example(self) -> Example:
        """The first example."""
        return self.examples[0]

    @property
    def variadic(self) -> str | None:
        """Name of the argument that takes a list of tensors, if any."""
        last = self.arguments[-1] if self.arguments else ""
        return last[1:] if last.startswith("*") else None


_BY_NAME: dict[str, Operator] = {}
_BY_TARGET: dict[tuple[str, int | None], tuple[Operator, Target]] = {}


def register_operator(operator: Operator) -> Operator:
    """Add an operator; from then on capture keeps its targets whole and names their nodes after it.

    A target that another operator claims is taken over only by the operator of the same name, so a
    registration can be replaced but not stolen.

    Parameters
    ----------
    operator
        The description. ``examples`` enrolls it in the contract suite; it must not be empty.

    Returns
    -------
    Operator
        The same value, so that the call can be used as an assignment.

    Examples
    --------
    >>> import torch
    >>> sinc = Operator(
    ...     name="sinc",
    ...     family="elementwise",
    ...     summary="sin(πx)/(πx)",
    ...     arguments=("input",),
    ...     targets=(Target("aten.sinc.default"),),
    ...     compute=lambda node, tensors: torch.sinc(tensors[0]),
    ...     examples=(Example(torch.sinc, (Sample((3, 4)),)),),
    ... )
    >>> register_operator(sinc).name
    'sinc'
    >>> unregister_operator("sinc")
    """
    if operator.name in RESERVED:
        raise InvalidValueError(
            f"{operator.name!r} is reserved for nodes that no operator computes; choose another name."
        )
    if not operator.summary.strip() or not operator.examples:
        raise InvalidValueError(
            f"Operator {operator.name!r} needs a summary and an example: they document it and enroll it "
            "in the contract suite."
        )
    for target in operator.targets:
        claimed = _BY_TARGET.get((target.name, target.item))
        if claimed is not None and claimed[0].name != operator.name:
            raise InvalidValueError(
                f"Target {target.name!r} already means {claimed[0].name!r}; it can't also mean "
                f"{operator.name!r}. Register under the name {claimed[0].name!r} to replace it."
            )
    unregister_operator(operator.name, missing_ok=True)
    _BY_NAME[operator.name] = operator
    for target in operator.targets:
        _BY_TARGET[target.name, target.item] = (operator, target)
    return operator


def unregister_operator(name: str, *, missing_ok: bool = False) -> None:
    """Forget an operator: nodes captured later with its targets are ``"unknown"`` or decomposed."""
    if name not in _BY_NAME:
        if missing_ok:
            return
        raise UnknownNameError("operator", name, _BY_NAME)
    old = _BY_NAME.pop(name)
    for target in old.targets:
        _BY_TARGET.pop((target.name, target.item), None)


def operator(name: str) -> Operator:
    """The registered operator of this name."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise UnknownNameError("operator", name, _BY_NAME) from None


def operator_names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(_BY_NAME))


def operators() -> tuple[Operator, ...]:
    """Every registered operator, by name."""
    return tuple(_BY_NAME[name] for name in sorted(_BY_NAME))


def registered_targets() -> frozenset[str]:
    """Every captured function that some operator stands for."""
    return frozenset(target for target, _ in _BY_TARGET)


def find_operator(target: str, item: int | None = None) -> tuple[Operator, Target] | None:
    """The operator that a captured function (or one item of what it returns) means, if any."""
    return _BY_TARGET.get((target, item))


def register_all(table: Iterable[Operator]) -> None:
    """Register every operator of one family's table."""
    for entry in table:
        register_operator(entry)


def required(tensors: Sequence[Any], index: int) -> Any:
    """A tensor argument that must be there."""
    value = tensors[index]
    if value is None:
        raise InvalidValueError(f"Tensor argument {index} is required and absent.")
    return value


def calling(function: Callable[..., Any], *names: str) -> Callable[[Node, Sequence[Any]], Any]:
    """What computes ``function(*operands, *attributes)``, the attributes by these names."""
    return lambda node, tensors: function(*tensors, *(node.attributes[name] for name in names))


def operand(node: Node, tensors: Sequence[Any], index: int, name: str) -> Any:
    """A tensor argument, or the number that stands in its place among the attributes."""
    value = tensors[index] if index < len(tensors) else None
    return node.attributes[name] if value is None else value
