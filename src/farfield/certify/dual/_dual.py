"""The quadratic dual: any multipliers give a bound, good ones a tight one.

For the problem of :mod:`farfield.certify.dual._problem`, with z = Fx + b and y = σ(z) among the variables,

    c·x ≤ Σ_curves Σ_j  max_{l ≤ z ≤ u} [ s σ(z) + T σ(z)² + E σ(z) z − Θ z² − r z ]          (separable part)
        + Σ_boxes  Σ_j  max_{lo ≤ x ≤ hi} [ s x + T x² ]
        + max_x [ lin·x − xᵀHx + const ]                                                     (joint part)

whatever the multipliers are: the first lines add exactly what the last one takes away. The joint part is finite when
H ⪰ 0. It collects T on y's diagonal, E between y and z, −FᵀΘF, κ·G of the balls (paid with κρ²), ω(Σx)² of centered
norms, and −VᵀNV for pairwise products of forms Vx + v ≥ 0 that are never negative (N ≥ 0 entrywise). Minimized over
the multipliers this is the semidefinite relaxation with every valid quadratic constraint of a single curve, and the
products of pairs. [P1]'s setting with one layer and N = 0 is the Lagrangian dual of LN → activation → Linear.

The joint maximizer x is unique, so a derivative of the dual value is the Lagrangian's derivative at x: the gradient
never needs more than products with vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from farfield.certify._rounding import with_room
from farfield.certify.dual._problem import Curve, Problem

__all__ = ["Dual", "Multipliers", "Objective", "objective", "product_forms", "separable"]

PRODUCT_LIMIT = 2200
"""More non-negative forms than this are not multiplied pairwise."""
GRID = 65
"""Points per smooth curve while searching; the proof uses many more."""
Multipliers = dict[str, Tensor]
"""``theta{i}, r{i}`` per curve i, ``t{i}, e{i}, s{i}`` where y is a variable, ``bt{j}, bs{j}`` per box,
``kappa, omega`` per ball, ``n`` for products."""


@dataclass(frozen=True)
class Objective:
    """What is bounded from above: coefficients over the variables and over the last curves."""

    linear: Tensor
    last: tuple[Tensor | None, ...]
    offset: float

    def divided(self, scale: float) -> Objective:
        """The same in other units."""
        last = tuple(None if w is None else w / scale for w in self.last)
        return Objective(self.linear / scale, last, self.offset / scale)


def objective(problem: Problem, output: int, sign: float) -> Objective:
    """sign · output."""
    return Objective(
        sign * problem.objective[output],
        tuple(None if w is None else sign * w[output] for w in problem.last),
        sign * float(problem.offset[output]),
    )


def product_forms(problem: Problem) -> list[tuple[int, float, float, Tensor]]:
    """(curve, a, b, c): groups of forms a·y + b·z + c ≥ 0 that are multiplied pairwise, in the problem's units.

    Half-planes of every curve whose y is a variable; curve −1 stands for the constant 1 and the cone of the input.
    """
    groups: list[tuple[int, float, float, Tensor]] = []
    for i, curve in enumerate(problem.curves):
        if curve.columns is not None:
            for a, b, c in curve.scalar.half_planes:
                offset = (with_room(c) + abs(a) * curve.scalar.roughness) / curve.unit
                groups.append((i, a, b, offset))
    if sum(problem.curves[i].offset.numel() for i, *_ in groups) > PRODUCT_LIMIT:
        groups = []
    return groups


class Dual:
    """The dual function of one problem, arranged for many evaluations."""

    def __init__(self, problem: Problem, goal: Objective) -> None:
        self.problem, self.goal = problem, goal
        self.groups = product_forms(problem)
        self.heads = 1 + problem.cone.shape[0]
        self.count = self.heads + sum(g[3].numel() for g in self.groups)
        self.supports = [torch.nonzero((c.matrix != 0).any(0))[:, 0] for c in problem.curves]
        self.compact = [
            c.matrix[:, s].contiguous() for c, s in zip(problem.curves, self.supports, strict=True)
        ]
        self.roots = [torch.linalg.inv(torch.linalg.cholesky(b.gram)).T.contiguous() for b in problem.balls]
        self.round = [
            b.gram.shape[0] == 0 or bool((b.gram == torch.eye(b.gram.shape[0])).all()) for b in problem.balls
        ]
        self.weights = torch.ones(problem.size, dtype=torch.float64)
        self.ray: Tensor | None = None
        self.shift = 0.0

    def weigh(self, m: Multipliers) -> None:
        """Measure shifts of H by what these multipliers put on its diagonal, block by block."""
        problem, weights = self.problem, torch.ones(self.problem.size, dtype=torch.float64)
        for j, ball in enumerate(problem.balls):
            weights[ball.columns] = m["kappa"][j].detach().clamp_min(1e-9)
        for i, curve in enumerate(problem.curves):
            if curve.columns is not None:
                weights[curve.columns] = m[f"t{i}"].detach().mean().clamp_min(1e-9)
        for j, box in enumerate(problem.boxes):
            weights[box.columns] = m[f"bt{j}"].detach().mean().clamp_min(1e-9)
        self.weights, self.ray = weights, None

    # -- affine pieces at a point -----------------------------------------------------------------------------------

    def arguments(self, x: Tensor, homogeneous: bool = False) -> list[Tensor]:
        """Every curve's z at x; without its offset for a direction."""
        return [
            m @ x[s] + (0.0 if homogeneous else c.offset)
            for m, s, c in zip(self.compact, self.supports, self.problem.curves, strict=True)
        ]

    def forms(self, x: Tensor, z: list[Tensor], homogeneous: bool = False) -> Tensor:
        """Every non-negative form at x."""
        one = torch.full((1,), 0.0 if homogeneous else 1.0, dtype=torch.float64)
        parts = [one, self.problem.cone @ x]
        for i, a, b, c in self.groups:
            columns = self.problem.curves[i].columns
            assert columns is not None
            parts.append(a * x[columns] + b * z[i] + (0.0 if homogeneous else 1.0) * c)
        return torch.cat(parts)

    # -- the joint part ---------------------------------------------------------------------------------------------

    def hessian(self, m: Multipliers) -> Tensor:
        """H, without any shift."""
        problem, size = self.problem, self.problem.size
        half = torch.zeros(size, size, dtype=torch.float64)  # H = half + halfᵀ
        for i, curve in enumerate(problem.curves):
            f, s = self.compact[i], self.supports[i]
            half[s[:, None], s] -= 0.5 * (f.T @ (m[f"theta{i}"][:, None] * f))
            if curve.columns is not None:
                rows = _indices(curve.columns)
                half[rows, rows] += 0.5 * m[f"t{i}"]
                half[rows[:, None], s] += 0.5 * m[f"e{i}"][:, None] * f
        for j, box in enumerate(problem.boxes):
            rows = _indices(box.columns)
            half[rows, rows] += 0.5 * m[f"bt{j}"]
        for j, ball in enumerate(problem.balls):
            half[ball.columns, ball.columns] += 0.5 * m["kappa"][j] * ball.gram
            if ball.centered:
                half[ball.columns, ball.columns] += 0.5 * m["omega"][j]
        n = m["n"]
        if not bool(n.any()):
            return half + half.T
        # −VᵀNV with rows of V spelled out: the cone's, and a·(unit vector) + b·(row of F).
        pulled = torch.zeros(n.shape[0], size, dtype=torch.float64)  # N V
        pulled += n[:, 1 : self.heads] @ problem.cone
        begin = self.heads
        for i, a, b, c in self.groups:
            piece = n[:, begin : begin + c.numel()]
            curve = problem.curves[i]
            assert curve.columns is not None
            pulled[:, curve.columns] += a * piece
            if b:
                pulled[:, self.supports[i]] += b * (piece @ self.compact[i])
            begin += c.numel()
        half -= 0.5 * (problem.cone.T @ pulled[1 : self.heads])
        begin = self.heads
        for i, a, b, c in self.groups:
            piece = pulled[begin : begin + c.numel()]
            curve = problem.curves[i]
            assert curve.columns is not None
            half[curve.columns] -= 0.5 * a * piece
            if b:
                half[self.supports[i]] -= 0.5 * b * (self.compact[i].T @ piece)
            begin += c.numel()
        return half + half.T

    def linear(self, m: Multipliers) -> Tensor:
        """The linear coefficients."""
        problem = self.problem
        total = self.goal.linear.clone()
        weight = m["n"] @ self._offsets()
        total += 2 * (problem.cone.T @ weight[1 : self.heads])
        pull = [m[f"r{i}"] + 2 * m[f"theta{i}"] * c.offset for i, c in enumerate(problem.curves)]
        begin = self.heads
        for i, a, b, c in self.groups:
            piece = weight[begin : begin + c.numel()]
            curve = problem.curves[i]
            assert curve.columns is not None
            total[curve.columns] += 2 * a * piece
            pull[i] = pull[i] + 2 * b * piece
            begin += c.numel()
        for i, curve in enumerate(problem.curves):
            total[self.supports[i]] += self.compact[i].T @ pull[i]
            if curve.columns is not None:
                total[curve.columns] -= m[f"s{i}"] + m[f"e{i}"] * curve.offset
        for j, box in enumerate(problem.boxes):
            total[box.columns] -= m[f"bs{j}"]
        return total

    def _offsets(self) -> Tensor:
        parts = [torch.ones(1, dtype=torch.float64), torch.zeros(self.heads - 1, dtype=torch.float64)]
        parts += [b * self.problem.curves[i].offset + c for i, _, b, c in self.groups]
        return torch.cat(parts)

    def joint(self, m: Multipliers, x: Tensor) -> Tensor:
        """The Lagrangian's joint part at a point: its value there, and differentiable in the multipliers."""
        problem = self.problem
        z = self.arguments(x)
        total = self.goal.linear @ x + self.goal.offset
        for i, curve in enumerate(problem.curves):
            total = total + m[f"theta{i}"] @ z[i].square() + m[f"r{i}"] @ z[i]
            if curve.columns is not None:
                y = x[curve.columns]
                total = total - m[f"s{i}"] @ y - m[f"t{i}"] @ y.square() - m[f"e{i}"] @ (y * z[i])
        for j, box in enumerate(problem.boxes):
            y = x[box.columns]
            total = total - m[f"bs{j}"] @ y - m[f"bt{j}"] @ y.square()
        for j, ball in enumerate(problem.balls):
            y = x[ball.columns]
            total = total + m["kappa"][j] * (ball.radius**2 - y @ ball.gram @ y)
            if ball.centered:
                total = total - m["omega"][j] * y.sum() ** 2
        g = self.forms(x, z)
        return total + g @ (m["n"] @ g)

    def curvature(self, m: Multipliers, v: Tensor) -> Tensor:
        """vᵀHv, differentiable in the multipliers."""
        problem = self.problem
        z = self.arguments(v, homogeneous=True)
        total = torch.zeros((), dtype=torch.float64)
        for i, curve in enumerate(problem.curves):
            total = total - m[f"theta{i}"] @ z[i].square()
            if curve.columns is not None:
                y = v[curve.columns]
                total = total + m[f"t{i}"] @ y.square() + m[f"e{i}"] @ (y * z[i])
        for j, box in enumerate(problem.boxes):
            total = total + m[f"bt{j}"] @ v[box.columns].square()
        for j, ball in enumerate(problem.balls):
            y = v[ball.columns]
            total = total + m["kappa"][j] * (y @ ball.gram @ y)
            if ball.centered:
                total = total + m["omega"][j] * y.sum() ** 2
        g = self.forms(v, z, homogeneous=True)
        return total - g @ (m["n"] @ g)

    def whiten(self, matrix: Tensor) -> Tensor:
        """RᵀHR in the coordinates where every ball is round."""
        out = matrix.clone()
        for ball, root, plain in zip(self.problem.balls, self.roots, self.round, strict=True):
            if not plain:
                out[ball.columns] = root.T @ out[ball.columns]
                out[:, ball.columns] = out[:, ball.columns] @ root
        root = self.weights.rsqrt()
        return root[:, None] * out * root

    def apply_root(self, vector: Tensor, transposed: bool = False) -> Tensor:
        """R v, or Rᵀ v, R with the weights in it."""
        out = vector.clone() if transposed else vector * self.weights.rsqrt()
        for ball, root, plain in zip(self.problem.balls, self.roots, self.round, strict=True):
            if not plain:
                out[ball.columns] = (root.T if transposed else root) @ out[ball.columns]
        return out * self.weights.rsqrt() if transposed else out

    def solve(self, m: Multipliers, room: float) -> tuple[Tensor, Tensor, float]:
        """(x, v, shift): the joint maximizer, the lowest direction of H, and the shift that made H positive."""
        hessian = self.whiten(self.hessian(m))
        linear = self.apply_root(self.linear(m), transposed=True)
        size = hessian.shape[0]
        eye = torch.eye(size, dtype=torch.float64)
        if not bool(torch.isfinite(hessian).all()):
            raise ArithmeticError("the dual's quadratic form is not finite")
        v, shift, factor = self._lowest(hessian, eye, room)
        x = 0.5 * torch.cholesky_solve(linear[:, None], factor)[:, 0]
        return self.apply_root(x), self.apply_root(v), shift

    def _lowest(self, hessian: Tensor, eye: Tensor, room: float) -> tuple[Tensor, float, Tensor]:
        """(lowest direction, shift, Cholesky factor of the shifted H), by inverse iteration from the last direction.

        The iteration is trusted only if the factorization with its shift succeeds; else all eigenvalues are computed.
        """
        if self.ray is not None:
            factor, info = torch.linalg.cholesky_ex(hessian + (self.shift + 0.5 * room) * eye)
            if int(info) == 0:
                v = self.ray
                for _ in range(6):
                    v = torch.cholesky_solve(v[:, None], factor)[:, 0]
                    v = v / v.norm()
                shift = max(0.0, room - float(v @ hessian @ v))
                factor, info = torch.linalg.cholesky_ex(hessian + shift * eye)
                if int(info) == 0:
                    self.ray, self.shift = v, shift
                    return v, shift, factor
        values, vectors = torch.linalg.eigh(hessian)
        self.ray, self.shift = vectors[:, 0], max(0.0, room - float(values[0]))
        return self.ray, self.shift, torch.linalg.cholesky(hessian + self.shift * eye)

    def value(self, m: Multipliers, room: Tensor) -> tuple[Tensor, Multipliers]:
        """(bound, multipliers with the shift written in); the bound is differentiable in the multipliers.

        ``room`` is how far above 0 the shift lifts the lowest eigenvalue of H.
        """
        with torch.no_grad():
            x, v, shift = self.solve(m, float(room))
        moved = shifted(self.problem, m, shift, self.weights)
        total = self.joint(moved, x) + self.separable_part(moved)
        if shift > 0:
            slack = _price(self, moved, x) * (room - self.curvature(m, v))
            total = total + (slack - slack.detach())
        return total, moved

    def separable_part(self, m: Multipliers) -> Tensor:
        """Σ of the one-dimensional maxima; approximate for smooth curves (on a grid)."""
        total = torch.zeros((), dtype=torch.float64)
        for i, curve in enumerate(self.problem.curves):
            s, t, e = curve_multipliers(self.goal, curve, i, m)
            total = total + separable(curve, s, t, e, m[f"theta{i}"], m[f"r{i}"]).sum()
        for j, box in enumerate(self.problem.boxes):
            total = total + quadratic_max(m[f"bt{j}"], m[f"bs{j}"], box.lo, box.hi).sum()
        return total


def _price(dual: Dual, m: Multipliers, x: Tensor) -> float:
    """∂(dual value)/∂(shift): what a shift adds through κ and T, less what it saves in the joint part."""
    probe = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        moved = shifted(dual.problem, {k: v.detach() for k, v in m.items()}, probe, dual.weights)
        total = dual.joint(moved, x) + dual.separable_part(moved)
        (slope,) = torch.autograd.grad(total, probe)
    return float(slope)


def curve_multipliers(
    goal: Objective, curve: Curve, index: int, m: Multipliers
) -> tuple[Tensor, Tensor, Tensor]:
    """(s, T, E) of a curve: multipliers, or the objective's own coefficients where y is no variable."""
    if curve.columns is not None:
        return m[f"s{index}"], m[f"t{index}"], m[f"e{index}"]
    zero = torch.zeros_like(curve.offset)
    last = goal.last[index]
    return (zero if last is None else last), zero, zero


def separable(curve: Curve, s: Tensor, t: Tensor, e: Tensor, theta: Tensor, r: Tensor) -> Tensor:
    """Max over [lo, hi] of sσ + Tσ² + Eσz − Θz² − rz, entrywise; approximate for smooth curves (on a grid)."""
    lo, hi, unit = curve.lo, curve.hi, curve.unit
    with torch.no_grad():
        if curve.scalar.curvature == 0.0:
            points = _piecewise_points(curve, s, t, e, theta, r)
        else:
            points = lo[:, None] + (hi - lo)[:, None] * torch.linspace(0, 1, GRID, dtype=torch.float64)
        value = curve.scalar.curve(points * unit[:, None]) / unit[:, None]
        total = (s[:, None] + t[:, None] * value + e[:, None] * points) * value
        total -= (theta[:, None] * points + r[:, None]) * points
        pick = total.argmax(1, keepdim=True)
        z, y = points.gather(1, pick)[:, 0], value.gather(1, pick)[:, 0]
    if lo.requires_grad:  # an end that wins moves with the weights; a maximizer inside does not matter
        z = torch.where(z <= lo, lo, torch.where(z >= hi, hi, z))
        y = curve.scalar.curve(z * unit) / unit
    return s * y + t * y * y + e * y * z - theta * z * z - r * z


def _piecewise_points(curve: Curve, s: Tensor, t: Tensor, e: Tensor, theta: Tensor, r: Tensor) -> Tensor:
    """Ends and vertices of every linear piece: the maximum is at one of them."""
    lo, hi, unit = curve.lo, curve.hi, curve.unit
    knots = [lo, *(torch.minimum(torch.maximum(k / unit, lo), hi) for k in curve.scalar.kinks), hi]
    points = list(knots)
    for a, b in pairwise(knots):
        at_a, at_b = curve.scalar.curve(a * unit) / unit, curve.scalar.curve(b * unit) / unit
        slope = (at_b - at_a) / torch.where(b > a, b - a, torch.ones_like(a))
        shift = at_a - slope * a
        quadratic = t * slope * slope + e * slope - theta
        line = s * slope + 2 * t * slope * shift + e * shift - r
        vertex = -line / (2 * torch.where(quadratic < 0, quadratic, -torch.ones_like(quadratic)))
        points.append(torch.minimum(torch.maximum(vertex, a), b))
    return torch.stack(points, 1)


def quadratic_max(a: Tensor, b: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Max of az² + bz over [lo, hi]."""
    ends = torch.maximum((a * lo + b) * lo, (a * hi + b) * hi)
    vertex = -b / (2 * torch.where(a < 0, a, -torch.ones_like(a)))
    vertex = torch.minimum(torch.maximum(vertex, lo), hi)
    return torch.maximum(ends, (a * vertex + b) * vertex)


def shifted(problem: Problem, m: Multipliers, shift: float | Tensor, weights: Tensor) -> Multipliers:
    """Multipliers with ``shift``·``weights`` (constant on a ball) on H's diagonal written into κ and T."""
    moved = dict(m)
    if problem.balls:
        moved["kappa"] = moved["kappa"] + shift * torch.stack(
            [weights[b.columns.start] for b in problem.balls]
        )
    for i, curve in enumerate(problem.curves):
        if curve.columns is not None:
            moved[f"t{i}"] = moved[f"t{i}"] + shift * weights[curve.columns]
    for j, box in enumerate(problem.boxes):
        moved[f"bt{j}"] = moved[f"bt{j}"] + shift * weights[box.columns]
    return moved


def _indices(columns: slice) -> Tensor:
    return torch.arange(columns.start, columns.stop)
