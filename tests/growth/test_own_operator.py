"""An operator of one's own: registered in one call with what is known of it, that is enough for a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from captured import Plain
from farfield.graph import (
    Example,
    Facts,
    Operator,
    Sample,
    Target,
    capture,
    register_operator,
    unregister_operator,
)
from farfield.growth import GrowthReport, Status, analyze, horizon

MOVES = Facts(moves=True, linear=((0,),), monotone=(1,))


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    """Registers an operator of one tensor for the length of a test."""
    names: list[str] = []

    def add(name: str, function: Callable[[Tensor], Tensor], facts: Facts, **more: Any) -> None:
        examples = (Example(function, (Sample((4, 4)),)),)
        target = (Target(f"aten.{name}.default"),)
        register_operator(
            Operator(
                f"own_{name}",
                "elementwise",
                "an operator of my own",
                ("input",),
                target,
                lambda node, tensors: function(tensors[0]),
                examples,
                facts=facts,
                **more,
            )
        )
        names.append(f"own_{name}")

    yield add
    for name in names:
        unregister_operator(name)


def report(function: Callable[[Tensor], Tensor]) -> GrowthReport:
    return analyze(Plain(function), (torch.randn(4, 4, generator=torch.Generator().manual_seed(0)),))


def test_without_facts_nothing_is_known(register: Callable[..., None]) -> None:
    register("sinc", torch.sinc, Facts())
    found = report(torch.sinc)
    assert found.status is Status.UNKNOWN
    assert "register_growth_rule('own_sinc'" in str(found.verdicts[0].reason)


def test_a_range_bounds(register: Callable[..., None]) -> None:
    register("sinc", torch.sinc, Facts(entrywise=True, range=(-0.22, 1.0)))
    found = report(torch.sinc)
    assert found.status is Status.BOUNDED
    assert found.verdicts[0].growth.interval == (-0.22, 1.0)


def test_a_monotone_function_of_something_bounded_is_bounded(register: Callable[..., None]) -> None:
    facts = Facts(entrywise=True, monotone=(1,), range=(-math.inf, 0.0))
    register("special_log_ndtr", torch.special.log_ndtr, facts)
    found = report(lambda x: torch.special.log_ndtr(torch.tanh(x)))
    assert found.status is Status.BOUNDED
    low, high = found.verdicts[0].growth.interval
    ends = torch.special.log_ndtr(torch.tensor([-1.0, 1.0], dtype=torch.float64))
    assert low <= float(ends[0]) < low + 1e-9
    assert high >= float(ends[1]) > high - 1e-9
    assert report(torch.special.log_ndtr).status is not Status.BOUNDED


def test_what_moves_passes_growth_on_and_bounds_too(register: Callable[..., None]) -> None:
    register("rot90", torch.rot90, MOVES)
    assert report(lambda x: torch.rot90(torch.tanh(x))).status is Status.BOUNDED
    assert report(torch.rot90).status is Status.UNBOUNDED


def test_what_is_linear_passes_growth_on_and_bounds_too(register: Callable[..., None]) -> None:
    register("trace", torch.trace, Facts(linear=((0,),)))
    assert report(lambda x: torch.trace(torch.tanh(x))).status is Status.BOUNDED
    assert report(torch.trace).status is Status.UNBOUNDED
    u = torch.eye(4, dtype=torch.float64)[None]
    program = capture(Plain(lambda x: torch.trace(x) + 1.0), (u[0],), dynamic_batch=False)
    found = horizon(program, u, example_inputs=(u[0],))
    assert found.slope.tolist() == [4.0]


def test_a_composition_is_enough(register: Callable[..., None]) -> None:
    """sinc as sin(πx)/(πx) is not covered at 0; as sin² it is bounded."""
    register(
        "sinc", torch.sinc, Facts(), composed=lambda node, parts: parts("square", parts("sin", parts[0]))
    )
    found = report(torch.sinc)
    assert found.status is Status.BOUNDED
    low, high = found.verdicts[0].growth.interval
    assert low == 0.0
    assert 1.0 <= high < 1.0 + 1e-9
