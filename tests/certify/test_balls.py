"""Cells of an ellipsoid, a ball in the cube of the box around it: what they claim holds there, with zero slack."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import farfield as ff
from certify.cell_oracle import ACTIVATIONS, NORMS, random_net
from certify.regions import attack
from farfield.certify import CertificateError, verify_certificate
from farfield.certify._cone import cone_of
from farfield.certify._task import Task
from farfield.certify.cells import CellNetwork, compile_cells
from farfield.certify.cells._compile import _ball
from farfield.certify.cells._norm import _largest_square, _product
from farfield.certify.cells._reach import Reach, length, swing
from farfield.certify.checker._cells import CellsCheck
from farfield.certify.checker._given import bounded_program, box_around, cone_of_domain
from farfield.certify.checker._ranges import Ranges
from farfield.certify.checker._slopes import cells_of_a_ball
from farfield.graph import capture

F64 = torch.float64
AXES = 7
SEEDS = st.integers(0, 2**31)


def ellipsoid(seed, dim=AXES):
    """Axes of sizes that differ by up to a hundred, at a distance."""
    source = torch.Generator().manual_seed(seed)
    center = 10 ** float(torch.rand(1, generator=source) * 3 - 1) * torch.randn(
        dim, generator=source, dtype=F64
    )
    size = 10 ** float(torch.rand(1, generator=source) * 4 - 3)
    axes = size * 10 ** (2 * torch.rand(dim, generator=source, dtype=F64) - 1)
    return {"kind": "ellipsoid", "center": center.tolist(), "axes": axes.tolist()}


def cells(source, count, dim=AXES):
    """(center, half) of the whole cube and of what halving it a few times gives."""
    center, half = torch.zeros(count, dim, dtype=F64), torch.ones(count, dim, dtype=F64)
    for one in range(1, count):
        for axis in torch.randint(
            0, dim, (int(torch.randint(1, 2 * dim, (1,), generator=source)),), generator=source
        ):
            half[one, axis] /= 2
            center[one, axis] += half[one, axis] * (2 * int(torch.randint(0, 2, (1,), generator=source)) - 1)
    return center, half


def within(center, half, count, source):
    """(points, cells, axes): points of every cell that are in the unit ball, many on its rim; NaN for none."""
    raw = torch.randn(count, *center.shape, generator=source, dtype=F64)
    raw = (
        raw
        / raw.norm(dim=-1, keepdim=True)
        * torch.rand(count, len(center), 1, generator=source).double().pow(0.1)
    )
    low, high = center - half, center + half
    for _ in range(30):  # alternating projections, the ball's last
        raw = raw.maximum(low).minimum(high)
        raw = raw / raw.norm(dim=-1, keepdim=True).clamp_min(1.0)
    kept = ((raw >= low) & (raw <= high)).all(-1) & (raw.norm(dim=-1) <= 1.0)
    return torch.where(kept[..., None], raw, math.nan)


def prepared(seed, norm, act, place):
    """(model, domain, network over the box around the domain as cells take it, checker's)."""
    model, domain = random_net(seed, AXES, norm, act, place, 1e-5), ellipsoid(seed)
    program = capture(model, torch.zeros(1, AXES, dtype=F64), dynamic_batch=False)
    task = Task.over(program, program.outputs[0], domain).boxed
    network = task.network
    compiled = compile_cells(network, 0, 1, cone_of(domain))
    assert compiled.ball is not None
    _, confined, unbounded = bounded_program(program, box_around(program, domain))
    ball = cone_of_domain(program, domain)
    check = CellsCheck(Ranges(program, confined), task.output, confined, unbounded, 0, 1.0, None, ball)
    return model, domain, compiled, check


@pytest.mark.parametrize("norm", sorted(NORMS))
@pytest.mark.parametrize("place", ["first", "second", "every"])
@pytest.mark.parametrize("seed", range(4))
def test_no_point_of_a_cell_in_the_ball_exceeds_its_bound(norm, place, seed):
    act = sorted(ACTIVATIONS)[(seed * 5 + len(norm) + len(place)) % len(ACTIVATIONS)]
    model, domain, compiled, check = prepared(seed, norm, act, place)
    source = torch.Generator().manual_seed(seed)
    center, half = cells(source, 24)
    upper, _, slopes = compiled.bound(torch.zeros(24, dtype=torch.long), center, half)
    matrix, shift = compiled.matrix.numpy(), compiled.shift.numpy()
    with np.errstate(all="ignore"):
        _, checked, _ = check.bound(matrix, shift, center.numpy(), half.numpy())
    p = within(center, half, 400, source)
    ahead = slopes / half / (slopes / half).norm(dim=1, keepdim=True).clamp_min(1e-300)
    p = torch.cat(
        [p, torch.where(((ahead - center).abs() <= half).all(1, keepdim=True), ahead, math.nan)[None]]
    )
    middle, axes = (torch.tensor(domain[k], dtype=F64) for k in ("center", "axes"))
    with torch.no_grad():
        values = model((middle + axes * p * (1 - 1e-12)).reshape(-1, AXES))[:, 0].reshape(p.shape[:2])
    met = values.nan_to_num(-math.inf).amax(0)
    assert bool((met <= upper).all())
    assert bool((met <= torch.from_numpy(checked)).all())
    assert bool(torch.isfinite(met).any())
    assert not bool((torch.isfinite(met) & ~torch.isfinite(upper)).any())


def test_cells_outside_of_the_ball_do_not_count():
    _, _, compiled, check = prepared(0, "layer", "relu", "every")
    center, half = torch.full((1, AXES), 0.75, dtype=F64), torch.full((1, AXES), 0.25, dtype=F64)
    assert float(compiled.bound(torch.zeros(1, dtype=torch.long), center, half)[0]) == -math.inf
    matrix, shift = compiled.matrix.numpy(), compiled.shift.numpy()
    assert check.bound(matrix, shift, center.numpy(), half.numpy())[1][0] == -math.inf
    corner = torch.zeros(1, AXES, dtype=F64)
    corner[0, :2] = 0.75  # (½, ½) is inside
    part = torch.where(corner > 0, 0.25, 1.0)
    assert math.isfinite(float(compiled.bound(torch.zeros(1, dtype=torch.long), corner, part)[0]))
    assert math.isfinite(check.bound(matrix, shift, corner.numpy(), part.numpy())[1][0])


def random_reach(source, count):
    center, half = cells(source, count)
    least = (center.abs() - half).clamp_min(0.0).square().sum(1)
    radius = (1.0 - least).clamp_min(0.0).sqrt()
    return Reach((half == 1.0) & (center == 0.0), radius * (1 + 1e-15))


def offsets(reach, source, count=300):
    """(axes, points, cells): δ as a reach allows, extreme ones."""
    raw = torch.randn(len(reach.whole.T), count, len(reach.radius), generator=source, dtype=F64)
    whole = reach.whole.T[:, None]
    inner = torch.where(whole, raw, 0.0)
    inner = reach.radius * inner / inner.norm(dim=0).clamp_min(1e-300)
    return torch.where(whole, inner, raw.sign())


@given(seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_sums_and_products_over_a_reach_are_bounded(seed):
    source = torch.Generator().manual_seed(seed)
    reach = random_reach(source, 6)
    delta = offsets(reach, source)
    b, tilt = (torch.randn(AXES, 6, 2, 3, generator=source, dtype=F64) for _ in range(2))
    tilt = tilt[..., :1]
    first, second = (torch.einsum("kcgm,kpc->pcgm", v, delta) for v in (b, tilt))
    assert bool((first.abs().amax(0) <= swing(b, reach) * (1 + 1e-14)).all())
    middle, swung = _product(b, tilt, reach)
    slack = 1e-14 * (1 + swung)
    assert bool(((first * second - middle).abs() <= swung + slack).all())
    products = torch.einsum("icgm,jcgm->ijcg", b, b)
    square = torch.einsum("ijcg,ipc,jpc->pcg", products, delta, delta)
    assert bool((square.amax(0) <= _largest_square(products, reach) * (1 + 1e-13)).all())


def test_over_a_ball_a_product_is_exact():
    source = torch.Generator().manual_seed(0)
    whole = Reach(torch.ones(1, AXES, dtype=torch.bool), torch.full((1,), 0.7, dtype=F64))
    b, tilt = (torch.randn(AXES, 1, 1, 1, generator=source, dtype=F64) for _ in range(2))
    middle, swung = _product(b, tilt, whole)
    ends = []
    for sign in (1.0, -1.0):
        delta = b / b.norm() + sign * tilt / tilt.norm()
        delta = 0.7 * delta / delta.norm()
        ends.append(float((b * delta).sum() * (tilt * delta).sum()))
    assert float(middle + swung) == pytest.approx(ends[0], rel=1e-11)
    assert float(middle - swung) == pytest.approx(ends[1], rel=1e-11)


def test_lengths_of_tiny_and_of_broken_slopes_are_not_too_small():
    tiny = torch.full((4, 1), 1e-200, dtype=F64)
    assert float(length(tiny)) >= 2e-200
    assert float(length(torch.tensor([[math.inf], [1.0]], dtype=F64))) == math.inf
    assert float(length(torch.tensor([[math.nan], [1.0]], dtype=F64))) == math.inf


def test_the_checker_s_reach_is_the_search_s():
    source = torch.Generator().manual_seed(1)
    center, half = cells(source, 40)
    reach, beside = cells_of_a_ball(center.numpy(), half.numpy(), 1.0)
    compiled = prepared(0, "layer", "relu", "every")[2]
    ours, out = CellNetwork._reach(compiled, center, half, 1.0)
    assert np.array_equal(reach.whole.T, ours.whole.numpy())
    assert np.allclose(reach.radius, ours.radius.numpy(), rtol=1e-12)
    assert np.array_equal(beside, out.numpy())


@pytest.mark.parametrize("seed", range(20))
def test_the_ball_of_any_coordinates_holds_the_ellipsoid(seed):
    _, domain, _, check = prepared(seed, "layer", "relu", "every")
    source = torch.Generator().manual_seed(seed)
    center, axes = (torch.tensor(domain[k], dtype=F64) for k in ("center", "axes"))
    scale = axes * 10 ** torch.randn(AXES, generator=source, dtype=F64)
    shift = center + scale * torch.randn(AXES, generator=source, dtype=F64)
    theirs = check._radius(np.diag(scale.numpy()), shift.numpy())
    ours = _ball(cone_of(domain), torch.diag(scale), shift)
    start, turn = (center - shift) / scale, axes / scale
    rim = torch.randn(2000, AXES, generator=source, dtype=F64)
    for _ in range(20):  # towards the farthest point
        rim = rim / rim.norm(dim=1, keepdim=True)
        far = (start + turn * rim).norm(dim=1).max()
        rim = turn * (start + turn * rim)
    assert float(far) <= theirs
    assert float(far) <= ours


# -- certificates ----------------------------------------------------------------------------------------------


def late(dim=AXES):
    torch.manual_seed(0)
    layers = (nn.Linear(dim, 16), nn.GELU(), nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2))
    return nn.Sequential(*layers).double().eval()


def certified(domain, steps=100, model=None):
    model = model or late()
    x = torch.zeros(1, AXES, dtype=F64)
    return model, ff.certify(model, x, domain=domain, time_budget=ff.Budget(steps=steps))


SMALL = {
    "ball": {"kind": "ball", "center": torch.linspace(-1, 1, AXES).tolist(), "radius": 1e-3},
    "ellipsoid": {
        "kind": "ellipsoid",
        "center": torch.linspace(-1, 1, AXES).tolist(),
        "axes": torch.logspace(-5, -2.5, AXES).tolist(),
    },
    "far away": {"kind": "ball", "center": [1e3] * AXES, "radius": 1e-1},
}


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_small_ball_is_tight_behind_a_late_norm(name):
    model, made = certified(SMALL[name])
    assert {(p["kind"], p["over"]) for p in made.proofs} == {("cells", "box")}
    assert float(made.tightness.max()) < 1.1
    assert verify_certificate(model, json.loads(json.dumps(made.to_dict())))
    low, high = attack(model, made.domain, AXES, 0)
    assert bool((made.lower.reshape(-1) <= low).all())
    assert bool((high <= made.upper.reshape(-1)).all())


@pytest.mark.full
def test_it_is_resumed_and_stands_beside_the_bounds_for_every_input():
    model, first = certified(SMALL["ball"])
    x = torch.zeros(1, AXES, dtype=F64)
    again = ff.certify(model, x, domain=SMALL["ball"], resume=first, time_budget=ff.Budget(steps=1))
    assert bool((again.lower >= first.lower).all() and (again.upper <= first.upper).all())
    both = ff.certify(model, x, within=SMALL["ball"], time_budget=ff.Budget(steps=100))
    assert both.within is not None
    assert bool((both.within.upper - both.within.lower < 0.01 * (both.upper - both.lower)).all())
    assert verify_certificate(model, both)


def refused(model, data, words):
    with pytest.raises(CertificateError, match=words):
        verify_certificate(model, data)


@pytest.mark.full
def test_what_is_altered_is_refused():
    model, made = certified(SMALL["ball"])
    honest = made.to_dict()
    width = float(made.upper.reshape(-1)[0] - made.lower.reshape(-1)[0])
    lowered = copy.deepcopy(honest)
    for proof in lowered["proofs"]:
        proof["bound"] -= 0.2 * width
    refused(model, lowered, "it states .* and proves")
    larger = copy.deepcopy(honest)  # a proof about a small ball is none about a larger one
    larger["domain"]["radius"] *= 2
    refused(model, larger, "do not cover")
    squeezed = copy.deepcopy(honest)
    squeezed["proofs"][0]["matrix"][0][0] *= 0.9
    refused(model, squeezed, "do not cover")
    moved = copy.deepcopy(honest)  # p of the same inputs reaches further in other coordinates
    for proof in moved["proofs"]:
        proof["shift"][0] += 5e-4
        proof["matrix"][0][0] += 6e-4
    refused(model, moved, "it states .* and proves")


@pytest.mark.full
def test_only_balls_and_ellipsoids_have_proofs_over_a_box_around_them():
    model, made = certified({"kind": "box", "lower": [-1e-3] * AXES, "upper": [1e-3] * AXES})
    data = made.to_dict()
    for proof in data["proofs"]:
        proof["over"] = "box"
    refused(model, data, "Only a ball or an ellipsoid")
    everywhere = ff.certify(model, torch.zeros(1, AXES, dtype=F64), time_budget=ff.Budget(steps=2)).to_dict()
    for proof in everywhere["proofs"]:
        proof["over"] = "box"
    refused(model, everywhere, "Only a ball or an ellipsoid")


@pytest.mark.full
def test_a_flat_ellipsoid_has_cells_of_the_box_around_it():
    flat = {"kind": "ellipsoid", "center": [0.5] * AXES, "axes": [0.0] + [1e-3] * (AXES - 1)}
    model, made = certified(flat)
    assert verify_certificate(model, made)
    raw = torch.randn(2000, AXES, generator=torch.Generator().manual_seed(0), dtype=F64)
    raw[:, 0] = 0.0
    with torch.no_grad():
        y = model(0.5 + torch.tensor(flat["axes"], dtype=F64) * raw / raw.norm(dim=1, keepdim=True))
    assert bool((made.lower <= y).all() and (y <= made.upper).all())


class TwoInputs(nn.Module):
    """Only the first of two inputs reaches the output."""

    def __init__(self):
        super().__init__()
        self.inner = late()

    def forward(self, x, unused):
        return self.inner(x)


@pytest.mark.full
def test_an_ellipsoid_of_several_inputs_is_no_ball_of_one_of_them():
    model = TwoInputs().double().eval()
    x = (torch.zeros(1, AXES, dtype=F64), torch.zeros(1, 2, dtype=F64))
    domain = {"kind": "ball", "center": [0.0] * (AXES + 2), "radius": 1e-3}
    made = ff.certify(model, x, domain=domain, time_budget=ff.Budget(steps=100))
    assert verify_certificate(model, made)
    low, high = attack(model.inner, {"kind": "ball", "center": [0.0] * AXES, "radius": 1e-3}, AXES, 0)
    assert bool((made.lower.reshape(-1) <= low).all() and (high <= made.upper.reshape(-1)).all())
