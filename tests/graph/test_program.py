"""The program value itself: its invariants, its graph, its sizes."""

import dataclasses
import math
import pickle

import networkx as nx
import pytest
import sympy
import torch
from torch import nn

from farfield.errors import InvalidValueError, UnknownNameError
from farfield.graph import InputSpec, Node, Program, SymbolicSize, capture

F32 = torch.float32


def small() -> Program:
    """y = relu(x) · x, by hand."""
    shape = (SymbolicSize(sympy.Symbol("s0")), 2)
    return Program(
        nodes=(
            Node("x", "input", shape=shape, dtype=F32, role="input"),
            Node("r", "relu", "aten.relu.default", ("x",), shape=shape, dtype=F32),
            Node("y", "mul", "aten.mul.Tensor", ("r", "x"), shape=shape, dtype=F32),
            Node("output", "identity", "output", ("y",), shape=shape, dtype=F32, role="output"),
        ),
        inputs=(InputSpec("x", shape, F32, "real"),),
        outputs=("output",),
    )


def test_nodes_users_and_paths():
    program = small()
    assert program.node("r").inputs == ("x",)
    assert program.users("x") == ("r", "y")
    assert program.find("relu", "mul") == (program.node("r"), program.node("y"))
    graph = program.to_networkx()
    assert graph is program.to_networkx()
    assert graph.nodes["r"]["node"] is program.node("r")
    assert list(nx.all_simple_paths(graph, "x", "output")) == [
        ["x", "r", "y", "output"],
        ["x", "y", "output"],
    ]
    assert nx.immediate_dominators(graph, "x")["output"] == "y"
    with pytest.raises(UnknownNameError, match="Did you mean 'output'"):
        program.node("outputs")
    with pytest.raises(UnknownNameError):
        program.users("nobody")


def test_a_program_by_hand_runs():
    x = torch.tensor([[1.0, -2.0]])
    assert torch.equal(small().evaluate(x)["output"], torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    assert small().evaluate(x, dtype=None)["output"].dtype == F32


def test_invariants_are_checked():
    x, r, y, out = small().nodes
    spec, outputs = small().inputs, ("output",)
    with pytest.raises(InvalidValueError, match="only earlier nodes"):
        Program((x, y, r, out), spec, outputs)
    with pytest.raises(InvalidValueError, match="occurs twice"):
        Program((x, r, r, y, out), spec, outputs)
    with pytest.raises(InvalidValueError, match="are not"):
        Program((x, r, y), spec, outputs)


def test_wrong_inputs_are_refused():
    program = small()
    with pytest.raises(InvalidValueError, match="takes 1 tensors"):
        program.evaluate()
    with pytest.raises(InvalidValueError, match=r"has shape \['s0', 2\]"):
        program.evaluate(torch.zeros(3, 3))
    with pytest.raises(InvalidValueError, match="was given"):
        program.evaluate(torch.zeros(2))


def test_equal_symbols_must_meet_equal_sizes():
    class Pair(nn.Module):
        def forward(self, a, b):
            return a + b

    program = capture(Pair(), (torch.zeros(3, 2), torch.zeros(3, 2)))
    assert program.evaluate(torch.ones(5, 2), torch.ones(5, 2))["output"].shape == (5, 2)
    with pytest.raises(InvalidValueError, match="equal symbols"):
        program.evaluate(torch.ones(5, 2), torch.ones(4, 2))


def test_sizes_are_strings_that_compute():
    s = sympy.Symbol("s0")
    size = SymbolicSize(4 * s + 1)
    assert size == "4*s0 + 1"
    assert size.symbols == {"s0"}
    assert size.value({"s0": 3}) == 13
    assert pickle.loads(pickle.dumps(size)) == size
    with pytest.raises(InvalidValueError, match="dynamic_batch=False"):
        size.value({})


def test_programs_survive_pickling():
    program = capture(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), torch.zeros(2, 4))
    again = pickle.loads(pickle.dumps(program))
    x = torch.randn(5, 4)
    assert again.nodes == program.nodes
    assert torch.equal(again.evaluate(x)["output"], program.evaluate(x)["output"])


def test_defaults_are_filled_in_and_axes_count_from_the_front():
    class Steps(nn.Module):
        def forward(self, x):
            y = torch.softmax(x, -1).transpose(-1, -2)
            return torch.cat([y, y + 2], -1).sum(-2), nn.functional.leaky_relu(x)

    program = capture(Steps(), torch.zeros(2, 3, 4))
    assert program.find("softmax")[0].attributes["dim"] == 2
    assert program.find("permute")[0].attributes["dims"] == (0, 2, 1)
    assert program.find("cat")[0].attributes["dim"] == 2
    assert program.find("sum")[0].attributes == {"dim": (1,), "keepdim": False, "dtype": None}
    assert program.find("leaky_relu")[0].attributes["negative_slope"] == 0.01
    add = program.find("add")[0]
    assert add.inputs[1] is None
    assert add.attributes == {"other": 2, "alpha": 1}


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("s0", 1, math.inf),
        ("u0", 0, math.inf),
        ("4*s0", 4, math.inf),
        ("s0 - 3", -2, math.inf),
        ("3 - s0", -math.inf, 2),
        ("floor(s0/3)", -math.inf, math.inf),
        ("Max(1, s0 - 2)", 1, math.inf),
    ],
)
def test_a_size_is_bounded_by_its_expression(text, least, most):
    """Only a symbol itself is known to be at least 1; what is computed from it can be 0 or negative."""
    assert SymbolicSize(sympy.sympify(text)).bounds == (least, most)


def test_inputs_with_one_batch_are_no_condition():
    class Critic(nn.Module):
        def forward(self, state, action):
            return torch.cat([state, action], 1)

    program = capture(Critic(), (torch.zeros(2, 3), torch.zeros(2, 1)))
    assert program.conditions == ()
    guards = ("L['state'].size()[0] == L['action'].size()[0]", "L['state'].size()[0] <= 512")
    guarded = dataclasses.replace(program, guards=guards)
    assert [c.partition("with ")[2].partition(";")[0] for c in guarded.conditions] == [
        "state.shape[0] <= 512"
    ]
