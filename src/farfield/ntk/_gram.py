"""Inner products of factored gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from farfield.ntk._factors import Dense, Factors, Outer

__all__ = ["contract", "contributions"]


def contributions(first: Factors, second: Factors, *, trace: bool) -> dict[str, Tensor]:
    """Every parameter's part of the tangent kernel: (n, m) if ``trace``, else (n, m, K, K)."""
    return {name: _parameter(terms, second[name], trace) for name, terms in first.items()}


def contract(first: Factors, second: Factors, *, trace: bool) -> Tensor:
    """The tangent kernel: the sum of all parts."""
    total: Tensor | None = None
    for name, terms in first.items():
        part = _parameter(terms, second[name], trace)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _parameter(a: list[Outer | Dense], b: list[Outer | Dense], trace: bool) -> Tensor:
    if any(isinstance(t, Dense) for t in (*a, *b)):
        return _dense(_sum(a), _sum(b), trace)
    left, right = _joined(a), _joined(b)
    if left is None or right is None:  # terms of different width: a bias counted in one and not in the other
        return _dense(_sum(a), _sum(b), trace)
    if _materialize(left, right):
        return _dense(_as_dense(left), _as_dense(right), trace)
    return _outer(left, right, trace)


def _joined(terms: list[Outer | Dense]) -> Outer | None:
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
    return Outer(*sides)


def _as_dense(term: Outer | Dense) -> Tensor:
    """(n, K, size)."""
    if isinstance(term, Dense):
        return term.value
    outputs = max(term.left.shape[1], term.right.shape[1])
    left, right = (side.expand(-1, outputs, -1, -1, -1) for side in (term.left, term.right))
    return (left.transpose(-1, -2) @ right).flatten(2)


def _sum(terms: list[Outer | Dense]) -> Tensor:
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


def _materialize(a: Outer, b: Outer) -> bool:
    """Whether forming the gradients is cheaper than the Gram matrices of their factors."""
    n, m = len(a.left), len(b.left)
    k = max(a.left.shape[1], a.right.shape[1])
    g, t, p, q = a.left.shape[2], a.left.shape[3], a.left.shape[4], a.right.shape[4]
    s = b.left.shape[3]
    fixed, moving = (p, q) if a.left.shape[1] == 1 else (q, p)
    by_gram = n * m * g * t * s * (fixed + k * k * moving)
    by_form = (n * t + m * s) * k * g * p * q + n * m * k * k * g * p * q
    return by_form < by_gram and n * k * g * p * q < 2**28


def _outer(a: Outer, b: Outer, trace: bool) -> Tensor:
    """Σ over blocks and places t, s of (left_t·left′_s)(right_t·right′_s)."""
    outputs = max(a.left.shape[1], a.right.shape[1])
    n, m, places = len(a.left), len(b.left), a.left.shape[3] * b.left.shape[3]
    shape = (n, m) if trace else (n, m, outputs, outputs)
    total = a.left.new_zeros(shape)
    height = max(1, _CHUNK // max(1, m * places * (1 if trace else outputs**2)))
    for start in range(0, n, height):
        rows = slice(start, start + height)
        for block in range(a.left.shape[2]):
            total[rows] += _block(
                a.left[rows, :, block],
                a.right[rows, :, block],
                b.left[:, :, block],
                b.right[:, :, block],
                trace,
            )
    return total


_CHUNK = 1 << 23
"""Pairs of places held at once."""


def _block(al: Tensor, ar: Tensor, bl: Tensor, br: Tensor, trace: bool) -> Tensor:
    """One block; each tensor has shape (inputs, K or 1, places, size)."""
    n, m, t, s = len(al), len(bl), al.shape[2], bl.shape[2]
    k = max(al.shape[1], ar.shape[1])
    if al.shape[1] > 1 and ar.shape[1] > 1:  # both sides change with the output: a tied parameter
        pairs = [(i, i) for i in range(k)] if trace else [(i, j) for i in range(k) for j in range(k)]
        parts = [
            _block(al[:, i : i + 1], ar[:, i : i + 1], bl[:, j : j + 1], br[:, j : j + 1], True)
            for i, j in pairs
        ]
        return torch.stack(parts).sum(0) if trace else torch.stack(parts, -1).reshape(n, m, k, k)
    fixed, moving = ((al, bl), (ar, br)) if al.shape[1] == 1 else ((ar, br), (al, bl))
    inner = _gram(fixed[0][:, 0], fixed[1][:, 0])  # (n, t, m, s)
    if trace:
        # Σ_k over outputs is one longer inner product.
        grads = _gram(*(side.transpose(1, 2).flatten(2) for side in moving))
        if t == s == 1:
            return (inner * grads).reshape(n, m)
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
