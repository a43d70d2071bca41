"""Names for the leaves of what a model takes and returns: nested tuples, dictionaries, records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import SUPPORTED_NODES, tree_flatten, tree_unflatten

__all__ = ["leaf_names", "opened", "tensor_leaves"]


def leaf_names(stem: str, structure: Any, count: int) -> list[str]:
    """A name per leaf of a flattened structure: ``output``, ``output_1``, ``output_logits``.

    Parameters
    ----------
    stem
        What every name starts with.
    structure
        The ``TreeSpec`` that flattening returned.
    count
        Number of leaves.
    """
    names = [f"{stem}_{index}" for index in range(count)]
    for path, index in _walk(tree_unflatten([_Leaf(i) for i in range(count)], structure)):
        names[index] = "_".join((stem, *path))
    return names


def tensor_leaves(stem: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a nested structure under its name, in flattening order."""
    leaves, structure = tree_flatten(value)
    for name, leaf in zip(leaf_names(stem, structure, len(leaves)), leaves, strict=True):
        if isinstance(leaf, Tensor):
            yield name, leaf


def opened(value: Any) -> Any:
    """The same structure with a dictionary for every record (dataclass) that torch takes for a leaf."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and type(value) not in SUPPORTED_NODES:
        return {field.name: opened(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if type(value) in (list, tuple):
        return type(value)(opened(inner) for inner in value)
    return {key: opened(inner) for key, inner in value.items()} if type(value) is dict else value


@dataclasses.dataclass(frozen=True)
class _Leaf:
    index: int


def _walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(value, _Leaf):
        yield path, value.index
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk(inner, (*path, _word(key)))
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        for key, inner in zip(names, value, strict=True):
            yield from _walk(inner, (*path, _word(key)))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name), (*path, _word(field.name)))


def _word(key: object) -> str:
    return "".join(c if c.isalnum() else "_" for c in str(key))
