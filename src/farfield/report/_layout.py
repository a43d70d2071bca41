"""Where boxes and lines go: layers by longest path, order by barycenter, columns by least squares."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Layout", "lay_out"]

ROW = 61.0
"""From one layer to the next."""
HEIGHT = 40.0
"""Of a box."""
_MARGIN = 14.0
_APART = 22.0
_LINE = 10.0
"""Width kept free for a line that passes a layer."""
_SWEEPS = 10
_HEAVY, _STRAIGHT = 1e5, 6.0


@dataclass(frozen=True, slots=True)
class Layout:
    """A finished layout.

    Parameters
    ----------
    width, height
        Of the whole.
    centers
        Box → center.
    routes
        One SVG path per link, in the order of the links.
    """

    width: float
    height: float
    centers: Mapping[str, tuple[float, float]]
    routes: tuple[str, ...]


def lay_out(
    widths: Mapping[str, float], links: Sequence[tuple[str, str, bool]], top: frozenset[str] = frozenset()
) -> Layout:
    """Lay a directed acyclic graph out from top to bottom.

    Parameters
    ----------
    widths
        Box → width, in topological order.
    links
        (from, to, heavy): heavy links are kept straight.
    top
        Boxes without operands that stay in the first layer; others move down to what they feed.
    """
    layer = _layers(list(widths), links, top)
    grid = _Grid(widths, links, layer)
    order = _ordered(grid)
    x = _columns(grid, order)
    if not x:
        return Layout(0.0, 0.0, {}, ())
    left = min(x[v] - grid.width[v] / 2 for v in x) - _MARGIN
    right = max(x[v] + grid.width[v] / 2 for v in x) + _MARGIN
    x = {v: value - left for v, value in x.items()}
    y = {v: _MARGIN + HEIGHT / 2 + ROW * grid.layer[v] for v in x}
    routes = tuple(_route([(x[v], y[v]) for v in chain]) for chain in grid.chains)
    height = 2 * _MARGIN + HEIGHT + ROW * max(grid.layer.values())
    return Layout(right - left, height, {key: (x[key], y[key]) for key in widths}, routes)


def _layers(
    keys: Sequence[str], links: Sequence[tuple[str, str, bool]], top: frozenset[str]
) -> dict[str, int]:
    before: dict[str, list[str]] = defaultdict(list)
    after: dict[str, list[str]] = defaultdict(list)
    for a, b, _ in links:
        before[b].append(a)
        after[a].append(b)
    layer: dict[str, int] = {}
    for key in keys:
        layer[key] = max((layer[a] + 1 for a in before[key]), default=0)
    for key in reversed(keys):
        if not before[key] and after[key] and key not in top:
            layer[key] = min(layer[b] for b in after[key]) - 1
    return layer


class _Grid:
    """Boxes and, where a link crosses layers, one invisible vertex per layer, shared by the links of one source."""

    def __init__(
        self, widths: Mapping[str, float], links: Sequence[tuple[str, str, bool]], layer: Mapping[str, int]
    ) -> None:
        self.layer = dict(layer)
        self.width = dict(widths)
        self.up: dict[str, dict[str, float]] = defaultdict(dict)
        self.down: dict[str, dict[str, float]] = defaultdict(dict)
        self.chains: list[list[str]] = []
        for a, b, heavy in links:
            chain = [a]
            for level in range(layer[a] + 1, layer[b]):
                vertex = f"{a}|{level}"
                self.layer.setdefault(vertex, level)
                self.width.setdefault(vertex, _LINE)
                chain.append(vertex)
            chain.append(b)
            self.chains.append(chain)
            for s, t in pairwise(chain):
                weight = _HEAVY if heavy else _STRAIGHT if "|" in s and "|" in t else 1.0
                self.down[s][t] = self.up[t][s] = max(weight, self.down[s].get(t, 0.0))

    def rows(self) -> list[list[str]]:
        rows: list[list[str]] = [[] for _ in range(max(self.layer.values(), default=-1) + 1)]
        for vertex, level in self.layer.items():
            rows[level].append(vertex)
        return rows


def _ordered(grid: _Grid) -> list[list[str]]:
    """Rows in an order with few crossings: sweeps down and up, each row sorted by its neighbors' mean place."""
    rows = grid.rows()
    best, fewest = [list(row) for row in rows], _crossings(grid, rows)
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        downwards = sweep % 2 == 0
        near = grid.up if downwards else grid.down
        levels = range(1, len(rows)) if downwards else range(len(rows) - 2, -1, -1)
        for level in levels:
            rows[level] = _by_barycenter(rows[level], rows[level - 1 if downwards else level + 1], near)
        count = _crossings(grid, rows)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    return best


def _by_barycenter(
    row: Sequence[str], fixed: Sequence[str], near: Mapping[str, Mapping[str, float]]
) -> list[str]:
    place = {v: i for i, v in enumerate(fixed)}
    scale = len(fixed) / len(row) if row else 1.0
    centers: dict[str, float] = {}
    for i, v in enumerate(row):
        found = [place[u] for u in near.get(v, {}) if u in place]
        centers[v] = sum(found) / len(found) if found else i * scale
    return sorted(row, key=lambda v: centers[v])


def _crossings(grid: _Grid, rows: Sequence[Sequence[str]]) -> int:
    total = 0
    for upper, lower in pairwise(rows):
        place = {v: i for i, v in enumerate(lower)}
        seen: list[int] = []
        for v in upper:
            ends = sorted(place[t] for t in grid.down[v] if t in place)
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


def _columns(grid: _Grid, rows: Sequence[Sequence[str]]) -> dict[str, float]:
    """Columns: every row in turn goes as near as it can to its neighbors without changing order or touching."""
    x: dict[str, float] = {}
    for row in rows:
        place = 0.0
        for v in row:
            x[v] = place + grid.width[v] / 2
            place += grid.width[v] + _APART
        shift = place / 2
        for v in row:
            x[v] -= shift
    for sweep in range(_SWEEPS * 2):
        tables = (grid.up, grid.down) if sweep >= _SWEEPS else (grid.up if sweep % 2 == 0 else grid.down,)
        for row in rows if sweep % 2 == 0 else reversed(rows):
            _settle(row, grid, x, tables)
    return x


def _settle(
    row: Sequence[str],
    grid: _Grid,
    x: dict[str, float],
    tables: Sequence[Mapping[str, Mapping[str, float]]],
) -> None:
    """Weighted least squares under least distances: isotonic regression by pooling neighbors that collide."""
    offset = 0.0
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    offsets: list[float] = []
    for i, v in enumerate(row):
        if i:
            u = row[i - 1]
            gap = _APART if "|" not in u or "|" not in v else _APART / 2
            offset += (grid.width[u] + grid.width[v]) / 2 + gap
        offsets.append(offset)
        near = [(x[u], w) for table in tables for u, w in table.get(v, {}).items()]
        weight = sum(w for _, w in near)
        wanted = sum(p * w for p, w in near) / weight if weight else x[v]
        pool = (wanted - offset, weight or 0.05, 1)
        while pools and pools[-1][0] >= pool[0]:
            mean, mass, count = pools.pop()
            total = mass + pool[1]
            pool = ((mean * mass + pool[0] * pool[1]) / total, total, count + pool[2])
        pools.append(pool)
    places = [mean for mean, _, count in pools for _ in range(count)]
    for v, place, shift in zip(row, places, offsets, strict=True):
        x[v] = place + shift


def _route(points: Sequence[tuple[float, float]]) -> str:
    """A line through the points, vertical inside a layer and bent between layers."""
    half = HEIGHT / 2
    x, y = points[0]
    y += half
    parts = [f"M{x:.1f} {y:.1f}"]
    for i, (nx, ny) in enumerate(points[1:], 1):
        end = i == len(points) - 1
        to = ny - half - (5 if end else 0)
        if abs(nx - x) < 0.5:
            parts.append(f"L{nx:.1f} {to:.1f}")
        else:
            bend = (to - y) * 0.55
            parts.append(f"C{x:.1f} {y + bend:.1f} {nx:.1f} {to - bend:.1f} {nx:.1f} {to:.1f}")
        if not end:
            parts.append(f"L{nx:.1f} {ny + half:.1f}")
        x, y = nx, ny + half
    return "".join(parts)
