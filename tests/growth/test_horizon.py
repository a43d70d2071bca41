"""Horizons: limits, slopes and leading terms against far evaluation, closed forms and degenerate directions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from captured import Plain
from farfield.errors import InvalidValueError
from farfield.graph import capture
from farfield.growth import horizon
from farfield.growth._jet import LOG_STEP, constant, monomial, multiply, ray
from farfield.growth._leading import difference, lead, maximum
from farfield.growth._series import power


def directions(count: int = 64, size: int = 6, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(count, size, generator=generator, dtype=torch.float64), dim=-1)


class Between(nn.Module):
    """Linear, something, linear, in float64 with weights of their own generator."""

    def __init__(self, middle: Callable[[Tensor], Tensor] | nn.Module, *, width: int = 16) -> None:
        super().__init__()
        self.first, self.last, self.middle = nn.Linear(6, width), nn.Linear(width, 3), middle
        self.double().eval()
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


LIMITS: dict[str, Callable[[Tensor], Tensor] | nn.Module] = {
    "layer norm": nn.LayerNorm(16),
    "rms norm": nn.RMSNorm(16),
    "group norm": nn.GroupNorm(4, 16),
    "normalize": lambda h: functional.normalize(h, dim=-1),
    "tanh": torch.tanh,
    "softmax": lambda h: torch.softmax(h, -1),
    "layer norm of a square": nn.Sequential(nn.LayerNorm(16), nn.GELU(), nn.LayerNorm(16)),
    "rational": lambda h: h * h / (1 + h * h),
    "growing times vanishing": lambda h: h * (1 / (1 + h.abs())),
    "gaussian": lambda h: torch.exp(-h * h),
    "softmax of a product": lambda h: torch.softmax(h * h.roll(1, -1), -1) * torch.tanh(h),
    "one half": lambda h: torch.cat([torch.tanh(h[:, :8]), functional.normalize(h[:, 8:], dim=-1)], -1),
    "signs": lambda h: (h > 0).to(h.dtype) - torch.sign(h.flip(-1)),
    "clamped": lambda h: h.clamp(-1, 2),
    "log softmax of norms": lambda h: functional.log_softmax(functional.layer_norm(h, (16,)), -1),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits(name: str) -> None:
    model, u = Between(LIMITS[name]), directions()
    seen = horizon(model, u)
    with torch.no_grad():
        far = model(1e11 * u)
    assert not bool(seen.degenerate.any())
    torch.testing.assert_close(seen.value, far, atol=1e-6, rtol=0)
    assert bool((seen.degree == 0).all())
    assert bool((seen.slope == 0).all())


SLOPES: dict[str, Callable[[Tensor], Tensor] | nn.Module] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "mish": functional.mish,
    "softplus": functional.softplus,
    "elu": functional.elu,
    "leaky": nn.LeakyReLU(0.3),
    "batch norm": nn.BatchNorm1d(16),
    "residual": lambda h: h + torch.tanh(h) * 3,
    "pre-norm residual": nn.Sequential(nn.Identity()),
    "max": lambda h: torch.maximum(h, -h.flip(-1)) - h.amax(-1, keepdim=True),
    "sorted": lambda h: h.sort(-1).values,
    "gate": lambda h: torch.sigmoid(h.flip(-1)) * h,
    "attention": lambda h: torch.softmax(h, -1) * h,
    "logsumexp": lambda h: h - h.logsumexp(-1, keepdim=True),
    "norm": lambda h: h.norm(dim=-1, keepdim=True) * torch.ones_like(h),
    "standard deviation": lambda h: h.std(-1, keepdim=True) + h,
    "snake": lambda h: h + torch.sin(h) ** 2,
    "rounded": torch.round,
    "where": lambda h: torch.where(h > 1, h, h.flip(-1)),
}


@pytest.mark.parametrize("name", SLOPES)
def test_slopes(name: str) -> None:
    model, u = Between(SLOPES[name]), directions()
    seen = horizon(model, u)
    with torch.no_grad():
        far = model(1e10 * u) / 1e10
    assert not bool(torch.isnan(seen.slope).any())
    torch.testing.assert_close(seen.slope, far, atol=1e-7, rtol=0)
    assert bool((seen.degree == 1).all())


@pytest.mark.parametrize(
    ("function", "degree"),
    [
        (lambda h: h * h, 2.0),
        (lambda h: h**3 / (1 + h.abs()), 2.0),
        (lambda h: torch.sqrt(1 + h.abs()), 0.5),
        (lambda h: h * torch.sqrt(h.abs() + 1) * h, 2.5),
        (lambda h: h.prod(-1, keepdim=True).expand_as(h), 16.0),
    ],
)
def test_leading_terms(function: Callable[[Tensor], Tensor], degree: float) -> None:
    model, u = Between(function), directions()
    seen = horizon(model, u)
    assert bool((seen.degree == degree).all())
    with torch.no_grad():
        ratio = model(1e12 * u) / 1e12**degree
    torch.testing.assert_close(seen.coefficient, ratio, rtol=1e-4, atol=1e-6)
    if degree > 1:
        assert bool(torch.isnan(seen.slope).all())
        assert bool(torch.isnan(seen.value).all())


def test_piecewise_linear_slope_is_the_bias_free_network() -> None:
    """lim f(λu)/λ is the network without biases, at u."""
    model = nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2)
    ).double()
    u = directions()
    seen = horizon(model, u)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    with torch.no_grad():
        torch.testing.assert_close(seen.slope, model(u), atol=1e-14, rtol=1e-12)


def test_layer_norm_horizon_is_the_network_with_no_epsilon_and_no_prefix_bias() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2)).double()
    u = directions()
    seen = horizon(model, u)
    nn.init.zeros_(model[0].bias)
    model[1].eps = 0.0
    with torch.no_grad():
        torch.testing.assert_close(seen.value, model(u), atol=1e-13, rtol=0)


def test_a_row_without_variance_is_degenerate_not_guessed() -> None:
    """Along u the bias-free prefix is constant over features up to rounding: LayerNorm's limit is not decided."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.1, 0.2, 0.3]] * 4, dtype=torch.float64))
        model[0].weight[1] = torch.tensor([0.3, 0.1, 0.2], dtype=torch.float64)
    u = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    seen = horizon(model, u)
    assert bool(seen.degenerate[0].all())
    assert bool(torch.isnan(seen.value[0]).all())
    assert not bool(seen.degenerate[1].any())


def test_a_constant_row_exactly_is_decided() -> None:
    """Equal weights cancel exactly in x − mean(x) only if no rounding enters: a single feature copied."""

    def function(x: Tensor) -> Tensor:
        return functional.layer_norm(x.expand(-1, 4) + torch.arange(4.0, dtype=x.dtype), (4,))

    seen = horizon(Plain(function), torch.tensor([[1.0], [0.0]], dtype=torch.float64))
    expected = functional.layer_norm(torch.arange(4.0, dtype=torch.float64), (4,))
    known = ~seen.degenerate
    torch.testing.assert_close(seen.value[known], expected.expand(2, 4)[known], atol=1e-9, rtol=0)
    assert bool(known[1].all())


def test_cancellation_is_not_taken_for_a_slope_nor_a_slope_for_cancellation() -> None:
    generator = torch.Generator().manual_seed(3)
    first = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    second = torch.randn(5, 8, generator=generator, dtype=torch.float64)

    class TwoRoutes(nn.Module):
        def __init__(self, extra: float) -> None:
            super().__init__()
            self.extra = extra
            self.register_buffer("first", first)
            self.register_buffer("second", second)
            self.register_buffer("both", second @ first)

        def forward(self, x: Tensor) -> Tensor:
            long = functional.linear(functional.linear(x, self.first), self.second)
            return torch.sign(long - functional.linear(x, self.both) + self.extra * x[:, :5])

    u = directions()
    assert bool(horizon(TwoRoutes(0.0), u).degenerate.all())
    tiny = horizon(TwoRoutes(1e-9), u)
    assert not bool(tiny.degenerate.any())
    assert bool((tiny.value == torch.sign(u[:, :5])).all())


def test_copies_cancel_exactly() -> None:
    def function(x: Tensor) -> Tensor:
        chosen = x.topk(2, -1).values[:, -1:]
        return torch.softmax(x.masked_fill(x < chosen, -torch.inf), -1) + (x.amax(-1, keepdim=True) - x).amin(
            -1, True
        )

    model, u = Between(function), directions()
    seen = horizon(model, u)
    with torch.no_grad():
        torch.testing.assert_close(seen.value, model(1e9 * u), atol=1e-9, rtol=0)


def test_no_limit_is_degenerate() -> None:
    seen = horizon(Plain(torch.sin), directions())
    assert bool(seen.degenerate.all())
    assert bool((seen.slope == 0).all())
    assert bool(horizon(Plain(torch.exp), directions()).degenerate.any())


def test_several_inputs_and_inputs_that_stand_still() -> None:
    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.state, self.norm, self.head = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(10, 1)

        def forward(self, state: Tensor, action: Tensor) -> Tensor:
            return self.head(torch.cat([self.norm(self.state(state)), action], -1))

    model = Critic().double()
    u, action = directions(8), directions(8, 2, seed=2)
    both = horizon(model, (u, action))
    with torch.no_grad():
        torch.testing.assert_close(both.slope, model(1e9 * u, 1e9 * action) / 1e9, atol=1e-7, rtol=0)
        held = horizon(model, (u, None), example_inputs=(u, action))
        torch.testing.assert_close(held.value, model(1e9 * u, action), atol=1e-7, rtol=0)
    with pytest.raises(InvalidValueError, match="one direction per input"):
        horizon(model, (u,), example_inputs=(u, action))
    with pytest.raises(InvalidValueError, match="example_inputs"):
        horizon(model, (u, None))


def test_a_program_a_static_batch_and_no_batch() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)).double()
    u = directions(7)
    expected = horizon(model, u).slope
    program = capture(model, (torch.zeros(3, 6, dtype=torch.float64),), dynamic_batch=False)
    torch.testing.assert_close(horizon(program, u).slope, expected)
    single = capture(model, (torch.zeros(6, dtype=torch.float64),), dynamic_batch=False)
    torch.testing.assert_close(horizon(single, u[:, None, :][:, 0]).slope, expected)
    torch.testing.assert_close(horizon(program, u[:, None, :].expand(7, 3, 6)).slope[:, 0], expected)


def test_float32_weights_are_followed_in_float64() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    u = directions()
    seen = horizon(model, u)
    assert seen.slope.dtype == torch.float64
    with torch.no_grad():
        torch.testing.assert_close(seen.slope, model.double()(1e12 * u) / 1e12, atol=1e-9, rtol=0)


def test_jet_arithmetic_by_hand() -> None:
    slope, start = torch.tensor([[2.0, -3.0], [1.0, 0.5]], dtype=torch.float64)
    x = ray(slope, start)
    squared = multiply(x, x, -2.0)
    assert squared.powers == (2.0, 1.0, 0.0)
    assert squared.values.tolist() == [[4.0, 9.0], [4.0, -3.0], [1.0, 0.25]]
    inverse = power(x, -1.0, -3.0)
    for radius in (1e3, 1e4):
        value = 1 / (radius * slope + start)
        assert float((inverse.evaluate(radius) - value).abs().max()) < 2 * radius**-4
    assert lead(difference(x, x)).sign.tolist() == [0.0, 0.0]
    assert maximum(x, constant(torch.zeros(2))).at(1.0).tolist() == [2.0, 0.0]
    assert math.isclose(monomial(1 + LOG_STEP, 10.0), 10 * math.log(10.0))
