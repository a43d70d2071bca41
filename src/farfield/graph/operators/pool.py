"""Pooling and resampling: averages, maxima and interpolation over spatial axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.nn import functional

from farfield.graph._node import Node
from farfield.graph.operators._bindings import example, real, unit
from farfield.graph.operators._facts import Facts, linear_in
from farfield.graph.operators._registry import Binding, Call, Operator, Target

__all__ = ["OPERATORS"]

_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE: dict[int, Callable[..., Any]] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}
_ADAPTIVE_AVERAGE: dict[int, Callable[..., Any]] = {
    1: functional.adaptive_avg_pool1d,
    2: functional.adaptive_avg_pool2d,
    3: functional.adaptive_avg_pool3d,
}
_ADAPTIVE_MAX: dict[int, Callable[..., Any]] = {
    1: functional.adaptive_max_pool1d,
    2: functional.adaptive_max_pool2d,
    3: functional.adaptive_max_pool3d,
}


def _window(rank: int) -> Binding:
    """One number per spatial axis; the stride is the window where none is given."""

    def bind(call: Call) -> dict[str, Any]:
        out = dict(call.arguments)
        for key in ("kernel_size", "stride", "padding", "dilation", "output_size"):
            given = out.get(key)
            if given is None:
                continue
            given = (given,) if isinstance(given, int) else tuple(given)
            out[key] = given * rank if len(given) == 1 else given
        if "stride" in out and not out["stride"]:
            out["stride"] = out["kernel_size"]
        out["spatial"] = rank
        return out

    return bind


def _max_pool(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return _MAX[a["spatial"]](
        tensors[0], a["kernel_size"], a["stride"], a["padding"], a["dilation"], a["ceil_mode"]
    )


def _avg_pool(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    extra = (a["divisor_override"],) if a["spatial"] > 1 else ()
    return _AVERAGE[a["spatial"]](
        tensors[0],
        a["kernel_size"],
        a["stride"],
        a["padding"],
        a["ceil_mode"],
        a["count_include_pad"],
        *extra,
    )


def _adaptive(table: dict[int, Callable[..., Any]]) -> Callable[[Node, Sequence[Any]], Any]:
    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        return table[node.attributes["spatial"]](tensors[0], node.attributes["output_size"])

    return compute


def _resampling(mode: str, rank: int) -> Binding:
    def bind(call: Call) -> dict[str, Any]:
        a = call.arguments
        factors = a.get("scale_factors")
        if factors is None:
            named = [a.get(key) for key in ("scales_d", "scales_h", "scales_w", "scales")]
            found = tuple(f for f in named if f is not None)
            factors = found if len(found) == rank else None
        return {
            "input": a["input"],
            "mode": mode,
            "size": call.shape[-rank:],
            "scale_factors": None if factors is None else tuple(factors),
            "align_corners": a.get("align_corners"),
        }

    return bind


def _interpolate(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    size, factors = list(a["size"]), a["scale_factors"]
    if factors is None:
        return functional.interpolate(tensors[0], size, mode=a["mode"], align_corners=a["align_corners"])
    # The factor itself, not the ratio of sizes, places the samples where the caller gave a factor.
    return functional.interpolate(
        tensors[0], scale_factor=list(factors), mode=a["mode"], align_corners=a["align_corners"]
    )


def _grid_sample(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    interpolation = ("bilinear", "nearest", "bicubic")[a["interpolation_mode"]]
    padding = ("zeros", "border", "reflection")[a["padding_mode"]]
    return functional.grid_sample(tensors[0], tensors[1], interpolation, padding, a["align_corners"])


def _resampling_facts(node: Node) -> Facts:
    """Copies, averages or signed cubic weights: linear all of them, the last not monotone."""
    return linear_in((0,), monotone=() if node.attributes["mode"] == "bicubic" else (1,))


_MODES = {
    "nearest": ("upsample_nearest", (1, 2, 3)),
    "nearest-exact": ("_upsample_nearest_exact", (1, 2, 3)),
    "linear": ("upsample_linear", (1,)),
    "bilinear": ("upsample_bilinear", (2,)),
    "trilinear": ("upsample_trilinear", (3,)),
    "bicubic": ("upsample_bicubic", (2,)),
}
_X = ("input",)

OPERATORS = (
    Operator(
        "max_pool",
        "pool",
        "largest entry in each window",
        _X,
        (
            *(Target(f"aten.max_pool{n}d.default", _window(n)) for n in (1, 2, 3)),
            *(Target(f"aten.max_pool{n}d_with_indices.default", _window(n), item=0) for n in (2, 3)),
        ),
        _max_pool,
        (
            example(lambda x: functional.max_pool1d(x, 2), real(2, 3, 8)),
            example(lambda x: functional.max_pool2d(x, 3, 2, 1), real(2, 3, 8, 8)),
            example(lambda x: functional.max_pool3d(x, 2), real(2, 3, 4, 4, 4)),
        ),
        facts=Facts(monotone=(1,)),
    ),
    Operator(
        "avg_pool",
        "pool",
        "average of each window",
        _X,
        tuple(Target(f"aten.avg_pool{n}d.default", _window(n)) for n in (1, 2, 3)),
        _avg_pool,
        (
            example(lambda x: functional.avg_pool1d(x, 2), real(2, 3, 8)),
            example(lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False), real(2, 3, 8, 8)),
        ),
        facts=linear_in((0,), monotone=(1,)),
    ),
    Operator(
        "adaptive_avg_pool",
        "pool",
        "average of windows chosen so that the result has output_size",
        _X,
        (
            *(Target(f"aten.adaptive_avg_pool{n}d.default", _window(n)) for n in (1, 2, 3)),
            *(Target(f"aten._adaptive_avg_pool{n}d.default", _window(n)) for n in (2, 3)),
        ),
        _adaptive(_ADAPTIVE_AVERAGE),
        (
            example(lambda x: functional.adaptive_avg_pool2d(x, (2, 3)), real(2, 3, 8, 7)),
            example(lambda x: functional.adaptive_avg_pool1d(x, 3), real(2, 3, 8)),
        ),
        facts=linear_in((0,), monotone=(1,)),
    ),
    Operator(
        "adaptive_max_pool",
        "pool",
        "largest entry of windows chosen so that the result has output_size",
        _X,
        tuple(Target(f"aten.adaptive_max_pool{n}d.default", _window(n), item=0) for n in (1, 2, 3)),
        _adaptive(_ADAPTIVE_MAX),
        (example(lambda x: functional.adaptive_max_pool2d(x, (2, 3)), real(2, 3, 8, 7)),),
        facts=Facts(monotone=(1,)),
    ),
    Operator(
        "interpolate",
        "pool",
        "the tensor resampled to size by mode: copies ('nearest', 'nearest-exact'), averages ('linear', "
        "'bilinear', 'trilinear') or signed cubic weights ('bicubic')",
        _X,
        tuple(
            Target(f"aten.{stem}{n}d.{kind}", _resampling(mode, n))
            for mode, (stem, ranks) in _MODES.items()
            for n in ranks
            for kind in ("vec", "default")
        ),
        _interpolate,
        (
            example(lambda x: functional.interpolate(x, scale_factor=2), real(2, 3, 4, 4)),
            example(lambda x: functional.interpolate(x, size=(7, 5), mode="bilinear"), real(2, 3, 4, 4)),
            example(
                lambda x: functional.interpolate(x, size=9, mode="linear", align_corners=True), real(2, 3, 4)
            ),
            example(lambda x: functional.interpolate(x, scale_factor=1.5, mode="bicubic"), real(1, 2, 4, 4)),
        ),
        facts=_resampling_facts,
    ),
    Operator(
        "grid_sample",
        "pool",
        "input interpolated at the places grid names",
        ("input", "grid"),
        (
            Target("aten.grid_sampler_2d.default"),
            Target("aten.grid_sampler_3d.default"),
            Target("aten.grid_sampler.default"),
        ),
        _grid_sample,
        (
            example(
                lambda x, g: functional.grid_sample(x, g, align_corners=False),
                real(1, 2, 4, 4),
                unit(1, 3, 3, 2),
            ),
        ),
        facts=linear_in((0,)),
    ),
)
