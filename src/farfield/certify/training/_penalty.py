"""A penalty on the range that can be proved for a model's output: certificates one can train for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from farfield.certify.dual._descent import initial_multipliers
from farfield.certify.dual._dual import Dual, Multipliers, Objective
from farfield.certify.dual._problem import Problem
from farfield.certify.training._chain import parse_chain
from farfield.errors import InvalidValueError

__all__ = ["OutputRangePenalty"]

PRODUCT_SHARE = 0.2
"""Learning rate of the multipliers of products, against that of the others."""


class OutputRangePenalty:
    r"""weight · Σ_outputs [h(upper − b) + h(a − lower)], h(v) = v₊ + v₊²: zero once the *proved* range is in (a, b).

    ``upper`` and ``lower`` bound the model's output (in eval mode) over every input in ℝⁿ at its current weights: the
    quadratic Lagrangian dual with multipliers of its own, which follow the weights by a few steps of Adam per call,
    starting where the last call ended. Whatever the multipliers are, the bound holds; better ones make it tighter.

    - *Differentiable*: in every parameter behind the last norm, in that norm's own, and, where it stands behind
      linear layers alone, in those too. The gradient is that of the bound these multipliers prove, exactly (envelope
      theorem); it does not differentiate the steps of Adam.
    - *Exact*: the bound, up to rounding, for piecewise linear activations.
    - *Approximate*: for smooth activations one-dimensional maxima are taken on a grid, and nothing is rounded
      outwards while training. What proves the range is a certificate of the trained model.

    The linear part of h makes the range reachable at a finite weight; the square pulls hard from far away.

    Parameters
    ----------
    model
        A chain: an nn.Sequential whose last norm is followed by activations and linear layers alone.
    example
        One input, to check that the chain is what the model computes.
    certified_range
        (a, b), for every output.
    weight
        Factor of the penalty.
    steps
        Steps of Adam on the multipliers per call; at least 1.
    every
        Only each k-th call computes the penalty (k times as large); the calls between return 0.
    rate
        Learning rate of the multipliers, in units of the readout's mean weight.
    warm_up
        Steps at the first call.

    Notes
    -----
    Cost per computed call and output: 2·(steps + 1) evaluations of the dual, each a Cholesky factorization of size
    (inputs + 1 or features) + (units of all hidden layers but the last behind the norm).

    Examples
    --------
    >>> from farfield.nn import MLP
    >>> net = MLP(2, 1, width=8, depth=1, norm="layer", generator=torch.Generator().manual_seed(0))
    >>> penalty = OutputRangePenalty(net, torch.zeros(1, 2), (-0.5, 0.5))
    >>> loss = penalty()
    >>> loss.backward()
    >>> float(loss.detach()) > 0, net[-1].weight.grad is not None
    (True, True)
    """

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        certified_range: tuple[float, float],
        weight: float = 1.0,
        *,
        steps: int = 1,
        every: int = 1,
        rate: float = 0.02,
        warm_up: int = 200,
    ) -> None:
        low, high = certified_range
        if not -math.inf < low < high < math.inf:
            raise InvalidValueError(f"certified_range is (a, b) with finite a < b, got {certified_range!r}.")
        if steps < 1 or every < 1 or warm_up < 0 or not (weight >= 0 and rate > 0):
            raise InvalidValueError(
                "steps and every are at least 1, warm_up and weight at least 0 and rate above 0; got "
                f"steps={steps}, every={every}, warm_up={warm_up}, weight={weight}, rate={rate}."
            )
        self.certified_range, self.weight = (float(low), float(high)), float(weight)
        self.steps, self.every, self.rate, self.warm_up = steps, every, float(rate), warm_up
        self.chain = parse_chain(model, example)
        self.units = self.chain.units()
        self._searches: dict[tuple[int, int], MultiplierSearch] = {}
        self._calls = 0

    def __call__(self) -> Tensor:
        """The penalty at the current weights, a float64 scalar."""
        self._calls += 1
        if (self._calls - 1) % self.every:
            return torch.zeros((), dtype=torch.float64)
        lower, upper = self.bounds()
        low, high = self.certified_range
        outside = torch.cat([(upper - high).clamp_min(0.0), (low - lower).clamp_min(0.0)])
        return self.weight * self.every * (outside + outside.square()).sum()

    def bounds(self, steps: int | None = None) -> tuple[Tensor, Tensor]:
        """(lower, upper), each (outputs,): bounds on every output for every input, differentiable in the weights.

        Parameters
        ----------
        steps
            Steps of Adam on the multipliers before; the penalty's own by default.
        """
        live = self.chain.problem(self.units)
        count = live.offset.numel()
        upper, lower = (
            torch.stack([self._bound(live, k, sign, steps) for k in range(count)]) for sign in (1, -1)
        )
        return -lower, upper

    def _bound(self, live: Problem, output: int, sign: int, steps: int | None) -> Tensor:
        goal = _goal(live, output, sign)
        fixed, fixed_goal = _detached(live), _detached_goal(goal)
        search = self._searches.get((output, sign))
        count = self.steps if steps is None else steps
        if search is None:
            search = self._searches[output, sign] = MultiplierSearch.begin(fixed, fixed_goal, self.rate)
            count += self.warm_up
        search.follow(fixed, fixed_goal, count)
        total = _lagrangian(Dual(live, goal.divided(search.scale)), search.multipliers, search.point)
        return total * search.scale + sign * live.offset[output]


@dataclass
class MultiplierSearch:
    """Multipliers of one bound, as they follow the weights."""

    scale: float
    raw: dict[str, Tensor]
    optimizer: torch.optim.Optimizer
    multipliers: Multipliers = field(default_factory=dict)
    point: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    ray: Tensor | None = None
    shift: float = 0.0
    steepness: float = math.inf
    anchor: dict[str, Tensor] = field(default_factory=dict)
    anchor_value: float = math.inf
    pace: float = 1.0

    @staticmethod
    def begin(problem: Problem, goal: Objective, rate: float) -> MultiplierSearch:
        """From a first guess."""
        scale = _scale(goal)
        goal = goal.divided(scale)
        first = initial_multipliers(problem, goal, Dual(problem, goal).count)
        raw = {k: _unconstrained(k, v).requires_grad_(True) for k, v in first.items()}
        groups = [
            {"params": [v for k, v in raw.items() if k != "n"], "lr": rate, "full": rate},
            {"params": [raw["n"]], "lr": rate * PRODUCT_SHARE, "full": rate * PRODUCT_SHARE},
        ]
        return MultiplierSearch(scale, raw, torch.optim.Adam(groups, betas=(0.9, 0.99)))

    def follow(self, problem: Problem, goal: Objective, steps: int) -> None:
        """Some steps of Adam at these weights; the best point met is kept, with its shift written in."""
        dual = Tracked(problem, goal.divided(self.scale))
        dual.ray, dual.shift = self.ray, self.shift
        best = math.inf
        for _ in range(max(1, steps)):
            with torch.enable_grad():
                current = self.current()
                total, moved = dual.value(current)
            found = float(total.detach())
            if found < best:
                best = found
                self.multipliers = {k: v.detach().clone() for k, v in moved.items()}  # Adam writes into some
                self.point = dual.point
            if steps:
                self._step(dual, total, found)
        self.ray, self.shift = dual.ray, dual.shift

    def _step(self, dual: Tracked, total: Tensor, found: float) -> None:
        """One step of Adam; back to the last good point where the bound jumped.

        Near its minimum the dual is not smooth (the lowest eigenvalue of H is multiple), and a single steep gradient
        would throw Adam off for hundreds of steps: gradients are clipped at their usual size.
        """
        if found > 1.1 * self.anchor_value + 0.02 * abs(self.anchor_value) + 0.02:
            with torch.no_grad():
                for name, value in self.anchor.items():
                    self.raw[name].copy_(value)
            self.optimizer.state.clear()
            self.pace *= 0.6
            dual.ray = None
            self.anchor_value = math.inf  # the weights may have moved: its value is taken anew
        else:
            if found <= self.anchor_value or not self.anchor:
                self.anchor = {k: v.detach().clone() for k, v in self.raw.items()}
                self.anchor_value = found
            self.optimizer.zero_grad()
            total.backward()
            slopes = [v.grad for v in self.raw.values() if v.grad is not None]
            size = float(torch.stack([g.square().sum() for g in slopes]).sum().sqrt())
            usual = min(size, self.steepness * 2)
            self.steepness = usual if math.isinf(self.steepness) else 0.95 * self.steepness + 0.05 * usual
            if size > 1.5 * self.steepness:
                for slope in slopes:
                    slope *= 1.5 * self.steepness / size
            self.optimizer.step()
            self.pace = min(1.0, self.pace * 1.01)
        for group in self.optimizer.param_groups:
            group["lr"] = group["full"] * self.pace
        with torch.no_grad():
            self.raw["n"].clamp_min_(0.0)

    def current(self) -> Multipliers:
        """Multipliers within their constraints."""
        made = {k: torch.nn.functional.softplus(v) if _positive(k) else v for k, v in self.raw.items()}
        made["n"] = (made["n"] + made["n"].T) / 2
        return made


class Tracked(Dual):
    """A dual that remembers its last joint maximizer."""

    point: Tensor

    def solve(self, m: Multipliers, room: float) -> tuple[Tensor, Tensor, float]:
        """As the dual does."""
        found = super().solve(m, room)
        self.point = found[0]
        return found


def _lagrangian(dual: Dual, m: Multipliers, x: Tensor) -> Tensor:
    """The bound at fixed multipliers and their joint maximizer; its slope at fixed x is the bound's (envelope)."""
    return dual.joint(m, x) + dual.separable_part(m)


def _goal(problem: Problem, output: int, sign: int) -> Objective:
    """sign · output without its offset, which carries a gradient and is added at the end."""
    return Objective(
        sign * problem.objective[output],
        tuple(None if w is None else sign * w[output] for w in problem.last),
        0.0,
    )


def _detached_goal(goal: Objective) -> Objective:
    last = tuple(None if w is None else w.detach() for w in goal.last)
    return Objective(goal.linear.detach(), last, goal.offset)


def _detached(problem: Problem) -> Problem:
    curves = tuple(
        replace(c, matrix=c.matrix.detach(), offset=c.offset.detach(), lo=c.lo.detach(), hi=c.hi.detach())
        for c in problem.curves
    )
    return replace(
        problem,
        balls=tuple(replace(b, gram=b.gram.detach()) for b in problem.balls),
        curves=curves,
        objective=problem.objective.detach(),
        last=tuple(None if w is None else w.detach() for w in problem.last),
        offset=problem.offset.detach(),
    )


def _positive(name: str) -> bool:
    return name.startswith("theta") or name == "room"


def _unconstrained(name: str, value: Tensor) -> Tensor:
    value = value.detach().clone()
    return torch.log(torch.expm1(value.clamp(1e-8, 20.0))) if _positive(name) else value


def _scale(goal: Objective) -> float:
    """Size of the objective's coefficients: the unit in which multipliers are near 1."""
    sizes = [float(w.abs().mean()) for w in goal.last if w is not None and w.numel()]
    return max([*sizes, float(goal.linear.abs().max()), 1e-100])
