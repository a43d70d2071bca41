"""Models written to mislead the analysis, as a person might write them, and what must be said of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from captured import Plain
from farfield.graph import capture
from farfield.growth import Status, analyze, horizon, register_growth_rule
from farfield.growth._analysis import analyze_growth
from farfield.growth._extent import interval
from farfield.growth._registry import unregister_growth_rule


def verdict(function: Callable[..., Tensor], *inputs: Tensor) -> Status:
    """The verdict on a function of one batch of four features (or of the inputs given)."""
    given = inputs or (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),)
    return analyze(Plain(function), given).status


def proved(function: Callable[..., Tensor]) -> bool:
    """Whether the abstract interpretation calls the function bounded."""
    program = capture(Plain(function), (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),))
    return analyze_growth(program).growth(program.outputs[0]).bounded


def _copied(x: Tensor, dtype: torch.dtype) -> Tensor:
    whole = torch.zeros(x.shape, dtype=dtype)
    whole.copy_(x)
    return whole


def _put(x: Tensor) -> Tensor:
    """200 + 100 written into a byte: 44."""
    base = torch.full(x.shape, 200, dtype=torch.uint8)
    added = torch.full(x.shape[1:], 100, dtype=torch.uint8)
    return base.index_put((torch.zeros(1, dtype=torch.int64),), added, accumulate=True)


def _above(value: Tensor, limit: float) -> Tensor:
    """How far a value lies above a limit: 0 for an analysis that takes the limit for granted."""
    return torch.relu(value.float() - limit)


def _below(value: Tensor, limit: float) -> Tensor:
    return torch.relu(limit - value.float())


GROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "floor of a vanishing quotient": lambda x: torch.exp(-(x**2)) // -2 * x,
    "floor of a vanishing number": lambda x: torch.div(-torch.exp(-x.abs()), 2.0, rounding_mode="floor") * x,
    "rounded quotient over its own size": lambda x: torch.div(x, -3.0, rounding_mode="floor") / x.abs(),
    "size of a rounded quotient": lambda x: x / torch.div(x, 3.0, rounding_mode="trunc").abs(),
    "integers divided": lambda x: x * _below(torch.sigmoid(x).to(torch.int64) // 2, 0.5),
    "complex less a real number": lambda x: x * (torch.complex(5 + 0 * x, 5 + 0 * x) - 5).imag,
    "complex and a real tensor": lambda x: x * (torch.complex(5 + 0 * x, 5 + 0 * x) - (5 + 0 * x)).imag,
    "a real number among complex ones": lambda x: (
        1 / torch.where(x > 0, torch.complex(1 + x.abs(), 1 + x.abs()), 1.0 + 0 * x).imag
    ),
    "a real tensor made complex": lambda x: 1 / (1 + x.abs()).to(torch.complex64).imag,
    "an imaginary factor": lambda x: 1 / ((1 + x.abs()) * 1j).real,
    "an imaginary divisor": lambda x: x * (torch.complex(5 + 0 * x, 0 * x) / 2j + 2.5).imag,
    "the size of the batch less three": lambda x: torch.exp(-x.abs() * (x.shape[0] - 3)),
    "a third of the batch": lambda x: torch.tanh(x) / (x.shape[0] // 3),
    "a sum over what may be empty": lambda x: torch.tanh(x) / torch.sigmoid(x[3:]).sum(0),
    "cut to an integer": lambda x: x * _below(torch.sigmoid(x).to(torch.int64), 0.1),
    "summed as integers": lambda x: x / (torch.sigmoid(x) + 0.01).sum(-1, keepdim=True, dtype=torch.int64),
    "added up as integers": lambda x: x / (torch.sigmoid(x) + 0.01).cumsum(-1, dtype=torch.int64),
    "multiplied as integers": lambda x: (
        x * _below((1.5 + 0.2 * torch.tanh(x)).prod(-1, dtype=torch.int64)[:, None], 2)
    ),
    "copied into integers": lambda x: x / _copied(0.5 + 0.1 * torch.tanh(x), torch.int32),
    "filled with integers": lambda x: x * _below(torch.full((4,), 0.75, dtype=torch.int64), 0.5),
    "spread over integers": lambda x: x * _below(torch.linspace(0.5, 0.9, 4, dtype=torch.int64), 0.5),
    "wrapped into a byte": lambda x: x * _below((256 + torch.sigmoid(x)).to(torch.uint8), 100),
    "wrapped into a signed byte": lambda x: x * _below((128 + torch.sigmoid(x)).to(torch.int8), 0),
    "a byte below zero": lambda x: x * _above(torch.sigmoid(x).to(torch.uint8) - 1, 100),
    "bytes multiplied": lambda x: x * _below((20 + torch.tanh(x)).to(torch.uint8) * 20, 100),
    "the negative of a byte": lambda x: x * _above(-(1 + torch.sigmoid(x)).to(torch.uint8), 100),
    "written into bytes": lambda x: x * _below(_put(x), 100),
    "wrapped far away": lambda x: x * _below(torch.relu(x).to(torch.int32), 0),
}


@pytest.mark.parametrize("name", GROWS)
def test_what_grows_is_never_called_bounded(name: str) -> None:
    assert not proved(GROWS[name])


STANDS: dict[str, Callable[[Tensor], Tensor]] = {
    "a ramp that ends far away": lambda x: torch.relu(x[:, :1] * x[:, :1]) - torch.relu(x[:, :1] ** 2 - 1e30),
    "exponential of a ramp that ends at 800": lambda x: torch.exp(torch.relu(x**2) - torch.relu(x**2 - 800)),
    "an exponential that is switched off": lambda x: torch.exp(x) * torch.sigmoid(800 - x),
    "an exponential cut at a large number": lambda x: torch.exp(x) - torch.relu(torch.exp(x) - 1e300),
    "an exponential that saturates late": lambda x: torch.exp(x) / (1 + torch.exp(x - 600)),
    "an exponential that falls late": lambda x: torch.exp(x) / (1 + torch.exp(2 * x - 2000)),
    "the lower of two exponentials": lambda x: torch.minimum(torch.exp(x), torch.exp(1000 - x)),
    "an exponential masked far away": lambda x: torch.where(x > 1e4, torch.zeros_like(x), torch.exp(x)),
    "an expanded Gaussian": lambda x: torch.exp(2 * x) * torch.exp(-1e-3 * x * x),
    "a wide Gaussian in one exponent": lambda x: torch.exp(2 * x - 1e-12 * x * x),
    "a Gaussian wider than any number here": lambda x: torch.exp(2 * x) * torch.exp(-1e-30 * x.square()),
    "a power of nothing": lambda x: (x * 0.0) ** 0.0,
    "a base that vanishes": lambda x: torch.relu(-(x**2)) ** torch.relu(x),
    "a long running sum": lambda x: x[:, :1].repeat(1, 5000).cumsum(-1)[:, -1:] - 5000 * x[:, :1],
}


@pytest.mark.full
@pytest.mark.parametrize("name", STANDS)
def test_what_stands_is_never_called_unbounded(name: str) -> None:
    assert verdict(STANDS[name]) is not Status.UNBOUNDED


BOUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "a hat": lambda x: torch.relu(x) - 2 * torch.relu(x - 1) + torch.relu(x - 2),
    "a hat of a layer": lambda x: (lambda z: torch.relu(z) - 2 * torch.relu(z - 1) + torch.relu(z - 2))(
        x.sum(-1)
    ),
    "a ramp": lambda x: (functional.softplus(x) - functional.softplus(x - 3)) / 3,
    "a spline over knots": lambda x: (
        (lambda t: torch.relu(t + 1) - 2 * torch.relu(t) + torch.relu(t - 1))(
            x.unsqueeze(-1) - torch.arange(5.0)
        )
    ).sum(-1),
    "absolute values": lambda x: (x + 1).abs() + (x - 1).abs() - 2 * x.abs(),
    "what is left of a number": lambda x: x - torch.floor(x),
    "its rounding error": lambda x: torch.round(x) - x,
    "quantized in steps": lambda x: x - torch.round(x * 8) / 8,
    "straight through": lambda x: x + (torch.sign(x) - x).detach(),
    "straight through a clamp": lambda x: x.detach() - x + torch.clamp(torch.round(x), -8, 7),
    "a choice by sign": lambda x: torch.where(x > 1, x, 1.0) - torch.relu(x),
    "silu less relu": lambda x: functional.silu(x) - torch.relu(x),
    "added and taken away": lambda x: (x + x.flip(-1)) - x.flip(-1) - x,
    "a switch": lambda x: torch.sigmoid(x) * (x > 0),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_growth_that_cancels_is_bounded(name: str) -> None:
    assert proved(BOUNDED[name])


UNBOUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "a hat with a wrong weight": lambda x: torch.relu(x) - 2.001 * torch.relu(x - 1) + torch.relu(x - 2),
    "two hats' slopes": lambda x: torch.relu(x) - torch.relu(-x),
    "a switched input": lambda x: x * (x.flip(-1) > 0),
    "a switched sum": lambda x: (x > 0) * x.sum(-1, keepdim=True) + (x < 0),
    "quantized in steps": lambda x: torch.round(x * 8) / 8,
    "a small slope under a large offset": lambda x: 1e-12 * x + 1e6,
    "an exponential": lambda x: torch.exp(x.sum(-1)),
    "an exponential of a layer": lambda x: torch.exp(torch.relu(x - 1).sum(-1)) - 5.0,
    "an exponential of a square": lambda x: torch.exp(x * x),
    "the larger of two exponentials": lambda x: torch.exp(2 * x) - torch.exp(x),
    "a hyperbolic sine": torch.sinh,
    "an exponential under a gate": lambda x: torch.exp(x) * torch.sigmoid(x),
    "exponentials in a layer": lambda x: torch.relu(torch.exp(x) @ torch.ones(4, 4)) @ torch.ones(4, 2),
    "an exponential less a far smaller one": lambda x: torch.exp(x) - torch.exp(x - 30),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_growth_that_does_not_cancel_is_found(name: str) -> None:
    assert verdict(UNBOUNDED[name]) is Status.UNBOUNDED


def test_a_slope_too_small_to_confirm_is_named() -> None:
    report = analyze(Plain(lambda x: 1e-290 * x + 1e6), (torch.randn(3, 4),))
    assert report.status is Status.UNKNOWN
    assert "too small" in str(report.verdicts[0].reason)


FAR: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "a kink far away": (lambda x: torch.relu(x - 1e31) - 2 * torch.relu(x), -1.0),
    "a large constant loses": (lambda x: torch.maximum(x, torch.full_like(x, 1e32)), 1.0),
    "a large number loses": (lambda x: torch.clamp(x, min=1e33), 1.0),
}


@pytest.mark.parametrize("name", FAR)
def test_large_constants_are_numbers(name: str) -> None:
    function, slope = FAR[name]
    found = horizon(Plain(function), torch.ones(1, 4, dtype=torch.float64))
    assert found.slope.tolist() == [[slope] * 4]


def test_nothing_to_the_power_of_nothing_has_no_limit() -> None:
    """exp(−x²)^(1/(1 + |x|)) tends to 0, not to 0⁰ = 1."""
    found = horizon(Plain(lambda x: torch.exp(-(x**2)) ** (1 / (1 + x.abs()))), torch.ones(1, 1))
    assert bool(found.degenerate.all()) or float(found.value) == 0.0


def test_the_rounding_of_a_long_running_sum_is_no_slope() -> None:
    def function(x: Tensor) -> Tensor:
        return x.repeat(1, 5000).cumsum(-1)[:, -1:] - 5000 * x

    u = torch.randn(16, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = horizon(Plain(function), u)
    assert bool((found.degenerate | (found.slope == 0)).all())


def test_a_rule_registered_under_the_name_that_unknown_gives_has_an_effect() -> None:
    model, x = Plain(lambda x: torch.special.i0e(x)), (torch.randn(3, 4),)
    reason = str(analyze(model, x).verdicts[0].reason)
    name = reason.split("register_growth_rule('")[1].split("'")[0]
    register_growth_rule(name, lambda site: interval(0.0, 1.0, *site.everything()))
    try:
        assert analyze(model, x).status is Status.BOUNDED
    finally:
        unregister_growth_rule(name)
