"""A norm behind another one: the dual that knows what the later norm normalizes.

Of n = c/√(‖c‖²/k + ε), c = Fx + b, the plain problem knows ‖n‖² ≤ k and no more. Here x are the variables of the
*inner* problem, the one that ends at c. With τ = 1/√(‖c‖²/k + ε) and x̂ = τx the norm's value is linear,
n = Fx̂ + bτ, and

    ‖Fx̂ + bτ‖² + kετ² = k .

Every quadratic fact q(1, x) ≥ 0 of the inner problem, so any Lagrangian of it, holds as τ²·q(1, x̂/τ) ≥ 0: inner
multipliers enter with τ in place of 1, and their one-dimensional maxima m as m·τ². What is bounded is then

    outer Lagrangian at (Fx̂ + bτ, y) + τ²·(inner Lagrangian at x̂/τ) − κkετ² + ν·(inner forms at (τ, x̂), all ≥ 0) ,

a quadratic in (τ, x̂, y) again. On an ellipsoid that no region makes smaller xᵀGx = 1 holds, not only ≤, and its
multiplier may have either sign: κ − ``floor``. The search begins where the quadratic is positive definite: at the
plain problem's multipliers plus a share of an *anchor*, inner multipliers that prove ‖c‖²/k ≥ s² > 0 at every input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from farfield._budget import Clock
from farfield.certify._cone import Cone
from farfield.certify.affine import Network
from farfield.certify.dual._assembly import NoProblemError, build_problem
from farfield.certify.dual._barrier import Quadratic, follow, peak
from farfield.certify.dual._dual import Dual, Multipliers, Objective
from farfield.certify.dual._problem import Problem

__all__ = ["Anchor", "Nested", "NestedMultipliers", "find_anchor", "nest", "optimize_nested"]

LIMIT = 700
"""Variables of the inner problem, at most: a step takes the cube of them."""
FIRST = 0.1
"""T of the first guess for an anchor, in units of what the norm puts on the diagonal."""
SHARES = (0.3, 0.1, 0.03)
"""Of a bound, that the anchor in a first guess may cost."""
INNER = "."
"""What names of inner multipliers end in while both are searched together."""
PRODUCT_STEP, SLOPE_STEP, FORM_STEP = 0.3, 0.1, 5.0
"""Natural sizes of products, of r and s, and of ν, in units of T."""


@dataclass(frozen=True)
class Nested:
    """An outer problem whose ball is a norm's image, and the inner problem of what is normalized.

    In the outer problem's units n = matrix @ x̂ + offset·τ, ‖n‖² + stabilizer·τ² = radius².
    """

    outer: Problem
    inner: Problem
    matrix: Tensor
    offset: Tensor
    stabilizer: float


@dataclass(frozen=True)
class NestedMultipliers:
    """Those of the outer problem, those of the inner one (κ of either sign), ν, and the unrounded bound they give."""

    outer: Multipliers
    inner: Multipliers
    nu: Tensor
    bound: float = math.inf


@dataclass(frozen=True)
class Anchor:
    """Inner multipliers, and s²: with them ‖c‖² ≥ s² at every input, in the outer problem's units."""

    multipliers: Multipliers
    least: float
    step_seconds: float = 0.0
    """What a step of its search took: about what one of the nested problem takes."""

    def beside(self, nested: Nested, plain: Multipliers, bound: float) -> list[NestedMultipliers]:
        """First guesses, in the order to be tried: the plain problem's multipliers and a share of the anchor.

        ``bound`` is what those multipliers prove, less the objective's own offset.
        """
        made = []
        for part in SHARES:
            share = part * max(abs(bound), 1e-9) / nested.outer.balls[0].radius ** 2
            outer = {**plain, "kappa": 1.05 * plain["kappa"] + share}
            inner = {k: share * v for k, v in self.multipliers.items()}
            made.append(NestedMultipliers(outer, inner, torch.zeros(len(inner["n"]), dtype=torch.float64)))
        return made


def nest(
    network: Network, outer: Problem, sizes: dict[int, Tensor], cone: Cone | None = None
) -> Nested | None:
    """The nested problem of a network; ``None`` where the output does not lie behind one norm of one group alone.

    Nothing that it normalizes may enter behind it: a path around the norm is another ball of the outer problem.
    """
    if len(outer.balls) != 1 or outer.balls[0].parametrized or outer.boxes:
        return None
    ball = outer.balls[0]
    block = network.blocks[ball.block]
    form, groups = block.form, block.groups
    if form is None or groups is None or form.degree or groups.shape[0] != 1 or block.norm_eps <= 0:
        return None
    try:
        before = Network(network.blocks, form, (block.size,))
        inner = build_problem(before, sizes, limit=LIMIT, cone=cone, keep=True)
    except NoProblemError:
        return None
    if inner.boxes or not inner.curves:
        return None
    unit = block.radius / ball.radius
    matrix, offset = inner.objective / unit, inner.offset / unit
    if block.centered:
        matrix, offset = matrix - matrix.mean(0), offset - offset.mean()
    return Nested(outer, inner, matrix, offset, block.count * block.norm_eps / unit**2)


class _InnerForm:
    """τ²·(inner Lagrangian at x̂/τ) as a quadratic form in (τ, x̂)."""

    def __init__(self, nested: Nested) -> None:
        self.nested = nested
        problem = nested.inner
        none = torch.zeros(problem.size, dtype=torch.float64)
        self.dual = Dual(problem, Objective(none, tuple(None for _ in problem.curves), 0.0))
        self.none = none
        self.equal = torch.tensor([b.parametrized and b.enclosure is None for b in problem.balls])
        rows = [self.dual.forms(none, self.dual.arguments(none))]
        rows += [
            self.dual.forms(unit, self.dual.arguments(unit, True), True)
            for unit in torch.eye(problem.size, dtype=torch.float64)
        ]
        self.rows = torch.stack(rows, 1)
        """Forms that are never negative, over (τ, x̂)."""

    def whole(self, m: Multipliers) -> Multipliers:
        """Multipliers as the Lagrangian has them."""
        kappa = m["kappa"] - torch.where(self.equal, m["floor"], torch.zeros_like(m["floor"]))
        return {**{k: v for k, v in m.items() if k != "floor"}, "kappa": kappa}

    def __call__(self, m: Multipliers) -> Tensor:
        """Minus the form, so that it is positive definite where the inner Lagrangian bounds anything."""
        whole = self.whole(m)
        corner = self.dual.joint(whole, self.none) + self.dual.separable_part(whole)
        line = -0.5 * self.dual.linear(whole)
        top = torch.cat([-corner.reshape(1), line])
        return torch.cat([top[None], torch.cat([line[:, None], self.dual.hessian(whole)], 1)])

    def norm(self) -> Tensor:
        """‖Fx̂ + bτ‖² + kετ²."""
        rows = torch.cat([self.nested.offset[:, None], self.nested.matrix], 1)
        made = rows.T @ rows
        made[0, 0] += self.nested.stabilizer
        return made

    def names(self) -> list[str]:
        """Multipliers that move by factors."""
        each = [name for i in range(len(self.nested.inner.curves)) for name in (f"theta{i}", f"t{i}")]
        return [*each, "kappa", "omega"]

    def units(self, m: Multipliers) -> Multipliers:
        """Natural sizes of the others."""
        weights = torch.cat([m[f"t{i}"] for i in range(len(self.nested.inner.curves))])
        typical = weights.mean()
        units = {"floor": typical}
        for i in range(len(self.nested.inner.curves)):
            units |= {
                f"e{i}": m[f"t{i}"].mean(),
                f"r{i}": SLOPE_STEP * typical,
                f"s{i}": SLOPE_STEP * typical,
            }
        by_form = [typical.expand(self.dual.heads), *(m[f"t{i}"] for i, *_ in self.dual.groups)]
        root = torch.cat(by_form).sqrt()
        units["n"] = PRODUCT_STEP * torch.outer(root, root)
        return units


def find_anchor(nested: Nested, clock: Clock) -> Anchor | None:
    """Inner multipliers that bound ‖c‖ away from 0; ``None`` where none were found."""
    form = _InnerForm(nested)
    norm = form.norm()

    def quadratic(m: Multipliers) -> Quadratic:
        total = norm + form(m)
        return total[1:, 1:], -2 * total[0, 1:], -total[0, 0]

    start = _first_guess(nested, form, quadratic)
    if start is None:
        return None
    begun = clock.elapsed
    found, bound = follow(
        quadratic, start, form.units(start), clock, positive=form.names(), never_negative=("n", "floor")
    )
    seconds = (clock.elapsed - begun) / max(1.0, clock.spent)
    return Anchor(found, -bound, seconds) if bound < 0 else None


def _first_guess(
    nested: Nested, form: _InnerForm, quadratic: Callable[[Multipliers], Quadratic]
) -> Multipliers | None:
    """Squares that pay for the layers behind them, y² = yz, and as much κ as makes the form positive."""
    problem = nested.inner
    m: Multipliers = {}
    weight = FIRST * float(nested.matrix.square().sum(0).mean())
    curvature = torch.zeros(problem.size, problem.size, dtype=torch.float64)
    for i in range(len(problem.curves) - 1, -1, -1):
        curve = problem.curves[i]
        assert curve.columns is not None
        top = torch.linalg.matrix_norm(curvature[curve.columns, curve.columns], 2)
        t = torch.full_like(curve.offset, weight + 2 * float(top))
        m |= {f"t{i}": t, f"e{i}": -t, f"theta{i}": 1e-3 * t}
        m |= {f"r{i}": torch.zeros_like(t), f"s{i}": torch.zeros_like(t)}
        curvature += 0.3 * (curve.matrix.T @ (t[:, None] * curve.matrix))
    m["omega"] = torch.full((len(problem.balls),), weight, dtype=torch.float64)
    m["floor"] = torch.zeros_like(m["omega"])
    m["n"] = torch.zeros(form.dual.count, form.dual.count, dtype=torch.float64)
    for power in range(40):
        m["kappa"] = torch.full_like(m["omega"], weight * 2.0**power)
        if peak(quadratic(m)) is not None:
            return m
    return None


def optimize_nested(
    nested: Nested, goal: Objective, starts: list[NestedMultipliers], clock: Clock
) -> NestedMultipliers | None:
    """Multipliers that make the bound of an objective small, from the first guess that gives a bound.

    The objective's offset is added at the end: what the search takes for the size of a bound does not depend on it.
    """
    form = _InnerForm(nested)
    outer = Dual(nested.outer, replace(goal, offset=0.0))
    inner, columns = 1 + nested.inner.size, nested.outer.balls[0].columns
    others = [i for i in range(nested.outer.size) if not columns.start <= i < columns.stop]
    size = inner + len(others)
    place = torch.zeros(nested.outer.size, size, dtype=torch.float64)
    place[columns, 0], place[columns, 1:inner] = nested.offset, nested.matrix
    place[others, torch.arange(inner, size)] = 1.0
    nowhere = torch.zeros(nested.outer.size, dtype=torch.float64)
    first = starts[0].outer
    # n is centered by what it is made of, and products of the plain problem are few: both stay.
    still = {"n": first["n"], "omega": torch.zeros_like(first["omega"])}

    def quadratic(m: Multipliers) -> Quadratic:
        mine, its = _apart(m)
        mine |= still
        hessian = place.T @ outer.hessian(mine) @ place
        hessian[0, 0] += mine["kappa"][0] * nested.stabilizer
        hessian[:inner, :inner] += form(its)
        linear = place.T @ outer.linear(mine)
        linear[:inner] += form.rows.T @ m["nu"]
        return hessian, linear, outer.joint(mine, nowhere) + outer.separable_part(mine)

    for guess in starts:
        start = _together(guess)
        if peak(quadratic(start)) is None:
            continue
        positive = [k + INNER for k in form.names()]
        positive += [k for k in start if k == "kappa" or (k.startswith("t") and not k.endswith(INNER))]
        its = form.units(guess.inner)
        units = {k + INNER: v for k, v in its.items()} | {"nu": FORM_STEP * its["floor"]}
        units |= {k: v.abs().mean() + 1e-9 for k, v in start.items() if k not in positive and k not in units}
        never_negative = ("nu", "n" + INNER, "floor" + INNER)
        found, bound = follow(
            quadratic, start, units, clock, positive=positive, never_negative=never_negative
        )
        mine, its = _apart(found)
        return NestedMultipliers(mine | still, form.whole(its), found["nu"], bound + goal.offset)
    return None


def _together(m: NestedMultipliers) -> Multipliers:
    """All that is searched, by name."""
    made = {k: v for k, v in m.outer.items() if k not in ("n", "room", "omega")}
    return made | {k + INNER: v for k, v in m.inner.items()} | {"nu": m.nu}


def _apart(m: Multipliers) -> tuple[Multipliers, Multipliers]:
    """(outer, inner) multipliers."""
    inner = {k.removesuffix(INNER): v for k, v in m.items() if k.endswith(INNER)}
    return {k: v for k, v in m.items() if not k.endswith(INNER) and k != "nu"}, inner
