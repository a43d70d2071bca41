"""Recurrent layers, kept whole: every layer, direction and time step in one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from farfield.graph._node import Node
from farfield.graph.operators._bindings import example, real
from farfield.graph.operators._registry import Call, Operator, Target

__all__ = ["OPERATORS"]

_FLAGS = ("has_biases", "num_layers", "bidirectional", "batch_first")


def _states(call: Call) -> dict[str, Any]:
    """Initial states flattened beside the input: ``hx`` is one tensor for GRU and RNN, two for LSTM."""
    a = dict(call.arguments)
    states = a.pop("hx")
    states = states if isinstance(states, tuple) else (states,)
    return {
        **{key: a[key] for key in _FLAGS},
        "num_states": len(states),
        "tensors": (a["input"], *states, *a["params"]),
    }


def _run(function: Callable[..., Any]) -> Callable[[Node, Sequence[Any]], Any]:
    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        a = node.attributes
        count = a["num_states"]
        states: Any = list(tensors[1 : 1 + count])
        return tuple(
            function(
                tensors[0],
                states if count > 1 else states[0],
                list(tensors[1 + count :]),
                a["has_biases"],
                a["num_layers"],
                0.0,
                False,
                a["bidirectional"],
                a["batch_first"],
            )
        )

    return compute


def _two_layers(kind: str) -> Callable[..., Any]:
    """A two-layer network of this kind as a function of its input and its weights."""
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    function = getattr(torch, kind)

    def call(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Any:
        zeros = x.new_zeros(2, x.shape[1], 3)
        weights = [a[: 3 * gates], b[: 3 * gates], c[: 3 * gates], d[: 3 * gates]]
        states = [zeros, zeros] if kind == "lstm" else zeros
        return function(x, states, weights, False, 2, 0.0, False, False, False)

    return call


_SAMPLES = (real(5, 2, 4), real(12, 4), real(12, 3), real(12, 3), real(12, 3))


def _recurrent(name: str, kind: str, summary: str) -> Operator:
    return Operator(
        name,
        "recurrent",
        summary
        + "; returns the outputs of the last layer, then the final states. Tensors: input, num_states "
        "initial states, then the weights layer by layer",
        ("*tensors",),
        (Target(f"aten.{kind}.input", _states),),
        _run(getattr(torch, kind)),
        (example(_two_layers(kind), *_SAMPLES),),
        returns_tuple=True,
    )


OPERATORS = (
    _recurrent("lstm", "lstm", "long short-term memory: c ← f·c + i·tanh(…), h = o·tanh(c)"),
    _recurrent("gru", "gru", "gated recurrent unit: h ← (1 − z)·n + z·h with n = tanh(…)"),
    _recurrent("rnn_tanh", "rnn_tanh", "h ← tanh(W x + U h + b)"),
    _recurrent("rnn_relu", "rnn_relu", "h ← relu(W x + U h + b)"),
)
