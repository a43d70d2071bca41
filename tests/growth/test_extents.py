"""The arithmetic of extents is sound: whatever two values do within their extents, the result does within its own."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

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
from farfield.growth._profile import profile, profile_names
from farfield.growth._rate import BOUNDED, CONSTANT, EXPONENTIAL, LINEAR, LOGARITHMIC, SINGULAR, Level, Rate
from farfield.growth.rules.activation import profiled
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


@pytest.mark.parametrize("name", profile_names())
@given(box=boxes)
def test_profiles_contain_their_function(name: str, box: Box) -> None:
    a, xs = opened(box)
    shape = profile(name, ATTRIBUTES.get(name, {}))
    image = profiled(shape, a, "n")
    for x in xs:
        assert holds(image, shape(x)), (name, x, image)


@pytest.mark.parametrize("name", profile_names())
def test_profiles_have_the_tails_they_claim(name: str) -> None:
    shape = profile(name, ATTRIBUTES.get(name, {}))
    for tail, sign in ((shape.right, 1.0), (shape.left, -1.0)):
        for size in (1e3, 1e6):
            line = tail.slope * sign * size + tail.offset
            allowed = {"exact": 1e-9, "flat": 1e-9, "algebraic": 2.0 / size, "bounded": 1.0}[tail.remainder]
            assert abs(shape(sign * size) - line) <= allowed + 1e-12 * size, (name, sign, size)


@pytest.mark.parametrize("name", profile_names())
def test_profiles_have_the_range_they_claim(name: str) -> None:
    shape = profile(name, ATTRIBUTES.get(name, {}))
    grid = torch.cat([torch.linspace(-30, 30, 60_001), torch.tensor([-1e4, 1e4])]).to(torch.float64)
    values = shape.function(grid)
    assert float(values.min()) >= shape.lo - 1e-12
    assert float(values.max()) <= shape.hi + 1e-12


def test_a_range_too_small_is_caught() -> None:
    """The oracle above fails for a minimum of GELU that is not low enough."""
    values = torch.nn.functional.gelu(torch.linspace(-30, 30, 60_001, dtype=torch.float64))
    assert float(values.min()) < -0.1699


def test_sides_are_kept_apart() -> None:
    x = Extent(LINEAR, LINEAR)
    gate = profiled(profile("relu", {}), x, "n")
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
    above = reciprocal(profiled(profile("relu", {}), x, "n"), "n")
    assert above.upper == SINGULAR
    assert above.lower == BOUNDED
    assert not above.doubts
    assert growth_of(above).kind is Kind.UNKNOWN
    assert growth_of(above).reason == Reason(
        "n", "the denominator is only known to lie in [0, inf] and can vanish"
    )
    assert profiled(profile("sigmoid", {}), above, "n").bounded
    assert multiply(above, profiled(profile("relu", {}), x, "n"), "n").doubts
    assert logarithm(x, "n").doubts
    assert logarithm(shift(square(x), 1.0), "n").upper == LOGARITHMIC
    assert not reciprocal(shift(square(x), 1.0), "n").doubts
