"""The checker of certificates: what is right is accepted, what is forged is refused, what it claims is true."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import math
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from certify.cell_oracle import DOUBLE, random_net, samples
from farfield.certify._check import CertificateError, check_program, verify_certificate
from farfield.certify._check_activations import activation
from farfield.certify._check_cells import _Checker, read_tree
from farfield.certify._check_intervals import ranges
from farfield.certify._check_values import Rough, positive_semidefinite, spectral_norm
from farfield.certify._hash import model_hash
from farfield.certify.affine import Network, build_network
from farfield.certify.cells._branch import branch
from farfield.certify.dual import _descent
from farfield.certify.dual._descent import optimise
from farfield.certify.dual._dual import Multipliers, Objective, objective
from farfield.certify.dual._payload import dual_payload
from farfield.certify.dual._problem import Problem, build_problem
from farfield.certify.dual._prove import prove
from farfield.certify.intervals import Interval, propagate
from farfield.graph import Program, capture

Certificate = dict[str, Any]
# seed, dimension, norm, activation, place of the norm
DUAL = [
    (0, 3, "layer", "relu", "first"),
    (1, 2, "layer", "gelu", "every"),
    (2, 5, "rms", "tanh", "first"),
    (3, 1, "layer", "leaky", "every"),
    (4, 9, "group", "relu", "first"),
    (5, 3, "l2", "silu", "second"),
    (6, 4, "layer", "relu", "second"),
    (7, 6, "group", "gelu", "every"),
    (8, 2, "layer", "selu", "first"),
    (9, 8, "layer", "softplus", "first"),
    (10, 7, "rms", "hardswish", "every"),
    (11, 2, "layer", "mish", "first"),
]
CELLS = [
    (0, 1, "layer", "relu", "first"),
    (1, 2, "rms", "leaky", "first"),
    (2, 2, "group", "gelu", "every"),
    (4, 2, "layer", "tanh", "second"),
    (7, 1, "l2", "selu", "every"),
    (9, 1, "rms", "sigmoid", "input"),
    (12, 2, "layer", "hardtanh", "first"),
    (13, 2, "layer", "softplus", "second"),
]


def _parts(model: nn.Module, dim: int, box: Interval | None) -> tuple[Program, Network]:
    program = capture(model, torch.zeros(1, dim, dtype=DOUBLE), dynamic_batch=False)
    boxes = {} if box is None else {program.inputs[0].name: box}
    return program, build_network(program, program.outputs[0], propagate(program, boxes), boxes)


def _certificate(
    model: nn.Module, program: Program, dim: int, proofs: list[Certificate], box: Interval | None
) -> Certificate:
    """What a writer would publish, with the values at a few points as witnesses."""
    size = math.prod(int(d) for d in program.node(program.outputs[0]).shape)
    lower, upper = [-math.inf] * size, [math.inf] * size
    for proof in proofs:
        bound, entry = proof["bound"], proof["output"]
        published = bound + 2e-9 * max(1.0, abs(bound))
        if proof["side"] == "upper":
            upper[entry] = published
        else:
            lower[entry] = -published
    x = samples(dim, 4000, torch.Generator().manual_seed(1))
    if box is not None:
        x = (
            box.lo
            + (box.hi - box.lo) * torch.rand(4000, dim, generator=torch.Generator().manual_seed(1)).double()
        )
    values = torch.nan_to_num(model(x).reshape(len(x), -1), nan=0.0)
    witnesses: Certificate = {"upper": [], "lower": []}
    attained = {"upper": [-math.inf] * size, "lower": [math.inf] * size}
    for entry in range(size):
        for side, place in (
            ("upper", int(values[:, entry].argmax())),
            ("lower", int(values[:, entry].argmin())),
        ):
            value = float(program.evaluate(x[place][None])[program.outputs[0]].reshape(-1)[entry])
            witnesses[side].append({"point": x[place].tolist(), "direction": None, "value": value})
            attained[side][entry] = value
    domain: Certificate = {"kind": "all"}
    if box is not None:
        domain = {"kind": "box", "lower": box.lo.reshape(-1).tolist(), "upper": box.hi.reshape(-1).tolist()}
    return {
        "format": "farfield-certificate/1",
        "model_hash": model_hash(program),
        "domain": domain,
        "output": program.outputs[0],
        "lower": lower,
        "upper": upper,
        "attained_lower": attained["lower"],
        "attained_upper": attained["upper"],
        "witnesses": witnesses,
        "proofs": json.loads(json.dumps(proofs)),
        "input_shape": [[1, dim]],
        "input_dtype": ["float64"],
    }


def _search(problem: Problem, goal: Objective) -> Multipliers:
    """A hundred steps, however busy the machine is: a search cut short has slack that some forgeries live on."""
    ticks = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_descent, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 100))
        return optimise(problem, goal, time_budget=1.0)[0]


@cache
def _dual(case: tuple[int, int, str, str, str], box: bool = False) -> tuple[nn.Module, Program, Certificate]:
    seed, dim, norm, act, place = case
    model = random_net(seed, dim, norm, act, place, 1e-5)
    domain = Interval(torch.full((1, dim), -1.5, dtype=DOUBLE), torch.full((1, dim), 0.75, dtype=DOUBLE))
    program, network = _parts(model, dim, domain if box else None)
    problem = build_problem(network)
    proofs = []
    for output in (0, 1) if seed % 2 else (0,):
        for sign in (1, -1):
            goal = objective(problem, output, sign)
            proof = prove(problem, goal, _search(problem, goal), output)
            proofs.append(dual_payload(network, problem, proof, output, sign))
    return model, program, _certificate(model, program, dim, proofs, domain if box else None)


@cache
def _cells(case: tuple[int, int, str, str, str], box: bool = False) -> tuple[nn.Module, Program, Certificate]:
    seed, dim, norm, act, place = case
    model = random_net(seed, dim, norm, act, place, 1e-5)
    domain = Interval(torch.full((1, dim), -1.3, dtype=DOUBLE), torch.full((1, dim), 0.9, dtype=DOUBLE))
    program, network = _parts(model, dim, domain if box else None)
    proofs = []
    for sign in (1, -1):
        proof, _ = branch(network, seed % 2, sign, time_budget=0.3, tolerance=1e-2)
        sides = {"kind": "cells", "output": seed % 2, "side": "upper" if sign > 0 else "lower"}
        proofs.append({**proof.to_dict(), **sides})
    return model, program, _certificate(model, program, dim, proofs, domain if box else None)


# ------------------------------------------------------------------ accepted


@pytest.mark.parametrize("case", DUAL)
def test_dual_certificates_are_accepted(case: tuple[int, int, str, str, str]) -> None:
    model, _, certificate = _dual(case)
    assert verify_certificate(model, certificate)


@pytest.mark.parametrize("case", CELLS)
@pytest.mark.parametrize("box", [False, True])
def test_cells_certificates_are_accepted(case: tuple[int, int, str, str, str], box: bool) -> None:
    model, _, certificate = _cells(case, box)
    assert verify_certificate(model, certificate)


def test_a_dual_over_a_box_is_accepted() -> None:
    model, _, certificate = _dual((3, 2, "layer", "tanh", "second"), box=True)
    assert verify_certificate(model, certificate)


def test_paths_objects_and_examples(tmp_path: Path) -> None:
    model, _, certificate = _cells(CELLS[0])
    path = tmp_path / "certificate.json"
    text = json.dumps({**certificate, "lower": [str(v) for v in certificate["lower"]]}, sort_keys=True)
    path.write_text(text, encoding="utf-8")
    assert verify_certificate(model, path)
    assert verify_certificate(model, str(path), torch.zeros(1, 1, dtype=DOUBLE))

    class Holder:
        def to_dict(self) -> Certificate:
            return certificate

    assert verify_certificate(model, Holder())


# ------------------------------------------------------------------ forged

Mutation = Callable[[Certificate, np.random.Generator], None]


def _arrays(
    entry: Certificate, key: str, change: Callable[[np.ndarray[Any, Any]], None], kind: str = "<f8"
) -> None:
    raw = np.frombuffer(zlib.decompress(base64.b64decode(entry[key])), dtype=kind).copy()
    change(raw)
    entry[key] = base64.b64encode(zlib.compress(raw.tobytes())).decode()


def _refused(program: Program, certificate: Certificate) -> bool:
    try:
        return not check_program(program, certificate)
    except CertificateError as error:
        reason = str(error)
    assert "TypeCheckError" not in reason  # a refusal, not a fault of the checker's own
    return True


def _tighter(certificate: Certificate, proof: Certificate, share: float) -> None:
    """A stronger claim from the same proof, published too.

    Cells are halved where they don't suffice, so a little less may well be proved: what is attained is passed.
    """
    proof["bound"] = proof.get("attained", proof["bound"]) - share * max(1.0, abs(proof["bound"]))
    certificate["witnesses"] = []
    published = proof["bound"] + 2e-9 * max(1.0, abs(proof["bound"]))
    if proof["side"] == "upper":
        certificate["upper"][proof["output"]] = published
    else:
        certificate["lower"][proof["output"]] = -published


def _common(
    certificate: Certificate, proof: Certificate, rng: np.random.Generator
) -> list[Callable[[], None]]:
    """Forgeries any certificate must refuse: a claim that is stronger, or something out of place."""
    entry, witness = int(proof["output"]), certificate["witnesses"]["upper"][0]
    side = proof["side"]
    sign = 1.0 if side == "upper" else -1.0

    def publish() -> None:
        certificate[side][entry] -= (
            sign * 10.0 ** rng.uniform(-7, 0) * max(1.0, abs(certificate[side][entry]))
        )

    def forge() -> None:
        certificate["proofs"] = [p for p in certificate["proofs"] if p is not proof]

    return [
        lambda: _tighter(certificate, proof, 10.0 ** rng.uniform(-3, 0)),
        publish,
        forge,
        lambda: certificate.update(model_hash="0" + certificate["model_hash"][1:-1] + "g"),
        lambda: witness.update(
            value=witness["value"] + 10.0 ** rng.uniform(-8, 0) * max(1, abs(witness["value"]))
        ),
        lambda: witness.update(point=[0.0 for _ in witness["point"]]),
        lambda: proof.update(side="lower" if side == "upper" else "upper"),
        lambda: proof.update(output=entry + 7),
        lambda: proof.update(kind="faith"),
        lambda: proof.update(bound=math.nan),
        lambda: certificate.update(output="elsewhere"),
        lambda: certificate["lower"].pop(),
        lambda: certificate.update(format="farfield-certificate/2"),
    ]


def _dual_forgeries(
    certificate: Certificate, proof: Certificate, rng: np.random.Generator
) -> list[Callable[[], None]]:
    names = list(proof["curves"])
    curve = proof["curves"][names[int(rng.integers(len(names)))]]
    norm = next(iter(proof["norms"].values()), None)
    made: list[Callable[[], None]] = [
        lambda: proof.update(
            joint=proof["joint"] - 10.0 ** rng.uniform(-4, 0) * max(1.0, abs(proof["joint"]))
        ),
        lambda: _arrays(
            curve, "theta", lambda v: v.__imul__(1.0 + rng.uniform(0.3, 3.0))
        ),  # more than y can pay
        lambda: _arrays(curve, "theta", lambda v: v.__setitem__(0, math.nan)),
        lambda: _arrays(curve, "r", lambda v: v.__iadd__(rng.choice([-1, 1]) * rng.uniform(1.0, 3.0))),
        lambda: curve.update(theta=curve["theta"][:-5]),
        lambda: curve.pop("r"),
        lambda: proof["curves"].update(stranger=curve),
        lambda: proof["curves"].pop(names[-1]),
        lambda: proof.update(forms=[*proof["forms"], [names[0], 1.0, 0.0, -1.0]]),
        lambda: _arrays(proof, "products", lambda v: v.__setitem__(int(rng.integers(v.size)), -1.0), "<f4"),
        lambda: proof.update(products=proof["products"][:-8]),
    ]
    if norm is not None:
        made += [
            lambda: norm.update(kappa=[-abs(k) - 1e-9 for k in norm["kappa"]]),
            lambda: norm.update(kappa=[k * rng.uniform(0.0, 0.7) for k in norm["kappa"]]),
            lambda: norm.update(kappa=norm["kappa"] + [1.0]),
            lambda: norm.update(omega=[1.0] * (len(norm["omega"]) + 1)),
        ]
    for form in proof["forms"]:
        made.append(lambda form=form: form.__setitem__(3, form[3] - 10.0 ** rng.uniform(-2, 0)))
        made.append(lambda form=form: form.__setitem__(2, form[2] + rng.uniform(0.01, 1.0)))
    return made


def _cells_forgeries(
    certificate: Certificate, proof: Certificate, rng: np.random.Generator
) -> list[Callable[[], None]]:
    trees = proof["trees"]
    face = int(np.argmax([t.count(".") for t in trees]))
    tree, matrix = trees[face], proof["matrix"]
    dots = [i for i, letter in enumerate(tree) if letter == "."]

    def put(text: str) -> None:
        trees[face] = text

    def spoil(row: int, column: int, value: float) -> None:
        matrix[row][column] = value

    at = dots[int(rng.integers(len(dots)))]
    return [
        lambda: put(tree[:at] + tree[at + 1 :]),
        lambda: put(tree[:at] + ".." + tree[at + 1 :]),
        lambda: put(tree[:at] + "x" + tree[at + 1 :]),
        lambda: put(tree[:at] + "w" + tree[at + 1 :]),
        lambda: put("x"),
        lambda: put(""),
        lambda: trees.pop(),
        lambda: trees.append("."),
        lambda: spoil(0, 0, -matrix[0][0]),
        lambda: spoil(0, 0, 0.0),
        lambda: spoil(len(matrix) - 1, 0, -1e-3),
        lambda: spoil(0, len(matrix) - 1, math.nan),
        lambda: matrix.pop(),
        lambda: proof["shift"].__setitem__(0, proof["shift"][0] + 0.1),
        lambda: proof.update(output_index=1 - proof["output_index"]),
        lambda: proof.update(sign=-proof["sign"]),
    ]


def _count_refusals(
    built: Callable[..., tuple[nn.Module, Program, Certificate]],
    cases: list[Any],
    forgeries: Any,
    rounds: int,
) -> tuple[int, list[str]]:
    """How many forgeries were refused, and which were not; one proof at a time."""
    refused, survived = 0, []
    for case in cases:
        _, program, certificate = built(case)
        for number in range(len(certificate["proofs"])):
            single = _only(certificate, number)
            assert not _refused(program, single)
            for round_ in range(rounds):
                total = len(_all(copy.deepcopy(single), number, round_, forgeries))
                for which in range(total):
                    forged = copy.deepcopy(single)
                    _all(forged, number, round_, forgeries)[which]()
                    if _refused(program, forged):
                        refused += 1
                    else:
                        survived.append(f"{case} proof {number} round {round_} forgery {which} of {total}")
    return refused, survived


def _only(certificate: Certificate, number: int) -> Certificate:
    """The certificate of one proof alone."""
    made = copy.deepcopy(certificate)
    proof = made["proofs"][number]
    size = len(made["upper"])
    lower, upper = [-math.inf] * size, [math.inf] * size
    kept = {"lower": lower, "upper": upper}[proof["side"]]
    kept[proof["output"]] = made[proof["side"]][proof["output"]]
    return {**made, "proofs": [proof], "lower": lower, "upper": upper}


def _all(certificate: Certificate, number: int, round_: int, forgeries: Any) -> list[Callable[[], None]]:
    proof = certificate["proofs"][0]
    rng = np.random.default_rng(1000 * number + round_)
    return [*_common(certificate, proof, rng), *forgeries(certificate, proof, rng)]


def test_forged_duals_are_refused() -> None:
    refused, survived = _count_refusals(_dual, DUAL, _dual_forgeries, 1)
    assert not survived
    assert refused >= 800


def test_forged_cells_are_refused() -> None:
    refused, survived = _count_refusals(_cells, CELLS, _cells_forgeries, 1)
    assert not survived
    assert refused >= 300


@pytest.mark.parametrize("case", DUAL[::3])
def test_what_survives_a_random_change_is_still_true(case: tuple[int, int, str, str, str]) -> None:
    """Other multipliers may still prove the bound: then no input passes it."""
    model, program, certificate = _dual(case)
    seed, dim, *_ = case
    values = model(samples(dim, 4000, torch.Generator().manual_seed(7)))
    rng = np.random.default_rng(seed)
    for _ in range(12):
        forged = _only(certificate, int(rng.integers(len(certificate["proofs"]))))
        proof = forged["proofs"][0]
        for entry in proof["curves"].values():
            key = str(rng.choice([k for k in entry if k not in ("lo", "hi")]))
            _arrays(entry, key, lambda v: v.__imul__(1 + 0.01 * rng.standard_normal(v.shape)))
        _tighter(forged, proof, -1e-3)
        if not _refused(program, forged):
            assert bool((values <= torch.tensor(forged["upper"], dtype=DOUBLE)).all())
            assert bool((values >= torch.tensor(forged["lower"], dtype=DOUBLE)).all())


@pytest.mark.parametrize("kind", ["ulp", "percent"])
def test_another_model_is_refused(kind: str) -> None:
    for case in DUAL[:4]:
        model, _, certificate = _dual(case)
        other = copy.deepcopy(model)
        with torch.no_grad():
            weight = next(p for n, p in other.named_parameters() if n.endswith("weight") and p.ndim == 2)
            weight[0, 0] = math.nextafter(float(weight[0, 0]), 9.0) if kind == "ulp" else weight[0, 0] * 1.01
        with pytest.raises(CertificateError, match="hash"):
            verify_certificate(other, certificate)


@pytest.mark.parametrize("case", [DUAL[0], DUAL[4], DUAL[7]])
def test_a_steeper_model_under_a_forged_hash_is_refused(case: tuple[int, int, str, str, str]) -> None:
    model, _, certificate = _dual(case)
    other = copy.deepcopy(model)
    with torch.no_grad():
        list(other.parameters())[-2].mul_(1.5)
    program = capture(other, torch.zeros(1, case[1], dtype=DOUBLE), dynamic_batch=False)
    forged = {**certificate, "model_hash": model_hash(program), "witnesses": []}
    assert _refused(program, forged)


# ------------------------------------------------------------------ soundness of its own


def test_a_grouped_norm_is_not_shorter_than_it_is() -> None:
    """z reaches √3 in a group of four; a range of √2 once proved a bound that an input passes."""
    model = nn.Sequential(
        nn.Linear(8, 8), nn.GroupNorm(2, 8, affine=False), nn.ReLU(), nn.Linear(8, 1)
    ).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(8))
        model[0].bias.zero_()
        model[3].weight.zero_()
        model[3].weight[0, 0] = 1.0
        model[3].bias.zero_()
    model.requires_grad_(False)
    _, network = _parts(model, 8, None)
    problem = build_problem(network)
    goal = objective(problem, 0, 1)
    proof = prove(problem, goal, _search(problem, goal), 0)
    x = torch.zeros(1, 8, dtype=DOUBLE)
    x[0, 0] = 1e6
    assert float(model(x)) <= proof.bound


def test_a_cast_to_integers_is_no_affine_map() -> None:
    """y − trunc(y) was once taken for 0."""

    class Fraction(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.nn.functional.layer_norm(x, (3,))
            return 0.01 * torch.tanh(y) + y - y.to(torch.int64).to(torch.float64)

    model = Fraction()
    program, network = _parts(model, 3, None)
    assert not network.compact()
    lo, hi = ranges(program, {}).get(program.outputs[0]) or (-math.inf, math.inf)
    values = model(samples(3, 2000, torch.Generator().manual_seed(0))).numpy()
    assert (lo <= values).all() and (values <= hi).all()
    problem = build_problem(network)
    goal = objective(problem, 0, 1)
    proof = prove(problem, goal, _search(problem, goal), 0)
    assert float(values[:, 0].max()) <= proof.bound


ROWS = [
    ("relu", {}),
    ("leaky_relu", {"negative_slope": 0.2}),
    ("leaky_relu", {"negative_slope": -0.3}),
    ("abs", {}),
    ("hardtanh", {}),
    ("softshrink", {}),
    ("hardsigmoid", {}),
    ("hardswish", {}),
    ("gelu", {}),
    ("gelu", {"approximate": "tanh"}),
    ("silu", {}),
    ("mish", {}),
    ("tanh", {}),
    ("sigmoid", {}),
    ("erf", {}),
    ("erfc", {}),
    ("atan", {}),
    ("softsign", {}),
    ("logsigmoid", {}),
    ("tanhshrink", {}),
    ("softplus", {"beta": 2.0}),
    ("elu", {"alpha": 0.7}),
    ("elu", {"alpha": 2.0}),
    ("selu", {}),
    ("celu", {"alpha": 1.3}),
    ("sin", {}),
    ("cos", {}),
]


@pytest.mark.parametrize(("op", "attributes"), ROWS)
def test_the_table_is_true(op: str, attributes: dict[str, Any]) -> None:
    row = activation(op, attributes)
    assert row is not None
    z = np.linspace(-40, 40, 400_001)
    y, h = row.function(z), 2e-4
    clear = np.ones_like(z, dtype=bool)
    for place in (*row.kinks, *row.rough):
        clear &= np.abs(z - place) > 4 * h
    inner = clear[1:-1]
    assert np.abs(np.diff(y) / h).max() <= row.slope + 1e-9
    assert np.abs((y[2:] - 2 * y[1:-1] + y[:-2]) / h**2)[inner].max() <= row.second + 1e-5
    if math.isfinite(row.third):
        wide = y[::50]
        third = np.abs((wide[3:] - 3 * wide[2:-1] + 3 * wide[1:-2] - wide[:-3]) / (50 * h) ** 3)
        at = z[::50][1:-2]
        away = np.ones_like(at, dtype=bool)
        for place in (*row.kinks, *row.rough):
            away &= np.abs(at - place) > 0.03
        assert third[away].max() <= row.third + 1e-3
    assert row.low - 1e-15 <= y.min() and y.max() <= row.high + 1e-15
    for m, k in row.above:
        assert (y - m * z + k).min() >= -1e-14
    for m, k in row.below:
        assert (m * z + k - y).min() >= -1e-14
    (left, left_offset), (right, right_offset) = row.tails
    rest = np.where(z < 0, y - left * z, y - right * z)
    assert row.rest[0] - 1e-14 <= rest.min() and rest.max() <= row.rest[1] + 1e-14
    if row.away is not None:
        gone = np.abs(rest - np.where(z < 0, left_offset, right_offset))
        assert (gone <= row.away(np.abs(z)) + 1e-14).all()


def test_positive_semidefinite_is_no_easier_than_it_is() -> None:
    generator = np.random.default_rng(0)
    for size in (2, 5, 30):
        half = generator.standard_normal((size, size))
        values, vectors = np.linalg.eigh(half @ half.T)
        for lowest, expected in ((1e-6, True), (-1e-13, False)):
            values[0] = lowest * values[-1]
            matrix = (vectors * values) @ vectors.T
            assert positive_semidefinite(Rough.exact(matrix)) is expected
        values[0] = 1e-6 * values[-1]
        loose = np.full((size, size), 1e-5 * values[-1])
        assert not positive_semidefinite(Rough((vectors * values) @ vectors.T, loose))
        assert spectral_norm(Rough.exact(half)) >= np.linalg.norm(half, 2)


@pytest.mark.parametrize("case", CELLS)
def test_no_value_passes_a_cells_bound(case: tuple[int, int, str, str, str]) -> None:
    seed, dim, norm, act, place = case
    model = random_net(seed, dim, norm, act, place, 1e-5)
    program, _ = _parts(model, dim, None)
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    cells, points = 200, 64
    half = np.exp2(-rng.integers(0, 26, (cells, dim)).astype(np.float64))
    centre = -1 + half * (2 * np.floor(rng.uniform(0, 1, (cells, dim)) / half) + 1)
    matrix = np.triu(rng.standard_normal((dim + 1, dim + 1)))
    np.fill_diagonal(matrix, np.exp(rng.standard_normal(dim + 1)))
    for sign in (1.0, -1.0):
        checker = _Checker(
            program, program.outputs[0], ranges(program, {}), {}, program.inputs[0].name, 0, sign
        )
        for face in range(2 * (dim + 1)):
            free = [j for j in range(dim + 1) if j != face // 2]
            p = np.full((cells, dim + 1), 2.0 * (face % 2) - 1.0)
            p[:, free] = centre
            columns = np.zeros((dim, cells, dim + 1))
            for j, axis in enumerate(free):
                columns[j, :, axis] = half[:, j]
            top = checker.bound(matrix, np.zeros(dim + 1), p, columns)
            delta = torch.rand(points, dim, cells, 1, generator=generator, dtype=DOUBLE).numpy() * 2 - 1
            u = (p + (delta * columns).sum(1)) @ matrix.T
            t = u[..., -1]
            x = torch.from_numpy(u[..., :-1] / np.where(t > 0, t, 1.0)[..., None])
            values = sign * model(x.reshape(-1, dim)).reshape(points, cells, -1)[..., 0].numpy()
            values = np.where((t > 0) & np.isfinite(values), values, -math.inf).max(0)
            assert (values <= top).all()


def test_trees_that_do_not_cover_are_refused() -> None:
    assert read_tree("0.1..", 2)[1].prod(1).sum() == 1.0
    for tree in ("", "0.", "..", "2..", "0..x"):
        with pytest.raises(CertificateError):
            read_tree(tree, 2)


# ------------------------------------------------------------------ intervals


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.second = nn.Linear(3, 8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.wide, self.back, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.embed(x))
        x = x + self.attend(x, x, x, need_weights=False)[0]
        x = x + self.back(torch.nn.functional.gelu(self.wide(x)))
        return self.head(self.second(x).mean(1))


def _interval_models() -> list[tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    convolutional = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip
    return [
        (random_net(1, 2, "layer", "gelu", "every", 1e-5), (1, 2)),
        (Transformer().double().eval().requires_grad_(False), (1, 4, 3)),
        (convolutional.double().eval().requires_grad_(False), (1, 1, 8, 8)),
    ]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_intervals_are_sound_and_near_the_propagated_ones(which: int) -> None:
    model, shape = _interval_models()[which]
    program = capture(model, torch.zeros(shape, dtype=DOUBLE), dynamic_batch=False)
    lo, hi = ranges(program, {}).of(program.outputs[0])
    claim = propagate(program, {})[program.outputs[0]]
    assert isinstance(claim, Interval)
    for scale in (1e-3, 1.0, 1e3):
        for seed in range(40):
            x = scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
            values = model(x).reshape(-1).numpy()
            assert (lo <= values).all() and (values <= hi).all()
    upper = claim.hi.reshape(-1).numpy()
    assert (hi <= upper + 1e-6 * np.maximum(1, np.abs(upper))).all()
    size = len(lo)
    proofs = [
        {"kind": "interval", "output": i, "side": side, "bound": float(end[i])}
        for i in range(size)
        for side, end in (("upper", hi), ("lower", -lo))
    ]
    certificate = {
        "format": "farfield-certificate/1", "model_hash": model_hash(program), "domain": {"kind": "all"},
        "output": program.outputs[0], "lower": (lo - 1e-8 * (1 + np.abs(lo))).tolist(),
        "upper": (hi + 1e-8 * (1 + np.abs(hi))).tolist(), "witnesses": [], "proofs": proofs,
        "input_shape": [list(shape)], "input_dtype": ["float64"],
    }  # fmt: skip
    assert verify_certificate(model, certificate)
    for proof in proofs:
        proof["bound"] -= 1e-6 * max(1.0, abs(proof["bound"]))
        assert _refused(program, certificate)
        proof["bound"] += 1e-6 * max(1.0, abs(proof["bound"]))


def test_an_operator_without_a_rule_is_named() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.i0(torch.nn.functional.layer_norm(x, (3,)))

    model = Odd()
    program = capture(model, torch.zeros(1, 3, dtype=DOUBLE), dynamic_batch=False)
    with pytest.raises(CertificateError, match="can't be re-checked independently"):
        ranges(program, {}).of(program.outputs[0])
