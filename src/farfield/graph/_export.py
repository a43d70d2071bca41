"""Capture through ``torch.export``, decomposed as far as the operators nobody has registered."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind as Kind
from torch.export.graph_signature import OutputKind, TensorArgument
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map, tree_unflatten

from farfield.graph._lower import Lowering
from farfield.graph._node import InputKind
from farfield.graph.operators import registered_targets

__all__ = ["export_model", "lower_exported"]


def export_model(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, dynamic_batch: bool
) -> ExportedProgram:
    """Export with the first axis of every tensor input dynamic, if asked and if the model allows it."""
    shapes: Any = None
    if dynamic_batch:
        shapes = tree_map(_batch_axis, (args, kwargs))
        names = list(kwargs)
        shapes = (*shapes[0], *(shapes[1][k] for k in names)) if not names else _by_name(model, shapes)
    with _quiet():
        return torch.export.export(model, args, kwargs or None, dynamic_shapes=shapes, strict=False)


def _batch_axis(leaf: Any) -> Any:
    return {0: Dim.AUTO} if isinstance(leaf, Tensor) and leaf.ndim else None


def _by_name(model: nn.Module, shapes: Any) -> dict[str, Any]:
    import inspect

    positional, named = shapes
    parameters = list(inspect.signature(model.forward).parameters)
    return {**dict(zip(parameters, positional, strict=False)), **named}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch says about its own internals while it traces; the user can do nothing about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def lower_exported(exported: ExportedProgram, kinds: Mapping[str, InputKind]) -> tuple[Lowering, list[str]]:
    """Decompose an exported program and turn it into nodes.

    The table of decompositions is torch's own without the targets of registered operators, so that what
    farfield knows natively stays whole.
    """
    known = registered_targets()
    with _quiet():
        table = torch.export.default_decompositions()
        for key in list(table.keys()):
            if str(key) in known:
                del table[key]
        exported = exported.run_decompositions(table)
    signature = exported.graph_signature
    specs = {spec.arg.name: spec for spec in signature.input_specs if hasattr(spec.arg, "name")}
    lowering = Lowering(kinds)
    outputs: list[str] = []
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            spec = specs.get(node.name)
            kind = spec.kind if spec is not None else None
            if kind == Kind.USER_INPUT and isinstance(node.meta.get("val"), Tensor):
                lowering.add_input(node, node.meta["val"])
            elif kind in (Kind.PARAMETER, Kind.BUFFER, Kind.CONSTANT_TENSOR):
                assert spec is not None
                assert spec.target is not None
                lowering.add_constant(node, _constant(exported, spec.target), spec.target)
            else:
                lowering.skip(node, node.meta.get("val"))
        elif node.op == "call_function":
            lowering.add_call(node)
        elif node.op == "get_attr":
            value = _attribute(exported.graph_module, str(node.target))
            if isinstance(value, Tensor):
                lowering.add_constant(node, value, str(node.target))
            else:
                lowering.skip(node, value)
        elif node.op == "output":
            outputs = _outputs(exported, lowering, node.args[0])
    return lowering, outputs


def _constant(exported: ExportedProgram, name: str) -> Tensor:
    tensor = exported.state_dict.get(name)
    return exported.constants[name] if tensor is None else tensor


def _attribute(root: nn.Module, path: str) -> Any:
    value: Any = root
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _outputs(exported: ExportedProgram, lowering: Lowering, returned: Any) -> list[str]:
    signature = exported.graph_signature
    user = []
    for spec, value in zip(signature.output_specs, returned, strict=True):
        if spec.kind == OutputKind.USER_OUTPUT:
            user.append(value)
        elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            lowering.unseen.append(
                f"{spec.target} is overwritten by each call; the program describes one call from its present value."
            )
        assert isinstance(spec.arg, TensorArgument) or value is None or spec.kind == OutputKind.USER_OUTPUT
    labels = _labels(exported, len(user))
    return [
        lowering.add_output(value, label)
        for value, label in zip(user, labels, strict=True)
        if lowering.is_tensor(value)
    ]


def _labels(exported: ExportedProgram, count: int) -> list[str]:
    """``output``, ``output_1``, ``output_logits``: the path of each leaf in what the model returns."""
    tree = tree_unflatten(list(range(count)), exported.call_spec.out_spec)
    leaves, _ = tree_flatten_with_path(tree)
    labels = {}
    for path, index in leaves:
        text = keystr(path)
        words = "".join(c if c.isalnum() else " " for c in text).split()
        labels[index] = "_".join(("output", *words))
    return [labels.get(i, f"output_{i}") for i in range(count)]
