"""Trees of cells checked again: the cells cover every input, and on each of them the bound holds.

Every input x is a ray through u = (x, 1) = M p, M upper triangular with a positive diagonal, so max|p_i| = 1 on
some face of a cube and p_last > 0. A cell is a box on a face. Over a cell every value is a + Bδ ± ρ, |δ_j| ≤ 1:
affine maps are exact but for rounding, an activation is a line near it, a norm is expanded to first order. Before the
first norm values are multiplied by t: an activation is t·σ(z/t) there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from farfield.certify._check_activations import Activation
from farfield.certify._check_intervals import Ranges
from farfield.certify._check_layers import Form, Layer, layers
from farfield.certify._check_values import (
    EVALUATION,
    TINY,
    Array,
    CertificateError,
    Rough,
    U,
    gamma,
    over,
)
from farfield.graph import Program

__all__ = ["check_cells", "read_tree"]

LETTERS = "0123456789abcdefghijklmnopqrstuvw"
LEVELS = 6
"""A cell whose bound is too large here is halved this often before it is refused."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cloud:
    """Values a + Bδ ± ρ over cells: (1 + k, cells, entries) and (cells, entries)."""

    values: Array
    rho: Array

    @property
    def spread(self) -> Array:
        """Σ|B| + ρ."""
        return over(np.abs(self.values[1:]).sum(0) + self.rho)

    @property
    def ends(self) -> tuple[Array, Array]:
        """Lower and upper ends."""
        reach = over(self.spread + 4 * U * np.abs(self.values[0]))
        return self.values[0] - reach, self.values[0] + reach

    def along(self, slope: Array, shift: Array, error: Array) -> Cloud:
        """slope·value + shift ± error."""
        values = self.values * slope
        size = np.abs(values).sum(0) + np.abs(shift)
        values[0] += shift
        return Cloud(values, over(np.abs(slope) * self.rho + error + 8 * U * size))


# -- trees ---------------------------------------------------------------------------------------------------


def read_tree(tree: str, axes: int) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """(centres, half-widths, whether inside) of the cells of one face; together they are all of [−1, 1]^axes.

    Examples
    --------
    >>> read_tree("0x.", 1)[0].tolist()
    [[-0.5], [0.5]]
    """
    centres: list[tuple[float, ...]] = []
    halves: list[tuple[float, ...]] = []
    inside: list[bool] = []
    stack = [((0.0,) * axes, (1.0,) * axes)]
    for letter in tree:
        if not stack:
            raise CertificateError("A tree of cells goes on after its last cell.")
        centre, half = stack.pop()
        if letter in ".x":
            centres.append(centre)
            halves.append(half)
            inside.append(letter == ".")
            continue
        axis = LETTERS.find(letter)
        if not 0 <= axis < axes or half[axis] < 2.0**-48:
            raise CertificateError(
                f"A tree of cells with {axes} axes halves axis {letter!r}, or halves it too often."
            )
        half = (*half[:axis], half[axis] / 2, *half[axis + 1 :])
        places = (centre[axis] + half[axis], centre[axis] - half[axis])
        stack.extend(((*centre[:axis], place, *centre[axis + 1 :]), half) for place in places)
    if stack:
        raise CertificateError("A tree of cells ends before all of its cells are closed.")
    shape = (len(centres), axes)
    return np.array(centres).reshape(shape), np.array(halves).reshape(shape), np.array(inside)


# -- one cell's bound ----------------------------------------------------------------------------------------


def _line(sigma: Activation, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """(slope, shift, error): σ(x) = slope·x + shift ± error on [low, high].

    σ is within second·L²/8 of its interpolant at the ends and the kinks; away from kinks it is within
    sup|σ‴|·(L/2)³/(9√3) of the parabola through its ends and its middle. Either is compared with the chord.
    """
    middle, length = 0.5 * (low + high), (high - low) * (1 + 8 * U)
    first, last = sigma.function(low), sigma.function(high)
    slope = (last - first) / np.maximum(high - low, TINY)
    slope = np.where(np.abs(slope) <= 2 * sigma.slope, slope, 0.0)

    def compared(points: list[Array], values: list[Array], miss: Array) -> tuple[Array, Array]:
        gaps = [v - slope * p for p, v in zip(points, values, strict=True)]
        least, most = np.minimum.reduce(gaps), np.maximum.reduce(gaps)
        return 0.5 * (least + most), 0.5 * (most - least) + miss

    knots = [np.clip(k, low, high) for k in sigma.kinks]
    values = [sigma.function(k) for k in knots]
    shift, error = compared([low, *knots, high], [first, *values, last], sigma.second * length * length / 8)
    if sigma.second and math.isfinite(sigma.third):
        at = sigma.function(middle)
        skew = np.abs((first - slope * low) - (last - slope * high))
        cubic = sigma.third * (length / 2) ** 3 * 0.0642 + skew
        closer, smaller = compared([low, middle, high], [first, at, last], cubic)
        smooth = np.ones(low.shape, dtype=bool)
        for place in (*sigma.rough, *sigma.kinks):
            smooth &= (low > place) | (high < place)
        better = smooth & (smaller < error)
        shift, error = np.where(better, closer, shift), np.where(better, smaller, error)
    size = 1 + np.abs(low) + np.abs(high) + np.abs(first) + np.abs(last) + np.abs(shift)
    return slope, shift, over(error + EVALUATION * size + sigma.defect)


def _smaller(one: Cloud, other: Cloud) -> Cloud:
    keep = one.rho < other.rho
    return Cloud(np.where(keep, one.values, other.values), np.where(keep, one.rho, other.rho))


def _between(low: Array, high: Array, rows: int) -> Cloud:
    middle = 0.5 * (low + high)
    finite = np.isfinite(middle)
    values = np.zeros((rows, *middle.shape))
    values[0] = np.where(finite, middle, 0.0)
    return Cloud(
        values, np.where(finite, over(0.5 * (high - low) + 4 * U * (np.abs(low) + np.abs(high))), math.inf)
    )


def _curve(sigma: Activation, z: Cloud, known: tuple[Array, Array] | None) -> Cloud:
    low, high = z.ends
    if known is not None:
        low = np.maximum(low, np.minimum(known[0], high))
        high = np.minimum(high, np.maximum(known[1], low))
    made = z.along(*_line(sigma, low, high))
    return _smaller(made, _between(*sigma.image(low, high), len(z.values)))


def _lifted(sigma: Activation, z: Cloud, time: Cloud) -> Cloud:
    """t·σ(z/t) for t ≥ 0: from a line near σ where t stays away from 0, from σ's ends everywhere."""
    if sigma.homogeneous:
        return _curve(sigma, z, None)
    begin, end = (np.maximum(e, 0.0) for e in time.ends)
    low, high = z.ends
    (left, left_offset), (right, right_offset) = sigma.tails
    hinge = Activation(
        lambda x: np.where(x > 0, right * x, left * x), max(abs(left), abs(right), TINY), 0.0,
        kinks=(0.0,), pieces=((left, 0.0), (right, 0.0)),
    )  # fmt: skip
    slope, shift, error = _line(hinge, low, high)
    offset = np.full_like(low, 0.5 * (sigma.rest[0] + sigma.rest[1]))
    error = error + (0.5 * (sigma.rest[1] - sigma.rest[0]) + sigma.defect) * end
    if sigma.away is not None:
        gone = np.maximum(np.maximum(low, -high), 0.0) / np.maximum(end, TINY) * (1 - 8 * U)
        tail = (sigma.away(gone) + sigma.defect) * end
        better = ((low > 0) | (high < 0)) & (tail < error)
        slope = np.where(better, np.where(low > 0, right, left), slope)
        offset = np.where(better, np.where(low > 0, right_offset, left_offset), offset)
        shift, error = np.where(better, 0.0, shift), np.where(better, tail, error)
    made = _plus_time(z.along(slope, shift, error), offset, time)
    away = begin > 0
    ratio = np.where(away, z.values[0] / np.where(away, time.values[0], 1.0), 0.0)
    rest = z.values - ratio * time.values
    lost = 8 * U * (np.abs(z.values) + np.abs(ratio * time.values)).sum(0)
    reach = over(np.abs(rest).sum(0) + z.rho + np.abs(ratio) * time.rho + lost) / np.where(away, begin, 1.0)
    reach = over(reach * (1 + 8 * U) + 8 * U * np.abs(ratio))
    slope, shift, error = _line(sigma, ratio - reach, ratio + reach)
    near = _plus_time(z.along(slope, np.zeros_like(shift), error * end), shift, time)
    return _smaller(Cloud(near.values, np.where(away & np.isfinite(near.rho), near.rho, math.inf)), made)


def _plus_time(cloud: Cloud, factor: Array, time: Cloud) -> Cloud:
    added = factor * time.values
    lost = 8 * U * (np.abs(cloud.values) + np.abs(added)).sum(0)
    return Cloud(cloud.values + added, over(cloud.rho + np.abs(factor) * time.rho + lost))


def _norm(layer: Layer, z: Cloud, time: Cloud | None) -> Cloud:
    """c/√q of a value c that is centred already, q = Σc²/count + ε (ε·t² before the first norm), in each group.

    With c = a + Bδ: q = q₀ + q₁δ + [0, Q], Q = Σ|BᵀB|/count. 1/√ is convex, so 1/√q is its tangent at q₀ plus [0, R],
    R its excess at an end of q's range. Whatever q is, |y_i| is at most what a norm's entries can be.
    """
    rows, cells = z.values.shape[:2]
    width = layer.groups.shape[1]
    eps = layer.eps
    if eps is None:
        raise CertificateError(
            f"{layer.node.name!r} has its ε outside the root: its cells can't be re-checked."
        )
    c = z.values[:, :, layer.groups]
    rho = z.rho[:, layer.groups]
    a, b = c[0], c[1:]
    whole = np.abs(c).sum(0)
    products = np.einsum("icgm,jcgm->ijcg", c, c, optimize=True) / layer.count
    floor = np.zeros((cells, 1)) + eps
    drift = np.sqrt(over((rho * rho).sum(-1)) / layer.count) * (1 + 8 * U)
    moved = over(((2 * whole + rho) * rho).sum(-1) / layer.count)
    if time is None:
        products[0, 0] += eps
    else:
        products += eps * np.einsum("ic,jc->ijc", time.values[:, :, 0], time.values[:, :, 0])[..., None]
        floor = eps * np.maximum(time.ends[0], 0.0) ** 2
        moved = over(moved + eps * time.rho * (2 * np.abs(time.values).sum(0) + time.rho))
        drift = over(drift + math.sqrt(eps) * (1 + 4 * U) * time.rho)
    q0, q1 = products[0, 0], 2 * products[0, 1:]
    quadratic = over(np.abs(products[1:, 1:]).sum((0, 1)))
    swing = np.sqrt(quadratic) * (1 + 4 * U)
    # √q is a norm: ρ moves it by at most ``drift``, δ by at most ``swing``; rounding by a share of q₀'s own terms.
    root = np.sqrt(q0)
    lost = gamma(width + 16) * 4 * (root + swing) ** 2
    wander = over(moved + lost)
    reach = over(np.abs(q1).sum(0))
    low = np.maximum(q0 - reach - wander, np.maximum(root - swing - drift, 0.0) ** 2 - lost) - 8 * U * (
        q0 + reach
    )
    low = np.minimum(np.maximum(low, floor * (1 - 16 * U)), q0)
    high = np.minimum(q0 + reach + quadratic + wander, (root + swing + drift) ** 2 + lost) * (1 + 16 * U)
    sound = (low > 1e-200) & np.isfinite(high)
    q0, low = np.where(sound, q0, 1.0), np.where(sound, low, 1.0)
    high = np.where(sound, np.maximum(high, q0), 1.0)
    g = 1 / np.sqrt(q0)
    cube, top = g / q0, 1 / np.sqrt(low)
    excess = np.maximum(top - g - 0.5 * cube * (q0 - low), 1 / np.sqrt(high) - g + 0.5 * cube * (high - q0))
    excess = np.maximum(excess, 0.0) + 64 * U * (top + cube * (high + low))
    gain = g + 0.5 * excess - 0.25 * cube * quadratic
    tilt = -0.5 * cube * q1
    unsure = (
        0.5 * excess
        + 0.25 * cube * quadratic
        + 0.5 * cube * wander
        + 64 * U * (g + excess + cube * (quadratic + reach))
    )
    made = c * gain[..., None]
    made[1:] += a * tilt[..., None]
    loose = whole * over(unsure)[..., None] + rho * (top * (1 + 8 * U))[..., None]
    for j in range(rows - 1):
        square = b[j] * tilt[j][..., None]  # times δ_j² ∈ [0, 1]
        made[0] += 0.5 * square
        loose += 0.5 * np.abs(square)
        for i in range(j):
            loose += np.abs(b[j] * tilt[i][..., None] + b[i] * tilt[j][..., None])
    loose = over(loose + 64 * U * whole * (np.abs(gain) + np.abs(tilt).sum(0))[..., None])
    most = layer.radius * (math.sqrt(1 - 1 / width) * (1 + 4 * U) if layer.centred else 1.0)
    bad = ~(sound[..., None] & (loose < most))
    values, radius = np.zeros_like(z.values), np.zeros_like(z.rho)
    values[:, :, layer.groups] = np.where(bad, 0.0, made)
    radius[:, layer.groups] = np.where(bad, most, loose)
    return Cloud(values, radius)


@dataclass(frozen=True)
class _Map:
    """A form split by the layers that enter it."""

    parts: tuple[tuple[int, Array, Array, Array], ...]
    """(layer, coefficients, their tops, what is lost per unit of |value|), each (size, entries)."""
    offset: Rough
    degree: int

    def apply(self, clouds: Mapping[int, Cloud], time: Cloud | None) -> Cloud:
        """The form over cells."""
        values: Array | None = None
        rho: Array | None = None
        for layer, weight, top, loss in self.parts:
            cloud = clouds[layer]
            made = (cloud.values.reshape(-1, len(weight)) @ weight).reshape(*cloud.values.shape[:2], -1)
            lost = cloud.rho @ top + (np.abs(cloud.values).sum(0) + cloud.rho) @ loss
            values, rho = (made, lost) if values is None or rho is None else (values + made, rho + lost)
        if values is None or rho is None:
            raise CertificateError("A layer of a cells proof doesn't depend on the input.")
        cloud = Cloud(values, over(rho))
        if self.degree:
            assert time is not None
            cloud = _plus_time(cloud, self.offset.mid[None], time)
            return Cloud(
                cloud.values, over(cloud.rho + self.offset.rad * over(np.abs(time.values).sum(0) + time.rho))
            )
        shifted = np.concatenate([values[:1] + self.offset.mid, values[1:]])
        lost = self.offset.rad + 4 * U * (np.abs(values[0]) + np.abs(self.offset.mid))
        return Cloud(shifted, over(cloud.rho + lost))


def _centred(layer: Layer) -> Form:
    """What a layer is a function of, less its mean in each group where a norm centres."""
    form = layer.argument
    assert form is not None
    if not layer.centred:
        return form
    count = form.value.mid.shape[0]
    mid, rad = form.value.mid.reshape(count, -1).copy(), form.value.rad.reshape(count, -1).copy()
    for group in layer.groups:
        part = Rough(mid[:, group], rad[:, group])
        loss = gamma(len(group) + 4) * np.abs(part.mid).mean(1, keepdims=True) + part.rad.mean(
            1, keepdims=True
        )
        part = part + -Rough(part.mid.mean(1, keepdims=True), over(loss))
        mid[:, group], rad[:, group] = part.mid, part.rad
    return Form(Rough(mid, rad), form.degree)


class _Checker:
    def __init__(
        self, program: Program, output: str, known: Ranges, confined: Mapping[str, tuple[Array, Array]],
        unbounded: str | None, index: int, sign: float,
    ) -> None:  # fmt: skip
        self.known, self.homogeneous = known, unbounded is not None
        self.layers, form = layers(program, output, frozenset(confined), unbounded)
        if form.degree:
            raise CertificateError("The output is reached from the input without a norm on the way.")
        flat = form.value.mid.shape[0], -1
        row = Rough(
            sign * form.value.mid.reshape(flat)[:, index, None], form.value.rad.reshape(flat)[:, index, None]
        )
        self.output = self._map(Form(row))
        self.maps = [None if x.argument is None else self._map(_centred(x)) for x in self.layers]
        self.needed = self._needed()
        source = [i for i in self.needed if self.maps[i] is None]
        if len(source) != 1 or self.layers[source[0]].kind not in ("input", "box"):
            raise CertificateError("The output isn't a function of one input through activations and norms.")
        self.source = source[0]

    def _map(self, form: Form) -> _Map:
        parts = []
        for i, layer in enumerate(self.layers):
            if layer.columns.start < form.value.mid.shape[0]:
                part = form.rows(layer.columns.start, layer.columns.stop).T
                if part.mid.any() or part.rad.any():
                    # The sums of all layers that enter are added up as well.
                    loss = gamma(len(part.mid) + 4 * len(self.layers) + 8) * np.abs(part.mid) + part.rad
                    parts.append((i, np.ascontiguousarray(part.mid), part.top, over(loss)))
        start = form.rows(0, 1)
        return _Map(tuple(parts), Rough(start.mid[:, 0], start.rad[:, 0]), form.degree)

    def _needed(self) -> list[int]:
        found: set[int] = set()
        stack = [p[0] for p in self.output.parts]
        while stack:
            i = stack.pop()
            made = self.maps[i]
            if i not in found:
                found.add(i)
                stack.extend(() if made is None else (p[0] for p in made.parts))
        return sorted(found)

    def bound(self, matrix: Array, shift: Array, place: Array, columns: Array) -> Array:
        """Upper bounds of sign·f over cells p = place + columns·δ, (cells, d) and (k, cells, d)."""
        values = np.concatenate([(place @ matrix.T + shift)[None], columns @ matrix.T])
        size = np.abs(place) @ np.abs(matrix).T + np.abs(shift) + np.abs(columns).sum(0) @ np.abs(matrix).T
        start = Cloud(values, over(gamma(len(matrix) + 4) * size))
        time = None
        if self.homogeneous:
            # t = M_nn·p_n is one product: its rounding keeps its sign.
            time = Cloud(values[:, :, -1:], 2 * U * np.abs(values[:, :, -1:]).sum(0))
            start = Cloud(values[:, :, :-1], start.rho[:, :-1])
        clouds = {self.source: start}
        for i in self.needed:
            layer, made = self.layers[i], self.maps[i]
            if made is None or layer.argument is None:
                continue
            z = made.apply(clouds, time)
            lift = time if layer.argument.degree else None
            if layer.kind == "norm":
                clouds[i] = _norm(layer, z, lift)
            else:
                assert layer.sigma is not None
                plain = self.known.get(layer.node.operands[0])
                flat = None if plain is None else (plain[0].reshape(-1), plain[1].reshape(-1))
                clouds[i] = _curve(layer.sigma, z, flat) if lift is None else _lifted(layer.sigma, z, lift)
        top = self.output.apply(clouds, time).ends[1][:, 0]
        return np.where(np.isnan(top), math.inf, top)


def check_cells(
    program: Program, output: str, known: Ranges, confined: Mapping[str, tuple[Array, Array]], unbounded: str | None,
    proof: Mapping[str, Any], index: int, sign: float, line: float,
) -> float:  # fmt: skip
    """The bound of sign·f that a proof's cells give; cells above ``line`` are halved a few times first."""
    if int(proof["output_index"]) != index or float(proof["sign"]) != sign:
        raise CertificateError("The cells are of another entry or side than the proof says.")
    checker = _Checker(program, output, known, confined, unbounded, index, sign)
    matrix, shift = np.array(proof["matrix"], dtype=np.float64), np.array(proof["shift"], dtype=np.float64)
    size = checker.layers[checker.source].size + int(checker.homogeneous)
    if (
        matrix.shape != (size, size)
        or shift.shape != (size,)
        or not (np.isfinite(matrix).all() and np.isfinite(shift).all())
    ):
        raise CertificateError(
            f"Coordinates of cells are a finite matrix of {size} rows and columns, and a shift."
        )
    diagonal = np.diagonal(matrix)
    if checker.homogeneous:
        if np.tril(matrix, -1).any() or not (diagonal > 0).all() or shift.any():
            raise CertificateError(
                "Coordinates of cells are an upper triangular matrix with a positive diagonal."
            )
    else:
        lo, hi = (end.reshape(-1) for end in next(iter(confined.values())))
        inside = (np.nextafter(shift - diagonal, math.inf) <= lo) & (
            np.nextafter(shift + diagonal, -math.inf) >= hi
        )
        if np.count_nonzero(matrix - np.diag(diagonal)) or not inside.all():
            raise CertificateError("The cells do not cover the box.")
    axes = size - int(checker.homogeneous)
    faces = 2 * size if checker.homogeneous else 1
    if len(proof["trees"]) != faces:
        raise CertificateError(f"{faces} faces need as many trees, got {len(proof['trees'])}.")
    widest = max(layer.size for layer in checker.layers)
    batch = max(16, int(4e5 / (widest * (axes + 2))))
    worst = -math.inf
    for face, tree in enumerate(proof["trees"]):
        centre, half, inside = read_tree(tree, axes)
        free = [j for j in range(size) if j != face // 2] if checker.homogeneous else list(range(size))
        if not inside.all():
            last = free.index(size - 1) if checker.homogeneous and size - 1 in free else None
            end = (
                (centre + half)[~inside, last]
                if last is not None
                else np.full(1, -1.0 if face % 2 == 0 else 1.0)
            )
            if not checker.homogeneous or (end > 0).any():
                raise CertificateError(f"A cell of face {face} is left out although it has inputs.")
        centre, half = centre[inside], half[inside]
        for start in range(0, len(centre), batch):
            worst = max(
                worst,
                _face_bound(
                    checker,
                    matrix,
                    shift,
                    face,
                    free,
                    centre[start : start + batch],
                    half[start : start + batch],
                    line,
                ),
            )
    return worst


def _face_bound(
    checker: _Checker,
    matrix: Array,
    shift: Array,
    face: int,
    free: list[int],
    centre: Array,
    half: Array,
    line: float,
) -> float:
    worst = -math.inf
    for level in range(LEVELS + 1):
        place = np.full((len(centre), len(matrix)), 2.0 * (face % 2) - 1.0)
        place[:, free] = centre
        columns = np.zeros((len(free), *place.shape))
        for j, axis in enumerate(free):
            columns[j, :, axis] = half[:, j]
        top = checker.bound(matrix, shift, place, columns)
        open_ = top > line
        if not open_.any() or level == LEVELS:
            return max(worst, float(top.max(initial=-math.inf)))
        worst = max(worst, float(top[~open_].max(initial=-math.inf)))
        centre, half = centre[open_], half[open_].copy()
        widest = half.argmax(1)
        rows = np.arange(len(half))
        half[rows, widest] /= 2
        step = np.zeros_like(half)
        step[rows, widest] = half[rows, widest]
        centre, half = np.concatenate([centre - step, centre + step]), np.concatenate([half, half])
    return worst
