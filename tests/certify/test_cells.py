"""Branch and bound over cells: sound with no slack, tight, of second order, and its trees cover the domain."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from certify.cell_oracle import (
    ACTIVATIONS,
    DOUBLE,
    NORMS,
    PLACES,
    compiled_of,
    network_of,
    random_net,
    samples,
    violations,
)
from farfield import Budget
from farfield.certify._proofs import CellsProof
from farfield.certify.affine import Network
from farfield.certify.cells import _clouds, _compile, _maps, _norm, branch
from farfield.certify.cells._clouds import Clouds
from farfield.certify.cells._compile import CellsUnsupportedError, compile_cells
from farfield.certify.cells._tree import BrokenProofError, leaves, recheck
from farfield.certify.intervals import Interval
from farfield.gaussian import scalar_function

GRID = [
    (act, place, list(NORMS)[i % 4], 1 + (i + i // 4) % 3, (1e-5, 1e-12)[(i // 2) % 2], i)
    for i, (act, place) in enumerate(itertools.product(ACTIVATIONS, PLACES))
]
GRID += [("tanh", "first", norm, dim, 1e-5, 90 + dim) for norm in NORMS for dim in (1, 2, 3)]


def _trained(dim: int, width: int, act: type[nn.Module], steps: int = 150) -> nn.Module:
    torch.manual_seed(dim)
    model = nn.Sequential(
        nn.Linear(dim, width), nn.LayerNorm(width), act(),
        nn.Linear(width, width), nn.LayerNorm(width), act(), nn.Linear(width, 1),
    ).double()  # fmt: skip
    x = 2 * torch.randn(256, dim, dtype=DOUBLE)
    y = torch.sin(2 * x).prod(1, keepdim=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


# ------------------------------------------------------------------ soundness


@pytest.mark.parametrize(("act", "place", "norm", "dim", "eps", "seed"), GRID)
def test_no_value_passes_its_bound(act: str, place: str, norm: str, dim: int, eps: float, seed: int) -> None:
    model = random_net(seed, dim, norm, act, place, eps)
    generator = torch.Generator().manual_seed(seed)
    network = network_of(model, dim)
    x = samples(dim, 8000, generator)
    for sign in (1, -1):
        assert not violations(model, compile_cells(network, 0, sign), 0, sign, generator)
        proof, _ = branch(network, 0, sign, time_budget=Budget(steps=15), tolerance=1e-3)
        assert float((sign * model(x)[:, 0]).max()) <= proof.bound
        assert proof.attained <= proof.bound


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("dim", [1, 2])
def test_box_domains(act: str, dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    lo = -3 * torch.rand(1, dim, generator=generator, dtype=DOUBLE)
    hi = lo + 4 * torch.rand(1, dim, generator=generator, dtype=DOUBLE)
    model = random_net(dim, dim, "layer", act, "second", 1e-5)
    network = network_of(model, dim, Interval(lo, hi))
    x = lo + (hi - lo) * torch.rand(5000, dim, generator=generator, dtype=DOUBLE)
    for sign in (1, -1):
        assert not violations(model, compile_cells(network, 1, sign), 1, sign, generator)
        proof, _ = branch(network, 1, sign, time_budget=Budget(steps=150), tolerance=1e-4)
        top = float((sign * model(x)[:, 1]).max())
        assert top <= proof.bound
        assert proof.ratio < 1.01


@pytest.mark.parametrize("op", ["selu", "elu", "atan", "softplus", "gelu", "tanh", "softshrink"])
def test_tails_alone_are_sound(op: str) -> None:
    f = scalar_function(op)
    assert f is not None
    z = torch.tensor([[-3e9, -4e4, -60.0, -0.3, 0.2, 45.0, 7e5]], dtype=DOUBLE)
    for t in (1.0, 0.7, 1e-3):
        point = Clouds(torch.stack([z, 0 * z]), 0 * z)
        one = torch.full((1, 1), t, dtype=DOUBLE)
        time_ = Clouds(torch.stack([one, 0 * one]), 0 * one)
        made = _clouds._tails(f, point, time_, one)
        low, high = made.range()
        value = t * f.function(z / t)
        assert bool(((low <= value) & (value <= high)).all())


# ------------------------------------------------------------------ wrong on purpose

WRONG = [("tanh", "first", "layer", 2), ("gelu", "every", "rms", 1), ("silu", "second", "layer", 1)]


def _caught(index: int = 0) -> bool:
    for seed, (act, place, norm, dim) in enumerate(WRONG):
        model = random_net(seed, dim, norm, act, place, 1e-5)
        generator = torch.Generator().manual_seed(seed)
        if violations(model, compiled_of(model, dim), index, 1, generator, cells=400):
            return True
    return False


def test_the_oracle_passes_what_is_right() -> None:
    assert not _caught()


def test_a_chord_without_its_miss_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _clouds._line
    monkeypatch.setattr(_clouds, "_line", lambda *a: replace(right(*a), error=torch.zeros_like(a[1])))
    assert _caught()


def test_a_norm_without_its_second_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _compile.apply_norm

    def wrong(*given: object) -> object:
        cloud, blame = right(*given)  # type: ignore[arg-type]
        return Clouds(cloud.values, cloud.radius * 0), blame

    monkeypatch.setattr(_compile, "apply_norm", wrong)
    assert _caught()


def test_rounding_inwards_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_clouds, _norm, _maps, _compile):
        for name, value in (("INFLATE", 1 - 2.0**-40), ("SLIP", -(2.0**-48)), ("ROUND", -(2.0**-53))):
            monkeypatch.setattr(module, name, value, raising=False)
    assert _caught()


def test_the_wrong_side_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Clouds.range
    monkeypatch.setattr(Clouds, "range", lambda self, reach=None: right(self, reach)[::-1])
    assert _caught()


def _canceling() -> tuple[Network, float]:
    """A network of one input whose first two maps nearly cancel, and its value at 1 from exact fractions."""
    torch.manual_seed(3)
    first, second = nn.Linear(1, 6).double(), nn.Linear(6, 3).double()
    with torch.no_grad():
        first.weight.mul_(1e6)
        # Sums near zero: what is left is what rounding made.
        second.weight[:, -1:] = -(second.weight[:, :-1] @ first.weight[:-1]) / first.weight[-1:]
        first.bias.zero_()
        second.bias.zero_()
    model = nn.Sequential(first, second, L2Tail()).requires_grad_(False)
    a = [Fraction(float(v)) for v in first.weight[:, 0]]
    z = [
        sum((Fraction(float(w)) * v for w, v in zip(row, a, strict=True)), Fraction(0))
        for row in second.weight
    ]
    q = sum((v * v for v in z), Fraction(0)) + Fraction(1e-18)
    return network_of(model, 1), float(z[0]) / math.sqrt(float(q))


class L2Tail(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-18)


def _bound_at_one(network: Network, sign: int) -> float:
    compiled = compile_cells(network, 0, sign)
    compiled = replace(compiled, matrix=torch.eye(2, dtype=DOUBLE))
    one = torch.ones(1, 1, dtype=DOUBLE)
    return float(compiled.bound(torch.tensor([3]), one, one * 2.0**-60)[0])


def test_ignoring_the_magnitudes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    network, value = _canceling()
    assert -_bound_at_one(network, -1) <= value <= _bound_at_one(network, 1)
    monkeypatch.setattr(_maps, "UNIT", 0.0)
    assert not -_bound_at_one(network, -1) <= value <= _bound_at_one(network, 1)


# ------------------------------------------------------------------ tightness and rate


@pytest.mark.parametrize("act", [nn.Tanh, nn.ReLU, nn.GELU])
@pytest.mark.parametrize(("dim", "width", "ratio"), [(1, 32, 1.003), (2, 32, 1.01), (3, 32, 1.1)])
def test_trained_networks_are_bounded_tightly(
    act: type[nn.Module], dim: int, width: int, ratio: float
) -> None:
    network = network_of(_trained(dim, width, act), dim)
    for sign in (1, -1):
        proof, _ = branch(network, 0, sign, time_budget=Budget(steps=700), tolerance=1e-3)
        assert proof.ratio <= ratio, (proof.status, proof.cells)


@pytest.mark.parametrize("act", ["tanh", "gelu", "silu", "softplus"])
@pytest.mark.parametrize("place", ["first", "every", "second"])
def test_halving_a_cell_quarters_the_excess(act: str, place: str) -> None:
    model = random_net(7, 2, "layer", act, place, 1e-5)
    compiled = compiled_of(model, 2)
    face = torch.tensor([5, 5, 5])
    center = torch.tensor([[0.25, -0.5], [0.5, 0.25], [-0.75, 0.75]], dtype=DOUBLE)
    widths = []
    for level in (8, 10):
        half = torch.full_like(center, 2.0**-level)
        upper, _, slopes = compiled.bound(face, center, half)
        value = compiled.evaluate(compiled.points(face, center) @ compiled.matrix.T)
        widths.append(upper - value - slopes.abs().sum(1))
    slope = torch.log2(widths[0] / widths[1]) / 2
    assert bool((slope > 1.8).all() & (slope < 2.3).all()), slope


# ------------------------------------------------------------------ trees, state, data


def test_trees_cover_the_cube() -> None:
    model = random_net(4, 2, "layer", "gelu", "first", 1e-5)
    network = network_of(model, 2)
    proof, _ = branch(network, 0, 1, time_budget=Budget(steps=80), tolerance=1e-4)
    assert len(proof.trees) == 6
    for face, tree in enumerate(proof.trees):
        center, half, inside = leaves(tree, 2)
        assert float((2 * half).prod(1).sum()) == 4.0  # dyadic volumes add up exactly
        assert bool(((center.abs() + half) <= 1).all())
        assert float((2 * half[inside]).prod(1).sum()) == {4: 0.0, 5: 4.0}.get(face, 2.0)
    assert recheck(network, proof) == pytest.approx(proof.bound, rel=1e-13)


def test_a_tree_that_leaves_out_inputs_is_refused() -> None:
    network = network_of(random_net(4, 2, "layer", "gelu", "first", 1e-5), 2)
    proof, _ = branch(network, 0, 1, time_budget=Budget(steps=80), tolerance=1e-3)
    for tree in ("x", "0.", "..", "2..", "1.x"):
        broken = replace(proof, trees=(*proof.trees[:-1], tree))
        with pytest.raises(BrokenProofError):
            recheck(network, broken)
    singular = (*proof.matrix[:-1], (0.0, 0.0, 0.0))
    with pytest.raises(BrokenProofError):
        recheck(network, replace(proof, matrix=singular))


def test_a_search_goes_on_where_it_stopped() -> None:
    network = network_of(random_net(5, 3, "layer", "tanh", "every", 1e-5), 3)
    first, state = branch(network, 0, 1, time_budget=Budget(steps=10))
    cells, bounded = first.cells, first.bounded
    second, _ = branch(network, 0, 1, time_budget=Budget(steps=40), state=state)
    assert second.cells > cells and second.bounded > bounded
    assert second.bound <= first.bound * (1 + 1e-9)
    assert second.attained >= first.attained


def test_the_deadline_and_the_memory_limit_hold() -> None:
    network = network_of(random_net(5, 3, "group", "tanh", "every", 1e-12), 3)
    clock = Budget(steps=50).start()
    proof, _ = branch(network, 0, 1, time_budget=clock)
    assert proof.status == "deadline"
    assert clock.steps_left == 0
    limited, _ = branch(network, 0, 1, time_budget=Budget(steps=2000), memory_bytes=1 << 20)
    assert limited.status == "memory"
    assert branch(network, 0, 1, time_budget=0.0)[0].status == "deadline"


def test_a_proof_is_plain_data() -> None:
    network = network_of(random_net(4, 1, "layer", "gelu", "first", 1e-5), 1)
    seen: list[float] = []
    proof, _ = branch(network, 0, 1, time_budget=Budget(steps=80), progress=lambda b, a, c: seen.append(b))
    assert seen and CellsProof.from_dict(json.loads(json.dumps(proof.to_dict()))) == proof


def test_the_attained_value_is_the_models() -> None:
    model = random_net(6, 2, "layer", "silu", "every", 1e-5)
    for sign in (1, -1):
        proof, _ = branch(network_of(model, 2), 0, sign, time_budget=Budget(steps=80))
        x = torch.tensor([proof.point], dtype=DOUBLE)
        value = sign * float(model(x if proof.finite else x * 1e12)[0, 0])
        assert value == pytest.approx(proof.attained, rel=1e-9)


def test_what_is_not_compact_is_refused() -> None:
    network = network_of(nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double(), 1)
    with pytest.raises(CellsUnsupportedError):
        branch(network, 0, 1, time_budget=Budget(steps=1))
    with pytest.raises(ValueError, match="sign"):
        compiled_of(random_net(6, 2, "layer", "silu", "every", 1e-5), 2, sign=2)
