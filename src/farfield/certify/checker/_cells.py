"""Trees of cells checked: they cover every input, and on each of them the bound holds by a mean-value form.

Every input x is a ray through u = (x, 1) = M p, M upper triangular with a positive diagonal, so max|p_i| = 1 on some
face of a cube and p_last > 0; a box domain is a cube of its own. A cell is a box of such p, p = center + δ. Over a
cell every value is v₀ + Σ s_j δ_j with intervals for v₀ and for the slopes s_j, found by rules of a line or two: sums
and products of intervals, divided differences of activations and of 1/√q. So v lies in v₀ + Σ s_j·[−h_j, h_j].
Before the first norm values are multiplied by t: an activation is t·σ(z/t) there.

A cell whose bound exceeds the claim is halved along the axis to which most of the excess belongs, those with the
largest bounds first, until none is left or the work is spent: ``WORK``, or that of ``FURTHER`` cells for each one
that is listed, whichever is more. Then the largest bound is the answer, claim or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from farfield.certify.checker._cone import DomainCone
from farfield.certify.checker._curves import CheckedCurve
from farfield.certify.checker._ranges import Ranges
from farfield.certify.checker._reading import Form, Layer, Reading
from farfield.certify.checker._values import TINY, Array, CertificateError, MidRad, Span, U, gamma, round_up

__all__ = ["CellsCheck", "read_tree"]

LETTERS = "0123456789abcdefghijklmnopqrstuvw"
NARROWEST = 2.0**-48
"""Cells narrower than this are not halved."""
WORK = 2e9
"""Operations that may be spent on cells beyond those a proof lists, however few it lists."""
FURTHER = 16
"""Cells that may be looked at for each one listed: a mean-value form needs smaller cells than the search."""


@dataclass(frozen=True)
class CellSlopes:
    """v₀ (cells, entries) and s (axes, cells, entries), the half-widths being multiplied into s."""

    start: MidRad
    slope: MidRad

    @property
    def spread(self) -> Array:
        """Σ|s|."""
        return round_up((np.abs(self.slope.mid) + self.slope.rad).sum(0))

    @property
    def span(self) -> Span:
        """Where the value lies in the cell."""
        return MidRad(self.start.mid, round_up(self.start.rad + self.spread)).span

    def plus(self, other: CellSlopes) -> CellSlopes:
        """Their sum."""
        return CellSlopes(self.start + other.start, self.slope + other.slope)

    def times(self, factor: MidRad) -> CellSlopes:
        """A constant multiple."""
        return CellSlopes(self.start * factor, self.slope * MidRad(factor.mid[None], factor.rad[None]))

    def better(self, other: CellSlopes) -> CellSlopes:
        """Entry by entry the one that leaves less open; what follows the axes is not open."""
        keep = ~(other.start.rad + other.slope.rad.sum(0) < self.start.rad + self.slope.rad.sum(0))

        def pick(a: Array, b: Array) -> Array:
            made: Array = np.where(keep, a, b)
            return made

        return CellSlopes(
            MidRad(pick(self.start.mid, other.start.mid), pick(self.start.rad, other.start.rad)),
            MidRad(pick(self.slope.mid, other.slope.mid), pick(self.slope.rad, other.slope.rad)),
        )


def _enclosed(span: Span, axes: int) -> CellSlopes:
    """A value known by its range alone."""
    start = MidRad.between(*span)
    shut = MidRad(
        np.where(np.isfinite(start.mid), start.mid, 0.0),
        np.where(np.isfinite(start.mid), start.rad, math.inf),
    )
    return CellSlopes(shut, MidRad(*np.zeros((2, axes, *start.mid.shape))))


# -- rules ---------------------------------------------------------------------------------------------------


def _curve(sigma: CheckedCurve, z: CellSlopes, known: Span | None) -> CellSlopes:
    """σ(z) = σ(z₀) + (divided difference)·(z − z₀)."""
    low, high = z.span
    if known is not None:
        low, high = np.maximum(low, np.minimum(known[0], high)), np.minimum(high, np.maximum(known[1], low))
    made = CellSlopes(sigma.value(z.start), z.slope * sigma.slope_between(z.start, low, high)[None])
    return made.better(_enclosed(sigma.image(low, high), len(z.slope.mid)))


def _lifted(sigma: CheckedCurve, z: CellSlopes, time: CellSlopes) -> CellSlopes:
    """φ = t·σ(z/t), t ≥ 0: the better of two expressions for every entry.

    With w = z/t: φ = hinge(z) + t·(σ(w) − hinge(w)); and, where t stays away from 0, φ(z, t) − φ(z₀, t₀) is a mean of
    σ′(w)·(z − z₀) + (σ(w) − wσ′(w))·(t − t₀) over points of the cell.
    """
    if sigma.homogeneous:
        return _curve(sigma, z, None)
    (low, high), (begin, end) = z.span, (np.maximum(e, 0.0) for e in time.span)
    most = np.maximum(end, TINY) * (1 + 8 * U)
    far = np.where(low > 0, low / most, -math.inf), np.where(high < 0, high / most, math.inf)
    rest = MidRad.between(*sigma.rest_beyond(*far))
    base = CellSlopes(
        sigma.hinge.value(z.start), z.slope * sigma.hinge.slope_between(z.start, low, high)[None]
    )
    tail = time.times(MidRad.exact(rest.mid))
    made = base.plus(
        CellSlopes(MidRad(tail.start.mid, round_up(tail.start.rad + end * rest.rad)), tail.slope)
    )
    away = (begin > 1e-3 * end) & np.isfinite(low) & np.isfinite(high)
    if not away.any():
        return made
    ends = [e / np.where(away, t, 1.0) for e in (low, high) for t in (begin, end)]
    least, largest = np.minimum.reduce(ends), np.maximum.reduce(ends)
    reach = 8 * U * np.maximum(np.abs(least), np.abs(largest)) + TINY
    least, largest = np.where(away, least - reach, 0.0), np.where(away, largest + reach, 0.0)
    steep = sigma.slope_between(MidRad.between(least, largest), least, largest)
    first = np.where(away, time.start.mid, 1.0)
    share = time.start.rad / np.maximum(first - time.start.rad, TINY)
    inverse = MidRad(1 / first, round_up((share + 4 * U) / first))
    value = sigma.value(z.start * inverse) * time.start
    loose = round_up(value.rad + end * sigma.defect)
    slope = z.slope * steep[None] + time.slope * sigma.intercept(least, largest)[None]
    good = (
        away
        & (share < 0.5)
        & np.isfinite(loose)
        & np.isfinite(slope.mid).all(0)
        & np.isfinite(slope.rad).all(0)
    )
    near = CellSlopes(
        MidRad(np.where(good, value.mid, 0.0), np.where(good, loose, math.inf)),
        MidRad(np.where(good, slope.mid, 0.0), np.where(good, slope.rad, 0.0)),
    )
    return made.better(near)


def _norm(layer: Layer, z: CellSlopes, time: CellSlopes | None) -> CellSlopes:
    """c·g(q), g = 1/√q, q = Σc²/count + ε (ε·t² before the first norm) in each group; c is centered already.

    y − y₀ = (c − c₀)·g(q) + c₀·(g(q) − g(q₀)), q − q₀ = Σ(c − c₀)(c + c₀)/count + ε(t − t₀)(t + t₀), and
    g(q) − g(q₀) = −(q − q₀)/(√q√q₀(√q + √q₀)).
    """
    if layer.eps is None:
        raise CertificateError(
            f"The independent checker does not support cells behind {layer.node.name!r}: its ε is outside the root."
        )
    groups, width = layer.groups, layer.groups.shape[1]
    scale = MidRad(np.full((1,), 1 / layer.count), np.full((1,), U / layer.count))
    eps = MidRad.exact(np.full((1,), layer.eps))
    start, slope = z.start[:, groups], z.slope[:, :, groups]
    ends = tuple(e[:, groups] for e in z.span)
    both = MidRad.between(ends[0], ends[1]) + start
    q0 = _summed(start * start) * scale
    rise = _summed(slope * both[None]) * scale
    least = np.where((ends[0] <= 0) & (ends[1] >= 0), 0.0, np.minimum(np.abs(ends[0]), np.abs(ends[1])))
    most = np.maximum(np.abs(ends[0]), np.abs(ends[1]))
    floor, roof = ((e**2).sum(-1) / layer.count for e in (least, most))
    if time is None:
        q0, floor, roof = q0 + eps, floor + layer.eps, roof + layer.eps
    else:
        t = tuple(np.maximum(e, 0.0) for e in time.span)
        q0 = q0 + time.start * time.start * eps
        rise = rise + time.slope * (MidRad.between(*t) + time.start)[None] * eps
        floor, roof = floor + layer.eps * t[0] ** 2, roof + layer.eps * t[1] ** 2
    low, high = MidRad(q0.mid, round_up(q0.rad + (np.abs(rise.mid) + rise.rad).sum(0))).span
    lost = gamma(width + 16)
    low, high = np.maximum(low, floor * (1 - lost)), np.minimum(high, roof * (1 + lost) + TINY)
    first = [np.maximum(q0.span[0], 0.0), q0.span[1]]
    sound = (low > 1e-200) & (first[0] > 1e-200) & np.isfinite(high) & (high < 1e200)
    low, high, first = (
        np.where(sound, low, 1.0),
        np.where(sound, np.maximum(high, low), 1.0),
        [np.where(sound, f, 1.0) for f in first],
    )
    roots = [np.sqrt(e) for e in (low, high, *first)]
    gain = _inverted(roots[0], roots[1])
    bend = _inverted(roots[0] * roots[2] * (roots[0] + roots[2]), roots[1] * roots[3] * (roots[1] + roots[3]))
    value = start * _inverted(roots[2], roots[3])[..., None]
    made = slope * gain[None, ..., None] + -(start * bend[..., None])[None] * rise[..., None]
    mid, rad = np.zeros_like(z.start.mid), np.zeros_like(z.start.rad)
    mids, rads = np.zeros_like(z.slope.mid), np.zeros_like(z.slope.rad)
    good = sound[..., None] & np.isfinite(value.rad) & np.isfinite(made.rad).all(0)
    mid[:, groups], rad[:, groups] = np.where(good, value.mid, 0.0), np.where(good, value.rad, layer.most)
    mids[:, :, groups], rads[:, :, groups] = np.where(good, made.mid, 0.0), np.where(good, made.rad, 0.0)
    image = np.full_like(mid, layer.most)
    return CellSlopes(MidRad(mid, rad), MidRad(mids, rads)).better(_enclosed((-image, image), len(mids)))


def _summed(value: MidRad) -> MidRad:
    """Along the last axis."""
    loss = gamma(value.mid.shape[-1]) * np.abs(value.mid).sum(-1) + value.rad.sum(-1)
    return MidRad(value.mid.sum(-1), round_up(loss))


def _inverted(low: Array, high: Array) -> MidRad:
    """1/x for x in [low, high], both known to a few units in the last place."""
    return MidRad.between(1 / high * (1 - 32 * U), 1 / low * (1 + 32 * U))


@dataclass(frozen=True)
class _Map:
    """A form split by the layers that enter it: coefficients (variables, entries)."""

    parts: tuple[tuple[int, MidRad], ...]
    offset: MidRad
    degree: int

    def apply(self, values: Mapping[int, CellSlopes], time: CellSlopes | None) -> CellSlopes:
        """The form over cells."""
        total: CellSlopes | None = None
        for layer, weight in self.parts:
            made = CellSlopes(values[layer].start @ weight, values[layer].slope @ weight)
            total = made if total is None else total.plus(made)
        if total is None:
            raise CertificateError("A layer of a cells proof doesn't depend on the input.")
        if self.degree:
            assert time is not None
            return total.plus(time.times(self.offset[None]))
        return CellSlopes(total.start + self.offset[None], total.slope)


def _argument(layer: Layer) -> Form:
    """What a layer is a function of, less its mean in each group where a norm centers."""
    form = layer.argument
    if form is None:
        raise CertificateError(f"What {layer.node.name!r} is applied to can't be read.")
    if not layer.centered:
        return form
    value = form.value.reshape(len(form.value.mid), -1)
    mid, rad = value.mid.copy(), value.rad.copy()
    for group in layer.groups:
        part = value[:, group]
        loss = gamma(len(group) + 4) * np.abs(part.mid).mean(1, keepdims=True) + part.rad.mean(
            1, keepdims=True
        )
        part = part + MidRad(-part.mid.mean(1, keepdims=True), loss)
        mid[:, group], rad[:, group] = part.mid, part.rad
    return Form(MidRad(mid, rad), form.degree)


# -- one output over cells -----------------------------------------------------------------------------------


class CellsCheck:
    """Bounds of sign·f over cells, for one entry of an output."""

    def __init__(
        self,
        ranges: Ranges,
        output: str,
        confined: Mapping[str, Span],
        unbounded: str | None,
        index: int,
        sign: float,
        cone: DomainCone | None = None,
    ) -> None:
        self.ranges, self.confined, self.homogeneous = ranges, confined, unbounded is not None
        self.cone = cone if self.homogeneous else None
        reading = Reading(ranges, output, frozenset(confined), unbounded)
        if reading.output.degree:
            raise CertificateError("The output is reached from the input without a norm on the way.")
        self.layers = reading.layers
        row = reading.output.value.reshape(len(reading.output.value.mid), -1)[:, index : index + 1]
        self.output = self._map(Form(MidRad(sign * row.mid, row.rad)))
        self.maps = {
            i: self._map(_argument(x)) for i, x in enumerate(self.layers) if x.kind in ("curve", "norm")
        }
        found: set[int] = set()
        stack = [i for i, _ in self.output.parts]
        while stack:
            i = stack.pop()
            if i not in found:
                found.add(i)
                stack.extend(j for j, _ in self.maps[i].parts) if i in self.maps else None
        self.needed = sorted(found)
        source = [i for i in self.needed if i not in self.maps]
        if len(source) != 1:
            raise CertificateError("The output isn't a function of one input through activations and norms.")
        self.source = source[0]
        self.size = self.layers[self.source].size + int(self.homogeneous)
        self.axes = self.size - int(self.homogeneous)
        weights = sum(w.mid.size for m in (self.output, *self.maps.values()) for _, w in m.parts)
        self.cost = (self.axes + 2) * (4 * weights + 64 * sum(self.layers[i].size for i in self.needed))
        widest = max(layer.size for layer in self.layers)
        self.batch = max(16, int(4e5 / (widest * (self.axes + 2))))

    def _map(self, form: Form) -> _Map:
        parts = []
        for i, layer in enumerate(self.layers):
            part = form.rows(layer.columns.start, layer.columns.stop).T
            if part.mid.any() or part.rad.any():
                parts.append((i, MidRad(np.ascontiguousarray(part.mid), np.ascontiguousarray(part.rad))))
        start = form.rows(0, 1)
        return _Map(tuple(parts), MidRad(start.mid[:, 0], start.rad[:, 0]), form.degree)

    def bound(self, matrix: Array, shift: Array, place: Array, widths: Array) -> tuple[Array, Array, Array]:
        """(met, top, share) of cells |p − place| ≤ widths: sign·f is at least ``met`` in the middle, at most ``top``
        everywhere, and each axis has its share in the difference.
        """
        columns = np.zeros((self.size, *place.shape))
        for j in range(self.size):
            columns[j, :, j] = widths[:, j]
        exact = MidRad.exact(matrix.T.copy())
        made = CellSlopes(
            MidRad.exact(place) @ exact + MidRad.exact(shift[None]), MidRad.exact(columns) @ exact
        )
        time = None
        outside = None if self.cone is None else self.cone.outside(made.start, made.slope)
        if self.homogeneous:
            # t = M_nn·p_n is one product: its rounding keeps its sign.
            pieces = [
                MidRad(m[..., -1:], 2 * U * np.abs(m[..., -1:])) for m in (made.start.mid, made.slope.mid)
            ]
            time = CellSlopes(pieces[0], pieces[1])
            made = CellSlopes(made.start[..., :-1], made.slope[..., :-1])
        values = {self.source: made}
        for i in self.needed:
            if i == self.source:
                continue
            layer = self.layers[i]
            z = self.maps[i].apply(values, time)
            lift = time if self.maps[i].degree else None
            if layer.kind == "norm":
                values[i] = _norm(layer, z, lift)
                continue
            assert layer.sigma is not None
            plain = self.ranges.get(layer.node.operands[0])
            flat = None if plain is None else (plain[0].reshape(-1), plain[1].reshape(-1))
            values[i] = _curve(layer.sigma, z, flat) if lift is None else _lifted(layer.sigma, z, lift)
        end = self.output.apply(values, time)
        met, top = end.start.span[0][:, 0], end.span[1][:, 0]
        part = widths**2 / np.maximum((widths**2).sum(1, keepdims=True), TINY)
        share = end.slope.rad[:, :, 0].T + (end.start.rad + 1e-3 * end.spread) * part
        met, top = np.where(np.isnan(met), -math.inf, met), np.where(np.isnan(top), math.inf, top)
        if outside is not None:  # the middle of a cell may lie outside, so what is met there refutes nothing
            return np.full_like(met, -math.inf), np.where(outside, -math.inf, top), share
        return met, top, share

    def check(
        self, proof: Mapping[str, Any], claim: float, stop: Callable[[], bool] = lambda: False
    ) -> float:
        """The bound that a proof's cells give; cells above the claim are halved until ``stop()`` is true.

        ∞ where it is true before every cell was looked at once.
        """
        matrix, shift = self._coordinates(proof)
        faces = 2 * self.size if self.homogeneous else 1
        trees = proof["trees"]
        if (
            not isinstance(trees, list | tuple)
            or len(trees) != faces
            or not all(isinstance(t, str) for t in trees)
        ):
            raise CertificateError(f"The cells need {faces} trees, one for every face.")
        places, widths = [], []
        for face, tree in enumerate(trees):
            center, half, inside = read_tree(tree, self.axes)
            free = [j for j in range(self.size) if not self.homogeneous or j != face // 2]
            if not inside.all():
                last = free.index(self.size - 1) if self.homogeneous and self.size - 1 in free else None
                end = np.full(1, 2.0 * (face % 2) - 1.0) if last is None else (center + half)[~inside, last]
                if not self.homogeneous or (end > 0).any():
                    raise CertificateError(f"A cell of face {face} is left out although it has inputs.")
            place, width = (
                np.full((int(inside.sum()), self.size), 2.0 * (face % 2) - 1.0),
                np.zeros((int(inside.sum()), self.size)),
            )
            place[:, free], width[:, free] = center[inside], half[inside]
            places.append(place)
            widths.append(width)
        return self._halved(matrix, shift, np.concatenate(places), np.concatenate(widths), claim, stop)

    def _halved(
        self, matrix: Array, shift: Array, place: Array, width: Array, line: float, stop: Callable[[], bool]
    ) -> float:
        """The largest bound over these cells, halved as long as they exceed the line and there is work left."""
        worst, spent, more = -math.inf, 0.0, 0
        work = max(WORK, FURTHER * self.cost * len(place))
        inherited = np.full(len(place), math.inf)
        pool: list[Array] = [
            np.zeros((0, self.size)),
            np.zeros((0, self.size)),
            np.zeros(0),
            np.zeros((0, self.size)),
        ]
        while True:
            for begin in range(0, len(place), self.batch):
                if not more and begin and stop():
                    return math.inf  # some of the listed cells have no bound yet
                part = slice(begin, begin + self.batch)
                met, top, share = self.bound(matrix, shift, place[part], width[part])
                top = np.minimum(top, inherited[part])
                if (met > line).any():  # the claim is false: no halving can help, but every cell still counts
                    tops = [pool[2], top]
                    for later in range(begin + self.batch, len(place), self.batch):
                        other = slice(later, later + self.batch)
                        found = self.bound(matrix, shift, place[other], width[other])[1]
                        tops.append(np.minimum(found, inherited[other]))
                    return max(worst, float(np.concatenate(tops).max()))
                share = np.where(width[part] > NARROWEST, np.nan_to_num(share, nan=0.0), -1.0)
                done = ~(top > line) | (share.max(1) < 0)
                worst = max(worst, float(top[done].max(initial=-math.inf)))
                new = (place[part], width[part], top, share)
                pool = [np.concatenate([old, n[~done]]) for old, n in zip(pool, new, strict=True)]
                spent += more * self.cost * len(top)
            more, line = 1, max(line, worst)
            if not (pool[2] > line).any() or spent > work or stop():
                return max(worst, float(pool[2].max(initial=-math.inf)))
            order = np.argsort(-pool[2], kind="stable")
            chosen, rest = order[: max(1, self.batch // 2)], order[max(1, self.batch // 2) :]
            place, width, inherited, share = (p[chosen] for p in pool)
            pool = [p[rest] for p in pool]
            halves = np.eye(self.size)[share.argmax(1)] * width / 2
            place, width = (
                np.concatenate([place - halves, place + halves]),
                np.concatenate([width - halves] * 2),
            )
            inherited = np.concatenate([inherited, inherited])

    def _coordinates(self, proof: Mapping[str, Any]) -> tuple[Array, Array]:
        matrix, shift = (np.array(proof[k], dtype=np.float64) for k in ("matrix", "shift"))
        size = self.size
        if (
            matrix.shape != (size, size)
            or shift.shape != (size,)
            or not np.isfinite([*matrix.flat, *shift]).all()
        ):
            raise CertificateError(
                f"Coordinates of cells are a finite matrix of {size} rows and columns, and a shift."
            )
        diagonal = np.diagonal(matrix)
        if self.homogeneous:
            if np.tril(matrix, -1).any() or not (diagonal > 0).all() or shift.any():
                raise CertificateError(
                    "Coordinates of cells are an upper triangular matrix with a positive diagonal."
                )
        else:
            lo, hi = (end.reshape(-1) for end in self.confined[self.layers[self.source].node.name])
            covered = (np.nextafter(shift - diagonal, math.inf) <= lo) & (
                np.nextafter(shift + diagonal, -math.inf) >= hi
            )
            if np.count_nonzero(matrix - np.diag(diagonal)) or not covered.all():
                raise CertificateError("The cells do not cover the box.")
        return matrix, shift


def read_tree(tree: str, axes: int) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """(centers, half-widths, whether inside) of the cells of one face; together they are all of [−1, 1]^axes.

    Examples
    --------
    >>> read_tree("0x.", 1)[0].tolist()
    [[-0.5], [0.5]]
    """
    cells: list[tuple[tuple[float, ...], tuple[float, ...], bool]] = []
    stack = [((0.0,) * axes, (1.0,) * axes)]
    for letter in tree:
        if not stack:
            raise CertificateError("A tree of cells goes on after its last cell.")
        center, half = stack.pop()
        if letter in ".x":
            cells.append((center, half, letter == "."))
            continue
        axis = LETTERS.find(letter)
        if not 0 <= axis < axes or half[axis] < NARROWEST:
            raise CertificateError(
                f"A tree of cells with {axes} axes halves axis {letter!r}, or halves it too often."
            )
        half = (*half[:axis], half[axis] / 2, *half[axis + 1 :])
        places = (center[axis] + half[axis], center[axis] - half[axis])
        stack.extend(((*center[:axis], at, *center[axis + 1 :]), half) for at in places)
    if stack:
        raise CertificateError("A tree of cells ends before all of its cells are closed.")
    shape = (len(cells), axes)
    return (
        np.array([c for c, _, _ in cells]).reshape(shape),
        np.array([h for _, h, _ in cells]).reshape(shape),
        np.array([i for _, _, i in cells]),
    )
