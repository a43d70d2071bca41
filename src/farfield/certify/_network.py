"""A program as layers of scalar curves over compact sets: the form in which it is bounded.

Everything between two nonlinear operations is one affine map, so a network is a list of *blocks* of variables and
affine forms between them:

- the **input**, in homogeneous coordinates u = (x, t) with x/t the true input, or a box;
- **curves** y = σ(z), one scalar function per entry, z an affine form of earlier blocks (of degree 1: y = t·σ(z/t));
- **norms** y = (z − mean)/√(var + ε): whatever z is, y lies in a ball, centred or not;
- **boxes**, for whatever is none of these: its range comes from interval propagation.

Every affine form carries magnitudes: true coefficients differ from the stored ones by at most ``UNIT`` times them, so
what follows can account for rounding without knowing how a form was made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from farfield.certify._form import SELECTING, SUMMING, WEIGHTED, Form, affine_step, constant_form, scaled
from farfield.certify.intervals import Interval
from farfield.errors import FarfieldError
from farfield.graph import Node, Program, compute_node, describe

__all__ = ["Block", "Network", "TooLargeError", "build_network"]

ENTRY_LIMIT = 60_000_000
"""Entries of all coefficient matrices together; a larger network is bounded by intervals alone."""
NORMS = frozenset(["layer_norm", "rms_norm", "group_norm", "instance_norm", "l2_normalize"])


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
        (groups, entries of a group): indices of the entries normalised together.
    centred, radius, norm_eps, count
        For a norm: Σ y = 0 within a group or not, largest ‖y‖₂ of a group, the stabiliser ε of √(Σz²/count + ε).
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
    centred: bool = False
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
        found: set[int] = set()
        stack = list(self.output.matrices)
        while stack:
            index = stack.pop()
            if index in found:
                continue
            found.add(index)
            block = self.blocks[index]
            if block.kind == "curve" and block.form is not None:
                stack.extend(block.form.matrices)
        return tuple(sorted(found))

    def compact(self) -> bool:
        """Whether the output is reached from the input through curves and norms alone, and is bounded."""
        reached: set[int] = set()
        stack = list(self.output.matrices)
        while stack:
            index = stack.pop()
            if index not in reached:
                reached.add(index)
                form = self.blocks[index].form
                stack.extend(form.matrices if form is not None else ())
        return self.output.degree == 0 and all(_traced(self.blocks[i]) for i in reached)


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
        """The node as a form; ``None`` for a value no rule covers and no interval bounds."""
        if node.role == "constant":
            value = self.program.constants[node.name].detach()
            return None if value.is_complex() else constant_form(value)
        if node.role == "input":
            return self._input(node)
        operands = [None if name is None else self.forms.get(name) for name in node.inputs]
        absent = [n is not None and o is None for n, o in zip(node.inputs, operands, strict=True)]
        made = None
        if not any(absent):
            made = self._known(node, operands)
        elif node.op in NORMS and not any(absent[1:]):
            made = self._norm(node, operands)  # whatever it normalises, its image is known
        if made is not None:
            return made
        return self._boxed(node)

    def _known(self, node: Node, operands: Sequence[Any]) -> Any:
        if node.op == "getitem":
            return operands[0][int(node.attributes["index"])] if isinstance(operands[0], tuple) else None
        if any(isinstance(o, tuple) for o in operands):
            return None
        if all(o is None or o.constant for o in operands) and node.op != "unknown":
            value = compute_node(node, [self._value(n) for n in node.inputs], {}, torch.float64)
            if isinstance(value, Tensor) and not value.is_complex():
                return constant_form(value, rounding=64.0)
            return None
        if node.op == "cast" and (node.dtype is None or not node.dtype.is_floating_point):
            return None  # rounds to integers
        if node.op in SELECTING or node.op in SUMMING:
            return self._linear(node, operands)
        if node.op in WEIGHTED:
            moving = [i for i, o in enumerate(operands) if o is not None and not o.constant]
            if len(moving) == 1 and moving[0] in WEIGHTED[node.op]:
                return self._linear(node, operands)
            return None
        if node.op == "batch_norm" and not node.attributes.get("training"):
            return self._batch_norm(node, operands)
        if node.op in NORMS:
            return self._norm(node, operands)
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
        if not isinstance(claim, Interval) or node.dtype is None or node.dtype.is_complex:
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

    def _norm(self, node: Node, operands: Sequence[Any]) -> Form | None:
        form = operands[0]
        if any(o is not None and not o.constant for o in operands[1:]):
            return None
        described = _norm_groups(node, tuple(int(d) for d in self.program.node(node.operands[0]).shape))
        if described is None:
            return None
        groups, centred, radius, count, axes = described
        if node.attributes.get("eps_mode", "inside") != "inside":
            form = None
        made = self._add(
            Block(
                "norm",
                node.name,
                groups.numel(),
                form,
                groups=groups,
                centred=centred,
                radius=radius,
                norm_eps=float(node.attributes.get("eps") or 0.0),
                count=count,
            )
        )
        weight = self._value(node.inputs[1]) if len(node.inputs) > 1 else None
        bias = self._value(node.inputs[2]) if len(node.inputs) > 2 and node.op != "rms_norm" else None
        shape = tuple(int(d) for d in node.shape)
        return scaled(made, _spread(weight, shape, axes), _spread(bias, shape, axes))

    def _batch_norm(self, node: Node, operands: Sequence[Any]) -> Form | None:
        weight, bias, mean, variance = (self._value(n) for n in node.inputs[1:5])
        if mean is None or variance is None:
            return None
        factor = (variance.to(torch.float64) + float(node.attributes["eps"])).rsqrt()
        if weight is not None:
            factor = factor * weight.to(torch.float64)
        shift = -mean.to(torch.float64) * factor
        if bias is not None:
            shift = shift + bias.to(torch.float64)
        size = shift.abs() + (mean.to(torch.float64) * factor).abs()
        shape, axes = tuple(int(d) for d in node.shape), (1,)
        form: Form = operands[0]
        made = scaled(form, _spread(factor, shape, axes), _spread(shift, shape, axes))
        spread, steep = _spread(size, shape, axes), _spread(factor.abs(), shape, axes)
        assert spread is not None
        assert steep is not None
        # The factor itself is rounded: weight / √(variance + ε).
        grown = {b: m + 8 * steep[:, None] * form.matrices[b].abs() for b, m in made.magnitudes.items()}
        offset_magnitude = made.offset_magnitude + 8 * spread + 8 * steep * form.offset.abs()
        return replace(made, magnitudes=grown, offset_magnitude=offset_magnitude)

    # -- affine operations -------------------------------------------------------------------------------------

    def _value(self, name: str | None) -> Tensor | None:
        """A constant operand's value, in its own shape."""
        if name is None:
            return None
        if name in self.program.constants:
            value = self.program.constants[name].detach()
            return value.to(torch.float64) if value.is_floating_point() else value
        form = self.forms.get(name)
        return (
            form.offset.reshape(_sizes(self.program.node(name)))
            if isinstance(form, Form) and form.constant
            else None
        )

    def _linear(self, node: Node, operands: Sequence[Any]) -> Any:
        if len({o.degree for o in operands if o is not None and not o.constant}) > 1:
            return None
        shapes = [() if n is None else _sizes(self.program.node(n)) for n in node.inputs]
        widths = sum(self.blocks[b].size for b in {b for o in operands if o is not None for b in o.matrices})
        self._count(2 * widths * math.prod(_sizes(node)))
        return affine_step(node, operands, [self._value(n) for n in node.inputs], shapes)


def _sizes(node: Node) -> tuple[int, ...]:
    return tuple(int(d) for d in node.shape)


def _spread(value: Tensor | None, shape: tuple[int, ...], axes: Sequence[int]) -> Tensor | None:
    """A parameter laid along some axes of a value, as a flat vector of the value's entries."""
    if value is None:
        return None
    view = [shape[d] if d in axes else 1 for d in range(len(shape))]
    return value.to(torch.float64).reshape(view).expand(shape).reshape(-1)


def _norm_groups(
    node: Node, shape: tuple[int, ...]
) -> tuple[Tensor, bool, float, float, tuple[int, ...]] | None:
    """(groups, centred, radius, count, axes of the affine part) of a norm on a value of this shape."""
    index = torch.arange(math.prod(shape)).reshape(shape)
    if node.op in ("layer_norm", "rms_norm", "l2_normalize"):
        dims = tuple(node.attributes["dim"])
        if node.attributes.get("correction", 0) != 0 or float(node.attributes.get("p", 2.0)) != 2.0:
            return None
        rest = [d for d in range(len(shape)) if d not in dims]
        count = math.prod(shape[d] for d in dims)
        groups = index.permute(*rest, *dims).reshape(-1, count)
        if node.op == "l2_normalize":
            return groups, False, 1.0, 1.0, dims
        return groups, node.op == "layer_norm", math.sqrt(count), float(count), dims
    if node.op == "instance_norm" and not node.attributes.get("use_input_stats", True):
        return None
    parts = int(node.attributes["num_groups"]) * shape[0] if node.op == "group_norm" else shape[0] * shape[1]
    groups = index.reshape(parts, -1)
    return groups, True, math.sqrt(groups.shape[1]), float(groups.shape[1]), (1,)
