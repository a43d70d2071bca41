"""Ranges of deep layers: no argument leaves them, no forged one gets through, and they make deep bounds smaller."""

from __future__ import annotations

import base64
import copy
import zlib

import numpy as np
import pytest
import torch
from torch import nn

import farfield as ff
from certify.networks import Residual, attack
from farfield.certify import CertificateError
from farfield.certify._checks import Checks
from farfield.certify._proofs import DualProof, IntervalProof
from farfield.certify._provers import prepare
from farfield.certify._search import attained
from farfield.certify._task import Task
from farfield.certify.affine import build_network
from farfield.certify.checker import proof_reader, verify_certificate
from farfield.certify.checker._dual import DualCheck
from farfield.certify.checker._ranges import Ranges
from farfield.certify.dual import (
    GroupDual,
    Objectives,
    build_problem,
    objective,
    prove,
    publish,
    search_groups,
    single_multipliers,
    subproblem,
    tightened,
)
from farfield.certify.dual._dual import Dual
from farfield.certify.intervals import propagate
from farfield.graph import capture

F64 = torch.float64


def deep(seed=0, activation=nn.ReLU, dim=6, width=12, depth=4, norm=nn.LayerNorm, skip=False, outputs=1):
    torch.manual_seed(seed)
    layers = [nn.Linear(dim, width), norm(width), activation()]
    for i in range(depth - 1):
        block = [nn.Linear(width, width), activation()]
        layers += [Residual(nn.Sequential(*block))] if skip and i == 1 else block
    return nn.Sequential(*layers, nn.Linear(width, outputs)).double().eval()


def built(model, dim=6):
    program = capture(model, torch.zeros(1, dim, dtype=F64), dynamic_batch=False)
    found = attained(program, program.outputs[0], time_budget=ff.Budget(steps=2), generator=torch.Generator())
    case = prepare(program, build_network(program, program.outputs[0], propagate(program)), found)
    return program, case


def arguments(program, case, points):
    """Curve → its arguments at some inputs."""
    names = {
        i: program.node(case.network.blocks[c.block].node).operands[0]
        for i, c in enumerate(case.problem.curves)
    }
    rows = [program.evaluate(x[None], keep=list(names.values())) for x in points]
    return {i: torch.stack([r[name].reshape(-1) for r in rows]) for i, name in names.items()}


def points(dim, count=300, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dim, generator=draw, dtype=F64)
    return x * 10 ** (8 * torch.rand(count, 1, generator=draw, dtype=F64) - 2)


def proof_of(program, case, steps=20):
    """A dual proof of the output's upper side that rests on ranges of deep layers."""
    goal = objective(case.problem, 0, 1.0)
    _, made = search_groups(GroupDual(case.problem, Objectives.single(goal)), ff.Budget(steps=steps).start())
    proved = prove(case.problem, goal, single_multipliers(made, Dual(case.problem, goal).count), 0)
    return publish(case.network, case.problem, proved, 0, 1, case.layers).to_dict()


KINDS = {
    "relu": {},
    "gelu": {"activation": nn.GELU, "width": 8},
    "tanh": {"activation": nn.Tanh, "depth": 3, "width": 6},
    "leaky": {"activation": lambda: nn.LeakyReLU(0.2)},
    "skip": {"skip": True},
    "rms": {"norm": nn.RMSNorm},
    "wide input": {"dim": 20},
    "groups": {"norm": lambda width: nn.GroupNorm(3, width)},
}


@pytest.mark.parametrize("name", KINDS)
def test_no_argument_leaves_the_range_that_the_checker_proves(name):
    options = KINDS[name]
    dim = options.get("dim", 6)
    model = deep(1, **options)
    program, case = built(model, dim)
    tight = case.tightened(ff.Budget(steps=30).start())
    assert tight.layers
    proof = proof_of(program, tight)
    check = DualCheck(Ranges(program, {}), program.outputs[0], program.inputs[0].name, proof)
    met = arguments(program, tight, points(dim))
    for layer in tight.layers:
        node = tight.network.blocks[tight.problem.curves[layer.target].block].node
        lo, hi = (torch.from_numpy(end) for end in check.zrange[node])
        plain, curve = case.problem.curves[layer.target], tight.problem.curves[layer.target]
        assert bool(((met[layer.target] >= lo) & (met[layer.target] <= hi)).all())
        # The search's own ranges are those, up to single precision.
        assert bool((curve.lo * curve.unit <= met[layer.target].amin(0)).all())
        assert float((hi - lo).sum()) <= 1.001 * float(((curve.hi - curve.lo) * curve.unit).sum())
        assert float((hi - lo).sum()) < float(((plain.hi - plain.lo) * plain.unit).sum())


def test_subproblems_are_the_network():
    """Outputs of a layer's problem, with its variables computed, are that layer's arguments."""
    program, case = built(deep(2, skip=True))
    x = points(6, 5)
    met = arguments(program, case, x)
    for i in range(1, len(case.problem.curves)):
        small, curves, balls = subproblem(case.problem, i)
        assert len(small.curves) == len(curves) and len(small.balls) == len(balls) == 1
        for row in range(len(x)):
            values = torch.zeros(small.size, dtype=F64)
            total = small.offset.clone()
            # The ball's variables are found from the first layer's arguments, which are linear in them.
            first = case.problem.curves[0]
            ball = small.balls[0].columns
            wanted = met[0][row] / first.unit - first.offset
            start = first.matrix[:, case.problem.balls[0].columns]
            values[ball] = torch.linalg.lstsq(start, wanted[:, None]).solution[:, 0]
            for k, curve in zip(curves, small.curves, strict=True):
                y = curve.scalar.curve(met[k][row]) / curve.unit
                last = small.last[curves.index(k)]
                if curve.columns is not None:
                    values[curve.columns] = y
                else:
                    total = total + last @ y
            total = total + small.objective @ values
            torch.testing.assert_close(total * case.problem.curves[i].unit, met[i][row], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("skip", [False, True])
def test_every_group_bounds_its_objectives_at_any_multipliers(skip):
    """The first guess and a few steps: each value is a bound, shared quadratic part or own."""
    program, case = built(deep(3, skip=skip))
    met = arguments(program, case, points(6))
    for alone in (True, False):
        for steps in (0, 5):
            small, *_ = subproblem(case.problem, 2)
            curve = case.problem.curves[2]
            goals = Objectives.both_sides(small, torch.ones_like(curve.lo), alone)
            bounds, _ = search_groups(GroupDual(small, goals), ff.Budget(steps=steps).start())
            high, low = bounds.reshape(2, -1)
            z = met[2] / curve.unit
            assert bool((z <= high).all()) and bool((-z <= low).all())


def test_deep_certificates_hold_and_are_smaller():
    model = deep(4, width=24, dim=8)
    x = torch.zeros(1, 8, dtype=F64)
    made = ff.certify(model, x, time_budget=ff.Budget(steps=200))
    low, high = attack(model, 8, 0)
    assert bool((high <= made.upper).all()) and bool((low >= made.lower).all())
    assert all(proof.get("ranges") for proof in made.proofs)
    assert verify_certificate(model, made)
    assert verify_certificate(model, type(made).from_dict(made.to_dict()))
    again = ff.certify(model, x, time_budget=ff.Budget(steps=40), resume=made)
    assert bool((again.upper <= made.upper).all())
    program = capture(model, x, dynamic_batch=False)
    problem = build_problem(build_network(program, "output", propagate(program)))
    smaller, layers = tightened(problem, ff.Budget(steps=90).start())
    assert len(layers) == 3
    widths = [float((p.curves[-1].hi - p.curves[-1].lo).sum()) for p in (problem, smaller)]
    assert widths[1] < 0.5 * widths[0]


def changed(text, change):
    values = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype="<f4").copy()
    change(values)
    return base64.b64encode(zlib.compress(values.tobytes())).decode()


def test_forged_ranges_prove_no_more_than_is_true():
    model = deep(5)
    program, case = built(model)
    tight = case.tightened(ff.Budget(steps=60).start())
    proof = proof_of(program, tight)
    read = proof_reader(program, "output", {"kind": "all"})
    honest = read(proof)
    top = float(attack(model, 6, 0)[1].max())
    assert honest >= top
    draw = np.random.default_rng(0)
    refused = 0
    for trial in range(60):
        forged = copy.deepcopy(proof)
        node = list(forged["ranges"])[trial % len(forged["ranges"])]
        entry = forged["ranges"][node]
        tables = [entry, *entry["curves"].values(), *entry["norms"].values()]
        table = tables[draw.integers(len(tables))]
        key = [k for k, v in table.items() if isinstance(v, str)][0 if trial % 2 else -1]
        how = (lambda v: v.__imul__(-1.0), lambda v: v.__imul__(0.3), lambda v: v.fill(0.0))[trial % 3]
        table[key] = changed(table[key], how)
        try:
            assert read(forged) >= top
        except CertificateError:
            refused += 1
    assert refused
    for spoil in (
        lambda r: r.update(groups=7),
        lambda r: r.update(groups=0),
        lambda r: r.update(factor="x"),
        lambda r: r.update(norms={}),
        lambda r: r["curves"].update(relu_9=next(iter(r["curves"].values()))),
        lambda r: r["curves"].pop(next(iter(r["curves"]))),
        lambda r: r.update(curves=[]),
        lambda r: [r["curves"]["relu"].pop(k) for k in ("t", "e", "s")],  # relu_1 depends on it
    ):
        forged = copy.deepcopy(proof)
        spoil(forged["ranges"]["relu_2"])
        with pytest.raises(CertificateError):
            read(forged)
    # What was proved for one list is not taken for another.
    assert read(proof) == honest


def test_ranges_that_the_checker_refuses_are_not_published(monkeypatch):
    def refuse(*_):
        raise CertificateError("no")

    monkeypatch.setattr("farfield.certify.checker._dual.layer_range", refuse)
    made = ff.certify(deep(6), torch.zeros(1, 6, dtype=F64), time_budget=ff.Budget(steps=60))
    assert made.method == "interval" and not any(proof.get("ranges") for proof in made.proofs)


def test_a_resumed_proof_whose_ranges_the_checker_refuses_is_not_published_again(monkeypatch):
    model, example = deep(6), torch.zeros(1, 6, dtype=F64)
    first = ff.certify(model, example, time_budget=ff.Budget(steps=60))
    assert any(proof.get("ranges") for proof in first.proofs)

    def refuse(*_):
        raise CertificateError("no")

    monkeypatch.setattr("farfield.certify.checker._dual.layer_range", refuse)
    again = ff.certify(model, example, time_budget=ff.Budget(steps=1), resume=first)
    assert not any(proof.get("ranges") for proof in again.proofs)


def test_where_cells_close_the_gap_no_time_goes_into_ranges_of_deep_layers(monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr("farfield.certify._provers.OutputCase.tightened", never)
    made = ff.certify(deep(dim=1), torch.zeros(1, 1, dtype=F64), time_budget=ff.Budget(steps=400))
    assert made.method == "cells" and float(made.tightness.max()) < 1.01
    with pytest.raises(AssertionError):
        ff.certify(deep(), torch.zeros(1, 6, dtype=F64), time_budget=ff.Budget(steps=400))


def test_a_proof_that_takes_the_place_of_refused_ranges_is_checked_too(monkeypatch):
    """Cells found before the ranges of deep layers stand in for a refused dual, as the checker reads them."""
    program = capture(deep(dim=1), torch.zeros(1, 1, dtype=F64), dynamic_batch=False)
    task = Task.over(program, program.outputs[0], {"kind": "all"})
    ranged = DualProof(0, 1, 1.0, 0.0, {}, {}, {}, (), torch.zeros(1, 1), {"relu_1": {}})
    seen = []

    def reader(*_):
        def read(proof):
            seen.append(proof["kind"])
            if proof["kind"] == "dual":
                raise CertificateError("no")
            return 1.5

        return read

    monkeypatch.setattr("farfield.certify._checks.proof_reader", reader)
    stand_in = IntervalProof(0, 1, 1.1)
    checks = Checks(task, ff.Budget(steps=1).start())
    checks.run((0, 1), (ranged, stand_in), 0.0)
    assert seen == ["dual", "interval"] and not checks.doubts
    assert checks.proofs[0, 1].bound == 1.5
