"""Running a program on jets: every node's series along a batch of rays, in one pass."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from farfield.errors import FarfieldError, InvalidValueError
from farfield.graph import Node, Program, last_uses
from farfield.graph._interpret import check_shape, learn_sizes, resolved
from farfield.graph._wide import is_narrow
from farfield.growth import jets
from farfield.growth._extent import Reason
from farfield.growth._jet import ROUNDING, Jet, constant, stored, unknown_like
from farfield.growth._step import JetValue, Step

__all__ = ["LOWEST", "UnseenSizeError", "run_jets"]

LOWEST = -2.0
"""Powers below this one are dropped when lower-order terms are wanted at all."""


class UnseenSizeError(FarfieldError, ValueError):
    """The size of some value depends on what happens at infinity: how many entries a mask selects, say."""


def run_jets(
    program: Program,
    inputs: Mapping[str, Jet],
    *,
    lowest: float = 0.0,
    keep: Sequence[str] | None = None,
    phase: float | None = None,
) -> tuple[dict[str, JetValue], tuple[Reason, ...]]:
    """The jet of every node (of those in ``keep``), and the nodes that could not be followed to infinity.

    Parameters
    ----------
    program
        From :func:`farfield.graph.capture`.
    inputs
        The jet of every input, by name; inputs that do not move are constants.
    lowest
        Powers below this are not followed.
    keep
        Names of the nodes wanted; the outputs by default. Others are freed once used up.
    phase
        See :class:`~farfield.growth._step.Step`.
    """
    wanted = frozenset(program.outputs if keep is None else keep)
    last = last_uses(program.nodes)
    sizes = _sizes(program, inputs)
    values: dict[str, JetValue] = {}
    count = itertools.count(1)
    notes: list[Reason] = []
    for position, node in enumerate(program.nodes):
        if node.role == "input":
            values[node.name] = _numbered(inputs[node.name], count)
        elif node.role != "constant":
            # Constants are brought to float64 where they are used and then let go: weights are most of the memory.
            layer = _is_moving_layer(node, values)
            operands = tuple(
                None if name is None else _operand(program, values, name, layer and place == 1)
                for place, name in enumerate(node.inputs)
            )
            step = Step(resolved(node, sizes, torch.float64), operands, lowest, phase)
            values[node.name] = _numbered(_advance(step, notes), count)
            learn_sizes(node.shape, values[node.name], sizes)
        for name in (*node.operands, node.name):
            if last[name] <= position and name not in wanted:
                values.pop(name, None)
    return values, tuple(notes)


def _is_moving_layer(node: Node, values: Mapping[str, JetValue]) -> bool:
    """A linear layer whose argument moves: its weight, the second argument, may stay in its own type."""
    first = node.inputs[0] if node.op == "linear" else None
    return first is not None and first in values and not _still(values[first])


def _operand(program: Program, values: Mapping[str, JetValue], name: str, is_weight: bool) -> JetValue:
    if name in values:
        return values[name]
    tensor = program.constants[name].detach()
    return constant(tensor, narrow=is_weight and is_narrow(tensor, torch.float64))


def _numbered(value: JetValue, count: Iterator[int]) -> JetValue:
    """Numbers for entries that are not copies of earlier ones."""
    if isinstance(value, tuple):
        return tuple(_numbered_jet(part, count) for part in value)
    return _numbered_jet(value, count)


def _numbered_jet(jet: Jet, count: Iterator[int]) -> Jet:
    if jet.origin is not None or not jet.values.is_floating_point():
        return jet
    size = math.prod(jet.shape)
    start = next(count) << 40
    origin = torch.arange(start, start + size, device=jet.values.device).reshape(jet.shape)
    return replace(jet, origin=origin)


def _advance(step: Step, notes: list[Reason]) -> JetValue:
    node, operands, lowest = step.node, step.operands, step.lowest
    if any(operand == () for operand in operands):
        return _lost(node, operands)
    if all(_still(operand) for operand in operands):
        return _computed(step)
    rule = jets.rule_of(node)
    if rule is None:
        what = node.target if node.op == "unknown" else node.op
        notes.append(Reason(node.name, f"no jet rule for operator {what!r}"))
        return _lost(node, operands)
    try:
        result = rule(step)
    except Exception as error:
        # A rule that fails must not turn into a number, nor end the audit: the node is lost and says so.
        notes.append(Reason(node.name, f"the jet rule of {node.op!r} failed: {error}"))
        return _lost(node, operands)
    if isinstance(result, tuple):
        return tuple(part.trimmed(lowest) for part in result)
    return stored(result.trimmed(lowest), node.dtype)


def _still(operand: JetValue | None) -> bool:
    if operand is None:
        return True
    parts = operand if isinstance(operand, tuple) else (operand,)
    return all(part.is_constant for part in parts)


def _plain(operand: JetValue | None) -> Any:
    if operand is None:
        return None
    if isinstance(operand, tuple):
        return tuple(part.values[0] for part in operand)
    return operand.values[0]


def _computed(step: Step) -> JetValue:
    """A node none of whose operands moves: its value, with the rounding of one operation."""
    value = step.compute(*(_plain(operand) for operand in step.operands))
    exact = all(_errorless(operand) for operand in step.operands) and not step.operands
    parts = value if isinstance(value, tuple | list) else (value,)
    made = []
    for part in parts:
        jet = constant(part)
        if part.is_floating_point() and not exact:
            errors = jet.errors + 4 * ROUNDING * jet.values.detach().abs()
            jet = Jet(jet.powers, jet.values, errors, jet.floor)
        made.append(jet)
    return tuple(made) if isinstance(value, tuple | list) else made[0]


def _errorless(operand: JetValue | None) -> bool:
    if operand is None:
        return True
    parts = operand if isinstance(operand, tuple) else (operand,)
    return all(not bool(part.errors.any()) for part in parts)


def _lost(node: Node, operands: tuple[JetValue | None, ...]) -> JetValue:
    """An operator nobody can follow: its shape, and a floor of +∞. Nothing is run on values that no input gives."""
    if node.dtype is None and not node.shape:
        return ()  # several tensors: the nodes that pick one of them know its shape
    if not all(isinstance(size, int) for size in node.shape):
        raise UnseenSizeError(
            f"The size {list(node.shape)} of {node.name!r} at {node.place} depends on values that are not known at "
            "infinity, so nothing after it can be followed."
        )
    first = next((o for o in operands if isinstance(o, Jet)), None)
    device = None if first is None else first.values.device
    return unknown_like(constant(torch.zeros([int(d) for d in node.shape], device=device)))


def _sizes(program: Program, inputs: Mapping[str, Jet]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for spec in program.inputs:
        if spec.name not in inputs:
            raise InvalidValueError(f"Input {spec.name!r} needs a direction, or a value to stay at.")
        check_shape(spec, tuple(inputs[spec.name].shape), sizes)
    return sizes
