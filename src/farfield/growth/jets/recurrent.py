"""Jets of recurrent layers: the cell's equations, step by step, in the arithmetic of jets."""

from __future__ import annotations

from collections.abc import Callable

from farfield.gaussian import scalar_function
from farfield.growth._jet import Jet, add, multiply, scale, shift
from farfield.growth._leading import join, take
from farfield.growth._step import Step, register_jet_rule
from farfield.growth.jets.elementwise import apply_scalar
from farfield.growth.jets.linear import matrix_product, transposed

__all__: list[str] = []

State = tuple[Jet, ...]
Cell = Callable[[Jet, State, list[Jet], float], State]


def _affine(x: Jet, weight: Jet, bias: Jet | None, lowest: float) -> Jet:
    product = matrix_product(x, transposed(weight), lowest)
    return product if bias is None else add(product, bias)


def _pieces(jet: Jet, count: int) -> list[Jet]:
    width = jet.shape[-1] // count
    return [take(jet, jet.ndim - 1, i * width, width) for i in range(count)]


def _sigmoid(jet: Jet) -> Jet:
    return apply_scalar(jet, scalar_function("sigmoid"))


def _tanh(jet: Jet) -> Jet:
    return apply_scalar(jet, scalar_function("tanh"))


def _biases(weights: list[Jet]) -> tuple[Jet | None, Jet | None]:
    return (weights[2], weights[3]) if len(weights) >= 4 else (None, None)


def _lstm_cell(x: Jet, state: State, weights: list[Jet], lowest: float) -> State:
    hidden, cell = state
    first, second = _biases(weights)
    gates = add(_affine(x, weights[0], first, lowest), _affine(hidden, weights[1], second, lowest))
    i, f, g, o = _pieces(gates, 4)
    cell = add(multiply(_sigmoid(f), cell, lowest), multiply(_sigmoid(i), _tanh(g), lowest))
    hidden = multiply(_sigmoid(o), _tanh(cell), lowest)
    if len(weights) in (3, 5):
        hidden = _affine(hidden, weights[-1], None, lowest)
    return hidden, cell


def _gru_cell(x: Jet, state: State, weights: list[Jet], lowest: float) -> State:
    (hidden,) = state
    first, second = _biases(weights)
    xr, xz, xn = _pieces(_affine(x, weights[0], first, lowest), 3)
    hr, hz, hn = _pieces(_affine(hidden, weights[1], second, lowest), 3)
    reset, update = _sigmoid(add(xr, hr)), _sigmoid(add(xz, hz))
    fresh = _tanh(add(xn, multiply(reset, hn, lowest)))
    kept = multiply(shift(scale(update, -1.0), 1.0), fresh, lowest)
    return (add(kept, multiply(update, hidden, lowest)),)


def _plain_cell(activation: str) -> Cell:
    def cell(x: Jet, state: State, weights: list[Jet], lowest: float) -> State:
        first, second = _biases(weights)
        total = add(_affine(x, weights[0], first, lowest), _affine(state[0], weights[1], second, lowest))
        return (apply_scalar(total, scalar_function(activation)),)

    return cell


def _pick(jet: Jet, dim: int, index: int) -> Jet:
    return Jet(
        jet.powers,
        jet.values.select(dim + 1, index),
        jet.errors.select(dim + 1, index),
        jet.full_floor().select(dim, index),
    )


def _stack(jets: list[Jet], dim: int) -> Jet:
    lifted = [
        Jet(j.powers, j.values.unsqueeze(dim + 1), j.errors.unsqueeze(dim + 1), j.full_floor().unsqueeze(dim))
        for j in jets
    ]
    return join(lifted, dim)


def _run(cell: Cell) -> Callable[[Step], tuple[Jet, ...]]:
    def rule(step: Step) -> tuple[Jet, ...]:
        a = step.attributes
        count = int(a["num_states"])
        initial = [step.jet(1 + i) for i in range(count)]
        weights = [step.jet(i) for i in range(1 + count, len(step.operands))]
        directions = 2 if a["bidirectional"] else 1
        each = len(weights) // (int(a["num_layers"]) * directions)
        x = step.jet(0)
        time = 1 if a["batch_first"] and x.ndim == 3 else 0
        sequence = [_pick(x, time, t) for t in range(x.shape[time])]
        final: list[list[Jet]] = [[] for _ in range(count)]
        for layer in range(int(a["num_layers"])):
            outputs = []
            for direction in range(directions):
                slot = layer * directions + direction
                own = weights[slot * each : (slot + 1) * each]
                state: State = tuple(_pick(s, 0, slot) for s in initial)
                made = []
                for item in reversed(sequence) if direction else sequence:
                    state = tuple(s.trimmed(step.lowest) for s in cell(item, state, own, step.lowest))
                    made.append(state[0])
                outputs.append(made[::-1] if direction else made)
                for kept, s in zip(final, state, strict=True):
                    kept.append(s)
            sequence = outputs[0]
            if directions == 2:
                sequence = [join([f, b], f.ndim - 1) for f, b in zip(*outputs, strict=True)]
        return _stack(sequence, time), *(_stack(group, 0) for group in final)

    return rule


register_jet_rule("lstm", _run(_lstm_cell))
register_jet_rule("gru", _run(_gru_cell))
register_jet_rule("rnn_tanh", _run(_plain_cell("tanh")))
register_jet_rule("rnn_relu", _run(_plain_cell("relu")))
