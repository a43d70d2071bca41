"""A dual proof checked: the Lagrangian's bound, computed from the multipliers for the program as it is read here.

For multipliers as a certificate lists them, at every input and with v = (1, joint variables),

    sign·f ≤ −vᵀMv + Σ_curves [sσ(z) + Tσ(z)² + Eσ(z)z − Θz² − rz] + Σ_boxes [sy + Ty²]

where −vᵀMv collects c·x + Θz² + rz − sy − Ty² − Eyz + κ(ρ² − xᵀGx) − ω(Σx)² + gᵀNg: N ≥ 0 multiplies forms g ≥ 0,
κ ≥ 0 multiplies ρ² − xᵀGx ≥ 0, and Σx = 0 within a group of a norm that centers. Every joint variable has a proved
range X, so what rounding leaves open in M costs XᵀEX, and a diagonal D that makes M positive costs Σ D X². No number
of the certificate but the multipliers enters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from farfield.certify.checker._cone import DomainCone
from farfield.certify.checker._dual_data import lengths, mapping, mean, numbers, unpack, whitened
from farfield.certify.checker._layers import layer_range
from farfield.certify.checker._maxima import Weights, box_maxima, curve_maxima
from farfield.certify.checker._ranges import Ranges
from farfield.certify.checker._reading import Form, Layer, Reading
from farfield.certify.checker._values import (
    TINY,
    Array,
    CertificateError,
    MidRad,
    Span,
    U,
    gamma,
    positive_semidefinite,
    round_up,
    spectral_norm,
)

__all__ = ["DualCheck"]

LIFTS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
"""Shares of M's diagonal that are tried as D."""
ROOMS = (1e-13, 1e-11, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
"""Shares of the bound that are tried as what the factorization's own rounding may cost."""


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


class DualCheck:
    """One dual proof, laid out over the joint variables."""

    def __init__(
        self,
        ranges: Ranges,
        output: str,
        unbounded: str | None,
        proof: Mapping[str, Any],
        cone: DomainCone | None = None,
        memo: dict[str, Span] | None = None,
    ) -> None:
        self.proof, self.ranges, self.cone = proof, ranges, cone
        entries = [mapping(proof[k], k) for k in ("curves", "norms", "boxes")]
        self.entries: dict[str, Mapping[str, Any]] = {
            n: mapping(e, n) for part in entries for n, e in part.items()
        }
        opened = {n for n, e in entries[1].items() if mapping(e, n).get("parametrized")}
        listed = {*entries[0], *entries[1]}
        self.reading = Reading(ranges, output, set(entries[2]), unbounded if opened else None, listed, opened)
        self.layers = [layer for layer in self.reading.layers if layer.kind != "input"]
        self.listed = mapping(proof.get("ranges") or {}, "ranges")
        self.memo: dict[str, Span] = {} if memo is None else memo
        self.sources: dict[str, Source] = {}
        self.size = 1
        for layer in self.layers:
            self._place(layer)
        self.key = ""
        self.reach: dict[str, Span] = {}
        self.length: dict[str, float] = {}
        self.zrange: dict[str, Span] = {}
        for layer in self.layers:
            self._bound(layer)
        self.arguments = {
            x.node.name: self.over(x.argument, x.node.name) for x in self.layers if x.kind == "curve"
        }

    def _place(self, layer: Layer) -> None:
        name, entry = layer.node.name, self.entries[layer.node.name]
        if layer.kind == "curve" and "t" not in entry:
            return
        if layer.kind == "norm" and entry.get("parametrized"):
            inner, gram, white = self._parametrized(layer)
            self.sources[name] = Source(slice(self.size, self.size + inner.mid.shape[1]), inner, gram, white)
        else:
            self.sources[name] = Source(slice(self.size, self.size + layer.size))
        self.size = self.sources[name].columns.stop

    def _parametrized(self, layer: Layer) -> tuple[MidRad, MidRad, MidRad]:
        """(C, G, W): the norm's value is C u with uᵀGu = 1, G = CᵀC/count + ε e_t e_tᵀ, u = (x, 1)/√(…)."""
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
        both = MidRad(
            *(
                np.concatenate([a, b], 1)[layer.groups[0]]
                for a, b in ((matrix.mid, offset.mid), (matrix.rad, offset.rad))
            )
        )
        if layer.centered:
            both = both + -mean(both, 0)
        inner = MidRad(np.zeros_like(both.mid), np.zeros_like(both.rad))
        inner.mid[layer.groups[0]], inner.rad[layer.groups[0]] = both.mid, both.rad
        stabilizer = np.zeros((both.mid.shape[1],) * 2)
        stabilizer[-1, -1] = layer.eps
        gram = (both.T @ both) * MidRad(np.full((1, 1), 1 / layer.count), np.full((1, 1), U / layer.count))
        gram = gram + MidRad.exact(stabilizer) + self._cut(name, len(stabilizer))
        white = whitened(gram)
        if white is None:
            raise CertificateError(f"The map of the input that {name!r} normalizes is too close to singular.")
        return inner, gram, white

    def _cut(self, name: str, size: int) -> MidRad:
        """Σ μH of the domain's forms, uᵀHu ≤ 0, which may be added to G: uᵀGu ≤ 1 holds with them."""
        mu = self.entries[name].get("mu")
        if mu is None:
            return MidRad.exact(np.zeros((size, size)))
        if self.cone is None:
            raise CertificateError(
                f"{name!r} has weights of a domain's forms, and the proof is about every input."
            )
        return self.cone.quadratic(numbers(mu, self.cone.count, f"mu of {name}"))

    def over(self, form: Form | None, where: str, skip: frozenset[str] = frozenset()) -> MidRad:
        """A form as rows over (1, joint variables)."""
        if form is None or form.degree:
            raise CertificateError(f"{where!r} is reached from the input without a bound on the way.")
        first = form.rows(0, 1)
        mid, rad = np.zeros((2, len(first.mid), self.size))
        mid[:, :1], rad[:, :1] = first.mid, first.rad
        for layer, part in self._parts(form):
            if layer.node.name in skip:
                continue
            source = self.sources.get(layer.node.name)
            if source is None:
                raise CertificateError(
                    f"{where!r} depends on {layer.node.name!r}, which has no t, e, s in this proof."
                )
            piece = part if source.inner is None else part @ source.inner
            mid[:, source.columns], rad[:, source.columns] = piece.mid, piece.rad
        return MidRad(mid, rad)

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

    # -- ranges ----------------------------------------------------------------------------------------------

    def _bound(self, layer: Layer) -> None:
        """Where a layer's entries lie, how long it is, and where a curve's argument lies."""
        name = layer.node.name
        if layer.kind == "norm":
            self.reach[name] = (np.full(layer.size, -layer.most), np.full(layer.size, layer.most))
            self.length[name] = layer.radius * math.sqrt(layer.groups.shape[0]) * (1 + 4 * U)
            return
        if layer.kind == "box":
            lo, hi = self.ranges.of(name)
        else:
            assert layer.sigma is not None
            self.zrange[name] = self._argument_range(layer)
            if name in self.listed:
                self.zrange[name] = self._listed_range(layer)
            lo, hi = layer.sigma.image(*self.zrange[name])
        if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            raise CertificateError(f"No finite range of {name!r} could be proved.")
        self.reach[name] = (lo, hi)
        top = np.maximum(np.abs(lo), np.abs(hi))
        self.length[name] = float(lengths(MidRad.exact(top[None]))[0])
        if layer.kind == "curve":
            self.length[name] = min(self.length[name], self._lipschitz(layer))

    def _lipschitz(self, layer: Layer) -> float:
        """‖σ(z)‖ ≤ ‖σ(b)‖ + sup|σ′|·Σ ‖F‖₂‖y‖."""
        assert layer.argument is not None
        assert layer.sigma is not None
        start = layer.sigma.value(layer.argument.rows(0, 1))
        total = sum(spectral_norm(part) * self.length[x.node.name] for x, part in self._parts(layer.argument))
        extra = layer.sigma.steepest * total + 2 * layer.sigma.defect * len(start.mid)
        return (float(lengths(start.T)[0]) + extra) * (1 + 1e-12)

    def _argument_range(self, layer: Layer) -> Span:
        """Per layer that enters the better of its length and its entries' ranges; and plain intervals."""
        form = layer.argument
        assert form is not None
        start = form.rows(0, 1)
        total = MidRad(start.mid[:, 0], start.rad[:, 0])
        for source, part in self._parts(form):
            name = source.node.name
            around = lengths(part) * self.length[name] * (1 + 4 * U)
            if source.kind == "norm":
                around = np.minimum(around, self._support(source, part))
            middle = MidRad.between(*self.reach[name])
            inner = part @ middle.reshape(-1, 1)
            better = around < inner.rad[:, 0]
            total = total + MidRad(
                np.where(better, 0.0, inner.mid[:, 0]), np.where(better, around, inner.rad[:, 0])
            )
        lo, hi = total.span
        plain = self.ranges.get(layer.node.operands[0])
        if plain is not None:
            lo, hi = np.maximum(lo, plain[0].reshape(-1)), np.minimum(hi, plain[1].reshape(-1))
        return np.minimum(lo, hi), np.maximum(lo, hi)

    def _listed_range(self, layer: Layer) -> Span:
        """The range that was found so far, and the one that the proof's multipliers for it prove.

        Both sides of an output list the same ones: ``memo`` has what they prove, by the whole text up to here.
        """
        name = layer.node.name
        if not self.key:
            names = [x.node.name for x in self.layers if x.node.name in self.listed]
            kinds = {n: [sorted(e), e.get("parametrized"), e.get("mu")] for n, e in self.entries.items()}
            self.key = json.dumps([kinds, names], sort_keys=True)
        self.key = sha256(
            (self.key + json.dumps([name, self.listed[name]], sort_keys=True)).encode()
        ).hexdigest()
        if self.key not in self.memo:
            self.memo[self.key] = layer_range(self, layer, self.listed[name])
        (lo, hi), (low, high) = self.zrange[name], self.memo[self.key]
        lo, hi = np.maximum(lo, low), np.minimum(hi, high)
        return np.minimum(lo, hi), np.maximum(lo, hi)

    def _support(self, layer: Layer, part: MidRad) -> Array:
        """Largest row·y over a norm's image, Σ_groups ρ‖row centered‖, or over the ellipsoid that makes it."""
        total = np.zeros(len(part.mid))
        for group in layer.groups:
            piece = part[:, group]
            total = total + lengths(piece + -mean(piece, 1) if layer.centered else piece) * layer.radius
        total, source = round_up(total), self.sources[layer.node.name]
        if source.inner is None or source.white is None:
            return total
        return np.minimum(total, lengths((part @ source.inner) @ source.white))

    # -- the proof -------------------------------------------------------------------------------------------

    def check(self, output: int, sign: float) -> float:
        """The bound of sign·output that the multipliers prove."""
        value = self.reading.output.value.reshape(len(self.reading.output.value.mid), -1)[
            :, output : output + 1
        ]
        row = Form(MidRad(sign * value.mid, value.rad), self.reading.output.degree)
        maxima = self._maxima(row)
        total = math.fsum(maxima.tolist()) + len(maxima) * U * float(np.abs(maxima).sum())
        return (self._joint(self._matrix(row)) + total) + 4 * U * abs(total)

    def _weights(self, layer: Layer, row: Form) -> Weights:
        """A curve's multipliers; the objective's own coefficients where its value is no variable."""
        name, size = layer.node.name, layer.size
        theta, r = (self._array(name, k, size) for k in ("theta", "r"))
        if name in self.sources:
            t, e, s = (self._array(name, k, size) for k in ("t", "e", "s"))
            return Weights(s, t, e, theta, r, np.zeros(size))
        own = row.rows(layer.columns.start, layer.columns.stop)
        return Weights(own.mid[0], np.zeros(size), np.zeros(size), theta, r, own.rad[0])

    def _array(self, name: str, key: str, size: int) -> Array:
        return unpack(self.entries[name].get(key), size, f"{name}.{key}")

    def _maxima(self, row: Form) -> Array:
        parts = [np.zeros(0)]
        for layer in self.layers:
            name = layer.node.name
            if layer.kind == "curve":
                assert layer.sigma is not None
                parts.append(curve_maxima(layer.sigma, self._weights(layer, row), *self.zrange[name]))
            elif layer.kind == "box":
                t, s = (self._array(name, k, layer.size) for k in ("t", "s"))
                parts.append(box_maxima(t, s, *self.reach[name]))
        return np.concatenate(parts)

    def _joint(self, matrix: MidRad) -> float:
        """At least max −vᵀMv over the ranges of v."""
        lowered = (matrix.mid + matrix.mid.T) / 2
        loose = np.maximum(matrix.rad, matrix.rad.T) + 2 * U * np.abs(matrix.mid)
        reach = self._largest()
        open_ = float(reach @ (loose @ reach)) * (1 + 1e-12)
        # A variable may stand on no diagonal at all: D has a share of M's size for it as well.
        diagonal = np.abs(np.diagonal(lowered)) + 1e-3 * np.abs(lowered[0, 0]) / np.maximum(reach, TINY) ** 2
        best = math.inf
        for lift in LIFTS:
            extra = (lift + 4 * U * (self.size + 2) ** 2) * (diagonal + TINY)
            extra[0] = 0.0
            raised = lowered + np.diag(extra)
            corner, line, inner = float(raised[0, 0]), raised[0, 1:], raised[1:, 1:]
            try:
                peak = float(line @ np.linalg.solve(inner, line)) if self.size > 1 else 0.0
            except np.linalg.LinAlgError:
                continue
            price = self._price(extra)
            for spare in ROOMS:
                room = spare * (abs(peak) + abs(corner) + price) + TINY
                raised[0, 0] = peak + room + 4 * U * (self.size + 2) ** 2 * (abs(peak) + abs(corner))
                gamma_ = float(raised[0, 0]) - corner
                made = (gamma_ + price + open_) + 8 * U * (abs(gamma_) + abs(corner) + price + open_)
                if not made < best:
                    break
                if positive_semidefinite(raised):
                    best = made
                    break
        if best < math.inf:
            return best
        raise CertificateError(
            "These multipliers bound nothing: the joint part's quadratic form is not positive."
        )

    def columns_of(self, layer: Layer) -> slice | None:
        """Where a layer's variables stand; ``None`` where it has none."""
        source = self.sources.get(layer.node.name)
        return None if source is None else source.columns

    def largest(self, layer: Layer) -> Array:
        """Largest size of a layer's variables."""
        source = self.sources[layer.node.name]
        if source.white is not None:
            return lengths(source.white)
        low, high = self.reach[layer.node.name]
        made: Array = np.maximum(np.abs(low), np.abs(high))
        return made

    def _largest(self) -> Array:
        """Largest size of every entry of v."""
        made = np.ones(self.size)
        for layer in self.layers:
            columns = self.columns_of(layer)
            if columns is not None:
                made[columns] = self.largest(layer)
        return made

    def _price(self, extra: Array) -> float:
        """At least Σ D x²: by every entry's range, or by the layer's length."""
        squares, total = round_up(self._largest() ** 2 * extra), 0.0
        for layer in self.layers:
            source = self.sources.get(layer.node.name)
            if source is not None:
                part = float(squares[source.columns].sum())
                if source.white is None:
                    part = min(part, float(extra[source.columns].max()) * self.length[layer.node.name] ** 2)
                total += part
        return total * (1 + 1e-9)

    def _matrix(self, row: Form) -> MidRad:
        """M: minus the joint part is vᵀMv."""
        size = self.size
        total = MidRad(np.zeros((size, size)), np.zeros((size, size)))
        one = np.zeros((1, size))
        one[0, 0] = 1.0

        def add(left: MidRad, weight: Array, right: MidRad) -> None:
            """Σ_j weight_j left_j(v) right_j(v)."""
            nonlocal total
            half = left.T @ (right * MidRad.exact(weight[:, None]))
            total = total + MidRad(
                (half.mid + half.mid.T) / 2, (half.rad + half.rad.T) / 2 + 2 * U * np.abs(half.mid)
            )

        last = frozenset(x.node.name for x in self.layers if x.node.name not in self.sources)
        add(MidRad.exact(one), np.array([-1.0]), self.over(row, "the output", last))
        for layer in self.layers:
            name = layer.node.name
            if layer.kind == "norm":
                entry = self.entries[name]
                weights = (numbers(entry[k], len(layer.groups), f"{k} of {name}") for k in ("kappa", "omega"))
                total = total + self.ball(layer, *weights)
                continue
            ones = MidRad.exact(np.repeat(one, layer.size, 0))
            if layer.kind == "box":
                y = self.units(name)
                add(y, self._array(name, "t", layer.size), y)
                add(ones, self._array(name, "s", layer.size), y)
                continue
            w, z = self._weights(layer, row), self.arguments[name]
            add(z, -w.theta, z)
            add(ones, -w.r, z)
            if name in self.sources:
                y = self.units(name)
                add(y, w.t, y)
                add(y, w.e, z)
                add(ones, w.s, y)
        products, forms = self._products()
        return total + -(forms.T @ (MidRad.exact(products) @ forms)) if products.any() else total

    def units(self, name: str) -> MidRad:
        """A layer's own variables as rows."""
        columns = self.sources[name].columns
        rows = np.zeros((columns.stop - columns.start, self.size))
        rows[:, columns] = np.eye(columns.stop - columns.start)
        return MidRad.exact(rows)

    def ball(self, layer: Layer, kappa: Array, omega: Array) -> MidRad:
        """κ(xᵀGx − ρ²) + ω(Σx)² of every group."""
        name, source = layer.node.name, self.sources[layer.node.name]
        if (kappa < 0).any():
            raise CertificateError(f"κ of {name!r} is negative: {kappa.min():.3g}.")
        if omega.any() and (source.gram is not None or not layer.centered):
            raise CertificateError(f"ω of {name!r} stands for no constraint: its variables do not sum to 0.")
        mid, rad = np.zeros((2, self.size, self.size))
        if source.gram is not None:
            inner = source.gram * MidRad.exact(kappa[None])
            mid[source.columns, source.columns], rad[source.columns, source.columns] = inner.mid, inner.rad
            mid[0, 0] = -kappa[0]
            return MidRad(mid, rad)
        for group, k, o in zip(layer.groups, kappa, omega, strict=True):
            places = np.ix_(source.columns.start + group, source.columns.start + group)
            mid[places] = o + k * np.eye(len(group))
            rad[places] = 4 * U * (abs(o) + k) * np.eye(len(group))
        mid[0, 0] = -float(kappa.sum()) * layer.count
        rad[0, 0] = gamma(len(kappa) + 4) * float(kappa.sum()) * layer.count
        return MidRad(mid, rad)

    def _products(self) -> tuple[Array, MidRad]:
        """(N, the forms it multiplies): 1, t of every parametrized norm, then the listed forms of curves."""
        one = np.zeros((1, self.size))
        one[0, 0] = 1.0
        rows = [MidRad.exact(one)]
        for source in self.sources.values():
            if source.gram is not None:
                t = np.zeros((1, self.size))
                t[0, source.columns.stop - 1] = 1.0
                rows.append(MidRad.exact(t))
        by_name = {x.node.name: x for x in self.layers if x.kind == "curve"}
        for name, *given in self.proof["forms"]:
            layer = by_name.get(name)
            if layer is None or layer.sigma is None or name not in self.sources:
                raise CertificateError(
                    f"A form is listed for {name!r}, which is no activation among the variables."
                )
            a, b, c = (float(v) for v in numbers(given, 3, f"a form of {name}"))
            least = layer.sigma.true_form(a, b, c)
            if least is None:
                raise CertificateError(
                    f"{a}·y + {b}·z + {c} ≥ 0 isn't known to hold for {layer.node.op} ({name})."
                )
            made = self.arguments[name] * MidRad.exact(np.full((1, 1), b)) + self.units(name) * MidRad.exact(
                np.full((1, 1), a)
            )
            rows.append(made + MidRad.exact(least * np.repeat(one, layer.size, 0)))
        forms = MidRad(np.concatenate([r.mid for r in rows]), np.concatenate([r.rad for r in rows]))
        count = len(forms.mid)
        products = unpack(self.proof["products"], count * count, "products", "<f4").reshape(count, count)
        if (products < 0).any():
            raise CertificateError(f"Products of forms have a negative weight: {products.min():.3g}.")
        return (products + products.T) / 2, forms
