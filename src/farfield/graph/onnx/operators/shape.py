"""Shapes: what moves entries without changing them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from farfield.graph.onnx._table import onnx_operator
from farfield.graph.onnx._values import Arguments, IntVector, UnsupportedOnnxError

__all__: list[str] = []

MOST_PLACES = 1 << 20
"""Entries along an axis that is mirrored; more are not an image."""


@onnx_operator("Shape")
def _shape(a: Arguments) -> Any:
    value = a.inputs[0]
    if isinstance(value, IntVector):
        sizes: tuple[Any, ...] = () if value.scalar else (len(value.values),)
    else:
        sizes = tuple(a.tensor(0).shape)
    end = a.attribute("end")
    return IntVector(sizes[a.attribute("start", 0) : len(sizes) if end is None else end])


@onnx_operator("Size")
def _size(a: Arguments) -> Any:
    return IntVector((math.prod(a.tensor(0).shape),), True)


@onnx_operator("Reshape")
def _reshape(a: Arguments) -> Any:
    sizes = a.ints(1)
    assert sizes is not None
    value = a.inputs[0]
    if isinstance(value, IntVector) and len(sizes) <= 1:
        return IntVector(value.values, not sizes, value.dtype)
    x = a.tensor(0)
    if not a.attribute("allowzero", 0):
        sizes = [x.shape[k] if isinstance(s, int) and s == 0 else s for k, s in enumerate(sizes)]
    return x.reshape(sizes)


@onnx_operator("Flatten")
def _flatten(a: Arguments) -> Any:
    x, axis = a.tensor(0), a.attribute("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    if axis == 1 and x.ndim >= 1:
        return torch.flatten(x, 1) if x.ndim > 1 else x.unsqueeze(-1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@onnx_operator("Transpose")
def _transpose(a: Arguments) -> Any:
    x = a.tensor(0)
    return x.permute(a.attribute("perm") or list(range(x.ndim))[::-1])


@onnx_operator("Squeeze")
def _squeeze(a: Arguments) -> Any:
    axes = a.axes(1, 13)
    value = a.inputs[0]
    if isinstance(value, IntVector) and len(value.values) == 1 and not value.scalar:
        return IntVector(value.values, True, value.dtype)
    x = a.tensor(0)
    if axes is None:
        if not all(isinstance(s, int) for s in x.shape):
            axes = [k for k, s in enumerate(x.shape) if isinstance(s, int) and s == 1]
        else:
            return x.squeeze()
    return x.squeeze(tuple(axes))


@onnx_operator("Unsqueeze")
def _unsqueeze(a: Arguments) -> Any:
    axes = a.axes(1, 13)
    assert axes is not None
    value = a.inputs[0]
    if isinstance(value, IntVector) and value.scalar and len(axes) == 1:
        return IntVector(value.values, False, value.dtype)
    x = a.tensor(0)
    rank = x.ndim + len(axes)
    for axis in sorted(k % rank for k in axes):
        x = x.unsqueeze(axis)
    return x


@onnx_operator("Concat")
def _concat(a: Arguments) -> Any:
    known = a.vectors()
    if known is not None and not any(v.scalar for v in known):
        return IntVector(tuple(v for part in known for v in part.values), False, known[0].dtype)
    return torch.cat(a.tensors(), a.attribute("axis"))


@onnx_operator("Split")
def _split(a: Arguments) -> Any:
    axis = a.attribute("axis", 0)
    sizes = a.attribute("split") or a.ints(1)
    value = a.inputs[0]
    length = len(value.values) if isinstance(value, IntVector) else a.tensor(0).shape[axis]
    if sizes is None:
        count = a.attribute("num_outputs", a.outputs)
        if not isinstance(length, int):
            raise UnsupportedOnnxError("Split of an open size into equal parts")
        piece = -(-length // count)
        sizes = [piece] * (length // piece) + ([length % piece] if length % piece else [])
        sizes += [0] * (count - len(sizes))
    if isinstance(value, IntVector):
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
        return tuple(IntVector(value.values[e - s : e]) for s, e in zip(sizes, ends, strict=True))
    return tuple(torch.split(a.tensor(0), sizes, axis))


@onnx_operator("Slice")
def _slice(a: Arguments) -> Any:
    starts, ends, axes = a.attribute("starts"), a.attribute("ends"), a.attribute("axes")
    if a.opset >= 10:  # they were attributes before
        starts, ends, axes = a.ints(1), a.ints(2), a.ints(3)
    assert starts is not None
    assert ends is not None
    axes = list(range(len(starts))) if axes is None else axes
    steps = a.ints(4, [1] * len(starts)) or []
    value = a.inputs[0]
    if isinstance(value, IntVector) and all(isinstance(v, int) for v in (*starts, *ends, *steps)):
        return IntVector(value.values[_python_slice(starts[0], ends[0], steps[0])], False, value.dtype)
    x = a.tensor(0)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0:
            x = _backwards(x, start, end, axis, step)
        else:
            cut = [slice(None)] * x.ndim
            cut[axis] = slice(start, None if isinstance(end, int) and end >= 2**31 - 1 else end, step)
            x = x[tuple(cut)]
    return x


def _python_slice(start: int, end: int, step: int) -> slice:
    if step < 0 and end <= -(2**31) + 1:
        return slice(start, None, step)
    return slice(start, end, step)


def _backwards(x: Tensor, start: Any, end: Any, axis: int, step: int) -> Tensor:
    size = x.shape[axis]
    if not all(isinstance(v, int) for v in (start, end, size)):
        raise UnsupportedOnnxError("a backward Slice over an open size")
    indices = list(range(size))[_python_slice(start, end, step)]
    return torch.index_select(x, axis, torch.tensor(indices, dtype=torch.int64))


@onnx_operator("Expand")
def _expand(a: Arguments) -> Any:
    x, sizes = a.tensor(0), a.ints(1) or []
    rank = max(x.ndim, len(sizes))
    own = [1] * (rank - x.ndim) + list(x.shape)
    asked = [1] * (rank - len(sizes)) + sizes
    wanted = [o if isinstance(s, int) and s in (1, -1) else s for o, s in zip(own, asked, strict=True)]
    return x.expand(wanted)


@onnx_operator("Tile")
def _tile(a: Arguments) -> Any:
    return a.tensor(0).repeat(a.ints(1) or [])


@onnx_operator("Pad")
def _pad(a: Arguments) -> Any:
    old = a.opset < 11  # attributes then
    x, pads = a.tensor(0), a.attribute("pads") if old else a.ints(1) or []
    axes = a.ints(3, list(range(x.ndim))) or []
    mode = a.attribute("mode", "constant")
    count = len(axes)
    before, after = [0] * x.ndim, [0] * x.ndim
    for k, axis in enumerate(axes):
        before[axis], after[axis] = pads[k], pads[count + k]
    if mode == "constant":
        fill = [a.attribute("value", 0.0)] if old else a.numbers(2)
        value = fill[0] if fill else 0.0
        if x.dtype == torch.bool:
            flat = [p for k in reversed(range(x.ndim)) for p in (before[k], after[k])]
            return F.pad(x.to(torch.uint8), flat, value=value).to(torch.bool)
        flat = [p for k in reversed(range(x.ndim)) for p in (before[k], after[k])]
        while len(flat) > 2 and flat[-2:] == [0, 0]:
            flat = flat[:-2]
        return F.pad(x, flat, value=value if x.is_floating_point() else int(value))
    for axis in range(x.ndim):
        if before[axis] or after[axis]:
            x = _mirrored(x, axis, before[axis], after[axis], mode)
    return x


def _mirrored(x: Tensor, axis: int, before: Any, after: Any, mode: str) -> Tensor:
    size = x.shape[axis]
    if not all(isinstance(v, int) for v in (size, before, after)):
        raise UnsupportedOnnxError(f"Pad with mode={mode!r} over an open size")
    if before + size + after > MOST_PLACES:
        raise UnsupportedOnnxError(f"Pad to {before + size + after:,} entries along an axis")
    indices = []
    for k in range(-before, size + after):
        if mode == "edge":
            k = min(max(k, 0), size - 1)
        elif mode == "wrap":
            k = k % size
        elif mode == "reflect":
            period = max(1, 2 * (size - 1))
            k = k % period
            k = k if k < size else period - k
        else:
            raise UnsupportedOnnxError(f"Pad with mode={mode!r}")
        indices.append(k)
    return torch.index_select(x, axis, torch.tensor(indices, dtype=torch.int64))


@onnx_operator("DepthToSpace")
def _depth_to_space(a: Arguments) -> Any:
    x, block = a.tensor(0), a.attribute("blocksize")
    n, c, h, w = x.shape
    if a.attribute("mode", "DCR") == "DCR":
        parts = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // block**2, h * block, w * block)


@onnx_operator("SpaceToDepth")
def _space_to_depth(a: Arguments) -> Any:
    x, block = a.tensor(0), a.attribute("blocksize")
    n, c, h, w = x.shape
    parts = x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(n, c * block**2, h // block, w // block)


@onnx_operator("CenterCropPad")
def _center_crop_pad(a: Arguments) -> Any:
    x, sizes = a.tensor(0), a.ints(1) or []
    axes = a.attribute("axes") or list(range(x.ndim))
    for axis, wanted in zip(axes, sizes, strict=True):
        size = x.shape[axis]
        if not isinstance(size, int) or not isinstance(wanted, int):
            raise UnsupportedOnnxError("CenterCropPad over an open size")
        if wanted <= size:
            x = x.narrow(axis, (size - wanted) // 2, wanted)
        else:
            before = (wanted - size) // 2
            flat = [0, 0] * (x.ndim - 1 - axis % x.ndim) + [before, wanted - size - before]
            x = F.pad(x, flat)
    return x


@onnx_operator("Trilu")
def _trilu(a: Arguments) -> Any:
    x = a.tensor(0)
    k = (a.ints(1, [0]) or [0])[0]
    return torch.triu(x, k) if a.attribute("upper", 1) else torch.tril(x, k)


@onnx_operator("ReverseSequence")
def _reverse_sequence(a: Arguments) -> Any:
    x, lengths = a.tensor(0), a.tensor(1)
    time, batch = a.attribute("time_axis", 0), a.attribute("batch_axis", 1)
    moved = x.movedim((batch, time), (0, 1))
    places = torch.arange(moved.shape[1])
    back = lengths[:, None] - 1 - places[None, :]
    index = torch.where(back >= 0, back, places[None, :].expand(back.shape))
    index = index.reshape(*index.shape, *[1] * (x.ndim - 2)).expand(moved.shape)
    return torch.gather(moved, 1, index).movedim((0, 1), (batch, time))
