"""The checker of certificates: what is right is accepted, what is false is refused, what it derives is true."""

from __future__ import annotations

import copy
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from certify.cell_oracle import DOUBLE, random_net, samples
from certify.forgeries import Adaptive, Plain, accepted, altered, cases, forgery, inputs, unbounded
from farfield import Budget
from farfield.certify import CertificateError, certify, model_hash, verify_certificate
from farfield.certify.checker import _cells, check_program, proof_reader, uncheckable
from farfield.certify.checker._cells import CellsCheck, read_tree
from farfield.certify.checker._curves import curve
from farfield.certify.checker._dual import DualCheck
from farfield.certify.checker._joint import joint_bound
from farfield.certify.checker._ranges import Ranges
from farfield.certify.checker._reading import Reading
from farfield.certify.checker._softmax import difference_program, probability_bound
from farfield.certify.checker._values import MidRad, positive_semidefinite, spectral_norm
from farfield.certify.intervals import propagate
from farfield.graph import Program, capture

Data = dict[str, Any]


def _program(model: nn.Module, *shape: int) -> Program:
    return capture(model, torch.zeros(shape, dtype=DOUBLE), dynamic_batch=False)


def _interval_data(program: Program, lower: list[float], upper: list[float], shape: tuple[int, ...]) -> Data:
    """A certificate by plain intervals, as anyone can write one."""
    proofs = [
        {"kind": "interval", "output": i, "side": side, "bound": bound}
        for i in range(len(lower))
        for side, bound in (("upper", upper[i]), ("lower", -lower[i]))
    ]
    return {
        "format": "farfield-certificate/1", "model_hash": model_hash(program), "domain": {"kind": "all"},
        "output": program.outputs[0], "lower": lower, "upper": upper, "witnesses": {}, "proofs": proofs,
        "input_shape": [list(shape)], "input_dtype": ["float64"],
        "assumptions": [
            "Real arithmetic: rounding of the model's own forward pass is not covered; see float_limit.",
            "The model as captured: eval mode, one row, fixed sizes and weights.",
            "float64 functions of the platform (exp, tanh, erf, …) are right to four units in the last place.",
        ],
    }  # fmt: skip


WRAPPING: dict[str, tuple[Any, list[float]]] = {
    "square": (lambda x: x.clamp(-6e4, 6e4).to(torch.int32).square(), [5e4, -7e4]),
    "mul": (lambda x: x.clamp(-6e4, 6e4).to(torch.int32) * 50000, [5e4, -7e4]),
    "pow": (lambda x: x.clamp(-100, 100).to(torch.int8) ** 2, [12.0, 100.0]),
    "neg": (lambda x: -x.clamp(0, 10).to(torch.uint8), [3.0, 1e9]),
    "abs": (lambda x: x.clamp(-128, 1).to(torch.int8).abs(), [-200.0, -128.0]),
    "prod": (lambda x: x.clamp(-6e4, 6e4).to(torch.int32).prod(-1, dtype=torch.int32, keepdim=True), [5e4]),
    "int64": (lambda x: x.clamp(-4e9, 4e9).to(torch.int64).square(), [4e9, 3.1e9]),
}


@pytest.mark.parametrize("name", WRAPPING)
def test_whole_numbers_wrap_around_in_their_type(name: str) -> None:
    """46341² is negative in 32 bits: by both kinds of intervals the result may be anything of its type."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return WRAPPING[name][0](x).to(torch.float64)

    program = _program(Model(), 1, 2)
    lo, hi = Ranges(program).of("output")
    claim = propagate(program)["output"]
    assert not isinstance(claim, tuple)
    for number in WRAPPING[name][1]:
        value = Model()(torch.full((1, 2), number, dtype=DOUBLE)).reshape(-1)
        assert (lo <= value.numpy()).all() and (value.numpy() <= hi).all()
        assert bool(claim.contains(value.reshape(claim.shape)).all())
        bound = float(value[0])
        false = [bound + 1.0], [math.inf]
        if bound >= 0:
            false = [-math.inf], [bound - 1.0]
        size = value.numel()
        with pytest.raises(CertificateError):
            check_program(program, _interval_data(program, false[0] * size, false[1] * size, (1, 2)))


class _Projected(nn.Module):
    """An LSTM whose hidden state is o·tanh(c) times a matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recurrent = nn.LSTM(4, 5, proj_size=2, batch_first=True)
        for parameter in self.recurrent.parameters():
            parameter.data *= 20.0

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.recurrent(x)[0]
        return made


def test_the_projection_of_an_lstm_is_not_within_one() -> None:
    model = _Projected().double()
    program = _program(model, 1, 3, 4)
    x = torch.randn(64, 3, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    assert float(model(x).detach().abs().max()) > 3
    with pytest.raises(CertificateError):
        check_program(program, _interval_data(program, [-1.0] * 6, [1.0] * 6, (1, 3, 4)))


@pytest.mark.parametrize("bad", [-1.24999, math.nan])
@pytest.mark.parametrize("norm", ["layer", "rms", "group", "by_hand"])
def test_a_norm_whose_stabilizer_is_not_positive_proves_nothing(norm: str, bad: float) -> None:
    """(x − mean)/√(var + ε) at ε = −var is infinite."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if norm == "layer":
                return functional.layer_norm(x, (4,), eps=bad)
            if norm == "rms":
                return functional.rms_norm(x, (4,), eps=bad)
            if norm == "group":
                return functional.group_norm(x, 2, eps=bad)
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + bad)

    program = _program(Model(), 1, 4)
    with pytest.raises(CertificateError):
        check_program(program, _interval_data(program, [-2.0] * 4, [2.0] * 4, (1, 4)))
    with pytest.raises(CertificateError):
        Reading(Ranges(program), "output", (), program.inputs[0].name)


# ------------------------------------------------------------------ accepted


@pytest.mark.parametrize("which", range(8))
def test_honest_certificates_are_accepted(which: int) -> None:
    """Cells, duals, intervals, softmax; numbers, a norm's bias and a mean among the operators; its own witnesses."""
    case = cases()[which]
    assert uncheckable(case.program, case.program.outputs[0], case.data["domain"]) is None
    assert verify_certificate(case.model, case.data)


def test_paths_objects_and_examples(tmp_path: Path) -> None:
    case = cases()[0]
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(case.data), encoding="utf-8")
    assert verify_certificate(case.model, path)
    assert verify_certificate(case.model, str(path), torch.zeros(1, 1, dtype=DOUBLE))

    class Holder:
        def to_dict(self) -> Data:
            return case.data

    assert verify_certificate(case.model, Holder())


def test_every_kind_of_proof_is_among_the_cases() -> None:
    kinds = {proof["kind"] for case in cases() for proof in case.data["proofs"]}
    assert {"cells", "dual", "softmax"} <= kinds


# ------------------------------------------------------------------ refused


def test_forgeries_are_refused() -> None:
    wrong = [(seed, what) for seed in range(300) for what, p, d in [forgery(seed)] if accepted(p, d)]
    assert not wrong


def test_whatever_is_written_badly_is_refused_by_name() -> None:
    """Any other exception than the checker's own comes through and fails."""
    for seed in range(300):
        _, program, data = altered(seed)
        accepted(program, data)


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    model = nn.LayerNorm(2)
    for text in ("", "[", "[]", "{}", '{"format": "farfield-certificate/1"}', "nonsense"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(CertificateError):
            verify_certificate(model, path)
    for wrong in (
        None,
        3,
        [],
        {"format": "farfield-certificate/1", "input_shape": [[-1]], "input_dtype": ["load"]},
    ):
        with pytest.raises(CertificateError):
            verify_certificate(model, wrong)
    with pytest.raises(CertificateError):
        verify_certificate(model, tmp_path / "absent.json")


@pytest.mark.parametrize("which", range(6))
def test_an_unbounded_model_has_no_certificate(which: int) -> None:
    """Adaptive norms among them: a norm whose weight is exp of the input was once read as a norm without one."""
    model, dim = unbounded()[which]
    program = _program(model, 1, dim)
    size = math.prod(int(d) for d in program.node(program.outputs[0]).shape)
    assert not accepted(program, _interval_data(program, [-1e6] * size, [1e6] * size, (1, dim)))
    norms = {
        n.name: {"parametrized": False, "kappa": [1e3], "omega": [0.0]}
        for n in program.nodes
        if n.op == "layer_norm"
    }
    proof = {
        "kind": "dual",
        "joint": 1e6,
        "curves": {},
        "norms": norms,
        "boxes": {},
        "forms": [],
        "products": "eJxjYGBgAAAABAAB",
    }
    data = _interval_data(program, [-1e6] * size, [1e6] * size, (1, dim))
    data["proofs"] = [{**p, **proof} for p in data["proofs"]]
    assert not accepted(program, data)


def test_an_adaptive_norm_with_a_bounded_weight_is_bounded_by_its_range() -> None:
    model = Adaptive(torch.tanh).double()
    program = _program(model, 1, 2)
    lo, hi = Ranges(program).of("output")
    values = torch.cat([model(x[None]) for x in inputs(2, 500)])
    assert (torch.from_numpy(lo) <= values).all() and (values <= torch.from_numpy(hi)).all()
    assert (hi < 1.8).all()


@pytest.mark.parametrize("kind", ["ulp", "percent"])
def test_another_model_is_refused(kind: str) -> None:
    case = cases()[1]
    other = copy.deepcopy(case.model)
    weight = next(p for p in other.parameters() if p.ndim == 2)
    weight[0, 0] = math.nextafter(float(weight[0, 0]), 9.0) if kind == "ulp" else weight[0, 0] * 1.01
    with pytest.raises(CertificateError, match="hash"):
        verify_certificate(other, case.data)


def test_a_witness_beyond_a_bound_is_named() -> None:
    case = cases()[0]
    data = copy.deepcopy(case.data)
    data["upper"][0] = data["witnesses"]["upper"][0]["value"] - 1e-3
    with pytest.raises(CertificateError, match="attains"):
        verify_certificate(case.model, data)
    data = copy.deepcopy(case.data)
    data["witnesses"]["upper"][0]["value"] += 0.1
    with pytest.raises(CertificateError, match="witness"):
        verify_certificate(case.model, data)


# ------------------------------------------------------------------ how a program is read


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (3,)) + 3 * torch.rand(1, 3, dtype=x.dtype)


def test_a_draw_is_no_constant() -> None:
    program = _program(Random(), 1, 3)
    lo, hi = Ranges(program).of("output")
    assert (lo <= -1.4).all() and (hi >= 1.4 + 3).all()
    with pytest.raises(CertificateError, match="random"):
        Reading(Ranges(program), "output", (), program.inputs[0].name)


class Dropped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        weights = functional.dropout(torch.softmax(x, -1), 0.5, training=True)
        return weights @ functional.layer_norm(x, (3,)).T


def test_dropout_in_training_mode_is_not_looked_through() -> None:
    """Behind it the weights sum to as much as 2, not to 1."""
    program = _program(Dropped(), 3, 3)
    hi = Ranges(program).of("output")[1]
    top = 2.0**0.5
    assert (hi > 1.9 * top).all()


class Whole(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(functional.layer_norm(x, (3,)), -1).to(torch.int64).to(torch.float64)


def test_a_cast_to_integers_is_no_softmax() -> None:
    program = _program(Whole(), 1, 3)
    assert difference_program(program, "output") is None
    lo, hi = Ranges(program).of("output")
    assert (lo <= 0).all() and (hi >= 0).all()


class Fraction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = functional.layer_norm(x, (3,))
        return y - y.to(torch.int64).to(torch.float64)


class _Saturated(nn.Module):
    """A softmax whose logits reach far apart: which class is sure of itself depends on the input."""

    def __init__(self, size: float, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)
        self.head.weight.data = size * torch.randn(3, 4, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.head(self.norm(x)), -1)


@pytest.mark.parametrize("size", [0.1, 3.0, 100.0, 1e3, 1e6])
def test_a_softmax_that_saturates_is_not_lost_to_underflow(size: float) -> None:
    """Every class may be the sure one, however far apart the logits' ranges lie."""
    for seed in range(4):
        model = _Saturated(size, seed).double()
        program = _program(model, 1, 4)
        low, high = Ranges(program, {}).of("output")
        x = torch.randn(4000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        met = model(100.0 * x).detach().numpy()
        assert (met.max(0) <= high.reshape(-1)).all() and (met.min(0) >= low.reshape(-1)).all()
        least = [float(v) for v in met.max(0) - 1e-3]
        if max(least) > 0.9:  # a claim that is just false
            with pytest.raises(CertificateError):
                check_program(program, _interval_data(program, [0.0] * 3, least, (1, 4)))


def test_a_cast_to_integers_is_no_affine_map() -> None:
    """y − trunc(y) was once taken for 0."""
    program = _program(Fraction(), 1, 3)
    with pytest.raises(CertificateError, match="cast"):
        Reading(Ranges(program), "output", (), program.inputs[0].name)
    lo, hi = Ranges(program).of("output")
    values = Fraction()(samples(3, 2000, torch.Generator().manual_seed(0))).numpy()
    assert (lo <= values).all() and (values <= hi).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_reading_is_the_program(seed: int) -> None:
    """The output's form at the values of the layers is the output, within its radii."""
    torch.manual_seed(seed)
    model = Plain(3, numbers=True).double()
    program = _program(model, 1, 3)
    reading = Reading(Ranges(program), "output", (), program.inputs[0].name)
    x = torch.randn(1, 3, dtype=DOUBLE)
    values = program.evaluate(x)
    norm = functional.layer_norm(model.first((x - 0.5) / 0.25), (8,))
    row = [1.0]
    for layer in reading.layers:
        found = {"input": x, "norm": norm, "curve": values.get(layer.node.name)}[layer.kind]
        row += found.reshape(-1).tolist()
    made = MidRad.exact(np.array(row)[None]) @ reading.output.value.reshape(len(row), -1)
    truth = values["output"].reshape(-1).numpy()
    assert (np.abs(made.mid[0] - truth) <= made.rad[0] + 1e-14).all()
    assert (made.rad < 1e-11).all()


def test_a_proof_is_bounded_from_its_multipliers_alone() -> None:
    """The stored joint part, the stored ranges and multipliers of nodes that do not matter change nothing."""
    case = next(c for c in cases() if c.data["proofs"][0]["kind"] == "dual")
    proof = copy.deepcopy(case.data["proofs"][0])
    read = proof_reader(case.program, case.program.outputs[0], {"kind": "all"})
    before = read(proof)
    proof["joint"] = -1e9
    proof["curves"]["nobody"] = {}
    for entry in proof["curves"].values():
        entry["lo"] = entry["hi"] = "AAAA"
    assert read(proof) == before


@pytest.mark.parametrize("which", range(6))
def test_other_multipliers_never_prove_what_is_false(which: int) -> None:
    case = cases()[which]
    rng = np.random.default_rng(which)
    ranges = Ranges(case.program)
    for proof in [p for p in case.data["proofs"] if p["kind"] == "dual"]:
        for _ in range(5):
            check = DualCheck(ranges, case.program.outputs[0], case.program.inputs[0].name, proof)
            scale = {k: 1 + 0.1 * rng.standard_normal() for k in ("theta", "r", "t", "e", "s")}
            plain = check._array
            check._array = lambda n, k, s, plain=plain, scale=scale: scale.get(k, 1.0) * plain(n, k, s)  # type: ignore[method-assign, misc]
            sign = 1.0 if proof["side"] == "upper" else -1.0
            try:
                found = check.check(proof["output"], sign)
            except CertificateError:
                continue
            met = case.high[proof["output"]] if sign > 0 else -case.low[proof["output"]]
            assert met <= found


# ------------------------------------------------------------------ what it cannot check


class Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.i0(functional.layer_norm(x, (3,)))


def test_an_operator_without_a_rule_is_named_beforehand() -> None:
    words = uncheckable(_program(Odd(), 1, 3), "output")
    assert words is not None
    assert words.startswith("The independent checker does not support")
    assert uncheckable(_program(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), 1, 3), "output") is None


def test_a_norm_hides_what_is_before_it() -> None:
    model = nn.Sequential(Odd(), nn.LayerNorm(3))
    assert uncheckable(_program(model, 1, 3), "output") is None


# ------------------------------------------------------------------ its numbers

_SELU = (1.0507009873554805, 1.6732632423543772)


def _cubic(z: Any) -> Any:
    return z + mpmath.mpf("0.044715") * z**3


ROWS: list[tuple[str, Data, Any]] = [
    ("relu", {}, lambda z: max(z, 0)),
    ("leaky_relu", {"negative_slope": 0.2}, lambda z: z if z > 0 else 0.2 * z),
    ("leaky_relu", {"negative_slope": -0.3}, lambda z: z if z > 0 else -0.3 * z),
    ("abs", {}, abs),
    ("hardtanh", {}, lambda z: min(max(z, -1), 1)),
    ("softshrink", {}, lambda z: z - mpmath.sign(z) / 2 if abs(z) > 0.5 else mpmath.mpf(0)),
    ("hardsigmoid", {}, lambda z: min(max(z / 6 + 0.5, 0), 1)),
    ("hardswish", {}, lambda z: z * min(max(z / 6 + 0.5, 0), 1)),
    ("gelu", {}, lambda z: z * mpmath.ncdf(z)),
    ("gelu", {"approximate": "tanh"}, lambda z: z / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * _cubic(z)))),
    ("silu", {}, lambda z: z / (1 + mpmath.exp(-z))),
    ("mish", {}, lambda z: z * mpmath.tanh(mpmath.log1p(mpmath.exp(z)))),
    ("tanh", {}, mpmath.tanh),
    ("sigmoid", {}, lambda z: 1 / (1 + mpmath.exp(-z))),
    ("erf", {}, mpmath.erf),
    ("erfc", {}, mpmath.erfc),
    ("atan", {}, mpmath.atan),
    ("softsign", {}, lambda z: z / (1 + abs(z))),
    ("logsigmoid", {}, lambda z: -mpmath.log1p(mpmath.exp(-z))),
    ("tanhshrink", {}, lambda z: z - mpmath.tanh(z)),
    ("softplus", {"beta": 2.0}, lambda z: mpmath.log1p(mpmath.exp(2 * z)) / 2),
    ("elu", {"alpha": 0.7}, lambda z: z if z > 0 else mpmath.mpf(0.7) * mpmath.expm1(z)),
    ("elu", {"alpha": 2.0}, lambda z: z if z > 0 else 2 * mpmath.expm1(z)),
    ("selu", {}, lambda z: mpmath.mpf(_SELU[0]) * (z if z > 0 else mpmath.mpf(_SELU[1]) * mpmath.expm1(z))),
    ("celu", {"alpha": 1.3}, lambda z: z if z > 0 else mpmath.mpf(1.3) * mpmath.expm1(z / mpmath.mpf(1.3))),
    ("sin", {}, mpmath.sin),
    ("cos", {}, mpmath.cos),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attributes", "truth"), ROWS)
def test_the_table_is_true(op: str, attributes: Data, truth: Any) -> None:
    """Against mpmath with 40 digits, on a grid that is finer near 0; differences stand in for derivatives."""
    row = curve(op, attributes)
    assert row is not None
    with mpmath.workdps(40):
        h = mpmath.mpf("1e-9")
        grid = [mpmath.mpf(k) / 50 + mpmath.mpf("0.0031") for k in range(-500, 500)] + [
            mpmath.mpf(s) * 15 for s in (-2, -1, 1, 2)
        ]
        y = [truth(z) for z in grid]
        first = [(truth(z + h) - truth(z - h)) / (2 * h) for z in grid]
        second = [(truth(z + h) - 2 * truth(z) + truth(z - h)) / h**2 for z in grid]
        points = np.array([float(z) for z in grid])
        assert max(abs(a - b) for a, b in zip(row.at(points), y, strict=True)) <= 2.0**-46 * 32 + row.defect
        assert max(abs(a - b) for a, b in zip(row.derivative(points), first, strict=True)) < 1e-12
        assert (
            row.slopes[0] <= min(first) + mpmath.mpf("1e-15")
            and max(first) - mpmath.mpf("1e-15") <= row.slopes[1]
        )
        assert max(map(abs, second)) <= row.second + mpmath.mpf("1e-14")
        assert row.low <= min(y) and max(y) <= row.high
        for m, k in row.above:
            assert min(v - m * z + k for v, z in zip(y, grid, strict=True)) >= -mpmath.mpf("1e-15")
        for m, k in row.below:
            assert min(m * z + k - v for v, z in zip(y, grid, strict=True)) >= -mpmath.mpf("1e-15")
        (left, left_offset), (right, right_offset) = row.tails
        rest = [v - (left if z < 0 else right) * z for v, z in zip(y, grid, strict=True)]
        assert row.rest[0] - 1e-15 <= min(rest) and max(rest) <= row.rest[1] + 1e-15
        if math.isfinite(row.settled):
            for side, offset in ((-1, left_offset), (1, right_offset)):
                far = [
                    abs(r - offset)
                    for z, r in sorted(zip(grid, rest, strict=True), key=lambda p: abs(p[0]))
                    if side * z > row.settled
                ]
                assert all(b <= a + mpmath.mpf("1e-30") for a, b in pairwise(far))


@pytest.mark.parametrize(("op", "attributes", "truth"), ROWS[::2])
def test_divided_differences_and_intercepts_are_enclosed(op: str, attributes: Data, truth: Any) -> None:
    row = curve(op, attributes)
    assert row is not None
    rng = np.random.default_rng(0)
    ends = np.sort(rng.normal(0, 3, (2, 400)) * 10.0 ** rng.uniform(-3, 0, 400), 0)
    start = ends[0] + (ends[1] - ends[0]) * rng.uniform(0, 1, 400)
    slope = row.slope_between(MidRad.exact(start), ends[0], ends[1])
    intercept = row.intercept(ends[0], ends[1])
    least, most = row.image(ends[0], ends[1])
    with mpmath.workdps(40):
        for i in range(400):
            for share in (0.0, 0.3, 1.0):
                z0, z = (
                    mpmath.mpf(start[i]),
                    mpmath.mpf(ends[0, i]) + (mpmath.mpf(ends[1, i]) - ends[0, i]) * share,
                )
                assert least[i] <= truth(z) + row.defect and truth(z) - row.defect <= most[i]
                if z != z0:
                    assert abs((truth(z) - truth(z0)) / (z - z0) - slope.mid[i]) <= slope.rad[i]
                steep = (truth(z + mpmath.mpf("1e-15")) - truth(z)) / mpmath.mpf("1e-15")
                assert abs(truth(z) - z * steep - intercept.mid[i]) <= intercept.rad[i]


@pytest.mark.parametrize("name", ["relu", "abs", "softplus", "leaky_relu", "logsigmoid", "gelu"])
def test_the_image_of_a_huge_range_is_no_smaller_than_it_is(name: str) -> None:
    sigma = curve(name, {})
    assert sigma is not None
    for number in (1e199, -1e199):
        value = float(sigma.at(np.array([number]))[0])
        lo, hi = sigma.image(np.array([-1e200]), np.array([1e200]))
        assert lo[0] <= value <= hi[0]


@pytest.mark.parametrize(("op", "attributes", "truth"), ROWS)
def test_the_image_of_a_half_line(op: str, attributes: Data, truth: Any) -> None:
    """It holds what the function takes, to 10¹⁹⁰; of a monotone one the near end's bound is its value."""
    row = curve(op, attributes)
    assert row is not None
    reach = [s * 10.0**k for s in (-1, 1) for k in (-9, -1, 0, 0.5, 1, 2, 5, 50, 149, 151, 190)]
    for end in (-1e160, -30.0, -2.0, -0.4, 0.0, 0.7, 3.0, 40.0, 1e160):
        for lo, hi in ((-math.inf, end), (end, math.inf), (-math.inf, math.inf)):
            least, most = row.image(np.array([lo]), np.array([hi]))
            with mpmath.workdps(250):
                for z in (z for z in (end, *reach) if lo <= z <= hi and (abs(z) < 1e5 or row.piecewise)):
                    y = truth(mpmath.mpf(z))
                    assert least[0] <= y + row.defect and y - row.defect <= most[0], (lo, hi, z)
            assert least[0] <= row.tails[0][1] + 1e-9 or row.tails[0][0] or lo > -math.inf
            assert most[0] >= row.tails[1][1] - 1e-9 or row.tails[1][0] or hi < math.inf
    if row.slopes[0] >= 0:
        assert (
            row.image(np.array([-math.inf]), np.array([0.0]))[1][0]
            <= float(truth(mpmath.mpf(0))) + 1e-9 + row.defect
        )
        assert (
            row.image(np.array([0.0]), np.array([math.inf]))[0][0]
            >= float(truth(mpmath.mpf(0))) - 1e-9 - row.defect
        )


def test_softplus_of_a_negative_number_is_bounded() -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log1p(torch.exp(-x.abs()))

    found = certify(Both(), torch.zeros(1, 2), time_budget=Budget(steps=2))
    assert verify_certificate(Both(), found)
    assert (found.upper - math.log(2.0)).abs().max() < 1e-6
    assert found.lower.abs().max() < 1e-6


def test_a_line_that_does_not_hold_is_refused() -> None:
    tanh, relu = curve("tanh", {}), curve("relu", {})
    assert tanh is not None
    assert relu is not None
    assert tanh.true_form(1.0, 0.0, 0.999) is None
    assert tanh.true_form(1.0, 0.0, 1.0) is not None
    assert relu.true_form(1.0, -1.0, 0.0) is not None
    assert relu.true_form(-1.0, 1.0, 0.0) is None


@pytest.mark.parametrize("smallest", [1e-2, 1e-4, 1e-5])
def test_large_weights_cost_a_joint_bound_little(smallest: float) -> None:
    """Multipliers of trained networks: a large diagonal, and a maximum where next to nothing of it is felt."""
    rng = np.random.default_rng(0)
    turned = np.linalg.qr(rng.standard_normal((260, 260)))[0]
    inner = (turned * np.geomspace(smallest, 1e4, 260)) @ turned.T
    inner = (inner + inner.T) / 2
    best = turned[:, :10] @ rng.uniform(-30, 30, 10)
    line = inner @ best
    matrix = np.block([[np.array([[-3.0]]), line[None]], [line[:, None], inner]])
    top = float(best @ line) + 3.0
    reach = np.concatenate([[1.0], np.full(260, 11.0)])
    assert np.abs(best).max() < 11.0

    def price(extra: np.ndarray) -> float:
        return float((extra * reach**2).sum()) * (1 + 1e-9)

    bound = joint_bound(MidRad.exact(matrix), reach, price, definite=False)
    assert top - 1e-7 < bound < top * 1.01


def test_positive_semidefinite_is_no_easier_than_it_is() -> None:
    generator = np.random.default_rng(0)
    for size in (2, 5, 30):
        half = generator.standard_normal((size, size))
        values, vectors = np.linalg.eigh(half @ half.T)
        for lowest, expected in ((1e-6, True), (-1e-13, False)):
            values[0] = lowest * values[-1]
            made = (vectors * values) @ vectors.T
            assert positive_semidefinite((made + made.T) / 2) is expected
        assert spectral_norm(MidRad.exact(half)) >= np.linalg.norm(half, 2)


# ------------------------------------------------------------------ cells

NETS = [
    (0, 1, "layer", "relu", "first"), (1, 2, "rms", "leaky", "first"), (2, 2, "group", "gelu", "every"),
    (4, 2, "layer", "tanh", "second"), (7, 1, "l2", "selu", "every"), (9, 1, "rms", "sigmoid", "input"),
    (12, 2, "layer", "hardtanh", "first"), (13, 2, "layer", "softplus", "second"), (5, 2, "layer", "silu", "second"),
]  # fmt: skip


@pytest.mark.parametrize("case", NETS)
def test_no_value_passes_a_cells_bound(case: tuple[int, int, str, str, str]) -> None:
    seed, dim, norm, act, place = case
    model = random_net(seed, dim, norm, act, place, 1e-5)
    program = _program(model, 1, dim)
    rng = np.random.default_rng(seed)
    cells, points = 200, 64
    half = np.exp2(-rng.integers(0, 26, (cells, dim)).astype(np.float64))
    center = -1 + half * (2 * np.floor(rng.uniform(0, 1, (cells, dim)) / half) + 1)
    matrix = np.triu(rng.standard_normal((dim + 1, dim + 1)))
    np.fill_diagonal(matrix, np.exp(rng.standard_normal(dim + 1)))
    ranges = Ranges(program)
    for sign in (1.0, -1.0):
        check = CellsCheck(ranges, "output", {}, program.inputs[0].name, 0, sign)
        for face in range(2 * (dim + 1)):
            free = [j for j in range(dim + 1) if j != face // 2]
            p, widths = np.full((cells, dim + 1), 2.0 * (face % 2) - 1.0), np.zeros((cells, dim + 1))
            p[:, free], widths[:, free] = center, half
            with np.errstate(all="ignore"):
                _, top, _ = check.bound(matrix, np.zeros(dim + 1), p, widths)
            u = (p + rng.uniform(-1, 1, (points, cells, dim + 1)) * widths) @ matrix.T
            t = u[..., -1]
            x = torch.from_numpy(u[..., :-1] / np.where(t > 0, t, 1.0)[..., None])
            values = sign * model(x.reshape(-1, dim)).reshape(points, cells, -1)[..., 0].numpy()
            values = np.where((t > 0) & np.isfinite(values), values, -math.inf).max(0)
            assert (values <= top).all()


def test_cells_bounds_close_in_with_the_square_of_the_width() -> None:
    """The excess over the largest value of a cell falls at least like h^1.7."""
    model = random_net(1, 2, "layer", "gelu", "first", 1e-2)
    program = _program(model, 1, 2)
    check = CellsCheck(Ranges(program), "output", {}, program.inputs[0].name, 0, 1.0)
    center = np.array([[0.3, 0.4, 1.0]])
    excess = []
    for h in (2.0**-6, 2.0**-9):
        widths = np.array([[h, h, 0.0]])
        _, top, _ = check.bound(np.eye(3), np.zeros(3), center, widths)
        grid = torch.from_numpy(
            center[0, :2] + h * np.stack(np.meshgrid(*[np.linspace(-1, 1, 41)] * 2), -1).reshape(-1, 2)
        )
        excess.append(float(top[0]) - float(model(grid)[:, 0].max()))
    assert 0 < excess[1] < excess[0] * 8.0**-1.7


def test_cells_that_come_late_count_where_an_early_one_exceeds_the_claim() -> None:
    """Tiny cells where f is a hair above the claim come first, by the thousand; f is far larger in a cell behind."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 1)).double()
    program = _program(model, 1, 1)
    far = float(model(torch.tensor([[-1e15]], dtype=DOUBLE)).detach())
    grid = torch.logspace(-3, 8, 400, dtype=DOUBLE)
    values = model(torch.cat([-grid, grid])[:, None]).detach()
    sign = 1.0 if float(values.max()) - far > 0.1 else -1.0
    assert float((sign * (values - far)).max()) > 0.1

    def leaves(depth: int) -> str:
        return "." if depth == 0 else "0" + 2 * leaves(depth - 1)

    check = CellsCheck(Ranges(program), "output", {}, program.inputs[0].name, 0, sign)
    first = leaves((check.batch - 1).bit_length())
    for _ in range(32):
        first = "0" + first + "."
    proof = {"matrix": np.eye(2).tolist(), "shift": [0.0, 0.0], "trees": ["0x" + first, "0x.", "x", "."]}
    claim = sign * far - 0.75e-9
    assert check.check(proof, claim + 0.5e-9) > claim + 0.1


def test_the_checkers_work_grows_with_the_list_of_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its form is coarser than the search's: a long list needs more than a fixed amount of further cells."""
    torch.manual_seed(4)
    model = nn.Sequential(
        nn.Linear(3, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)
    ).double()
    certificate = certify(model, torch.zeros(1, 3, dtype=DOUBLE), time_budget=Budget(steps=60))
    proof = certificate.proofs[0]
    assert proof["kind"] == "cells"
    read = proof_reader(_program(model, 1, 3), certificate.output, certificate.domain)
    monkeypatch.setattr(_cells, "WORK", 0.0)
    assert read(proof) <= proof["bound"]
    monkeypatch.setattr(_cells, "FURTHER", 0)
    assert read(proof) > proof["bound"]


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
        x = x + self.back(functional.gelu(self.wide(x)))
        return self.head(self.second(x).mean(1))


class Mixed(nn.Module):
    """One operator after the other that has a rule of its own."""

    def forward(self, x: Tensor) -> Tensor:
        y = functional.layer_norm(x, (4,)) + 0.5
        z = torch.where(y > 0, y, 0.1 * y).square() / (1 + torch.exp(-y)) - y.pow(3).clamp(-2, 3)
        z = torch.lerp(z, y, 0.3) + y.std(-1, keepdim=True) + torch.logsumexp(y, -1, keepdim=True)
        z = z * functional.normalize(y + 2.0, dim=-1) + torch.log_softmax(y, -1) + y.sort(-1).values
        return torch.cat(
            [z, torch.maximum(y, -z), functional.prelu(y, torch.tensor([0.3], dtype=y.dtype))], -1
        )


def _interval_models() -> list[tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    convolutional = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip
    models = [
        (random_net(1, 2, "layer", "gelu", "every", 1e-5), (1, 2)),
        (Transformer(), (1, 4, 3)),
        (convolutional, (1, 1, 8, 8)),
        (Mixed(), (1, 4)),
    ]
    return [(m.double().eval().requires_grad_(False), shape) for m, shape in models]


@pytest.mark.parametrize("which", range(4))
def test_intervals_are_sound_and_certify(which: int) -> None:
    model, shape = _interval_models()[which]
    program = _program(model, *shape)
    lo, hi = Ranges(program).of(program.outputs[0])
    for scale in (1e-3, 1.0, 1e3):
        for seed in range(40):
            x = scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
            values = model(x).reshape(-1).numpy()
            assert (lo <= values).all() and (values <= hi).all()
    data = _interval_data(program, lo.tolist(), hi.tolist(), shape)
    assert check_program(program, data)
    for proof in data["proofs"]:
        proof["bound"] -= 1e-6 * max(1.0, abs(proof["bound"]))
        assert not accepted(program, data)
        proof["bound"] += 1e-6 * max(1.0, abs(proof["bound"]))


class _Bounded(nn.Module):
    """A function of numbers in (−a, a) and in (c − 1, c + 1)."""

    def __init__(self, function: Any, reach: float) -> None:
        super().__init__()
        self.function, self.reach = function, reach

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.reach * torch.tanh(x), 2.5 + torch.tanh(2 * x.flip(-1)))


FUNCTIONS = {
    "floor division": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncated division": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "remainder of a negative divisor": lambda a, b: torch.remainder(a, -b),
    "remainder of what is smaller": lambda a, b: torch.remainder(0.1 * a.abs(), b),
    "fmod": torch.fmod,
    "fmod of what is smaller": lambda a, b: torch.fmod(0.1 * a, b),
    "hypot": torch.hypot,
    "product": lambda a, b: (a + 0.5).prod(-1, keepdim=True) * b,
    "negative power": lambda a, b: b**-3 + b**-0.5,
    "largest": lambda a, b: a.argmax(-1, keepdim=True) + b,
    "finite": lambda a, b: torch.nan_to_num(a) + b,
    "finite instead of infinite": lambda a, b: torch.nan_to_num(
        torch.where(a > 0, a, torch.full_like(a, -math.inf)), neginf=7.0
    ),
}


@pytest.mark.parametrize("reach", [0.3, 1.0, 40.0])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rules_by_name_hold_and_reach_the_output(name: str, reach: float) -> None:
    model = _Bounded(FUNCTIONS[name], reach)
    program = _program(model, 1, 4)
    assert uncheckable(program, "output") is None or name == "finite instead of infinite"
    low, high = Ranges(program, {}).of("output")
    x = 3.0 * torch.randn(20_000, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    met = model(x).reshape(len(x), -1).numpy()
    assert (met >= low).all() and (met <= high).all()
    if "remainder" in name or "fmod" in name or name == "hypot":
        assert (high - low).max() <= 1.2 * max(reach * math.sqrt(2), 4.0) * (2 if "fmod" in name else 1)


@pytest.mark.parametrize("bound", [-2000.0, -701.0, -699.0, -1.0, 0.0, 1.0, 699.0, 701.0, math.inf])
def test_a_probability_from_a_difference_of_logits(bound: float) -> None:
    """l₀ − l₁ ≤ b gives p₀ ≤ 1/(1 + e^{−b}), and l₁ − l₀ ≤ b gives p₀ ≥ 1/(1 + e^b), also where e^b overflows."""
    exact = 0.5 * (1 + math.tanh(bound / 2))
    assert exact <= probability_bound({0: bound}, 2, 0, 1.0) <= exact + 2e-13
    assert 1 - exact - 2e-13 <= -probability_bound({1: bound}, 2, 0, -1.0) <= 1 - exact + 1e-300


class _ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 6), nn.LayerNorm(6), nn.Linear(6, 1)).double()

    def forward(self, place: Tensor, *, speed: Tensor) -> Tensor:
        return self.net(place) + torch.tanh(speed).mean(-1, keepdim=True)


def test_the_inputs_given_to_certify_serve_to_verify() -> None:
    """A batch of them, and arguments by name."""
    model = _ByName().eval()
    inputs = {"place": torch.randn(5, 2, dtype=DOUBLE), "speed": torch.randn(5, 3, dtype=DOUBLE)}
    certificate = certify(model, inputs, time_budget=Budget(steps=10))
    assert verify_certificate(model, certificate, inputs)
    plain = model.net
    rows = torch.randn(7, 2, dtype=DOUBLE)
    assert verify_certificate(plain, certify(plain, rows, time_budget=Budget(steps=10)), rows)


def test_a_model_of_token_ids_alone_has_a_certificate() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(12, 1)).eval()
    ids = torch.randint(0, 10, (2, 3))
    certificate = certify(model, ids, time_budget=Budget(steps=5))
    assert verify_certificate(model, certificate, ids)
    with torch.no_grad():
        values = model(torch.randint(0, 10, (500, 3)))
    assert bool((values >= certificate.lower).all() and (values <= certificate.upper).all())
