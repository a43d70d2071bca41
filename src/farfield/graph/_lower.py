"""From a captured fx graph to nodes: each call bound to the operator it means."""

from __future__ import annotations

import operator as python_operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten, tree_map

from farfield.graph._node import InputKind, InputSpec, Node
from farfield.graph._place import module_of, source_of
from farfield.graph._size import Dimension, size_of
from farfield.graph._unknown import Slot
from farfield.graph.operators import Call, Operator, Reference, Target, find_operator

__all__ = ["Lowering", "target_name"]

# Arguments that say where or how a tensor lies in memory, never what it holds.
_STORAGE = frozenset({"layout", "pin_memory", "memory_format", "non_blocking", "copy", "implicit"})
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def target_name(target: Any) -> str:
    """A captured function's name: ``aten.linear.default``, ``_operator.getitem``, ``cond``."""
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return str(target._name)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}".lstrip(".")


def variant_name(node: fx.Node) -> str:
    """The target's name, with ``#variant`` where one function means two operators."""
    name = target_name(node.target)
    if name == "aten.convolution.default" and node.args[6]:
        return f"{name}#transposed"
    if name == "aten._fft_c2c.default" and not node.args[3]:
        return f"{name}#inverse"
    if "_copy." in name and find_operator(name) is None:
        return name.replace("_copy.", ".")  # what functionalisation calls a view: the same numbers
    return name


def shape_of(value: Any) -> tuple[Dimension, ...]:
    """A (fake) tensor's shape with symbolic axes as text; ``()`` for anything else."""
    return tuple(size_of(s) for s in value.shape) if isinstance(value, Tensor) else ()


@dataclass
class Lowering:
    """Collects nodes while a captured graph is walked; private to the capture and thrown away after it."""

    kinds: Mapping[str, InputKind] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[InputSpec] = field(default_factory=list)
    constants: dict[str, Tensor] = field(default_factory=dict)
    constant_names: dict[str, str] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    _values: dict[fx.Node, Any] = field(default_factory=dict)
    _pending: dict[fx.Node, tuple[str, dict[str, Any]]] = field(default_factory=dict)

    def add_input(self, node: fx.Node, value: Tensor) -> None:
        """A tensor the user passes."""
        kind: InputKind = "real"
        if value.dtype == torch.bool:
            kind = "boolean"
        elif not (value.dtype.is_floating_point or value.dtype.is_complex):
            kind = "integer"
        spec = InputSpec(node.name, shape_of(value), value.dtype, self.kinds.get(node.name, kind))
        self.inputs.append(spec)
        self._define(
            node, Node(node.name, "input", "input", shape=spec.shape, dtype=spec.dtype, role="input")
        )

    def add_constant(self, node: fx.Node, tensor: Tensor, name: str) -> None:
        """A parameter, buffer or literal."""
        plain = tensor.detach()
        self.constants[node.name] = plain if plain.layout == torch.strided else plain.to_dense()
        self.constant_names[node.name] = name
        self._define(
            node,
            Node(
                node.name,
                "constant",
                name,
                shape=tuple(tensor.shape),
                dtype=tensor.dtype,
                role="constant",
                module_path=name.rpartition(".")[0],
            ),
        )

    def skip(self, node: fx.Node, value: Any = None) -> None:
        """A captured value that isn't a tensor: kept as what it is where later calls name it."""
        self._values[node] = value

    def add_output(self, value: fx.Node, name: str) -> str:
        """An ``identity`` of a returned value, under a name that is free."""
        reference = self._values[value]
        taken = {node.name for node in self.nodes}
        unique, count = name, 0
        while unique in taken:
            count += 1
            unique = f"{name}__{count}"
        self.nodes.append(
            Node(
                unique,
                "identity",
                "output",
                (reference.name,),
                shape=reference.shape,
                dtype=reference.dtype,
                role="output",
            )
        )
        return unique

    def is_tensor(self, value: Any) -> bool:
        """Whether a captured value became a node."""
        return isinstance(value, fx.Node) and isinstance(self._values.get(value), Reference)

    def add_call(self, node: fx.Node) -> None:
        """One captured call."""
        value = node.meta.get("val")
        target = variant_name(node)
        if node.target is python_operator.getitem and node.args[0] in self._pending:
            self._add_item(node)
            return
        if isinstance(value, _SYMBOLIC) and not self._depends_on_data(node):
            self._values[node] = size_of(value)
            return
        if value is None and not node.users:
            return  # assertions and range constraints: they return nothing and change nothing
        arguments = self._bound_arguments(node)
        if isinstance(value, tuple | list) and find_operator(target) is None:
            self._pending[node] = (target, arguments)
            return
        found = find_operator(target)
        if found is None or not self._add_operation(node, *found, arguments):
            self._add_unknown(node, target)

    def _add_item(self, node: fx.Node) -> None:
        """``result[i]`` of a call whose i-th result alone has a meaning of its own, or of an unknown call."""
        origin, item = node.args
        assert isinstance(origin, fx.Node)
        assert isinstance(item, int)
        target, arguments = self._pending[origin]
        found = find_operator(target, item)
        if found is not None and self._add_operation(node, *found, arguments):
            return
        if origin not in self._values:
            self._add_unknown(origin, target)
        getitem = find_operator("_operator.getitem")
        assert getitem is not None
        self._add_operation(node, *getitem, {"input": self._values[origin], "index": item})

    def _add_operation(self, node: fx.Node, op: Operator, target: Target, arguments: dict[str, Any]) -> bool:
        """A node of this operator; False, and no node, where the call turns out to be something else."""
        value = node.meta.get("val")
        shape, dtype = shape_of(value), value.dtype if isinstance(value, Tensor) else None
        if isinstance(value, _SYMBOLIC):  # a number read out of a tensor keeps that tensor's type
            dtype = next((v.dtype for v in arguments.values() if isinstance(v, Reference)), None)
        call = Call(target.name, arguments, shape, dtype)
        answer = arguments if target.bind is None else target.bind(call)
        if answer is None:
            return False
        bound = dict(answer)
        inputs: list[str | None] = []
        for name in op.arguments:
            if name.startswith("*"):
                inputs.extend(None if v is None else v.name for v in bound.pop(name[1:], ()))
                continue
            given = bound.get(name)
            if isinstance(given, Reference):
                inputs.append(given.name)
                del bound[name]
            else:
                inputs.append(None)
                if given is None:
                    bound.pop(name, None)
        hidden = _STORAGE if op.family == "create" else _STORAGE | {"device"}
        attributes = {k: v for k, v in bound.items() if k not in hidden}
        if any(isinstance(leaf, Reference) for leaf in tree_flatten(attributes)[0]):
            return False  # a tensor where the operator declares a number: nobody knows what that does
        self._finish(node, op.name, target_name(node.target), tuple(inputs), attributes, shape, dtype)
        return True

    def _add_unknown(self, node: fx.Node, target: str) -> None:
        names: list[str | None] = []

        def slot(value: Any) -> Any:
            if isinstance(value, Reference):
                names.append(value.name)
                return Slot(len(names) - 1)
            return value

        call = tree_map(slot, (self._convert(node.args), self._convert(node.kwargs)))
        value = node.meta.get("val")
        shape, dtype = shape_of(value), value.dtype if isinstance(value, Tensor) else None
        self._finish(node, "unknown", target, tuple(names), {"call": call}, shape, dtype)

    def _finish(
        self,
        node: fx.Node,
        op: str,
        target: str,
        inputs: tuple[str | None, ...],
        attributes: dict[str, Any],
        shape: tuple[Dimension, ...],
        dtype: torch.dtype | None,
    ) -> None:
        path, kind = module_of(node.meta)
        self._define(
            node,
            Node(
                node.name,
                op,
                target,
                inputs,
                attributes,
                shape,
                dtype,
                "operation",
                path,
                kind,
                source_of(node.meta),
            ),
        )

    def _define(self, node: fx.Node, made: Node) -> None:
        self.nodes.append(made)
        self._values[node] = Reference(made.name, made.shape, made.dtype)

    def _bound_arguments(self, node: fx.Node) -> dict[str, Any]:
        """Arguments by schema name with defaults filled in; positions where there is no schema."""
        args, kwargs = self._convert(node.args), self._convert(node.kwargs)
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            names = ("input", "other", "third", "fourth")
            return {**dict(zip(names, args, strict=False)), **kwargs}
        bound: dict[str, Any] = {}
        for index, argument in enumerate(schema.arguments):
            name = "input" if argument.name == "self" else argument.name
            if index < len(args) and not argument.kwarg_only:
                bound[name] = args[index]
            elif argument.name in kwargs:
                bound[name] = kwargs[argument.name]
            else:
                default = argument.default_value
                bound[name] = tuple(default) if isinstance(default, list) else default
        return bound

    def _convert(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            if value in self._values:
                return self._values[value]
            if value in self._pending:
                self._add_unknown(value, self._pending[value][0])
                return self._values[value]
            return None
        if isinstance(value, _SYMBOLIC):
            return size_of(value)
        if isinstance(value, slice):
            return slice(self._convert(value.start), self._convert(value.stop), self._convert(value.step))
        if isinstance(value, tuple | list):
            return tuple(self._convert(v) for v in value)
        if isinstance(value, dict):
            return {k: self._convert(v) for k, v in value.items()}
        return value

    def _depends_on_data(self, node: fx.Node) -> bool:
        """Whether a symbolic number was read out of a tensor (``.item()``) rather than off its shape."""
        if target_name(node.target) in ("aten._local_scalar_dense.default", "aten.item.default"):
            return True
        if target_name(node.target).startswith("aten.sym_"):
            return False
        return any(isinstance(self._values.get(n), Reference) for n in node.all_input_nodes)
