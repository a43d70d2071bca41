"""How close the intervals are, against closed forms, corner enumeration, explicit vectors and mpmath."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from captured import Plain
from certify.intervals.oracle import DOUBLE, network
from farfield.certify.intervals import Interval, UnboundableError, propagate
from farfield.certify.intervals._interval import (
    add,
    divide,
    down,
    hull,
    linear_map,
    meet,
    mul,
    point,
    power,
    scale,
    sub,
    unbounded,
    up,
)
from farfield.errors import InvalidValueError, UnknownNameError
from farfield.graph import Program, capture, operator, operator_names

FLAT = {
    "argmax",
    "argmin",
    "argsort",
    "bernoulli",
    "cast",
    "empty",
    "random",
    "randint",
    "masked_select",
    "nonzero",
}
"""Integers, draws, and shapes that only running tells: no width to speak of."""
COARSE = {
    "embedding_bag",
    "grid_sample",
    "gru",
    "lstm",
    "rnn_relu",
    "rnn_tanh",
    "fmod",
    "remainder",
    "div",
    "topk",
    "sort",
    "getitem",
    "index_put",
}
"""Bounded by a range rather than followed: growth's rules, periodic functions, indices, an entry written twice."""
COARSE_FAMILIES = {"fourier"}


def box(lo: Tensor | float, hi: Tensor | float) -> Interval:
    return Interval(torch.as_tensor(lo, dtype=DOUBLE), torch.as_tensor(hi, dtype=DOUBLE))


def captured(function, *shapes: tuple[int, ...]) -> Program:
    return capture(Plain(function), tuple(torch.zeros(s, dtype=DOUBLE) for s in shapes), dynamic_batch=False)


# ------------------------------------------------------------------ tightness


@pytest.mark.parametrize("name", sorted(set(operator_names()) - FLAT - COARSE))
def test_a_point_has_almost_no_width(name: str) -> None:
    if operator(name).family in COARSE_FAMILIES:
        pytest.skip("bounded by a range")
    example = operator(name).example
    inputs = [x.clamp_min(1.01) if name == "acosh" else x for x in example.inputs()]
    if name == "nan_to_num":
        inputs = [x.abs() for x in inputs]
    program = capture(Plain(example.function), tuple(inputs), dynamic_batch=False)
    boxes = {spec.name: point(x) for spec, x in zip(program.inputs, inputs, strict=True)}
    for claim in (propagate(program, boxes)[name] for name in program.outputs):
        assert isinstance(claim, Interval)
        size = torch.maximum(claim.lo.abs(), claim.hi.abs()).max().clamp_min(1.0)
        assert float(((claim.hi - claim.lo) / size).max()) < 1e-9


def corners(lo: Tensor, hi: Tensor) -> Tensor:
    choices = torch.tensor(list(itertools.product((False, True), repeat=lo.numel())))
    return torch.where(choices, hi, lo)


def test_a_linear_map_is_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 7, generator=generator, dtype=DOUBLE)
    lo = torch.randn(7, generator=generator, dtype=DOUBLE)
    hi = lo + torch.rand(7, generator=generator, dtype=DOUBLE)
    image = linear_map(weight, Interval(lo, hi))
    values = corners(lo, hi) @ weight.T
    assert bool((image.lo <= values).all()) and bool((values <= image.hi).all())
    torch.testing.assert_close(image.lo, values.amin(0), rtol=0, atol=1e-13)
    torch.testing.assert_close(image.hi, values.amax(0), rtol=0, atol=1e-13)


def test_a_linear_map_of_half_open_boxes() -> None:
    weight = torch.tensor([[1.0, -1.0], [1.0, 0.0], [0.0, 2.0], [0.0, 0.0]], dtype=DOUBLE)
    image = linear_map(weight, box([1.0, -math.inf], [2.0, 3.0]))
    torch.testing.assert_close(image.lo, torch.tensor([-2.0, 1.0, -math.inf, 0.0], dtype=DOUBLE))
    torch.testing.assert_close(image.hi, torch.tensor([math.inf, 2.0, 6.0, 0.0], dtype=DOUBLE))


def test_a_convolution_is_exact() -> None:
    generator = torch.Generator().manual_seed(1)
    kernel = torch.randn(2, 1, 3, generator=generator, dtype=DOUBLE)
    program = captured(lambda x: functional.conv1d(x, kernel, padding=1), (1, 1, 6))
    lo = torch.randn(1, 1, 6, generator=generator, dtype=DOUBLE)
    hi = lo + 0.5
    image = propagate(program, {program.inputs[0].name: Interval(lo, hi)})["output"]
    values = functional.conv1d(corners(lo.flatten(), hi.flatten()).reshape(-1, 1, 6), kernel, padding=1)
    torch.testing.assert_close(image.lo[0], values.amin(0), rtol=0, atol=1e-13)
    torch.testing.assert_close(image.hi[0], values.amax(0), rtol=0, atol=1e-13)


def test_softmax_is_exact() -> None:
    lo = torch.tensor([-1.0, 0.3, 0.2, -2.0], dtype=DOUBLE)
    hi = lo + torch.tensor([0.5, 1.0, 0.0, 3.0], dtype=DOUBLE)
    program = captured(lambda x: torch.softmax(x, -1), (4,))
    image = propagate(program, {program.inputs[0].name: Interval(lo, hi)})["output"]
    values = torch.softmax(corners(lo, hi), -1)
    torch.testing.assert_close(image.lo, values.amin(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(image.hi, values.amax(0), rtol=1e-12, atol=0)


SPIKE = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0], dtype=DOUBLE)
NORMS = {
    "layer_norm": (lambda x: functional.layer_norm(x, (5,)), math.sqrt(4)),
    "corrected": (
        lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6),
        4 / math.sqrt(5),
    ),
    "rms_norm": (lambda x: functional.rms_norm(x, (5,), None, 1e-5), math.sqrt(5)),
    "l2_normalize": (lambda x: functional.normalize(x, dim=-1), 1.0),
    "group_norm": (lambda x: functional.group_norm(x.reshape(1, 1, 5), 1).reshape(5), math.sqrt(4)),
    "instance_norm": (lambda x: functional.instance_norm(x.reshape(1, 1, 5)).reshape(5), math.sqrt(4)),
}


@pytest.mark.parametrize("name", sorted(NORMS))
def test_the_image_of_a_norm_is_attained(name: str) -> None:
    function, bound = NORMS[name]
    program = captured(function, (5,))
    claim = propagate(program)["output"]
    reached = function(1e6 * SPIKE)
    assert bool(claim.contains(reached).all())
    assert float(claim.hi[0]) == pytest.approx(bound, abs=1e-9)
    assert float(reached[0]) == pytest.approx(bound, abs=1e-6)
    assert float(function(-1e6 * SPIKE)[0]) == pytest.approx(float(claim.lo[0]), abs=1e-6)


def test_a_norm_of_a_small_box_is_closer_than_its_image() -> None:
    x = torch.tensor([[1.0, 2.0, 4.0, -3.0]], dtype=DOUBLE)
    program = captured(lambda x: functional.layer_norm(x, (4,)), (1, 4))
    claim = propagate(program, {program.inputs[0].name: Interval(x - 1e-3, x + 1e-3)})["output"]
    assert float((claim.hi - claim.lo).max()) < 2e-3
    assert bool(claim.contains(functional.layer_norm(x, (4,))).all())


# ------------------------------------------------------------------ rounding

FUNCTIONS = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "tanh": mpmath.tanh,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "atan": mpmath.atan,
    "erf": mpmath.erf,
    "erfc": mpmath.erfc,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "gelu": lambda x: x * mpmath.ncdf(x),
    "mish": lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "logsigmoid": lambda x: -mpmath.log1p(mpmath.exp(-x)),
    "sqrt": mpmath.sqrt,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "lgamma": lambda x: mpmath.loggamma(x),
    "digamma": mpmath.digamma,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "asinh": mpmath.asinh,
    "tanhshrink": lambda x: x - mpmath.tanh(x),
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "log2": lambda x: mpmath.log(x) / mpmath.log(2),
    "log10": mpmath.log10,
    "asin": mpmath.asin,
    "acos": mpmath.acos,
    "atanh": mpmath.atanh,
    "erfinv": mpmath.erfinv,
    "acosh": mpmath.acosh,
    "softsign": lambda x: x / (1 + abs(x)),
    "hardswish": lambda x: x * min(max(x + 3, 0), 6) / 6,
}
UNIT = {"asin", "acos", "atanh", "erfinv"}
POSITIVE = {"log", "log2", "log10", "acosh", "sqrt", "rsqrt", "lgamma", "digamma", "log1p"}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_real_values_lie_inside(name: str) -> None:
    """In real arithmetic, to 60 digits: not only what float64 makes of it."""
    generator = torch.Generator().manual_seed(0)
    size = torch.exp(4.0 * torch.randn(150, generator=generator, dtype=DOUBLE))
    if name in POSITIVE:
        x = size.clamp_max(15.0) + (1.0 if name == "acosh" else 0.0)
    else:
        signed = torch.where(torch.arange(150) % 2 == 0, size, -size).clamp(-18.0, 18.0)
        x = torch.tanh(signed / 4) if name in UNIT else signed
    function = getattr(torch, name, None) or getattr(functional, name)
    program = captured(function, (150,))
    claim = propagate(program, {program.inputs[0].name: point(x)})["output"]
    with mpmath.workdps(60):
        for value, lo, hi in zip(x.tolist(), claim.lo.tolist(), claim.hi.tolist(), strict=True):
            true = FUNCTIONS[name](mpmath.mpf(value))
            assert mpmath.mpf(lo) <= true <= mpmath.mpf(hi), (value, lo, hi, true)


@pytest.mark.parametrize("operation", ["add", "sub", "mul", "divide"])
def test_arithmetic_holds_the_exact_result(operation: str) -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(300, generator=generator, dtype=DOUBLE) for _ in range(2))
    a = a * 10.0 ** torch.randint(-200, 200, (300,), generator=generator)
    exact = {
        "add": (add, lambda x, y: x + y),
        "sub": (sub, lambda x, y: x - y),
        "mul": (mul, lambda x, y: x * y),
        "divide": (divide, lambda x, y: x / y),
    }
    ours, true = exact[operation]
    claim = ours(point(a), point(b))
    with mpmath.workdps(800):
        for x, y, lo, hi in zip(a.tolist(), b.tolist(), claim.lo.tolist(), claim.hi.tolist(), strict=True):
            assert mpmath.mpf(lo) <= true(mpmath.mpf(x), mpmath.mpf(y)) <= mpmath.mpf(hi)


def test_a_long_sum_holds_the_exact_result() -> None:
    """Cancellation: 1e16 comes and goes, and what is left is what rounding lost."""
    x = torch.tensor([1e16, 1.0, -1e16, 1.0] * 100, dtype=DOUBLE)
    weight = torch.ones(1, 400, dtype=DOUBLE)
    claim = linear_map(weight, point(x))
    assert float(claim.lo) <= 200.0 <= float(claim.hi)
    program = captured(lambda x: x.sum(-1), (400,))
    total = propagate(program, {program.inputs[0].name: point(x)})["output"]
    assert float(total.lo) <= 200.0 <= float(total.hi)


def test_helpers() -> None:
    a, b = box([-1.0, 2.0], [2.0, 3.0]), box([0.5, -4.0], [1.0, -3.0])
    assert float(up(torch.tensor(1.0, dtype=DOUBLE))) > 1.0 > float(down(torch.tensor(1.0, dtype=DOUBLE)))
    assert hull(a, b).lo.tolist() == [-1.0, -4.0] and meet(a, box([0.0, 0.0], [9.0, 9.0])).lo.tolist() == [
        0.0,
        2.0,
    ]
    assert scale(a, -1.0).hi.tolist() == [1.0, -2.0]
    cube = power(a, 3.0)
    assert float(cube.lo[0]) == pytest.approx(-1.0) and float(cube.hi[0]) == pytest.approx(8.0)
    assert (
        mul(box(0.0, 0.0), unbounded(())).hi.tolist() == 5e-324
        or mul(box(0.0, 0.0), unbounded(())).hi.item() == 0.0
    )
    assert float(divide(box(1.0, 2.0), box(-4.0, -2.0)).lo) == pytest.approx(-1.0)
    with pytest.raises(InvalidValueError, match="float64 ends"):
        Interval(torch.zeros(2), torch.zeros(2))


# ------------------------------------------------------------------ programs


def test_undefined_values_are_refused_with_their_place() -> None:
    program = captured(torch.log, (3,))
    with pytest.raises(UnboundableError, match=r"\(log\).*argument is only known"):
        propagate(program)
    claim = propagate(program, given={program.nodes[1].name: box(torch.zeros(3), torch.ones(3))})["output"]
    assert float(claim.hi.max()) == 1.0
    for function in (lambda x: 1 / x, lambda x: x / x, torch.sqrt, torch.rsqrt, lambda x: x**-2, torch.tan):
        with pytest.raises(UnboundableError):
            propagate(captured(function, (3,)))


def test_logarithm_of_a_softmax_is_defined() -> None:
    claim = propagate(captured(lambda x: torch.log(torch.sigmoid(x)), (3,)))["output"]
    assert bool(torch.isinf(claim.lo).all()) and float(claim.hi.max()) < 1e-12


def test_overflow_of_a_sum_says_nothing() -> None:
    """1e308 + 1e308 − 1e308 overflows on the way; the sum is 1e308."""
    x = torch.tensor([1e308, 1e308, -1e308, 3.0], dtype=DOUBLE)
    functions = (
        lambda x: x.sum(-1),
        lambda x: x.cumsum(-1)[2],
        lambda x: functional.linear(x, torch.ones(1, 4, dtype=DOUBLE)),
        lambda x: x.mean(-1) * 4,
        lambda x: functional.avg_pool1d(x[None, None], 4) * 4,
    )
    for function in functions:
        program = captured(function, (4,))
        claim = propagate(program, {program.inputs[0].name: point(x)})["output"]
        assert bool((claim.lo <= 1e308).all()) and bool((claim.hi >= 1e308).all())
    norm = captured(lambda x: x.norm(), (4,))
    assert (
        float(propagate(norm, {norm.inputs[0].name: point(x * 1e-100)})["output"].lo)
        <= 1.7320508075688773e208
    )
    layer = captured(lambda x: functional.layer_norm(x, (4,)), (4,))
    far = propagate(layer, {layer.inputs[0].name: point(x * 1e-100)})["output"]
    assert bool(far.contains(functional.layer_norm(x * 1e-308, (4,), eps=0.0)).all())


def test_a_masked_softmax_can_vanish() -> None:
    shut = torch.tensor([True, False, False])
    with pytest.raises(UnboundableError, match="log"):
        propagate(captured(lambda x: torch.log(torch.softmax(x.masked_fill(shut, -math.inf), -1)), (3,)))
    with pytest.raises(UnboundableError, match="exp"):
        propagate(captured(lambda x: torch.exp(x.masked_fill(shut, math.inf)), (3,)))
    with pytest.raises(UnboundableError, match="clamp"):
        propagate(captured(lambda x: x.masked_fill(shut, math.inf).clamp(min=0.0), (3,)))
    claim = propagate(captured(lambda x: torch.sigmoid(x.masked_fill(shut, -math.inf)), (3,)))["output"]
    assert float(claim.lo.min()) == 0.0 and float(claim.hi[0]) < 1e-12


def test_masks_of_minus_infinity() -> None:
    shut = torch.ones(4, 4, dtype=torch.bool).triu(1)

    def causal(x: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(x.masked_fill(shut, -math.inf), -1) @ v

    program = captured(causal, (4, 4), (4, 2))
    v = torch.arange(8, dtype=DOUBLE).reshape(4, 2)
    claim = propagate(program, {program.inputs[1].name: point(v)})
    weights = claim[program.find("softmax")[0].name]
    assert float(weights.hi[shut].max()) == 0.0
    out = claim["output"]
    torch.testing.assert_close(out.hi, v, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(out.lo, v[:1].expand(4, 2), rtol=1e-9, atol=1e-9)
    assert float(weights.lo[0, 0]) > 1.0 - 1e-12
    with pytest.raises(UnboundableError, match="masked"):
        propagate(captured(lambda x: torch.softmax(x + torch.full((3,), -math.inf, dtype=DOUBLE), -1), (3,)))
    with pytest.raises(UnboundableError, match="infinite"):
        propagate(captured(lambda x: x.masked_fill(torch.tensor([True, False]), -math.inf) * 0.0, (2,)))


def test_given_boxes_and_what_is_kept() -> None:
    model = network(nn.Tanh())
    program = capture(model, torch.zeros(2, 4, dtype=DOUBLE), dynamic_batch=False)
    name = program.find("tanh")[0].name
    free = propagate(program)["output"]
    narrow = propagate(
        program, given={name: box(torch.zeros(2, 6), torch.full((2, 6), 0.1))}, keep=["output"]
    )
    assert set(narrow) == {"output"}
    assert bool((narrow["output"].hi - narrow["output"].lo < free.hi - free.lo).all())
    with pytest.raises(UnknownNameError):
        propagate(program, {"nothing": unbounded((2, 4))})
    with pytest.raises(InvalidValueError, match="shape"):
        propagate(program, {program.inputs[0].name: unbounded((3, 4))})
    with pytest.raises(InvalidValueError, match="dynamic_batch=False"):
        propagate(capture(model, torch.zeros(2, 4, dtype=DOUBLE)))
    with pytest.raises(InvalidValueError, match="empty"):
        propagate(program, {program.inputs[0].name: box(torch.ones(2, 4), torch.zeros(2, 4))})


def test_every_row_of_a_table_for_a_free_index() -> None:
    table = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    module = nn.Embedding.from_pretrained(table)
    program = capture(module, torch.zeros(2, dtype=torch.int64), dynamic_batch=False)
    claim = propagate(program)["output"]
    assert torch.equal(claim.lo[0], table.amin(0)) and torch.equal(claim.hi[1], table.amax(0))


def test_a_share_of_the_largest_entry_is_at_most_one():
    """x / max|x| (how a direction is made without overflow) lies in [−1, 1], with the sign of x."""

    class Share(torch.nn.Module):
        def forward(self, x):
            x = torch.cat([x, x.abs() + 1.0], -1)
            return x / x.abs().amax(-1, keepdim=True).clamp_min(1e-30)

    program = capture(Share(), torch.zeros(1, 3, dtype=torch.float64), dynamic_batch=False)
    bounds = propagate(program)["output"]
    assert bounds.lo.tolist() == [[-1.0] * 3 + [0.0] * 3]
    assert bounds.hi.tolist() == [[1.0] * 6]
