"""The checker's test of a dual proof: bordered matrix and ranges, rebuilt from the model and the multipliers."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farfield.certify._check_intervals import Ranges
from farfield.certify._check_layers import Form, Layer, layers
from farfield.certify._check_maxima import Weights, box_maxima, curve_maxima
from farfield.certify._check_values import (
    EVALUATION,
    OVER,
    TINY,
    Array,
    CertificateError,
    Rough,
    U,
    gamma,
    over,
    positive_semidefinite,
    spectral_norm,
)
from farfield.graph import Program

__all__ = ["SPARE", "DualCheck"]

SPARE = 1e-9
"""A bound computed here may exceed the stored one by this much of max(1, |bound|)."""


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
