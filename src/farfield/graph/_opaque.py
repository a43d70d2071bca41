"""The last resort: a program that says what goes in, what comes out, and that nothing between was seen."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from farfield.graph._node import InputKind, InputSpec, Node
from farfield.graph._program import Program
from farfield.graph._structure import tensor_leaves

__all__ = ["walk_modules"]


def walk_modules(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], kinds: Mapping[str, InputKind]
) -> Program:
    """One ``unknown`` node from the inputs to the outputs.

    The model runs once on the example. ``attributes["executed"]`` of the unknown node lists the modules
    that ran, in order of their first call, so that a module that exists and never runs can still be found.
    """
    executed: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, path=path: executed.append(path))
        for path, module in model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)  # scripted modules take no hooks
    ]
    try:
        result = model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    specs, nodes = [], []
    try:
        given = dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    except ValueError:  # a traced module has no signature
        given = {**{f"input_{i}": value for i, value in enumerate(args)}, **kwargs}
    for key, value in given.items():
        for name, leaf in tensor_leaves(key, value):
            kind: InputKind = "boolean" if leaf.dtype == torch.bool else "integer"
            kind = "real" if leaf.dtype.is_floating_point or leaf.dtype.is_complex else kind
            specs.append(InputSpec(name, tuple(leaf.shape), leaf.dtype, kinds.get(name, kind)))
            nodes.append(
                Node(name, "input", "input", shape=tuple(leaf.shape), dtype=leaf.dtype, role="input")
            )
    inputs = tuple(spec.name for spec in specs)
    outputs = []
    for name, leaf in tensor_leaves("output", result):
        body = Node(
            f"{name}__unseen",
            "unknown",
            type(model).__name__,
            inputs,
            {"executed": tuple(dict.fromkeys(executed))},
            tuple(leaf.shape),
            leaf.dtype,
            module_type=type(model).__name__,
        )
        end = Node(name, "identity", "output", (body.name,), {}, body.shape, body.dtype, role="output")
        nodes.extend((body, end))
        outputs.append(name)
    return Program(
        nodes=tuple(nodes),
        inputs=tuple(specs),
        outputs=tuple(outputs),
        capture="modules",
        unseen=("Nothing between the inputs and the outputs was seen: only which modules exist and ran.",),
        modules={path: type(module).__name__ for path, module in model.named_modules()},
    )
