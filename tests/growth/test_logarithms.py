"""Numbers kept as a sign and a logarithm are the numbers that torch computes, wherever both know them."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from tests.graph.models import Lambda
from torch import nn

from farfield.graph import capture
from farfield.growth._logarithms import run_signed

LAYER = nn.Linear(4, 4).double()
FUNCTIONS = {
    "layers": lambda m, x: torch.exp(m.layer(torch.relu(m.layer(x)))),
    "quotients": lambda m, x: (x - 2) / (1 + x.square()) - x.abs().sqrt() / 3,
    "powers": lambda m, x: x**3 - torch.reciprocal(x) + x.abs() ** 0.5,
    "hyperbolic": lambda m, x: torch.sinh(x) * torch.cosh(-x),
    "choices": lambda m, x: torch.maximum(x, -x.flip(-1)) + torch.minimum(x, 2 * x) + x.clamp(-0.5, 0.7),
    "moves": lambda m, x: torch.cat([x, m.layer(x)], -1).reshape(-1, 2, 4).transpose(1, 2).sum(-1),
    "logarithms": lambda m, x: torch.log(x * x + 0.5) * torch.log1p(x.abs()),
    "gates": lambda m, x: torch.sigmoid(x) * torch.tanh(x + 1) - torch.softmax(x, -1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_where_float64_reaches_both_are_the_same(name):
    x = torch.randn(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = Lambda(FUNCTIONS[name], layer=LAYER).double()
    found, _ = run_signed(capture(model, x), [x], 0)
    expected = model(x).detach()
    assert not bool(found.log.isnan().any())
    torch.testing.assert_close(found.scaled(), expected, rtol=1e-9, atol=0.0)


def test_far_away_the_logarithm_is_mpmaths():
    program = capture(Lambda(lambda m, x: torch.exp(x) / (1 + torch.exp(x / 2 - 600))), torch.zeros(2, 1))
    for x in (900.0, 5e3, 1e9, 1e60):
        found, largest = run_signed(program, [torch.tensor([[x]], dtype=torch.float64)], 0)
        with mpmath.workdps(100):
            exact = mpmath.mpf(x) - mpmath.log1p(mpmath.exp(mpmath.mpf(x) / 2 - 600))
            assert abs(float(found.log) - exact) <= 1e-12 * largest


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: torch.exp(x) - torch.exp(x),
        lambda m, x: (1 - torch.sigmoid(x)) * torch.exp(x),
        lambda m, x: torch.softmax(torch.cat([x, 0 * x], -1), -1)[:, 1:] * torch.exp(x),
        lambda m, x: torch.exp(torch.exp(x)),
    ],
    ids=["cancels", "loses a digit", "too small for float64", "too large"],
)
def test_what_rounding_leaves_undecided_is_not_a_number(function):
    program = capture(Lambda(function), torch.zeros(2, 1))
    found, _ = run_signed(program, [torch.tensor([[1e3]], dtype=torch.float64)], 0)
    assert math.isnan(float(found.log))
