"""A program as layers of scalar curves over compact sets: the form in which it is bounded.

Everything between two nonlinear operations is one affine map, so a network is a list of *blocks* of variables and
affine forms between them:

- the **input**, in homogeneous coordinates u = (x, t) with x/t the true input, or a box;
- **curves** y = σ(z), one scalar function per entry, z an affine form of earlier blocks (of degree 1: y = t·σ(z/t));
- **norms** y = (z − mean)/√(var + ε): whatever z is, y lies in a ball, centered or not;
- **boxes**, for whatever is none of these: its range comes from interval propagation.

Every affine form carries magnitudes: true coefficients differ from the stored ones by at most ``UNIT`` times them, so
what follows can account for rounding without knowing how a form was made.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from farfield.certify.affine._form import Form, affine_step, constant_form, scaled, select_rows
from farfield.certify.intervals import Interval
from farfield.errors import FarfieldError
from farfield.graph import Node, NormSpec, Program, describe

__all__ = ["Block", "Network", "TooLargeError", "build_network", "is_curve"]

ENTRY_LIMIT = 60_000_000
"""Entries of all coefficient matrices together; a larger network is bounded by intervals alone."""


class TooLargeError(FarfieldError):
    """The network has more coefficients than can be held; intervals still bound it."""


def is_curve(node: Node) -> bool:
    """Whether a node is one continuous scalar function of one operand; the checker knows all but ``threshold``."""
    scalar = describe(node).scalar
    known = scalar is not None and math.isfinite(scalar.slope) and node.op != "threshold"
    return known and len(node.operands) == 1


@dataclass(frozen=True)
class Block:
    """Variables of a network and what is known about them.

    Parameters
    ----------
    kind
        ``"input"`` (homogeneous, the last variable is t), ``"box"``, ``"curve"`` or ``"norm"``.
    node
        Name of the node that computes them.
    size
        How many.
    form
        What a curve or a norm is applied to.
    op, attributes
        The scalar function of a curve (a name that gaussian has a scalar function for).
    lo, hi
        Range of a box; of a curve's argument where intervals know one (±∞ otherwise).
    groups
        (groups, entries of a group): indices of the entries normalized together.
    centered, radius, norm_eps, count
        For a norm: Σ y = 0 within a group or not, largest ‖y‖₂ of a group, the stabilizer ε of √(Σz²/count + ε).
    """

    kind: str
    node: str
    size: int
    form: Form | None = None
    op: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    lo: Tensor | None = None
    hi: Tensor | None = None
    groups: Tensor | None = None
    centered: bool = False
    radius: float = 0.0
    norm_eps: float = 0.0
    count: float = 1.0


@dataclass(frozen=True)
class Network:
    """Blocks in order of computation, and the output as an affine form of them."""

    blocks: tuple[Block, ...]
    output: Form
    shape: tuple[int, ...]

    def needed(self) -> tuple[int, ...]:
        """Blocks the output depends on, looking through curves but not through norms."""
        return self.reached(("curve",))

    def reached(self, through: Container[str] | None = None) -> tuple[int, ...]:
        """Blocks the output depends on, looking through those of the kinds given; through all by default."""
        found: set[int] = set()
        stack = list(self.output.matrices)
        while stack:
            index = stack.pop()
            if index in found:
                continue
            found.add(index)
            block = self.blocks[index]
            if block.form is not None and (through is None or block.kind in through):
                stack.extend(block.form.matrices)
        return tuple(sorted(found))

    def compact(self) -> bool:
        """Whether the output is reached from the input through curves and norms alone, and is bounded."""
        return self.output.degree == 0 and all(_traced(self.blocks[i]) for i in self.reached())


def _traced(block: Block) -> bool:
    """Known as a function of the input, not only by its range."""
    return block.kind == "input" or block.form is not None or block.op == "input"


def build_network(
    program: Program,
    output: str,
    intervals: Mapping[str, Any],
    inputs: Mapping[str, Interval] | None = None,
) -> Network:
    """The network that computes one output of a program.

    Parameters
    ----------
    program
        Captured with fixed sizes.
    output
        Name of the output node.
    intervals
        What interval propagation claims for every node.
    inputs
        Ranges of inputs that are confined to a box; a single unconfined real input becomes homogeneous.

    Raises
    ------
    TooLargeError
        Where the coefficient matrices would not fit.
    """
    return _Builder(program, intervals, dict(inputs or {})).build(output)


class _Builder:
    def __init__(
        self, program: Program, intervals: Mapping[str, Any], inputs: Mapping[str, Interval]
    ) -> None:
        self.program, self.intervals, self.inputs = program, intervals, inputs
        self.blocks: list[Block] = []
        self.forms: dict[str, Any] = {}
        self.entries = 0
        moving = [spec.name for spec in program.inputs if spec.kind == "real" and spec.name not in inputs]
        self.homogeneous = moving[0] if len(moving) == 1 else None

    def build(self, output: str) -> Network:
        wanted = {output}
        for node in reversed(self.program.nodes):
            if node.name in wanted:
                wanted.update(node.operands)
        for node in self.program.nodes:
            if node.name in wanted:
                self.forms[node.name] = self._form(node)
        form = self.forms[output]
        if form is None or form.degree:
            form = self._boxed(self.program.node(output))
        return Network(tuple(self.blocks), form, tuple(int(d) for d in self.program.node(output).shape))

    def _form(self, node: Node) -> Any:
        """The node as a form; ``None`` for a value no rule covers and no interval bounds, and for a complex one."""
        if node.dtype is not None and node.dtype.is_complex:
            return None
        if node.role == "constant":
            return constant_form(self.program.constants[node.name].detach())
        if node.role == "input":
            return self._input(node)
        operands = [None if name is None else self.forms.get(name) for name in node.inputs]
        absent = [n is not None and o is None for n, o in zip(node.inputs, operands, strict=True)]
        spec = describe(node).norm
        made = None
        if spec is not None and not any(absent[1:]):
            made = self._norm(node, spec, operands)  # whatever it normalizes, its image is known
        elif not any(absent):
            made = self._known(node, operands)
        return self._boxed(node) if made is None else made

    def _known(self, node: Node, operands: Sequence[Any]) -> Any:
        if node.op == "getitem":
            return operands[0][int(node.attributes["index"])] if isinstance(operands[0], tuple) else None
        if any(isinstance(o, tuple) for o in operands):
            return None
        if all(o is None or o.constant for o in operands):
            return None  # what capture did not fold is a draw, or too large: its range is all that is used
        if describe(node).linear:
            return self._linear(node, operands)
        if is_curve(node):
            return self._curve(node, operands[0])
        return None

    # -- blocks ------------------------------------------------------------------------------------------------

    def _add(self, block: Block) -> Form:
        self.blocks.append(block)
        index, size = len(self.blocks) - 1, block.size
        self._count(size * size)
        eye = torch.eye(size, dtype=torch.float64)
        zero = torch.zeros(size, dtype=torch.float64)
        return Form({index: eye}, {index: torch.zeros_like(eye)}, zero, zero)

    def _count(self, entries: int) -> None:
        self.entries += entries
        if self.entries > ENTRY_LIMIT:
            raise TooLargeError(
                f"Written out as matrices this network has more than {ENTRY_LIMIT:,} coefficients: it is bounded by "
                "interval propagation alone."
            )

    def _input(self, node: Node) -> Form | None:
        size = math.prod(int(d) for d in node.shape)
        if node.name == self.homogeneous:
            form = self._add(Block("input", node.name, size + 1))
            (index,) = form.matrices
            return replace(
                form,
                matrices={index: form.matrices[index][:-1]},
                magnitudes={index: form.magnitudes[index][:-1]},
                offset=form.offset[:-1],
                offset_magnitude=form.offset_magnitude[:-1],
                degree=1,
            )
        box = self.inputs.get(node.name)
        if box is None:
            return None
        return self._add(
            Block("box", node.name, size, op="input", lo=box.lo.reshape(-1), hi=box.hi.reshape(-1))
        )

    def _boxed(self, node: Node) -> Any:
        claim = self.intervals.get(node.name)
        if not isinstance(claim, Interval) or node.dtype is None:
            return None
        if not bool(torch.isfinite(claim.lo).all() & torch.isfinite(claim.hi).all()):
            return None
        return self._add(
            Block("box", node.name, claim.lo.numel(), lo=claim.lo.reshape(-1), hi=claim.hi.reshape(-1))
        )

    def _curve(self, node: Node, form: Form) -> Form | None:
        claim = self.intervals.get(node.operands[0])
        lo = hi = None
        if isinstance(claim, Interval) and not form.degree:
            lo, hi = claim.lo.reshape(-1), claim.hi.reshape(-1)
        made = self._add(
            Block("curve", node.name, form.size, form, node.op, dict(node.attributes), lo=lo, hi=hi)
        )
        return replace(made, degree=form.degree)

    def _norm(self, node: Node, spec: NormSpec, operands: Sequence[Any]) -> Form | None:
        """Its image, times a constant weight, plus a bias that may move; a weight that moves is left to intervals."""
        weight, bias = (None if i is None else operands[i] for i in (spec.weight, spec.bias))
        if weight is not None and not (isinstance(weight, Form) and weight.constant):
            return None
        if bias is not None and not isinstance(bias, Form):
            return None
        shape = _sizes(node)
        groups = spec.group_index(shape)
        size = groups.shape[1]
        if size <= spec.correction or not spec.eps >= 0:
            return None
        plain = spec.eps_mode == "inside" and spec.order == 2.0
        made = self._add(
            Block(
                "norm",
                node.name,
                groups.numel(),
                operands[0] if plain and isinstance(operands[0], Form) else None,
                groups=groups,
                centered=spec.centered,
                radius=spec.radius(size),
                norm_eps=spec.eps,
                count=spec.count(size),
            )
        )
        if weight is not None:
            made = scaled(made, self._laid(spec, weight, node, spec.weight).offset, None)
        if bias is None:
            return made
        moved = self._laid(spec, bias, node, spec.bias)
        if moved.constant:
            return scaled(made, None, moved.offset)
        plus = Node("", "add", inputs=("", ""), dtype=torch.float64)
        total = affine_step(plus, (made, moved), (None, None), (shape, shape))
        return total if isinstance(total, Form) else None

    def _laid(self, spec: NormSpec, form: Form, node: Node, position: int | None) -> Form:
        """A norm's parameter, spread along the value's entries."""
        assert position is not None
        name = node.inputs[position]
        assert name is not None
        index = torch.arange(form.size).reshape(_sizes(self.program.node(name)))
        return select_rows(form, spec.spread(index, _sizes(node)).reshape(-1))

    # -- affine operations -------------------------------------------------------------------------------------

    def _linear(self, node: Node, operands: Sequence[Any]) -> Any:
        shapes = [() if n is None else _sizes(self.program.node(n)) for n in node.inputs]
        widths = sum(self.blocks[b].size for b in {b for o in operands if o is not None for b in o.matrices})
        self._count(2 * widths * math.prod(_sizes(node)))
        values = [self._value(n, o, s) for n, o, s in zip(node.inputs, operands, shapes, strict=True)]
        return affine_step(node, operands, values, shapes)

    def _value(self, name: str | None, form: Form | None, shape: tuple[int, ...]) -> Tensor | None:
        """A constant operand's value, in its own shape; also of what a factor of exactly 0 has made constant."""
        if name is None or name not in self.program.constants:
            exact = form is not None and form.constant and not bool(form.offset_magnitude.any())
            return form.offset.reshape(shape) if form is not None and exact else None
        value = self.program.constants[name].detach()
        return value.to(torch.float64) if value.is_floating_point() else value


def _sizes(node: Node) -> tuple[int, ...]:
    return tuple(int(d) for d in node.shape)
