"""Deliberately wrong rules: the oracle of the contract must catch every one of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from captured import Plain
from certify.intervals.oracle import DOUBLE, KINDS, box_around, points, rule_of, violations
from farfield.certify.intervals import Interval, Place
from farfield.certify.intervals._interval import down, hull, spread, up
from farfield.certify.intervals._registry import Bounds
from farfield.graph import Example, Sample, capture


def caught(function: Callable[..., Tensor], *samples: Sample) -> bool:
    """Some evaluation leaves the intervals claimed."""
    example = Example(function, samples)
    program = capture(Plain(function), example.inputs(), dynamic_batch=False)
    generator = torch.Generator().manual_seed(0)
    for kind in KINDS:
        for seed in range(2):
            centers = example.inputs(seed)
            boxes = [box_around(s, c, kind, generator, None) for s, c in zip(samples, centers, strict=True)]
            named = {spec.name: b for spec, b in zip(program.inputs, boxes, strict=True) if b is not None}
            if violations(program, named, points(example, centers, boxes, generator, 48)):
                return True
    return False


def real(*shape: int) -> Sample:
    return Sample(shape)


def _ends(function: Callable[[Tensor], Tensor]) -> Callable[[Place], Interval]:
    """Only the two ends of the first argument, as if the function were monotone."""

    def rule(place: Place) -> Interval:
        first, second = function(place.interval(0).lo), function(place.interval(0).hi)
        result = Interval(torch.minimum(first, second), torch.maximum(first, second))
        return Interval(result.lo.nan_to_num(-math.inf), result.hi.nan_to_num(math.inf))

    return rule


def _inward_add(place: Place) -> Interval:
    a, b = place.operand(0, "input"), place.operand(1, "other")
    lo, hi = up(a.lo + b.lo), down(a.hi + b.hi)
    return (
        Interval(torch.minimum(lo, hi), torch.maximum(up(lo), hi))
        if bool((lo > hi).any())
        else Interval(lo, hi)
    )


def _inward_exp(place: Place) -> Interval:
    x = place.interval(0)
    lo, hi = (torch.exp(end) for end in (x.lo, x.hi))
    return Interval(torch.minimum(up(lo), up(hi)), up(hi))


def _linear_without_negative_weights(place: Place) -> Interval:
    x, weight = place.interval(0), place.interval(1).lo.clamp_min(0.0)
    lo, hi = (functional.linear(end, weight).nan_to_num(0.0) for end in (x.lo, x.hi))
    return Interval(lo, hi)


def _linear_by_ends(place: Place) -> Interval:
    x, weight = place.interval(0), place.interval(1).lo
    lo, hi = (functional.linear(end, weight) for end in (x.lo, x.hi))
    ends = Interval(torch.minimum(lo, hi), torch.maximum(lo, hi))
    return Interval(ends.lo.nan_to_num(-math.inf) - 1e-6, ends.hi.nan_to_num(math.inf) + 1e-6)


def _norm_bound(size: Callable[[int], float]) -> Callable[[Place], Interval]:
    def rule(place: Place) -> Interval:
        bound = size(place.interval(0).shape[-1])
        return spread(-bound, bound, place.shape)

    return rule


def _group_of_channels(place: Place) -> Interval:
    """Wrong: a group counted without its spatial axes."""
    bound = math.sqrt(place.interval(0).shape[1] / place.attributes["num_groups"] - 1)
    return spread(-bound, bound, place.shape)


def _softmax_swapped(place: Place) -> Interval:
    """Wrong: the entry and the others at the same end."""
    x, dim = place.interval(0), place.attributes["dim"]
    ends = [torch.softmax(end.nan_to_num(posinf=1e3, neginf=-1e3), dim) for end in (x.lo, x.hi)]
    return Interval(torch.minimum(*ends) - 1e-9, torch.maximum(*ends) + 1e-9)


def _two_corners(place: Place) -> Interval:
    a, b = place.operand(0, "input"), place.operand(1, "other")
    first, second = a.lo * b.lo, a.hi * b.hi
    return Interval(
        torch.minimum(first, second).nan_to_num(-math.inf) - 1e-9,
        torch.maximum(first, second).nan_to_num(math.inf) + 1e-9,
    )


def _first_row(place: Place) -> Interval:
    return place.interval(0).map(lambda end: end[0].expand(place.shape))


def _first_value(place: Place) -> Interval:
    value = place.interval(2)
    return value.map(lambda end: end[..., :1, :].expand(place.shape))


def _always_yes(place: Place) -> Interval:
    return place.operand(1, "input").expand(place.shape)


def _least_only(place: Place) -> Bounds:
    end = place.compute(place.interval(0).lo)
    return Interval(end, end)


def _mean_of_fewer(place: Place) -> Interval:
    x = place.interval(0)
    ends = [end.sum(-1) / (x.shape[-1] - 1) for end in (x.lo, x.hi)]
    return Interval(torch.minimum(*ends), torch.maximum(*ends))


def _variance_of_ends(place: Place) -> Interval:
    x = place.interval(0)
    ends = [place.compute(end.nan_to_num(posinf=1e3, neginf=-1e3)) for end in (x.lo, x.hi)]
    return hull(Interval(ends[0] - 1e-9, ends[0] + 1e-9), Interval(ends[1] - 1e-9, ends[1] + 1e-9))


def _truncated_median(place: Place) -> tuple[Interval, ...]:
    lo, hi = (place.compute(end)[0] for end in (place.interval(0).lo, place.interval(0).hi))
    return Interval(lo, (lo / 2 + hi / 2).nan_to_num(0.0).clamp(lo, hi)), spread(0.0, 4.0, lo.shape)


def _linear(x: Tensor) -> Tensor:
    return functional.linear(x, WEIGHT)


def _layer_norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, (4,))


def _rms_norm(x: Tensor) -> Tensor:
    return functional.rms_norm(x, (4,), None, 1e-5)


def _embedding(table: Tensor, index: Tensor) -> Tensor:
    return functional.embedding(index, table)


ROWS = (real(2, 5, 3), real(2, 4, 3), real(2, 4, 3))
TABLE = (real(6, 4), Sample((2, 3), "integer", 6))
WEIGHT = torch.randn(3, 4, generator=torch.Generator().manual_seed(7), dtype=DOUBLE)
WRONG: list[tuple[str, str, Callable[[Place], Bounds], Callable[..., Tensor], tuple[Sample, ...]]] = [
    ("rounded inwards", "add", _inward_add, lambda x, y: x + y, (real(3), real(3))),
    ("rounded inwards", "exp", _inward_exp, torch.exp, (real(3, 4),)),
    (
        "no negative weights",
        "linear",
        _linear_without_negative_weights,
        _linear,
        (real(2, 4),),
    ),
    ("ends only", "linear", _linear_by_ends, _linear, (real(2, 4),)),
    (
        "√(d−2)",
        "layer_norm",
        _norm_bound(lambda d: math.sqrt(d - 2)),
        _layer_norm,
        (real(3, 4),),
    ),
    (
        "√(d−1)",
        "rms_norm",
        _norm_bound(lambda d: math.sqrt(d - 1)),
        _rms_norm,
        (real(3, 4),),
    ),
    (
        "too few entries",
        "group_norm",
        _group_of_channels,
        lambda x: functional.group_norm(x, 2),
        (real(2, 4, 3),),
    ),
    ("numerator swapped", "softmax", _softmax_swapped, lambda x: torch.softmax(x, -1), (real(3, 4),)),
    ("two corners", "mul", _two_corners, lambda x, y: x * y, (real(3), real(3))),
    ("ends only", "gelu", _ends(functional.gelu), functional.gelu, (real(5, 7),)),
    ("ends only", "sin", _ends(torch.sin), torch.sin, (real(3, 4),)),
    ("ends only", "square", _ends(torch.square), torch.square, (real(3, 4),)),
    (
        "one row",
        "embedding",
        _first_row,
        lambda w, i: functional.embedding(i, w),
        (real(6, 4), Sample((2, 3), "integer", 6)),
    ),
    (
        "one row",
        "attention",
        _first_value,
        functional.scaled_dot_product_attention,
        (real(2, 5, 3), real(2, 4, 3), real(2, 4, 3)),
    ),
    ("undecided is true", "where", _always_yes, lambda x, y: torch.where(x > 0.1, x, y), (real(3), real(3))),
    ("lower end twice", "max_pool", _least_only, lambda x: functional.max_pool1d(x, 2), (real(1, 2, 8),)),
    ("n − 1", "mean", _mean_of_fewer, lambda x: x.mean(-1), (real(3, 4),)),
    ("of the ends", "var", _variance_of_ends, lambda x: x.var(-1), (real(3, 4),)),
    ("half way", "median", _truncated_median, lambda x: x.median(-1).values, (real(3, 5),)),
]


@pytest.mark.parametrize(
    ("op", "rule", "function", "samples"),
    [w[1:] for w in WRONG],
    ids=[f"{op}: {what}" for what, op, *_ in WRONG],
)
def test_a_wrong_rule_is_caught(
    op: str, rule: Callable[[Place], Bounds], function: Callable[..., Tensor], samples: tuple[Sample, ...]
) -> None:
    assert not caught(function, *samples)
    with rule_of(op, rule):
        assert caught(function, *samples)
