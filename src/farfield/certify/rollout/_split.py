"""A step x⁺ = A·x + g(x, u): the state's linear part, found in the graph, and the program of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from farfield.certify.affine import UNIT, Form, affine_step, constant_form
from farfield.certify.rollout._gates import averaged_with
from farfield.graph import Node, Program, compute_node, describe

__all__ = ["REST", "StepSplit", "split_step"]

REST = "step_rest"
"""Name of the rest's output."""
_RANDOM = "a random draw"


@dataclass(frozen=True)
class StepSplit:
    """A step as A·x + g(x, u).

    Parameters
    ----------
    matrix
        A, (entries, entries), over the flattened state.
    error
        Likewise: by how much the stored entries may differ from the true ones.
    rest
        The program of g; its only output is :data:`REST`.
    averages
        The step is no such sum: every entry lies between that of the state and that of g.
    """

    matrix: Tensor
    error: Tensor
    rest: Program
    averages: bool = False

    @property
    def replaces(self) -> bool:
        """No part of the state is carried over."""
        return not (self.averages or bool(self.matrix.any() | self.error.any()))

    @property
    def integrates(self) -> bool:
        """The state is carried over whole, and something is added."""
        eye = torch.eye(len(self.matrix), dtype=self.matrix.dtype)
        return torch.equal(self.matrix, eye) and not bool(self.error.any())


def split_step(program: Program, state: str, output: str) -> StepSplit:
    """Split a step where it is linear in its state on the way to the output.

    Walking back from the output, operations that are jointly linear in everything that moves are followed; where the
    walk meets the state itself, that path is A, and in g the state stands at 0 there. Everything nonlinear stays in
    g, with its own state. The sum is the step exactly, whatever was found: a linear path that the walk missed is
    part of g.

    Parameters
    ----------
    program
        Captured with fixed sizes.
    state
        Name of the input that is fed back.
    output
        Name of the output that becomes the next state.
    """
    region = _linear_region(program, state, output)
    size = int(torch.Size([int(d) for d in program.node(state).shape]).numel())
    matrix, error = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
    if (other := averaged_with(program, state, output)) is not None:
        return StepSplit(matrix, error, _with_output(program, {}, {}, other), averages=True)
    if state not in region:
        return StepSplit(matrix, error, _with_output(program, {}, {}, output))
    form = _forms(program, state, output, region)
    if form is None:  # coefficients that don't fit in a float: all of it stays in the rest
        return StepSplit(matrix, error, _with_output(program, {}, {}, output))
    if 0 in form.matrices:
        matrix, error = form.matrices[0], UNIT * form.magnitudes[0]
    return StepSplit(matrix, error, _rest(program, state, output, region))


def _moving(program: Program) -> dict[str, frozenset[str]]:
    """Node name → the inputs and random draws it depends on."""
    found: dict[str, frozenset[str]] = {}
    for node in program.nodes:
        own = frozenset[str]()
        if node.role == "input":
            own = frozenset({node.name})
        elif node.role == "operation" and not describe(node).deterministic:
            own = frozenset({_RANDOM})
        found[node.name] = own.union(*(found[name] for name in node.operands))
    return found


def _linear_region(program: Program, state: str, output: str) -> set[str]:
    """Nodes through which the output is linear in the state; the state itself if such a path reaches it."""
    moving = _moving(program)
    wanted, region = {output}, set[str]()
    for node in reversed(program.nodes):
        if node.name not in wanted or state not in moving[node.name]:
            continue
        if node.name == state:
            region.add(state)
            continue
        places = [i for i, name in enumerate(node.inputs) if name is not None and moving[name]]
        facts = describe(node)
        picks = node.op == "getitem"  # one of several results
        if not picks and (not facts.deterministic or facts.linear_group(places) is None):
            continue
        region.add(node.name)
        wanted.update(name for name in node.operands if state in moving[name])
    # Kept: what lies on a way from the state.
    kept = set[str]()
    for node in program.nodes:
        if node.name in region and (node.name == state or any(name in kept for name in node.operands)):
            kept.add(node.name)
    return kept


def _forms(program: Program, state: str, output: str, region: set[str]) -> Form | None:
    """The output as a form of the state alone, everything else that moves at 0."""
    fixed = _fixed_values(program, region)
    size = int(torch.Size([int(d) for d in program.node(state).shape]).numel())
    eye = torch.eye(size, dtype=torch.float64)
    zero = torch.zeros(size, dtype=torch.float64)
    forms: dict[str, Form | tuple[Form, ...]] = {
        state: Form({0: eye}, {0: torch.zeros_like(eye)}, zero, zero)
    }
    for node in program.nodes:
        if node.name not in region or node.name == state:
            continue
        several = forms.get(node.operands[0])
        if node.op == "getitem" and isinstance(several, tuple):
            forms[node.name] = several[int(node.attributes["index"])]
            continue
        alone = _passed_on(program, node, forms)
        if alone is not None:
            forms[node.name] = forms[alone]
            continue
        shape = tuple(int(d) for d in node.shape)
        if all(
            (isinstance(f := forms.get(name), Form) and f.constant) or name not in forms
            for name in node.operands
        ):
            forms[node.name] = constant_form(
                torch.zeros(shape, dtype=torch.float64)
            )  # the state's share is 0
            continue
        operands: list[Form | None] = []
        values: list[Tensor | None] = []
        shapes: list[tuple[int, ...]] = []
        for name in node.inputs:
            shape = () if name is None else tuple(int(d) for d in program.node(name).shape)
            value = None if name is None else fixed.get(name, torch.zeros(shape, dtype=torch.float64))
            known = forms.get(name or "")
            if isinstance(known, tuple):
                return None
            operands.append(None if value is None else known or constant_form(value))
            values.append(None if known is not None and not known.constant else value)
            shapes.append(shape)
        made = affine_step(node, operands, values, shapes)
        if made is None:
            return None
        forms[node.name] = made
    found = forms[output]
    return found if isinstance(found, Form) else None


def _passed_on(program: Program, node: Node, forms: Mapping[str, Any]) -> str | None:
    """The operand whose coefficients a sum passes on as they are, nothing rounded: only something else is added."""
    moved = [i for i, name in enumerate(node.inputs) if name in forms]
    if node.op not in ("add", "sub") or len(moved) != 1:
        return None
    name, scale = node.inputs[moved[0]], node.attributes.get("alpha", 1)
    same = name is not None and program.node(name).shape == node.shape
    return name if same and (moved[0] == 0 or (node.op == "add" and scale == 1)) else None


def _fixed_values(program: Program, region: set[str]) -> dict[str, Tensor]:
    """Values of the region's operands that depend on no input."""
    moving = _moving(program)
    wanted = {
        name
        for node in program.nodes
        if node.name in region
        for name in node.operands
        if name not in region and not moving[name]
    }
    given = [
        torch.zeros([int(d) for d in spec.shape], dtype=spec.dtype or torch.float64)
        for spec in program.inputs
    ]
    values: Mapping[str, Any] = program.evaluate(*given, keep=wanted) if wanted else {}
    return {name: values[name] for name in wanted}


def _rest(program: Program, state: str, output: str, region: set[str]) -> Program:
    """The step with 0 where the region meets the state."""
    taken = {node.name for node in program.nodes}

    def free(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    source = program.node(state)
    names = {state: free(f"{state}_zero")}
    zero = torch.zeros([int(d) for d in source.shape], dtype=source.dtype or torch.float64)
    constants = {names[state]: zero}
    added = {names[state]: _constant(names[state], zero)}
    several: dict[str, Any] = {}
    for node in program.nodes:
        if node.name not in region or node.name in (state, output):
            continue
        names[node.name] = free(f"{node.name}_rest")
        inputs = tuple(names.get(name, name) if name is not None else None for name in node.inputs)
        made = replace(node, name=names[node.name], inputs=inputs)
        known = {**program.constants, **constants, **several}
        if all(name in known for name in made.operands):
            # What hangs on the zeros alone is a number: no analysis should take it for something that moves.
            value = compute_node(made, [None if name is None else known[name] for name in inputs], {})
            if isinstance(value, Tensor):
                constants[made.name] = value
                made = _constant(made.name, value)
            else:
                several[made.name] = value
        added[node.name] = made
    return _with_output(program, added, constants, names.get(program.node(output).operands[0]))


def _constant(name: str, value: Tensor) -> Node:
    return Node(name, "constant", target=name, shape=tuple(value.shape), dtype=value.dtype, role="constant")


def _with_output(
    program: Program, added: Mapping[str, Node], constants: Mapping[str, Tensor], last: str | None
) -> Program:
    """The program with one output, of a node of its own or of one that was added; what nothing uses left out."""
    old = program.node(last) if last in {n.name for n in program.nodes} else None
    source = old.operands[0] if old is not None and old.role == "output" else last
    assert source is not None
    nodes: list[Node] = [added[k] for k in added if added[k].role == "constant"]
    for node in program.nodes:
        if node.role != "output":
            nodes.append(node)
        if node.name in added and added[node.name].role == "operation":
            nodes.append(added[node.name])
    like = next(node for node in nodes if node.name == source)
    nodes.append(
        replace(like, name=REST, op="identity", inputs=(source,), attributes={}, role="output", target=REST)
    )
    needed = {REST}
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(node.operands)
    kept = tuple(node for node in nodes if node.name in needed or node.role == "input")
    every = {**program.constants, **constants}
    return replace(
        program,
        nodes=kept,
        outputs=(REST,),
        constants={node.name: every[node.name] for node in kept if node.role == "constant"},
    )
