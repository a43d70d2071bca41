"""A network over cells: which part of the input a cell is, and what the output can be there.

A cell is a box in coordinates p, and the input is u = M·p + shift. For a homogeneous input M is upper triangular with
a positive diagonal, hence invertible, so p ↦ Mp carries rays to rays one to one, and as every value of degree 0 is
constant along rays, the surface max|p_i| = 1 meets every input: any such M is sound, and a good one only makes cells
rounder. The last row of M has one entry, so t > 0 says p_last > 0, exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farfield._typing import Float, Int
from farfield.certify._cone import Cone
from farfield.certify.affine import Block, Network, select_rows
from farfield.certify.cells._clouds import (
    ROUND,
    TINY,
    Blame,
    Clouds,
    Map,
    apply_curve,
    apply_map,
    apply_perspective,
)
from farfield.certify.cells._maps import center_rows, make_map
from farfield.certify.cells._norm import apply_norm
from farfield.certify.cells._reach import Reach, length
from farfield.errors import FarfieldError
from farfield.gaussian import ScalarFunction, scalar_function

__all__ = ["CellNetwork", "CellsUnsupportedError", "compile_cells"]

WIDEST = 4000
"""Rounding in sums of more terms than this is not accounted for."""


class CellsUnsupportedError(FarfieldError):
    """The network's output is not a function of one input through curves and norms, or it is too wide."""


@dataclass(frozen=True)
class _Step:
    """One block to compute from earlier ones."""

    index: int
    block: Block
    affine: Map
    weight: Tensor
    scalar: ScalarFunction | None = None
    order: Tensor | None = None
    place: Tensor | None = None


@dataclass(frozen=True)
class CellNetwork:
    """A network ready to be bounded over cells.

    Parameters
    ----------
    source, homogeneous
        The input block, and whether it has t as its last variable.
    matrix, shift
        u = matrix @ p + shift, (variables, variables) and (variables,).
    steps, output
        Blocks in order, and sign·(the chosen output).
    cone
        The inputs that count, if not all.
    ball
        Where the inputs that count are an ellipsoid in a box: the radius of a ball around 0 that holds their p.
    """

    source: int
    homogeneous: bool
    matrix: Tensor
    shift: Tensor
    steps: tuple[_Step, ...]
    output: Map
    cone: Cone | None = None
    ball: float | None = None

    @property
    def axes(self) -> int:
        """Axes of a cell: n."""
        return self.matrix.shape[0] - int(self.homogeneous)

    @property
    def faces(self) -> int:
        """2(n + 1) faces of the cube of homogeneous coordinates, or the one box."""
        return 2 * self.matrix.shape[0] if self.homogeneous else 1

    def points(self, face: Int[Tensor, " C"], center: Float[Tensor, "C k"]) -> Float[Tensor, "C variables"]:
        """Coordinates p of points given by face and place on it: face 2i is p_i = −1, face 2i + 1 is p_i = 1."""
        if not self.homogeneous:
            return center
        p = center.new_empty(center.shape[0], self.matrix.shape[0])
        fixed = face // 2
        free = self._free()[fixed]
        p.scatter_(1, free, center)
        p.scatter_(1, fixed[:, None], (2.0 * (face % 2) - 1.0).to(p.dtype)[:, None])
        return p

    def _free(self) -> Tensor:
        size = self.matrix.shape[0]
        return torch.tensor([[j for j in range(size) if j != i] for i in range(size)])

    def start(
        self, face: Int[Tensor, " C"], center: Float[Tensor, "C k"], half: Float[Tensor, "C k"]
    ) -> Clouds:
        """The input over cells."""
        p = self.points(face, center)
        values = center.new_empty(1 + self.axes, center.shape[0], self.matrix.shape[0])
        values[0] = p @ self.matrix.T + self.shift
        columns = self.matrix.T[self._free()[face // 2]] if self.homogeneous else self.matrix.T[None]
        values[1:] = (columns * half[:, :, None]).transpose(0, 1)
        terms = self.matrix.shape[0] + 4
        radius = (p.abs() @ self.matrix.abs().T + self.shift.abs()) * (terms * 2 * ROUND)
        if self.homogeneous:
            # t is one product, and p a dyadic number: exact but for one rounding, which keeps its sign.
            radius[:, -1] = values[0, :, -1].abs() * ROUND
        return Clouds(values, radius)

    def bound(
        self, face: Int[Tensor, " C"], center: Float[Tensor, "C k"], half: Float[Tensor, "C k"]
    ) -> tuple[Float[Tensor, " C"], Float[Tensor, "C k"], Float[Tensor, "C k"]]:
        """Upper bounds of sign·f over cells, the axes' shares of the remainder, and the slopes of the output.

        Sound in real arithmetic for every input of the cell with t > 0; +∞ where nothing is known.
        """
        start = self.start(face, center, half)
        reach, beside = None, None
        if self.ball is not None:
            reach, beside = self._reach(center, half, self.ball)
        clouds = {self.source: start}
        time = Clouds(start.values[..., -1:], start.radius[..., -1:]) if self.homogeneous else None
        shares = torch.zeros_like(center)
        for step in self.steps:
            argument = apply_map(step.affine, [clouds[i] for i in step.affine.sources])
            clouds[step.index], blame = _apply(step, argument, time, reach)
            shares += blame.shares(step.weight)
        out = apply_map(self.output, [clouds[i] for i in self.output.sources])
        upper = out.range(reach)[1][:, 0]
        if reach is not None:
            upper = torch.minimum(upper, self._over_ball(out, center, half))
        upper = torch.where(torch.isnan(upper), math.inf, upper)
        if self.cone is not None and self.homogeneous:
            outside = self.cone.outside(start.values[0], start.values[1:], start.radius)
            upper = torch.where(outside, -math.inf, upper)
        if beside is not None:
            upper = torch.where(beside, -math.inf, upper)
        return upper, shares, out.values[1:, :, 0].T

    def _reach(self, center: Tensor, half: Tensor, ball: float) -> tuple[Reach, Tensor]:
        """(how far a ball around p = 0 reaches in cells, which of them are outside of it); p are dyadic numbers."""
        whole = (half == 1.0) & (center == 0.0)
        least = (center.abs() - half).clamp_min(0.0)
        rest = ball * ball * (1 + ROUND * 8) - least.square().sum(1) * (1 - ROUND * (8 + self.axes))
        return Reach(whole, rest.clamp_min(0.0).sqrt() * (1 + ROUND * 8)), rest < 0

    def _over_ball(self, out: Clouds, center: Tensor, half: Tensor) -> Tensor:
        """The largest a + Bδ + ρ over the whole ball, g·(p − center) with g = B/half: r‖g‖ − g·center."""
        assert self.ball is not None
        slopes = out.values[1:, :, 0] / half.T
        turned, far = (slopes * center.T).sum(0), self.ball * length(slopes)
        top = out.values[0, :, 0] + out.radius[:, 0] - turned + far
        lost = out.values[0, :, 0].abs() + out.radius[:, 0] + (slopes * center.T).abs().sum(0) + far
        return top + lost * (ROUND * (16 + 2 * self.axes)) + TINY

    def evaluate(self, u: Float[Tensor, "C variables"]) -> Float[Tensor, " C"]:
        """sign·f at inputs, in float64 without a claim; NaN where a norm has nothing to divide."""
        values = {self.source: u}
        t = u[:, -1:] if self.homogeneous else None
        for step in self.steps:
            z = _value(step.affine, values)
            block = step.block
            lift = t if block.form is not None and block.form.degree else None
            if block.kind == "norm":
                assert block.groups is not None
                c = z.reshape(len(z), block.groups.shape[0], -1)
                eps = block.norm_eps * (1.0 if lift is None else lift.square()[:, :, None])
                y = (c / (c.square().sum(-1, keepdim=True) / block.count + eps).sqrt()).reshape(len(z), -1)
                values[step.index] = y[:, step.place] if step.place is not None else y
            else:
                assert step.scalar is not None
                values[step.index] = _lifted(step.scalar, z, lift)
        return _value(self.output, values)[:, 0]


def _value(affine: Map, values: dict[int, Tensor]) -> Tensor:
    total = affine.offset
    for source, weight in zip(affine.sources, affine.weights, strict=True):
        total = total + values[source] @ weight
    return total


def _lifted(f: ScalarFunction, z: Tensor, t: Tensor | None) -> Tensor:
    """σ(z), or t·σ(z/t) with its limit at t = 0."""
    if t is None or f.homogeneous:
        return f.function(z)
    inside = t > 1e-150
    near = t * f.function(z / torch.where(inside, t, 1.0))
    return torch.where(inside, near, torch.where(z > 0, f.right.slope * z, f.left.slope * z))


def _apply(step: _Step, argument: Clouds, time: Clouds | None, reach: Reach | None) -> tuple[Clouds, Blame]:
    block = step.block
    assert block.form is not None
    lift = time if block.form.degree else None
    if block.kind == "norm":
        assert block.groups is not None
        made, blame = apply_norm(
            argument, block.groups.shape[0], block.count, block.norm_eps, _limit(block), lift, reach
        )
        if step.place is not None:
            made = Clouds(made.values[..., step.place], made.radius[..., step.place])
        return made, blame
    assert step.scalar is not None
    if lift is not None:
        return apply_perspective(step.scalar, argument, lift)
    return apply_curve(step.scalar, argument, block.lo, block.hi, reach)


def _limit(block: Block) -> float:
    """Largest |y_i| of a norm, rounded up."""
    assert block.groups is not None
    size = block.groups.shape[1]
    return block.radius * (math.sqrt(1.0 - 1.0 / size) if block.centered else 1.0) * (1 + 1e-12) + 1e-12


def compile_cells(network: Network, output_index: int, sign: int, cone: Cone | None = None) -> CellNetwork:
    """The network in the form in which cells are bounded.

    Parameters
    ----------
    network
        One whose output is compact.
    output_index
        Entry of the flattened output.
    sign
        1 for a bound from above, −1 for one from below.
    cone
        The inputs that count, where not all do: of a homogeneous network, or an ellipsoid in a network's box.

    Raises
    ------
    CellsUnsupportedError
        Where the output is not a function of one input through curves and norms, or sums are too long.
    """
    if sign not in (1, -1):
        raise ValueError(f"sign is 1 for an upper bound and -1 for a lower one, got {sign}.")
    if not network.compact():
        raise CellsUnsupportedError(
            "Cells bound an output that depends on the input through curves and norms alone; this one passes through "
            "a block known only by its range, or is unbounded."
        )
    reached = network.reached()
    sources = [i for i in reached if network.blocks[i].form is None]
    if len(sources) != 1:
        raise CellsUnsupportedError(
            f"Cells divide the domain of one input; the output depends on {len(sources)} of them."
        )
    source = sources[0]
    homogeneous = network.blocks[source].kind == "input"
    if max(network.blocks[i].size for i in reached) > WIDEST:
        raise CellsUnsupportedError(f"Cells account for rounding in sums of up to {WIDEST} terms.")
    time = (source, network.blocks[source].size) if homogeneous else None
    steps = [_step(network, index, time) for index in reached if index != source]
    chosen = select_rows(network.output, torch.tensor([output_index]))
    output = make_map(chosen, None, sign=float(sign))
    steps = _weighted(steps, output)
    if homogeneous:
        matrix = _precondition(network, source, reached)
        shift = torch.zeros(matrix.shape[0], dtype=torch.float64)
    else:
        matrix, shift = _box(network.blocks[source])
    ball = None if homogeneous or cone is None else _ball(cone, matrix, shift)
    return CellNetwork(
        source, homogeneous, matrix, shift, tuple(steps), output, cone if homogeneous else None, ball
    )


def _step(network: Network, index: int, time: tuple[int, int] | None) -> _Step:
    block = network.blocks[index]
    form = block.form
    assert form is not None
    order = place = scalar = None
    if block.kind == "norm":
        assert block.groups is not None
        order = block.groups.reshape(-1)
        form = select_rows(form, order)
        if block.centered:
            form = center_rows(form, block.groups.shape[0])
        if not torch.equal(order, torch.arange(len(order))):
            place = torch.argsort(order)
    else:
        scalar = scalar_function(block.op, block.attributes)
    return _Step(index, block, make_map(form, time), torch.ones(block.size), scalar, order, place)


def _weighted(steps: list[_Step], output: Map) -> list[_Step]:
    """How much an error of each entry may matter to the output: |A| carried backwards, gains taken as 1."""
    weights: dict[int, Tensor] = {}

    def carry(affine: Map, weight: Tensor) -> None:
        for i, size in zip(affine.sources, affine.sizes, strict=True):
            given = size @ weight
            weights[i] = weights[i] + given if i in weights else given

    carry(output, torch.ones(1, dtype=torch.float64))
    made: list[_Step] = []
    for step in reversed(steps):
        weight = weights[step.index]
        if step.order is not None:
            weight = weight[step.order]
        carry(step.affine, weight)
        fields: dict[str, Any] = {name: getattr(step, name) for name in step.__dataclass_fields__}
        made.append(_Step(**{**fields, "weight": weight}))
    return made[::-1]


def _box(block: Block) -> tuple[Tensor, Tensor]:
    """(matrix, shift) whose image of the cube contains the box."""
    assert block.lo is not None
    assert block.hi is not None
    lo, hi = block.lo.to(torch.float64), block.hi.to(torch.float64)
    if not bool((torch.isfinite(lo) & torch.isfinite(hi)).all()):
        raise CellsUnsupportedError("Cells divide a box with finite ends.")
    middle = 0.5 * (lo + hi)
    radius = torch.maximum(hi - middle, middle - lo) * (1 + 4 * ROUND)
    return torch.diag(radius + (lo.abs() + hi.abs()) * ROUND), middle


def _ball(cone: Cone, matrix: Tensor, shift: Tensor) -> float | None:
    """The radius of a ball around 0 that holds p = (x − shift)/m for every x of an ellipsoid Σ q (x − c)² ≤ 1.

    ‖√q·m·p‖ ≤ 1 + ‖√q·(shift − c)‖. ``None`` for other regions, and where the ellipsoid is of other inputs.
    """
    if cone.kind != "ellipsoid" or cone.first.shape != shift.shape:
        return None
    roots = cone.first.sqrt()
    least = float((roots * torch.diagonal(matrix)).min())
    made = (
        (1.0 + float((roots * (shift - cone.second)).norm())) / least * (1 + 1e-12) if least > 0 else math.inf
    )
    return made if math.isfinite(made) else None


def _precondition(network: Network, source: int, reached: tuple[int, ...]) -> Tensor:
    """R⁻¹ of what the input first meets, [W b] = QR: upper triangular, its diagonal positive.

    For a norm, √(ε·count)·t is one more row, so that its denominator is |p|/√count: constant but for the cube's
    corners. Where R is nearly singular, powers of two on the diagonal.
    """
    size = network.blocks[source].size
    rows = []
    for index in reached:
        block = network.blocks[index]
        if block.form is None or source not in block.form.matrices:
            continue
        affine = _step(network, index, (source, size)).affine
        part = affine.weights[affine.sources.index(source)].T
        if block.kind == "norm":
            extra = torch.zeros(1, size, dtype=torch.float64)
            extra[0, -1] = math.sqrt(block.norm_eps * block.count)
            part = torch.cat([part, extra])
        rows.append(part / part.norm().clamp_min(1e-30))
    stacked = torch.cat([*rows, torch.zeros(size, size, dtype=torch.float64)])
    lengths = stacked.norm(dim=0)
    lengths = torch.where(lengths > 0, lengths, lengths.amax().clamp_min(1e-30))
    r = torch.linalg.qr(stacked / lengths).R
    r = r * torch.where(torch.diagonal(r) < 0, -1.0, 1.0)[:, None]
    if bool((torch.diagonal(r) > 1e-7).all()):
        inverse = torch.linalg.solve_triangular(r, torch.eye(size, dtype=torch.float64), upper=True)
        made = torch.triu(inverse / lengths[:, None])
        if bool(torch.isfinite(made).all() & (torch.diagonal(made) > 0).all()):
            return made
    return torch.diag(torch.exp2(-torch.log2(lengths).round()))
