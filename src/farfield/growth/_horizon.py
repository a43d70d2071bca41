"""The horizon of a network: what it tends to, or how it grows, along each direction. One pass, exact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves, tree_map

from farfield.errors import InvalidValueError
from farfield.graph import InputSpec, Program, SymbolicSize, capture, is_onnx, read_onnx
from farfield.growth._extent import Reason
from farfield.growth._jet import MASKED, Jet, as_real, constant, ray
from farfield.growth._leading import join, lead
from farfield.growth._rays import LOWEST, run_jets

__all__ = ["Horizon", "horizon"]

INF = math.inf


@dataclass(frozen=True, slots=True, eq=False)
class Horizon:
    """What one output of a network does along λu as λ → ∞, for a batch of directions u.

    Every tensor has the shape of the output, its first axis running over the directions.

    Parameters
    ----------
    value
        lim f(λu) where there is a finite one, NaN elsewhere.
    slope
        lim f(λu)/λ: 0 where f tends to a value, NaN where it grows faster than linearly or is degenerate.
    degree
        The leading power p of λ: 0 for a finite limit, 1 for a slope, also fractional; a logarithm adds a
        tiny amount. NaN where degenerate.
    coefficient
        lim f(λu)/λ^degree.
    degenerate
        Neither a limit nor a leading term can be given: a decision on the way (which side of a ReLU, a tie in
        a softmax, a row without variance) is within rounding error, the limit does not exist (a sine), or
        growth is faster than every power.
    notes
        Operators that could not be followed.
    """

    value: Tensor
    slope: Tensor
    degree: Tensor
    coefficient: Tensor
    degenerate: Tensor
    notes: tuple[Reason, ...] = ()

    def __len__(self) -> int:
        return int(self.value.shape[0])


def horizon(
    model: nn.Module | ExportedProgram | Program | str | Path,
    directions: Tensor | Sequence[Tensor | None],
    *,
    example_inputs: Any = None,
    output: int = 0,
) -> Horizon:
    """The limit of f(λu) (or of f(λu)/λ) for every direction u, exactly and in one pass.

    Each node's value along the ray is carried as a truncated series in λ: biases enter at power 0, a ReLU
    follows the sign of the leading coefficient, a LayerNorm whose argument grows becomes LayerNorm with ε = 0
    of that coefficient, a softmax becomes one-hot on the largest leading coefficient. So the far field of a
    network is itself a network on the sphere, one forward pass long. Computed in float64 whatever the model's
    dtype; real arithmetic up to rounding, with directions that rounding cannot decide reported as
    ``degenerate``.

    Parameters
    ----------
    model
        A module, an exported program, a file holding one, or a captured :class:`farfield.graph.Program`.
    directions
        Shape ``(m, *input shape)``, the model's batch axis running over directions; or one axis more, each
        direction a whole input (slower, for models without a batch axis). For several inputs a sequence with
        one entry per input; ``None`` holds that input at its example.
    example_inputs
        As for :func:`farfield.graph.capture`; needed for inputs that do not move. Rows are taken from it in
        turn.
    output
        Which of the model's outputs.

    Returns
    -------
    Horizon
        Cost: about four to eight forward passes in float64.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> _ = [p.data.fill_(1.0) for p in model.parameters()]
    >>> horizon(model, torch.tensor([[1.0], [-1.0]])).slope.flatten().tolist()
    [2.0, 0.0]
    """
    given = [directions] if isinstance(directions, Tensor) else list(directions)
    if isinstance(model, str | Path) and is_onnx(model):
        model = read_onnx(model)
    program = _captured(model, given, example_inputs)
    starts = [None] * len(given) if example_inputs is None else leaves(example_inputs)
    if len(given) != len(program.inputs) or len(starts) != len(program.inputs):
        names = ", ".join(spec.name for spec in program.inputs)
        raise InvalidValueError(
            f"The model takes {len(program.inputs)} tensors ({names}); got {len(given)} directions and "
            f"{len(starts)} example inputs. Pass one direction per input, None for those that stand still."
        )
    jet, notes = follow(program, given, starts, output)
    if jet.values.is_complex():
        raise InvalidValueError(
            f"Output {program.outputs[output]!r} is complex; take its real or imaginary part for a horizon."
        )
    return read(jet, notes)


def with_rows(inputs: Any) -> Any:
    """The same example inputs, a row of zeros for each that is an empty batch: there has to be something to run."""

    def filled(leaf: Any) -> Any:
        empty = isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == 0
        return leaf.new_zeros((1, *leaf.shape[1:])) if empty else leaf

    return tree_map(filled, inputs)


def leaves(inputs: Any) -> list[Any]:
    """Tensors of nested example inputs, in the order the program takes them."""
    return [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]


def _captured(model: Any, given: Sequence[Tensor | None], example_inputs: Any) -> Program:
    if isinstance(model, Program):
        return model
    if example_inputs is None and isinstance(model, nn.Module):
        dtype = next(
            (p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype()
        )
        if any(u is None for u in given):
            raise InvalidValueError("An input without a direction stays at its example: pass example_inputs.")
        example_inputs = tuple(u.detach().to(dtype) for u in given if u is not None)
    return capture(model, () if example_inputs is None else example_inputs)


def follow(
    program: Program,
    directions: Sequence[Tensor | None],
    starts: Sequence[Tensor | None],
    output: int = 0,
    lowest: float | None = None,
    phase: float | None = None,
) -> tuple[Jet, tuple[Reason, ...]]:
    """The jet of one output along every direction; its first axis runs over the directions.

    Lower-order terms are followed only if, without them, some direction stays unresolved: a vanishing
    term times a growing one needs them. ``lowest`` says where to stop instead; ``phase`` fixes sines, see
    :class:`~farfield.growth._step.Step`.
    """
    found: list[Jet] = []
    notes: dict[Reason, None] = {}
    name = program.outputs[output]
    whole = takes_whole_inputs(program, directions)
    for chunk in chunks(program, directions, starts):
        jet, said = _output_jet(program, chunk, name, 0.0 if lowest is None else lowest, phase)
        if lowest is None and bool(_unresolved(jet).any()):
            jet, said = _output_jet(program, chunk, name, LOWEST, phase)
        notes.update(dict.fromkeys(said))
        if whole:
            jet = Jet(
                jet.powers, jet.values.unsqueeze(1), jet.errors.unsqueeze(1), jet.full_floor().unsqueeze(0)
            )
        found.append(jet)
    count = next(u.shape[0] for u in directions if u is not None)
    together = found[0] if len(found) == 1 else join(found, 0)
    if together.ndim == 0 or together.shape[0] < count:
        raise InvalidValueError(
            f"Output {name!r} has no axis that runs over the {count} directions, so they cannot share one pass. "
            "Give each direction as a whole input: shape (m, *input shape with its batch axis)."
        )
    if together.shape[0] > count:
        together = Jet(
            together.powers,
            together.values[:, :count],
            together.errors[:, :count],
            together.full_floor()[:count],
        )
    return together, tuple(notes)


def _output_jet(
    program: Program, inputs: Mapping[str, Jet], name: str, lowest: float, phase: float | None
) -> tuple[Jet, tuple[Reason, ...]]:
    values, notes = run_jets(program, inputs, lowest=lowest, phase=phase)
    jet = values[name]
    if not isinstance(jet, Jet):
        raise InvalidValueError(f"Output {name!r} holds several tensors.")
    return jet, notes


def takes_whole_inputs(program: Program, directions: Sequence[Tensor | None]) -> bool:
    """Each direction is a whole input, with an axis more than the program's; else each is one row of a batch."""
    pairs = zip(program.inputs, directions, strict=True)
    return any(u is not None and u.ndim == len(spec.shape) + 1 for spec, u in pairs)


def chunks(
    program: Program, directions: Sequence[Tensor | None], starts: Sequence[Tensor | None]
) -> list[dict[str, Jet]]:
    """Input jets in batches of the size the program takes: all at once where its batch axis is dynamic."""
    moving = [u for u in directions if u is not None]
    if not moving:
        raise InvalidValueError("At least one input needs a direction.")
    count = moving[0].shape[0]
    if any(u.shape[0] != count for u in moving):
        raise InvalidValueError(
            f"Every input needs the same number of directions, got {[len(u) for u in moving]}."
        )
    if takes_whole_inputs(program, directions):
        return [
            {
                spec.name: constant(_held(spec, start)) if u is None else ray(u[i])
                for spec, u, start in zip(program.inputs, directions, starts, strict=True)
            }
            for i in range(count)
        ]
    size = count
    for spec, u in zip(program.inputs, directions, strict=True):
        if u is not None and spec.shape and not isinstance(spec.shape[0], SymbolicSize):
            size = int(spec.shape[0])
    size = max(size, 1)
    axes = {
        str(s.shape[0]) for s, u in zip(program.inputs, directions, strict=True) if u is not None and s.shape
    }
    made = []
    for begin in range(0, count, size):
        chunk = {}
        for spec, u, start in zip(program.inputs, directions, starts, strict=True):
            if u is None:
                chunk[spec.name] = constant(_rows(spec, start, size, axes))
            else:
                piece = u[begin : begin + size]
                if piece.shape[0] < size:
                    piece = torch.cat([piece, piece[-1:].expand(size - piece.shape[0], *piece.shape[1:])])
                chunk[spec.name] = ray(piece)
        made.append(chunk)
    return made


def _held(spec: InputSpec, start: Tensor | None) -> Tensor:
    if start is None:
        raise InvalidValueError(f"Input {spec.name!r} has no direction, so it stays at an example: pass one.")
    return start.detach()


def _rows(spec: InputSpec, start: Tensor | None, size: int, axes: set[str]) -> Tensor:
    """An input that stands still, its rows repeated where it shares the batch axis of those that move."""
    start = _held(spec, start)
    if not spec.shape or not isinstance(spec.shape[0], SymbolicSize) or str(spec.shape[0]) not in axes:
        return start
    return start if start.shape[0] == size else start[torch.arange(size) % start.shape[0]]


def _unresolved(jet: Jet) -> Tensor:
    if not jet.values.is_floating_point():
        return jet.full_floor() > 0.0
    first = lead(jet)
    return ~(
        (first.certain & (first.power > 0.0))
        | (~(first.power > 0.0) & (jet.full_floor() <= 0.0) & (first.limit <= 0.0))
    )


def read(jet: Jet, notes: tuple[Reason, ...] = ()) -> Horizon:
    """A jet as limit, slope, degree and leading coefficient; booleans and integers as numbers."""
    jet = as_real(jet)
    first = lead(jet)
    growing = first.certain & (first.power > 0.0) & (first.power < MASKED)
    settled = ~growing & (torch.where(first.certain, first.power, first.limit) <= 0.0)
    nothing = torch.full_like(first.limit, math.nan)
    value = torch.where(settled, jet.at(0.0), nothing)
    slow = growing & (first.power <= 1.0)
    slope = torch.where(settled, torch.zeros_like(nothing), torch.where(slow, jet.at(1.0), nothing))
    # Known to be o(λ) without a limit: the slope is 0 all the same.
    flat = ~growing & ~settled & (first.limit < 1.0)
    slope = torch.where(flat, torch.zeros_like(nothing), slope)
    degree = torch.where(growing, first.power, torch.where(settled, torch.zeros_like(nothing), nothing))
    coefficient = value
    for p, c in zip(jet.powers, jet.values, strict=True):
        coefficient = torch.where(growing & (first.power == p), c, coefficient)
    return Horizon(value, slope, degree, coefficient, ~(growing | settled), notes)
