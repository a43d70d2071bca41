"""Ellipsoids around what a norm makes of a region: they hold it, in exact arithmetic, and they are small."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import farfield as ff
from farfield.certify import CertificateError, verify_certificate
from farfield.certify._cone import cone_of
from farfield.certify._enclosure import enclose
from farfield.certify._proofs import Enclosure
from farfield.certify.checker._cone import DomainCone
from farfield.certify.checker._enclosure import enclosing_ellipsoid
from farfield.certify.checker._values import MidRad

EPS = 1e-5
WIDTH = 12


def _region(kind, dim, size, away, source):
    """A region with axes of very different lengths, at a distance from 0."""
    center = away * torch.randn(dim, generator=source, dtype=torch.float64)
    axes = size * 10.0 ** (2 * torch.rand(dim, generator=source, dtype=torch.float64) - 1)
    if kind == "ellipsoid":
        return {"kind": kind, "center": center.tolist(), "axes": axes.tolist()}
    if kind == "halfspace":
        return {"kind": kind, "normal": axes.tolist(), "offset": float(center[0] * size)}
    lower, upper = center - axes, center + axes
    if kind == "flat box":
        upper[0] = lower[0]
    if kind == "open box":
        upper[-1] = math.inf
    return {"kind": "box", "lower": lower.tolist(), "upper": upper.tolist()}


def _points(domain, dim, count, source):
    """Points of a region, most of them on its rim or at its corners."""
    raw = torch.randn(count, dim, generator=source, dtype=torch.float64)
    if domain["kind"] == "box":
        low, high = (torch.tensor(domain[k], dtype=torch.float64) for k in ("lower", "upper"))
        share = torch.rand(count, dim, generator=source, dtype=torch.float64)
        share[: count // 2] = share[: count // 2].round()
        far = low + raw.abs() * 10.0 ** torch.arange(count)[:, None].remainder(9)
        closed = low + share * (high - low)
        return torch.where(torch.isfinite(high), torch.minimum(torch.maximum(closed, low), high), far)
    if domain["kind"] == "halfspace":
        normal = torch.tensor(domain["normal"], dtype=torch.float64)
        far = raw * 10.0 ** torch.arange(count)[:, None].remainder(9)
        over = (far @ normal - domain["offset"]).clamp_min(0.0)
        far = far - (over * (1 + 1e-6) / normal.square().sum())[:, None] * normal
        return far[far @ normal <= domain["offset"] - 1e-9 * abs(domain["offset"])]
    center, axes = (torch.tensor(domain[k], dtype=torch.float64) for k in ("center", "axes"))
    return center + (1 - 1e-9) * axes * raw / raw.norm(dim=1, keepdim=True)


def _checked(matrix, domain, enclosure):
    """The checker's ellipsoid for C = matrix, as it shifts and reads it."""
    parts = {
        "box": ("lower", "upper"), "ellipsoid": ("center", "axes"), "halfspace": ("normal", "offset"),
    }[domain["kind"]]  # fmt: skip
    size = matrix.shape[1] - 1
    values = {
        name: np.full(size, domain[name])
        if isinstance(domain[name], float)
        else np.array(domain[name], dtype=np.float64)
        for name in parts
    }
    shift = np.array(enclosure.shift)
    moved = MidRad.exact(matrix[:, -1:]) + MidRad.exact(matrix[:, :-1]) @ MidRad.exact(shift[:, None])
    rows = MidRad(
        np.concatenate([matrix[:, :-1], moved.mid], 1),
        np.concatenate([np.zeros_like(matrix[:, :-1]), moved.rad], 1),
    )
    stabilizer = np.zeros((size + 1, size + 1))
    stabilizer[-1, -1] = EPS
    share = MidRad(np.full((1, 1), 1 / WIDTH), np.full((1, 1), 2.0**-52 / WIDTH))
    gram = (rows.T @ rows) * share + MidRad.exact(stabilizer)
    cone = DomainCone(domain["kind"], values).shifted(shift)
    return enclosing_ellipsoid(gram, cone, enclosure.to_dict(), "norm")


def _gram(matrix, middle):
    """CᵀC/width + ε at t, inputs counted from the region's middle."""
    moved = matrix.clone()
    moved[:, -1] += matrix[:, :-1] @ middle
    gram = moved.T @ moved / WIDTH
    gram[-1, -1] += EPS
    return gram


def _case(kind, dim, size, away, seed):
    """(C, region, prover's enclosure) of a random affine map behind a region."""
    source = torch.Generator().manual_seed(seed)
    matrix = torch.randn(WIDTH, dim + 1, generator=source, dtype=torch.float64)
    matrix = matrix - matrix.mean(0)
    domain = _region(kind, dim, size, away, source)
    cone = cone_of(domain)
    assert cone is not None
    middle = cone.middle()
    gram = _gram(matrix, middle)
    return matrix, domain, enclose(gram, cone.shifted(middle), middle), source


def _leaves(matrix, ellipsoid, shift, x):
    """Whether u of an input leaves the ellipsoid, or t its range, in 60 digits."""
    with mpmath.workdps(60):
        point = [mpmath.mpf(float(v)) for v in x]
        rows = [[mpmath.mpf(float(v)) for v in row] for row in matrix]
        values = [mpmath.fsum([a * b for a, b in zip(row, [*point, 1], strict=True)]) for row in rows]
        t = 1 / mpmath.sqrt(mpmath.fsum([v * v for v in values]) / WIDTH + mpmath.mpf(EPS))
        moved = [(p - mpmath.mpf(float(s))) * t for p, s in zip(point, shift, strict=True)]
        u = [*moved, t]
        v = [mpmath.mpf(1), *(a - mpmath.mpf(float(c)) for a, c in zip(u, ellipsoid.center, strict=True))]
        form = ellipsoid.form
        least = mpmath.fsum(
            mpmath.mpf(float(form.mid[i, j])) * v[i] * v[j]
            - mpmath.mpf(float(form.rad[i, j])) * abs(v[i] * v[j])
            for i in range(len(v))
            for j in range(len(v))
        )
        inside = all(
            abs(a) <= mpmath.sqrt(mpmath.fsum([mpmath.mpf(float(w)) ** 2 for w in np.abs(row) + loose]))
            for a, row, loose in zip(v[1:], ellipsoid.white.mid, ellipsoid.white.rad, strict=True)
        )
        return least > 0 or t < mpmath.mpf(ellipsoid.least) or not inside


KINDS = ("box", "flat box", "open box", "ellipsoid", "halfspace")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS), st.integers(1, 5), st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 30.0]),
    st.sampled_from([0.0, 1.0, 100.0, 1e6]), st.integers(0, 10**6),
)  # fmt: skip
def test_no_input_of_the_region_is_outside(kind, dim, size, away, seed):
    matrix, domain, enclosed, source = _case(kind, dim, size, away, seed)
    if enclosed is None:
        return
    try:
        ellipsoid = _checked(matrix.numpy(), domain, enclosed.enclosure)
    except CertificateError:
        return  # refused is sound; the next test says where it must not happen
    for x in _points(domain, dim, 30, source):
        assert not _leaves(matrix, ellipsoid, enclosed.enclosure.shift, x)


@pytest.mark.parametrize("kind", ["box", "ellipsoid"])
@pytest.mark.parametrize(
    ("size", "away"),
    [(1e-6, 0.0), (1e-6, 1.0), *((s, a) for s in (1e-3, 0.1, 1.0) for a in (0.0, 1.0, 100.0))],
)
def test_the_checker_finds_what_the_search_found(kind, size, away):
    for seed in range(5):
        matrix, domain, enclosed, _ = _case(kind, 4, size, away, seed)
        assert enclosed is not None
        ellipsoid = _checked(matrix.numpy(), domain, enclosed.enclosure)
        assert ellipsoid.least == pytest.approx(enclosed.least, rel=1e-6)
        widths = np.sqrt((np.abs(ellipsoid.white.mid) ** 2).sum(1))
        expected = torch.linalg.inv(enclosed.shape).diagonal().sqrt().numpy()
        assert widths == pytest.approx(expected, rel=1e-3 if size > 1e-4 else 0.03)


def test_wrong_weights_for_the_region_leave_inputs_outside():
    """The oracle can fail: an ellipsoid around half of a region does not hold all of it."""
    matrix, domain, enclosed, source = _case("ellipsoid", 3, 0.3, 1.0, 0)
    assert enclosed is not None
    half = {**domain, "axes": [a / 2 for a in domain["axes"]]}
    ellipsoid = _checked(matrix.numpy(), half, enclosed.enclosure)
    out = [_leaves(matrix, ellipsoid, enclosed.enclosure.shift, x) for x in _points(domain, 3, 30, source)]
    assert any(out)


def test_a_smaller_region_has_a_smaller_ellipsoid():
    source = torch.Generator().manual_seed(3)
    matrix = torch.randn(WIDTH, 5, generator=source, dtype=torch.float64)
    matrix = matrix - matrix.mean(0)
    spread = []
    for size in (1.0, 0.1, 0.01, 1e-3, 1e-4):
        domain = {"kind": "box", "lower": [1.0 - size] * 4, "upper": [1.0 + size] * 4}
        cone = cone_of(domain)
        assert cone is not None
        middle = cone.middle()
        gram = _gram(matrix, middle)
        enclosed = enclose(gram, cone.shifted(middle), middle)
        assert enclosed is not None
        spread.append(float(torch.trace(torch.linalg.solve(enclosed.shape, gram))) ** 0.5)
    for wide, narrow in pairwise(spread[1:]):
        assert narrow == pytest.approx(wide / 10, rel=0.15)  # linear in the size, once it is small


def test_an_enclosure_is_plain_data():
    made = Enclosure((1.0,), (2.0,), (), (0.5, 1.0, 2.0), (0.1, 0.2))
    assert Enclosure.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def _network(dim, depth=2, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(dim, 24), nn.LayerNorm(24), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(24, 24), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(24, 1)).double().eval()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("size", "away"), [(0.3, 1.0), (0.03, 1.0), (1e-3, 1.0), (3.0, 1e3)])
def test_small_regions_behind_a_norm_are_tight(depth, size, away):
    """An ellipsoid around 0 left these 10 to 1,000 times too wide."""
    center = away * torch.linspace(0.5, 1.5, 7, dtype=torch.float64)
    net = _network(7, depth)
    domain = {"kind": "box", "lower": (center - size).tolist(), "upper": (center + size).tolist()}
    made = ff.certify(net, torch.zeros(1, 7).double(), time_budget=ff.Budget(steps=400), domain=domain)
    assert float(made.tightness) < 3.0
    assert verify_certificate(net, json.loads(json.dumps(made.to_dict())))
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        values = net(_points(made.domain, 7, 4000, source))
    assert float(made.lower) <= float(values.min())
    assert float(values.max()) <= float(made.upper)


def test_a_region_behind_a_norm_is_resumed():
    net = _network(7)
    domain = {"kind": "box", "lower": [0.9] * 7, "upper": [1.1] * 7}
    x = torch.zeros(1, 7).double()
    first = ff.certify(net, x, time_budget=ff.Budget(steps=80), domain=domain)
    more = ff.certify(net, x, time_budget=ff.Budget(steps=80), domain=domain, resume=first)
    assert float(more.upper) <= float(first.upper)
    assert float(more.lower) >= float(first.lower)
    assert verify_certificate(net, more)


def fixed_network():
    """Weights that no version of torch draws differently."""
    net = nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.ReLU(), nn.Linear(10, 1)).double().eval()
    with torch.no_grad():
        for k, weight in enumerate(net.parameters()):
            at = torch.arange(weight.numel(), dtype=torch.float64).reshape(weight.shape)
            weight.copy_(((7 * at + 3 * k) % 11 - 5) / 8)
    return net


def test_a_certificate_with_an_ellipsoid_around_0_is_still_verified():
    """Earlier versions listed weights ``mu`` of a region's forms."""
    data = json.loads((Path(__file__).parent / "region_with_mu.json").read_text(encoding="utf-8"))
    assert any(e.get("mu") for p in data["proofs"] for e in p.get("norms", {}).values())
    assert verify_certificate(fixed_network(), data)
    for value in ([-1.0], [1e6], [0.01, 0.01]):
        forged = json.loads(json.dumps(data))
        for proof in forged["proofs"]:
            for entry in proof.get("norms", {}).values():
                entry["mu"] = value
        with pytest.raises(CertificateError):
            verify_certificate(fixed_network(), forged)


@pytest.mark.parametrize("faint", [5e-324, 1e-310, 1e-250])
def test_weights_that_vanish_in_products_are_refused(faint):
    """Half of 5e-324 is 0: a form lost its cross term and kept its corner, and a forged bound was accepted."""
    high = 3.4e38
    parts = {"lower": np.array([0.0]), "upper": np.array([high])}
    form = DomainCone("box", parts).quadratic(np.array([faint]))
    exact = -faint * (high / 2)  # −μ(l + h)/2
    assert abs(form.mid[0, 1] - exact) <= form.rad[0, 1] + 1e-12 * abs(exact)
    with pytest.raises(CertificateError, match="weight below"):
        enclosing_ellipsoid(
            MidRad.exact(np.eye(2)), DomainCone("box", parts),
            {"largest": [1.0], "least": [], "weights": [1.0, 1.0, faint], "center": [0.0, 0.0]}, "norm",
        )  # fmt: skip


def test_a_half_space_of_subnormal_normals_is_not_moved_past_its_points():
    """5e-324 · 0.49 is 0: the shifted half-space had lost what lies between."""
    parts = {"normal": np.array([5e-324]), "offset": np.array([0.0])}
    moved = DomainCone("halfspace", parts).shifted(np.array([-0.49]))
    assert moved.parts["offset"][0] >= 5e-324  # 5e-324·w ≤ 0.49·5e-324, w = x + 0.49 ≤ 0.49


def test_what_overflows_is_refused():
    """max(0, nan) is 0 in Python: such an ellipsoid seemed small."""
    parts = {"lower": np.array([-1.0]), "upper": np.array([1.0])}
    for weights in ([1.0, 0.8e307, 1.0], [1e308, 1.0, 1.0], [1.0, 1.0, 1e308]):
        data = {"largest": [1e-9], "least": [], "weights": weights, "center": [0.0, 1e3]}
        with pytest.raises(CertificateError), np.errstate(all="ignore"):
            enclosing_ellipsoid(MidRad.exact(np.eye(2) * 1e-2), DomainCone("box", parts), data, "norm")


def test_an_input_that_the_first_layer_ignores():
    net = _network(7)
    with torch.no_grad():
        net[0].weight[:, 2] = 0.0
    domain = {"kind": "box", "lower": [0.95] * 7, "upper": [1.05] * 7}
    made = ff.certify(net, torch.zeros(1, 7).double(), time_budget=ff.Budget(steps=200), domain=domain)
    assert float(made.tightness) < 3.0
    assert verify_certificate(net, made)
