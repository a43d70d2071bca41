"""The arithmetic of extents is sound: whatever two values do within their extents, the result does within its own."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from farfield.gaussian import scalar_function, scalar_function_names
from farfield.growth import Kind
from farfield.growth._extent import (
    Extent,
    Reason,
    add,
    interval,
    join,
    multiply,
    negate,
    ratio,
    reciprocal,
    scale,
    shift,
    square,
    stretch,
)
from farfield.growth._growth import growth_of
from farfield.growth._rate import BOUNDED, CONSTANT, EXPONENTIAL, LINEAR, LOGARITHMIC, SINGULAR, Level, Rate
from farfield.growth.rules.activation import apply_scalar
from farfield.growth.rules.arithmetic import larger, raised, smaller
from farfield.growth.rules.transcendental import exponential, logarithm, rooted

numbers = st.floats(-50, 50, allow_nan=False)
rates = st.one_of(
    st.sampled_from([CONSTANT, BOUNDED, LOGARITHMIC, LINEAR, EXPONENTIAL, SINGULAR]), st.floats(0.25, 6)
)


boxes = st.tuples(numbers, numbers, st.lists(st.floats(0, 1), min_size=3, max_size=3))
Box = tuple[float, float, list[float]]


def opened(box: Box) -> tuple[Extent, list[float]]:
    """An interval and some numbers in it, its ends among them."""
    lo, hi = sorted(box[:2])
    inside = [lo, hi, *(lo + share * (hi - lo) for share in box[2])]
    return Extent(BOUNDED, BOUNDED, lo, hi), [min(max(v, lo), hi) for v in inside]


def holds(extent: Extent, value: float) -> bool:
    """The claim covers the number."""
    if extent.doubts:
        return True
    slack = 1e-12 * max(1.0, abs(value))
    return extent.lo - slack <= value <= extent.hi + slack and abs(value) >= extent.gap - slack


@given(rates, rates, rates)
def test_rates_are_an_ordered_semigroup(x: Rate | float, y: Rate | float, z: Rate | float) -> None:
    a, b, c = (r if isinstance(r, Rate) else Rate(Level.POWER, r) for r in (x, y, z))
    assert a.times(b) == b.times(a)
    left, right = a.times(b).times(c), a.times(b.times(c))
    assert left.level == right.level
    assert math.isclose(left.degree, right.degree)
    if a <= b:
        assert a.times(c) <= b.times(c)


@given(boxes, boxes)
def test_two_values_stay_inside(first: Box, second: Box) -> None:
    (a, xs), (b, ys) = opened(first), opened(second)
    results = {
        "add": (add(a, b, "n"), lambda x, y: x + y),
        "multiply": (multiply(a, b, "n"), lambda x, y: x * y),
        "ratio": (ratio(a, b, "n"), lambda x, y: x / y if y else math.nan),
        "larger": (larger(a, b), max),
        "smaller": (smaller(a, b), min),
    }
    for name, (extent, function) in results.items():
        for x in xs:
            for y in ys:
                value = function(x, y)
                assert math.isnan(value) or holds(extent, value), (name, x, y, extent)
    joined = join(a, b)
    assert all(holds(joined, v) for v in (*xs, *ys))


@given(boxes, st.floats(-5, 5), st.integers(1, 5))
def test_one_value_stays_inside(box: Box, number: float, count: int) -> None:
    a, xs = opened(box)
    for x in xs:
        assert holds(negate(a), -x)
        assert holds(square(a), x * x)
        assert holds(scale(a, number), number * x)
        assert holds(shift(a, number), number + x)
        assert holds(stretch(a, count), count * x)
        assert holds(raised(a, 3.0, "n"), x**3)
        assert holds(raised(a, 4.0, "n"), x**4)
        assert holds(exponential(a), math.exp(x))
        if x:
            assert holds(reciprocal(a, "n"), 1 / x)
        if a.lo >= 0:
            assert holds(rooted(a, "n"), math.sqrt(x))
            assert holds(raised(a, 1.7, "n"), x**1.7)
        if a.lo > 0:
            assert holds(logarithm(a, "n"), math.log(x))


ATTRIBUTES = {"threshold": {"threshold": 0.3, "value": -0.5}}


@pytest.mark.full
@pytest.mark.parametrize("name", scalar_function_names())
@given(box=boxes)
def test_scalar_functions_contain_their_values(name: str, box: Box) -> None:
    a, xs = opened(box)
    f = scalar_function(name, ATTRIBUTES.get(name, {}))
    assert f is not None
    image = apply_scalar(f, a, "n")
    for x in xs:
        assert holds(image, float(f(torch.tensor(x, dtype=torch.float64)))), (name, x, image)


def test_sides_are_kept_apart() -> None:
    x = Extent(LINEAR, LINEAR)
    gate = apply_scalar(scalar_function("relu"), x, "n")
    assert (gate.lower, gate.upper) == (BOUNDED, LINEAR)
    assert exponential(negate(gate)).bounded
    assert not exponential(gate).bounded
    capped = smaller(x, interval(-1.0, 1.0))
    assert capped.upper == BOUNDED
    assert capped.lower == LINEAR
    assert larger(capped, interval(-1.0, 0.0)).bounded


def test_a_zero_factor_removes_growth() -> None:
    x = Extent(LINEAR, LINEAR)
    assert multiply(x, interval(0.0, 0.0), "n").bounded
    assert not multiply(x, interval(0.0, 1.0), "n").bounded


def test_poles_and_doubts_are_told_apart() -> None:
    x = Extent(LINEAR, LINEAR)
    assert reciprocal(x, "n").doubts
    above = reciprocal(apply_scalar(scalar_function("relu"), x, "n"), "n")
    assert above.upper == SINGULAR
    assert above.lower == BOUNDED
    assert not above.doubts
    assert growth_of(above).kind is Kind.UNKNOWN
    assert growth_of(above).reason == Reason(
        "n", "the denominator is only known to lie in [0, inf] and can vanish"
    )
    assert apply_scalar(scalar_function("sigmoid"), above, "n").bounded
    assert multiply(above, apply_scalar(scalar_function("relu"), x, "n"), "n").doubts
    assert logarithm(x, "n").doubts
    assert logarithm(shift(square(x), 1.0), "n").upper == LOGARITHMIC
    assert not reciprocal(shift(square(x), 1.0), "n").doubts
