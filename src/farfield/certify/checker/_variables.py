"""The joint variables of a dual proof: which they are, how layers are made of them, and what norms say of them.

A *nested* norm n = c/√(‖c‖²/count + ε) has a variable τ = 1/√(…) of its own, and every layer that c is made of is
multiplied by it: what is said of such a layer holds with τ in place of 1, maxima enter as τ²·max, n is linear in
these variables, and ‖n‖² + count·ε·τ² = count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from farfield.certify.checker._cone import DomainCone
from farfield.certify.checker._dual_data import mapping, mean, numbers, whitened
from farfield.certify.checker._enclosure import Ellipsoid, enclosing_ellipsoid
from farfield.certify.checker._ranges import Ranges
from farfield.certify.checker._reading import Form, Layer, Reading
from farfield.certify.checker._values import Array, CertificateError, MidRad, U, gamma

__all__ = ["Source", "Variables"]


@dataclass(frozen=True)
class Source:
    """Variables of the joint part: where they stand, and how a layer's value is made of them."""

    columns: slice
    inner: MidRad | None = None
    """y = inner @ u for a norm that is parametrized by u = (x, t)."""
    gram: MidRad | None = None
    """uᵀ gram u ≤ 1 then, with the forms of the domain in it."""
    white: MidRad | None = None
    """{u : uᵀ gram u ≤ 1} lies in white·(unit ball)."""
    ellipsoid: Ellipsoid | None = None
    """Over a region: the variables are u − center then, and lie in white·(unit ball)."""
    nested: bool = False
    """The only variable is τ; ``inner`` and ``gram`` are over all variables up to it, and uᵀ gram u = count."""


class Variables:
    """The variables of one dual proof, in order: 1, then those of every layer that has some."""

    def __init__(
        self,
        ranges: Ranges,
        output: str,
        unbounded: str | None,
        proof: Mapping[str, Any],
        cone: DomainCone | None = None,
    ) -> None:
        self.proof, self.ranges, self.cone = proof, ranges, cone
        entries = [mapping(proof[k], k) for k in ("curves", "norms", "boxes")]
        self.entries: dict[str, Mapping[str, Any]] = {
            n: mapping(e, n) for part in entries for n, e in part.items()
        }
        opened = {n for n, e in entries[1].items() if mapping(e, n).get("parametrized")}
        nested = {n for n, e in entries[1].items() if mapping(e, n).get("nested")}
        listed, boxes = {*entries[0], *entries[1]}, set(entries[2])
        self.reading = Reading(ranges, output, boxes, unbounded if opened else None, listed, opened | nested)
        self.layers = [layer for layer in self.reading.layers if layer.kind != "input"]
        self.listed = mapping(proof.get("ranges") or {}, "ranges")
        if nested and (len(nested) > 1 or nested & opened or self.listed):
            raise CertificateError(
                "One norm at most is nested, it is not parametrized as well, and no ranges are listed beside it."
            )
        self.sources: dict[str, Source] = {}
        self.level: dict[str, int] = {}
        """Column of what stands for 1 in all that is said of a layer: 0, or that of a later norm's τ."""
        self.most: dict[int, float] = {0: 1.0}
        """The largest value of each of these columns."""
        self.size = 1
        for layer in self.layers:
            self._place(layer)

    def _place(self, layer: Layer) -> None:
        name, entry = layer.node.name, self.entries[layer.node.name]
        if layer.kind == "curve" and "t" not in entry:
            return
        if layer.kind == "norm" and entry.get("parametrized"):
            self.sources[name] = self._parametrized(layer)
        elif layer.kind == "norm" and entry.get("nested"):
            self.sources[name] = self._nested(layer)
        else:
            self.sources[name] = Source(slice(self.size, self.size + layer.size))
        self.size = self.sources[name].columns.stop

    def _parametrized(self, layer: Layer) -> Source:
        """The norm's value is C u with uᵀGu = 1, G = CᵀC/count + ε e_t e_tᵀ, u = (x, 1)/√(…).

        Over a region x is what it is less a point that the proof names.
        """
        form, name = layer.argument, layer.node.name
        source = next((x for x in self.reading.layers if x.kind == "input"), None)
        if form is None or source is None or form.degree != 1 or layer.groups.shape[0] != 1 or not layer.eps:
            raise CertificateError(
                f"{name!r} is no norm of one group, with ε > 0, of an affine map of the input."
            )
        others = np.ones(len(form.value.mid), dtype=bool)
        others[0] = others[source.columns] = False
        if form.value.mid[others].any() or form.value.rad[others].any():
            raise CertificateError(f"{name!r} normalizes more than an affine map of the input.")
        matrix, offset = form.rows(source.columns.start, source.columns.stop), form.rows(0, 1)
        data, cone, size = self.entries[name].get("enclosure"), None, matrix.mid.shape[1]
        if data is not None:
            data, cone = mapping(data, f"the enclosure of {name}"), self._region(name)
            shift = numbers(data["shift"], size, f"shift of {name}")
            offset, cone = offset + matrix @ MidRad.exact(shift[:, None]), cone.shifted(shift)
        both, inner = _normalized(
            layer,
            MidRad(*(np.concatenate(p, 1) for p in ((matrix.mid, offset.mid), (matrix.rad, offset.rad)))),
        )
        stabilizer = np.zeros((both.mid.shape[1],) * 2)
        stabilizer[-1, -1] = layer.eps
        gram = (both.T @ both) * MidRad(np.full((1, 1), 1 / layer.count), np.full((1, 1), U / layer.count))
        gram = gram + MidRad.exact(stabilizer)
        columns = slice(self.size, self.size + size + 1)
        if cone is not None and data is not None:
            ellipsoid = enclosing_ellipsoid(gram, cone, data, name)
            return Source(columns, inner, gram, ellipsoid.white, ellipsoid)
        gram = gram + self._cut(name, len(stabilizer))
        white = whitened(gram)
        if white is None:
            raise CertificateError(f"The map of the input that {name!r} normalizes is too close to singular.")
        return Source(columns, inner, gram, white)

    def _nested(self, layer: Layer) -> Source:
        """The norm's value as rows over the variables so far and τ, the layers before it moved to τ's level."""
        form, name, tau = layer.argument, layer.node.name, self.size
        if form is None or form.degree or layer.groups.shape[0] != 1 or not layer.eps:
            raise CertificateError(
                f"{name!r} is no norm of one group, with ε > 0, of layers that have a bound themselves."
            )
        if any(self.entries[name].get(key) is not None for key in ("mu", "enclosure")):
            raise CertificateError(f"{name!r} is nested, and no form of a domain is about it.")
        for before in self._behind(form):
            self.level[before] = tau
        self.size += 1
        rows, inner = _normalized(layer, self.over(form, name, level=tau))
        stabilizer = np.zeros((self.size, self.size))
        stabilizer[tau, tau] = layer.eps * layer.count
        gram = rows.T @ rows + MidRad(stabilizer, 2 * U * stabilizer)
        self.most[tau] = 1.0 / math.sqrt(layer.eps) * (1 + 8 * U)
        return Source(slice(tau, tau + 1), inner, gram, nested=True)

    def _behind(self, form: Form) -> set[str]:
        """Every layer that a form is made of, through curves."""
        found: set[str] = set()
        stack = [form]
        while stack:
            for layer, _ in self._parts(stack.pop()):
                name = layer.node.name
                if name in found:
                    continue
                found.add(name)
                if layer.kind == "curve" and layer.argument is not None:
                    stack.append(layer.argument)
        return found

    def _cut(self, name: str, size: int) -> MidRad:
        """Σ μH of the domain's forms, uᵀHu ≤ 0, which may be added to G: uᵀGu ≤ 1 holds with them."""
        mu = self.entries[name].get("mu")
        if mu is None:
            return MidRad.exact(np.zeros((size, size)))
        cone = self._region(name)
        return cone.quadratic(numbers(mu, cone.count, f"mu of {name}"))

    def _region(self, name: str) -> DomainCone:
        """The cone that a norm's weights speak of."""
        if self.cone is None:
            raise CertificateError(
                f"{name!r} has weights of a domain's forms, and the proof is about every input."
            )
        return self.cone

    def over(
        self, form: Form | None, where: str, skip: frozenset[str] = frozenset(), level: int = 0
    ) -> MidRad:
        """A form as rows over (1, joint variables); ``level`` is the column of its constant."""
        if form is None or form.degree:
            raise CertificateError(f"{where!r} is reached from the input without a bound on the way.")
        first = form.rows(0, 1)
        mid, rad = np.zeros((2, len(first.mid), self.size))
        mid[:, level : level + 1], rad[:, level : level + 1] = first.mid, first.rad
        total = MidRad(mid, rad)
        for layer, part in self._parts(form):
            if layer.node.name in skip:
                continue
            source = self.sources.get(layer.node.name)
            if source is None:
                raise CertificateError(
                    f"{where!r} depends on {layer.node.name!r}, which has no t, e, s in this proof."
                )
            if self.level.get(layer.node.name, 0) != level:
                raise CertificateError(
                    f"{where!r} depends on {layer.node.name!r}, which is multiplied by another norm's τ."
                )
            piece = part if source.inner is None else part @ source.inner
            if source.ellipsoid is not None:
                start = total[:, level : level + 1] + piece @ MidRad.exact(source.ellipsoid.center[:, None])
                total.mid[:, level : level + 1], total.rad[:, level : level + 1] = start.mid, start.rad
            if source.nested:
                left = self.size - piece.mid.shape[1]
                total = total + MidRad(
                    *(np.pad(value, ((0, 0), (0, left))) for value in (piece.mid, piece.rad))
                )
            else:
                total.mid[:, source.columns], total.rad[:, source.columns] = piece.mid, piece.rad
        return total

    def _parts(self, form: Form) -> list[tuple[Layer, MidRad]]:
        """The layers that enter a form, with their coefficients."""
        found = []
        for layer in self.reading.layers:
            part = form.rows(layer.columns.start, layer.columns.stop)
            if part.mid.any() or part.rad.any():
                if layer.kind == "input":
                    raise CertificateError("The input enters without a bound on the way.")
                found.append((layer, part))
        return found

    def columns_of(self, layer: Layer) -> slice | None:
        """Where a layer's variables stand; ``None`` where it has none."""
        source = self.sources.get(layer.node.name)
        return None if source is None else source.columns

    def units(self, name: str) -> MidRad:
        """A layer's own variables as rows."""
        columns = self.sources[name].columns
        rows = np.zeros((columns.stop - columns.start, self.size))
        rows[:, columns] = np.eye(columns.stop - columns.start)
        return MidRad.exact(rows)

    def ball(self, layer: Layer, kappa: Array, omega: Array) -> MidRad:
        """κ(xᵀGx − ρ²) + ω(Σx)² of every group."""
        name, source = layer.node.name, self.sources[layer.node.name]
        free = source.ellipsoid is None and self.entries[name].get("mu") is None
        equal = source.gram is not None and free
        if (kappa < 0).any() and not equal:
            raise CertificateError(f"κ of {name!r} is negative: {kappa.min():.3g}.")
        level = self.level.get(name, 0)
        if omega.any() and (source.gram is not None or not layer.centered):
            raise CertificateError(f"ω of {name!r} stands for no constraint: its variables do not sum to 0.")
        mid, rad = np.zeros((2, self.size, self.size))
        if source.ellipsoid is not None:
            form = source.ellipsoid.form * MidRad.exact(kappa[None])
            places = np.ix_(*2 * (np.r_[level, source.columns],))
            mid[places], rad[places] = form.mid, form.rad
            return MidRad(mid, rad)
        if source.gram is not None:
            inner = source.gram * MidRad.exact(kappa[None])
            at = slice(0, len(inner.mid)) if source.nested else source.columns
            mid[at, at], rad[at, at] = inner.mid, inner.rad
            most = float(kappa[0]) * (layer.count if source.nested else 1.0)
            mid[level, level] -= most
            rad[level, level] += 2 * U * (abs(most) + abs(mid[level, level]))
            return MidRad(mid, rad)
        for group, k, o in zip(layer.groups, kappa, omega, strict=True):
            places = np.ix_(source.columns.start + group, source.columns.start + group)
            mid[places] = o + k * np.eye(len(group))
            rad[places] = 4 * U * (abs(o) + k) * np.eye(len(group))
        mid[level, level] = -float(kappa.sum()) * layer.count
        rad[level, level] = gamma(len(kappa) + 4) * float(kappa.sum()) * layer.count
        return MidRad(mid, rad)

    def _one(self, name: str) -> Array:
        """What stands for 1 where a layer is meant, as a row."""
        one = np.zeros((1, self.size))
        one[0, self.level.get(name, 0)] = 1.0
        return one


def _normalized(layer: Layer, rows: MidRad) -> tuple[MidRad, MidRad]:
    """What a norm of one group divides, as rows in the group's order (centered where it is), and in the layer's."""
    group = layer.groups[0]
    made = rows[group]
    if layer.centered:
        made = made + -mean(made, 0)
    inner = MidRad(np.zeros_like(made.mid), np.zeros_like(made.rad))
    inner.mid[group], inner.rad[group] = made.mid, made.rad
    return made, inner
