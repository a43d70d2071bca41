"""The dual of many objectives at once, without pairwise products: groups that share a quadratic part.

All objectives of a group have the quadratic multipliers c·(Θ, T, E, κ, ω), with one factor c > 0 for each of them,
and linear multipliers r and s of their own. The matrix H of the joint part is one for the group, so a step costs one
factorization for all of them; for the arguments of a layer's neurons one group is nearly as good as one each
(decision 0034).

The search moves R and d instead of r and s, as :mod:`farfield.certify.dual._coordinates` has them, so that a change
of one layer's slopes reaches the layers before it at once. E begins at −T: for a ReLU y² = yz costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from farfield._budget import Clock
from farfield.certify.dual._dual import GRID, Multipliers, Objective, rounding_root, separable, span
from farfield.certify.dual._problem import Curve, Problem

__all__ = [
    "GroupDual",
    "Objectives",
    "can_group",
    "grid_points",
    "guess_single",
    "search_groups",
    "single_multipliers",
]

BENDS = (0.1, 0.01, 1.0)
"""Weights tried for the first guess, of the last curve and of those before it."""
GUESS_SHARE = 0.05
"""Of the clock, for first guesses; one is made anyway."""
RATE = 0.1
ROOM = 0.05


@dataclass(frozen=True)
class Objectives:
    """What is bounded from above, (groups, objectives of each, …): coefficients, offset, and 1/typical size."""

    linear: Tensor
    last: tuple[Tensor | None, ...]
    offset: Tensor
    weight: Tensor

    @classmethod
    def single(cls, goal: Objective) -> Objectives:
        """One objective in a group of its own."""
        last = tuple(None if w is None else w[None, None] for w in goal.last)
        parts = [w.abs().sum() for w in goal.last if w is not None]
        size = torch.stack([goal.linear.abs().sum(), *parts]).max().clamp_min(1e-100)
        offset = torch.full((1, 1), goal.offset, dtype=torch.float64)
        return cls(goal.linear[None, None], last, offset, size.reciprocal().reshape(1, 1))

    @classmethod
    def both_sides(cls, problem: Problem, weight: Tensor, alone: bool) -> Objectives:
        """Every output of a problem, then the negative of every output; one group, or one each."""
        keys = [(i, sign) for sign in (1, -1) for i in range(problem.offset.numel())]
        return cls.of(problem, keys, weight.repeat(2), alone)

    @classmethod
    def of(
        cls, problem: Problem, keys: Sequence[tuple[int, int]], weight: Tensor, alone: bool = False
    ) -> Objectives:
        """sign·output for every (output, sign); one group, or one each."""
        shape = (len(keys), 1) if alone else (1, len(keys))
        rows = torch.tensor([i for i, _ in keys])
        signs = torch.tensor([float(s) for _, s in keys], dtype=torch.float64)

        def chosen(value: Tensor) -> Tensor:
            signed = signs.reshape(-1, *[1] * (value.ndim - 1)) * value[rows]
            return signed.reshape(*shape, *value.shape[1:])

        last = tuple(None if w is None else chosen(w) for w in problem.last)
        return cls(chosen(problem.objective), last, chosen(problem.offset), weight.reshape(shape))


class GroupDual:
    """The dual function of all objectives; problems with boxes are not supported."""

    def __init__(self, problem: Problem, goals: Objectives) -> None:
        self.problem, self.goals = problem, goals
        self.groups, self.each = goals.offset.shape
        self.spans = [span(c.matrix) for c in problem.curves]
        self.compact = [c.matrix[:, s].contiguous() for c, s in zip(problem.curves, self.spans, strict=True)]
        self.tiled = [_tiled(c, self.groups * self.each) for c in problem.curves]
        self.start, self.start_arguments = problem.reference()
        self.roots = [rounding_root(b.gram) for b in problem.balls]
        self.root = torch.eye(problem.size, dtype=torch.float64)
        for ball, root in zip(problem.balls, self.roots, strict=True):
            self.root[ball.columns, ball.columns] = root

    def initial(self, bends: list[float]) -> Multipliers:
        """A first guess, backwards through the curves: chord slopes, and twice the least T for the Θ behind."""
        problem, goals = self.problem, self.goals
        m: Multipliers = {}
        pull = goals.linear.clone()
        curvature = torch.zeros(self.groups, problem.size, problem.size, dtype=torch.float64)
        for i in range(len(problem.curves) - 1, -1, -1):
            curve, span, matrix = problem.curves[i], self.spans[i], self.compact[i]
            block = None
            if curve.columns is None:
                own = goals.last[i]
                assert own is not None
                s = own
            else:
                s = pull[:, :, curve.columns]
                block = curvature[:, curve.columns, curve.columns].clone()
                size = torch.diagonal(block, dim1=1, dim2=2).clamp_min(1e-30)
                size = size + 0.1 * size.mean(1, keepdim=True)
                half = size.rsqrt()
                top = torch.linalg.matrix_norm(half[:, :, None] * block * half[:, None, :], 2)
                m[f"t{i}"] = 2 * top[:, None] * size
                m[f"e{i}"], m[f"d{i}"] = -torch.ones_like(size), torch.zeros_like(s)
            width = (curve.hi - curve.lo).clamp_min(1e-12)
            lo, hi = (curve.scalar.curve(end * curve.unit) / curve.unit for end in (curve.lo, curve.hi))
            m[f"r{i}"] = s * ((hi - lo) / width)
            typical = (s.abs() * goals.weight[:, :, None]).mean(1)
            theta = m[f"theta{i}"] = (
                bends[i] * (typical + 0.03 * typical.mean(1, keepdim=True)) / width + 1e-12
            )
            pull = pull + self._back(i, m[f"r{i}"])
            curvature[:, span, span] += matrix.T @ (theta[:, :, None] * matrix)
            if block is not None:
                t = m[f"t{i}"]
                moved = t[:, :, None] * matrix
                inner = torch.linalg.solve(torch.diag_embed(t) - block, moved)
                curvature[:, span, span] += 0.25 * moved.transpose(1, 2) @ inner
        kappa = [
            1.5 * torch.linalg.matrix_norm(r.T @ curvature[:, b.columns, b.columns] @ r, 2) + 1e-9
            for b, r in zip(problem.balls, self.roots, strict=True)
        ]
        m["kappa"] = torch.stack(kappa, 1)
        m["room"] = torch.full((self.groups,), ROOM, dtype=torch.float64)
        m["factor"] = 1.0 / goals.weight
        return m

    def _back(self, i: int, r: Tensor) -> Tensor:
        """r·F over all variables."""
        span = self.spans[i]
        return pad(r @ self.compact[i], (span.start, self.problem.size - span.stop))

    def _hessian(self, m: Multipliers) -> Tensor:
        problem, size = self.problem, self.problem.size

        def put(value: Tensor, rows: slice, columns: slice) -> Tensor:
            return pad(value, (columns.start, size - columns.stop, rows.start, size - rows.stop))

        total = torch.zeros(self.groups, size, size, dtype=torch.float64)
        for i, curve in enumerate(problem.curves):
            matrix, span = self.compact[i], self.spans[i]
            flat = (matrix.T * m[f"theta{i}"][:, None, :]).reshape(-1, matrix.shape[0]) @ matrix
            total = total - put(flat.reshape(self.groups, matrix.shape[1], -1), span, span)
            if curve.columns is not None:
                t = m[f"t{i}"]
                mixed = put((0.5 * m[f"e{i}"] * t)[:, :, None] * matrix, curve.columns, span)
                total = total + put(torch.diag_embed(t), curve.columns, curve.columns)
                total = total + mixed + mixed.transpose(1, 2)
        for j, ball in enumerate(problem.balls):
            gram = ball.gram + 1.0 if ball.centered else ball.gram
            total = total + put(m["kappa"][:, j, None, None] * gram, ball.columns, ball.columns)
        return total

    def value(self, m: Multipliers) -> tuple[Tensor, Multipliers]:
        """(bounds, multipliers as the Lagrangian has them); the bounds are differentiable in ``m``."""
        problem, goals = self.problem, self.goals
        weights = torch.ones(self.groups, problem.size, dtype=torch.float64)
        for j, ball in enumerate(problem.balls):
            weights[:, ball.columns] = m["kappa"][:, j : j + 1].detach()
        for i, curve in enumerate(problem.curves):
            if curve.columns is not None:
                weights[:, curve.columns] = m[f"t{i}"].detach()
        root = self.root * weights.rsqrt()[:, None, :]
        hessian = root.transpose(1, 2) @ self._hessian(m) @ root
        shift = (m["room"] - torch.linalg.eigvalsh(hessian)[:, 0]).clamp_min(0.0)
        hessian = hessian + shift[:, None, None] * torch.eye(problem.size, dtype=torch.float64)
        factor, pull, total = m["factor"], goals.linear, goals.offset
        total = total + goals.linear @ self.start
        linear: dict[int, Tensor] = {}
        made: Multipliers = {"factor": factor}
        for i in range(len(problem.curves) - 1, -1, -1):
            curve, theta, z = problem.curves[i], m[f"theta{i}"], self.start_arguments[i]
            if curve.columns is None:
                own = goals.last[i]
                assert own is not None
                s, t, e, y = own, torch.zeros_like(theta), torch.zeros_like(theta), torch.zeros_like(z)
                quadratic = [factor[:, :, None] * part[:, None] for part in (t, e, theta)]
            else:
                t = m[f"t{i}"] + shift[:, None] * weights[:, curve.columns]
                e, y = m[f"e{i}"] * m[f"t{i}"], self.start[curve.columns]
                quadratic = [factor[:, :, None] * part[:, None] for part in (t, e, theta)]
                s = pull[:, :, curve.columns] + m[f"d{i}"] - quadratic[1] * z - 2 * quadratic[0] * y
                linear[curve.columns.start] = -m[f"d{i}"]
                made |= {f"t{i}": t, f"e{i}": e, f"s{i}": s}
                total = total - ((s + quadratic[0] * y + quadratic[1] * z) * y).sum(2)
            r = m[f"r{i}"] - 2 * quadratic[2] * z + quadratic[1] * y
            made |= {f"theta{i}": theta, f"r{i}": r}
            own_part = separable(self.tiled[i], *(v.reshape(-1) for v in (s, *quadratic, r)))
            total = total + own_part.reshape(*total.shape, -1).sum(2)
            total = total + ((quadratic[2] * z + r) * z).sum(2)
            pull = pull + self._back(i, m[f"r{i}"])
        kappa = m["kappa"] + shift[:, None] * torch.stack(
            [weights[:, b.columns.start] for b in problem.balls], 1
        )
        made |= {"kappa": kappa, "omega": m["kappa"], "room": m["room"]}
        for j, ball in enumerate(problem.balls):
            linear[ball.columns.start] = pull[:, :, ball.columns]
            total = total + factor * kappa[:, j : j + 1] * ball.radius**2
        row = torch.cat([linear[start] for start in sorted(linear)], 2) @ root
        solved = torch.linalg.solve_triangular(
            torch.linalg.cholesky(hessian), row.transpose(1, 2), upper=False
        )
        return total + 0.25 * solved.square().sum(1) / factor, made


def grid_points(curve: Curve) -> int:
    """At how many points a step evaluates a curve, for each of its entries and every objective."""
    return GRID if curve.scalar.curvature else 3 + 2 * len(curve.scalar.kinks)


def search_groups(dual: GroupDual, clock: Clock) -> tuple[Tensor, Multipliers]:
    """(bounds, multipliers that give them) from Adam until the clock is over; the best of every group is kept.

    A step of the clock is one evaluation; the first guesses are not counted.
    """
    guess = _first_guess(dual, clock)
    best, kept = _evaluated(dual, guess)
    units = {name: _unit(guess, name) for name in guess}
    raw = {
        name: (value.log() if _positive(name) else value / units[name]).requires_grad_()
        for name, value in guess.items()
    }
    optimizer = torch.optim.Adam(list(raw.values()), lr=RATE)
    score = (best * dual.goals.weight).sum(1)
    while not clock.over:
        clock.spend()
        for group in optimizer.param_groups:
            group["lr"] = RATE * (0.5 * (1 + math.cos(math.pi * (1.0 - clock.left))) + 0.01)
        optimizer.zero_grad()
        try:
            value, made = dual.value(
                {name: v.exp() if _positive(name) else v * units[name] for name, v in raw.items()}
            )
        except RuntimeError:  # torch's own for a factorization or eigenvalues that failed
            break
        loss = (value * dual.goals.weight).sum(1)
        better = (loss.detach() < score).nonzero()[:, 0]
        if better.numel():
            score[better], best[better] = loss.detach()[better], value.detach()[better]
            for name, tensor in made.items():
                kept[name][better] = tensor.detach()[better]
        loss.sum().backward()
        optimizer.step()
    return best, kept


def single_multipliers(made: Multipliers, forms: int, place: int = 0) -> Multipliers:
    """Those of one objective of the first group as :class:`~farfield.certify.dual._dual.Dual` takes them, its
    products 0.
    """
    factor = made["factor"][0, place]
    found: Multipliers = {"n": torch.zeros(forms, forms, dtype=torch.float64), "room": made["room"][0]}
    for name, value in made.items():
        if name[0] in "rs" and name != "room":
            found[name] = value[0, place]
        elif name not in ("room", "factor"):
            found[name] = factor * value[0]
    return found


def can_group(problem: Problem) -> bool:
    """Whether layers lie behind one another, and these behind norms alone."""
    return bool(problem.balls) and not problem.boxes and any(c.columns is not None for c in problem.curves)


def guess_single(problem: Problem, goal: Objective, forms: int, clock: Clock) -> Multipliers:
    """A first guess for one objective: the best of a few, as many as a share of the clock has time for."""
    dual = GroupDual(problem, Objectives.single(goal))
    _, made = _evaluated(dual, _first_guess(dual, clock))
    return single_multipliers(made, forms)


def _first_guess(dual: GroupDual, clock: Clock) -> Multipliers:
    """Per group the best of a few weights."""
    count = len(dual.problem.curves)
    best, guess = torch.full((dual.groups,), math.inf, dtype=torch.float64), None
    begun = clock.left
    for front, back in product(BENDS, BENDS if count > 1 else BENDS[:1]):
        if guess is not None and (clock.over or clock.left < (1.0 - GUESS_SHARE) * begun):
            break
        tried = dual.initial([back] * (count - 1) + [front])
        value, _ = _evaluated(dual, tried)
        score = (value * dual.goals.weight).sum(1).nan_to_num(math.inf)
        if guess is None:
            best, guess = score, tried
            continue
        better = score < best
        best = torch.where(better, score, best)
        for name in guess:
            guess[name][better] = tried[name][better]
    assert guess is not None
    return guess


@torch.no_grad()
def _evaluated(dual: GroupDual, m: Multipliers) -> tuple[Tensor, Multipliers]:
    value, made = dual.value(m)
    return value, {name: tensor.clone() for name, tensor in made.items()}


def _positive(name: str) -> bool:
    return name.startswith("t") or name in ("kappa", "room", "factor")


def _unit(m: Multipliers, name: str) -> Tensor:
    """A step's natural size."""
    if name[0] in "rd" and name != "room":
        return m["r" + name[1:]].abs().mean(2, keepdim=True) + 1e-12
    return torch.ones((), dtype=torch.float64)


def _tiled(curve: Curve, times: int) -> Curve:
    """The curve's ranges repeated: one row after another."""
    return replace(curve, lo=curve.lo.repeat(times), hi=curve.hi.repeat(times), unit=curve.unit.repeat(times))
