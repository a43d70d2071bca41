"""The coordinates of a search: there and back again, and slopes that are the bound's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from certify.test_dual import problem_of, small
from farfield import Budget
from farfield.certify.dual import _descent, prove
from farfield.certify.dual._coordinates import Coordinates
from farfield.certify.dual._descent import initial_multipliers, optimize
from farfield.certify.dual._dual import Dual, objective


class _Gated(nn.Module):
    """A bounded input beside a norm: the problem has a box."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 6))
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        return self.last(torch.relu(self.norm(x) + torch.sin(x).sum(1, keepdim=True)))


def _models():
    torch.manual_seed(0)
    made = {
        "relu, one layer": small(depth=1),
        "relu, three layers": small(depth=3),
        "gelu": small(nn.GELU),
        "tanh, three layers": small(nn.Tanh, depth=3),
        "leaky": small(nn.LeakyReLU),
        "a box": _Gated().double().eval(),
    }
    return [pytest.param(model, id=name) for name, model in made.items()]


def _spread(problem, goal, dual, products):
    generator = torch.Generator().manual_seed(1)
    m = {
        k: v + 0.2 * v.abs().mean() * torch.rand(v.shape, generator=generator, dtype=v.dtype)
        for k, v in initial_multipliers(problem, goal, dual.count).items()
    }
    m["n"] = 1e-3 * torch.rand(m["n"].shape, generator=generator, dtype=torch.float64)
    m["n"] = (m["n"] + m["n"].T) / 2
    return m if products else {k: v for k, v in m.items() if k != "n"}


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize("model", _models())
def test_there_and_back_again(model, products):
    _, _, problem = problem_of(model, 3)
    goal = objective(problem, 0, 1)
    dual = Dual(problem, goal)
    m = _spread(problem, goal, dual, products)
    coordinates = Coordinates(dual, m)
    back = coordinates.multipliers(coordinates.raw(m, products))
    assert back.keys() == m.keys()
    for name, value in m.items():
        assert torch.allclose(back[name], value, rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize("model", _models())
def test_slopes_against_differences(model, products):
    _, _, problem = problem_of(model, 3)
    goal = objective(problem, 0, -1)
    dual = Dual(problem, goal)
    m = _spread(problem, goal, dual, products)
    dual.weigh(m)
    coordinates = Coordinates(dual, m)
    raw = coordinates.raw(m, products)
    current = coordinates.multipliers(raw)
    slopes = coordinates.slopes(raw, current, dual.slopes(current)[2])
    assert slopes.keys() == raw.keys()
    generator = torch.Generator().manual_seed(2)
    for name, value in raw.items():
        if not value.numel():
            continue
        way = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        way = (way + way.T) / 2 if name == "n" else way

        def at(step, name=name, value=value, way=way):
            dual.ray = None
            return dual.slopes(coordinates.multipliers({**raw, name: value + step * way}))[0]

        numeric = (at(1e-6) - at(-1e-6)) / 2e-6
        assert math.isclose(numeric, float((slopes[name] * way).sum()), rel_tol=2e-4, abs_tol=2e-5), name


def test_the_shift_pulls_at_the_multipliers_when_the_form_is_not_positive():
    """κ far too small: without the shift's own slope the derivative in κ has the wrong sign."""
    _, _, problem = problem_of(small(), 3)
    goal = objective(problem, 0, 1)
    dual = Dual(problem, goal)
    m = {
        **initial_multipliers(problem, goal, dual.count),
        "kappa": torch.full((1,), 1e-3, dtype=torch.float64),
    }
    dual.weigh(initial_multipliers(problem, goal, dual.count))
    _, moved, steep = dual.slopes(m)
    assert float(moved["kappa"]) > float(m["kappa"])

    def at(kappa):
        dual.ray = None
        return dual.slopes({**m, "kappa": m["kappa"] + kappa})[0]

    assert math.isclose((at(1e-7) - at(-1e-7)) / 2e-7, float(steep["kappa"]), rel_tol=1e-3)


def test_no_products_are_products_of_zero():
    _, _, problem = problem_of(small(depth=3), 3)
    goal = objective(problem, 0, 1)
    dual = Dual(problem, goal)
    m = initial_multipliers(problem, goal, dual.count)
    without = {k: v for k, v in m.items() if k != "n"}
    assert torch.equal(dual.hessian(m), dual.hessian(without))
    assert torch.equal(dual.linear(m), dual.linear(without))
    assert math.isclose(dual.slopes(m)[0], dual.slopes(without)[0], rel_tol=1e-12)


def test_a_search_goes_on_from_what_it_is_given():
    """The first step of a second search is where the first one ended: nothing is lost on the way."""
    _, _, problem = problem_of(small(depth=3, width=16), 3)
    goal = objective(problem, 0, 1)
    found, bound = optimize(problem, goal, time_budget=Budget(steps=150))
    _, again = optimize(problem, goal, time_budget=Budget(steps=1), start=found)
    assert again <= bound * (1 + 1e-3)


def test_products_of_an_earlier_search_stay_while_they_are_not_searched():
    _, _, problem = problem_of(small(depth=3, width=16), 3)
    goal = objective(problem, 0, 1)
    found, _ = optimize(problem, goal, time_budget=Budget(steps=200))
    assert bool(found["n"].any())
    still, _ = optimize(problem, goal, time_budget=Budget(steps=5), start=found, rounds=((1.0, 0.01, 0.0),))
    assert torch.allclose(still["n"], found["n"], rtol=1e-9)


def test_a_search_goes_back_from_a_bound_that_jumped(monkeypatch):
    """One step thrown far off, as a multiple eigenvalue does: the next one is beside the best point again."""
    _, _, problem = problem_of(small(depth=3, width=16), 3)
    goal = objective(problem, 0, 1)
    own, seen = Dual.slopes, []

    def slopes(self, m):
        found, moved, steep = own(self, m)
        seen.append(found)
        if len(seen) == 40:
            return 1e6, moved, {k: -1e6 * v.abs() - 1e6 for k, v in steep.items()}
        return found, moved, steep

    monkeypatch.setattr(Dual, "slopes", slopes)
    optimize(problem, goal, time_budget=Budget(steps=60), rounds=((1.0, 0.1, 0.0),))
    assert seen[40] <= min(seen[:39]) * (1 + 1e-6) + 1e-9


def test_a_search_in_single_precision_is_proved_in_double(monkeypatch):
    model = small(depth=2, width=24)
    _, _, problem = problem_of(model, 3)
    goal = objective(problem, 0, 1)
    double = optimize(problem, goal, time_budget=Budget(steps=200))[1]
    monkeypatch.setattr(_descent, "SINGLE", 1)
    found, bound = optimize(problem, goal, time_budget=Budget(steps=200))
    assert all(value.dtype == torch.float64 for value in found.values())
    assert math.isclose(bound, double, rel_tol=0.05)
    made = prove(problem, goal, found, 0)
    assert made.bound <= bound * (1 + 1e-3)
    generator = torch.Generator().manual_seed(0)
    points = 10.0 ** (4 * torch.rand(4000, 1, generator=generator, dtype=torch.float64) - 1)
    points = points * torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    assert float(model(points)[:, 0].detach().max()) <= made.bound
