"""The dual: any multipliers are a proof, the gradient is right, and what is claimed of scalars and matrices holds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from certify.networks import attack, network
from farfield import Budget
from farfield.certify._proofs import DualProof, pack, read_proof
from farfield.certify._rounding import positive_definite, spectral_bound
from farfield.certify.affine import build_network
from farfield.certify.checker._dual import DualCheck
from farfield.certify.checker._dual_data import unpack
from farfield.certify.checker._values import MidRad
from farfield.certify.dual import publish, restore
from farfield.certify.dual._assembly import build_problem
from farfield.certify.dual._descent import initial_multipliers, optimize
from farfield.certify.dual._dual import Dual, objective
from farfield.certify.dual._prove import prove
from farfield.certify.intervals import propagate
from farfield.graph import capture


def problem_of(model, dim):
    program = capture(model, torch.zeros(1, dim, dtype=torch.float64), dynamic_batch=False)
    net = build_network(program, program.outputs[0], propagate(program))
    return program, net, build_problem(net)


def small(activation=nn.ReLU, depth=2, seed=0, dim=3, width=10):
    torch.manual_seed(seed)
    layers = [nn.Linear(dim, width), nn.LayerNorm(width), activation()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), activation()]
    return nn.Sequential(*layers, nn.Linear(width, 2)).double().eval()


def perturbed(multipliers, generator, size):
    return {
        k: v
        + size * (v.abs() + v.abs().mean() + 0.01) * torch.randn(v.shape, generator=generator, dtype=v.dtype)
        for k, v in multipliers.items()
    }


def lifted(dual, m):
    """The multipliers with H made positive."""
    dual.weigh({k: v.abs() for k, v in m.items()})
    with torch.no_grad():
        return dual.value({**m, "room": m["room"].abs() + 0.01})[1]


@pytest.mark.parametrize("seed", range(12))
def test_any_multipliers_that_can_be_proved_give_a_bound(seed):
    model, dim, what = network(200 + seed, largest=32, deepest=3)
    _, _, problem = problem_of(model, dim)
    low, high = attack(model, dim, seed)
    generator = torch.Generator().manual_seed(seed)
    proved = 0
    for sign, top in ((1, high), (-1, -low)):
        goal = objective(problem, 0, sign)
        dual = Dual(problem, goal)
        first = initial_multipliers(problem, goal, dual.count)
        for draw in range(10):
            m = perturbed(first, generator, 0.03 * draw)
            m["n"] = m["n"].abs() * 0.01 + 0.01 * draw * torch.rand(
                m["n"].shape, generator=generator, dtype=torch.float64
            )
            m["n"] = (m["n"] + m["n"].T) / 2
            try:
                bound = prove(problem, goal, lifted(dual, m), 0).bound
            except ArithmeticError:  # not positive: nothing is claimed
                continue
            proved += 1
            assert bound >= float(top[0]), (what, sign, draw)
    assert proved >= 4, what


def test_gradient_against_differences():
    _, _, problem = problem_of(small(nn.Tanh), 3)
    goal = objective(problem, 1, 1)
    dual = Dual(problem, goal)
    generator = torch.Generator().manual_seed(0)
    m = initial_multipliers(problem, goal, dual.count)
    m = {
        k: v + 0.1 * v.abs().mean() * torch.rand(v.shape, generator=generator, dtype=v.dtype)
        for k, v in m.items()
    }
    m["n"] = 1e-3 * torch.rand(m["n"].shape, generator=generator, dtype=torch.float64)
    m["n"] = (m["n"] + m["n"].T) / 2
    dual.weigh(m)
    live = {k: v.clone().requires_grad_(True) for k, v in m.items()}
    dual.value(live)[0].backward()
    for name, value in live.items():
        if value.grad is None or not value.numel():
            continue
        way = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        way = (way + way.T) / 2 if name == "n" else way

        def at(step, name=name, way=way):
            dual.ray = None
            moved = {**m, name: m[name] + step * way}
            return float(dual.value(moved)[0])

        numeric = (at(1e-6) - at(-1e-6)) / 2e-6
        assert math.isclose(numeric, float((value.grad * way).sum()), rel_tol=1e-4, abs_tol=1e-4), name


def test_hessian_and_linear_part_are_the_lagrangian_s():
    _, _, problem = problem_of(small(nn.GELU, depth=3), 3)
    goal = objective(problem, 0, -1)
    dual = Dual(problem, goal)
    generator = torch.Generator().manual_seed(1)
    m = perturbed(initial_multipliers(problem, goal, dual.count), generator, 0.2)
    m["n"] = torch.rand(m["n"].shape, generator=generator, dtype=torch.float64)
    m["n"] = m["n"] + m["n"].T
    hessian, linear = dual.hessian(m), dual.linear(m)
    zero = torch.zeros(problem.size, dtype=torch.float64)
    for _ in range(5):
        x = torch.randn(problem.size, generator=generator, dtype=torch.float64)
        expected = dual.joint(m, zero) + linear @ x - x @ hessian @ x
        assert torch.allclose(dual.joint(m, x), expected, rtol=1e-9, atol=1e-9)


def test_a_norm_behind_the_first_linear_is_parametrized_exactly():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 9), nn.LayerNorm(9), nn.Linear(9, 9)).double().eval()
    _, _, problem = problem_of(model, 3)
    (ball,) = problem.balls
    assert ball.parametrized
    weight = torch.cat([model[0].weight, model[0].bias[:, None]], 1).detach()
    centered = weight - weight.mean(0)
    for size in (1e-6, 1.0, 1e5):
        x = size * torch.randn(3, dtype=torch.float64)
        u = torch.cat([x, torch.ones(1, dtype=torch.float64)])
        u = u / ((centered @ u).square().mean() + 1e-5 * u[-1] ** 2).sqrt()
        scaled = torch.linalg.lstsq(problem.objective, model(x[None])[0].detach() - problem.offset).solution
        assert torch.allclose(scaled @ ball.gram @ scaled, torch.ones((), dtype=torch.float64), rtol=1e-8)
        assert torch.allclose(
            problem.objective @ scaled + problem.offset, model(x[None])[0].detach(), rtol=1e-9
        )


def test_search_tightens_and_the_payload_is_the_proof():
    _, net, problem = problem_of(small(), 3)
    goal = objective(problem, 0, 1)
    dual = Dual(problem, goal)
    first = lifted(dual, initial_multipliers(problem, goal, dual.count))
    loose = prove(problem, goal, first, 0).bound
    multipliers, value = optimize(problem, goal, time_budget=Budget(steps=400))
    proof = prove(problem, goal, multipliers, 0)
    assert proof.bound < 0.7 * loose
    # Stored products are rounded to single precision: the proof is of those multipliers, the search's were others.
    hessian, linear = dual.hessian(proof.multipliers), dual.linear(proof.multipliers)
    peak = dual.joint(proof.multipliers, 0.5 * torch.linalg.solve(hessian, linear))
    exact = float(peak + dual.separable_part(proof.multipliers))
    assert exact <= proof.bound <= exact + 1e-6 * abs(exact)
    assert math.isclose(value, exact, rel_tol=1e-5)
    stored = read_proof(json.loads(json.dumps(publish(net, problem, proof, 0, 1).to_dict())))
    again = prove(problem, goal, restore(net, problem, stored), 0)
    assert math.isclose(again.bound, proof.bound, rel_tol=1e-12)


def test_a_search_that_lets_omega_grow_loses_nothing_to_rounding():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 12), nn.LayerNorm(12), nn.ReLU())
    _, _, problem = problem_of(model.append(nn.Linear(12, 1)).double().eval(), 3)
    assert [ball.centered for ball in problem.balls] == [True]
    goal = objective(problem, 0, 1)
    multipliers, _ = optimize(problem, goal, time_budget=Budget(steps=300))
    usual = prove(problem, goal, multipliers, 0).bound
    for times in (1e6, 1e12, 1e18, 1e30):
        far = multipliers | {"omega": multipliers["omega"] * times}
        assert prove(problem, goal, far, 0).bound <= usual + 1e-5 * abs(usual)


def test_spectral_bound_is_above_the_norm_and_near():
    generator = torch.Generator().manual_seed(0)
    for shape in ((5, 5), (40, 7), (7, 40), (128, 128), (1, 9)):
        matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
        norm = float(torch.linalg.matrix_norm(matrix, 2))
        assert norm <= spectral_bound(matrix) <= 1.1 * norm
    assert spectral_bound(torch.zeros(3, 3, dtype=torch.float64)) >= 0.0


def test_positive_definite_is_proved_only_where_true():
    generator = torch.Generator().manual_seed(0)
    for size in (2, 20, 100):
        root = torch.randn(size, size, generator=generator, dtype=torch.float64)
        gram = root @ root.T + 1e-3 * torch.eye(size, dtype=torch.float64)
        lowest = float(torch.linalg.eigvalsh(gram)[0])
        assert positive_definite(gram, 0.0)
        assert not positive_definite(gram - 1.01 * lowest * torch.eye(size, dtype=torch.float64), 0.0)
        assert not positive_definite(gram, torch.full_like(gram, 2 * lowest))
    nearly = torch.ones(2, 2, dtype=torch.float64)  # singular: no rounding may make it positive
    assert not positive_definite(nearly, 0.0)
    assert not positive_definite(torch.full((2, 2), math.nan, dtype=torch.float64), 0.0)


def test_products_are_stored_once_and_read_from_either_form():
    products = torch.tensor([[1.0, 0.5, 0.0], [0.5, 2.0, 0.25], [0.0, 0.25, 0.0]], dtype=torch.float64)
    data = DualProof(0, 1, 1.0, 0.5, {}, {}, {}, (), products).to_dict()
    stored = unpack(data["products"], 9, "products", "<f4").reshape(3, 3)
    assert (stored == [[1.0, 1.0, 0.0], [0.0, 2.0, 0.5], [0.0, 0.0, 0.0]]).all()
    for text in (data["products"], pack(products, "<f4")):  # as earlier certificates have it
        assert torch.equal(read_proof({**data, "products": text}).products, products)


def test_a_norm_is_remembered_by_its_numbers_and_its_shape():
    check = DualCheck.__new__(DualCheck)
    check.memo = {}
    wide = np.array([[3.0, 0.0, 4.0], [0.0, 5.0, 0.0]])
    for matrix in (wide, wide.reshape(3, 2), wide + 1e-9, wide):
        assert check._norm(MidRad.exact(matrix)) == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-6)
    assert len(check.memo) == 3
    assert check._norm(MidRad(wide, np.full_like(wide, 0.5))) >= np.linalg.norm(wide + 0.5, 2)
