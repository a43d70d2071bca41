"""Models as people write them: functional code, Python numbers on either side, masks, draws, computed norms."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from certify.networks import attack
from farfield import Budget
from farfield.certify import UnboundedError, certify
from farfield.certify._softmax import confidence
from farfield.certify.affine import build_network
from farfield.certify.intervals import propagate
from farfield.graph import capture

F64 = torch.float64
MASK = torch.tensor([True, False] * 4)


class Written(nn.Module):
    """A function of the input and a few modules."""

    def __init__(self, function, seed=0, inputs=2):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(inputs, 8), nn.Linear(8, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 1)
        with torch.no_grad():
            for norm in (self.norm,):
                norm.weight.add_(0.3 * torch.randn(8))
                norm.bias.add_(0.3 * torch.randn(8))
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def made(function, **more):
    return Written(function, **more).double().eval()


def normed(h, **parameters):
    return functional.layer_norm(h, (8,), **parameters)


def behind(change):
    """A change of what the norm gives, and the head."""
    return lambda m, x: m.head(change(m, m.norm(m.first(x))))


def before(change):
    """A change of what the norm is given."""
    return lambda m, x: m.head(m.norm(change(m, m.first(x))).relu())


PROGRAMS = {
    "added": lambda m, x: m.head(m.norm(m.first(x)).relu()) + 1.5,
    "standardized": lambda m, x: m.head(m.norm(m.first((x - 0.5) / 0.25)).relu()),
    "from a number": behind(lambda m, h: 2 - h),
    "scaled and shifted": behind(lambda m, h: (h * 2 + 1).relu()),
    "rsub": behind(lambda m, h: torch.rsub(h, 0.75, alpha=2)),
    "numbers before the norm": before(lambda m, h: 3.0 - (h + 0.5) / 4),
    "alpha": behind(lambda m, h: torch.add(h, m.second(h), alpha=-0.5)),
    "padded": behind(lambda m, h: functional.pad(h[:, 2:], (1, 1), value=2.5)),
    "padded before the norm": before(lambda m, h: functional.pad(h[:, 2:], (1, 1), value=2.5)),
    "where": behind(lambda m, h: torch.where(MASK, h, 3.0)),
    "where a number": behind(lambda m, h: torch.where(MASK, -1.0, h)),
    "masked": behind(lambda m, h: h.masked_fill(MASK, 0.25)),
    "masked before the norm": before(lambda m, h: h.masked_fill(MASK, 0.25)),
    "mean and number": behind(lambda m, h: h - h.mean(-1, keepdim=True) + 0.3),
    "joined": behind(lambda m, h: torch.cat([h[:, :4] + 1.0, m.second(h)[:, 4:] * 0.5], -1)),
    "half": behind(lambda m, h: torch.chunk(m.second(h) - 1, 2, -1)[1].repeat(1, 2)),
    "stacked": behind(lambda m, h: torch.stack([h, m.second(h)], -1).sum(-1) - 1),
    "interpolated": behind(lambda m, h: torch.lerp(h, m.second(h), 1.75)),
    "product by hand": behind(lambda m, h: torch.addmm(m.head.weight, h, m.second.weight, beta=-2, alpha=0.5)),
    "moving bias": lambda m, x: m.head(normed(m.first(x), bias=m.norm(m.second(m.first(x)))[0])),
    "moving weight": lambda m, x: m.head(normed(m.first(x), weight=m.second(m.first(x))[0].tanh())),
}  # fmt: skip


def outside(model, certificate, seed=0):
    """How far an attack leaves the bounds; row by row, since a moving weight is read off the first row."""
    low, high = attack(torch.vmap(lambda row: model(row[None])[0]), 2, seed)
    return max(float(high - certificate.upper.reshape(-1)), float(certificate.lower.reshape(-1) - low))


@pytest.mark.parametrize("name", PROGRAMS)
def test_bounds_hold_and_are_close(name):
    model = made(PROGRAMS[name])
    certificate = certify(model, torch.zeros(1, 2, dtype=F64), time_budget=Budget(steps=300))
    assert outside(model, certificate) <= 0.0
    assert float(certificate.tightness) < (8.0 if name == "moving weight" else 1.1)


@pytest.mark.parametrize("name", [n for n in PROGRAMS if "moving" not in n])
def test_forms_are_what_the_program_computes(name):
    """Every affine piece of the network, evaluated by hand, is the node's value; at degree 1, t times it."""
    model = made(PROGRAMS[name])
    program = capture(model, torch.zeros(1, 2, dtype=F64), dynamic_batch=False)
    network = build_network(program, "output", propagate(program))
    assert network.compact()
    x = torch.tensor([[0.7, -1.3]], dtype=F64)
    for t in (1.0, 0.25):
        truth = program.evaluate(x / t)
        values = {}
        for index, block in enumerate(network.blocks):
            if block.kind == "input":
                values[index] = torch.cat([x.reshape(-1), torch.tensor([t], dtype=F64)])
                continue
            z = block.form.offset * (t if block.form.degree else 1.0)
            z = z + sum(m @ values[i] for i, m in block.form.matrices.items())
            argument = truth[program.node(block.node).inputs[0]].reshape(-1)
            torch.testing.assert_close(z, argument * (t if block.form.degree else 1.0), rtol=1e-9, atol=1e-9)
            if block.kind == "norm":
                c = z[block.groups] - (z[block.groups].mean(-1, keepdim=True) if block.centered else 0.0)
                eps = block.norm_eps * (t * t if block.form.degree else 1.0)
                y = torch.empty_like(z)
                y[block.groups] = c / (c.square().sum(-1, keepdim=True) / block.count + eps).sqrt()
                values[index] = y
            else:
                values[index] = truth[block.node].reshape(-1) * (t if block.form.degree else 1.0)
        out = network.output.offset + sum(m @ values[i] for i, m in network.output.matrices.items())
        torch.testing.assert_close(out, truth["output"].reshape(-1), rtol=1e-9, atol=1e-9)


def test_a_number_costs_no_tightness():
    body = nn.Sequential(nn.Linear(2, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1)).double().eval()
    shifted = made(lambda m, x: body((x - 0.5) / 0.25) + 1.5)
    ratios = [
        float(certify(m, torch.zeros(1, 2, dtype=F64), time_budget=Budget(steps=600)).tightness)
        for m in (body, shifted)
    ]
    assert ratios[1] <= 1.02 * ratios[0]


DRAWS = {
    "rand": lambda m, x: m.head(m.norm(m.first(x))) + 3 * torch.rand(1, 1, dtype=x.dtype),
    "rand of a constant": lambda m, x: m.head(m.norm(m.first(x)) + torch.rand_like(m.head.weight) * 2),
    "dropout": lambda m, x: m.head(functional.dropout(m.norm(m.first(x)), 0.5, training=True)),
    "dropout of a constant": lambda m, x: m.head(m.norm(m.first(x)) * functional.dropout(m.head.weight, 0.5, True)),
    "coins": lambda m, x: m.head(m.norm(m.first(x)) * torch.bernoulli(torch.full((1, 8), 0.3, dtype=x.dtype))),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_every_draw_is_inside(name):
    model = made(DRAWS[name])
    certificate = certify(model, torch.zeros(1, 2, dtype=F64), time_budget=Budget(steps=100))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        points = torch.randn(4000, 1, 2, generator=generator, dtype=F64) * 30
        values = torch.stack([model(x) for x in points])
    assert float(certificate.lower) <= float(values.min())
    assert float(values.max()) <= float(certificate.upper)


def test_normal_draws_have_no_bound():
    model = made(lambda m, x: m.head(m.norm(m.first(x))) + torch.randn(1, 1, dtype=x.dtype))
    with pytest.raises(UnboundedError, match=r"random|unbounded|randn"):
        certify(model, torch.zeros(1, 2, dtype=F64), time_budget=Budget(steps=100))


def test_a_cast_to_integers_is_not_the_identity():
    model = made(lambda m, x: m.head((4 * m.norm(m.first(x))).to(torch.int64).to(x.dtype)))
    certificate = certify(model, torch.zeros(1, 2, dtype=F64), time_budget=Budget(steps=100))
    low, high = attack(lambda x: made_rounded(model, x), 2, 0)
    assert float(certificate.lower) <= float(low)
    assert float(high) <= float(certificate.upper)


def made_rounded(model, x):
    """The same values, with gradients of a straight line."""
    z = 4 * model.norm(model.first(x))
    return model.head(z + (z.trunc() - z).detach())


@pytest.mark.parametrize("seed", range(4))
def test_a_moving_weight_is_not_a_constant(seed):
    """An adaptive norm whose weight grows with the input is unbounded; with a bounded weight it is bounded."""
    grows = made(
        lambda m, x: m.head(functional.layer_norm(m.first(x), (8,), weight=m.second(m.first(x))[0])),
        seed=seed,
    )
    with pytest.raises(UnboundedError):
        certify(grows, torch.zeros(1, 2, dtype=F64), time_budget=Budget(steps=100))
    held = made(PROGRAMS["moving weight"], seed=seed)
    assert outside(held, certify(held, torch.zeros(1, 2, dtype=F64), time_budget=Budget(steps=100))) <= 0.0


def test_a_large_bias_of_the_head_costs_no_tightness():
    """The search stops by the attained range, not by the size of the values."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(1, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1)).double().eval()
    lifted = made(lambda m, x: body(x) + 300.0, inputs=1)
    certificate = certify(lifted, torch.zeros(1, 1, dtype=F64), time_budget=Budget(steps=400))
    assert float(certificate.tightness) < 1.01


def test_confidence_far_from_even():
    """Logits that differ by thousands: nothing overflows, and both ends are rounded outwards."""
    assert confidence([1e5, -1e5], 2, 0, upper=True) == 1.0
    assert confidence([-1e5, 1e5], 2, 0, upper=True) <= 1e-300
    assert confidence([1e5, -1e5], 2, 0, upper=False) >= 1 - 1e-12
    assert confidence([-1e5, 1e5], 2, 0, upper=False) == 0.0


class Branching(nn.Module):
    """A branch that only the capture takes."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x):
        h = self.first(x)
        return self.head(self.norm(h) if torch.compiler.is_compiling() else h)


def test_a_program_that_is_not_the_model_has_no_certificate():
    with pytest.raises(UnboundedError, match="not the model"):
        certify(Branching().double().eval(), torch.zeros(1, 2, dtype=F64), time_budget=Budget(steps=10))
