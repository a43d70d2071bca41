"""A second pair of eyes: certificates checked again from the model and the stored numbers alone.

Nothing that found a bound is trusted. A certificate stands when the program is the one it was made for, every
bound it publishes follows from its proofs by the arithmetic of :mod:`farfield.certify._check_values`, and no bound is
passed by a value the program attains.

A **dual** proof of sign·f ≤ bound has multipliers for which, at every input,

    sign·f = joint(x) + Σ_curves [sσ(z) + Tσ(z)² + Eσ(z)z − Θz² − rz] + Σ_boxes [sy + Ty²] − (what is never negative)

so sign·f ≤ max joint + Σ of one-dimensional maxima. The joint part c·x + Θz² + rz − sy − Ty² − Eyz + κ(ρ² − xᵀGx)
− ω(Σx)² + gᵀNg is at most γ where the bordered matrix of γ − joint is positive semidefinite. N ≥ 0 multiplies forms
g ≥ 0, κ ≥ 0 multiplies ρ² − xᵀGx ≥ 0, and Σx = 0 within a group of a norm that centres.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from farfield.certify._check_cells import check_cells
from farfield.certify._check_values import (
    EVALUATION,
    OVER,
    TINY,
    Activation,
    Array,
    CertificateError,
    Form,
    Layer,
    Ranges,
    Rough,
    U,
    gamma,
    layers,
    over,
    positive_semidefinite,
    ranges,
    spectral_norm,
)
from farfield.certify._hash import model_hash
from farfield.certify._softmax import DIFFERENCES, difference_program, pairs
from farfield.graph import Program, capture

__all__ = ["CertificateError", "proved_bound", "verify_certificate"]

SPARE = 1e-9
"""A bound computed here may exceed the stored one by this much of max(1, |bound|)."""
POINTS = 8192
"""Cells of the grid on which a smooth curve's maximum is bounded."""


# -- one-dimensional maxima ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights:
    """Multipliers of ψ(z) = sσ(z) + Tσ(z)² + Eσ(z)z − Θz² − rz, entry by entry; s is known up to ``loose``."""

    s: Array
    t: Array
    e: Array
    theta: Array
    r: Array
    loose: Array

    def at(self, z: Array, y: Array) -> Array:
        """ψ for arrays (entries, points)."""
        s, t, e, theta, r = (v[:, None] for v in (self.s, self.t, self.e, self.theta, self.r))
        made: Array = (s + t * y + e * z) * y - (theta * z + r) * z
        return made


def curve_maxima(sigma: Activation, w: Weights, lo: Array, hi: Array) -> Array:
    """At least the maximum of ψ over [lo, hi].

    A piecewise linear σ makes ψ a parabola on each piece. For another, on a grid of width h, ψ exceeds the larger of
    its values at the ends of a cell by at most sup|ψ″|·h²/8.
    """
    low, high = sigma.image(lo, hi)
    y_top, z_top = np.maximum(np.abs(low), np.abs(high)), np.maximum(np.abs(lo), np.abs(hi))
    s_top = np.abs(w.s) + w.loose
    size = (s_top + np.abs(w.t) * y_top + np.abs(w.e) * z_top) * y_top + (
        np.abs(w.theta) * z_top + np.abs(w.r)
    ) * z_top
    unsure = s_top + 2 * np.abs(w.t) * y_top + np.abs(w.e) * z_top
    slack = 64 * U * size + w.loose * y_top + unsure * sigma.defect
    knots = [lo, *(np.clip(k, lo, hi) for k in sigma.kinks), hi]
    best = np.full_like(lo, -math.inf)
    if sigma.pieces:
        for (slope, shift), (a, b) in zip(sigma.pieces, pairwise(knots), strict=True):
            square = w.t * slope * slope + w.e * slope - w.theta
            line = w.s * slope + 2 * w.t * slope * shift + w.e * shift - w.r
            bent = np.where(square < 0, square, -1.0)
            vertex = np.clip(np.where(square < 0, -line / (2 * bent), a), a, b)
            for z in (a, b, vertex):
                reached = (square * z + line) * z + (w.s + w.t * shift) * shift
                best = np.maximum(best, np.where((b > a) | (lo == hi), reached, -math.inf))
        extra = (np.abs(w.t) * 4 + np.abs(w.e) * 2) * (y_top + z_top) * (y_top + z_top + 1) + s_top * (
            z_top + 1
        )
        return best + over(slack + 256 * U * (size + extra))
    bend = (
        unsure * sigma.second
        + 2 * np.abs(w.t) * sigma.slope**2
        + 2 * np.abs(w.e) * sigma.slope
        + 2 * np.abs(w.theta)
    )
    share = max(2, POINTS // (len(knots) - 1))
    for a, b in pairwise(knots):
        z = np.clip(a[:, None] + (b - a)[:, None] * np.linspace(0.0, 1.0, share + 1), a[:, None], b[:, None])
        step = (b - a) / share + 4 * U * z_top
        best = np.maximum(best, w.at(z, sigma.function(z)).max(1) + bend * step * step / 8 * (1 + 1e-12))
    return best + over(slack + unsure * EVALUATION * (1 + z_top + y_top))


def box_maxima(t: Array, s: Array, lo: Array, hi: Array) -> Array:
    """At least the maximum of ty² + sy over [lo, hi]."""
    vertex = np.clip(np.where(t < 0, -s / (2 * np.where(t < 0, t, -1.0)), lo), lo, hi)
    best = np.maximum.reduce([(t * y + s) * y for y in (lo, hi, vertex)])
    top = np.maximum(np.abs(lo), np.abs(hi))
    made: Array = best + over(64 * U * (np.abs(t) * top + np.abs(s)) * top)
    return made


# -- the dual ------------------------------------------------------------------------------------------------


def _unpack(text: Any, count: int, where: str, kind: str = "<f8") -> Array:
    """A stored array of known length, all of it finite."""
    try:
        values = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=kind).astype(np.float64)
    except (ValueError, TypeError, zlib.error) as error:
        raise CertificateError(f"The array {where} can't be read: {error}.") from None
    if values.size != count or not np.isfinite(values).all():
        raise CertificateError(f"The array {where} needs {count} finite numbers, it has {values.size}.")
    return values


def _numbers(values: Any, count: int, where: str) -> Array:
    made = np.array([float(v) for v in values])
    if made.size != count or not np.isfinite(made).all():
        raise CertificateError(f"{where} needs {count} finite numbers, it has {made.size}.")
    return made


@dataclass(frozen=True)
class Source:
    """Variables of the joint part: where they stand, and how a layer's value is made of them."""

    columns: slice
    inner: Rough | None = None
    """y = inner @ u for a norm that is parametrised by u = (x, t)."""
    gram: Rough | None = None
    """uᵀ gram u = 1 then."""


class DualCheck:
    """One dual proof, laid out over the joint variables."""

    def __init__(
        self, program: Program, output: str, known: Ranges, unbounded: str | None, proof: Mapping[str, Any]
    ) -> None:
        self.proof, self.known = proof, known
        self.curves, self.norms, self.boxes = (dict(proof[k]) for k in ("curves", "norms", "boxes"))
        made, self.output = layers(program, output, frozenset(self.boxes), unbounded)
        self.layers = [layer for layer in made if layer.kind != "input" and self._entry(layer) is not None]
        self.input = next((layer for layer in made if layer.kind == "input"), None)
        named = {*self.curves, *self.norms, *self.boxes}
        strangers = named - {layer.node.name for layer in self.layers}
        if strangers:
            raise CertificateError(
                f"Multipliers are given for {sorted(strangers)}, which the output isn't made of."
            )
        self.sources: dict[str, Source] = {}
        self.size = 1
        for layer in self.layers:
            self._place(layer)
        self.arguments = {
            x.node.name: self._over(x.argument, x.node.name)
            for x in self.layers
            if x.kind == "curve" and x.argument
        }
        self.reach: dict[str, tuple[Array, Array]] = {}
        self.length: dict[str, float] = {}
        self.zrange: dict[str, tuple[Array, Array]] = {}

    def _entry(self, layer: Layer) -> Any:
        return {"curve": self.curves, "norm": self.norms, "box": self.boxes}[layer.kind].get(layer.node.name)

    def _place(self, layer: Layer) -> None:
        name, entry = layer.node.name, self._entry(layer)
        if layer.kind == "curve" and "t" not in entry:
            return
        if layer.kind == "norm" and entry["parametrised"]:
            inner, gram = self._parametrised(layer)
            self.sources[name] = Source(slice(self.size, self.size + inner.mid.shape[1]), inner, gram)
        else:
            self.sources[name] = Source(slice(self.size, self.size + layer.size))
        self.size = self.sources[name].columns.stop

    def _parametrised(self, layer: Layer) -> tuple[Rough, Rough]:
        """(C, G): the norm's value is C u with uᵀGu = 1, G = CᵀC/count + ε e_t e_tᵀ, u = (x, 1)/√(…)."""
        form, source, name = layer.argument, self.input, layer.node.name
        if form is None or source is None or form.degree != 1 or layer.groups.shape[0] != 1 or not layer.eps:
            raise CertificateError(
                f"{name!r} is no norm of one group, with ε > 0, of an affine map of the input."
            )
        rest = form.padded(source.columns.stop)
        if (
            np.any(rest.mid[source.columns.stop :])
            or np.any(rest.rad[source.columns.stop :])
            or source.columns.start != 1
        ):
            raise CertificateError(f"{name!r} normalises more than an affine map of the input.")
        matrix = form.rows(*source.columns.indices(1 << 40)[:2])
        offset = form.rows(0, 1)
        both = Rough(
            np.concatenate([matrix.mid, offset.mid], 1), np.concatenate([matrix.rad, offset.rad], 1)
        )[layer.groups[0]]
        if layer.centred:
            mean = both.mid.mean(0, keepdims=True)
            loss = gamma(len(both.mid) + 4) * np.abs(both.mid).mean(0, keepdims=True)
            centre = Rough(mean, over(loss + both.rad.mean(0, keepdims=True)))
            both = both + -centre
        inner = Rough(np.zeros_like(both.mid), np.zeros_like(both.rad))
        inner.mid[layer.groups[0]], inner.rad[layer.groups[0]] = both.mid, both.rad
        product = both.T @ both
        gram = Rough(
            product.mid / layer.count,
            over(product.rad / layer.count + 2 * U * np.abs(product.mid) / layer.count),
        )
        stabiliser = np.zeros_like(gram.mid)
        stabiliser[-1, -1] = layer.eps
        return inner, gram + Rough.exact(stabiliser)

    def _over(self, form: Form, where: str, skip: frozenset[str] = frozenset()) -> Rough:
        """A form as rows over (1, joint variables)."""
        if form.degree:
            raise CertificateError(f"{where!r} is reached from the input without a bound on the way.")
        entries = form.rows(0, 1).mid.shape[0]
        made = Rough(np.zeros((entries, self.size)), np.zeros((entries, self.size)))
        first = form.rows(0, 1)
        made.mid[:, :1], made.rad[:, :1] = first.mid, first.rad
        used = np.zeros(form.value.mid.shape[0], dtype=bool)
        used[0] = True
        for layer in self.layers:
            if layer.columns.start >= form.value.mid.shape[0]:
                continue
            used[layer.columns] = True
            part = form.rows(layer.columns.start, layer.columns.stop)
            if layer.node.name in skip or not (part.mid.any() or part.rad.any()):
                continue
            source = self.sources.get(layer.node.name)
            if source is None:
                raise CertificateError(
                    f"{where!r} depends on {layer.node.name!r}, which has no t, e, s in this proof."
                )
            piece = part if source.inner is None else part @ source.inner
            made.mid[:, source.columns], made.rad[:, source.columns] = piece.mid, piece.rad
        count = len(used)
        lost = ~used & (form.value.mid.reshape(count, -1).any(1) | form.value.rad.reshape(count, -1).any(1))
        if lost.any():
            raise CertificateError(f"{where!r} depends on a layer this proof has no multipliers for.")
        return made

    # -- ranges ----------------------------------------------------------------------------------------------

    def bound_layers(self) -> None:
        """Where every layer's entries lie, how long it is, and where every curve's argument lies."""
        for layer in self.layers:
            name = layer.node.name
            if layer.kind == "norm":
                width = layer.groups.shape[1]
                most = layer.radius * (math.sqrt(1 - 1 / width) * (1 + 4 * U) if layer.centred else 1.0)
                self.reach[name] = (np.full(layer.size, -most), np.full(layer.size, most))
                self.length[name] = layer.radius * math.sqrt(layer.groups.shape[0]) * (1 + 4 * U)
                continue
            if layer.kind == "box":
                lo, hi = self.known.of(name)
            else:
                assert layer.sigma is not None
                lo, hi = self.zrange[name] = self._argument_range(layer)
                lo, hi = layer.sigma.image(lo, hi)
            if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
                raise CertificateError(f"No finite range of {name!r} could be proved.")
            self.reach[name] = (lo, hi)
            top = np.maximum(np.abs(lo), np.abs(hi))
            self.length[name] = math.sqrt(float((top * top).sum()) * OVER + TINY) * (1 + 4 * U)
            if layer.kind == "curve":
                self.length[name] = min(self.length[name], self._lipschitz(layer))

    def _parts(self, form: Form) -> list[tuple[Layer, Rough]]:
        """The layers that enter a form, with their coefficients."""
        found = []
        for layer in self.layers:
            if layer.columns.start < form.value.mid.shape[0]:
                part = form.rows(layer.columns.start, layer.columns.stop)
                if part.mid.any() or part.rad.any():
                    found.append((layer, part))
        return found

    def _lipschitz(self, layer: Layer) -> float:
        """‖σ(z)‖ ≤ ‖σ(b)‖ + sup|σ′|·Σ ‖F‖₂‖y‖."""
        assert layer.argument is not None
        assert layer.sigma is not None
        start = layer.argument.rows(0, 1)
        at = (
            np.abs(layer.sigma.function(start.mid[:, 0]))
            + layer.sigma.slope * start.rad[:, 0]
            + layer.sigma.defect
        )
        at = over(at + EVALUATION * (1 + np.abs(start.mid[:, 0]) + at))
        total = sum(
            spectral_norm(part) * self.length[source.node.name]
            for source, part in self._parts(layer.argument)
        )
        return (
            math.sqrt(float((at * at).sum())) + layer.sigma.slope * total + 2 * layer.sigma.defect * len(at)
        ) * (1 + 1e-12)

    def _argument_range(self, layer: Layer) -> tuple[Array, Array]:
        """Per layer that enters the better of its length and its entries' ranges; and plain intervals."""
        form = layer.argument
        assert form is not None
        start = form.rows(0, 1)
        lo = hi = start.mid[:, 0]
        loose = start.rad[:, 0]
        for source, part in self._parts(form):
            name = source.node.name
            low, high = self.reach[name]
            middle, half = (
                (low + high) / 2,
                over((high - low) / 2 * (1 + 4 * U) + U * (np.abs(low) + np.abs(high))),
            )
            centre = Rough(part.mid, part.rad) @ Rough.exact(middle[:, None])
            by_entries = over(part.top @ half)
            around = _lengths(part) * self.length[name]
            if source.kind == "norm":
                around = np.minimum(around, self._support(source, part))
            better = around < by_entries
            shift = np.where(better, 0.0, centre.mid[:, 0])
            spread = np.where(better, around, by_entries + centre.rad[:, 0])
            lo, hi = lo + (shift - spread), hi + (shift + spread)
            loose = over(loose + 4 * U * (np.abs(lo) + np.abs(hi) + np.abs(shift) + spread))
        lo, hi = lo - loose, hi + loose
        plain = self.known.get(layer.node.operands[0])
        if plain is not None:
            lo, hi = np.maximum(lo, plain[0].reshape(-1)), np.minimum(hi, plain[1].reshape(-1))
        return np.minimum(lo, hi), np.maximum(lo, hi)

    def _support(self, layer: Layer, part: Rough) -> Array:
        """Largest row·y over a norm's image, Σ_groups ρ‖row centred‖, or over the ellipsoid that makes it."""
        total = np.zeros(len(part.mid))
        for group in layer.groups:
            piece = part[:, group]
            if layer.centred:
                mean = Rough(piece.mid.mean(1, keepdims=True), np.zeros((len(piece.mid), 1)))
                loss = gamma(len(group) + 4) * np.abs(piece.mid).mean(1, keepdims=True) + piece.rad.mean(
                    1, keepdims=True
                )
                piece = piece + -Rough(mean.mid, over(loss))
            total = total + _lengths(piece) * layer.radius
        total = over(total)
        source = self.sources[layer.node.name]
        if source.inner is None or source.gram is None:
            return total
        white = _whitened(source.gram)
        return total if white is None else np.minimum(total, _lengths((part @ source.inner) @ white))

    # -- the proof -------------------------------------------------------------------------------------------

    def check(self, output: int, sign: float) -> float:
        """The bound of sign·output that the multipliers prove, with the stored γ and no more than its allowance."""
        proof = self.proof
        bound, joint = float(proof["bound"]), float(proof["joint"])
        if not (math.isfinite(bound) and math.isfinite(joint)):
            raise CertificateError("A dual proof's bound and joint part are finite numbers.")
        self.bound_layers()
        spare = SPARE * max(1.0, abs(bound))
        row = replace(
            self.output,
            value=self.output.value[
                (slice(None), *np.unravel_index(output, self.output.value.mid.shape[1:]))
            ],
        )
        row = replace(row, value=Rough(sign * row.value.mid[:, None], row.value.rad[:, None]))
        maxima = self._maxima(row)
        total = math.fsum(maxima.tolist()) + len(maxima) * U * float(np.abs(maxima).sum())
        gamma_ = joint + spare / 2
        matrix = self._bordered(row)
        corner = Rough.exact(np.zeros_like(matrix.mid))
        corner.mid[0, 0] = gamma_
        if not positive_semidefinite(matrix + corner):
            raise CertificateError(
                f"The joint part isn't proved to be at most {gamma_:.12g}: its bordered matrix is not positive "
                "semidefinite."
            )
        return gamma_ + total

    def _weights(self, layer: Layer, row: Form) -> Weights:
        """A curve's multipliers; the objective's own coefficients where its value is no variable."""
        name, entry, size = layer.node.name, self._entry(layer), layer.size
        theta, r = (_unpack(entry[k], size, f"{name}.{k}") for k in ("theta", "r"))
        zero = np.zeros(size)
        if "t" in entry:
            t, e, s = (_unpack(entry[k], size, f"{name}.{k}") for k in ("t", "e", "s"))
            return Weights(s, t, e, theta, r, zero)
        own = row.rows(layer.columns.start, layer.columns.stop)
        return Weights(own.mid[0], zero, zero, theta, r, own.rad[0])

    def _maxima(self, row: Form) -> Array:
        parts = [np.zeros(0)]
        for layer in self.layers:
            name, entry = layer.node.name, self._entry(layer)
            if layer.kind == "curve":
                assert layer.sigma is not None
                parts.append(curve_maxima(layer.sigma, self._weights(layer, row), *self.zrange[name]))
            elif layer.kind == "box":
                t, s = (_unpack(entry[k], layer.size, f"{name}.{k}") for k in ("t", "s"))
                parts.append(box_maxima(t, s, *(end.reshape(-1) for end in self.reach[name])))
        return np.concatenate(parts)

    def _bordered(self, row: Form) -> Rough:
        """The matrix of −joint over (1, x), γ left out."""
        size = self.size
        total = Rough(np.zeros((size, size)), np.zeros((size, size)))
        one = np.zeros((1, size))
        one[0, 0] = 1.0

        def add(left: Rough, weight: Array, right: Rough) -> None:
            """Σ_j weight_j left_j(x) right_j(x)."""
            nonlocal total
            half = left.T @ (right * Rough.exact(weight[:, None]))
            both = half + half.T
            total = total + Rough(both.mid / 2, both.rad / 2)

        last = frozenset(
            x.node.name for x in self.layers if x.kind == "curve" and x.node.name not in self.sources
        )
        add(Rough.exact(one), np.array([-1.0]), self._over(row, "the output", last))
        for layer in self.layers:
            name, entry = layer.node.name, self._entry(layer)
            if layer.kind == "norm":
                total = total + self._ball(layer)
                continue
            ones = Rough.exact(np.repeat(one, layer.size, 0))
            if layer.kind == "box":
                t, s = (_unpack(entry[k], layer.size, f"{name}.{k}") for k in ("t", "s"))
                y = self._units(name)
                add(y, t, y)
                add(ones, s, y)
                continue
            w, z = self._weights(layer, row), self.arguments[name]
            add(z, -w.theta, z)
            add(ones, -w.r, z)
            if name in self.sources:
                y = self._units(name)
                add(y, w.t, y)
                add(y, w.e, z)
                add(ones, w.s, y)
        products, forms = self._products()
        if products.any():
            total = total + -(forms.T @ (Rough.exact(products) @ forms))
        return total

    def _units(self, name: str) -> Rough:
        columns = self.sources[name].columns
        rows = np.zeros((columns.stop - columns.start, self.size))
        rows[:, columns] = np.eye(columns.stop - columns.start)
        return Rough.exact(rows)

    def _ball(self, layer: Layer) -> Rough:
        """κ(xᵀGx − ρ²) + ω(Σx)² of every group."""
        name, entry = layer.node.name, self._entry(layer)
        source = self.sources[name]
        kappa = _numbers(entry["kappa"], len(layer.groups), f"kappa of {name}")
        omega = _numbers(entry["omega"], len(layer.groups), f"omega of {name}")
        if (kappa < 0).any():
            raise CertificateError(f"κ of {name!r} is negative: {kappa.min():.3g}.")
        made = Rough(np.zeros((self.size, self.size)), np.zeros((self.size, self.size)))
        if source.gram is not None:
            if omega.any():
                raise CertificateError(f"ω of {name!r} stands for no constraint: the norm is parametrised.")
            inner = source.gram * Rough.exact(kappa)
            made.mid[source.columns, source.columns], made.rad[source.columns, source.columns] = (
                inner.mid,
                inner.rad,
            )
            made.mid[0, 0] = -kappa[0]
            return made
        if omega.any() and not layer.centred:
            raise CertificateError(f"ω of {name!r} stands for no constraint: the norm doesn't centre.")
        for group, k, o in zip(layer.groups, kappa, omega, strict=True):
            places = source.columns.start + group
            block = np.full((len(group), len(group)), o) + k * np.eye(len(group))
            made.mid[np.ix_(places, places)] = block
            made.rad[np.ix_(places, places)] = 4 * U * (abs(o) + k) * np.eye(len(group))
        square = layer.count if layer.count > 1 else 1.0
        made.mid[0, 0] = -float(kappa.sum()) * square
        made.rad[0, 0] = gamma(len(kappa) + 4) * float(kappa.sum()) * square
        return made

    def _products(self) -> tuple[Array, Rough]:
        """(N, the forms it multiplies): 1, t of every parametrised norm, then the listed forms of curves."""
        one = np.zeros((1, self.size))
        one[0, 0] = 1.0
        rows = [Rough.exact(one)]
        for source in self.sources.values():
            if source.gram is not None:
                t = np.zeros((1, self.size))
                t[0, source.columns.stop - 1] = 1.0
                rows.append(Rough.exact(t))
        by_name = {x.node.name: x for x in self.layers if x.kind == "curve"}
        for name, a, b, c in self.proof["forms"]:
            layer = by_name.get(name)
            if layer is None or layer.sigma is None or name not in self.sources:
                raise CertificateError(
                    f"A form is listed for {name!r}, which is no activation among the variables."
                )
            if not layer.sigma.true_form(float(a), float(b), float(c)):
                raise CertificateError(
                    f"{a}·y + {b}·z + {c} ≥ 0 isn't known to hold for {layer.node.op} ({name})."
                )
            z = self.arguments[name] * Rough.exact(np.full((1, 1), float(b)))
            y = self._units(name) * Rough.exact(np.full((1, 1), float(a)))
            offset = np.zeros((layer.size, self.size))
            offset[:, 0] = float(c)
            rows.append((z + y) + Rough.exact(offset))
        forms = Rough(np.concatenate([r.mid for r in rows]), np.concatenate([r.rad for r in rows]))
        count = len(forms.mid)
        products = _unpack(self.proof["products"], count * count, "products", "<f4").reshape(count, count)
        if (products < 0).any():
            raise CertificateError(f"Products of forms have a negative weight: {products.min():.3g}.")
        return (products + products.T) / 2, forms


def _lengths(rows: Rough) -> Array:
    """‖row‖₂, rounded up."""
    top = rows.top
    return np.sqrt(over((top * top).sum(1))) * (1 + 4 * U)


def _whitened(gram: Rough) -> Rough | None:
    """W with {u : uᵀGu ≤ 1} inside W·(unit ball): W ≈ G^{-1/2}/√(1 − δ), ‖I − WᵀGW‖ ≤ δ; ``None`` if singular."""
    scale = np.exp2(-np.round(0.5 * np.log2(np.maximum(np.diagonal(gram.mid), TINY))))
    try:
        factor = np.linalg.cholesky(scale[:, None] * gram.mid * scale)
        root = scale[:, None] * np.linalg.inv(factor).T
    except np.linalg.LinAlgError:
        return None
    miss = Rough.exact(root.T.copy()) @ (gram @ Rough.exact(root)) + -Rough.exact(np.eye(len(root)))
    delta = float(over(miss.top.sum(1)).max())
    if not delta < 0.5:
        return None
    grown = root / math.sqrt(1.0 - delta)
    return Rough(grown, 8 * U * np.abs(grown))


# -- certificates --------------------------------------------------------------------------------------------


def verify_certificate(model: Any, certificate: Any, inputs: Any = None) -> bool:
    """Check a certificate again, from the model and the stored numbers alone.

    Parameters
    ----------
    model
        What the certificate speaks of.
    certificate
        A path, the plain data, or an object with ``to_dict()``.
    inputs
        Example inputs to capture the model with; zeros of the certificate's ``input_shape`` by default.

    Returns
    -------
    bool
        ``True``; whatever is wrong raises.

    Raises
    ------
    CertificateError
        Where a check fails. The bound of a proof recomputed here may exceed the stored one by 1e-9·max(1, |bound|),
        and what the certificate publishes must leave room for that.
    """
    data = _read(certificate)
    if inputs is None:
        inputs = [
            torch.zeros(shape, dtype=getattr(torch, str(kind).removeprefix("torch.")))
            for shape, kind in zip(data["input_shape"], data["input_dtype"], strict=True)
        ]
    example = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    return check_program(capture(model, example, dynamic_batch=False), data)


def _read(certificate: Any) -> Mapping[str, Any]:
    if isinstance(certificate, str | Path):
        certificate = json.loads(Path(certificate).read_text(encoding="utf-8"))
    elif hasattr(certificate, "to_dict"):
        certificate = certificate.to_dict()
    if not isinstance(certificate, Mapping) or certificate.get("format") != "farfield-certificate/1":
        raise CertificateError("This is no certificate of the format farfield-certificate/1.")
    return certificate


def check_program(program: Program, certificate: Any) -> bool:
    """The same for a program that is captured already."""
    data = _read(certificate)
    try:
        return _check(program, data)
    except (KeyError, TypeError, IndexError, ValueError, OverflowError) as error:
        raise CertificateError(
            f"The certificate is not written as one: {type(error).__name__}: {error}."
        ) from error


def _check(program: Program, data: Mapping[str, Any]) -> bool:
    digest = model_hash(program)
    if digest != data["model_hash"]:
        raise CertificateError(
            f"The model is not the certificate's: its hash is {digest}, not {data['model_hash']}."
        )
    output = str(data["output"])
    if output not in program.outputs:
        raise CertificateError(f"The program has no output {output!r}; it has {', '.join(program.outputs)}.")
    confined, unbounded = _domain(program, data["domain"])
    size = math.prod(int(d) for d in program.node(output).shape)
    lower, upper = ([float(v) for v in data[side]] for side in ("lower", "upper"))
    if len(lower) != size or len(upper) != size or any(math.isnan(v) for v in (*lower, *upper)):
        raise CertificateError(
            f"{output!r} has {size} entries; the certificate bounds {len(lower)} and {len(upper)}."
        )
    with np.errstate(all="ignore"), torch.no_grad():
        _check_witnesses(program, output, data, lower, upper)
        proved = _check_proofs(program, output, data, confined, unbounded)
    for index in range(size):
        for side, published in (("upper", upper[index]), ("lower", -lower[index])):
            if published < proved.get((index, side), math.inf):
                raise CertificateError(
                    f"The {side} bound of entry {index} is not proved: {published:.12g} is published, "
                    f"{proved.get((index, side), math.inf):.12g} is proved (both of sign·f)."
                )
    return True


def _domain(program: Program, domain: Mapping[str, Any]) -> tuple[dict[str, tuple[Array, Array]], str | None]:
    real = [spec for spec in program.inputs if spec.kind == "real"]
    if domain["kind"] in ("all", "halfspace"):  # what holds everywhere holds in a half-space
        return {}, real[0].name if len(real) == 1 else None
    if domain["kind"] != "box" or len(real) != 1:
        raise CertificateError("A certificate's domain is all inputs, or a box of the one real input.")
    shape = tuple(int(d) for d in real[0].shape)
    lower, upper = (np.array(domain[k], dtype=np.float64).reshape(-1) for k in ("lower", "upper"))
    if lower.size != math.prod(shape) or upper.size != lower.size or not (lower <= upper).all():
        raise CertificateError(f"The box needs {math.prod(shape)} lower ends, each at most the upper one.")
    return {real[0].name: (lower.reshape(shape), upper.reshape(shape))}, None


def _check_witnesses(
    program: Program, output: str, data: Mapping[str, Any], lower: Sequence[float], upper: Sequence[float]
) -> None:
    """Stored values are values of the program, and no bound is passed by one."""
    listed = data.get("witnesses") or {}
    found = [(side, index, w) for side in ("lower", "upper") for index, w in enumerate(listed.get(side, ()))]
    for side, index, witness in found:
        if witness.get("point") is None or any(spec.kind != "real" for spec in program.inputs):
            continue
        stored = float(witness["value"])
        value = float(
            program.evaluate(*_inputs(program, witness["point"]), keep=[output])[output].reshape(-1)[index]
        )
        allowed = 1e-9 * max(1.0, abs(value))
        if not abs(value - stored) <= allowed:
            raise CertificateError(
                f"The witness of the {side} side of entry {index} reaches {value:.12g}, not {stored:.12g}."
            )
        if not lower[index] <= value <= upper[index]:
            raise CertificateError(
                f"Entry {index} attains {value:.12g}, outside the published "
                f"[{lower[index]:.12g}, {upper[index]:.12g}]."
            )
        attained = data.get(f"attained_{side}")
        if attained is not None:
            claimed = float(attained[index])
            if (claimed > value + allowed) if side == "upper" else (claimed < value - allowed):
                raise CertificateError(
                    f"attained_{side} of entry {index} is {claimed:.12g}; its witness reaches {value:.12g}."
                )


def _inputs(program: Program, point: Sequence[float]) -> list[torch.Tensor]:
    """One tensor per input from their entries, flattened and joined."""
    flat, given = torch.tensor(point, dtype=torch.float64), []
    for spec in program.inputs:
        shape = tuple(int(d) for d in spec.shape)
        given.append(flat[: math.prod(shape)].reshape(shape))
        flat = flat[math.prod(shape) :]
    return given


def _check_proofs(
    program: Program,
    output: str,
    data: Mapping[str, Any],
    confined: dict[str, tuple[Array, Array]],
    unbounded: str | None,
) -> dict[tuple[int, str], float]:
    """(entry, side) → the bound of sign·f that the proofs establish."""
    known = ranges(program, confined)
    proved: dict[tuple[int, str], float] = {}
    size = math.prod(int(d) for d in program.node(output).shape)
    for number, proof in enumerate(data["proofs"]):
        index, side, bound = int(proof["output"]), str(proof["side"]), float(proof["bound"])
        if not 0 <= index < size or side not in ("upper", "lower"):
            raise CertificateError(f"Proof {number} is of entry {index}, side {side!r}: there is none.")
        sign = 1.0 if side == "upper" else -1.0
        try:
            found = _proved(program, output, known, confined, unbounded, proof, index, sign)
        except CertificateError as error:
            raise CertificateError(
                f"Proof {number} ({proof['kind']}, {side} bound of entry {index}): {error}"
            ) from error
        spare = SPARE * max(1.0, abs(bound))
        if not found <= bound + spare:
            raise CertificateError(
                f"Proof {number} ({proof['kind']}, {side} bound of entry {index}) states {bound:.12g} "
                f"and proves {found:.12g}: "
                f"{found - bound:.3g} more."
            )
        proved[index, side] = min(proved.get((index, side), math.inf), bound + spare)
    return proved


def proved_bound(program: Program, output: str, domain: Mapping[str, Any], proof: Mapping[str, Any]) -> float:
    """The bound of sign·f that one proof establishes by this checker's arithmetic."""
    confined, unbounded = _domain(program, domain)
    sign = 1.0 if proof["side"] == "upper" else -1.0
    known = ranges(program, confined)
    return _proved(program, output, known, confined, unbounded, proof, int(proof["output"]), sign)


def _proved(
    program: Program, output: str, known: Ranges, confined: dict[str, tuple[Array, Array]], unbounded: str | None,
    proof: Mapping[str, Any], index: int, sign: float,
) -> float:  # fmt: skip
    if proof["kind"] == "dual":
        return DualCheck(program, output, known, unbounded, proof).check(index, sign)
    if proof["kind"] == "interval":
        lo, hi = known.of(output)
        return float(hi[index] if sign > 0 else -lo[index])
    if proof["kind"] == "cells":
        bound = float(proof["bound"])
        line = bound + SPARE * max(1.0, abs(bound))
        return check_cells(program, output, known, confined, unbounded, proof, index, sign, line)
    if proof["kind"] == "softmax":
        return _confidence(program, output, confined, unbounded, proof, index, sign)
    raise CertificateError(f"There is no kind of proof named {proof['kind']!r}.")


def _confidence(
    program: Program, output: str, confined: dict[str, tuple[Array, Array]], unbounded: str | None,
    proof: Mapping[str, Any], index: int, sign: float,
) -> float:  # fmt: skip
    """A probability's bound from proved bounds of logits' differences l_i − l_j ≤ D_ij."""
    differences = difference_program(program, output)
    if differences is None:
        raise CertificateError("The output is no softmax over a few classes.")
    proved = _check_proofs(differences, DIFFERENCES, {"proofs": proof["differences"]}, confined, unbounded)
    classes = math.prod(int(d) for d in program.node(output).shape)
    total = 1.0
    for row, (i, j) in enumerate(pairs(classes)):
        if (i if sign > 0 else j) != index:
            continue
        bound = proved.get((row, "upper"), math.inf)
        if sign > 0:
            total += math.exp(-bound) * (1 - 1e-14) if -700 < bound < 700 else 0.0
        else:
            total += math.exp(bound) * (1 + 1e-14) if bound < 700 else math.inf
    return sign * (1.0 / total) + 1e-13
