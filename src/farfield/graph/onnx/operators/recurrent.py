"""``LSTM``, ``GRU`` and ``RNN`` by torch's own: the gates are put into torch's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from farfield.graph.onnx._table import onnx_operator
from farfield.graph.onnx._values import Arguments, UnsupportedOnnxError

__all__: list[str] = []


def _ordered(weight: Tensor, order: Sequence[int]) -> Tensor:
    """Blocks of rows in another order."""
    parts = weight.chunk(len(order), 0)
    return torch.cat([parts[k] for k in order], 0)


def _checked(a: Arguments, defaults: Sequence[str]) -> tuple[Tensor, int, str]:
    """The input as (time, batch, features), the number of directions, and which one; refuses what torch lacks."""
    if a.attribute("clip") is not None:
        raise UnsupportedOnnxError("a recurrent network with clipped gates")
    direction = a.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    given = a.attribute("activations")
    if given is not None and [str(g) for g in given] != list(defaults) * directions:
        raise UnsupportedOnnxError(f"a recurrent network with the activations {', '.join(map(str, given))}")
    x = a.tensor(0)
    x = x.transpose(0, 1) if a.attribute("layout", 0) else x
    if a.has(4):
        lengths = a.vector(4)
        if lengths is None or any(n != x.shape[0] for n in lengths.values):
            raise UnsupportedOnnxError("a recurrent network over sequences of unequal length")
    return (torch.flip(x, [0]) if direction == "reverse" else x), directions, direction


def _weights(a: Arguments, directions: int, order: Sequence[int]) -> list[Tensor]:
    w, r, b = a.tensor(1), a.tensor(2), a.optional(3)
    size = a.attribute("hidden_size")
    shapes = [directions, len(order) * size, size], [directions, len(order) * size, w.shape[2]]
    if [list(r.shape), list(w.shape)] != list(shapes):
        raise UnsupportedOnnxError(
            "a recurrent network whose weights do not fit its size; is its state projected?"
        )
    made: list[Tensor] = []
    for k in range(directions):
        made += [_ordered(w[k], order), _ordered(r[k], order)]
        if b is not None:
            made += [_ordered(half, order) for half in b[k].chunk(2, 0)]
    return made


def _start(a: Arguments, index: int, directions: int, x: Tensor) -> Tensor:
    given = a.optional(index)
    if given is None:
        return torch.zeros(directions, x.shape[1], a.attribute("hidden_size"), dtype=x.dtype)
    return given.transpose(0, 1) if a.attribute("layout", 0) else given


def _results(a: Arguments, out: Tensor, states: Sequence[Tensor], directions: int, direction: str) -> Any:
    time, batch = out.shape[0], out.shape[1]
    every = out.reshape(time, batch, directions, -1).transpose(1, 2)
    every = torch.flip(every, [0]) if direction == "reverse" else every
    last = list(states)
    if a.attribute("layout", 0):
        every = every.permute(2, 0, 1, 3)
        last = [s.transpose(0, 1) for s in last]
    return (every, *last)[: max(a.outputs, 1)]


@onnx_operator("LSTM")
def _lstm(a: Arguments) -> Any:
    x, directions, direction = _checked(a, ("Sigmoid", "Tanh", "Tanh"))
    if a.has(7) or a.attribute("input_forget", 0):
        raise UnsupportedOnnxError("an LSTM with peepholes or coupled gates")
    weights = _weights(a, directions, (0, 2, 3, 1))  # i o f c → i f g o
    state = (_start(a, 5, directions, x), _start(a, 6, directions, x))
    out, last, cell = torch.lstm(x, state, weights, a.has(3), 1, 0.0, False, directions == 2, False)
    return _results(a, out, (last, cell), directions, direction)


@onnx_operator("GRU")
def _gru(a: Arguments) -> Any:
    x, directions, direction = _checked(a, ("Sigmoid", "Tanh"))
    start = _start(a, 5, directions, x)
    if a.attribute("linear_before_reset", 0):
        weights = _weights(a, directions, (1, 0, 2))  # z r h → r z n
        out, last = torch.gru(x, start, weights, a.has(3), 1, 0.0, False, directions == 2, False)
        return _results(a, out, (last,), directions, direction)
    if not isinstance(x.shape[0], int):
        raise UnsupportedOnnxError("a GRU that resets before its product, over an open number of steps")
    w, r, b = a.tensor(1), a.tensor(2), a.optional(3)
    outs, lasts = [], []
    for k in range(directions):
        given = torch.flip(x, [0]) if k else x
        out, last = _reset_first(given, start[k], w[k], r[k], None if b is None else b[k])
        outs.append(torch.flip(out, [0]) if k else out)
        lasts.append(last)
    return _results(a, torch.cat(outs, -1), (torch.stack(lasts),), directions, direction)


def _reset_first(x: Tensor, h: Tensor, w: Tensor, r: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
    """One direction of a GRU whose candidate is tanh(Wx + R(r ⊙ h) + b)."""
    (wz, wr, wh), (rz, rr, rh) = w.chunk(3, 0), r.chunk(3, 0)
    zero = [None] * 6 if b is None else list(b.chunk(6, 0))
    bz, br, bh = (
        None if zero[k] is None else zero[k] + zero[k + 3]  # type: ignore[operator]
        for k in range(3)
    )
    steps = []
    for t in range(x.shape[0]):
        z = torch.sigmoid(F.linear(x[t], wz, bz) + F.linear(h, rz))
        reset = torch.sigmoid(F.linear(x[t], wr, br) + F.linear(h, rr))
        candidate = torch.tanh(F.linear(x[t], wh, bh) + F.linear(reset * h, rh))
        h = (1.0 - z) * candidate + z * h
        steps.append(h)
    return torch.stack(steps), h


@onnx_operator("RNN")
def _rnn(a: Arguments) -> Any:
    given = a.attribute("activations")
    relu = given is not None and set(map(str, given)) == {"Relu"}
    x, directions, direction = _checked(a, ("Relu",) if relu else ("Tanh",))
    weights, start = _weights(a, directions, (0,)), _start(a, 5, directions, x)
    run = torch.rnn_relu if relu else torch.rnn_tanh
    out, last = run(x, start, weights, a.has(3), 1, 0.0, False, directions == 2, False)
    return _results(a, out, (last,), directions, direction)
