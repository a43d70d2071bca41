"""Candidates for a fold: a place to turn, and two points of one label that the fold brings together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farfield.lnnet._fold import Array, Line

__all__ = ["Pairs", "all_pairs", "drawn_pairs", "end_pairs"]


@dataclass(frozen=True)
class Pairs:
    """Points i < j of one label, and turns between them."""

    turn: Array
    first: Array
    second: Array

    def shift(self, t: Array) -> Array:
        """The κ at which each pair meets."""
        left, right = t[self.first] - self.turn, t[self.second] - self.turn
        result: Array = 1.0 / left + 1.0 / right
        return result

    def part(self, index: Array) -> Pairs:
        """Some of them."""
        return Pairs(self.turn[index], self.first[index], self.second[index])


def _usable(line: Line, turn: Array, first: Array, second: Array) -> Pairs:
    """Those whose turn lies between the pair and apart from every point, so that nothing is divided by zero."""
    t, n = line.t, len(line.t)
    at = np.searchsorted(t, turn)
    room = 1e-9 * (t[second] - t[first])
    apart = np.minimum(np.abs(t[np.clip(at, 0, n - 1)] - turn), np.abs(t[np.clip(at - 1, 0, n - 1)] - turn))
    keep = (turn > t[first]) & (turn < t[second]) & (apart > np.maximum(room, 1e-290))
    return Pairs(turn[keep], first[keep], second[keep])


def _meeting(t: Array, i: Array, j: Array, k: Array, l: Array, otherwise: Array) -> Array:  # noqa: E741
    """The turn at which (i, j) and (k, l), i < k < l < j, both meet: fixed by the involution that swaps them."""
    sum1, product1, sum2, product2 = t[i] + t[j], t[i] * t[j], t[k] + t[l], t[k] * t[l]
    a, b, c = sum2 - sum1, 2 * (product1 - product2), sum1 * product2 - sum2 * product1
    with np.errstate(all="ignore"):
        half = -(b + np.where(b >= 0, 1.0, -1.0) * np.sqrt(np.maximum(b * b - 4 * a * c, 0.0))) / 2
        roots = (half / a, c / half)
    turn = otherwise
    for root in roots:
        turn = np.where(np.isfinite(root) & (root > t[k]) & (root < t[l]), root, turn)
    return turn


def drawn_pairs(line: Line, rng: np.random.Generator, count: int, *, nested: bool) -> Pairs:
    """Random candidates, most of them near an end: a short tip folded over disturbs few points.

    With ``nested``, a second pair of one label inside the first meets as well, where there is one.
    """
    t, label, n = line.t, line.label, len(line.t)
    near = np.minimum(rng.geometric(rng.choice([0.05, 0.15, 0.4]), count), n - 1)
    k = np.where(rng.random(count) < 0.25, rng.integers(1, n, count), near)
    k = np.where(rng.random(count) < 0.5, n - k, k)
    # k points lie left of the turn. The longer side is used up to a little more than the shorter one covers.
    left, right = k, n - k
    reach = np.minimum(np.maximum(left, right), 3 * np.minimum(left, right) + 3)
    i = k - 1 - (rng.random(count) * np.where(left <= right, left, reach)).astype(int)
    j = k + (rng.random(count) * np.where(left <= right, reach, right)).astype(int)
    same = label[i] == label[j]
    i, j, k = i[same], j[same], k[same]
    part = rng.random(len(k))
    turn = t[k - 1] * (1 - part) + t[k] * part
    if nested:
        inner = k - 1 - (rng.random(len(k)) * (k - 1 - i)).astype(int)
        outer = k + (rng.random(len(k)) * (j - k)).astype(int)
        two = (inner > i) & (outer < j) & (label[inner] == label[outer])
        turn = np.where(two, _meeting(t, i, j, inner, outer, turn), turn)
    return _usable(line, turn, i, j)


def all_pairs(line: Line) -> Pairs:
    """Every pair of one label with a turn in the middle of every gap between, and every two nested pairs."""
    t, n = line.t, len(line.t)
    i, j = np.triu_indices(n, 1)
    same = line.label[i] == line.label[j]
    i, j = i[same], j[same]
    a, b = np.meshgrid(np.arange(len(i)), np.arange(len(i)), indexing="ij")
    inside = (i[a] < i[b]) & (j[b] < j[a])
    a, b = a[inside], b[inside]
    both = _meeting(t, i[a], j[a], i[b], j[b], np.full(len(a), np.nan))
    solved = ~np.isnan(both)
    gap = np.arange(n - 1)
    x, g = np.meshgrid(np.arange(len(i)), gap, indexing="ij")
    held = (i[x] <= g) & (g < j[x])
    x, g = x[held], g[held]
    turn = np.concatenate([both[solved], (t[g] + t[g + 1]) / 2])
    index = np.concatenate([a[solved], x])
    return _usable(line, turn, i[index], j[index])


def end_pairs(line: Line, rng: np.random.Generator, count: int) -> Pairs:
    """P3's pair, the first point that has a partner and the next of its label, seen from either end."""
    t, label, n = line.t, line.label, len(line.t)
    chosen: list[tuple[int, int]] = []
    for order in (range(n), range(n - 1, -1, -1)):
        last: dict[int, int] = {}
        best: tuple[int, int] | None = None
        for place, k in enumerate(order):
            start = last.setdefault(int(label[k]), place)
            if start != place and (best is None or start < best[0]):
                best = (start, place)
                if start == 0:
                    break
        if best is not None:
            i, j = order[best[0]], order[best[1]]
            chosen.append((min(i, j), max(i, j)))
    if not chosen:
        return Pairs(np.empty(0), np.empty(0, int), np.empty(0, int))
    ends = np.repeat(np.array(chosen), count, axis=0)
    # The middle, where P3 turns, and others: with more than two classes mirrored points must not meet.
    part = np.tile(np.concatenate([[0.5], 0.05 + 0.9 * rng.random(count - 1)]), len(chosen))
    turn = t[ends[:, 0]] * (1 - part) + t[ends[:, 1]] * part
    return _usable(line, turn, ends[:, 0], ends[:, 1])
