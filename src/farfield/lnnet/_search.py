"""Which fold to take next: the one that leaves different labels furthest apart, measured in their errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from farfield.lnnet._fold import Array, Line, errors, fold, read, separation
from farfield.lnnet._pairs import Pairs, all_pairs, drawn_pairs, end_pairs

__all__ = ["Choice", "FoldSearch", "next_fold"]

_SMALL = 14
"""Points up to which every pair and every two nested pairs are tried."""
_CUT = 60
"""Candidates whose scale is looked for."""
_KEPT = 8
"""Candidates that are then moved about."""
_ROUNDS = 6
"""Draws of candidates for a layer, while all of them lose more than this many digits:"""
_LOSS = 0.2


@dataclass(frozen=True)
class FoldSearch:
    """How folds are looked for.

    Parameters
    ----------
    rule
        ``"paper"``: one pair a layer, P3's own while precision lasts. ``"fold"``: any.
    eps
        ε of the arithmetic: worst separations below a few of it are refused.
    power
        Between few runs (small) and wide separations (large).
    far
        Weight of points that are not neighbors: 0 for few layers, 1 for more layers and less error.
    entries
        Candidates × points looked at for a layer.
    retreats
        How often some layers are taken back at a dead end.
    """

    rule: Literal["paper", "fold"]
    eps: float
    power: float
    far: float
    entries: int
    retreats: int = 6


@dataclass(frozen=True)
class Choice:
    """A fold: its turn, the pair that meets, its scale, the worst separation it leaves, and what it was chosen by."""

    turn: float
    first: int
    second: int
    scale: float
    worst: float
    value: float


def next_fold(
    line: Line, classes: int, worst: float, search: FoldSearch, rng: np.random.Generator
) -> Choice | None:
    """The next fold, or None where every candidate loses points in rounding."""
    n = len(line.t)
    count = max(200, min(4000, search.entries // n))
    if search.rule == "paper":
        own = _best(line, end_pairs(line, rng, 24), classes, search, rng)
        # An equal share for every layer still to come; 2 digits stay.
        share = max(np.log10(worst / search.eps) - 2.0, 0.0) / max(n - classes, 1)
        if own is not None and np.log10(worst / own.worst) <= share:
            return own
    best: Choice | None = None
    if search.rule == "fold" and n <= _SMALL:
        best = _best(line, all_pairs(line), classes, search, rng)
    have = separation(line.t, line.error, line.label, search.power, search.far)[1]
    for _ in range(_ROUNDS):
        if best is not None and best.value > have - _LOSS:
            break
        pairs = drawn_pairs(line, rng, count, nested=search.rule == "fold")
        found = _best(line, pairs, classes, search, rng)
        if found is not None and (best is None or found.value > best.value):
            best = found
    return best


def _best(
    line: Line, pairs: Pairs, classes: int, search: FoldSearch, rng: np.random.Generator
) -> Choice | None:
    if not len(pairs.turn):
        return None
    w = 1.0 / (line.t - pairs.turn[:, None])
    u = np.abs(w) - np.sign(w) * pairs.shift(line.t)[:, None] / 2
    base = 1.0 / np.maximum(np.median(np.abs(u), axis=-1), 1e-100)
    value, _ = _values(line, pairs, base, classes, search)
    top = np.argsort(-value, kind="stable")[:_CUT]
    pairs, base = pairs.part(top), base[top]
    # From the size of the pair, where it is spread and all else squeezed, to far beyond the line.
    half = (line.t[pairs.second] - line.t[pairs.first]) / 2
    low, high = np.minimum(half / 2, base / 10), base * 10
    steps = np.linspace(0.0, 1.0, 10)
    scale = (low[:, None] * (high / low)[:, None] ** steps).ravel()
    pairs = pairs.part(np.repeat(np.arange(len(half)), len(steps)))
    value, worst = _values(line, pairs, scale, classes, search)
    for spread in (0.3, 0.1):
        top = np.argsort(-value, kind="stable")[:_KEPT]
        moved, wider = _moved(line, pairs.part(top), scale[top], spread, rng)
        more, least = _values(line, moved, wider, classes, search)
        pairs = Pairs(
            np.concatenate([pairs.turn[top], moved.turn]),
            np.concatenate([pairs.first[top], moved.first]),
            np.concatenate([pairs.second[top], moved.second]),
        )
        scale = np.concatenate([scale[top], wider])
        value, worst = np.concatenate([value[top], more]), np.concatenate([worst[top], least])
    k = int(np.argmax(value))
    if not value[k] > -np.inf:
        return None
    return Choice(
        float(pairs.turn[k]),
        int(pairs.first[k]),
        int(pairs.second[k]),
        float(scale[k]),
        float(worst[k]),
        float(value[k]),
    )


def _values(line: Line, pairs: Pairs, scale: Array, classes: int, search: FoldSearch) -> tuple[Array, Array]:
    """Logarithms to be made large, −inf for what rounding would lose; and the worst separations."""
    layer = fold(pairs.turn[:, None], pairs.shift(line.t)[:, None], scale[:, None], np.sqrt)
    image = read(line.t, layer, np.sqrt)
    error = errors(line.t, line.error, layer)
    worst, value, count = separation(image, error, line.label, search.power, search.far)
    # One run a class: nothing is left to do, and only the worst counts.
    done = (count == classes) & (worst > 100 * search.eps)
    value = np.where(done, 1e3 + np.log10(worst), value)
    return np.where(worst > 4 * search.eps, value, -np.inf), worst


def _moved(
    line: Line, pairs: Pairs, scale: Array, spread: float, rng: np.random.Generator
) -> tuple[Pairs, Array]:
    """Neighbors of candidates: another turn in the same gap, another scale."""
    index = np.repeat(np.arange(len(pairs.turn)), 12)
    pairs, scale = pairs.part(index), scale[index]
    at = np.clip(np.searchsorted(line.t, pairs.turn), 1, len(line.t) - 1)
    low, high = line.t[at - 1], line.t[at]
    part = (pairs.turn - low) / (high - low) + spread * rng.standard_normal(len(index))
    # Reflected at the ends, and kept off them.
    part = 0.01 + 0.98 * np.abs((part + 1.0) % 2.0 - 1.0)
    turn = low + part * (high - low)
    inside = (turn > low) & (turn < high)
    turn = np.where(inside, turn, pairs.turn)
    wider: Array = scale * np.exp(2 * spread * rng.standard_normal(len(index)))
    return Pairs(turn, pairs.first, pairs.second), wider
