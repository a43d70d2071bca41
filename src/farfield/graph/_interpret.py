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
from farfield.graph.operators import operator

__all__ = ["compute_node", "interpret"]


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
    attributes = node.attributes
    if any(symbols_in(v) for v in attributes.values()):
        attributes = {k: resolve(v, sizes) for k, v in attributes.items()}
    if dtype is not None:
        attributes = {k: _retyped(v, dtype) for k, v in attributes.items()}
    if any(symbols_in(d) for d in node.shape):
        node = replace(node, shape=tuple(_known(d, sizes) for d in node.shape))
    if attributes is not node.attributes:
        node = replace(node, attributes=attributes)
    if node.op == "unknown":
        return compute_unknown(node, tensors)
    return operator(node.op).compute(node, tensors)


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
        _check_shape(spec.name, spec.shape, leaf, sizes)
        given[spec.name] = leaf

    def step(node: Node, tensors: tuple[Any, ...]) -> Any:
        if node.role == "input":
            return cast(given[node.name], dtype)
        if node.role == "constant":
            return cast(constants[node.name], dtype)
        value = compute_node(node, tensors, sizes, dtype)
        _learn_sizes(node.shape, value, sizes)
        return value

    with torch.no_grad():
        return walk(nodes, step, keep=keep)


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


def _check_shape(name: str, shape: tuple[Dimension, ...], tensor: Tensor, sizes: dict[str, int]) -> None:
    fits = len(shape) == tensor.ndim
    for wanted, got in zip(shape, tensor.shape, strict=False):
        if isinstance(wanted, SymbolicSize):
            if wanted in wanted.symbols:
                fits = fits and sizes.setdefault(str(wanted), got) == got
        else:
            fits = fits and wanted == got
    if not fits:
        raise InvalidValueError(
            f"Input {name!r} has shape {list(shape)} in this program (equal symbols mean equal sizes) and "
            f"was given {list(tensor.shape)}. Capture with an example of the shape you want to evaluate."
        )


def _learn_sizes(shape: tuple[Dimension, ...], value: Any, sizes: dict[str, int]) -> None:
    """Sizes that only running can tell, such as how many entries of a mask are true."""
    if isinstance(value, Tensor) and value.ndim == len(shape):
        for wanted, got in zip(shape, value.shape, strict=True):
            if isinstance(wanted, SymbolicSize) and wanted in wanted.symbols:
                sizes.setdefault(str(wanted), got)
