"""Trees of cells checked: they cover every input, and on each of them the bound holds by a mean-value form.

Every input x is a ray through u = (x, 1) = M p, M upper triangular with a positive diagonal, so max|p_i| = 1 on some
face of a cube and p_last > 0; a box domain is a cube of its own, and an ellipsoid is a ball in the cube of the box
around it. A cell is a box of such p, p = center + δ. Over a cell every value is v₀ + Σ s_j δ_j
(:mod:`farfield.certify.checker._slopes`), so v lies in v₀ + Σ s_j·[−h_j, h_j], or in what a ball leaves of it.

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
from farfield.certify.checker._ranges import Ranges
from farfield.certify.checker._reading import Form, Layer, Reading
from farfield.certify.checker._slopes import (
    CellSlopes,
    cells_of_a_ball,
    curve_slopes,
    length,
    lifted_slopes,
    norm_slopes,
)
from farfield.certify.checker._values import TINY, Array, CertificateError, MidRad, Span, U, gamma, round_up

__all__ = ["CellsCheck", "read_tree"]

LETTERS = "0123456789abcdefghijklmnopqrstuvw"
NARROWEST = 2.0**-48
"""Cells narrower than this are not halved."""
WORK = 2e9
"""Operations that may be spent on cells beyond those a proof lists, however few it lists."""
LEAST_RADIUS = 1e-100
"""Of the ball in the cube: a proof's coordinates may make it as small as it likes."""
FURTHER = 16
"""Cells that may be looked at for each one listed: a mean-value form needs smaller cells than the search."""


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
            made = values[layer].with_values(values[layer].start @ weight, values[layer].slope @ weight)
            total = made if total is None else total.plus(made)
        if total is None:
            raise CertificateError("A layer of a cells proof doesn't depend on the input.")
        if self.degree:
            assert time is not None
            return total.plus(time.times(self.offset[None]))
        return total.with_values(total.start + self.offset[None], total.slope)


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
    """Bounds of sign·f over cells, for one entry of an output; ``memo`` keeps what all entries have in common."""

    def __init__(
        self,
        ranges: Ranges,
        output: str,
        confined: Mapping[str, Span],
        unbounded: str | None,
        index: int,
        sign: float,
        cone: DomainCone | None = None,
        ball: DomainCone | None = None,
        memo: dict[str, Any] | None = None,
    ) -> None:
        self.ranges, self.confined, self.homogeneous = ranges, confined, unbounded is not None
        self.cone = cone if self.homogeneous else None
        self.ball = None if self.homogeneous else ball
        memo = {} if memo is None else memo
        if "cells" not in memo:
            reading = Reading(ranges, output, frozenset(confined), unbounded)
            self.layers = reading.layers
            kinds = ("curve", "norm")
            maps = {i: self._map(_argument(x)) for i, x in enumerate(self.layers) if x.kind in kinds}
            memo["cells"] = reading, maps
        reading, self.maps = memo["cells"]
        if reading.output.degree:
            raise CertificateError("The output is reached from the input without a norm on the way.")
        self.layers = reading.layers
        row = reading.output.value.reshape(len(reading.output.value.mid), -1)[:, index : index + 1]
        self.output = self._map(Form(MidRad(sign * row.mid, row.rad)))
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
        radius, reach, beside = self._radius(matrix, shift), None, None
        if radius is not None:
            reach, beside = cells_of_a_ball(place, widths, radius)
        made = CellSlopes(
            MidRad.exact(place) @ exact + MidRad.exact(shift[None]), MidRad.exact(columns) @ exact, reach
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
                values[i] = norm_slopes(layer, z, lift)
                continue
            assert layer.sigma is not None
            plain = self.ranges.get(layer.node.operands[0])
            flat = None if plain is None else (plain[0].reshape(-1), plain[1].reshape(-1))
            values[i] = (
                curve_slopes(layer.sigma, z, flat) if lift is None else lifted_slopes(layer.sigma, z, lift)
            )
        end = self.output.apply(values, time)
        met, top = end.start.span[0][:, 0], end.span[1][:, 0]
        part = widths**2 / np.maximum((widths**2).sum(1, keepdims=True), TINY)
        share = end.slope.rad[:, :, 0].T + (end.start.rad + 1e-3 * end.spread) * part
        if radius is not None:
            top = np.fmin(top, _over_ball(end, place, widths, radius))
        met, top = np.where(np.isnan(met), -math.inf, met), np.where(np.isnan(top), math.inf, top)
        outside = beside if outside is None else outside
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

    def _radius(self, matrix: Array, shift: Array) -> float | None:
        """The radius of a ball around 0 that holds p of every x in the domain, where that is an ellipsoid.

        p = (x − shift)/m with ‖(x − c)/a‖ ≤ 1: at most max a/m + ‖(c − shift)/m‖.
        """
        if self.ball is None or self.ball.kind != "ellipsoid" or len(self.ball.parts["axes"]) != self.size:
            return None
        center, axes, diagonal = self.ball.parts["center"], self.ball.parts["axes"], np.diagonal(matrix)
        away = float(length(((center - shift) / diagonal)[:, None])[0])
        made = (float((axes / diagonal).max()) + away) * (1 + (self.size + 16) * U)
        # A larger radius holds as well; this one has a square that float64 holds to the last digit.
        return max(made, LEAST_RADIUS) if math.isfinite(made) else None

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


def _over_ball(end: CellSlopes, place: Array, widths: Array, radius: float) -> Array:
    """The largest v₀ + Σ s_j (p_j − place_j)/width_j over the ball, with the middles of s_j;
    the rest of s_j counts as it does over the cell.
    """
    slope = end.slope.mid[:, :, 0] / widths.T
    turned, far = (slope * place.T).sum(0), radius * length(slope)
    lost = end.slope.rad[:, :, 0].sum(0) + (gamma(place.shape[1] + 8) + 8 * U) * (
        (np.abs(slope * place.T)).sum(0) + far + np.abs(end.start.mid[:, 0])
    )
    made: Array = end.start.mid[:, 0] - turned + far + round_up(end.start.rad[:, 0] + lost)
    return made


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
