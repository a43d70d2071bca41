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

The joint maximizer x is unique, so a derivative of the dual value is the Lagrangian's derivative at x: slopes are
differences of products at x and at the maximizers of the separable part, and need no more than vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from farfield.certify._rounding import with_room
from farfield.certify.dual._problem import Curve, Problem

__all__ = [
    "Dual",
    "Multipliers",
    "Objective",
    "objective",
    "product_forms",
    "rounding_root",
    "separable",
    "span",
]

PRODUCT_LIMIT = 2200
"""More non-negative forms than this are not multiplied pairwise."""
GRID = 65
"""Points per smooth curve while searching; the proof uses many more."""
TRIES = 6
"""Shifts of H that are tried before all its eigenvalues are computed."""
INVERSE_STEPS = 4
"""Of inverse iteration, from the direction of the step before."""
Multipliers = dict[str, Tensor]
"""``theta{i}, r{i}`` per curve i, ``t{i}, e{i}, s{i}`` where y is a variable, ``bt{j}, bs{j}`` per box,
``kappa, omega`` per ball, ``n`` for products."""


@dataclass(frozen=True)
class Objective:
    """What is bounded from above: coefficients over the variables and over the last curves."""

    linear: Tensor
    last: tuple[Tensor | None, ...]
    offset: float

    def to(self, dtype: torch.dtype) -> Objective:
        """The same in another type."""
        last = tuple(None if w is None else w.to(dtype) for w in self.last)
        return Objective(self.linear.to(dtype), last, self.offset)

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
    """The dual function of one problem, arranged for many evaluations, in the type of its objective."""

    def __init__(self, problem: Problem, goal: Objective) -> None:
        self.problem, self.goal = problem, goal
        self.dtype = goal.linear.dtype
        self.groups = product_forms(problem)
        self.heads = 1 + problem.cone.shape[0]
        self.count = self.heads + sum(g[3].numel() for g in self.groups)
        self.spans = [span(c.matrix) for c in problem.curves]
        self.compact = [c.matrix[:, s].contiguous() for c, s in zip(problem.curves, self.spans, strict=True)]
        self.roots = [rounding_root(b.gram) for b in problem.balls]
        self.round = [
            b.gram.shape[0] == 0 or bool((b.gram == torch.eye(b.gram.shape[0])).all()) for b in problem.balls
        ]
        self.start, self.start_arguments = problem.reference()
        self.weights = torch.ones(problem.size, dtype=self.dtype)
        self.ray: Tensor | None = None
        self.shift = 0.0

    def weigh(self, m: Multipliers) -> None:
        """Measure shifts of H by what these multipliers put on its diagonal."""
        problem, weights = self.problem, torch.ones(self.problem.size, dtype=self.dtype)
        for j, ball in enumerate(problem.balls):
            weights[ball.columns] = m["kappa"][j].detach().clamp_min(1e-9)
        for i, curve in enumerate(problem.curves):
            if curve.columns is not None:
                weights[curve.columns] = m[f"t{i}"].detach().clamp_min(1e-9)
        for j, box in enumerate(problem.boxes):
            weights[box.columns] = m[f"bt{j}"].detach().clamp_min(1e-9)
        self.weights = weights

    # -- affine pieces at a point -----------------------------------------------------------------------------------

    def arguments(self, x: Tensor, homogeneous: bool = False) -> list[Tensor]:
        """Every curve's z at x; without its offset for a direction."""
        return [
            m @ x[s] + (0.0 if homogeneous else c.offset)
            for m, s, c in zip(self.compact, self.spans, self.problem.curves, strict=True)
        ]

    def forms(self, x: Tensor, z: list[Tensor], homogeneous: bool = False) -> Tensor:
        """Every non-negative form at x."""
        one = torch.full((1,), 0.0 if homogeneous else 1.0, dtype=self.dtype)
        cone = self.problem.cone @ x
        parts = [one, cone if homogeneous else cone + self.problem.cone_offset]
        for i, a, b, c in self.groups:
            columns = self.problem.curves[i].columns
            assert columns is not None
            parts.append(a * x[columns] + b * z[i] + (0.0 if homogeneous else 1.0) * c)
        return torch.cat(parts)

    # -- the joint part ---------------------------------------------------------------------------------------------

    def hessian(self, m: Multipliers) -> Tensor:
        """H, without any shift; multipliers without ``n`` have no products."""
        problem, size = self.problem, self.problem.size
        total = torch.zeros(size, size, dtype=self.dtype)
        for i, curve in enumerate(problem.curves):
            f, at = self.compact[i], self.spans[i]
            total[at, at] -= f.T @ (m[f"theta{i}"][:, None] * f)
            if curve.columns is not None:
                rows = _indices(curve.columns)
                total[rows, rows] += m[f"t{i}"]
                mixed = 0.5 * m[f"e{i}"][:, None] * f
                total[curve.columns, at] += mixed
                total[at, curve.columns] += mixed.T
        for j, box in enumerate(problem.boxes):
            rows = _indices(box.columns)
            total[rows, rows] += m[f"bt{j}"]
        for j, ball in enumerate(problem.balls):
            total[ball.columns, ball.columns] += m["kappa"][j] * ball.gram
            if ball.centered:
                total[ball.columns, ball.columns] += m["omega"][j]
        return self._less_products(total, m["n"]) if "n" in m else total

    def _less_products(self, total: Tensor, n: Tensor) -> Tensor:
        """H − VᵀNV with rows of V spelled out: the cone's, and a·(unit vector) + b·(row of F)."""
        problem = self.problem
        pulled = torch.zeros(n.shape[0], problem.size, dtype=self.dtype)  # N V
        if self.heads > 1:
            pulled += n[:, 1 : self.heads] @ problem.cone
        begin = self.heads
        for i, a, b, c in self.groups:
            piece = n[:, begin : begin + c.numel()]
            columns = problem.curves[i].columns
            assert columns is not None
            pulled[:, columns].add_(piece, alpha=a)
            if b:
                pulled[:, self.spans[i]].add_(piece @ self.compact[i], alpha=b)
            begin += c.numel()
        if self.heads > 1:
            total -= problem.cone.T @ pulled[1 : self.heads]
        begin = self.heads
        for i, a, b, c in self.groups:
            piece = pulled[begin : begin + c.numel()]
            columns = problem.curves[i].columns
            assert columns is not None
            total[columns].sub_(piece, alpha=a)
            if b:
                total[self.spans[i]].sub_(self.compact[i].T @ piece, alpha=b)
            begin += c.numel()
        return total

    def linear(self, m: Multipliers) -> Tensor:
        """The linear coefficients."""
        problem = self.problem
        total = self.goal.linear.clone()
        pull = [m[f"r{i}"] + 2 * m[f"theta{i}"] * c.offset for i, c in enumerate(problem.curves)]
        groups = self.groups if "n" in m else []
        if "n" in m:
            weight = m["n"] @ self._offsets()
            total += 2 * (problem.cone.T @ weight[1 : self.heads])
        begin = self.heads
        for i, a, b, c in groups:
            piece = weight[begin : begin + c.numel()]
            curve = problem.curves[i]
            assert curve.columns is not None
            total[curve.columns] += 2 * a * piece
            pull[i] = pull[i] + 2 * b * piece
            begin += c.numel()
        for i, curve in enumerate(problem.curves):
            total[self.spans[i]] += self.compact[i].T @ pull[i]
            if curve.columns is not None:
                total[curve.columns] -= m[f"s{i}"] + m[f"e{i}"] * curve.offset
        for j, box in enumerate(problem.boxes):
            total[box.columns] -= m[f"bs{j}"]
        return total

    def _offsets(self) -> Tensor:
        parts = [torch.ones(1, dtype=self.dtype), self.problem.cone_offset]
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
        if "n" not in m:
            return total
        g = self.forms(x, z)
        return total + g @ (m["n"] @ g)

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
        if not math.isfinite(float(hessian.sum())):
            raise ArithmeticError("the dual's quadratic form is not finite")
        v, shift, factor = self._lowest(hessian, room)
        x = 0.5 * torch.cholesky_solve(linear[:, None], factor)[:, 0]
        return self.apply_root(x), self.apply_root(v), shift

    def _lowest(self, hessian: Tensor, room: float) -> tuple[Tensor, float, Tensor]:
        """(lowest direction, shift, Cholesky factor of the shifted H), by inverse iteration from the last direction.

        The iteration is trusted only if the factorization with its shift succeeds. It begins again with a larger
        shift where it does not; after a few of these all eigenvalues are computed.
        """
        v, tried = self.ray, self.shift + 0.5 * room
        for _ in range(TRIES):
            if v is None:
                break
            factor, info = _factor(hessian, tried)
            if info:
                tried = 2 * tried + room
                continue
            for _ in range(INVERSE_STEPS):
                v = torch.cholesky_solve(v[:, None], factor)[:, 0]
                v = v / v.norm()
            self.ray, shift = v, max(0.0, room - float(v @ (hessian @ v)))
            factor, info = _factor(hessian, shift)
            if not info:
                self.shift = shift
                return v, shift, factor
            tried = shift + room
        values, vectors = torch.linalg.eigh(hessian)
        v = self.ray = vectors[:, 0]
        self.shift = max(0.0, room - float(values[0]))
        factor, info = _factor(hessian, self.shift)
        if info:
            raise ArithmeticError("the dual's quadratic form could not be made positive definite")
        return v, self.shift, factor

    @torch.no_grad()
    def slopes(self, m: Multipliers) -> tuple[float, Multipliers, Multipliers]:
        """(bound, multipliers with the shift written in, the bound's derivative in every multiplier and ``room``).

        ``room`` is how far above 0 the shift lifts the lowest eigenvalue of H. Costs two factorizations and one
        product of every curve's matrix with itself.
        """
        problem = self.problem
        x, v, shift = self.solve(m, float(m["room"]))
        moved = shifted(problem, m, shift, self.weights)
        moved["room"] = m["room"] / (1.0 + shift)  # in units of the larger diagonal
        z, steep = self.arguments(x), {}
        total = self.joint(moved, x)
        price = torch.zeros((), dtype=self.dtype)  # what a shift adds through κ and T, less what it saves
        for i, curve in enumerate(problem.curves):
            s, t, e = curve_multipliers(self.goal, curve, i, moved)
            theta, r = moved[f"theta{i}"], moved[f"r{i}"]
            best_z, best_y = maximizer(curve, s, t, e, theta, r)
            total += (s * best_y + t * best_y**2 + e * best_y * best_z - theta * best_z**2 - r * best_z).sum()
            steep[f"theta{i}"], steep[f"r{i}"] = z[i] ** 2 - best_z**2, z[i] - best_z
            if curve.columns is not None:
                y = x[curve.columns]
                steep[f"s{i}"], steep[f"t{i}"] = best_y - y, best_y**2 - y**2
                steep[f"e{i}"] = best_y * best_z - y * z[i]
                price += self.weights[curve.columns] @ steep[f"t{i}"]
        for j, box in enumerate(problem.boxes):
            best, y = parabola_top(moved[f"bt{j}"], moved[f"bs{j}"], box.lo, box.hi), x[box.columns]
            total += ((moved[f"bt{j}"] * best + moved[f"bs{j}"]) * best).sum()
            steep[f"bs{j}"], steep[f"bt{j}"] = best - y, best**2 - y**2
            price += self.weights[box.columns] @ steep[f"bt{j}"]
        steep["kappa"], steep["omega"] = torch.zeros_like(m["kappa"]), torch.zeros_like(m["omega"])
        for j, ball in enumerate(problem.balls):
            y = x[ball.columns]
            steep["kappa"][j] = ball.radius**2 - y @ ball.gram @ y
            steep["omega"][j] = -(y.sum() ** 2) if ball.centered else 0.0
            price += self.weights[ball.columns.start] * steep["kappa"][j]
        if "n" in m:
            g = self.forms(x, z)
            steep["n"] = torch.outer(g, g)
        steep["room"] = torch.zeros((), dtype=self.dtype)
        if shift > 0:
            self._add_curvature(steep, v, float(price))
        return float(total), moved, steep

    def _add_curvature(self, steep: Multipliers, v: Tensor, price: float) -> None:
        """Add the derivative of price·(room − vᵀHv): what moves the shift."""
        problem, z = self.problem, self.arguments(v, homogeneous=True)
        for i, curve in enumerate(problem.curves):
            steep[f"theta{i}"] += price * z[i] ** 2
            if curve.columns is not None:
                y = v[curve.columns]
                steep[f"t{i}"] -= price * y**2
                steep[f"e{i}"] -= price * y * z[i]
        for j, box in enumerate(problem.boxes):
            steep[f"bt{j}"] -= price * v[box.columns] ** 2
        for j, ball in enumerate(problem.balls):
            y = v[ball.columns]
            steep["kappa"][j] -= price * (y @ ball.gram @ y)
            if ball.centered:
                steep["omega"][j] -= price * y.sum() ** 2
        if "n" in steep:
            g = self.forms(v, z, homogeneous=True)
            steep["n"].addr_(g, g, alpha=price)
        steep["room"] += price

    def value(self, m: Multipliers) -> tuple[Tensor, Multipliers]:
        """(bound, multipliers with the shift written in); the bound is differentiable in the multipliers."""
        found, moved, steep = self.slopes({k: v.detach() for k, v in m.items()})
        total = torch.tensor(found, dtype=self.dtype)
        for name, slope in steep.items():
            total = total + (slope * (m[name] - m[name].detach())).sum()
        return total, moved

    def separable_part(self, m: Multipliers) -> Tensor:
        """Σ of the one-dimensional maxima; approximate for smooth curves (on a grid)."""
        total = torch.zeros((), dtype=self.dtype)
        for i, curve in enumerate(self.problem.curves):
            s, t, e = curve_multipliers(self.goal, curve, i, m)
            total = total + separable(curve, s, t, e, m[f"theta{i}"], m[f"r{i}"]).sum()
        for j, box in enumerate(self.problem.boxes):
            a, b = m[f"bt{j}"], m[f"bs{j}"]
            with torch.no_grad():
                best = parabola_top(a, b, box.lo, box.hi)
            total = total + ((a * best + b) * best).sum()
        return total


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
    z, y = maximizer(curve, s, t, e, theta, r)
    if lo.requires_grad:  # an end that wins moves with the weights; a maximizer inside does not matter
        z = torch.where(z <= lo, lo, torch.where(z >= hi, hi, z))
        y = curve.scalar.curve(z * unit) / unit
    return s * y + t * y * y + e * y * z - theta * z * z - r * z


@torch.no_grad()
def maximizer(
    curve: Curve, s: Tensor, t: Tensor, e: Tensor, theta: Tensor, r: Tensor
) -> tuple[Tensor, Tensor]:
    """(z, σ(z)) where :func:`separable` has its maximum, entrywise."""
    lo, hi, unit = curve.lo, curve.hi, curve.unit
    if curve.scalar.curvature == 0.0:
        points = _piecewise_points(curve, s, t, e, theta, r)
    else:
        points = lo[:, None] + (hi - lo)[:, None] * torch.linspace(0, 1, GRID, dtype=lo.dtype)
    value = curve.scalar.curve(points * unit[:, None]) / unit[:, None]
    total = (s[:, None] + t[:, None] * value + e[:, None] * points) * value
    total -= (theta[:, None] * points + r[:, None]) * points
    pick = total.argmax(1, keepdim=True)
    return points.gather(1, pick)[:, 0], value.gather(1, pick)[:, 0]


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


def parabola_top(a: Tensor, b: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """Where az² + bz is largest over [lo, hi]."""
    vertex = -b / (2 * torch.where(a < 0, a, -torch.ones_like(a)))
    points = torch.stack([lo, hi, torch.minimum(torch.maximum(vertex, lo), hi)])
    return points.gather(0, ((a * points + b) * points).argmax(0, keepdim=True))[0]


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


def span(matrix: Tensor) -> slice:
    """The columns from the first to the last that are not 0."""
    used = torch.nonzero((matrix != 0).any(0))[:, 0]
    return slice(int(used[0]), int(used[-1]) + 1) if used.numel() else slice(0, 0)


def rounding_root(gram: Tensor) -> Tensor:
    """R with RᵀGR = 1: coordinates in which a ball is round."""
    inverse: Tensor = torch.linalg.inv(torch.linalg.cholesky(gram.double()))
    return inverse.T.contiguous().to(gram.dtype)


def _factor(matrix: Tensor, shift: float) -> tuple[Tensor, int]:
    """Cholesky factor of matrix + shift·1, and 0 where there is one."""
    moved = matrix.clone()
    moved.diagonal().add_(shift)
    factor, info = torch.linalg.cholesky_ex(moved)
    return factor, int(info)


def _indices(columns: slice) -> Tensor:
    return torch.arange(columns.start, columns.stop)
