"""Norms and activations written by hand: found where the algebra is exactly theirs, left alone where it is not."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.nn import functional

from farfield.graph import Program, capture
from farfield.nn import LayerNorm, NormCap, Project
from graph.support import EXACT, Function, assert_same, raw_program

N, D = 3, 4
EPS = 1e-3


def mean(t):
    return t.mean(-1, keepdim=True)


def biased_variance(x):
    return (x - mean(x)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + EPS)


def kept_from_zero(x):
    return (x - mean(x)) / x.std(-1, keepdim=True, correction=0).clamp(min=EPS)


def annotated_transformer(x):
    return (x - mean(x)) / (x.std(-1, keepdim=True) + EPS)


def channels_first(x):
    x = x.unsqueeze(-1)
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    return ((x - u) / torch.sqrt(s + EPS)).squeeze(-1)


def moments(x):
    second, first = (x * x).mean(-1, keepdim=True), mean(x)
    return (x - first) * torch.rsqrt((second - first**2).clamp(min=0) + EPS)


def var_mean(x):
    variance, center = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - center) / (variance + EPS).sqrt()


def without_keepdim(x):
    return (x - x.mean(-1)[:, None]) / torch.sqrt(x.var(-1, unbiased=False).unsqueeze(-1) + EPS)


def twice_and_scaled(x):
    """What exporters make of a deviation: the mean again, and a mean of squares brought to n − 1."""
    again = x - mean(x)
    return (x - mean(x)) / (((again * again).mean(-1) * D / (D - 1)).reshape(-1, 1).sqrt() + EPS)


def summed(x):
    c = x - mean(x)
    return c * torch.rsqrt(c.square().sum(-1, keepdim=True) / D + EPS)


def whole_tensor(x):
    return (x - x.mean()) / (x.var() + EPS).sqrt()


def added_negative(x):
    c = x + (-mean(x))
    return c / (mean(c * c) + EPS) ** 0.5


LAYER_NORMS = {
    "biased variance": (biased_variance, 0, "inside"),
    "unbiased deviation plus eps": (annotated_transformer, 1, "outside"),
    "channels first": (channels_first, 0, "inside"),
    "difference of moments": (moments, 0, "inside"),
    "var_mean": (var_mean, 0, "inside"),
    "without keepdim": (without_keepdim, 0, "inside"),
    "sum over the count": (summed, 0, "inside"),
    "twice, and a scaled mean": (twice_and_scaled, 1, "outside"),
    "over every axis": (whole_tensor, 1, "inside"),
    "mean added with its sign turned": (added_negative, 0, "inside"),
    "deviation kept from zero": (kept_from_zero, 0, "clamp"),
}

RMS_NORMS = {
    "llama": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS), "inside"),
    "division": (lambda x: x / torch.sqrt(mean(x * x) + EPS), "inside"),
    "reciprocal": (lambda x: (1 / (mean(x.square()) + EPS).sqrt()) * x, "inside"),
    "power": (lambda x: x * (mean(x**2) + EPS) ** -0.5, "inside"),
    "outside": (lambda x: x / (mean(x**2).sqrt() + EPS), "outside"),
    "without eps": (lambda x: x / mean(x**2).sqrt(), "inside"),
    "through float32": (lambda x: (x.float() * torch.rsqrt(mean(x.float() ** 2) + EPS)).double(), "inside"),
    "sum over the count": (lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) / D + EPS), "inside"),
    "sum times its inverse": (lambda x: x / ((x * x).sum(-1, keepdim=True) * (1 / D) + EPS).sqrt(), "inside"),
    "absolute value squared": (lambda x: x / (mean(x.abs() ** 2) + EPS).sqrt(), "inside"),
}

L2_NORMS = {
    "normalize": (functional.normalize, 2.0, "clamp"),
    "normalize 1": (lambda x: functional.normalize(x, p=1.0), 1.0, "clamp"),
    "normalize inf": (lambda x: functional.normalize(x, p=math.inf), math.inf, "clamp"),
    "norm plus eps": (lambda x: x / (x.norm(dim=-1, keepdim=True) + EPS), 2.0, "outside"),
    "root of sum": (lambda x: x / (x * x).sum(-1, keepdim=True).sqrt(), 2.0, "inside"),
    "root of sum with eps": (lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPS), 2.0, "inside"),
    "mask by maximum": (
        lambda x: x / torch.maximum(x.norm(dim=-1, keepdim=True), torch.tensor(EPS)),
        2.0,
        "clamp",
    ),
    "absolute sum": (lambda x: x / (x.abs().sum(-1, keepdim=True) + EPS), 1.0, "outside"),
    "largest": (lambda x: x / x.abs().amax(-1, keepdim=True), math.inf, "inside"),
    "of the centered": (lambda x: functional.normalize(x - mean(x), dim=-1), 2.0, "clamp"),
    "vmapped": (lambda x: torch.vmap(lambda row: row / (row.norm() + EPS))(x), 2.0, "outside"),
}


def program_of(function, x=None) -> Program:
    torch.manual_seed(0)
    x = torch.randn(N, D, dtype=torch.float64) if x is None else x
    program = capture(Function(function), (x,))
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if program.find("cast") else EXACT
    assert_same(program, (x,), function(x), **tolerance)
    return program


def only(program: Program, op: str):
    (node,) = program.find(op)
    assert node.attributes["recognized"] is True
    return node


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_layer_norms(name):
    function, correction, mode = LAYER_NORMS[name]
    node = only(program_of(function), "layer_norm")
    assert node.attributes["correction"] == correction
    assert node.attributes["eps_mode"] == mode
    assert node.attributes["eps"] == EPS


@pytest.mark.parametrize("name", RMS_NORMS)
def test_rms_norms(name):
    function, mode = RMS_NORMS[name]
    node = only(program_of(function), "rms_norm")
    assert node.attributes["dim"] == (1,)
    assert node.attributes["normalized_shape"] == (D,)
    assert node.attributes["eps_mode"] == mode
    assert node.attributes["eps"] == (0.0 if name == "without eps" else EPS)


@pytest.mark.parametrize("name", L2_NORMS)
def test_l2_normalizations(name):
    function, order, mode = L2_NORMS[name]
    node = only(program_of(function), "l2_normalize")
    assert node.attributes["p"] == order
    assert node.attributes["eps_mode"] == mode


def test_a_stabilizer_inside_a_clamp_is_turned_into_the_one_outside():
    node = only(
        program_of(lambda x: x / (x * x).sum(-1, keepdim=True).clamp(min=1e-8).sqrt()), "l2_normalize"
    )
    assert node.attributes["eps_mode"] == "clamp"
    assert node.attributes["eps"] == pytest.approx(1e-4, rel=1e-12)


def test_groups_by_hand_are_a_layer_norm_of_the_reshaped_tensor():
    def grouped(x):
        g = x.view(N, 2, 2)
        return ((g - mean(g)) / (g.var(-1, keepdim=True, correction=0) + EPS).sqrt()).view(N, D)

    assert only(program_of(grouped), "layer_norm").attributes["dim"] == (2,)


@pytest.mark.parametrize("eps", [EPS, 0.0])
def test_norms_of_this_library_are_found(eps):
    for module, op in ((Project(eps), "rms_norm"), (LayerNorm(eps), "layer_norm")):
        program = program_of(module)
        node = only(program, op)
        assert node.attributes["eps"] == pytest.approx(eps, rel=1e-12)
        assert node.inputs[0] == program.inputs[0].name and node.attributes["eps_mode"] == "inside"


def rescaled(x, *, root=0.1, share=0.1, size=None, terms=None):
    """x/√(mean(x²) + share²) by way of y = x/s, or something near it."""
    s = x.abs().amax(-1, keepdim=True).clamp(min=root)
    y = x / s
    return y * torch.rsqrt(
        mean((y if terms is None else terms(x, y)) ** 2) + (share / (s if size is None else size(x))) ** 2
    )


def test_the_stabilizer_need_not_be_that_of_the_scaling():
    assert only(program_of(lambda x: rescaled(x, share=0.3)), "rms_norm").attributes["eps"] == pytest.approx(
        0.09
    )


@pytest.mark.parametrize(
    "change",
    [
        {"size": lambda x: x.abs().amax(-1, keepdim=True).clamp(min=0.2)},
        {"size": lambda x: x.abs().amax(0, keepdim=True).clamp(min=0.1)},
        {"size": lambda x: x.norm(dim=-1, keepdim=True).clamp(min=0.1)},
        {"terms": lambda x, y: 2 * y},
        {"terms": lambda x, y: x},
    ],
)
def test_other_scalings_are_not_taken_for_it(change):
    assert not program_of(lambda x: rescaled(x, **change)).find("rms_norm")


NEAR_MISSES = {
    "mean over the wrong axis": lambda x: (x - x.mean(0, keepdim=True)) / (x.std(-1, keepdim=True) + EPS),
    "variance over the wrong axis": lambda x: (
        (x - mean(x)) / (x.var(0, keepdim=True, correction=0) + EPS).sqrt()
    ),
    "not centered": lambda x: x / x.std(-1, keepdim=True),
    "centered but divided by the raw root mean square": lambda x: (x - mean(x)) / (mean(x * x) + EPS).sqrt(),
    "mean absolute value": lambda x: x / (mean(x.abs()) + EPS),
    "square without a root": lambda x: x / (mean(x * x) + EPS),
    "fourth root": lambda x: x / (mean(x * x) + EPS) ** 0.25,
    "cube": lambda x: x / (mean((x**3).abs()) + EPS).sqrt(),
    "another tensor's size": lambda x: x / ((2 * x).norm(dim=-1, keepdim=True) + EPS),
    "part of the tensor": lambda x: x / (x[:, :2].norm(dim=-1, keepdim=True) + EPS),
    "times instead of divided": lambda x: x * (mean(x * x) + EPS).sqrt(),
    "negative stabilizer": lambda x: x / (mean(x * x) - 10.0).abs().sqrt(),
    "stabilizer that depends on the input": lambda x: x / (mean(x * x) + x[:, :1].square()).sqrt(),
    "scaled by a wrong count": lambda x: (
        (x - mean(x)) / ((((x - mean(x)) ** 2).mean(-1, keepdim=True)) * D / (D - 2) + EPS).sqrt()
    ),
    "centered twice, by another tensor": lambda x: (
        (x - mean(x)) / (mean((x - mean(2 * x)) ** 2) + EPS).sqrt()
    ),
    "divided by a wrong count": lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) / (D + 1) + EPS),
    "detoured by a power": lambda x: x / mean(x * x).pow(0.4),
    "clamped from above": lambda x: x / x.norm(dim=-1, keepdim=True).clamp(max=2.0),
    "moments of different tensors": lambda x: (
        (x - mean(x)) * torch.rsqrt(mean(x * x) - mean(2 * x) ** 2 + 9.0)
    ),
    "softmax with eps": lambda x: x.exp() / (x.exp().sum(-1, keepdim=True) + EPS),
    "softmax over two axes": lambda x: x.exp() / x.exp().sum(),
    "softmax over the wrong axis": lambda x: x.exp() / (2 * x).exp().sum(-1, keepdim=True),
    "softsign of two": lambda x: x / (2 + x.abs()),
    "softsign of another": lambda x: x / (1 + (2 * x).abs()),
    "gate of another": lambda x: x * torch.sigmoid(2 * x),
    "gelu with a wrong constant": lambda x: 0.5 * x * (1 + torch.erf(x / 1.5)),
    "tanh gelu with a wrong constant": lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3))),
    "x minus tanh of another": lambda x: x - torch.tanh(2 * x),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_are_left_alone(name):
    program = program_of(NEAR_MISSES[name])
    found = {node.op for node in program.nodes if node.attributes.get("recognized")}
    assert not found
    norms = program.find(
        "layer_norm", "rms_norm", "l2_normalize", "softmax", "softsign", "silu", "gelu", "tanhshrink"
    )
    assert not norms


def test_what_is_drawn_twice_is_not_the_same():
    drawn = Function(lambda x: torch.rand_like(x) / torch.rand_like(x).norm(dim=-1, keepdim=True))
    assert not capture(drawn, torch.ones(3, 4)).find("l2_normalize")


def test_square_matrix_divided_along_the_wrong_axis():
    """Shapes agree and broadcasting pairs each row with another row's norm."""
    x = torch.randn(D, D, dtype=torch.float64)
    assert not program_of(lambda x: x / x.norm(dim=1), x).find("l2_normalize")
    assert program_of(lambda x: x / x.norm(dim=0), x).find("l2_normalize") == ()
    assert program_of(lambda x: x / x.norm(dim=1)[:, None], x).find("l2_normalize")


def test_eps_added_after_the_norm_stays_outside_it():
    program = program_of(lambda x: x * torch.rsqrt(mean(x * x)) + EPS)
    assert only(program, "rms_norm").attributes["eps"] == 0.0
    assert program.find("add")


def test_long_recurrences_are_walked_in_bounded_time():
    def recurrence(x):
        h, g = x, x
        for _ in range(60):
            h, g = h + 0.01 * torch.tanh(g), torch.tanh(h * g)
        return h / (h * g + 2)

    assert len(program_of(recurrence).nodes) > 200


def test_integers_are_not_reals():
    x = torch.randint(1, 9, (N, D))
    assert not program_of(lambda x: x // (x * x).sum(-1, keepdim=True), x).find("l2_normalize")


ACTIVATIONS = {
    "softmax": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
    "softmax shifted": lambda x: (e := (x - x.amax(-1, keepdim=True)).exp()) / e.sum(-1, keepdim=True),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "sigmoid from the other side": lambda x: x.exp() / (1 + x.exp()),
    "softsign": lambda x: x / (1 + x.abs()),
    "silu": lambda x: x * torch.sigmoid(x),
    "silu divided": lambda x: x / (1 + torch.exp(-x)),
    "silu through sigmoid": lambda x: x * (1 / (1 + torch.exp(-x))),
    "softplus": lambda x: torch.log1p(x.exp()),
    "softplus plainly": lambda x: torch.log(1 + x.exp()),
    "softplus with a threshold": lambda x: torch.where(x > 20.0, x, torch.log1p(x.exp())),
    "mish": lambda x: x * torch.tanh(functional.softplus(x)),
    "tanhshrink": lambda x: x - torch.tanh(x),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "gelu halves last": lambda x: x * (torch.erf(x * math.sqrt(0.5)) + 1) / 2,
    "gelu tanh": lambda x: (
        0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))
    ),
    "gelu fast": lambda x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608028654 * (1 + 0.044715 * x * x))),
    "logsigmoid": lambda x: torch.log(torch.sigmoid(x)),
    "logsigmoid of a quotient": lambda x: torch.log(1 / (1 + torch.exp(-x))),
    "log_softmax": lambda x: torch.log(torch.softmax(x, -1)),
    "hardsigmoid": lambda x: functional.relu6(x + 3) / 6,
    "hardswish": lambda x: x * functional.relu6(x + 3) / 6,
    "hardswish clamped": lambda x: x * (torch.clamp(x + 3, 0, 6) / 6),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    program = program_of(ACTIVATIONS[name])
    node = only(program, name.split()[0])
    assert program.node(program.outputs[0]).inputs == (node.name,)


ALMOST = {
    "gelu": lambda x: 0.5 * x * (1.0000000005 + torch.erf(x / math.sqrt(2))),
    "gelu tanh": lambda x: (
        0.5 * x * (1.0000000005 + torch.tanh(x * 0.7978845608028654 * (1 + 0.044715 * x * x)))
    ),
    "sigmoid": lambda x: 1 / (1.0000000005 + torch.exp(-x)),
    "softplus": lambda x: torch.log(1.0000000005 + x.exp()),
    "hardsigmoid": lambda x: functional.relu6(x + 3.000000001) / 6,
    "softplus with a threshold": lambda x: torch.where(x > 20.0, x + 1, functional.softplus(x)),
    "softplus with a low threshold": lambda x: torch.where(x > -20.0, x, torch.log1p(x.exp())),
}


@pytest.mark.parametrize("name", ALMOST)
def test_a_constant_that_is_not_quite_one_is_not_one(name):
    """What is added is exact: x·(1.0000000005 + erf x)/2 is not bounded below, however small the difference."""
    program = program_of(ALMOST[name])
    output = program.node(program.outputs[0]).inputs[0]
    assert program.node(output).op != name.split()[0]


def size(x, dim=-1):
    return torch.linalg.vector_norm(x, dim=dim, keepdim=True)


W, C = torch.tensor([0.5, 2.0, 1.0, 4.0, 0.25]).double(), torch.linspace(-1, 1, 5).double()
CAPS = {
    "selected": lambda x: torch.where(size(x) <= 2.0, x, x * 2.0 / size(x)),
    "selected, the other way": lambda x: torch.where(size(x) > 2.0, x / size(x) * 2.0, x),
    "selected, constant first": lambda x: torch.where(torch.tensor(2.0) >= size(x), x, x * (2.0 / size(x))),
    "selected, root of squares": lambda x: torch.where(
        x.square().sum(-1, keepdim=True).sqrt() < 2.0, x, 2.0 * functional.normalize(x, dim=-1)
    ),
    "around a center": lambda x: torch.where(size(x - C) <= 2.0, x, C + (x - C) * (2.0 / size(x - C))),
    "an ellipsoid": lambda x: torch.where(
        size((x - C) * W) <= 2.0, x, (x - C) * W / size((x - C) * W) * 2.0 / W + C
    ),
    "factor at most 1": lambda x: x * torch.clamp(2.0 / size(x), max=1.0),
    "factor at most 1, a size that is never 0": lambda x: (
        torch.clamp(2.0 / size(x).clamp_min(1e-6), max=1.0) * x
    ),
    "minimum": lambda x: x * torch.minimum(2.0 / size(x), torch.tensor(1.0)),
    "divided": lambda x: x / torch.clamp(size(x) / 2.0, min=1.0),
    "the module": NormCap(2.0).double(),
    "the module, an ellipsoid": NormCap(2.0, center=C, weight=W).double(),
}


@pytest.mark.parametrize("name", CAPS)
def test_caps(name):
    """A norm stabilized by its radius, in place of a selection; the same numbers inside, outside and far away."""
    function = CAPS[name]
    directions = torch.randn(60, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    program = capture(Function(function), (torch.zeros(2, 5, dtype=torch.float64),))
    (norm,) = [node for node in program.nodes if node.op == "l2_normalize"]
    assert (norm.attributes["eps"], norm.attributes["eps_mode"]) == (2.0, "clamp")
    assert not any(node.op in ("le", "lt", "ge", "gt", "minimum", "norm") for node in program.nodes)
    for scale in (1e-12, 0.1, 0.5, 1.0, 3.0, 1e9, 1e100):
        x = directions * scale
        assert_same(program, (x,), function(x), rtol=1e-12, atol=1e-12)


def test_a_cap_answers_what_is_not_finite_as_the_program_it_stands_for():
    cap = NormCap(2.0, center=C).double()
    program = capture(cap, (torch.zeros(2, 5, dtype=torch.float64),))
    x = torch.tensor(
        [[math.inf, 1, 2, 3, 4], [math.nan, 0.1, 0.2, 0, 0], [-math.inf, math.inf, math.nan, 0, 1]]
    )
    # In floating point the sum of squares of the largest numbers is infinite: the norm of those is 0.
    got = program.evaluate(x.double(), keep=program.outputs)[program.outputs[0]]
    assert bool(torch.isfinite(got).all())
    torch.testing.assert_close(got[1], cap(x.double())[1])


NO_CAPS = {
    "another radius outside": lambda x: torch.where(size(x) <= 2.0, x, x * 2.5 / size(x)),
    "another size outside": lambda x: torch.where(size(x) <= 2.0, x, x * 2.0 / size(x + 1)),
    "another norm": lambda x: torch.where(x.abs().amax(-1, keepdim=True) <= 2.0, x, x * 2.0 / size(x)),
    "the branches changed": lambda x: torch.where(size(x) <= 2.0, x * 2.0 / size(x), x),
    "other axes": lambda x: torch.where(size(x, 0) <= 2.0, x, x * 2.0 / size(x)),
    "a size that is off": lambda x: x * torch.clamp(2.0 / (size(x) + 0.1), max=1.0),
    "a stabilizer above the radius": lambda x: x * torch.clamp(2.0 / size(x).clamp_min(3.0), max=1.0),
    "factor at most 2": lambda x: x * torch.clamp(2.0 / size(x), max=2.0),
    "factor at least 1": lambda x: x * torch.clamp(2.0 / size(x), min=1.0),
    "another center": lambda x: torch.where(size(x - C) <= 2.0, x, W + (x - C) * (2.0 / size(x - C))),
    "another thing inside": lambda x: torch.where(
        size(x - C) <= 2.0, x - C, C + (x - C) * (2.0 / size(x - C))
    ),
    "a weight of 0": lambda x: torch.where(
        size(x * torch.tensor([0.0, 1, 1, 1, 1])) <= 2.0,
        x,
        x * torch.tensor([0.0, 1, 1, 1, 1]) / size(x * torch.tensor([0.0, 1, 1, 1, 1])) * 2.0,
    ),
}


@pytest.mark.parametrize("name", NO_CAPS)
def test_no_caps(name):
    function = NO_CAPS[name]
    x = 3 * torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    program = capture(Function(function), (x,))
    assert not any(
        node.op == "l2_normalize" and node.attributes["eps"] in (2.0, 2.5, 3.0) for node in program.nodes
    )
    assert_same(program, (x,), function(x), rtol=1e-12, atol=1e-12)


def steps():
    """Random expressions over one tensor: unary maps, statistics of the last axis, arithmetic of earlier values."""
    unary = st.sampled_from(
        ["square", "abs", "exp", "neg", "tanh", "sigmoid", "root", "mean", "sum", "norm", "std", "double"]
    )
    binary = st.sampled_from(["add", "sub", "mul", "div", "max"])
    place = st.integers(0, 100)
    return st.lists(
        st.one_of(st.tuples(unary, place), st.tuples(binary, place, place)), min_size=3, max_size=9
    )


def expression(plan):
    unary = {
        "square": torch.square, "abs": torch.abs, "exp": lambda t: torch.exp(-t.abs()), "neg": torch.neg,
        "tanh": torch.tanh, "sigmoid": torch.sigmoid, "root": lambda t: (t.abs() + EPS).sqrt(), "mean": mean,
        "sum": lambda t: t.sum(-1, keepdim=True), "norm": lambda t: t.norm(dim=-1, keepdim=True),
        "std": lambda t: t.std(-1, keepdim=True) if t.shape[-1] > 1 else t, "double": lambda t: 2 * t + 1,
    }  # fmt: skip
    binary = {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "div": lambda a, b: a / (b.abs() + EPS),
        "max": torch.maximum,
    }

    def run(x):
        values = [x]
        for name, *places in plan:
            operands = [values[-1 - p % len(values)] for p in places]
            values.append((unary.get(name) or binary[name])(*operands))
        return values[-1]

    return run


@settings(max_examples=12)
@given(steps())
def test_passes_never_change_a_value(plan):
    x = torch.randn(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    function = expression(plan)
    raw = raw_program(Function(function), (x,))
    final = capture(Function(function), (x,))
    expected = function(x)
    assert_same(raw, (x,), expected)
    assert_same(final, (x,), expected, rtol=1e-9, atol=1e-9)
