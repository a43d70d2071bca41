"""How fast something decays, read from the operations that make it."""

import math

import pytest
import torch
from torch import nn

from farfield.graph import capture
from farfield.growth._domination import decay_powers
from farfield.growth._paths import _raw


def program_of(function):
    class Plain(nn.Module):
        def forward(self, x):
            return function(x)

    return capture(Plain(), (torch.randn(2, 3),))


@pytest.mark.parametrize(
    ("function", "op", "powers"),
    [
        (lambda x: torch.exp(-x.abs()), "exp", {math.inf}),
        (lambda x: torch.exp(x.abs()), "exp", set()),
        (lambda x: torch.reciprocal(x.abs() + 1.0), "reciprocal", {1.0}),
        (lambda x: torch.rsqrt(x * x + 1.0), "rsqrt", {0.5, 1.0}),
        (lambda x: torch.tanh(-x.abs()), "tanh", set()),
        (lambda x: torch.sigmoid(-x * x), "sigmoid", set()),
    ],
    ids=["exp", "growing", "reciprocal", "rsqrt", "tanh", "sigmoid"],
)
def test_powers_of_what_decays(function, op, powers):
    program = program_of(function)
    (node,) = program.find(op)
    assert set(decay_powers(node.name, program.node).values()) == powers


def test_inputs_scaled_and_shifted_by_constants_are_still_raw():
    program = program_of(lambda x: torch.tanh(2.0 * x.reshape(3, 2) + 1.0) + x.sum())
    raw = {program.node(name).op for name in _raw(program)}
    assert raw >= {"input", "mul", "add", "reshape"} and not raw & {"tanh", "sum"}
    shifted = program_of(lambda x: torch.relu(x + torch.arange(3.0)))
    (add,) = shifted.find("add")
    assert add.name in _raw(shifted)
