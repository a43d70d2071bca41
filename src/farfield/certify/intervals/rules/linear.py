"""Linear maps: a constant side is read entry by entry, two moving sides are multiplied as intervals."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from farfield.certify.intervals._interval import Interval, add, inflate, linear_image, linear_map, meet, scale
from farfield.certify.intervals._registry import Place, interval_rule
from farfield.certify.intervals.rules.bilinear import LARGEST_TABLE, bilinear_image, product

__all__: list[str] = []


def _with_bias(place: Place, value: Interval, index: int, rank: int | None = None) -> Interval:
    bias = place.optional(index)
    if bias is None:
        return value
    if rank is not None:
        bias = bias.map(lambda end: end.reshape(-1, *[1] * rank))
    return add(value, bias)


@interval_rule("linear")
def _linear(place: Place) -> Interval:
    weight = place.constant(1)
    if weight is not None and weight.ndim == 2:
        return linear_map(weight, place.interval(0), place.optional(2))
    matrix = place.interval(1)
    turned = matrix.map(lambda end: end.mT) if matrix.lo.ndim > 1 else matrix
    return _with_bias(place, product(place.interval(0), turned), 2)


@interval_rule("matmul")
def _matmul(place: Place) -> Interval:
    return _product(place, 0, 1)


@interval_rule("addmm")
def _addmm(place: Place) -> Interval:
    alpha, beta = float(place.attributes.get("alpha", 1)), float(place.attributes.get("beta", 1))
    return add(scale(_product(place, 1, 2), alpha), scale(place.interval(0), beta))


def _product(place: Place, left: int, right: int) -> Interval:
    a, b = place.interval(left), place.interval(right)
    terms = a.shape[-1]
    if (known := place.constant(right)) is not None:
        result = linear_image(torch.matmul, known, a, terms)
    elif (known := place.constant(left)) is not None:
        result = linear_image(lambda x, w: torch.matmul(w, x), known, b, terms)
    else:
        result = product(a, b)
    if a.lo.ndim > 1 and b.lo.ndim > 1 and _averages(place, left):
        result = meet(result, _average(a, b, result.shape))
    return result


def _average(weights: Interval, value: Interval, shape: torch.Size) -> Interval:
    """Σ_j p_j v_j for p ≥ 0 that sum to 1: between the extremes of the rows whose weight may be positive."""
    if math.prod(shape) * value.shape[-2] <= LARGEST_TABLE:
        open_to = (weights.hi > 0).unsqueeze(-1)
        lo = torch.where(open_to, value.lo.unsqueeze(-3), math.inf).amin(-2)
        rows = Interval(lo, torch.where(open_to, value.hi.unsqueeze(-3), -math.inf).amax(-2))
    else:
        rows = Interval(value.lo.amin(-2, keepdim=True), value.hi.amax(-2, keepdim=True)).expand(shape)
    # Room for an evaluation whose weights sum to 1 only up to rounding.
    size = rows.magnitude
    return inflate(rows, torch.where(torch.isfinite(size), 2.0**-40 * size, 0.0))


def _averages(place: Place, index: int) -> bool:
    """The operand's rows are non-negative and sum to 1, so a product with it averages."""
    producer = place.producers[index]
    while producer is not None and producer.op in ("identity", "dropout", "cast", "expand"):
        real = producer.dtype is not None and producer.dtype.is_floating_point
        if not real or producer.attributes.get("train") or producer.inputs[0] is None:
            return False
        source = place.lookup(producer.inputs[0])
        if len(source.shape) != len(producer.shape) or source.shape[-1] != producer.shape[-1]:
            return False
        producer = source
    return (
        producer is not None
        and producer.op == "softmax"
        and producer.attributes.get("dim") == len(producer.shape) - 1
    )


def _convolved(place: Place, apply: Callable[[Tensor, Tensor], Tensor], terms: int, rank: int) -> Interval:
    weight = place.constant(1)
    if weight is not None:
        image = linear_image(apply, weight, place.interval(0), terms)
    else:
        image = bilinear_image(apply, place.interval(0), place.interval(1), terms)
    return _with_bias(place, image, 2, rank)


@interval_rule("conv")
def _conv(place: Place) -> Interval:
    a, shape = place.attributes, place.interval(1).shape
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[len(shape) - 3]
    options = [list(a["stride"]), list(a["padding"]), list(a["dilation"]), a["groups"]]

    def apply(x: Tensor, weight: Tensor) -> Tensor:
        result: Tensor = convolve(x, weight, None, *options)
        return result

    return _convolved(place, apply, math.prod(shape[1:]), len(shape) - 2)


@interval_rule("conv_transpose")
def _conv_transpose(place: Place) -> Interval:
    a, shape = place.attributes, place.interval(1).shape
    table: tuple[Callable[..., Tensor], ...] = (
        functional.conv_transpose1d,
        functional.conv_transpose2d,
        functional.conv_transpose3d,
    )
    spread = table[len(shape) - 3]
    options = [
        list(a["stride"]),
        list(a["padding"]),
        list(a["output_padding"]),
        a["groups"],
        list(a["dilation"]),
    ]

    def apply(x: Tensor, weight: Tensor) -> Tensor:
        return spread(x, weight, None, *options)

    return _convolved(place, apply, shape[0] * math.prod(shape[2:]), len(shape) - 2)


@interval_rule("embedding")
def _embedding(place: Place) -> Interval:
    """The rows named; the hull of all rows where the index is not known."""
    table, index = place.interval(0), place.indices(1)
    if index is not None:
        return table.map(lambda end: functional.embedding(index, end))
    rows = Interval(table.lo.amin(0), table.hi.amax(0))
    return rows.expand(place.shape)
