"""Calls that nobody registered, each replaced by what torch makes it of, the rest of the graph as it is."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from farfield.graph._decompositions import own_decomposition, single_decompositions
from farfield.graph._lower import target_name

__all__ = ["NotLocal", "strangers", "taken_apart"]


class NotLocal(Exception):  # noqa: N818 - a turn in the road, not an error
    """The graph can only be decomposed as a whole: a call writes into a tensor or holds a graph of its own."""


def strangers(graph: fx.Graph, known: Collection[str]) -> set[fx.Node]:
    """The calls that are not registered.

    Raises
    ------
    NotLocal
        If a call writes into a tensor, or is no operator of torch's.
    """
    found = set()
    for node in graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            raise NotLocal
        schema, name = node.target._schema, target_name(node.target)
        if schema.is_mutable and name != "aten.detach_.default":  # which changes no value
            raise NotLocal
        if not (name in known or name.startswith("aten.sym_") or not schema.returns):
            found.add(node)
    return found


def taken_apart(exported: ExportedProgram, known: Collection[str]) -> fx.Graph:
    """An exported program's graph in which every call is registered, or is one that torch can't decompose.

    ``ExportedProgram.run_decompositions`` traces the whole program again, and looks through all of torch's operators
    before: half a second for a program of three calls. Here only what is not registered is traced.

    Raises
    ------
    NotLocal
        If that does not do.
    """
    whole: fx.Graph = exported.graph
    foreign = strangers(whole, known)
    if not foreign:
        return whole
    table = single_decompositions()
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in whole.nodes:
        if node in foreign:
            values[node] = _inlined(graph, node, table, values)
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
            if node.op == "placeholder":
                values[node].name = node.name  # as the signature has it, even where Python uses the word
    return graph


def _inlined(graph: fx.Graph, node: fx.Node, table: dict[Any, Any], values: dict[fx.Node, fx.Node]) -> Any:
    """What a call is made of, written into a graph; the node that holds its value (a tuple of them for several)."""
    leaves, layout = tree_flatten((node.args, node.kwargs), is_leaf=lambda leaf: isinstance(leaf, fx.Node))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, fx.Node)]
    examples = [leaves[k].meta.get("val") for k in places]
    if not places or not all(isinstance(value, Tensor) for value in examples):
        raise NotLocal

    function: Any = own_decomposition(node.target) or node.target

    def call(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for k, tensor in zip(places, tensors, strict=True):
            filled[k] = tensor
        args, kwargs = tree_unflatten(filled, layout)
        return function(*args, **kwargs)

    mode = detect_fake_mode(examples)
    if mode is None:
        raise NotLocal
    with torch.no_grad(), mode:
        inner = make_fx(call, decomposition_table=table, tracing_mode="real")(*examples).graph
    strangers(inner, ())  # refuses what writes
    copies: dict[fx.Node, fx.Node] = {}
    given = iter(places)
    result: Any = None
    for step in inner.nodes:
        if step.op == "placeholder":
            copies[step] = values[leaves[next(given)]]
        elif step.op == "output":
            result = step.args[0]
        elif step.op == "call_function":
            copies[step] = graph.node_copy(step, copies.__getitem__)
            for key in ("nn_module_stack", "stack_trace", "source_fn_stack"):
                if key in node.meta:
                    copies[step].meta[key] = node.meta[key]
        else:
            raise NotLocal
    if not isinstance(result, fx.Node):
        raise NotLocal
    return copies[result]
