"""Certificates over boxes, balls, ellipsoids and half-spaces, alone and beside those for every input."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

import farfield as ff
from certify.regions import attack
from farfield.certify import CertificateError, around, verify_certificate
from farfield.certify._checks import Checks
from farfield.certify._cone import Cone, cone_of
from farfield.certify.checker import proof_reader
from farfield.errors import FarfieldError, InvalidValueError, UnknownNameError
from farfield.graph import FREE, capture, over_ellipsoid

STEPS = ff.Budget(steps=60)


def network(kind, dim, seed=0):
    torch.manual_seed(seed)
    norm = {"plain": [], "first": [nn.LayerNorm(12)], "rms": [nn.RMSNorm(12, eps=1e-3)]}.get(kind, [])
    late = [nn.LayerNorm(12)] if kind == "second" else []
    return (
        nn.Sequential(
            nn.Linear(dim, 12), *norm, nn.Tanh() if kind == "rms" else nn.ReLU(), nn.Linear(12, 12), *late, nn.ReLU(),
            nn.Linear(12, 1),
        )
        .double()
        .eval()
    )  # fmt: skip


def region(kind, dim, seed=0):
    source = torch.Generator().manual_seed(seed)
    center = torch.randn(dim, generator=source, dtype=torch.float64)
    size = float(10.0 ** (2 * torch.rand((), generator=source) - 1))
    axes = size * (0.3 + torch.rand(dim, generator=source, dtype=torch.float64))
    return {
        "box": {"kind": "box", "lower": (center - axes).tolist(), "upper": (center + axes).tolist()},
        "ball": {"kind": "ball", "center": center.tolist(), "radius": size},
        "ellipsoid": {"kind": "ellipsoid", "center": center.tolist(), "axes": axes.tolist()},
        "halfspace": {"kind": "halfspace", "normal": center.tolist(), "offset": -size},
    }[kind]


def points(domain, count, dim, seed=1):
    """Points of a region, many of them on its rim."""
    source = torch.Generator().manual_seed(seed)
    raw = torch.randn(count, dim, generator=source, dtype=torch.float64)
    rim = torch.rand(count, 1, generator=source, dtype=torch.float64)
    rim[: count // 2] = 1.0
    if domain["kind"] == "box":
        low, high = (torch.tensor(domain[k], dtype=torch.float64) for k in ("lower", "upper"))
        share = torch.rand(count, dim, generator=source, dtype=torch.float64)
        share[: count // 2] = share[: count // 2].round()
        return low + share * (high - low)
    if domain["kind"] == "halfspace":
        normal = torch.tensor(domain["normal"], dtype=torch.float64)
        far = raw * 10.0 ** (8 * rim - 2)
        beyond = ((far @ normal - domain["offset"]) / normal.square().sum()).clamp_min(0.0)
        return far - (beyond * (1 + 1e-9))[:, None] * normal - 1e-9 * normal
    center = torch.tensor(domain["center"], dtype=torch.float64)
    axes = torch.tensor(domain.get("axes", domain.get("radius")), dtype=torch.float64)
    return center + axes * rim * raw / raw.norm(dim=1, keepdim=True)


BOUNDED = [(n, d) for n in ("first", "second", "rms") for d in ("box", "ball", "ellipsoid", "halfspace")]
PLAIN = [("plain", d) for d in ("box", "ball", "ellipsoid")]


@pytest.mark.parametrize(
    ("kind", "shape", "dim"), [(*c, 2) for c in BOUNDED + PLAIN] + [(*c, 6) for c in BOUNDED[:4] + PLAIN]
)
def test_no_value_of_the_region_leaves_its_bounds(kind, shape, dim):
    net, domain = network(kind, dim), region(shape, dim, seed=dim)
    made = ff.certify(net, torch.zeros(1, dim).double(), time_budget=STEPS, domain=domain)
    with torch.no_grad():
        values = net(points(domain, 4000, dim))
    assert float(made.lower) <= float(values.min())
    assert float(values.max()) <= float(made.upper)
    assert float(made.attained_upper) >= float(values.max()) - 0.2 * float(values.max() - values.min()) - 1e-9
    assert verify_certificate(net, made)
    assert verify_certificate(net, json.loads(json.dumps(made.to_dict())))


@pytest.mark.parametrize("shape", ["ball", "ellipsoid", "halfspace"])
def test_with_few_inputs_a_region_is_tight(shape):
    domain = region(shape, 2, seed=4)
    made = ff.certify(
        network("first", 2), torch.zeros(1, 2).double(), time_budget=ff.Budget(steps=900), domain=domain
    )
    assert float(made.tightness) < 1.05


def test_a_plain_network_is_bounded_in_a_ball():
    net = network("plain", 2)
    with pytest.raises(FarfieldError, match="unbounded"):
        ff.certify(net, torch.zeros(1, 2).double(), time_budget=STEPS)
    domain = {"kind": "ball", "center": 0.0, "radius": 3.0}
    made = ff.certify(net, torch.zeros(1, 2).double(), time_budget=ff.Budget(steps=600), domain=domain)
    assert float(made.tightness) < 1.05


def test_a_large_region_behind_a_norm_uses_the_cone():
    domain = {"kind": "ball", "center": 0.0, "radius": 1.0}
    made = ff.certify(
        network("first", 6), torch.zeros(1, 6).double(), time_budget=ff.Budget(steps=400), domain=domain
    )
    assert "cone" in [p.get("over") for p in made.proofs]


def test_both_in_one_certificate():
    net, x = network("first", 2), torch.zeros(1, 2).double()
    rows = torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made = ff.certify(net, x, time_budget=ff.Budget(steps=900), within=around(rows, 1.0))
    assert made.domain["kind"] == "all"
    assert made.within is not None
    assert made.within.domain["kind"] == "box"
    assert float(made.lower) <= float(made.within.lower) <= float(made.within.upper) <= float(made.upper)
    assert float(made.within.upper - made.within.lower) < float(made.upper - made.lower)
    again = type(made).from_dict(json.loads(json.dumps(made.to_dict())))
    assert again.within is not None
    assert verify_certificate(net, again)
    assert "every input of a box" in str(made)
    assert "every real input" in str(made)
    more = ff.certify(net, x, time_budget=STEPS, within=around(rows, 1.0), resume=again)
    assert more.within is not None
    assert float(more.within.upper) <= float(made.within.upper)


def test_a_certificate_within_is_of_the_same_model():
    x = torch.zeros(1, 2).double()
    one, other = (ff.certify(network("first", 2, seed=s), x, time_budget=STEPS) for s in (0, 1))
    data = one.to_dict()
    with pytest.raises(InvalidValueError, match="same model"):
        type(one).from_dict({**data, "within": other.to_dict()})
    with pytest.raises(CertificateError, match=r"not the certificate.s"):
        verify_certificate(network("first", 2), {**data, "within": other.to_dict()})


def _cone_certificate():
    net = network("first", 6)
    domain = {"kind": "ball", "center": [0.0] * 6, "radius": 1.0}
    return net, ff.certify(
        net, torch.zeros(1, 6).double(), time_budget=ff.Budget(steps=400), domain=domain
    ).to_dict()


def test_forged_regions_are_refused():
    net, data = _cone_certificate()
    where = next(i for i, p in enumerate(data["proofs"]) if p.get("over") == "cone")
    node = next(n for n, e in data["proofs"][where]["norms"].items() if e.get("enclosure"))
    assert verify_certificate(net, data)

    def enclosure(d):
        return d["proofs"][where]["norms"][node]["enclosure"]

    def forged(change):
        one = copy.deepcopy(data)
        change(one)
        with pytest.raises(CertificateError):
            verify_certificate(net, one)

    forged(lambda d: d["proofs"][where].pop("over"))
    forged(lambda d: d["proofs"][where].update(over="everywhere"))
    forged(lambda d: d["proofs"][where].update(over="somewhere"))
    for name, value in (
        ("weights", [1.0, 1.0, -1.0]),
        ("weights", [1.0, 1.0, 1e6]),
        ("weights", [1.0, 1e6, 1.0]),
        ("weights", [0.0, 0.0, 0.0]),
        ("weights", [1.0, 1.0]),
        ("weights", [1.0, 1.0, float("nan")]),
        ("largest", [-1.0]),
        ("largest", [1e9]),
        ("largest", []),
        ("least", [-1.0]),
        ("least", [1.0, 1.0]),
        ("center", [0.0] * 6),
        ("center", [float("inf")] * 7),
        ("shift", [1e300] * 6),
        ("shift", [30.0] * 6),
    ):
        forged(lambda d, name=name, value=value: enclosure(d).update({name: value}))
    forged(lambda d: enclosure(d).pop("least"))
    forged(lambda d: d["proofs"][where]["norms"][node].pop("enclosure"))
    forged(lambda d: d["domain"].update(radius=50.0))
    forged(lambda d: d["domain"].update(center=[30.0] * 6))
    forged(lambda d: d["domain"].update(radius=float("nan")))
    forged(lambda d: d["domain"].update(radius=-1.0))
    forged(lambda d: d.update(domain={"kind": "all"}))
    forged(lambda d: d.update(domain={"kind": "halfspace", "normal": [1.0] + [0.0] * 5, "offset": 0.0}))


def test_forged_cells_of_a_half_space_are_refused():
    net = network("first", 2)

    def differs(domain):
        """The other side reaches further up."""
        with torch.no_grad():
            here = points(domain, 4000, 2)
            return float(net(-here).max()) > float(net(here).max()) + 0.05

    domain = next(d for seed in range(50) if differs(d := region("halfspace", 2, seed=seed)))
    data = ff.certify(
        net, torch.zeros(1, 2).double(), time_budget=ff.Budget(steps=600), domain=domain
    ).to_dict()
    assert {p["over"] for p in data["proofs"]} == {"cone"}
    assert verify_certificate(net, data)
    turned = copy.deepcopy(data)
    turned["domain"]["normal"] = [
        -v for v in domain["normal"]
    ]  # the other side: cells that were outside count now
    turned["witnesses"] = {"lower": [], "upper": []}
    with pytest.raises(CertificateError, match="proves"):
        verify_certificate(net, turned)


def test_points_of_a_restricted_program_fill_the_ellipsoid():
    program = capture(nn.Identity(), torch.zeros(1, 3), dynamic_batch=False)
    center = torch.tensor([1.0, -2.0, 1e6], dtype=torch.float64)
    axes = torch.tensor([2.0, 0.5, 0.0], dtype=torch.float64)
    inside = over_ellipsoid(program, center, axes)
    assert [spec.name for spec in inside.inputs] == [FREE]
    source = torch.Generator().manual_seed(0)
    for size in (0.0, 1.0, 1e3, 1e12):
        free = size * torch.randn(1, 3, generator=source, dtype=torch.float64)
        x = inside.evaluate(free)["output"][0]
        wanted = center + axes * free[0] / (1 + free.square().sum()).sqrt()
        assert torch.allclose(x, wanted, rtol=1e-12)


def test_several_inputs_are_joined():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 8), nn.Linear(3, 8)

        def forward(self, x, y):
            return torch.tanh(self.a(x) + self.b(y)).sum(1)

    torch.manual_seed(0)
    net = Two().double()
    domain = {"kind": "ellipsoid", "center": 0.0, "axes": [1.0, 1.0, 0.5, 0.5, 0.5]}
    made = ff.certify(
        net, (torch.zeros(1, 2).double(), torch.zeros(1, 3).double()), time_budget=STEPS, domain=domain
    )
    rows = points({**domain, "center": [0.0] * 5}, 2000, 5)
    with torch.no_grad():
        values = net(rows[:, :2], rows[:, 2:])
    assert float(made.lower) <= float(values.min())
    assert float(values.max()) <= float(made.upper)
    assert float(made.upper) < 8.0
    assert verify_certificate(net, made)


@pytest.mark.parametrize("shape", ["box", "ellipsoid", "halfspace"])
def test_the_forms_of_a_cone_hold_and_cells_outside_are_outside(shape):
    dim = 3
    domain = region(shape, dim, seed=7)
    cone = cone_of(domain)
    assert isinstance(cone, Cone)
    x = points(domain, 500, dim)
    x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    source = torch.Generator().manual_seed(0)
    mu = torch.rand(cone.count, generator=source, dtype=torch.float64)
    form, rough = cone.quadratic(mu)
    value = torch.einsum("ni,ij,nj->n", x, form, x)
    slack = torch.einsum("ni,ij,nj->n", x.abs(), rough, x.abs()) * 2.0**-50
    assert bool((value <= slack).all())
    gram = torch.eye(dim + 1, dtype=torch.float64)
    assert torch.allclose(cone.traces(gram) @ mu, torch.trace(form @ gram))
    start = torch.randn(400, dim + 1, generator=source, dtype=torch.float64)
    start[:, -1] = start[:, -1].abs() + 0.3
    slopes = 0.05 * torch.randn(dim, 400, dim + 1, generator=source, dtype=torch.float64)
    outside = cone.outside(start, slopes, torch.zeros_like(start))
    assert 10 < int(outside.sum()) < 400
    for _ in range(50):
        delta = 2 * torch.rand(dim, 400, 1, generator=source, dtype=torch.float64) - 1
        assert not bool((cone.inside(start + (slopes * delta).sum(0)) & outside).any())


@pytest.mark.parametrize(
    ("domain", "error"),
    [
        ({"kind": "ball", "center": 0.0}, InvalidValueError),
        ({"kind": "ball", "center": 0.0, "radius": -1.0}, InvalidValueError),
        ({"kind": "ball", "center": 0.0, "radius": float("inf")}, InvalidValueError),
        ({"kind": "ball", "center": [0.0, 0.0, 0.0], "radius": 1.0}, InvalidValueError),
        ({"kind": "ellipsoid", "center": 0.0, "axes": [1.0, float("nan")]}, InvalidValueError),
        ({"kind": "blob"}, UnknownNameError),
        ({"kind": "ball", "center": 0.0, "radius": 1e160}, InvalidValueError),
        ({"kind": "ball", "center": [0.0, -1e160], "radius": 1.0}, InvalidValueError),
        ((-1e160, float("inf")), InvalidValueError),
        (3.0, InvalidValueError),
        ("here", InvalidValueError),
    ],
)
def test_what_is_no_domain_is_refused(domain, error):
    with pytest.raises(error):
        ff.certify(network("first", 2), torch.zeros(1, 2).double(), time_budget=STEPS, domain=domain)


def test_around():
    rows = torch.tensor([[0.0, 1.0], [2.0, 1.0]])
    assert around(rows, 1.0, shape="ellipsoid") == {
        "kind": "ellipsoid",
        "center": [1.0, 1.0],
        "axes": [2.0**0.5, 0.0],
    }
    with pytest.raises(InvalidValueError, match="finite"):
        around([[float("nan")]])
    with pytest.raises(UnknownNameError):
        around(rows, shape="egg")


@pytest.mark.parametrize(
    "domain",
    [
        {"kind": "ellipsoid", "center": [1.0, 2.0], "axes": [0.0, 4.0]},
        {"kind": "ball", "center": [1.0, 2.0], "radius": 0.0},
        {"kind": "ball", "center": [1.0, 2.0], "radius": 1e-300},
    ],
)
def test_axes_without_length(domain):
    """A feature that never changes makes such an axis; what is attained is attained in the region."""
    net = network("first", 2)
    made = ff.certify(net, torch.zeros(1, 2).double(), time_budget=ff.Budget(steps=6), domain=domain)
    assert verify_certificate(net, made)
    assert all(w["point"][0] == 1.0 for side in made.witnesses for w in side)


@pytest.mark.parametrize(
    "domain",
    [
        {"kind": "ellipsoid", "center": [0.0, 0.0], "axes": [1.0, -100.0]},
        {"kind": "ball", "center": [0.0, 0.0], "radius": -100.0},
    ],
)
def test_negative_lengths_make_no_cone(domain):
    """Cells beside an axis that is not positive would all be left out."""
    program = capture(network("first", 2), torch.zeros(1, 2).double(), dynamic_batch=False)
    with pytest.raises(CertificateError, match="negative"):
        proof_reader(program, "output", domain)(
            {
                "kind": "interval",
                "over": "cone",
                "output": 0,
                "side": "upper",
                "bound": 9.0,
            }
        )


def test_a_certificate_within_is_data_and_no_path(tmp_path):
    net = network("first", 2)
    data = ff.certify(net, torch.zeros(1, 2).double(), time_budget=ff.Budget(steps=3)).to_dict()
    path = tmp_path / "other.json"
    path.write_text(json.dumps(data))
    with pytest.raises(CertificateError, match="table"):
        verify_certificate(net, {**data, "within": str(path)})


@pytest.mark.parametrize("shape", ["box", "ball"])
def test_probabilities_know_the_region(shape):
    """The logits' differences are bounded over the region's cone, not over every input."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    model, x = nn.Sequential(*layers, nn.Softmax(-1)).double().eval(), torch.zeros(1, 6, dtype=torch.float64)
    center = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64)
    domain = {"kind": "box", "lower": (center - 0.05).tolist(), "upper": (center + 0.05).tolist()}
    if shape == "ball":
        domain = {"kind": "ball", "center": center.tolist(), "radius": 0.1}
    made = ff.certify(model, x, domain=domain, time_budget=ff.Budget(steps=300))
    assert {proof.get("over") for proof in made.proofs} == {"cone"}
    assert float(made.tightness.max()) < 6
    low, high = attack(model, made.domain, 6, 0)
    assert bool((made.lower.reshape(-1) <= low).all() and (high <= made.upper.reshape(-1)).all())
    assert verify_certificate(model, json.loads(json.dumps(made.to_dict())))


def test_a_resumed_proof_stays_where_the_checker_refuses_the_new_one(monkeypatch):
    torch.manual_seed(5)
    layers = nn.Linear(8, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1)
    model, x = nn.Sequential(*layers).double().eval(), torch.zeros(1, 8, dtype=torch.float64)
    domain = {"kind": "halfspace", "normal": [1.0] * 8, "offset": -3.0}
    first = ff.certify(model, x, domain=domain, time_budget=ff.Budget(steps=60))
    known, asked = {proof["bound"] for proof in first.to_dict()["proofs"]}, Checks._again

    def again(self, proof, line, until):
        if proof.kind == "dual" and proof.bound not in known:
            raise CertificateError("refused")
        return asked(self, proof, line, until)

    monkeypatch.setattr(Checks, "_again", again)
    after = ff.certify(model, x, domain=domain, time_budget=ff.Budget(steps=60), resume=first)
    assert bool((after.lower == first.lower).all() and (after.upper == first.upper).all())
