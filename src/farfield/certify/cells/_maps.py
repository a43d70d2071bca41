"""Affine forms as maps that are applied to many cells at once."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield.certify.affine import UNIT, Form
from farfield.certify.cells._clouds import ROUND, Map

__all__ = ["center_rows", "make_map"]


def center_rows(form: Form, groups: int) -> Form:
    """Entries less the mean of their group; entries are ordered group by group."""

    def less(value: Tensor) -> Tensor:
        split = value.reshape(groups, -1, *value.shape[1:])
        return (split - split.mean(1, keepdim=True)).reshape(value.shape)

    def grown(size: Tensor, value: Tensor) -> Tensor:
        entries = value.reshape(groups, -1, *value.shape[1:])
        more = size.reshape(entries.shape) + (entries.shape[1] + 4.0) * entries.abs()
        return (more + more.mean(1, keepdim=True)).reshape(value.shape)

    return Form(
        {i: less(m) for i, m in form.matrices.items()},
        {i: grown(form.magnitudes[i], m) for i, m in form.matrices.items()},
        less(form.offset),
        grown(form.offset_magnitude, form.offset),
        form.degree,
    )


def make_map(form: Form, time: tuple[int, int] | None, sign: float = 1.0) -> Map:
    """A form with what evaluating it loses.

    A degree-1 form's offset multiplies t: ``time`` is the block that has it as its last variable, and its size.
    """
    matrices, magnitudes = dict(form.matrices), dict(form.magnitudes)
    offset, offset_loss = form.offset, form.offset_magnitude * UNIT
    if form.degree and time is not None:
        source, size = time
        before = matrices.get(source, offset.new_zeros(form.size, size))
        column = torch.zeros_like(before)
        column[:, -1] = offset
        slack = torch.where((column == 0) | (before == 0), 0.0, before.abs() + column.abs())
        slack[:, -1] += form.offset_magnitude
        matrices[source] = before + column
        magnitudes[source] = magnitudes.get(source, torch.zeros_like(before)) + slack
        offset, offset_loss = torch.zeros_like(offset), torch.zeros_like(offset)
    terms = sum(m.shape[1] for m in matrices.values()) + 8
    order = tuple(sorted(matrices))
    return Map(
        order,
        tuple((sign * matrices[i]).T.contiguous() for i in order),
        tuple(matrices[i].abs().T.contiguous() for i in order),
        tuple((matrices[i].abs() * (terms * 2 * ROUND) + magnitudes[i] * UNIT).T.contiguous() for i in order),
        sign * offset,
        offset_loss + offset.abs() * (8 * ROUND),
    )
