"""Layers that people meet and that once came out UNKNOWN, each with look-alikes whose truth is another."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import farfield
from captured import Plain
from farfield.certify import certify, verify_certificate
from farfield.certify.rollout import certify_rollout, verify_rollout
from farfield.graph import capture
from farfield.growth import Status, analyze
from farfield.growth._analysis import analyze_growth
from farfield.growth._evaluate import _widest

SCALES = tuple(10.0**k for k in range(-2, 13))
BOUNDED, UNBOUNDED = Status.BOUNDED, Status.UNBOUNDED


class Features(nn.Module):
    """A function of a linear layer's output."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int = 4) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(3, width), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.first(x))


class Splines(nn.Module):
    """Cubic B-splines by the recursion of Cox and de Boor, as KAN layers have them."""

    def __init__(self, *, base: bool = False, half: bool = False, wheres: bool = False) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, 12))
        self.weight = nn.Parameter(torch.randn(2, 3, 8))
        self.base = nn.Linear(3, 2) if base else None
        self.half, self.wheres = half, wheres

    def forward(self, x: Tensor) -> Tensor:
        z, g = x.unsqueeze(-1), self.grid
        inside = (z >= g[:-1]) if self.half else (z >= g[:-1]) & (z < g[1:])
        b = torch.where(inside, 1.0, 0.0) if self.wheres else inside.to(x.dtype)
        for k in range(1, 4):
            left = (z - g[: -(k + 1)]) / (g[k:-1] - g[: -(k + 1)]) * b[..., :-1]
            b = left + (g[k + 1 :] - z) / (g[k + 1 :] - g[1:-k]) * b[..., 1:]
        y = torch.einsum("bik,oik->bo", b.to(x.dtype), self.weight)
        return y if self.base is None else y + self.base(functional.silu(x))


class Lookup(nn.Module):
    """Straight lines between knots, found by a search."""

    def __init__(self, search: Callable[[Tensor, Tensor], Tensor], *, clamp: bool) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-2, 2, 9))
        self.values = nn.Parameter(torch.randn(9))
        self.search, self.clamp = search, clamp

    def forward(self, x: Tensor) -> Tensor:
        x = x.clamp(-2, 2) if self.clamp else x
        i = self.search(self.knots, x.contiguous()).clamp(1, 8)
        low, high = self.knots[i - 1], self.knots[i]
        t = (x - low) / (high - low)
        return self.values[i - 1] * (1 - t) + self.values[i] * t


class Attention(nn.Module):
    """Linear attention with the given features of queries and keys."""

    def __init__(self, features: Callable[[Tensor], Tensor], values: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.features, self.values = features, values

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.features(self.q(x)), self.features(self.k(x)), self.values(self.v(x))
        scale = 1 / (torch.einsum("bnd,bd->bn", q, k.sum(1)) + 1e-6)
        return torch.einsum("bnd,bde,bn->bne", q, torch.einsum("bnd,bne->bde", k, v), scale)


class Radial(nn.Module):
    """Features of a distance times a cutoff of it."""

    def __init__(self, cutoff: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.outer, self.cutoff = nn.Linear(1, 8), nn.Linear(8, 2), cutoff

    def forward(self, x: Tensor) -> Tensor:
        d = x.norm(dim=-1, keepdim=True)
        return self.outer(functional.silu(self.inner(d))) * self.cutoff(d)


class Edges(nn.Module):
    """The same with distances in a row, as lists of edges have them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 4)

    def forward(self, x: Tensor) -> Tensor:
        d = x.norm(dim=-1)
        return self.inner(d.unsqueeze(-1)) * (d < 2.0).to(d.dtype).unsqueeze(-1)


class Sums(nn.Module):
    """Entries added up in groups."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(3, 4), function
        self.register_buffer("group", torch.tensor([0, 1, 1, 2]))

    def forward(self, x: Tensor) -> Tensor:
        h = self.function(self.first(x))
        return torch.zeros(len(x), 3, dtype=x.dtype).index_add(1, self.group, h)


class Bilinear(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor], *, bias: bool = True) -> None:
        super().__init__()
        self.layer, self.function = nn.Bilinear(3, 3, 2, bias=bias), function

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.function(x), self.function(x))


class Branches(nn.Module):
    def __init__(self, yes: Callable[[Tensor], Tensor], no: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.yes, self.no = nn.Linear(3, 3), yes, no

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.yes(self.layer(x)), self.no, (x,))


class Complex(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(3, 4, dtype=torch.complex64), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x.to(self.layer.weight.dtype)))


def same(x: Tensor) -> Tensor:
    return x


def squared(x: Tensor) -> Tensor:
    return x.pow(2).sum(-1, keepdim=True)


def positive(z: Tensor) -> Tensor:
    return functional.elu(z) + 1


def of_silu(z: Tensor) -> Tensor:
    y = torch.sigmoid(z)
    return y + z * y * (1 - y)


def of_silu_in_one(z: Tensor) -> Tensor:
    y = torch.sigmoid(z)
    return y * (1 + z * (1 - y))


def of_mish(z: Tensor) -> Tensor:
    t = torch.tanh(functional.softplus(z))
    return t + z * torch.sigmoid(z) * (1 - t * t)


def of_gelu(z: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(z / 2**0.5)) + z * torch.exp(-(z**2) / 2) / (2 * torch.pi) ** 0.5


def cosine(d: Tensor) -> Tensor:
    return torch.where(d < 5.0, 0.5 * (torch.cos(torch.pi * d / 5.0) + 1), torch.zeros_like(d))


def search(knots: Tensor, x: Tensor) -> Tensor:
    return torch.searchsorted(knots, x)


Case = tuple[str, str, Callable[[], nn.Module], Status]
CASES: list[Case] = [
    ("splines", "KAN", Splines, BOUNDED),
    ("splines", "KAN by where", lambda: Splines(wheres=True), BOUNDED),
    ("splines", "KAN with a base", lambda: Splines(base=True), UNBOUNDED),
    ("splines", "open to the right", lambda: Splines(half=True), UNBOUNDED),
    ("splines", "search, clamped", lambda: Lookup(search, clamp=True), BOUNDED),
    (
        "splines",
        "bucketize, clamped",
        lambda: Lookup(lambda k, x: torch.bucketize(x, k), clamp=True),
        BOUNDED,
    ),
    ("splines", "search", lambda: Lookup(search, clamp=False), UNBOUNDED),
    ("splines", "bucketize", lambda: Lookup(lambda k, x: torch.bucketize(x, k), clamp=False), UNBOUNDED),
    ("cutoff", "cosine", lambda: Radial(cosine), BOUNDED),
    ("cutoff", "mask", lambda: Radial(lambda d: (d < 5).to(d.dtype)), BOUNDED),
    ("cutoff", "polynomial", lambda: Radial(lambda d: (1 - d**3) * (d <= 1).to(d.dtype)), BOUNDED),
    ("cutoff", "smooth", lambda: Radial(lambda d: functional.relu(1 - d / 3) ** 2), BOUNDED),
    ("cutoff", "not beyond", lambda: Radial(lambda d: (~(d > 5)).to(d.dtype)), BOUNDED),
    ("cutoff", "edges", Edges, BOUNDED),
    (
        "cutoff",
        "vectors",
        lambda: Plain(lambda x: x * (x.norm(dim=-1, keepdim=True) < 2).to(x.dtype)),
        BOUNDED,
    ),
    ("cutoff", "absolute", lambda: Plain(lambda x: x * x * (x.abs() < 2).to(x.dtype)), BOUNDED),
    ("cutoff", "open", lambda: Radial(lambda d: torch.where(d > 5.0, 1.0, torch.zeros_like(d))), UNBOUNDED),
    ("sums", "tanh", lambda: Sums(torch.tanh), BOUNDED),
    ("sums", "linear", lambda: Sums(same), UNBOUNDED),
    ("squash", "squares", lambda: Plain(lambda x: x / (squared(x) + 1)), BOUNDED),
    ("squash", "norm", lambda: Plain(lambda x: x / (x.norm(dim=-1, keepdim=True) ** 2 + 1)), BOUNDED),
    (
        "squash",
        "product",
        lambda: Plain(lambda x: x * (x.norm(dim=-1, keepdim=True).square() + 1) ** -1),
        BOUNDED,
    ),
    ("squash", "root", lambda: Plain(lambda x: x / (x.norm(dim=-1, keepdim=True) ** 0.5 + 1)), UNBOUNDED),
    ("bilinear", "plain", lambda: Bilinear(same), UNBOUNDED),
    ("bilinear", "without bias", lambda: Bilinear(same, bias=False), UNBOUNDED),
    ("bilinear", "tanh", lambda: Bilinear(torch.tanh), BOUNDED),
    ("cond", "both bounded", lambda: Branches(torch.tanh, torch.sin), BOUNDED),
    ("cond", "one grows", lambda: Branches(torch.tanh, lambda x: 2 * x), UNBOUNDED),
    ("cond", "the other grows", lambda: Branches(same, torch.sin), UNBOUNDED),
    ("complex", "real part", lambda: Complex(lambda z: z.real), UNBOUNDED),
    ("complex", "modulus", lambda: Complex(lambda z: z.abs()), UNBOUNDED),
    (
        "complex",
        "phases",
        lambda: Features(lambda z: torch.view_as_real(torch.exp(1j * z)).flatten(-2)),
        BOUNDED,
    ),
    ("complex", "scaled phases", lambda: Features(lambda z: torch.exp(-2 * (z * 3j)).imag), BOUNDED),
    ("derivative", "sigmoid", lambda: Features(lambda z: torch.sigmoid(z) * (1 - torch.sigmoid(z))), BOUNDED),
    ("derivative", "silu", lambda: Features(of_silu), BOUNDED),
    ("derivative", "silu in one", lambda: Features(of_silu_in_one), BOUNDED),
    ("derivative", "mish", lambda: Features(of_mish), BOUNDED),
    ("derivative", "gelu", lambda: Features(of_gelu), BOUNDED),
    ("derivative", "gauss", lambda: Plain(lambda x: x * torch.exp(-(x**2))), BOUNDED),
    ("derivative", "of a square", lambda: Features(lambda z: 2 * z * torch.sigmoid(z)), UNBOUNDED),
    ("centered", "rows", lambda: Plain(lambda x: x - x.mean(0)), UNBOUNDED),
    ("swing", "x sin x", lambda: Plain(lambda x: x * torch.sin(x)), UNBOUNDED),
    (
        "swing",
        "x cos x beside a bound",
        lambda: Plain(lambda x: 3 + torch.tanh(x) - x * torch.cos(x)),
        UNBOUNDED,
    ),
    (
        "swing",
        "layers",
        lambda: nn.Sequential(Features(lambda z: z * torch.sin(z)), nn.Linear(4, 1)),
        UNBOUNDED,
    ),
    ("swing", "snake", lambda: Features(lambda z: z + torch.sin(z) ** 2), UNBOUNDED),
    ("attention", "linear values", lambda: Attention(positive, same), UNBOUNDED),
    ("attention", "then a norm", lambda: nn.Sequential(Attention(positive, same), nn.LayerNorm(4)), BOUNDED),
    ("attention", "bounded features", lambda: Attention(torch.sigmoid, torch.tanh), BOUNDED),
]


ATTENTIONS = {"features of either sign", *(name for kind, name, _, _ in CASES if kind == "attention")}


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().eval()


def example(name: str) -> Tensor:
    return torch.zeros(2, 5, 4) if name in ATTENTIONS else torch.zeros(4, 3)


@torch.no_grad()
def sizes(model: nn.Module, like: Tensor, *, count: int = 40) -> list[float]:
    """The largest entry over random inputs, for every scale."""
    model = copy.deepcopy(model)._apply(_widest)
    generator = torch.Generator().manual_seed(1)
    found = []
    for scale in SCALES:
        largest = 0.0
        for _ in range(count):
            x = scale * torch.randn(like.shape, generator=generator, dtype=torch.float64)
            largest = max(largest, float(model(x).abs().max()))
        found.append(largest)
    return found


@pytest.mark.parametrize(("kind", "name", "make", "status"), CASES, ids=[f"{k}: {n}" for k, n, _, _ in CASES])
def test_kind(kind: str, name: str, make: Callable[[], nn.Module], status: Status) -> None:
    model, x = made(make), example(name)
    report = analyze(model, (x,))
    assert report.status is status, str(report)
    found = sizes(model, x)
    if status is BOUNDED:
        lo, hi = report.verdict().growth.interval
        assert max(found) <= min(max(-lo, hi) * (1 + 1e-9), 1e6)
    else:
        assert max(found) >= 1e6 * found[SCALES.index(1.0)]


def two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, :1], x[:, 1:2]


def inside(x: Tensor) -> Tensor:
    return ((x >= 0) & (x < 1)).to(x.dtype)


LOOK_ALIKES: list[tuple[str, Callable[[], nn.Module], Status]] = [
    ("indicator of another variable", lambda: Plain(lambda x: inside(two(x)[0]) * two(x)[1]), UNBOUNDED),
    ("either of two", lambda: Plain(lambda x: ((x < 1) | (two(x)[0] < 1)).to(x.dtype) * x.relu()), UNBOUNDED),
    ("outside", lambda: Plain(lambda x: (~(x.abs() < 1)).to(x.dtype) * x), UNBOUNDED),
    ("a rolled mask", lambda: Plain(lambda x: inside(x).roll(1, -1) * x), UNBOUNDED),
    ("a mask of rolled entries", lambda: Plain(lambda x: inside(x.roll(1, -1)) * x), UNBOUNDED),
    ("a transposed mask", lambda: Plain(lambda x: inside(x[:3]).T * x[:3]), UNBOUNDED),
    ("rows against columns", lambda: Plain(lambda x: inside(x[:3, 0])[:, None] * x[:3, 0]), UNBOUNDED),
    (
        "columns against rows",
        lambda: Plain(lambda x: inside(x[:3, 0])[None, :] * x[:3, 0][:, None]),
        UNBOUNDED,
    ),
    ("one column of three", lambda: Plain(lambda x: inside(x)[:, :1] * x), UNBOUNDED),
    (
        "a mask of the first, summed",
        lambda: Plain(lambda x: inside(x[:, :1]) * x.sum(-1, keepdim=True)),
        UNBOUNDED,
    ),
    (
        "a mask of one, the norm of all",
        lambda: Plain(lambda x: inside(x[:, :1]) * x.norm(dim=-1, keepdim=True)),
        UNBOUNDED,
    ),
    ("where's other side", lambda: Plain(lambda x: torch.where(x < 1, torch.zeros_like(x), x)), UNBOUNDED),
    (
        "an integer and",
        lambda: Plain(lambda x: x * ((x < 1).int() & (x > -1).int() | 2).to(x.dtype)),
        UNBOUNDED,
    ),
    (
        "weights made of the mask",
        lambda: Plain(lambda x: inside(x[:3]) * functional.linear(x[:3], x[:3])),
        UNBOUNDED,
    ),
    (
        "0.01 left over",
        lambda: Features(lambda z: z * torch.sigmoid(z) * (1 - 0.99 * torch.sigmoid(z))),
        UNBOUNDED,
    ),
    ("one end only", lambda: Features(lambda z: z * (1 - torch.sigmoid(z))), UNBOUNDED),
    ("tiny, yet it grows", lambda: Plain(lambda x: x * (x * 1e-300).tanh() + x * 1e-200 * 1e-200), UNBOUNDED),
    ("a very small factor", lambda: Plain(lambda x: x * torch.exp(torch.tanh(x) - 1000)), UNBOUNDED),
    ("x sin x / (1 + x²)", lambda: Plain(lambda x: x * torch.sin(x) / (1 + x**2)), BOUNDED),
    ("sin² + cos² − 1", lambda: Plain(lambda x: x * (torch.sin(x) ** 2 + torch.cos(x) ** 2 - 1)), BOUNDED),
    (
        "double angle",
        lambda: Plain(lambda x: x * (torch.sin(2 * x) - 2 * torch.sin(x) * torch.cos(x))),
        BOUNDED,
    ),
    ("a spiral out", lambda: Plain(lambda x: torch.exp((1 + 1j) * x).real), UNBOUNDED),
    ("i times a complex number", lambda: Plain(lambda x: torch.exp(1j * ((1 + 1j) * x)).real), UNBOUNDED),
    ("i times i", lambda: Plain(lambda x: torch.exp(1j * (1j * x)).real), UNBOUNDED),
    ("features of either sign", lambda: Attention(same, torch.tanh), UNBOUNDED),
    (
        "cubes over squares",
        lambda: Plain(lambda x: x**3 / (x.norm(dim=-1, keepdim=True) ** 2 + 1)),
        UNBOUNDED,
    ),
    (
        "a norm of other entries",
        lambda: Plain(lambda x: x / (x[:, :1].norm(dim=-1, keepdim=True) ** 2 + 1)),
        UNBOUNDED,
    ),
]


@pytest.mark.parametrize(("name", "make", "truth"), LOOK_ALIKES, ids=[name for name, _, _ in LOOK_ALIKES])
def test_look_alikes_are_not_decided_wrongly(name: str, make: Callable[[], nn.Module], truth: Status) -> None:
    status = analyze(made(make), (example(name),)).status
    assert status in (truth, Status.UNKNOWN)


def _expression(source: random.Random, depth: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A random function of x (n, 3) and y (n, 1), rich in masks."""
    if depth == 0:
        index = source.randrange(4)
        return (
            lambda x, y: x,
            lambda x, y: y,
            lambda x, y: x.norm(dim=-1, keepdim=True),
            lambda x, y: x.flip(-1),
        )[index]
    a, b, c = (_expression(source, depth - 1) for _ in range(3))
    t, rising = source.choice([-1.0, 0.0, 2.0]), source.random() < 0.5
    index = source.randrange(9)

    def mask(x: Tensor, y: Tensor) -> Tensor:
        return c(x, y) > t if rising else c(x, y) <= t

    return (
        lambda x, y: a(x, y) * mask(x, y).to(x.dtype),
        lambda x, y: torch.where(mask(x, y), a(x, y), b(x, y)),
        lambda x, y: torch.where(mask(x, y) & (a(x, y) < 3), a(x, y), torch.zeros_like(a(x, y))),
        lambda x, y: a(x, y) * torch.where(mask(x, y), b(x, y), 0.0),
        lambda x, y: a(x, y) * (mask(x, y) | (b(x, y).abs() < 1)).to(x.dtype),
        lambda x, y: a(x, y) - b(x, y),
        lambda x, y: torch.relu(1 - a(x, y).abs() / 2) * b(x, y),
        lambda x, y: a(x, y).square().sum(-1, keepdim=True).sqrt(),
        lambda x, y: a(x, y) * torch.sigmoid(b(x, y)) * (1 - torch.sigmoid(b(x, y))),
    )[index]


@pytest.mark.parametrize("seed", range(60))
def test_random_masks_keep_what_is_claimed(seed: int) -> None:
    """Whatever is bounded stays in its interval, for inputs of every scale and such as lie near the limits."""
    function = _expression(random.Random(seed), 3)
    like = torch.zeros(64, 3), torch.zeros(64, 1)
    analysis = analyze_growth(capture(Plain(function), like))
    extent = analysis.extent(analysis.program.outputs[0])
    if not extent.bounded:
        return
    generator = torch.Generator().manual_seed(seed)
    for scale in (0.3, 1.0, 3.0, 10.0, 1e3, 1e6, 1e12):
        mixed = torch.rand(64, 4, generator=generator, dtype=torch.float64) < 0.5
        rows = torch.randn(64, 4, generator=generator, dtype=torch.float64)
        rows = torch.where(mixed, rows * scale, rows)
        value = function(rows[:, :3], rows[:, 3:])
        slack = 1e-9 * (1 + float(value.abs().max()))
        assert extent.lo - slack <= float(value.min()), extent
        assert float(value.max()) <= extent.hi + slack, extent


CERTIFIED = {
    f"{kind}: {name}": make
    for kind, name, make, _ in CASES
    if (kind, name) in {("bilinear", "tanh"), ("cond", "both bounded"), ("derivative", "sigmoid")}
}


@pytest.mark.full
@pytest.mark.parametrize("name", CERTIFIED)
def test_bounds_are_finite_and_checked(name: str) -> None:
    model = made(CERTIFIED[name])
    x = torch.zeros(1, 3)
    certificate = certify(model, x, time_budget=farfield.Budget(steps=2))
    assert bool(torch.isfinite(certificate.upper).all())
    assert verify_certificate(model, certificate, x)


class Gated(nn.Module):
    """A gated step, by the cell of torch or written out."""

    def __init__(self, form: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.cell, self.gate, self.new, self.form = nn.GRUCell(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), form

    def forward(self, h: Tensor) -> Tensor:
        if self.form is None:
            return self.cell(h, h)
        return self.form(torch.sigmoid(self.gate(h)), torch.tanh(self.new(h)), h)


AVERAGES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor] | None] = {
    "cell": None,
    "two products": lambda z, n, h: (1 - z) * n + z * h,
    "one product": lambda z, n, h: n + z * (h - n),
    "the other gate": lambda z, n, h: h - z * (h - n),
    "lerp": lambda z, n, h: torch.lerp(n, h, z),
}
NO_AVERAGES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "added": lambda z, n, h: n + z * h,
    "too much": lambda z, n, h: (1 - z) * n + 1.1 * z * h,
    "a sign": lambda z, n, h: (1 + z) * n - z * h,
    "double gate": lambda z, n, h: n + 2 * z * (h - n),
    "entries turned": lambda z, n, h: (1 - z) * n + z.flip(-1) * h,
    "a gate that is none": lambda z, n, h: (1 - n) * z + n * h,
}


@pytest.mark.full
@pytest.mark.parametrize("name", AVERAGES)
def test_a_gated_step_keeps_its_box(name: str) -> None:
    torch.manual_seed(0)
    step, state = Gated(AVERAGES[name]).double().eval(), torch.zeros(1, 3, dtype=torch.float64)
    found = certify_rollout(step, state, time_budget=farfield.Budget(steps=2))
    assert found.verdict.name == "INVARIANT", found.reason
    assert found.lower is not None
    assert found.upper is not None
    assert verify_rollout(step, found, state)
    assert type(found).from_dict(found.to_dict()).reason == found.reason
    for scale in (1.0, 1e6, 1e12):
        h = scale * torch.randn(64, 3, dtype=torch.float64)
        low, high = torch.minimum(found.lower, h), torch.maximum(found.upper, h)
        for _ in range(50):
            h = step(h)
            assert bool(((low <= h) & (h <= high)).all())
    with pytest.raises(farfield.errors.FarfieldError):
        verify_rollout(step, dataclasses.replace(found, upper=found.upper / 2), state)


@pytest.mark.full
@pytest.mark.parametrize("name", NO_AVERAGES)
def test_a_step_that_does_not_average_is_not_taken_for_one(name: str) -> None:
    torch.manual_seed(0)
    step, state = Gated(NO_AVERAGES[name]).double().eval(), torch.zeros(1, 3, dtype=torch.float64)
    found = certify_rollout(step, state, time_budget=farfield.Budget(steps=2))
    assert found.verdict.name != "INVARIANT"
