"""Ranges of a layer's arguments that a dual proof brings along: bounds of z and −z over the layers before it.

The objectives of a group share quadratic multipliers up to a factor c > 0. With v = (1, x), every z_j of the group is

    z_j ≤ −c vᵀQv − L_j(v) + Σ_curves max [sσ + c(Tσ² + Eσz − Θz²) − rz]

where vᵀQv collects Ty² + Eyz − Θz² + κ(xᵀGx − ρ²) + ω(Σx)² and L_j the linear terms. Q = [[q₀, qᵀ], [q, H]]; H is
shown to be positive once for the group, after a diagonal D is added that costs Σ D X², X the largest sizes of x that
are proved already. Then for any x₀, by concavity, with ℓ = −(2cq + L_j) and the residual ρ = ℓ − 2cHx₀,

    ℓ·x − c xᵀHx ≤ ℓ·x₀ − c x₀ᵀHx₀ + Σ |ρ|(X + |x₀|).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from farfield.certify.checker._dual_data import mapping, unpack
from farfield.certify.checker._maxima import Weights, curve_maxima
from farfield.certify.checker._reading import Form, Layer
from farfield.certify.checker._values import (
    TINY,
    Array,
    CertificateError,
    MidRad,
    Span,
    U,
    positive_semidefinite,
    round_up,
)

__all__ = ["layer_range"]

LIFTS = (0.0, 1e-12, 1e-9, 1e-6, 1e-4)
"""Shares of H's diagonal that are tried as D."""
MOST_GROUPS = 1 << 16
POINTS = 512
"""Cells of the grid for a smooth curve; there are thousands of maxima to bound."""
ROWS = 8192
"""Maxima at a time."""


class JointVariables(Protocol):
    """The variables of a dual proof and what is proved of the layers so far."""

    layers: list[Layer]
    zrange: dict[str, Span]

    def columns_of(self, layer: Layer) -> slice | None:
        """Where a layer's variables stand; ``None`` where it has none."""

    def over(self, form: Form | None, where: str, skip: frozenset[str] = ..., level: int = ...) -> MidRad:
        """A form as rows over (1, variables)."""

    def units(self, name: str) -> MidRad:
        """A layer's own variables as rows."""

    def ball(self, layer: Layer, kappa: Array, omega: Array) -> MidRad:
        """κ(xᵀGx − ρ²) + ω(Σx)² of every group of a norm."""

    def largest(self, layer: Layer) -> Array:
        """Largest size of a layer's variables."""


def layer_range(check: JointVariables, layer: Layer, data: Any) -> Span:
    """Where the arguments of a layer lie, as the listed multipliers prove it."""
    return _LayerCheck(check, layer, mapping(data, f"the ranges of {layer.node.name}")).span()


@dataclass(frozen=True)
class _Curve:
    """A curve before the layer, its multipliers by group (theta, t, e) and by objective (r, s)."""

    layer: Layer
    theta: Array
    r: Array
    t: Array | None = None
    e: Array | None = None
    s: Array | None = None


class _LayerCheck:
    def __init__(self, check: JointVariables, layer: Layer, data: Mapping[str, Any]) -> None:
        self.check, self.layer, self.name = check, layer, layer.node.name
        count, groups = 2 * layer.size, data.get("groups")
        if not isinstance(groups, int) or not 0 < groups <= MOST_GROUPS or count % groups:
            raise CertificateError(f"The ranges of {self.name!r} are in no whole number of groups.")
        self.groups, self.each = groups, count // groups
        self.factor = self._array(data.get("factor"), "factor", groups, self.each)
        if not (self.factor > 0).all():
            raise CertificateError(f"A factor in the ranges of {self.name!r} is not positive.")
        names = [x.node.name for x in check.layers]
        before = {x.node.name: x for x in check.layers[: names.index(self.name)]}
        self.curves = [self._curve(before, n, e) for n, e in mapping(data.get("curves"), "curves").items()]
        self.norms = [self._norm(before, n, e) for n, e in mapping(data.get("norms"), "norms").items()]
        self.last = frozenset(c.layer.node.name for c in self.curves if c.t is None)
        inner = [*(c.layer for c in self.curves if c.t is not None), *(n[0] for n in self.norms)]
        places = sorted(((self._columns(x), x) for x in inner), key=lambda p: p[0].start)
        self.pick = np.concatenate([np.zeros(1, int), *(np.arange(c.start, c.stop) for c, _ in places)])
        self.most = np.concatenate([np.zeros(0), *(check.largest(x) for _, x in places)])

    def _columns(self, layer: Layer) -> slice:
        columns = self.check.columns_of(layer)
        if columns is None:
            raise CertificateError(f"{layer.node.name!r} is no variable of this proof.")
        return columns

    def _array(self, text: Any, what: str, *shape: int) -> Array:
        made: Array = unpack(text, math.prod(shape), f"{self.name}.{what}", "<f4").reshape(shape)
        return made

    def _curve(self, before: Mapping[str, Layer], name: str, entry: Any) -> _Curve:
        layer, entry = before.get(name), mapping(entry, name)
        if layer is None or layer.kind != "curve" or name not in self.check.zrange:
            raise CertificateError(
                f"The ranges of {self.name!r} name {name!r}, which is no activation before it."
            )
        shapes = {
            "theta": (self.groups, layer.size), "r": (self.groups, self.each, layer.size),
            "t": (self.groups, layer.size), "e": (self.groups, layer.size),
            "s": (self.groups, self.each, layer.size),
        }  # fmt: skip
        wanted = shapes if "t" in entry else {k: shapes[k] for k in ("theta", "r")}
        return _Curve(layer, **{k: self._array(entry.get(k), f"{name}.{k}", *s) for k, s in wanted.items()})

    def _norm(self, before: Mapping[str, Layer], name: str, entry: Any) -> tuple[Layer, Array, Array]:
        layer = before.get(name)
        if layer is None or layer.kind != "norm":
            raise CertificateError(f"The ranges of {self.name!r} name {name!r}, which is no norm before it.")
        size = (self.groups, len(layer.groups))
        entry = mapping(entry, name)
        return (
            layer,
            self._array(entry.get("kappa"), "kappa", *size),
            self._array(entry.get("omega"), "omega", *size),
        )

    def _rows(self, layer: Layer, skip: frozenset[str] = frozenset()) -> MidRad:
        """A layer's argument over (1, the variables of these ranges), without what ``skip`` adds to it."""
        rows = self.check.over(layer.argument, layer.node.name, skip)
        rest = np.ones(rows.mid.shape[1], dtype=bool)
        rest[self.pick] = False
        if rows.mid[:, rest].any() or rows.rad[:, rest].any():
            raise CertificateError(
                f"The ranges of {self.name!r} leave out a variable that {layer.node.name!r} depends on."
            )
        return rows[:, self.pick]

    def span(self) -> Span:
        """(lo, hi)."""
        top = self._joint() + self._maxima()
        top = top + 8 * U * np.abs(top)
        half = self.layer.size
        flat = top.reshape(-1)
        if np.isnan(flat).any():
            raise CertificateError(f"The ranges of {self.name!r} are not numbers.")
        return -flat[half:], flat[:half]

    # -- the separable part ----------------------------------------------------------------------------------

    def _own(self, layer: Layer) -> MidRad:
        """Coefficients of a layer's values in the objectives: of z, then of −z."""
        assert self.layer.argument is not None
        part = self.layer.argument.rows(layer.columns.start, layer.columns.stop)
        return MidRad(np.concatenate([part.mid, -part.mid]), np.concatenate([part.rad, part.rad]))

    def _maxima(self) -> Array:
        total = np.zeros((self.groups, self.each))
        size = np.zeros_like(total)
        for curve in self.curves:
            shape = (self.groups, self.each, curve.layer.size)

            def scaled(value: Array, shape: tuple[int, ...] = shape) -> Array:
                return np.broadcast_to(value[:, None], shape) * self.factor[:, :, None]

            if curve.s is not None and curve.t is not None and curve.e is not None:
                s, loose, t, e = curve.s, np.zeros(shape), scaled(curve.t), scaled(curve.e)
            else:
                own = self._own(curve.layer)
                s, loose, t, e = (
                    own.mid.reshape(shape),
                    own.rad.reshape(shape),
                    np.zeros(shape),
                    np.zeros(shape),
                )
            theta = scaled(curve.theta)
            lo, hi = (np.broadcast_to(end, shape) for end in self.check.zrange[curve.layer.node.name])
            flat = [np.ascontiguousarray(v).reshape(-1) for v in (s, t, e, theta, curve.r, loose, lo, hi)]
            assert curve.layer.sigma is not None
            parts = [
                curve_maxima(
                    curve.layer.sigma, Weights(*(v[k : k + ROWS] for v in flat[:6])),
                    flat[6][k : k + ROWS], flat[7][k : k + ROWS], points=POINTS,
                )
                for k in range(0, len(flat[0]), ROWS)
            ]  # fmt: skip
            # c·Θ and the like are rounded once, as they are here and in the joint part.
            top = [
                np.maximum(np.abs(low), np.abs(high))
                for low, high in ((lo, hi), curve.layer.sigma.image(lo, hi))
            ]
            slip = 2 * U * ((np.abs(t) * top[1] + np.abs(e) * top[0]) * top[1] + np.abs(theta) * top[0] ** 2)
            maxima = np.concatenate(parts).reshape(shape) + slip
            total, size = total + maxima.sum(2), size + np.abs(maxima).sum(2)
        return total + round_up(size * U * (2 + sum(c.layer.size for c in self.curves)))

    # -- the joint part --------------------------------------------------------------------------------------

    def _joint(self) -> Array:
        objective = self._rows(self.layer, self.last)  # those are in the separable part
        rows = {c.layer.node.name: self._rows(c.layer) for c in self.curves}
        linear = MidRad(
            -np.concatenate([objective.mid, -objective.mid]), np.concatenate([objective.rad, objective.rad])
        )
        for curve in self.curves:
            linear = linear + -(
                MidRad.exact(curve.r.reshape(2 * self.layer.size, -1)) @ rows[curve.layer.node.name]
            )
            if curve.s is not None:
                linear = linear + MidRad.exact(curve.s.reshape(2 * self.layer.size, -1)) @ self._units(
                    curve.layer
                )
        made = np.zeros((self.groups, self.each))
        for g in range(self.groups):
            part = slice(g * self.each, (g + 1) * self.each)
            made[g] = self._bounds(self._quadratic(g, rows), linear[part], self.factor[g])
        return made

    def _units(self, layer: Layer) -> MidRad:
        return self.check.units(layer.node.name)[:, self.pick]

    def _quadratic(self, g: int, rows: Mapping[str, MidRad]) -> MidRad:
        """Q of a group."""
        size = len(self.pick)
        total = MidRad(np.zeros((size, size)), np.zeros((size, size)))
        for curve in self.curves:
            z = rows[curve.layer.node.name]
            total = total + -(z.T @ (z * MidRad.exact(curve.theta[g][:, None])))
            if curve.t is not None and curve.e is not None:
                y = self._units(curve.layer)
                total = total + y.T @ (y * MidRad.exact(curve.t[g][:, None]))
                total = total + y.T @ (z * MidRad.exact(curve.e[g][:, None]))
        for layer, kappa, omega in self.norms:
            total = total + self.check.ball(layer, kappa[g], omega[g])[self.pick][:, self.pick]
        mid, rad = total.mid, total.rad
        return MidRad((mid + mid.T) / 2, (rad + rad.T) / 2 + 2 * U * np.abs(mid) + 2 * U * np.abs(mid.T))

    def _bounds(self, matrix: MidRad, linear: MidRad, factor: Array) -> Array:
        """Of −c vᵀQv − L(v), for every objective of a group."""
        hessian, loose = matrix.mid[1:, 1:], matrix.rad[1:, 1:]
        raised, extra = self._positive(hessian)
        spent = float(self.most @ (loose @ self.most)) * (1 + 1e-12) + float(
            round_up(extra * self.most**2).sum()
        )
        c = MidRad.exact(factor[:, None])
        pull = -((c * MidRad.exact(np.full((1, 1), 2.0))) * matrix[:1, 1:] + linear[:, 1:])
        point = np.asarray(np.linalg.solve(raised, (pull.mid / (2 * factor[:, None])).T).T, dtype=np.float64)
        at = MidRad.exact(point)
        image = at @ MidRad.exact(raised)
        reached = _dots(pull, at) + -(c[:, 0] * _dots(image, at))
        residual = pull + -((c * MidRad.exact(np.full((1, 1), 2.0))) * image)
        over = round_up((residual.top * (np.abs(point) + self.most)).sum(1))
        start = -(c[:, 0] * matrix[0, :1] + linear[:, 0])
        total = start + reached
        made: Array = total.span[1] + over + round_up(factor * spent)
        return made

    def _positive(self, hessian: Array) -> tuple[Array, Array]:
        """(H + D, D) with H + D shown to be positive semidefinite."""
        diagonal = np.abs(np.diagonal(hessian)) + TINY
        for lift in LIFTS:
            extra = (lift + 4 * U * (len(hessian) + 2) ** 2) * diagonal
            raised = hessian + np.diag(extra)
            # What the sum rounded away is paid for as well.
            extra = extra + 2 * U * diagonal
            if positive_semidefinite(raised):
                return raised, extra
        raise CertificateError(
            f"The ranges of {self.name!r} bound nothing: their quadratic form is not positive."
        )


def _dots(left: MidRad, right: MidRad) -> MidRad:
    """Row by row."""
    both = left * right
    size = np.abs(both.mid).sum(1)
    return MidRad(both.mid.sum(1), round_up(both.rad.sum(1) + (both.mid.shape[1] + 2) * U * size))
