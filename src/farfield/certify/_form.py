"""Affine forms: a node's value as an affine function of earlier blocks of variables, with what rounding may hide.

Every form carries magnitudes: its true coefficients differ from the stored ones by at most ``UNIT`` times them, so
whatever uses a form can account for rounding without knowing how it was made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from farfield.graph import Node, compute_node

__all__ = ["SELECTING", "SUMMING", "UNIT", "WEIGHTED", "Form", "affine_step", "constant_form", "scaled"]

UNIT = 2.0**-52
"""Coefficients are right to this much of their magnitudes."""

_MOVING = """identity reshape permute expand repeat squeeze unsqueeze flip roll slice select diagonal cat stack split
    chunk unbind copy cast dropout pixel_shuffle pixel_unshuffle unfold tril triu"""
SELECTING = frozenset(_MOVING.split())
"""Operators that move entries about, or drop them, and round nothing."""
SUMMING = frozenset(["sum", "mean", "avg_pool", "adaptive_avg_pool", "add", "sub", "neg"])
"""Operators that are linear in all their tensors together."""
WEIGHTED: Mapping[str, tuple[int, ...]] = {
    "linear": (0,),
    "conv": (0,),
    "conv_transpose": (0,),
    "matmul": (0, 1),
    "addmm": (1, 2),
    "mul": (0, 1),
    "div": (0,),
}
"""Operators that are linear in one of these arguments while every other one is constant."""
_BIAS = {"linear": 2, "conv": 2, "conv_transpose": 2, "addmm": 0}


@dataclass(frozen=True)
class Form:
    """offset·(1 or t) + Σ matrix @ block.

    Parameters
    ----------
    matrices, magnitudes
        Block index → (entries, block size): coefficients, and the bound on their error in units of ``UNIT``.
    offset, offset_magnitude
        (entries,), the same for the constant part.
    degree
        1 while the value is the true one multiplied by t: it depends on the homogeneous input, and no norm has been
        met on the way.
    """

    matrices: Mapping[int, Tensor]
    magnitudes: Mapping[int, Tensor]
    offset: Tensor
    offset_magnitude: Tensor
    degree: int = 0

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.offset.numel()

    @property
    def constant(self) -> bool:
        """No block enters."""
        return not self.matrices


def constant_form(value: Tensor, rounding: float = 0.0) -> Form:
    """A constant; ``rounding`` says how many ``UNIT`` of itself it may be off."""
    flat = value.detach().to(torch.float64).reshape(-1)
    return Form({}, {}, flat, flat.abs() * rounding)


def scaled(form: Form, factor: Tensor | None, shift: Tensor | None) -> Form:
    """Factor ⊙ form + shift, both (entries,)."""
    matrices, magnitudes = dict(form.matrices), dict(form.magnitudes)
    offset, offset_magnitude = form.offset, form.offset_magnitude
    if factor is not None:
        for index, matrix in matrices.items():
            exact = _units(matrix) and not bool(magnitudes[index].any())
            magnitudes[index] = factor.abs()[:, None] * (
                magnitudes[index] + (0.0 if exact else 1.0) * matrix.abs()
            )
            matrices[index] = factor[:, None] * matrix
        offset_magnitude = factor.abs() * (offset_magnitude + offset.abs())
        offset = factor * offset
    if shift is not None:
        offset_magnitude = offset_magnitude + torch.where(
            offset == 0, torch.zeros_like(offset), offset.abs() + shift.abs()
        )
        offset = offset + shift
    return replace(
        form, matrices=matrices, magnitudes=magnitudes, offset=offset, offset_magnitude=offset_magnitude
    )


def affine_step(
    node: Node,
    operands: Sequence[Form | None],
    values: Sequence[Tensor | None],
    shapes: Sequence[tuple[int, ...]],
) -> Form | tuple[Form, ...]:
    """The forms of an operation that is affine in its moving operands.

    Parameters
    ----------
    node
        The operation: one of ``SELECTING``, ``SUMMING``, ``WEIGHTED``.
    operands
        Their forms, ``None`` where absent.
    values
        Values of the constant ones.
    shapes
        Shapes of all of them.
    """
    moving = [i for i, form in enumerate(operands) if form is not None and not form.constant]
    blocks = sorted({b for i in moving for b in _form(operands, i).matrices})
    unsigned = replace(
        node, op={"sub": "add", "neg": "identity"}.get(node.op, node.op), attributes=_unsigned(node)
    )
    sizes = [None if v is None else v.abs() if v.is_floating_point() else v for v in values]
    # A divisor's magnitude divides; everything else multiplies.
    plain, plain_sizes = _no_bias(node, values), _no_bias(node, sizes)
    offset = _run(node, operands, values, shapes, moving, lambda f: f.offset, None)
    rounding = _rounding(node, shapes)
    moved = [_form(operands, i) for i in moving]
    quiet = all(not bool(f.offset.any()) for f in moved)
    offset_size = _run(
        unsigned, operands, plain_sizes if quiet else sizes, shapes, moving,
        lambda f: f.offset_magnitude + rounding * f.offset.abs(), None,
    )  # fmt: skip
    parts = len(offset) if isinstance(offset, tuple) else 1
    matrices: list[dict[int, Tensor]] = [{} for _ in range(parts)]
    magnitudes: list[dict[int, Tensor]] = [{} for _ in range(parts)]
    for block in blocks:
        width = next(f.matrices[block].shape[1] for f in moved if block in f.matrices)
        exact = all(
            block not in f.matrices or (_units(f.matrices[block]) and not bool(f.magnitudes[block].any()))
            for f in moved
        )
        terms = 0.0 if exact and _exact(node) and (len(moved) == 1 or node.op in SELECTING) else rounding

        def column(f: Form, b: int = block, w: int = width) -> Tensor:
            return f.matrices[b].T if b in f.matrices else f.offset.new_zeros(w, f.size)

        def size(f: Form, b: int = block, w: int = width, terms: float = terms) -> Tensor:
            return (
                (f.magnitudes[b] + terms * f.matrices[b].abs()).T
                if b in f.matrices
                else f.offset.new_zeros(w, f.size)
            )

        made = _run(node, operands, plain, shapes, moving, column, width)
        made_size = _run(unsigned, operands, plain_sizes, shapes, moving, size, width)
        for part in range(parts):
            m = (
                (made[part] if parts > 1 or isinstance(made, tuple) else made)
                .reshape(width, -1)
                .T.contiguous()
            )
            s = (
                (made_size[part] if parts > 1 or isinstance(made_size, tuple) else made_size)
                .reshape(width, -1)
                .T
            )
            if bool(m.any()) or bool(s.any()):
                matrices[part][block], magnitudes[part][block] = m, s.contiguous()
    offsets = offset if isinstance(offset, tuple) else (offset,)
    offset_sizes = offset_size if isinstance(offset_size, tuple) else (offset_size,)
    degree = moved[0].degree
    forms = tuple(
        Form(m, s, o.reshape(-1), z.reshape(-1), degree)
        for m, s, o, z in zip(matrices, magnitudes, offsets, offset_sizes, strict=True)
    )
    return forms if isinstance(offset, tuple) else forms[0]


def _form(operands: Sequence[Form | None], index: int) -> Form:
    form = operands[index]
    assert form is not None
    return form


def _run(
    node: Node, operands: Sequence[Form | None], values: Sequence[Tensor | None], shapes: Sequence[tuple[int, ...]],
    moving: Sequence[int], pick: Any, lead: int | None,
) -> Any:  # fmt: skip
    """The operation on one aspect of its moving operands; over a leading axis of columns if ``lead`` is given."""
    picked = [
        pick(_form(operands, i)).reshape(*(() if lead is None else (lead,)), *shapes[i]) for i in moving
    ]

    def step(*given: Tensor) -> Any:
        tensors = list(values)
        for i, tensor in zip(moving, given, strict=True):
            tensors[i] = tensor
        return compute_node(node, tensors, {}, torch.float64)

    return step(*picked) if lead is None else torch.vmap(step)(*picked)


def _exact(node: Node) -> bool:
    """Whether a single unit coefficient comes out of the operation as a float of the model: nothing is rounded."""
    if node.op == "addmm":
        return bool(node.attributes.get("alpha", 1) == 1)
    return node.op not in ("div", "mean", "avg_pool", "adaptive_avg_pool")


def _units(matrix: Tensor) -> bool:
    """Every column holds at most one entry, and it is 1."""
    return bool((((matrix != 0).sum(0) <= 1) & ((matrix == 0) | (matrix == 1)).all(0)).all())


def _unsigned(node: Node) -> Mapping[str, Any]:
    """Numbers among the attributes, without their signs."""
    named = {"alpha", "beta", "input", "other", "value"} & set(node.attributes)
    numbers = {k: node.attributes[k] for k in named if isinstance(node.attributes[k], int | float)}
    return {**node.attributes, **{k: abs(v) for k, v in numbers.items()}}


def _no_bias(node: Node, values: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The constants of the linear part alone: biases and constant summands are left out."""
    kept = list(values)
    bias = _BIAS.get(node.op)
    if bias is not None and bias < len(kept) and kept[bias] is not None:
        kept[bias] = _zeros(kept[bias]) if node.op == "addmm" else None
    if node.op in SUMMING or node.op in SELECTING:
        kept = [_zeros(v) for v in kept]
    return kept


def _zeros(value: Tensor | None) -> Tensor | None:
    return None if value is None else torch.zeros_like(value)


def _rounding(node: Node, shapes: Sequence[tuple[int, ...]]) -> float:
    """Roundings that one entry of the result may gather, in units of its magnitude."""
    if node.op in SELECTING:
        return 0.0
    if node.op in ("add", "sub", "mul", "div", "neg"):
        return 2.0
    if node.op in ("linear", "addmm"):
        return 4.0 + shapes[-1 if node.op == "addmm" else 0][-2 if node.op == "addmm" else -1]
    return 4.0 + max(math.prod(s) for s in shapes if s is not None)
