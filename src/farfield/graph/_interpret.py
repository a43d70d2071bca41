"""The reference interpreter: every node through its operator's ``compute``, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from farfield.errors import InvalidValueError
from farfield.graph._node import InputSpec, Node
from farfield.graph._rules import walk
from farfield.graph._size import Dimension, SymbolicSize, resolve, symbols_in
from farfield.graph._unknown import compute_unknown
from farfield.graph._wide import is_narrow, linear_in_blocks
from farfield.graph.operators import operator

__all__ = ["check_shape", "compute_node", "interpret", "learn_sizes", "resolved"]


def compute_node(
    node: Node, tensors: Sequence[Any], sizes: Mapping[str, int], dtype: torch.dtype | None = None
) -> Any:
    """The value of one operation.

    Parameters
    ----------
    node
        The operation; symbolic sizes among its attributes are replaced by their numbers.
    tensors
        Values of its inputs, ``None`` where absent.
    sizes
        Symbol → number.
    dtype
        Floating type that takes the place of every floating type the attributes name.
    """
    node = resolved(node, sizes, dtype)
    if node.op == "unknown":
        return compute_unknown(node, tensors)
    return operator(node.op).compute(node, tensors)


def resolved(node: Node, sizes: Mapping[str, int], dtype: torch.dtype | None = None) -> Node:
    """The node with numbers for its dynamic sizes, and ``dtype`` for every floating type it names."""
    attributes = node.attributes
    if any(symbols_in(v) for v in attributes.values()):
        attributes = {k: resolve(v, sizes) for k, v in attributes.items()}
    if dtype is not None:
        attributes = {k: _retyped(v, dtype) for k, v in attributes.items()}
    if any(symbols_in(d) for d in node.shape):
        node = replace(node, shape=tuple(_known(d, sizes) for d in node.shape))
    return node if attributes is node.attributes else replace(node, attributes=attributes)


def interpret(
    nodes: Sequence[Node],
    specs: Sequence[InputSpec],
    constants: Mapping[str, Tensor],
    inputs: Sequence[Any],
    *,
    dtype: torch.dtype | None,
    keep: frozenset[str] | None,
) -> dict[str, Any]:
    """Every node's value; see :meth:`farfield.graph.Program.evaluate`."""
    leaves = [leaf for leaf in tree_leaves(list(inputs)) if isinstance(leaf, Tensor)]
    if len(leaves) != len(specs):
        wanted = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in specs)
        raise InvalidValueError(
            f"The program takes {len(specs)} tensors ({wanted}) and received {len(leaves)}."
        )
    sizes: dict[str, int] = {}
    given: dict[str, Tensor] = {}
    for spec, leaf in zip(specs, leaves, strict=True):
        check_shape(spec, tuple(leaf.shape), sizes)
        given[spec.name] = leaf

    def step(node: Node, tensors: tuple[Any, ...]) -> Any:
        if node.role == "input":
            return cast(given[node.name], dtype)
        if node.role == "constant":
            return constants[node.name]
        # Constants are cast where they are used and let go again: in float64 they are twice the model.
        narrow = node.op == "linear" and is_narrow(tensors[1], dtype)
        tensors = tuple(
            cast(t, dtype) if isinstance(t, Tensor) and not (narrow and place == 1) else t
            for place, t in enumerate(tensors)
        )
        value = _linear(*tensors) if narrow else compute_node(node, tensors, sizes, dtype)
        learn_sizes(node.shape, value, sizes)
        return value

    with torch.no_grad():
        values = walk(nodes, step, keep=keep)
        return {name: cast(v, dtype) if name in constants else v for name, v in values.items()}


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    value, _ = linear_in_blocks(x, weight)
    return value if bias is None else value + bias


def cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The tensor in this floating type (or the matching complex one); integers and booleans as they are."""
    if dtype is None:
        return tensor
    if tensor.is_floating_point():
        return tensor.to(dtype)
    return tensor.to(dtype.to_complex()) if tensor.is_complex() else tensor


def _retyped(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.dtype):
        if value.is_floating_point:
            return dtype
        if value.is_complex:
            return dtype.to_complex()
    return value


def _known(size: Dimension, sizes: Mapping[str, int]) -> Dimension:
    if isinstance(size, SymbolicSize) and size.symbols <= set(sizes):
        return int(size.value(sizes))
    return size


def check_shape(spec: InputSpec, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Raise unless a shape is the input's; note the numbers that its dynamic axes take."""
    fits = len(spec.shape) == len(shape)
    for wanted, got in zip(spec.shape, shape, strict=False):
        if isinstance(wanted, SymbolicSize):
            if wanted in wanted.symbols:
                fits = fits and sizes.setdefault(str(wanted), got) == got
        else:
            fits = fits and wanted == got
    if not fits:
        raise InvalidValueError(
            f"Input {spec.name!r} has shape {list(spec.shape)} in this program (equal symbols mean equal sizes) and "
            f"was given {list(shape)}. Capture with an example of the shape you want to evaluate."
        )


def learn_sizes(shape: tuple[Dimension, ...], value: Any, sizes: dict[str, int]) -> None:
    """Note sizes that only running can tell, such as how many entries of a mask are true."""
    found = getattr(value, "shape", ())
    if len(found) == len(shape):
        for wanted, got in zip(shape, found, strict=True):
            if isinstance(wanted, SymbolicSize) and wanted in wanted.symbols:
                sizes.setdefault(str(wanted), int(got))
