"""Affine forms: a node's value as an affine function of earlier blocks of variables, with what rounding may hide.

Every form carries magnitudes: its true coefficients differ from the stored ones by at most ``UNIT`` times them, so
whatever uses a form can account for rounding without knowing how it was made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from farfield.graph import Node, compute_node, describe, linear_part

__all__ = ["UNIT", "Form", "affine_step", "constant_form", "scaled", "select_rows"]

UNIT = 2.0**-52
"""Coefficients are right to this much of their magnitudes."""
Parts = tuple[Tensor, ...]
"""The results of a node: several for one that returns several tensors."""


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
        met on the way. Constants that are added to it are multiplied by t as well, so the offset is.
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

    @property
    def finite(self) -> bool:
        """No coefficient is infinite or NaN."""
        tensors = (*self.matrices.values(), *self.magnitudes.values(), self.offset, self.offset_magnitude)
        return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def constant_form(value: Tensor) -> Form:
    """An exact constant."""
    flat = value.detach().to(torch.float64).reshape(-1)
    return Form({}, {}, flat, torch.zeros_like(flat))


def scaled(form: Form, factor: Tensor | None, shift: Tensor | None) -> Form:
    """factor ⊙ form + shift, both (entries,) and exact."""
    matrices, magnitudes = dict(form.matrices), dict(form.magnitudes)
    offset, offset_magnitude = form.offset, form.offset_magnitude
    if factor is not None:
        for index, matrix in matrices.items():
            loss = 0.0 if _exact(form, index) else 1.0
            magnitudes[index] = factor.abs()[:, None] * (magnitudes[index] + loss * matrix.abs())
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


def select_rows(form: Form, order: Tensor) -> Form:
    """Some entries of a form, in this order."""
    return Form(
        {i: m[order] for i, m in form.matrices.items()},
        {i: m[order] for i, m in form.magnitudes.items()},
        form.offset[order],
        form.offset_magnitude[order],
        form.degree,
    )


def affine_step(
    node: Node,
    operands: Sequence[Form | None],
    values: Sequence[Tensor | None],
    shapes: Sequence[tuple[int, ...]],
) -> Form | tuple[Form, ...] | None:
    """The forms of an operation that is affine in its moving operands; ``None`` where it is not.

    With f(x) = L·x + f(0) in the operands of a linear group (:func:`farfield.graph.linear_part`), columns go through
    L and offsets through f itself. What rounding may hide goes through |L|.

    Parameters
    ----------
    node
        The operation.
    operands
        Their forms, ``None`` where absent.
    values
        Values of the constant ones, exact.
    shapes
        Shapes of all of them.
    """
    forms = {
        i: form
        for i, (form, value) in enumerate(zip(operands, values, strict=True))
        if form is not None and not (form.constant and value is not None)
    }
    group = describe(node).linear_group(tuple(forms))
    if group is None or len({form.degree for form in forms.values()}) > 1:
        return None
    step = _AffineNode(node, group, forms, values, shapes)
    offsets = step.whole({i: form.offset.reshape(shapes[i]) for i, form in forms.items()})
    offset_sizes = step.offset_sizes()
    blocks = sorted({b for form in forms.values() for b in form.matrices})
    columns = {block: step.columns(block) for block in blocks}
    made = []
    for part, (offset, size) in enumerate(zip(offsets, offset_sizes, strict=True)):
        kept = {b: (m[part], s[part]) for b, (m, s) in columns.items() if bool(s[part].any() | m[part].any())}
        form = Form(
            {b: m for b, (m, _) in kept.items()},
            {b: s for b, (_, s) in kept.items()},
            offset.reshape(-1),
            size,
            next(iter(forms.values())).degree,
        )
        if not form.finite:
            return None
        made.append(form)
    return tuple(made) if node.dtype is None else made[0]


class _AffineNode:
    """One affine operation, applied to columns and to their sizes."""

    def __init__(
        self,
        node: Node,
        group: tuple[int, ...],
        forms: Mapping[int, Form],
        values: Sequence[Tensor | None],
        shapes: Sequence[tuple[int, ...]],
    ) -> None:
        self.node, self.group, self.forms, self.shapes = node, group, forms, shapes
        self.facts = describe(node)
        # Moving operands are 0 until they are filled in.
        self.values = [
            torch.zeros(shapes[i], dtype=torch.float64) if i in forms else v for i, v in enumerate(values)
        ]
        self.linear = linear_part(node, self.values, group, tuple(forms))
        self.rounding = self._rounding()
        self._dense: dict[int, Tensor] = {}

    def _rounding(self) -> float:
        """Roundings that one entry of the result may gather, in units of its magnitude."""
        if self.facts.moves:
            return 0.0
        if self.facts.entrywise:
            return 4.0 + len(self.group)
        return 16.0 + len(self.group) * max(math.prod(self.shapes[i]) for i in self.forms)

    def whole(self, given: Mapping[int, Tensor]) -> Parts:
        """The node itself."""
        return _parts(compute_node(self.node, self._filled(self.values, given), {}, torch.float64))

    def _filled(self, base: Sequence[Tensor | None], given: Mapping[int, Tensor]) -> list[Tensor | None]:
        filled = list(base)
        for i, tensor in given.items():
            filled[i] = tensor
        return filled

    def columns(self, block: int) -> tuple[Parts, Parts]:
        """(coefficients, magnitudes) of one block in every result, each (entries, block size)."""
        having = {i: form for i, form in self.forms.items() if block in form.matrices}
        width = next(form.matrices[block].shape[1] for form in having.values())
        node, rest = self.linear

        def run(*columns: Tensor) -> Parts:
            filled = self._filled(rest, dict(zip(having, columns, strict=True)))
            return _parts(compute_node(node, filled, {}, torch.float64))

        made = torch.vmap(run)(*(self._columns(form.matrices[block], i) for i, form in having.items()))
        exact = self.facts.products and len(having) == 1 and all(_exact(f, block) for f in having.values())
        loss = 0.0 if exact else self.rounding
        sizes = self._sizes({
            i: self._columns(form.magnitudes[block] + loss * form.matrices[block].abs(), i)
            for i, form in having.items()
        })  # fmt: skip
        flat = tuple(m.reshape(width, -1).T.contiguous() for m in made)
        return flat, tuple(s.T.contiguous() for s in sizes)

    def _columns(self, matrix: Tensor, operand: int) -> Tensor:
        """(columns, *shape of the operand)."""
        return matrix.T.reshape(matrix.shape[1], *self.shapes[operand])

    def offset_sizes(self) -> Parts:
        """What rounding may hide of the constant part: of the moving operands' offsets and of everything added."""
        added = self.rounding
        given = {
            i: (form.offset_magnitude + added * form.offset.abs()).reshape(1, *self.shapes[i])
            for i, form in self.forms.items()
        }
        total = [size[0] for size in self._sizes(given)]
        if added:
            # Only what meets something else in a sum is rounded.
            alone = all(not bool(form.offset.any()) for form in self.forms.values())
            constants = [i for i in self.group if i not in self.forms and self._constant(i)]
            if not (alone and len(constants) <= 1 and self.facts.products):
                for i in constants:
                    for part, size in enumerate(self._added(i)):
                        total[part] = total[part] + added * size
        return tuple(total)

    def _constant(self, position: int) -> bool:
        """A tensor or a number stands here."""
        if position < len(self.values) and self.values[position] is not None:
            return True
        node, _ = linear_part(self.node, self.values, self.group, (position,))
        return node.attributes != self.linear[0].attributes

    def _added(self, position: int) -> Parts:
        """Sizes of what one constant operand of the group adds."""
        value = self.values[position] if position < len(self.values) else None
        if value is not None:
            sizes = self._sizes({position: value.abs().to(torch.float64)[None]})
            return tuple(size[0] for size in sizes)
        node, rest = linear_part(self.node, self.values, self.group, (position,))
        return tuple(part.reshape(-1).abs() for part in _parts(compute_node(node, rest, {}, torch.float64)))

    def _sizes(self, given: Mapping[int, Tensor]) -> Parts:
        """Σ |L_i| sizes_i over operands, sizes (columns, *shape) and not negative; (columns, entries) per result."""
        sums: list[Tensor] | None = None
        for i, sizes in given.items():
            made = [part.reshape(sizes.shape[0], -1) for part in self._absolute(i, sizes)]
            sums = made if sums is None else [a + b for a, b in zip(sums, made, strict=True)]
        assert sums is not None
        return tuple(sums)

    def _absolute(self, i: int, sizes: Tensor) -> Parts:
        """|L_i| sizes: L_i has one sign, or its coefficients are entries of constants, or it is written out."""
        node, rest = linear_part(self.node, self.values, self.group, (i,))
        signed = i < len(self.facts.monotone) and self.facts.monotone[i] != 0
        if self.facts.products:
            rest = [v.abs() if isinstance(v, Tensor) and v.is_floating_point() else v for v in rest]

        def run(column: Tensor) -> Parts:
            return _parts(compute_node(node, self._filled(rest, {i: column}), {}, torch.float64))

        if signed or self.facts.products:
            return tuple(part.abs() for part in torch.vmap(run)(sizes))
        if self.facts.entrywise:
            (factor,) = run(torch.ones_like(sizes[0]))
            lead = [1] * (factor.ndim + 1 - sizes.ndim)
            return (factor.abs() * sizes.reshape(sizes.shape[0], *lead, *sizes.shape[1:]),)
        if i not in self._dense:
            self._dense[i] = _written_out(run, sizes[0])
        return (sizes.reshape(sizes.shape[0], -1) @ self._dense[i],)


def _written_out(run: Callable[[Tensor], Parts], like: Tensor) -> Tensor:
    """|L| as a matrix (operand entries, result entries), what is not 0 raised by its column's largest.

    The operator itself computes them (interpolation weights, 1/√(variance + ε)): a small one may be wrong by
    roundings of the large ones.
    """
    eye = torch.eye(like.numel(), dtype=torch.float64).reshape(like.numel(), *like.shape)
    (matrix,) = torch.vmap(run)(eye)
    sizes = matrix.reshape(like.numel(), -1).abs()
    return sizes + (sizes > 0) * sizes.amax(0, keepdim=True)


def _parts(value: Tensor | Sequence[Tensor]) -> Parts:
    parts = (value,) if isinstance(value, Tensor) else tuple(value)
    return tuple(part.to(torch.float64) for part in parts)


def _exact(form: Form, block: int) -> bool:
    """Every column of a block holds at most one entry, it is 1, and nothing is hidden."""
    matrix = form.matrices[block]
    units = ((matrix != 0).sum(0) <= 1) & ((matrix == 0) | (matrix == 1)).all(0)
    return bool(units.all()) and not bool(form.magnitudes[block].any())
