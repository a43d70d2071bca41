"""Capture through ``torch.export``, decomposed as far as the operators nobody has registered."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind as Kind
from torch.export.graph_signature import OutputKind
from torch.fx import Graph
from torch.utils._pytree import tree_leaves, tree_map

from farfield.graph._decompositions import decomposition_table
from farfield.graph._lower import Lowering
from farfield.graph._node import InputKind
from farfield.graph._place import module_of
from farfield.graph._prepare import quiet
from farfield.graph._structure import leaf_names
from farfield.graph._take_apart import taken_apart
from farfield.graph.operators import registered_targets

__all__ = ["export_model", "exported_modules", "lower_exported"]


def export_model(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, dynamic_batch: bool
) -> ExportedProgram:
    """Export, with the first axis of every tensor input dynamic if asked and if the model allows it.

    An axis that the model ties to a number (a weight's size, a batch written into ``forward``) stays fixed;
    where export refuses dynamic axes altogether, all sizes are the example's.
    """
    with quiet():
        if dynamic_batch:
            bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
            shapes = {name: tree_map(_batch_axis, value) for name, value in bound.items()}
            with _one_is_a_size_like_any_other(args, kwargs):
                try:
                    return torch.export.export(
                        model, args, kwargs or None, dynamic_shapes=shapes, strict=False
                    )
                except (
                    Exception
                ):  # torch raises a dozen kinds; the attempt below reports what is really wrong
                    pass
        return torch.export.export(model, args, kwargs or None, strict=False)


def _batch_axis(leaf: Any) -> Any:
    return {0: Dim.AUTO} if isinstance(leaf, Tensor) and leaf.ndim else None


@contextmanager
def _one_is_a_size_like_any_other(args: Any, kwargs: Any) -> Iterator[None]:
    """Keep torch from fixing a batch of one: it reads length 1 as 'broadcasts' unless told otherwise."""
    ones = any(
        isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] == 1 for leaf in tree_leaves((args, kwargs))
    )
    from torch.fx.experimental import _config

    if not ones or not hasattr(_config, "backed_size_oblivious"):
        yield
        return
    patch: Any = getattr(_config, "patch", None)
    with patch(backed_size_oblivious=True):
        yield


def lower_exported(
    exported: ExportedProgram, kinds: Mapping[str, InputKind], *, decompose: bool | None = None
) -> tuple[Lowering, list[str]]:
    """Turn an exported program into nodes, decomposing it first where that is needed.

    Parameters
    ----------
    exported
        The program; not changed.
    kinds
        What the caller says of some inputs.
    decompose
        ``None``: what is not registered, and the whole program if some call writes into a tensor.

    Returns
    -------
    tuple
        The nodes collected, and the names of those that are returned.
    """
    graph = exported.graph
    if decompose is not False:
        exported, graph = _decomposed(exported, whole=bool(decompose))
    specs = {
        spec.arg.name: spec for spec in exported.graph_signature.input_specs if hasattr(spec.arg, "name")
    }
    lowering = Lowering(kinds)
    outputs: list[str] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            _placeholder(exported, lowering, node, specs.get(node.name))
        elif node.op == "call_function":
            lowering.add_call(node)
        elif node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(exported.graph_module)
            if isinstance(value, Tensor):
                lowering.add_constant(node, value, str(node.target))
            else:
                lowering.skip(node, value)
        elif node.op == "output":
            outputs = _outputs(exported, lowering, node.args[0])
    return lowering, outputs


def _decomposed(exported: ExportedProgram, *, whole: bool) -> tuple[ExportedProgram, Graph]:
    """The program and a graph of registered calls: call by call where that does, else traced again as a whole."""
    with quiet():
        if not whole:
            try:
                return exported, taken_apart(exported, registered_targets())
            except Exception:  # a call that writes, or whatever tracing a piece of it ran into
                pass
        exported = exported.run_decompositions(decomposition_table())
        return exported, exported.graph


def exported_modules(exported: ExportedProgram) -> dict[str, str]:
    """Every module path an exported program lists → class name (``""`` for one that was never called)."""
    modules = {entry.fqn: "" for entry in exported.module_call_graph}
    for node in exported.graph.nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            name, label = module_of({"nn_module_stack": {"": (path, kind)}})
            modules[name] = label
    return modules


def _placeholder(exported: ExportedProgram, lowering: Lowering, node: Any, spec: Any) -> None:
    kind = spec.kind if spec is not None else None
    if kind == Kind.USER_INPUT and isinstance(node.meta.get("val"), Tensor):
        lowering.add_input(node, node.meta["val"])
    elif kind in (Kind.PARAMETER, Kind.BUFFER, Kind.CONSTANT_TENSOR):
        tensor = exported.state_dict.get(spec.target)
        lowering.add_constant(
            node, exported.constants[spec.target] if tensor is None else tensor, spec.target
        )
    else:
        lowering.skip(node, node.meta.get("val"))


def _outputs(exported: ExportedProgram, lowering: Lowering, returned: Any) -> list[str]:
    user = []
    for spec, value in zip(exported.graph_signature.output_specs, returned, strict=True):
        if spec.kind == OutputKind.USER_OUTPUT:
            user.append(value)
        elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            lowering.unseen.append(
                f"Each call overwrites {spec.target!r}; the program is one call from its present value."
            )
    labels = leaf_names("output", exported.call_spec.out_spec, len(user))
    return [
        lowering.add_output(value, label)
        for value, label in zip(user, labels, strict=True)
        if lowering.is_tensor(value)
    ]
