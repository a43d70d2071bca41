"""A norm behind another one: no input leaves the bound, no forged proof gets through, and it is the smaller bound."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import farfield as ff
from certify.networks import ACTIVATIONS, Rms, attack
from farfield._budget import running
from farfield.certify import CertificateError, verify_certificate
from farfield.certify import _provers as provers
from farfield.certify._proofs import DualProof, read_proof
from farfield.certify._search import attained
from farfield.certify.affine import build_network
from farfield.certify.checker import proof_reader
from farfield.certify.checker._joint import joint_bound
from farfield.certify.checker._values import MidRad
from farfield.certify.dual import find_anchor, objective, optimize, optimize_nested, publish_nested
from farfield.certify.dual._barrier import follow
from farfield.certify.dual._nested import _InnerForm
from farfield.certify.intervals import propagate
from farfield.graph import capture

F64 = torch.float64
EVERY_INPUT = {"kind": "all"}


def two_norms(seed=0, activation=nn.ReLU, norm=nn.LayerNorm, dim=7, width=12, between=(), outputs=1):
    """Linear, norm, activation, what stands between, Linear, norm, activation, Linear; every bias drawn."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(dim, width), norm(width), activation(), *between,
        nn.Linear(width, width), norm(width), activation(), nn.Linear(width, outputs),
    )  # fmt: skip
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.3 * torch.randn_like(p))
    return model.double().eval()


def case_of(model, dim=7):
    program = capture(model, torch.zeros(1, dim, dtype=F64), dynamic_batch=False)
    found = attained(program, program.outputs[0], time_budget=ff.Budget(steps=2), generator=torch.Generator())
    network = build_network(program, program.outputs[0], propagate(program))
    return program, provers.prepare(program, network, found)


def proved(model, dim=7, key=(0, 1), steps=150):
    """(program, proof, the checker's bound of it)."""
    program, case = case_of(model, dim)
    anchor = find_anchor(case.nested, running(ff.Budget(steps=150)))
    goal = objective(case.problem, *key)
    plain, bound = optimize(case.problem, goal, time_budget=ff.Budget(steps=100))
    starts = anchor.beside(case.nested, plain, bound - goal.offset)
    found = optimize_nested(case.nested, goal, starts, running(ff.Budget(steps=steps)))
    proof = publish_nested(case.network, case.nested, found, *key)
    checked = proof_reader(program, program.outputs[0], EVERY_INPUT)(proof.to_dict())
    return program, proof, checked, bound


def inputs(dim=7, count=2000):
    generator = torch.Generator().manual_seed(3)
    radius = 10 ** (8 * torch.rand(count, 1, generator=generator, dtype=F64) - 2)
    return torch.randn(count, dim, generator=generator, dtype=F64) * radius


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_input_leaves_the_bound(name):
    model = two_norms(seed=len(name), activation=ACTIVATIONS[name])
    certificate = ff.certify(model, torch.zeros(1, 7, dtype=F64), time_budget=ff.Budget(steps=200))
    low, high = attack(model, 7, 0)
    assert float(certificate.lower) <= float(low) and float(high) <= float(certificate.upper)
    verify_certificate(model, certificate)


@pytest.mark.parametrize("seed", range(6))
def test_the_checker_proves_what_was_found(seed):
    model = two_norms(seed, norm=Rms if seed % 2 else nn.LayerNorm, width=8 + 4 * seed)
    _, proof, checked, plain = proved(model)
    assert checked == pytest.approx(proof.bound, rel=1e-4)
    assert checked < plain
    assert float(model(inputs()).detach().max()) <= checked


def test_the_last_norm_is_what_the_nested_variables_say():
    model, x = two_norms(), inputs(count=50)
    _, case = case_of(model)
    nested, ball = case.nested, case.nested.outer.balls[0]
    unit = case.network.blocks[ball.block].radius / ball.radius
    with torch.no_grad():
        before = model[:4](x)
        centered = before - before.mean(1, keepdim=True)
        tau = (centered.square().mean(1, keepdim=True) + model[4].eps).rsqrt()
    made = tau * (inner_points(model, nested, x) @ torch.cat([nested.offset[:, None], nested.matrix], 1).T)
    torch.testing.assert_close(made * unit, centered * tau, rtol=1e-6, atol=1e-6)
    whole = made.square().sum(1) + nested.stabilizer * tau[:, 0] ** 2
    torch.testing.assert_close(whole, torch.full_like(whole, ball.radius**2), rtol=1e-6, atol=0)


@pytest.mark.parametrize("seed", range(8))
def test_the_inner_form_is_never_positive_at_an_input(seed):
    """Whatever the multipliers: −τ²·(inner Lagrangian) ≤ 0 where x̂ comes from an input, with maxima included."""
    model = two_norms(seed, activation=list(ACTIVATIONS.values())[seed])
    _, case = case_of(model)
    form = _InnerForm(case.nested)
    points = inner_points(model, case.nested, inputs(count=200))
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=F64)

    for _ in range(20):
        m = {f"{name}0": draw(12) for name in ("theta", "t", "e", "r", "s")}
        m |= {"kappa": draw(1).abs(), "omega": draw(1).abs(), "floor": draw(1).abs()}
        n = draw(form.dual.count, form.dual.count).clamp_min(0.0)
        m["n"] = n + n.T
        values = torch.einsum("bi,ij,bj->b", points, form(m), points)
        size = form(m).abs().sum() * points.square().sum(1)
        # Maxima of smooth curves are taken on a grid while searching.
        assert bool((values <= 1e-3 * size).all())
        if model[2].__class__ in (nn.ReLU, nn.LeakyReLU):
            assert bool((values <= 1e-9 * size).all())


def inner_points(model, nested, x):
    """(1, variables of the inner problem) at some inputs."""
    columns, curve = nested.inner.balls[0].columns, nested.inner.curves[0]
    with torch.no_grad():
        first = model[0](x)
        z = model[:2](x)
        tau = (first.var(1, unbiased=False) + model[1].eps).rsqrt()
        y = model[2](z)
    # z/unit = F u + offset has one solution u, since there are more neurons than inputs.
    u = torch.linalg.lstsq(curve.matrix[:, columns], (z / curve.unit - curve.offset).T).solution.T
    assert bool((u[:, -1] > 0).all()) and bool((tau > 0).all())
    points = torch.ones(len(x), 1 + nested.inner.size, dtype=F64)
    points[:, 1 + columns.start : 1 + columns.stop] = u
    points[:, 1 + curve.columns.start : 1 + curve.columns.stop] = y / curve.unit
    return points


def test_it_is_the_smaller_bound(monkeypatch):
    model = two_norms(width=32, dim=9)
    example, budget = torch.zeros(1, 9, dtype=F64), ff.Budget(steps=1200)
    nested = ff.certify(model, example, time_budget=budget)
    monkeypatch.setattr(provers, "nest", lambda *a: None)
    plain = ff.certify(model, example, time_budget=budget)
    wide, narrow = (float(c.upper - c.lower) for c in (plain, nested))
    assert narrow < 0.9 * wide


def test_a_path_around_the_norm_is_not_nested():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = two_norms()

        def forward(self, x):
            hidden = self.body[:3](x)
            return self.body[3:](hidden) + hidden[:, :1]

    _, case = case_of(Around().double())
    assert case.problem is not None and case.nested is None


def test_more_time_makes_it_no_worse():
    model, example = two_norms(width=16, dim=9), torch.zeros(1, 9, dtype=F64)
    first = ff.certify(model, example, time_budget=ff.Budget(steps=400))
    assert any('"nested": true' in json.dumps(proof) for proof in first.to_dict()["proofs"])
    second = ff.certify(model, example, time_budget=ff.Budget(steps=400), resume=first)
    assert float(second.upper) <= float(first.upper) and float(second.lower) >= float(first.lower)
    assert float(second.upper - second.lower) < float(first.upper - first.lower)


def test_over_a_region():
    model = two_norms(width=16, dim=9)
    center = torch.full((9,), 2.0)
    ball = {"kind": "ball", "center": center.tolist(), "radius": 1.0}
    made = ff.certify(model, torch.zeros(1, 9, dtype=F64), time_budget=ff.Budget(steps=600), domain=ball)
    generator = torch.Generator().manual_seed(0)
    inside = nn.functional.normalize(torch.randn(4000, 9, generator=generator, dtype=F64), dim=1)
    values = model(center.double() + inside * torch.rand(4000, 1, generator=generator, dtype=F64)).detach()
    assert float(made.lower) <= float(values.min()) and float(values.max()) <= float(made.upper)
    verify_certificate(model, made)


# ------------------------------------------------------------------ forgeries


@pytest.fixture(scope="module")
def honest():
    model = two_norms(width=10)
    program, proof, checked, _ = proved(model)
    top = float(attack(model, 7, 0)[1])
    return model, program, json.loads(json.dumps(proof.to_dict())), checked, top


def read(program, data):
    return proof_reader(program, program.outputs[0], EVERY_INPUT)(data)


def changed(text, kind, change):
    values = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=kind).astype(np.float64)
    return base64.b64encode(zlib.compress(change(values).astype(kind).tobytes())).decode()


def test_it_can_be_read_back(honest):
    _, program, data, checked, _ = honest
    again = read_proof(data)
    assert isinstance(again, DualProof) and again.by_checker
    assert read(program, again.to_dict()) == checked


def test_nothing_false_is_proved_by_other_multipliers(honest):
    """Each array times each of a few factors, and random ones: a bound below what is attained never comes out."""
    _, program, data, checked, top = honest
    rng = np.random.default_rng(0)
    assert checked >= top
    refused = 0
    places = [(c, k) for c in data["curves"] for k in data["curves"][c] if k not in ("lo", "hi")]
    for (node, name), change in itertools.product(
        places, (lambda v: 0 * v, lambda v: -v, lambda v: 0.5 * v, lambda v: v * rng.normal(1, 0.3, v.shape))
    ):
        forged = copy.deepcopy(data)
        forged["curves"][node][name] = changed(forged["curves"][node][name], "<f8", change)
        try:
            assert read(program, forged) >= top
        except CertificateError:
            refused += 1
    for norm, factor in itertools.product(data["norms"], (-1.0, 0.0, 0.5, 0.9, 2.0)):
        forged = copy.deepcopy(data)
        forged["norms"][norm]["kappa"] = [factor * k for k in forged["norms"][norm]["kappa"]]
        try:
            assert read(program, forged) >= top
        except CertificateError:
            refused += 1
    assert refused  # some of them are no proofs


def test_forged_structure_is_refused(honest):
    _, program, data, _, _ = honest
    nested = next(n for n, e in data["norms"].items() if e.get("nested"))
    other = next(n for n in data["norms"] if n != nested)

    def forged(change):
        made = copy.deepcopy(data)
        change(made)
        return made

    first = next(c for c, e in data["curves"].items() if "t" in e)
    size = len(np.frombuffer(zlib.decompress(base64.b64decode(data["products"])), dtype="<f4"))
    for change, words in (
        (lambda d: d["norms"][nested].update(parametrized=True), "not parametrized as well"),
        (lambda d: d["norms"][other].update(nested=True, parametrized=False), "One norm at most"),
        (lambda d: d.update(ranges={first: {}}), "no ranges are listed"),
        (lambda d: d["norms"][nested].update(omega=[1.0]), "ω of"),
        (lambda d: d["norms"][other].update(parametrized=False, kappa=[-1.0]), "negative"),
        (lambda d: d["norms"][nested].update(mu=[1.0]), "no form of a domain"),
        (lambda d: d["curves"][first].pop("t"), "no t, e, s"),
        (
            lambda d: d.update(products=changed(d["products"], "<f4", lambda v: v - 1e-3)),
            "negative weight",
        ),
        (
            lambda d: d.update(products=changed(d["products"], "<f4", lambda v: v[: size // 2])),
            "finite numbers",
        ),
    ):
        with pytest.raises(CertificateError, match=words):
            read(program, forged(change))


def test_a_layer_at_two_scales_is_refused():
    """The same layer behind the nested norm and around it: its variables can't be multiplied by τ and by 1."""

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = two_norms(width=10)

        def forward(self, x):
            hidden = self.body[:3](x)
            return self.body[3:](hidden) + hidden[:, :1]

    _, proof, _, _ = proved(two_norms(width=10))
    around = capture(Around().double().eval(), torch.zeros(1, 7, dtype=F64), dynamic_batch=False)
    names = [node.name for node in around.nodes if node.role == "operation"]
    assert set(proof.curves) <= set(names) and set(proof.norms) <= set(names)
    with pytest.raises(CertificateError, match="another norm's τ"):
        read(around, proof.to_dict())


# ------------------------------------------------------------------ parts


def test_the_joint_bound_without_ranges_is_the_maximum():
    generator = np.random.default_rng(0)
    for _ in range(20):
        root = generator.normal(size=(6, 6))
        matrix = root @ root.T + 0.1 * np.eye(6)
        least = matrix[0, 0] - matrix[0, 1:] @ np.linalg.solve(matrix[1:, 1:], matrix[1:, 0])
        found = joint_bound(MidRad.exact(matrix), np.full(6, 1e9), lambda extra: math.inf, True)
        assert -least <= found <= -least + 1e-9 * (1 + abs(least))
        worse = MidRad(matrix, np.full_like(matrix, 1e-6))
        assert joint_bound(worse, np.full(6, 1e9), lambda extra: math.inf, True) > found
    with pytest.raises(CertificateError, match="not positive"):
        joint_bound(MidRad.exact(-np.eye(3)), np.ones(3), lambda extra: math.inf, True)


def test_the_barrier_finds_the_least_bound():
    """min over t of ¼/t + t is 1, at t = ½."""

    def quadratic(m):
        return m["t"].reshape(1, 1), torch.ones(1, dtype=F64), m["t"].sum()

    found, bound = follow(
        quadratic, {"t": torch.full((1,), 4.0, dtype=F64)}, {}, running(ff.Budget(steps=400)),
        positive=("t",), never_negative=(),
    )  # fmt: skip
    assert bound == pytest.approx(1.0, abs=1e-3) and float(found["t"]) == pytest.approx(0.5, abs=0.05)


def test_an_anchor_bounds_what_the_norm_divides_by():
    model = two_norms(width=16)
    _, case = case_of(model)
    anchor = find_anchor(case.nested, running(ff.Budget(steps=300)))
    with torch.no_grad():
        before = model[:4](inputs(count=20000))
    ball = case.nested.outer.balls[0]
    unit = case.network.blocks[ball.block].radius / ball.radius
    least = float((before - before.mean(1, keepdim=True)).square().sum(1).min()) / unit**2
    assert 0 < anchor.least <= least


@pytest.mark.parametrize("bias", [-0.95, 1e4])
def test_the_search_does_not_depend_on_the_output_s_bias(bias):
    """It took the size of a bound, with its bias, for the size of what is searched: 1471 instead of 0.5 at 10⁴."""
    found = {}
    for shift in (0.0, bias):
        model = two_norms(seed=3)
        with torch.no_grad():
            model[-1].bias.fill_(shift)
        found[shift] = proved(model)[2] - shift
    assert math.isclose(found[0.0], found[bias], rel_tol=1e-2)


def test_many_outputs_in_a_short_time_are_left_to_the_plain_problem():
    """Ten outputs in the time of a hundred steps: none of them has enough for a nested search."""
    _, case = case_of(two_norms())
    anchor = replace(find_anchor(case.nested, running(ff.Budget(steps=150))), step_seconds=0.01)
    case = replace(case, anchor=anchor)
    assert case.nesting_pays(ff.Budget(seconds=10.0).start(), 2)
    assert not case.nesting_pays(ff.Budget(seconds=10.0).start(), 20)
    assert case.nesting_pays(ff.Budget(steps=10).start(), 20)  # counted steps: the same on any machine
    assert not replace(case, anchor=None).nesting_pays(ff.Budget(seconds=10.0).start(), 2)
