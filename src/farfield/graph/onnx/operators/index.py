"""Entries picked and placed by index."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from farfield.graph.onnx._table import onnx_operator
from farfield.graph.onnx._values import Arguments, IntVector, UnsupportedOnnxError

__all__: list[str] = []


def _wrapped(index: Tensor, size: Any) -> Tensor:
    """Indices counted from the front."""
    index = index.to(torch.int64)
    return torch.where(index < 0, index + size, index)


@onnx_operator("Gather")
def _gather(a: Arguments) -> Any:
    value, axis, literal = a.inputs[0], a.attribute("axis", 0), a.vector(1)
    if isinstance(value, IntVector) and literal is not None:
        return IntVector(tuple(value.values[int(k)] for k in literal.values), literal.scalar, value.dtype)
    x = a.tensor(0)
    if literal is not None and literal.scalar and isinstance(literal.values[0], int):
        return x.select(axis, literal.values[0])
    index = a.tensor(1)
    if literal is not None and all(isinstance(v, int) and v >= 0 for v in literal.values):
        index = index.to(torch.int64)
    elif not (axis == 0 and x.ndim == 2 and x.is_floating_point()):
        index = _wrapped(index, x.shape[axis])
    else:
        return F.embedding(_wrapped(index, x.shape[0]), x)
    axis = axis % x.ndim
    picked = torch.index_select(x, axis, index.reshape(-1))
    return picked.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


@onnx_operator("GatherElements")
def _gather_elements(a: Arguments) -> Any:
    x, axis = a.tensor(0), a.attribute("axis", 0)
    return torch.gather(x, axis, _wrapped(a.tensor(1), x.shape[axis]))


@onnx_operator("GatherND")
def _gather_nd(a: Arguments) -> Any:
    x, index, batch = a.tensor(0), a.tensor(1), a.attribute("batch_dims", 0)
    depth = index.shape[-1]
    if batch == 0:
        return x[tuple(_wrapped(index[..., k], x.shape[k]) for k in range(depth))]
    if not all(isinstance(s, int) for s in x.shape[:batch]):
        raise UnsupportedOnnxError("GatherND with batch axes of open size")
    outer = torch.meshgrid(*[torch.arange(s) for s in x.shape[:batch]], indexing="ij")
    inner = [_wrapped(index[..., k], x.shape[batch + k]) for k in range(depth)]
    spread = [o.reshape(*o.shape, *[1] * (index.ndim - 1 - batch)).expand(inner[0].shape) for o in outer]
    return x[(*spread, *inner)]


_JOINS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@onnx_operator("ScatterElements")
def _scatter_elements(a: Arguments) -> Any:
    x, source, axis = a.tensor(0), a.tensor(2), a.attribute("axis", 0)
    index = _wrapped(a.tensor(1), x.shape[axis])
    join = a.attribute("reduction", "none")
    if join == "none":
        return x.scatter(axis, index, source)
    return x.scatter_reduce(axis, index, source, _JOINS[join], include_self=True)


@onnx_operator("ScatterND")
def _scatter_nd(a: Arguments) -> Any:
    x, index, source = a.tensor(0), a.tensor(1), a.tensor(2)
    join = a.attribute("reduction", "none")
    places = tuple(_wrapped(index[..., k], x.shape[k]) for k in range(index.shape[-1]))
    if join == "none":
        return x.index_put(places, source)
    if join == "add":
        return x.index_put(places, source, accumulate=True)
    depth = len(places)
    if not all(isinstance(s, int) for s in x.shape):
        raise UnsupportedOnnxError(f"ScatterND with reduction={join!r} over an open size")
    flat = torch.zeros_like(places[0])
    for place, size in zip(places, x.shape[:depth], strict=True):
        flat = flat * size + place
    rows = x.reshape(flat.new_zeros(0).numel() + int(torch.Size(x.shape[:depth]).numel()), -1)
    spread = flat.reshape(-1, 1).expand(-1, rows.shape[1])
    joined = rows.scatter_reduce(0, spread, source.reshape(spread.shape), _JOINS[join], include_self=True)
    return joined.reshape(x.shape)


@onnx_operator("OneHot")
def _one_hot(a: Arguments) -> Any:
    depth = a.ints(1) if a.vector(1) is not None else [int((a.numbers(1) or [0])[0])]
    assert depth is not None
    index, values, axis = a.tensor(0), a.tensor(2), a.attribute("axis", -1)
    index = index.to(torch.int64)
    inside = (index >= -depth[0]) & (index < depth[0])
    index = torch.where(index < 0, index + depth[0], index)
    hot = (index.unsqueeze(-1) == torch.arange(depth[0])) & inside.unsqueeze(-1)
    return torch.where(hot, values[1], values[0]).movedim(-1, axis)


@onnx_operator("Compress")
def _compress(a: Arguments) -> Any:
    literal, axis = a.literals[1], a.attribute("axis")
    if literal is None:
        raise UnsupportedOnnxError("the condition of Compress depends on data")
    kept = torch.tensor([k for k, keep in enumerate(literal.reshape(-1)) if keep], dtype=torch.int64)
    x = a.tensor(0)
    return torch.index_select(x.reshape(-1), 0, kept) if axis is None else torch.index_select(x, axis, kept)
