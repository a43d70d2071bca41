"""Images at other sizes and places: every mode of ``Resize`` is a small matrix along each axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from farfield.graph.onnx._table import onnx_operator
from farfield.graph.onnx._values import Arguments, UnsupportedOnnxError

__all__: list[str] = []

MOST_PLACES = 1 << 20
"""Entries along an axis; more are not an image."""


def _place(k: int, size: int, wanted: int, scale: float, mode: str) -> float:
    """Where the k-th new entry lies among the old ones."""
    if mode == "half_pixel":
        return (k + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (k + 0.5) / scale - 0.5 if wanted > 1 else 0.0
    if mode == "align_corners":
        return k * (size - 1) / (wanted - 1) if wanted > 1 else 0.0
    if mode == "asymmetric":
        return k / scale
    if mode == "half_pixel_symmetric":
        return size / 2 * (1 - wanted / (scale * size)) + (k + 0.5) / scale - 0.5
    raise UnsupportedOnnxError(f"Resize with coordinate_transformation_mode={mode!r}")


def _nearest(place: float, mode: str) -> int:
    if mode == "round_prefer_floor":
        return math.ceil(place - 0.5)
    if mode == "round_prefer_ceil":
        return math.floor(place + 0.5)
    return math.floor(place) if mode == "floor" else math.ceil(place)


def _kernel(mode: str, distance: float, a: float) -> float:
    """Weight of an entry at a distance: a hat, or the cubic convolution kernel."""
    d = abs(distance)
    if mode == "linear":
        return max(0.0, 1.0 - d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def _matrix(a: Arguments, places: Sequence[float], size: int, mode: str, scale: float) -> Tensor:
    """New entries × old entries."""
    coefficient, outside = a.attribute("cubic_coeff_a", -0.75), a.attribute("exclude_outside", 0)
    stretch = max(1.0, 1.0 / scale) if a.attribute("antialias", 0) else 1.0
    reach = (1 if mode == "linear" else 2) * stretch
    out = torch.zeros(len(places), size, dtype=torch.float64)
    for row, place in enumerate(places):
        near = range(math.floor(place - reach), math.ceil(place + reach) + 1)
        weights = {k: _kernel(mode, (k - place) / stretch, coefficient) for k in near}
        if outside or stretch > 1.0:
            weights = {k: w for k, w in weights.items() if 0 <= k < size}
            total = sum(weights.values())
            weights = {k: w / total for k, w in weights.items()}
        for k, weight in weights.items():
            out[row, min(max(k, 0), size - 1)] += weight
    return out


def _sizes(a: Arguments, x: Tensor, axes: Sequence[int]) -> tuple[list[int], list[float]]:
    """New sizes and scales of the axes."""
    old = [x.shape[k] for k in axes]
    sizes = a.ints(3) if a.has(3) else None
    if sizes is None:
        scales = a.numbers(2)
        if not scales:
            raise UnsupportedOnnxError("Resize without sizes and scales")
        open_axes = [k for k, s in enumerate(scales) if s != 1.0 and not isinstance(old[k], int)]
        if open_axes:
            raise UnsupportedOnnxError("Resize of an open size")
        return [o if s == 1.0 else math.floor(o * s) for o, s in zip(old, scales, strict=True)], list(scales)
    policy = a.attribute("keep_aspect_ratio_policy", "stretch")
    for o, s in zip(old, sizes, strict=True):
        if o is not s and not (isinstance(o, int) and isinstance(s, int)) and not bool(o == s):
            raise UnsupportedOnnxError("Resize of an open size")
    scales = [1.0 if not isinstance(o, int) else s / o for o, s in zip(old, sizes, strict=True)]
    if policy == "stretch":
        return list(sizes), scales
    one = min(scales) if policy == "not_larger" else max(scales)
    return [math.floor(one * o + 0.5) for o in old], [one] * len(old)


@onnx_operator("Resize")
def _resize(a: Arguments) -> Any:
    x = a.tensor(0)
    axes = [k % x.ndim for k in (a.attribute("axes") or range(x.ndim))]
    mode = a.attribute("mode", "nearest")
    how = a.attribute("coordinate_transformation_mode", "half_pixel")
    sizes, scales = _sizes(a, x, axes)
    for axis, wanted, scale in zip(axes, sizes, scales, strict=True):
        size = x.shape[axis]
        if not isinstance(size, int) or (wanted == size and scale == 1.0):
            continue
        # In single precision, as runtimes compute them: a place in the middle between two entries is one there.
        if wanted > MOST_PLACES:
            raise UnsupportedOnnxError(f"Resize to {wanted:,} entries along an axis")
        places = [float(np.float32(_place(k, size, wanted, scale, how))) for k in range(wanted)]
        if mode == "nearest":
            rounding = a.attribute("nearest_mode", "round_prefer_floor")
            index = [min(max(_nearest(p, rounding), 0), size - 1) for p in places]
            x = torch.index_select(x, axis, torch.tensor(index, dtype=torch.int64))
        else:
            matrix = _matrix(a, places, size, mode, scale).to(x.dtype)
            x = torch.matmul(x.movedim(axis, -1), matrix.t()).movedim(-1, axis)
    return x


@onnx_operator("GridSample")
def _grid_sample(a: Arguments) -> Any:
    names = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
    mode = names.get(a.attribute("mode", "linear"), "bicubic")
    x, grid = a.tensor(0), a.tensor(1)
    padding, corners = a.attribute("padding_mode", "zeros"), bool(a.attribute("align_corners", 0))
    return F.grid_sample(x, grid, mode, padding, corners)


@onnx_operator("AffineGrid")
def _affine_grid(a: Arguments) -> Any:
    sizes = a.ints(1)
    assert sizes is not None
    return F.affine_grid(a.tensor(0), list(sizes), align_corners=bool(a.attribute("align_corners", 0)))


@onnx_operator("Col2Im")
def _col2im(a: Arguments) -> Any:
    x, image, block = a.tensor(0), a.ints(1) or [], a.ints(2) or []
    if len(image) != 2:
        raise UnsupportedOnnxError(f"Col2Im over {len(image)} axes")
    pads = a.attribute("pads") or [0, 0, 0, 0]
    dilations, strides = a.attribute("dilations") or [1, 1], a.attribute("strides") or [1, 1]
    wide = [image[0] + pads[0] + pads[2], image[1] + pads[1] + pads[3]]
    out = F.fold(x, tuple(wide), tuple(block), tuple(dilations), 0, tuple(strides))
    return out[:, :, pads[0] : pads[0] + image[0], pads[1] : pads[1] + image[1]]
