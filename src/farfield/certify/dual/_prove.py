"""From multipliers to a number that holds: the dual value with every rounding accounted for.

Two parts, as in :mod:`farfield.certify.dual._dual`. The joint part is at most γ exactly when the bordered matrix

    [ γ − const   −linᵀ/2 ]
    [  −lin/2        H    ]

is positive semidefinite, which a Cholesky factorization of a slightly smaller matrix proves. The separable part is a
sum of one-dimensional maxima: closed form for piecewise linear curves, a fine grid and sup|ψ″| for the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from farfield.certify._rounding import UNIT_ROUNDOFF, gamma, positive_definite, with_room
from farfield.certify.affine import UNIT
from farfield.certify.dual._dual import Multipliers, Objective, curve_multipliers, product_forms, shifted
from farfield.certify.dual._problem import Curve, Problem
from farfield.errors import PrecisionError

__all__ = ["ProvedValue", "prove"]

POINTS = 4096
"""Grid points per smooth curve."""
MOST_OMEGA = 1e6
"""Times κ, what ω is at most."""


@dataclass(frozen=True)
class ProvedValue:
    """A proved upper bound of an objective: bound ≥ joint + Σ separable maxima."""

    bound: float
    joint: float
    multipliers: Multipliers


def prove(
    problem: Problem, goal: Objective, multipliers: Multipliers, output: int | None = None
) -> ProvedValue:
    """An upper bound of the objective over the whole problem, rounded upwards.

    Parameters
    ----------
    problem, goal
        What is bounded.
    multipliers
        Any; negative ones where a sign is required are taken as 0.
    output
        The output the objective is made of: its coefficients carry rounding of their own.

    Raises
    ------
    PrecisionError
        If H is too close to singular for float64.
    """
    m = _admissible(problem, multipliers)
    weights = _diagonal(problem, m)
    for lift in (0.0, 1e-9, 1e-7, 1e-5, 1e-3):
        tried = shifted(problem, m, lift, weights)
        joint = _joint(problem, goal, tried, output)
        if joint is not None:
            total = joint + _separable(problem, goal, tried, output)
            return ProvedValue(total + 8 * UNIT_ROUNDOFF * abs(total), joint, tried)
    raise PrecisionError(
        "The dual's quadratic form could not be proved positive in float64: the search was too short."
    )


def _admissible(problem: Problem, multipliers: Multipliers) -> Multipliers:
    m = {k: v.detach().clone() for k, v in multipliers.items() if k != "room"}
    products = m["n"].clamp_min(0.0).to(torch.float32).to(torch.float64)  # half the bytes in a certificate
    m["n"] = torch.triu(products) + torch.triu(products, 1).T
    m["kappa"] = m["kappa"].clamp_min(0.0)
    # A long search lets ω grow without end for a gain of κ/ω, until its rounding hides H's lowest eigenvalue.
    m["omega"] = torch.minimum(m["omega"].clamp_min(0.0), MOST_OMEGA * m["kappa"])
    return m


def _diagonal(problem: Problem, m: Multipliers) -> Tensor:
    weights = torch.full((problem.size,), 1e-9, dtype=torch.float64)
    for j, ball in enumerate(problem.balls):
        weights[ball.columns] += m["kappa"][j]
    for i, curve in enumerate(problem.curves):
        if curve.columns is not None:
            weights[curve.columns] += m[f"t{i}"].abs().mean()
    for j, box in enumerate(problem.boxes):
        weights[box.columns] += m[f"bt{j}"].abs().mean()
    return weights


@dataclass
class _Sum:
    """A sum with its magnitude and the error its data bring along, in units of UNIT."""

    value: Tensor
    size: Tensor
    error: Tensor

    def add(self, value: Tensor, size: Tensor, error: Tensor) -> None:
        self.value = self.value + value
        self.size = self.size + size
        self.error = self.error + error

    def put(self, rows: slice, value: Tensor, size: Tensor, error: Tensor) -> None:
        """Add what stands in some rows, one half of it there and the other in the columns."""
        for whole, part in ((self.value, value), (self.size, size), (self.error, error)):
            whole[rows] += 0.5 * part
            whole[:, rows] += 0.5 * part.T


def _joint(problem: Problem, goal: Objective, m: Multipliers, output: int | None) -> float | None:
    """γ, proved; ``None`` where H is not positive by a margin that float64 can show."""
    matrix, error = _bordered(problem, goal, m, output)
    hessian, line, constant = matrix[1:, 1:], -2 * matrix[0, 1:], -float(matrix[0, 0])
    factor, info = torch.linalg.cholesky_ex(hessian)
    if int(info):
        return None
    peak = constant + 0.25 * float(line @ torch.cholesky_solve(line[:, None], factor)[:, 0])
    diagonal = torch.diagonal(hessian)
    for digits in range(10, 1, -1):
        top = peak + max(abs(peak), float(diagonal.abs().max()) * 1e-6, 1e-30) * 10.0**-digits
        bordered = matrix.clone()
        bordered[0, 0] = top - constant
        rounded = error.clone()
        rounded[0, 0] += 2 * UNIT_ROUNDOFF * (abs(top) + abs(constant))
        entries = torch.cat([bordered[:1, 0].clamp_min(1e-300), diagonal.clamp_min(1e-300)])
        scale = torch.exp2(-torch.round(0.5 * torch.log2(entries)))
        if positive_definite(scale[:, None] * bordered * scale, scale[:, None] * rounded * scale):
            return top
    return None


def _bordered(problem: Problem, goal: Objective, m: Multipliers, output: int | None) -> tuple[Tensor, Tensor]:
    """The bordered matrix for γ = 0, and an entrywise bound on its error."""
    size = problem.size
    blank = torch.zeros(size + 1, size + 1, dtype=torch.float64)
    total = _Sum(blank, blank.clone(), blank.clone())

    def quadratic(rows: Tensor, rough: Tensor, weight: Tensor) -> None:
        """− Σ weight_jk row_j(x) row_k(x), rows over (1, x) with data error ``rough``."""
        sizes = rows.abs() + UNIT * rough
        times = torch.mul if weight.ndim == 1 else torch.matmul
        weight = weight[:, None] if weight.ndim == 1 else weight
        pulled, pulled_size = times(weight, rows), times(weight.abs(), sizes)
        total.add(-(rows.T @ pulled), sizes.T @ pulled_size, 2 * (rough.T @ pulled_size))

    def beside(columns: slice, weight: Tensor, rows: Tensor, rough: Tensor) -> None:
        """+ Σ weight_j x_j row_j(x), symmetrized, x_j the variables of these columns."""
        weight, sizes = weight[:, None], rows.abs() + UNIT * rough
        at = slice(columns.start + 1, columns.stop + 1)
        total.put(at, weight * rows, weight.abs() * sizes, weight.abs() * rough)

    def linear(weight: Tensor, rows: Tensor, rough: Tensor) -> None:
        """+ Σ weight_j row_j(x)."""
        weight, sizes = weight[None], rows.abs() + UNIT * rough
        total.put(slice(0, 1), weight @ rows, weight.abs() @ sizes, weight.abs() @ rough)

    row, rough = torch.zeros(1, size + 1, dtype=torch.float64), torch.zeros(1, size + 1, dtype=torch.float64)
    row[0, 0], row[0, 1:] = goal.offset, goal.linear
    if output is not None:
        rough[0, 0] = problem.offset_magnitude[output]
        rough[0, 1:] = problem.objective_magnitude[output]
    linear(-torch.ones(1, dtype=torch.float64), row, rough)
    arguments: list[tuple[Tensor, Tensor]] = []
    for i, curve in enumerate(problem.curves):
        z = torch.cat([curve.offset[:, None], curve.matrix], 1)
        z_rough = torch.cat([curve.offset_magnitude[:, None], curve.magnitude], 1)
        arguments.append((z, z_rough))
        quadratic(z, z_rough, m[f"theta{i}"])
        linear(-m[f"r{i}"], z, z_rough)
        if curve.columns is not None:
            y = _units(curve.columns, size)
            beside(curve.columns, m[f"t{i}"], y, torch.zeros_like(y))
            beside(curve.columns, m[f"e{i}"], z, z_rough)
            linear(m[f"s{i}"], y, torch.zeros_like(y))
    for j, box in enumerate(problem.boxes):
        y = _units(box.columns, size)
        beside(box.columns, m[f"bt{j}"], y, torch.zeros_like(y))
        linear(m[f"bs{j}"], y, torch.zeros_like(y))
    for j, ball in enumerate(problem.balls):
        kappa = m["kappa"][j]
        value, rough = torch.zeros_like(blank), torch.zeros_like(blank)
        inner = slice(ball.columns.start + 1, ball.columns.stop + 1)
        value[inner, inner], rough[inner, inner] = kappa * ball.gram, kappa * ball.gram_magnitude
        if ball.centered:
            value[inner, inner] += m["omega"][j]
        value[0, 0] = -kappa * ball.radius**2
        total.add(value, value.abs(), rough)
    if bool(m["n"].any()):
        quadratic(*_forms(problem, arguments), m["n"])
    terms = (
        2 * max([size + 1, m["n"].shape[0], *(c.offset.numel() for c in problem.curves)])
        + 64
        + 8 * len(problem.curves)
    )
    return total.value, (gamma(terms) * total.size + UNIT * total.error) * (1 + 1e-9)


def _units(columns: slice, size: int) -> Tensor:
    rows = torch.zeros(columns.stop - columns.start, size + 1, dtype=torch.float64)
    rows[torch.arange(rows.shape[0]), torch.arange(columns.start + 1, columns.stop + 1)] = 1.0
    return rows


def _forms(problem: Problem, arguments: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Every form that is never negative, as a row over (1, x), in the order of the dual's products."""
    size = problem.size
    one = torch.zeros(1, size + 1, dtype=torch.float64)
    one[0, 0] = 1.0
    cone = torch.cat([problem.cone_offset[:, None], problem.cone], 1)
    rows, rough = [one, cone], [torch.zeros_like(one), 4 * cone.abs()]
    for i, a, b, c in product_forms(problem):
        columns = problem.curves[i].columns
        assert columns is not None
        z, z_rough = arguments[i]
        row = b * z + a * _units(columns, size)
        row[:, 0] += c
        rows.append(row)
        rough.append(abs(b) * (z_rough + 2 * z.abs()) + 2 * row.abs())
    return torch.cat(rows), torch.cat(rough)


# -- one-dimensional maxima ---------------------------------------------------------------------------------------


def _separable(problem: Problem, goal: Objective, m: Multipliers, output: int | None) -> float:
    """Σ of the maxima, rounded upwards."""
    parts: list[Tensor] = []
    for i, curve in enumerate(problem.curves):
        s, t, e = curve_multipliers(goal, curve, i, m)
        rough = problem.last_magnitude[i]
        own = UNIT * rough[output] if rough is not None and output is not None else torch.zeros_like(s)
        parts.append(_curve_maxima(curve, s, own, t, e, m[f"theta{i}"], m[f"r{i}"]))
    for j, box in enumerate(problem.boxes):
        a, b = m[f"bt{j}"], m[f"bs{j}"]
        size = a.abs() * torch.maximum(box.lo.abs(), box.hi.abs()).square()
        size = size + b.abs() * torch.maximum(box.lo.abs(), box.hi.abs())
        parts.append(_parabola(a, b, box.lo, box.hi) + 64 * UNIT_ROUNDOFF * size)
    if not parts:
        return 0.0
    everything = torch.cat(parts)
    slack = gamma(everything.numel() + 8) * float(everything.abs().sum())
    return math.fsum(everything.tolist()) + 2 * slack


def _curve_maxima(
    curve: Curve, s: Tensor, rough: Tensor, t: Tensor, e: Tensor, theta: Tensor, r: Tensor
) -> Tensor:
    """Max over [lo, hi] of sσ + Tσ² + Eσz − Θz² − rz, never below the truth; |s_true − s| ≤ rough."""
    lo, hi, unit, scalar = curve.lo, curve.hi, curve.unit, curve.scalar
    z_top = torch.maximum(lo.abs(), hi.abs())
    low, high = scalar.rough_image(lo * unit, hi * unit)
    y_top = torch.maximum(low.abs(), high.abs()) / unit
    size = (
        (s.abs() + rough) * y_top
        + t.abs() * y_top**2
        + e.abs() * y_top * z_top
        + theta.abs() * z_top**2
        + r.abs() * z_top
    )
    slack = 256 * UNIT_ROUNDOFF * size + rough * y_top
    slack = slack + (s.abs() + 2 * t.abs() * y_top + e.abs() * z_top) * (scalar.roughness / unit) * 1.01
    if scalar.pieces:
        return _linear_pieces(curve, s, t, e, theta, r) + slack
    knots = [lo, *(torch.minimum(torch.maximum(k / unit, lo), hi) for k in scalar.kinks), hi]
    per_piece = POINTS // (len(knots) - 1)
    steps = torch.linspace(0, 1, per_piece, dtype=torch.float64)
    bend = (s.abs() + rough + 2 * t.abs() * y_top + e.abs() * z_top) * (with_room(scalar.curvature) * unit)
    steep = with_room(scalar.slope)
    bend = bend + 2 * t.abs() * steep**2 + 2 * e.abs() * steep + 2 * theta.abs()
    best = torch.full_like(lo, -math.inf)
    for a, b in pairwise(knots):
        grid = a[:, None] + (b - a)[:, None] * steps
        value = scalar.curve(grid * unit[:, None]) / unit[:, None]
        total = (s[:, None] + t[:, None] * value + e[:, None] * grid) * value
        total -= (theta[:, None] * grid + r[:, None]) * grid
        gap = (b - a) / (per_piece - 1) * (1 + 1e-9)
        best = torch.maximum(best, total.amax(1) + bend * gap.square() / 8)
    return best + slack


def _linear_pieces(curve: Curve, s: Tensor, t: Tensor, e: Tensor, theta: Tensor, r: Tensor) -> Tensor:
    lo, hi, unit, scalar = curve.lo, curve.hi, curve.unit, curve.scalar
    knots = [lo, *(torch.minimum(torch.maximum(k / unit, lo), hi) for k in scalar.kinks), hi]
    best = torch.full_like(lo, -math.inf)
    for (slope, intercept), (a, b) in zip(scalar.pieces, pairwise(knots), strict=True):
        shift = intercept / unit
        square = t * slope * slope + e * slope - theta
        line = s * slope + 2 * t * slope * shift + e * shift - r
        constant = s * shift + t * shift * shift
        reached = _parabola(square, line, a, b) + constant
        # A piece outside the range has been squeezed to a point of it, where another piece holds.
        inside = (b > a) | (lo == hi)
        best = torch.maximum(best, torch.where(inside, reached, torch.full_like(best, -math.inf)))
    return torch.where(torch.isinf(best), torch.zeros_like(best), best)


def _parabola(a: Tensor, b: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Max of az² + bz over [lo, hi]."""
    ends = torch.maximum((a * lo + b) * lo, (a * hi + b) * hi)
    vertex = -b / (2 * torch.where(a < 0, a, -torch.ones_like(a)))
    vertex = torch.minimum(torch.maximum(vertex, lo), hi)
    return torch.maximum(ends, (a * vertex + b) * vertex)
