"""From a network to the maximization problem of its output, with a bound on every rounding of its coefficients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from farfield.certify._cone import Cone
from farfield.certify._enclosure import enclose
from farfield.certify._rounding import TINY, gamma, row_norms, spectral_bound, with_room
from farfield.certify.affine import UNIT, Block, Form, Network
from farfield.certify.dual._problem import Ball, Box, Curve, Problem
from farfield.errors import FarfieldError
from farfield.gaussian import ScalarFunction, scalar_function

__all__ = ["NoProblemError", "build_problem", "homogeneous_source"]

SPARE = 1e-6
"""Ranges are widened by this much of themselves."""


class NoProblemError(FarfieldError):
    """The network can't be written as a maximization of this kind; the message says why."""


def build_problem(
    network: Network,
    sizes: Mapping[int, Tensor] | None = None,
    limit: int = 3000,
    cone: Cone | None = None,
    keep: bool = False,
) -> Problem:
    """The maximization problem of a network's output.

    Parameters
    ----------
    network
        From :func:`farfield.certify.affine.build_network`.
    sizes
        Curve → typical |z| of each entry, from a few evaluations: units only, no claim rests on them.
    cone
        The domain in homogeneous coordinates; every input by default.
    keep
        Whether every curve is a variable, also one that enters nothing but the output.

    Raises
    ------
    NoProblemError
        If the output depends on something that is neither bounded nor described, or on more than ``limit`` variables.
    """
    return _Assembly(network, sizes or {}, limit, cone, keep).build()


def homogeneous_source(network: Network, block: Block) -> int | None:
    """The input of which a block normalizes an affine map with more entries, in one group; else ``None``."""
    form, groups = block.form, block.groups
    if block.kind != "norm" or form is None or groups is None or block.norm_eps <= 0:
        return None
    if form.degree != 1 or groups.shape[0] != 1 or len(form.matrices) != 1:
        return None
    (source,) = form.matrices
    inputs = network.blocks[source]
    return source if inputs.kind == "input" and inputs.size < groups.shape[1] else None


class _Assembly:
    def __init__(
        self,
        network: Network,
        sizes: Mapping[int, Tensor],
        limit: int,
        cone: Cone | None = None,
        keep: bool = False,
    ) -> None:
        self.network, self.sizes, self.limit, self.inputs = network, sizes, limit, cone
        self.needed = network.needed()
        feeding = {
            b
            for i in self.needed
            if network.blocks[i].kind == "curve"
            for b in _form(network.blocks[i]).matrices
        }
        self.kept = [i for i in self.needed if keep or network.blocks[i].kind != "curve" or i in feeding]
        self.columns: dict[int, slice] = {}
        self.scale: dict[int, Tensor] = {}
        self.maps: dict[int, tuple[Tensor, Tensor]] = {}
        self.balls: list[Ball] = []
        self.boxes: list[Box] = []
        self.curves: list[Curve] = []
        self.cone: list[tuple[slice, float, float]] = []
        self.centers: dict[int, tuple[Tensor, Tensor]] = {}
        self.norms: dict[int, float] = {}
        self.ranges: dict[int, tuple[Tensor, Tensor]] = {}
        self.support: dict[int, Tensor] = {}
        self.size = 0

    def build(self) -> Problem:
        for index in self.needed:
            block = self.network.blocks[index]
            if block.kind == "norm":
                self._norm(index, block)
            elif block.kind == "box":
                self._box(index, block)
            elif block.kind == "curve":
                self._curve(index, block)
            else:
                raise NoProblemError("the output depends on the input itself, without a bound on the way")
        curves = tuple(self._widened(c) for c in self.curves)
        output = self.network.output
        objective, magnitude = self._row(output, skip={c.block for c in curves if c.columns is None})
        last, last_magnitude = [], []
        for curve in curves:
            inside = curve.columns is None and curve.block in output.matrices
            last.append(output.matrices[curve.block] * curve.unit if inside else None)
            last_magnitude.append(output.magnitudes[curve.block] * curve.unit if inside else None)
        cone = torch.zeros(len(self.cone), self.size, dtype=torch.float64)
        for row, (columns, _, _) in enumerate(self.cone):
            cone[row, columns.stop - 1] = 1.0
        offsets = self._offset(output)
        return Problem(
            self.size,
            tuple(self.balls),
            tuple(self.boxes),
            curves,
            objective,
            magnitude,
            tuple(last),
            tuple(last_magnitude),
            *offsets,
            cone,
            torch.tensor([offset for _, offset, _ in self.cone], dtype=torch.float64),
            torch.tensor([scale for _, _, scale in self.cone], dtype=torch.float64),
        )

    # -- sources -----------------------------------------------------------------------------------------------

    def _place(self, index: int, size: int, scale: Tensor) -> slice:
        self.size += size
        if self.size > self.limit:
            raise NoProblemError(f"the output depends on more than {self.limit} variables")
        self.columns[index] = slice(self.size - size, self.size)
        self.scale[index] = scale
        return self.columns[index]

    def _box(self, index: int, block: Block) -> None:
        lo, hi = block.lo, block.hi
        assert lo is not None
        assert hi is not None
        if not bool((torch.isfinite(lo) & torch.isfinite(hi)).all()):
            raise NoProblemError(f"no range is known for {block.node!r}")
        scale = _power_of_two(torch.maximum(lo.abs(), hi.abs()))
        columns = self._place(index, block.size, scale)
        self.boxes.append(Box(columns, lo / scale, hi / scale, scale, index))
        self.ranges[index] = (lo / scale, hi / scale)
        self.norms[index] = float(torch.linalg.vector_norm(torch.maximum(lo.abs(), hi.abs()) / scale)) * (
            1 + 1e-12
        )

    def _norm(self, index: int, block: Block) -> None:
        if not (self._parametrized(index, block, self.inputs) or self._parametrized(index, block, None)):
            self._image(index, block)

    def _image(self, index: int, block: Block) -> None:
        groups = block.groups
        assert groups is not None
        scale = torch.full(
            (block.size,),
            float(_power_of_two(torch.tensor(block.radius, dtype=torch.float64))),
            dtype=torch.float64,
        )
        columns = self._place(index, block.size, scale)
        if groups.shape[0] > 1:  # variables of a group side by side
            order = torch.zeros(block.size, block.size, dtype=torch.float64)
            order[groups.reshape(-1), torch.arange(block.size)] = 1.0
            self.maps[index] = (order, torch.zeros_like(order))
        width = groups.shape[1]
        eye = torch.eye(width, dtype=torch.float64)
        radius = block.radius / float(scale[0])
        for group in range(groups.shape[0]):
            start = columns.start + group * width
            self.balls.append(
                Ball(slice(start, start + width), eye, torch.zeros_like(eye), radius, block.centered, index)
            )
        reach = radius * (math.sqrt(1.0 - 1.0 / width) if block.centered and width > 1 else 1.0) * (1 + 1e-14)
        self.ranges[index] = (torch.full_like(scale, -reach), torch.full_like(scale, reach))
        # Behind a map (several groups) a layer is bounded through its own value: its length is in natural units then.
        unit = float(scale[0]) if groups.shape[0] > 1 else 1.0
        self.norms[index] = radius * unit * math.sqrt(groups.shape[0]) * (1 + 1e-14)

    def _parametrized(self, index: int, block: Block, region: Cone | None) -> bool:
        source = homogeneous_source(self.network, block)
        if source is None or source in self.columns:
            return False
        form, width = _form(block), self.network.blocks[source].size
        matrix, magnitude = form.matrices[source].clone(), form.magnitudes[source].clone()
        matrix[:, -1] += form.offset
        magnitude[:, -1] += form.offset_magnitude + matrix[:, -1].abs()
        middle = torch.zeros(width - 1, dtype=torch.float64) if region is None else region.middle()
        matrix[:, -1] += matrix[:, :-1] @ middle
        if block.centered:
            mean = matrix.mean(0, keepdim=True)
            magnitude = (
                magnitude
                + magnitude.mean(0, keepdim=True)
                + (matrix.shape[0] + 4) * (matrix.abs() + matrix.abs().mean(0, keepdim=True))
            )
            matrix = matrix - mean
        scale = _power_of_two(torch.linalg.vector_norm(matrix, dim=0) / block.radius).reciprocal()
        matrix, magnitude = matrix * scale, magnitude * scale
        gram = matrix.T @ matrix / block.count
        size = (matrix.abs() + UNIT * magnitude).T
        gram_magnitude = (size @ (magnitude + (matrix.shape[0] + 4) * matrix.abs())) * (2.0 / block.count)
        gram[-1, -1] += block.norm_eps * float(scale[-1]) ** 2
        gram_magnitude[-1, -1] += gram[-1, -1]
        enclosed = None
        if region is not None:
            enclosed = enclose(gram / scale[:, None] / scale, region.shifted(middle), middle)
            if enclosed is None:
                return False
            gram = enclosed.shape * scale[:, None] * scale
            gram_magnitude = 8 * gram.abs()
        whitened = _whitening(gram, gram_magnitude)
        if whitened is None:
            return False
        root, shrink = whitened
        columns = self._place(index, width, scale)
        # The variables are those of the input: x = u / scale, and the norm's value is matrix @ x.
        self.scale[index] = torch.ones_like(scale)
        self.maps[index] = (matrix, magnitude)
        least = 0.0
        if enclosed is not None:
            center = enclosed.center / scale
            self.centers[index] = (
                matrix @ center,
                magnitude @ center.abs() + 8 * (matrix.abs() @ center.abs()),
            )
            least = float(center[-1]) - enclosed.least / float(scale[-1])
        self.cone.append((columns, least, float(scale[-1])))
        enclosure = None if enclosed is None else enclosed.enclosure
        self.balls.append(
            Ball(columns, gram, gram_magnitude, 1.0, False, index, parametrized=True, enclosure=enclosure)
        )
        self.support[index] = root / shrink
        self.norms[index] = block.radius * (1 + 1e-14)
        return True

    # -- curves ------------------------------------------------------------------------------------------------

    def _curve(self, index: int, block: Block) -> None:
        form = _form(block)
        if form.degree:
            raise NoProblemError(f"{block.node!r} is reached from the input without a norm on the way")
        matrix, magnitude = self._row(form)
        offset, offset_magnitude = self._offset(form)
        lo, hi = self._range(form, offset, offset_magnitude)
        if block.lo is not None and block.hi is not None:
            lo, hi = torch.maximum(lo, block.lo), torch.minimum(hi, block.hi)
        lo, hi = torch.minimum(lo, hi), torch.maximum(lo, hi)
        spare = SPARE * torch.maximum(
            lo.abs(), hi.abs()
        )  # room for a checker that computes ranges its own way
        lo, hi = lo - spare, hi + spare
        if not bool((torch.isfinite(lo) & torch.isfinite(hi)).all()):
            raise NoProblemError(f"no range is known for the argument of {block.node!r}")
        reach = torch.maximum(lo.abs(), hi.abs())
        typical = self.sizes.get(index)
        if typical is not None:
            reach = torch.minimum(reach, torch.maximum(typical, typical.mean() / 8 + 1e-12))
        unit = _power_of_two(reach)
        function = scalar_function(block.op, block.attributes)
        assert function is not None
        columns = self._place(index, block.size, unit) if index in self.kept else None
        self.curves.append(
            Curve(
                columns,
                matrix / unit[:, None],
                magnitude / unit[:, None],
                offset / unit,
                offset_magnitude / unit,
                lo / unit,
                hi / unit,
                unit,
                function,
                index,
            )
        )
        low, high = function.rough_image(lo, hi)
        self.ranges[index] = (low / unit, high / unit)
        size = torch.maximum(low.abs(), high.abs()) / unit
        self.norms[index] = min(
            float(torch.linalg.vector_norm(size)) * (1 + 1e-12),
            self._lipschitz(form, block, unit, function),
        )

    def _lipschitz(self, form: Form, block: Block, unit: Tensor, function: ScalarFunction) -> float:
        """‖y/unit‖ ≤ ‖σ(b)/unit‖ + L Σ ‖F/unit‖₂ ‖x‖, |σ(z) − σ(b)| ≤ L|z − b|."""
        total = 0.0
        for b in form.matrices:
            piece, _ = self._mapped(form, b)
            # Variables behind a map are bounded through the block's own value.
            direct = form.matrices[b] if b in self.maps else piece
            total += spectral_bound(direct / unit[:, None]) * self.norms[b]
        base = torch.linalg.vector_norm(function.curve(form.offset) / unit)
        return (float(base) + with_room(function.slope) * total) * (1 + 1e-9) + 1e-12

    def _range(self, form: Form, offset: Tensor, magnitude: Tensor) -> tuple[Tensor, Tensor]:
        """z's range: per source the better of the ball and the box, and all of it against Cauchy–Schwarz."""
        half = torch.zeros_like(offset)
        middle, size = offset.clone(), magnitude.clone()
        for b in form.matrices:
            piece, piece_magnitude = self._mapped(form, b)
            direct = form.matrices[b] if b in self.maps else piece
            reach = row_norms(direct) * self.norms[b]
            if b in self.support:
                around = row_norms(piece @ self.support[b]) * (1 + gamma(4 * piece.shape[1] + 8))
                reach = around if b in self.centers else torch.minimum(reach, around)
            elif b not in self.maps and b in self.ranges:
                lo, hi = self.ranges[b]
                center, radius = (lo + hi) / 2, (hi - lo) / 2 * (1 + 1e-14)
                around = (piece.abs() @ radius) * (1 + gamma(piece.shape[1] + 4))
                plain = reach < around
                middle = middle + torch.where(plain, torch.zeros_like(around), piece @ center)
                size = size + (piece.shape[1] + 4) * (piece.abs() @ center.abs())
                reach = torch.where(plain, reach, around)
            half = half + reach
            size = size + row_norms(piece_magnitude + 8 * piece.abs()) * max(1.0, self.norms[b]) * 8
        size = size + 8 * (middle.abs() + half)
        slack = UNIT * size + TINY
        return middle - half - slack, middle + half + slack

    def _widened(self, curve: Curve) -> Curve:
        pad = self.size - curve.matrix.shape[1]
        wide = [torch.nn.functional.pad(t, (0, pad)) for t in (curve.matrix, curve.magnitude)]
        return replace(curve, matrix=wide[0], magnitude=wide[1])

    # -- forms in the problem's variables ----------------------------------------------------------------------

    def _mapped(self, form: Form, block: int) -> tuple[Tensor, Tensor]:
        matrix, magnitude = form.matrices[block], form.magnitudes[block]
        if block in self.maps:
            inner, inner_magnitude = self.maps[block]
            length = inner.shape[0]
            magnitude = magnitude @ inner.abs() + matrix.abs() @ (
                inner_magnitude + (length + 4) * inner.abs()
            )
            matrix = matrix @ inner
        scale = self.scale[block]
        return matrix * scale, magnitude * scale

    def _offset(self, form: Form) -> tuple[Tensor, Tensor]:
        """What a form is where every variable is 0, and its magnitude."""
        offset, size = form.offset, form.offset_magnitude
        for b in form.matrices:
            if b in self.centers:
                matrix, rough = form.matrices[b], form.magnitudes[b]
                middle, loose = self.centers[b]
                offset = offset + matrix @ middle
                size = size + rough @ middle.abs() + matrix.abs() @ (loose + (len(middle) + 8) * middle.abs())
        return offset, size

    def _row(self, form: Form, skip: set[int] | None = None) -> tuple[Tensor, Tensor]:
        matrix = torch.zeros(form.size, self.size, dtype=torch.float64)
        magnitude = torch.zeros_like(matrix)
        for b in form.matrices:
            if skip and b in skip:
                continue
            piece, size = self._mapped(form, b)
            matrix[:, self.columns[b]] += piece
            magnitude[:, self.columns[b]] += size
        return matrix, magnitude


def _form(block: Block) -> Form:
    assert block.form is not None
    return block.form


def _power_of_two(value: Tensor) -> Tensor:
    """The power of two next above, 1 for 0."""
    safe = torch.where(value > 0, value.clamp(1e-150, 1e150), torch.ones_like(value))
    return torch.exp2(torch.ceil(torch.log2(safe.to(torch.float64))))


def _whitening(gram: Tensor, magnitude: Tensor) -> tuple[Tensor, float] | None:
    """(W, s) with ‖p‖ ≤ ‖G^{1/2} W p‖ / s for every p: the ellipsoid {uᵀGu ≤ 1} lies in W·(ball of radius 1/s).

    From a computed W ≈ G^{-1/2} by ‖I − WᵀGW‖ ≤ δ < 1, s = √(1 − δ), rounding included; ``None`` where G is too
    close to singular.
    """
    factor, info = torch.linalg.cholesky_ex(gram)
    if int(info):
        return None
    size = gram.shape[0]
    root = torch.linalg.solve_triangular(factor.T, torch.eye(size, dtype=gram.dtype), upper=True)
    product = root.T @ gram @ root
    error = gamma(3 * size + 8) * (root.abs().T @ gram.abs() @ root.abs())
    error = error + 2 * UNIT * (root.abs().T @ magnitude @ root.abs())
    delta = float(((product - torch.eye(size, dtype=gram.dtype)).abs() + error).sum(1).max()) * (1 + 1e-12)
    if not delta < 1e-3 or bool((torch.diagonal(root) == 0).any()):
        return None
    return root, math.sqrt(1.0 - delta) * (1 - 1e-15)
