"""Sides searched at once: bounds that hold, where there is time for little, and only there."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import farfield as ff
from certify.networks import attack
from farfield._budget import Clock
from farfield.certify import _solve, _together, verify_certificate
from farfield.certify._provers import WORTH_RANGES, Together, prepare
from farfield.certify._search import attained
from farfield.certify._task import Task
from farfield.certify._together import begin_together, is_time_for_ranges, pace, proof_seconds
from farfield.certify.dual import Dual, Objectives, objective, optimize, prove
from farfield.certify.dual import _groups as groups
from farfield.graph import capture

F64 = torch.float64
EVERYWHERE = {"kind": "all"}


def net(depth=2, outputs=6, dim=7, width=16, seed=0, norm=nn.LayerNorm, act=nn.ReLU):
    """Linear, norm, activation, and ``depth − 1`` layers behind them."""
    torch.manual_seed(seed)
    layers = [nn.Linear(dim, width), norm(width), act()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), act()]
    return nn.Sequential(*layers, nn.Linear(width, outputs)).double().eval()


def case_of(model, dim=7):
    program = capture(model, torch.zeros(1, dim, dtype=F64), dynamic_batch=False)
    task = Task.over(program, program.outputs[0], EVERYWHERE)
    found = attained(program, task.output, time_budget=ff.Budget(steps=4), generator=torch.Generator())
    return prepare(program, task.network, found)


def sides(outputs):
    return [(i, sign) for i in range(outputs) for sign in (1, -1)]


@pytest.mark.parametrize("act", [nn.ReLU, nn.GELU, nn.Tanh], ids=lambda a: a.__name__)
@pytest.mark.parametrize("depth", [2, 3])
def test_every_start_is_a_bound_and_the_search_goes_on_from_it(depth, act):
    model = net(depth, act=act)
    low, high = attack(model, 7, 0)
    made = begin_together(case_of(model), sides(6), ff.Budget(steps=200).start(), 0.0)
    assert made.together is not None
    for key in sides(6):
        goal = objective(made.problem, *key)
        start = made.together.start(key, Dual(made.problem, goal).count)
        begun = prove(made.problem, goal, start, key[0]).bound
        _, further = optimize(made.problem, goal, time_budget=ff.Budget(steps=10), start=start)
        top = float(high[key[0]]) if key[1] > 0 else -float(low[key[0]])
        assert top <= begun
        assert top <= further * (1 + 1e-9) <= begun * (1 + 1e-6) + 1e-6


def test_objectives_are_the_outputs_asked_for_in_their_order():
    problem = case_of(net()).problem
    keys = [(4, -1), (0, 1), (4, 1)]
    goals = Objectives.of(problem, keys, torch.ones(3, dtype=F64))
    for place, (row, sign) in enumerate(keys):
        one = objective(problem, row, sign)
        assert torch.equal(goals.linear[0, place], one.linear)
        assert float(goals.offset[0, place]) == one.offset
        for several, last in zip(goals.last, one.last, strict=True):
            assert (several is None) == (last is None)
            assert last is None or torch.equal(several[0, place], last)


def test_multipliers_of_another_side_are_worse_so_none_is_mistaken_for_another():
    made = begin_together(case_of(net()), sides(6), ff.Budget(steps=600).start(), 0.0)
    forms = Dual(made.problem, objective(made.problem, 0, 1)).count
    starts = {key: made.together.start(key, forms) for key in sides(6)}
    for key in sides(6):
        goal = objective(made.problem, *key)
        bounds = {other: prove(made.problem, goal, start, key[0]).bound for other, start in starts.items()}
        assert min(bounds, key=bounds.get) == key
    assert made.together.start((9, 1), forms) is None


@pytest.mark.parametrize(
    ("each", "share"), [(10, 0.5), (39, 0.5), (41, 0.3), (139, 0.3), (141, 0.1), (399, 0.1), (401, None)]
)
def test_the_less_time_there_is_for_each_the_more_goes_to_all(each, share, monkeypatch):
    given = []

    def search(dual, clock):
        given.append(clock.steps_left)
        return None, {}

    monkeypatch.setattr(_together, "search_groups", search)
    made = begin_together(case_of(net()), sides(6), ff.Budget(steps=12 * each).start(), 0.0)
    assert given == ([] if share is None else [pytest.approx(share * 12 * each)])
    assert (made.together is None) == (share is None)
    monkeypatch.setattr(_together, "PROOF_STEPS", 0)
    timed = begin_together(case_of(net()), sides(6), Clock(12 * each * 1e3, math.inf), 1e3)
    assert (timed.together is None) == (share is None), "steps of a known length count like steps"


def test_what_has_no_layers_behind_one_another_is_left_alone():
    case = case_of(net(1))
    clock = ff.Budget(seconds=1.0).start()
    assert pace(case, sides(6), clock) == 0.0
    assert begin_together(case, sides(6), clock, 0.0) is case
    assert begin_together(case_of(net()), [], clock, 0.0).together is None


def test_a_step_is_timed_only_where_seconds_count():
    case = case_of(net())
    assert pace(case, sides(6), ff.Budget(steps=100).start()) == 0.0
    assert 0.0 < pace(case, sides(6), ff.Budget(seconds=100.0).start()) < 1.0


def test_ranges_of_deep_layers_leave_time_for_every_side():
    clock = Clock(100.0, math.inf)
    assert is_time_for_ranges(20, clock, 0.3, 0.5)
    assert not is_time_for_ranges(200, clock, 0.3, 0.5)
    assert is_time_for_ranges(200, Clock(math.inf, 100.0), 0.0, 0.5)


def test_proofs_of_smooth_curves_are_known_to_take_longer():
    relu, gelu = (case_of(net(act=act)) for act in (nn.ReLU, nn.GELU))
    assert proof_seconds(relu, 0.0) == 0.0
    assert proof_seconds(gelu, 0.01) > proof_seconds(relu, 0.01) > 0.1


def test_all_sides_at_once_leave_time_for_their_proofs(monkeypatch):
    given = []
    monkeypatch.setattr(
        _together, "search_groups", lambda dual, clock: (given.append(clock.seconds_left), {})
    )
    case, step, seconds = case_of(net()), 0.01, 12 * 35 * 0.01
    begin_together(case, sides(6), Clock(seconds, math.inf), step)
    assert 0.19 * seconds < given[0] <= 0.2 * seconds, "not a half: proofs take longer than there is time"


def test_so_many_points_that_a_step_would_take_long_are_searched_alone():
    wide = case_of(net(outputs=6, width=16, act=nn.GELU))
    assert begin_together(wide, sides(6), ff.Budget(steps=60).start(), 0.0).together is not None
    several = [key for key in sides(6) for _ in range(400)]
    assert begin_together(wide, several, ff.Budget(steps=60).start(), 0.0).together is None
    assert begin_together(wide, sides(6), Clock(0.01, math.inf), 1e-3).together is None, (
        "no time for ten steps"
    )


def test_first_guesses_end_with_the_time(monkeypatch):
    case, tried = case_of(net(3)), []
    evaluated = groups._evaluated
    monkeypatch.setattr(groups, "_evaluated", lambda *a: tried.append(1) or evaluated(*a))
    over = Clock(0.0, math.inf)
    groups.search_groups(
        groups.GroupDual(case.problem, Objectives.of(case.problem, sides(6), torch.ones(12))), over
    )
    assert len(tried) == 2, "one guess, and its multipliers"


@pytest.mark.parametrize(("depth", "ranges"), [(2, False), (3, True)])
def test_ranges_are_searched_where_at_least_two_layers_lie_behind_others(depth, ranges, monkeypatch):
    assert case_of(net(depth)).behind == depth - 1
    assert (depth - 1 >= WORTH_RANGES) == ranges
    made = ff.certify(net(depth), torch.zeros(1, 7, dtype=F64), time_budget=ff.Budget(steps=100))
    assert all(bool(proof.get("ranges")) == ranges for proof in made.proofs)


def test_many_outputs_in_few_steps_are_tighter_together(monkeypatch):
    model, x = net(2, outputs=10, width=24), torch.zeros(1, 7, dtype=F64)
    both = ff.certify(model, x, time_budget=ff.Budget(steps=200))
    assert verify_certificate(model, json.loads(json.dumps(both.to_dict())))
    low, high = attack(model, 7, 0)
    assert bool((both.lower.reshape(-1) <= low).all() and (high <= both.upper.reshape(-1)).all())
    monkeypatch.setattr(_solve, "begin_together", lambda case, *_: case)
    alone = ff.certify(model, x, time_budget=ff.Budget(steps=200))
    assert 1.5 * float(both.tightness.median()) < float(alone.tightness.median())


def test_what_is_resumed_goes_on_from_its_own_multipliers(monkeypatch):
    model, x = net(), torch.zeros(1, 7, dtype=F64)
    first = ff.certify(model, x, time_budget=ff.Budget(steps=200))
    asked = []
    monkeypatch.setattr(groups, "search_groups", lambda *_: asked.append(1))
    monkeypatch.setattr(Together, "start", lambda *_: asked.append(1))
    again = ff.certify(model, x, time_budget=ff.Budget(steps=200), resume=first)
    assert not asked
    assert bool((again.lower >= first.lower).all() and (again.upper <= first.upper).all())
    assert float(again.tightness.max()) < float(first.tightness.max())


@pytest.mark.parametrize(("outputs", "together"), [(1, False), (6, True)])
def test_two_sides_of_a_large_network_are_searched_alone(outputs, together):
    """There a step of both costs as much as many of one."""
    case = case_of(net(outputs=outputs, width=240))
    clock = ff.Budget(steps=4 * outputs).start()
    assert (begin_together(case, sides(outputs), clock, 0.0).together is not None) == together
