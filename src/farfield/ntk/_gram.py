"""Inner products of factored gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield.ntk._factors import Factors, FullGradients, Outer

__all__ = ["contract", "contributions"]

_ROOM = 1 << 28
_PAIRS = 1 << 23
"""Numbers held at once, at most: more does not get faster."""


def contributions(first: Factors, second: Factors, *, trace: bool, room: int = _ROOM) -> dict[str, Tensor]:
    """Every parameter's part of the tangent kernel: (n, m) if ``trace``, else (n, m, K, K).

    ``room``: bytes for what is held in between.
    """
    return {name: _parameter(terms, second[name], trace, room) for name, terms in first.items()}


def contract(first: Factors, second: Factors, *, trace: bool, room: int = _ROOM) -> Tensor:
    """The tangent kernel: the sum of all parts, of which there is at least one."""
    total: Tensor | None = None
    for name, terms in first.items():
        part = _parameter(terms, second[name], trace, room)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _parameter(
    a: list[Outer | FullGradients], b: list[Outer | FullGradients], trace: bool, room: int
) -> Tensor:
    if any(isinstance(t, FullGradients) for t in (*a, *b)):
        return _dense(_sum(a), _sum(b), trace)
    left, right = _joined(a), _joined(b)
    if left is not None and right is not None and trace and _single(left, right, room):
        return _vectors(left, right)
    if left is None or right is None:  # terms of different width
        return _dense(_sum(a), _sum(b), trace)
    return (
        _formed(left, right, trace, room)
        if _forming_pays(left, right, trace, room)
        else _outer(left, right, trace, room)
    )


def _single(a: Outer, b: Outer, room: int) -> bool:
    """Whether every gradient is one outer product of vectors, and all pairs fit at once."""
    (n, *rest, p), (_, *others, q), m = a.left.shape, a.right.shape, b.left.shape[0]
    alone = rest == others == [1, 1, 1] and b.left.shape[3] == 1 and min(p, q) > 1
    return alone and n * m * 2 <= min(_PAIRS, room // a.left.element_size())


def _vectors(a: Outer, b: Outer) -> Tensor:
    """(left·left′)(right·right′): what ``_outer`` comes to with one output, block and place."""
    sides = [side[:, 0, 0, 0] for side in (a.left, a.right, b.left, b.right)]
    left, right = sides[0] @ sides[2].T, sides[1] @ sides[3].T
    if a.ones is not None:
        (right if a.ones == "right" else left).add_(1)
    return left.mul_(right)


def _joined(terms: list[Outer | FullGradients]) -> Outer | None:
    """Several uses of one parameter as one, with more places."""
    outers = [t for t in terms if isinstance(t, Outer)]
    if len(outers) == 1:
        return outers[0]
    outputs = max(max(t.left.shape[1], t.right.shape[1]) for t in outers)
    sides = []
    for side in ("left", "right"):
        parts = [getattr(t, side) for t in outers]
        if len({p.shape[-1] for p in parts}) > 1 or len({p.shape[2] for p in parts}) > 1:
            return None
        sides.append(torch.cat([p.expand(-1, outputs, -1, -1, -1) for p in parts], 3))
    return Outer(sides[0], sides[1])


def _as_dense(term: Outer | FullGradients) -> Tensor:
    """(n, K, size)."""
    if isinstance(term, FullGradients):
        return term.value
    outputs = max(term.left.shape[1], term.right.shape[1])
    left, right = (side.expand(-1, outputs, -1, -1, -1) for side in (term.left, term.right))
    weight = (left.transpose(-1, -2) @ right).flatten(2)
    if term.ones is None:
        return weight
    bias = (term.left if term.ones == "right" else term.right).sum(3).flatten(2)
    return torch.cat([weight, bias.expand(-1, outputs, -1)], -1)


def _sum(terms: list[Outer | FullGradients]) -> Tensor:
    total = _as_dense(terms[0])
    for term in terms[1:]:
        total = total + _as_dense(term)
    return total


def _dense(a: Tensor, b: Tensor, trace: bool) -> Tensor:
    if trace:
        return a.flatten(1) @ b.flatten(1).T
    n, k, size = a.shape
    m = b.shape[0]
    return (a.reshape(n * k, size) @ b.reshape(m * k, size).T).reshape(n, k, m, k).transpose(1, 2)


def _gradient_bytes(term: Outer) -> int:
    """Bytes of one input's gradient, once it is formed."""
    outputs = max(term.left.shape[1], term.right.shape[1])
    size = term.left.shape[2] * term.left.shape[4] * term.right.shape[4]
    return outputs * size * term.left.element_size()


def _heights(a: Outer, b: Outer, room: int) -> tuple[int, int]:
    """How many gradients of each side are formed at once."""
    n, m = len(a.left), len(b.left)
    fit = max(room // _gradient_bytes(a), 2)
    rows = min(n, fit - min(m, fit // 2))
    return rows, min(m, fit - rows)


def _forming_pays(a: Outer, b: Outer, trace: bool, room: int) -> bool:
    """Whether forming the gradients takes fewer operations than the Gram matrices of their factors; where
    one of them does not fit, the smaller.
    """
    n, m = len(a.left), len(b.left)
    k = max(a.left.shape[1], a.right.shape[1])
    g, t, p, q = a.left.shape[2], a.left.shape[3], a.left.shape[4], a.right.shape[4]
    s = b.left.shape[3]
    fixed, moving = (p, q) if a.left.shape[1] == 1 else (q, p)
    by_gram = n * m * g * t * s * (fixed + k * k * moving)
    rows, _ = _heights(a, b, room)
    # What can't be made small by tiles: the gradients of two inputs, or the Gram matrices of one pair.
    least_form = 3 * _gradient_bytes(a)
    least_gram = t * s * (2 if trace else 1 + 2 * k * k) * a.left.element_size()
    if max(least_form, least_gram) > room:
        return least_form < least_gram
    by_form = (n * t + -(-n // rows) * m * s) * k * g * p * q + n * m * k * k * g * p * q
    return by_form < by_gram


def _formed(a: Outer, b: Outer, trace: bool, room: int) -> Tensor:
    """From the gradients themselves, some rows and columns at a time."""
    rows, columns = _heights(a, b, room)
    strips = []
    for start in range(0, len(a.left), rows):
        left = _as_dense(a[start : start + rows])
        parts = [
            _dense(left, _as_dense(b[first : first + columns]), trace)
            for first in range(0, len(b.left), columns)
        ]
        strips.append(parts[0] if len(parts) == 1 else torch.cat(parts, 1))
    return strips[0] if len(strips) == 1 else torch.cat(strips)


def _outer(a: Outer, b: Outer, trace: bool, room: int) -> Tensor:
    """Σ over blocks and places t, s of (left_t·left′_s)(right_t·right′_s)."""
    outputs = max(a.left.shape[1], a.right.shape[1])
    n, m, places = len(a.left), len(b.left), a.left.shape[3] * b.left.shape[3]
    # Held for a pair: both Gram matrices, and the product of each pair of outputs with one.
    each = places * (2 if trace else 1 + 2 * outputs**2)
    pairs = max(1, min(_PAIRS, room // a.left.element_size()) // each)
    height = max(1, min(n, pairs // m))
    width = max(1, min(m, pairs // height))
    total = a.left.new_zeros((n, m) if trace else (n, m, outputs, outputs))
    for start in range(0, n, height):
        for first in range(0, m, width):
            rows, columns = slice(start, start + height), slice(first, first + width)
            for block in range(a.left.shape[2]):
                total[rows, columns] += _block(
                    a.left[rows, :, block], a.right[rows, :, block],
                    b.left[columns, :, block], b.right[columns, :, block], trace, a.ones,
                )  # fmt: skip
    return total


def _block(al: Tensor, ar: Tensor, bl: Tensor, br: Tensor, trace: bool, ones: str | None) -> Tensor:
    """One block; each tensor has shape (inputs, K or 1, places, size)."""
    n, m, t, s = len(al), len(bl), al.shape[2], bl.shape[2]
    k = max(al.shape[1], ar.shape[1])
    if al.shape[1] > 1 and ar.shape[1] > 1:  # both sides change with the output: a tied parameter
        pairs = [(i, i) for i in range(k)] if trace else [(i, j) for i in range(k) for j in range(k)]
        parts = [
            _block(al[:, i : i + 1], ar[:, i : i + 1], bl[:, j : j + 1], br[:, j : j + 1], True, ones)
            for i, j in pairs
        ]
        return torch.stack(parts).sum(0) if trace else torch.stack(parts, -1).reshape(n, m, k, k)
    # The side with a column of ones is the same for all outputs.
    on_left = al.shape[1] == 1 and ones != "right"
    fixed, moving = ((al, bl), (ar, br)) if on_left else ((ar, br), (al, bl))
    inner = _gram(fixed[0][:, 0], fixed[1][:, 0])  # (n, t, m, s)
    if ones is not None:
        inner += 1
    if trace:
        # Σ_k over outputs is one longer inner product.
        grads = _gram(*(side.transpose(1, 2).flatten(2) for side in moving))
        if t == s == 1:
            return inner.mul_(grads).reshape(n, m)
        return inner.mul_(grads).sum((1, 3))
    grads = _gram(*(side.transpose(1, 2).flatten(1, 2) for side in moving)).reshape(n, t, k, m, s, k)
    if t == s == 1:
        return (inner.reshape(n, m, 1, 1) * grads.reshape(n, k, m, k).transpose(1, 2)).contiguous()
    return torch.einsum("ntms,ntkmsl->nmkl", inner, grads)


def _gram(a: Tensor, b: Tensor) -> Tensor:
    """(n, t, p) and (m, s, p) → (n, t, m, s)."""
    n, t, p = a.shape
    m, s = b.shape[:2]
    return (a.reshape(n * t, p) @ b.reshape(m * s, p).T).reshape(n, t, m, s)
