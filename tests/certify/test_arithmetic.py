"""Bounds of what a model really computes, in float32 and bfloat16, against evaluation that tries to break them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.certify import CertificateError, verify_certificate
from farfield.certify.arithmetic import FORMATS, RoundingError, rounding_error
from farfield.certify.checker import verify_certificate as check
from farfield.certify.intervals import Interval
from farfield.errors import InvalidValueError, UnknownNameError
from farfield.graph import capture
from farfield.nn import NormCap, RangeHead

STEPS = ff.Budget(steps=12)
DIM, WIDTH = 5, 16


class Residual(nn.Module):
    """As people write it: numbers, functional code, a skip."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(DIM, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x):
        h = nn.functional.layer_norm(self.a(x), (WIDTH,))
        h = h + 0.1 * torch.relu(self.b(h)) - 0.3
        return torch.softmax(self.c(h / 1.7).clamp(-3, 3), dim=-1).mean(1, keepdim=True)


def build(name, seed=0):
    torch.manual_seed(seed)

    def dense(a=WIDTH, b=WIDTH):
        return nn.Linear(a, b)

    norm = nn.LayerNorm(WIDTH)
    nets = {
        "first": [dense(DIM), norm, nn.ReLU(), dense(), nn.ReLU(), dense(b=1)],
        "rms": [dense(DIM), nn.RMSNorm(WIDTH, eps=1e-6), nn.GELU(), dense(), nn.Tanh(), dense(b=1)],
        "batch": [dense(DIM), norm, nn.BatchNorm1d(WIDTH), nn.SiLU(), dense(b=1)],
        "cap": [NormCap(2.0), dense(DIM), nn.SiLU(), dense(), nn.ELU(), dense(b=1), RangeHead(-1.0, 2.0)],
        "every": [dense(DIM), norm, nn.ReLU(), dense(), nn.LayerNorm(WIDTH), dense(b=1)],
    }
    return (Residual() if name == "residual" else nn.Sequential(*nets[name])).eval()


def hostile_inputs(net, magnitude, count=400, seed=0):
    """Sizes from 1e-6 to the magnitude, and inputs at which the first layer's deviation almost vanishes."""
    source = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** torch.linspace(-6, torch.tensor(magnitude).log10().item(), 40, dtype=torch.float64)
    rows = [s * (2 * torch.rand(count // 40, DIM, generator=source, dtype=torch.float64) - 1) for s in sizes]
    first = next((m for m in net.modules() if isinstance(m, nn.Linear)), None)
    weight, bias = first.weight.double(), first.bias.double()
    center = torch.linalg.lstsq(weight - weight.mean(0), (bias.mean() - bias)[:, None]).solution[:, 0]
    rows += [
        center + size * torch.randn(20, DIM, generator=source, dtype=torch.float64)
        for size in (0.0, 1e-9, 1e-6, 1e-3, 1.0)
    ]
    # Along the direction that the layer stretches least.
    direction = torch.linalg.svd(weight - weight.mean(0)).Vh[-1]
    rows.append(sizes[:, None] * direction + center)
    return torch.cat(rows).clamp(-magnitude, magnitude)


def in_order(net, x, order, source):
    """The network with every product summed entry by entry in float32, in some order."""
    for module in net:
        if isinstance(module, nn.Linear):
            terms = (x[:, None, :] * module.weight).float()
            at = torch.randperm(terms.shape[-1], generator=source) if order == "random" else None
            terms = terms if at is None else terms[..., at]
            if order == "sorted":
                terms = terms.sort(-1, descending=True).values
            total = torch.zeros(terms.shape[:-1])
            for j in range(terms.shape[-1]):
                total = total + terms[..., j]
            x = total + module.bias
        else:
            x = module(x)
    return x


@pytest.mark.parametrize("name", ["first", "rms", "batch", "cap", "every", "residual"])
def test_what_is_computed_stays_within_the_bounds(name):
    net = build(name)
    made = ff.certify(net, torch.zeros(1, DIM), time_budget=STEPS, arithmetic="float32")
    size = made.arithmetic["magnitude"]
    x = hostile_inputs(net, size).float()
    with torch.no_grad():
        computed = net(x).double()
        real = copy.deepcopy(net).double()(x.double())
    assert bool((computed <= made.upper).all())
    assert bool((computed >= made.lower).all())
    assert float((computed - real).abs().max()) <= made.arithmetic["error"][0]
    assert verify_certificate(net, made)
    if name != "every":
        assert made.arithmetic["error"][0] < 0.05
        assert size >= 1e15


@pytest.mark.parametrize("order", ["forward", "random", "sorted"])
@pytest.mark.parametrize("name", ["first", "rms", "every"])
def test_any_order_of_summation(name, order):
    net = build(name, seed=3)
    program = capture(net, torch.zeros(1, DIM), dynamic_batch=False)
    rounding = rounding_error(program, "output", FORMATS["float32"], {})
    x = hostile_inputs(net, rounding.magnitude, seed=1).float()
    with torch.no_grad():
        computed = in_order(net, x, order, torch.Generator().manual_seed(0)).double()
        real = copy.deepcopy(net).double()(x.double())
    assert float((computed - real).abs().max()) <= float(rounding.error)


def test_bfloat16_is_coarser_and_still_holds():
    net = build("first").to(torch.bfloat16)
    made = ff.certify(
        net, torch.zeros(1, DIM, dtype=torch.bfloat16), time_budget=STEPS, arithmetic="bfloat16"
    )
    x = hostile_inputs(net, 1e6).to(torch.bfloat16)
    with torch.no_grad():
        computed = net(x).double()
        real = copy.deepcopy(net).double()(x.double())
    assert float((computed - real).abs().max()) <= made.arithmetic["error"][0]
    assert made.arithmetic["error"][0] > 1e-3


def test_a_large_common_offset_costs_digits_and_is_counted():
    """What a norm takes off first is rounded first: the error grows with the offset, and the bound knows."""
    net = build("first")
    with torch.no_grad():
        net[0].bias += 1000.0
    program = capture(net, torch.zeros(1, DIM), dynamic_batch=False)
    error = float(rounding_error(program, "output", FORMATS["float32"], {}).error)
    x = hostile_inputs(net, 1e3).float()
    with torch.no_grad():
        off = float((net(x).double() - copy.deepcopy(net).double()(x.double())).abs().max())
    plain = capture(build("first"), torch.zeros(1, DIM), dynamic_batch=False)
    assert off <= error
    assert error > 20 * float(rounding_error(plain, "output", FORMATS["float32"], {}).error)


def test_over_a_box_a_plain_network_has_a_bound_too():
    net = nn.Sequential(nn.Linear(DIM, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)).eval()
    made = ff.certify(net, torch.zeros(1, DIM), time_budget=STEPS, arithmetic="float32", domain=(-2.0, 2.0))
    x = (4 * torch.rand(4000, DIM, generator=torch.Generator().manual_seed(0)) - 2).float()
    with torch.no_grad():
        computed = net(x)
    assert made.arithmetic["error"][0] < 1e-4
    assert bool(((computed <= made.upper) & (computed >= made.lower)).all())


def test_both_domains_are_widened():
    made = ff.certify(
        build("first"), torch.zeros(1, DIM), time_budget=STEPS, arithmetic="float32", within=(-1.0, 1.0)
    )
    assert made.within is not None
    assert made.within.arithmetic["format"] == "float32"
    assert made.within.arithmetic["error"][0] <= made.arithmetic["error"][0] * (1 + 1e-9)
    assert "as computed in float32" in str(made)
    assert type(made).from_dict(made.to_dict()).arithmetic == made.arithmetic


def test_the_checker_wants_what_was_added():
    net = build("first")
    data = ff.certify(net, torch.zeros(1, DIM), time_budget=STEPS, arithmetic="float32").to_dict()
    assert check(net, data)
    # More error leaves less for the proof. A little more may be left: what is published is the larger of the prover's
    # bound and the checker's.
    added, room = data["arithmetic"]["error"][0], data["upper"][0] - data["lower"][0]
    for error in ([added + 0.001 * room], [-1.0], [float("nan")], [], "much"):
        forged = copy.deepcopy(data)
        forged["arithmetic"]["error"] = error
        with pytest.raises(CertificateError):
            check(net, forged)


def test_messages():
    net, x = build("first"), torch.zeros(1, DIM)
    with pytest.raises(UnknownNameError, match="arithmetic"):
        ff.certify(net, x, time_budget=STEPS, arithmetic="float8")
    with pytest.raises(InvalidValueError, match="float64"):
        ff.certify(copy.deepcopy(net).double(), x.double(), time_budget=STEPS, arithmetic="float32")

    class Odd(nn.Module):
        def forward(self, x):
            return torch.linalg.det(torch.tanh(x[:, :4]).reshape(-1, 2, 2))[:, None].clamp(-2, 2)

    with pytest.raises((RoundingError, ff.certify.UnboundedError)):
        ff.certify(Odd().eval(), x, time_budget=STEPS, arithmetic="float32")

    class Jumps(nn.Module):
        def forward(self, x):
            return torch.where(torch.tanh(x) > 0.5, 1.0, 0.0).sum(1, keepdim=True)

    with pytest.raises(RoundingError, match="decides by a rounded number"):
        ff.certify(Jumps().eval(), x, time_budget=STEPS, arithmetic="float32")


class Apply(nn.Module):
    """A function with some tensors beside it."""

    def __init__(self, function, **tensors):
        super().__init__()
        self.function = function
        for name, value in tensors.items():
            self.register_buffer(name, value)

    def forward(self, x):
        return self.function(self, x)


FIRST = torch.tensor([True, False, False, False])
HERE = torch.full((1, 4), 273.15)
EDGES = {
    "a number taken off before a norm": (lambda s, x: nn.functional.rms_norm(x - 273.15, (4,)), HERE, 300.0),
    "a number filled in": (lambda s, x: x.masked_fill(s.first, 123456789.0), HERE, 300.0),
    "a number chosen": (lambda s, x: torch.where(s.first, x, 123456789.0), HERE, 300.0),
    "numbers chosen": (lambda s, x: torch.where(s.first, 0.1, x), HERE, 300.0),
    "a number compared with": (lambda s, x: (x > 273.15).float(), HERE, 300.0),
    "a softmax by hand": (lambda s, x: x.exp() / x.exp().sum(1, keepdim=True), HERE, 300.0),
    "a softplus by hand": (lambda s, x: (1 + x.exp()).log(), HERE, 300.0),
    "a variance by moments": (
        lambda s, x: (
            (x - x.mean(1, keepdim=True))
            / (x.square().mean(1, keepdim=True) - x.mean(1, keepdim=True).square() + 1e-5).sqrt()
        ),
        HERE + 0.01 * torch.arange(4.0),
        300.0,
    ),
    "an epsilon that underflows": (lambda s, x: nn.functional.rms_norm(x, (4,), eps=1e-50), 0 * HERE, 1.0),
    "a mean that is a sum first": (lambda s, x: x.mean(1, keepdim=True), HERE * 1e36, 3e38),
    "a product on the way": (lambda s, x: nn.functional.hardswish(x), HERE * 1e36, 3e38),
    "a sum that cancels": (lambda s, x: x @ torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]), HERE * 1e36, 3e38),
    "complex numbers": (lambda s, x: torch.fft.fft(x).abs(), HERE, 300.0),
    "a sign": (lambda s, x: -torch.tanh(x), HERE, 300.0),
}


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("name", EDGES)
def test_what_torch_rounds_on_the_way_is_counted_or_refused(name):
    function, x, size = EDGES[name]
    net = Apply(function, first=FIRST).eval()
    program = capture(net, torch.zeros(1, 4), dynamic_batch=False)
    side = torch.full((1, 4), size, dtype=torch.float64)
    try:
        error = rounding_error(program, "output", FORMATS["float32"], {"x": Interval(-side, side)}).error
    except RoundingError:
        assert name != "a sign"
        return
    off = (net(x).double() - copy.deepcopy(net).double()(x.double())).abs()
    assert bool((off <= error).all()), float(off.max())


@pytest.mark.parametrize("offset", [0.2, 10.0])
def test_group_norm_of_channels_last_tensors_is_computed_from_moments(offset):
    """Far from 0 that loses every digit, and there is no bound."""
    net = nn.GroupNorm(1, 2).requires_grad_(False).eval()
    x = offset + 0.02 * (torch.rand(500, 2, 3, 3, generator=torch.Generator().manual_seed(0)) > 0.9).float()
    program = capture(net, x[:1], dynamic_batch=False)
    box = Interval(*(torch.full((1, 2, 3, 3), offset + d).double() for d in (-0.1, 0.1)))
    off = net(x.to(memory_format=torch.channels_last)).double() - copy.deepcopy(net).double()(x.double())
    if offset > 1:
        assert float(off.abs().max()) > 0.1
        with pytest.raises(RoundingError):
            rounding_error(program, "output", FORMATS["float32"], {"input": box})
    else:
        error = rounding_error(program, "output", FORMATS["float32"], {"input": box}).error
        assert bool((off.abs() <= error).all())


def test_a_class_of_the_same_name_is_no_cap():
    class NormCap(nn.Module):
        def forward(self, x):
            return x / x.square().sum(1, keepdim=True).sqrt().clamp(min=1.0)

    program = capture(
        nn.Sequential(NormCap(), nn.Linear(4, 1)).eval(), torch.zeros(1, 4), dynamic_batch=False
    )
    with pytest.raises(RoundingError):
        rounding_error(program, "output", FORMATS["float32"], {}, 1e30)


def test_a_box_without_ends_says_up_to_which_size():
    made = ff.certify(build("first"), torch.zeros(1, DIM), time_budget=ff.Budget(steps=1), arithmetic="float32",
                      domain=(0.0, float("inf")))  # fmt: skip
    assert "entries up to 1e+15" in str(made)


@pytest.mark.parametrize("magnitude", [-1.0, 0.0, float("nan"), float("inf"), "much"])
def test_magnitudes_are_checked_first(magnitude):
    with pytest.raises(InvalidValueError, match="magnitude"):
        ff.certify(build("first"), torch.zeros(1, DIM), arithmetic="float32", magnitude=magnitude)
    with pytest.raises(InvalidValueError, match="magnitude"):
        ff.certify(build("first"), torch.zeros(1, DIM), magnitude=3.0)
