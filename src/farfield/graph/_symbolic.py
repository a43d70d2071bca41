"""Capture through ``torch.fx``, where export fails: symbolic tracing, then the calls it found run once.

Symbolic tracing refuses control flow that depends on values, so running the graph it returns on the example
follows the only path there is; sizes become the example's.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from farfield.graph._lower import Lowering
from farfield.graph._node import InputKind
from farfield.graph._prepare import quiet
from farfield.graph._structure import leaf_names, tensor_leaves

__all__ = ["trace_model"]


def trace_model(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], kinds: Mapping[str, InputKind]
) -> tuple[Lowering, list[str]]:
    """Trace a model with ``torch.fx`` and turn what it calls into nodes.

    Returns
    -------
    tuple
        The nodes collected, and the names of those that are returned.
    """
    with quiet():
        graph = fx.symbolic_trace(model)
        leaves, structure = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        found: dict[str, Any] = {}

        def run(*given: Tensor) -> list[Any]:
            rest = iter(given)
            filled = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            positional, named = tree_unflatten(filled, structure)
            with fx.traceback.preserve_node_meta():
                result = fx.Interpreter(graph).run(*_in_order(graph, positional, named))
            values, found["structure"] = tree_flatten(result)
            return values

        traced = make_fx(run, tracing_mode="real", pre_dispatch=True)(*tensors)
        if _writes(traced):
            traced = make_fx(torch.func.functionalize(run, remove="mutations"), tracing_mode="real")(*tensors)
    placeholders = [str(node.target).lstrip("*") for node in graph.graph.nodes if node.op == "placeholder"]
    named = {**dict(zip(placeholders, args, strict=False)), **kwargs}
    names = [name for key, value in named.items() for name, _ in tensor_leaves(key, value)]
    return _lower(model, traced, names, found["structure"], kinds)


def _in_order(graph: fx.GraphModule, positional: Any, named: Any) -> list[Any]:
    """Values for the placeholders, ``None`` for defaults that the example doesn't give."""
    rest = iter(positional)
    values = []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            default = node.args[0] if node.args else None
            values.append(named[node.target] if node.target in named else next(rest, default))
    return values


def _writes(graph: fx.GraphModule) -> bool:
    return any(
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target._schema.is_mutable
        for node in graph.graph.nodes
    )


def _lower(
    model: nn.Module, traced: fx.GraphModule, names: list[str], structure: Any, kinds: Mapping[str, InputKind]
) -> tuple[Lowering, list[str]]:
    known = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    lowering = Lowering(kinds)
    outputs: list[str] = []
    given = iter(names)
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            node._rename(next(given))  # unlike an assignment, keeps names unique
            lowering.add_input(node, node.meta["val"])
        elif node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(traced)
            lowering.add_constant(node, value, known.get(id(value), str(node.target)))
        elif node.op == "call_function":
            lowering.add_call(node)
        elif node.op == "output":
            values = list(node.args[0]) if isinstance(node.args[0], tuple | list) else [node.args[0]]
            labels = leaf_names("output", structure, len(values))
            outputs = [
                lowering.add_output(value, label)
                for value, label in zip(values, labels, strict=True)
                if lowering.is_tensor(value)
            ]
    return lowering, outputs
