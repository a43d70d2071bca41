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
from hashlib import sha256
from typing import Any

import numpy as np

from farfield.certify.checker._cone import DomainCone
from farfield.certify.checker._dual_data import lengths, mean, numbers, unpack
from farfield.certify.checker._joint import joint_bound
from farfield.certify.checker._layers import layer_range
from farfield.certify.checker._maxima import Weights, box_maxima, curve_maxima
from farfield.certify.checker._ranges import Ranges
from farfield.certify.checker._reading import Form, Layer
from farfield.certify.checker._values import (
    Array,
    CertificateError,
    MidRad,
    Span,
    U,
    round_up,
    spectral_norm,
)
from farfield.certify.checker._variables import Variables

__all__ = ["DualCheck"]


class DualCheck(Variables):
    """One dual proof, laid out over the joint variables."""

    def __init__(
        self,
        ranges: Ranges,
        output: str,
        unbounded: str | None,
        proof: Mapping[str, Any],
        cone: DomainCone | None = None,
        memo: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(ranges, output, unbounded, proof, cone)
        self.memo: dict[str, Any] = {} if memo is None else memo
        self.key = ""
        self.reach: dict[str, Span] = {}
        self.length: dict[str, float] = {}
        self.zrange: dict[str, Span] = {}
        for layer in self.layers:
            self._bound(layer)
        self.arguments = {
            x.node.name: self.over(x.argument, x.node.name, level=self.level.get(x.node.name, 0))
            for x in self.layers
            if x.kind == "curve"
        }

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
        total = sum(self._norm(part) * self.length[x.node.name] for x, part in self._parts(layer.argument))
        extra = layer.sigma.steepest * total + 2 * layer.sigma.defect * len(start.mid)
        return (float(lengths(start.T)[0]) + extra) * (1 + 1e-12)

    def _norm(self, part: MidRad) -> float:
        """The spectral norm; ``memo`` has those of earlier proofs, by the matrix's own bytes."""
        whole = (f"norm {part.mid.shape}".encode(), part.mid.tobytes(), part.rad.tobytes())
        key = sha256(b"".join(whole)).hexdigest()
        if key not in self.memo:
            self.memo[key] = spectral_norm(part)
        return float(self.memo[key])

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
            inner = (part @ middle.reshape(-1, 1))[:, 0]
            share = _narrower(MidRad(np.zeros_like(around), around), inner)
            total = total + _narrower(self._enclosed(source, part), share)
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
            said = ("parametrized", "mu", "enclosure")
            kinds = {n: [sorted(e), *(e.get(key) for key in said)] for n, e in self.entries.items()}
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
        if source.inner is None or source.white is None or source.ellipsoid is not None:
            return total
        return np.minimum(total, lengths((part @ source.inner) @ source.white))

    def _enclosed(self, layer: Layer, part: MidRad) -> MidRad | None:
        """row·y over the ellipsoid that encloses a norm's values over a region."""
        source = self.sources.get(layer.node.name)
        if source is None or source.ellipsoid is None or source.inner is None or source.white is None:
            return None
        rows = part @ source.inner
        middle = (rows @ MidRad.exact(source.ellipsoid.center[:, None]))[:, 0]
        return MidRad(middle.mid, round_up(middle.rad + lengths(rows @ source.white)))

    # -- the proof -------------------------------------------------------------------------------------------

    def check(self, output: int, sign: float) -> float:
        """The bound of sign·output that the multipliers prove."""
        value = self.reading.output.value.reshape(len(self.reading.output.value.mid), -1)[
            :, output : output + 1
        ]
        row = Form(MidRad(sign * value.mid, value.rad), self.reading.output.degree)
        maxima = self._maxima(row)
        matrix = self._matrix(row)
        for level, most in maxima.items():
            if level:
                matrix.mid[level, level] -= most
                matrix.rad[level, level] += U * abs(matrix.mid[level, level])
        joint = joint_bound(matrix, self._largest(), self._price, bool(self.level))
        return (joint + maxima[0]) + 4 * U * (abs(joint) + abs(maxima[0]))

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

    def _maxima(self, row: Form) -> dict[int, float]:
        """The sum of the one-dimensional maxima of every level, rounded up."""
        parts: dict[int, list[Array]] = {0: []}
        for layer in self.layers:
            name = layer.node.name
            part = parts.setdefault(self.level.get(name, 0), [])
            if layer.kind == "curve":
                assert layer.sigma is not None
                part.append(curve_maxima(layer.sigma, self._weights(layer, row), *self.zrange[name]))
            elif layer.kind == "box":
                t, s = (self._array(name, k, layer.size) for k in ("t", "s"))
                part.append(box_maxima(t, s, *self.reach[name]))
        sums = {}
        for level, found in parts.items():
            values = np.concatenate([np.zeros(0), *found])
            sums[level] = math.fsum(values.tolist()) + len(values) * U * float(np.abs(values).sum())
        return sums

    def largest(self, layer: Layer) -> Array:
        """Largest size of a layer's variables."""
        source = self.sources[layer.node.name]
        times = self.most[self.level.get(layer.node.name, 0)]
        if source.nested:
            return np.array([self.most[source.columns.start]])
        if source.white is not None:
            return round_up(lengths(source.white) * times)
        low, high = self.reach[layer.node.name]
        made: Array = np.maximum(np.abs(low), np.abs(high))
        return round_up(made * times)

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
                if source.white is None and not source.nested and not self.level.get(layer.node.name):
                    part = min(part, float(extra[source.columns].max()) * self.length[layer.node.name] ** 2)
                total += part
        return total * (1 + 1e-9)

    def _matrix(self, row: Form) -> MidRad:
        """M: minus the joint part is vᵀMv."""
        half, balls = MidRad(*np.zeros((2, self.size, self.size))), []

        def add(rows: slice, made: MidRad) -> None:
            """Rows of a matrix that is made symmetric in the end."""
            put = half[rows] + made
            half.mid[rows], half.rad[rows] = put.mid, put.rad

        def linear(level: int, weight: Array, rows: MidRad) -> None:
            """Σ_j weight_j row_j(v), times what stands for 1."""
            add(slice(level, level + 1), MidRad.exact(weight[None]) @ rows)

        def beside(name: str, weight: Array, rows: MidRad) -> None:
            """Σ_j weight_j y_j row_j(v), with y a layer's own variables."""
            add(self.sources[name].columns, rows * MidRad.exact(weight[:, None]))

        last = frozenset(x.node.name for x in self.layers if x.node.name not in self.sources)
        linear(0, np.array([-1.0]), self.over(row, "the output", last))
        for layer in self.layers:
            name = layer.node.name
            level = self.level.get(name, 0)
            if layer.kind == "norm":
                entry = self.entries[name]
                weights = (numbers(entry[k], len(layer.groups), f"{k} of {name}") for k in ("kappa", "omega"))
                balls.append(self.ball(layer, *weights))
                continue
            if layer.kind == "box":
                y = self.units(name)
                beside(name, self._array(name, "t", layer.size), y)
                linear(level, self._array(name, "s", layer.size), y)
                continue
            w, z = self._weights(layer, row), self.arguments[name]
            add(slice(0, self.size), z.T @ (z * MidRad.exact(-w.theta[:, None])))
            linear(level, -w.r, z)
            if name in self.sources:
                y = self.units(name)
                beside(name, w.t, y)
                beside(name, w.e, z)
                linear(level, w.s, y)
        twice = half + half.T
        total = MidRad(twice.mid / 2, twice.rad / 2)
        for ball in balls:
            total = total + ball
        products, forms = self._products()
        return total + -(forms.T @ (MidRad.exact(products) @ forms)) if products.any() else total

    def _products(self) -> tuple[Array, MidRad]:
        """(N, the forms it multiplies): 1, parametrized norms' t less its least, a nested one's τ, curves' own."""
        one = np.zeros((1, self.size))
        one[0, 0] = 1.0
        rows = [MidRad.exact(one)]
        for nested in (False, True):
            for name, source in self.sources.items():
                level = self.level.get(name, 0)
                if source.gram is not None and source.nested == nested:
                    t = MidRad.exact(np.zeros((1, self.size)))
                    t.mid[0, source.columns.stop - 1] = 1.0
                    if source.ellipsoid is not None:
                        least = source.ellipsoid.center[-1] - source.ellipsoid.least
                        t.mid[0, level], t.rad[0, level] = least, U * abs(least)
                    rows.append(t)
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
            rows.append(made + MidRad.exact(least * np.repeat(self._one(name), layer.size, 0)))
        forms = MidRad(np.concatenate([r.mid for r in rows]), np.concatenate([r.rad for r in rows]))
        count = len(forms.mid)
        products = unpack(self.proof["products"], count * count, "products", "<f4").reshape(count, count)
        if (products < 0).any():
            raise CertificateError(f"Products of forms have a negative weight: {products.min():.3g}.")
        return (products + products.T) / 2, forms


def _narrower(one: MidRad | None, other: MidRad) -> MidRad:
    """Entry by entry the narrower of two intervals that hold the same number."""
    if one is None:
        return other
    better = one.rad < other.rad
    return MidRad(np.where(better, one.mid, other.mid), np.where(better, one.rad, other.rad))
