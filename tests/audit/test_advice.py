"""What the audit says to do about it does no harm: norms on hidden layers only, and a word where none fits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import farfield as ff
from farfield.growth import Status


def seeded(make, *args):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(*args).eval()


def advised(model: nn.Module, inputs) -> tuple[tuple[str, ...], str]:
    """Places the first unbounded output is told to be normed at, and the sentence."""
    result = ff.audit(model, inputs, rays=0)
    verdict = next(v for v in result.report.verdicts if v.input is None and v.status is Status.UNBOUNDED)
    action = next(f.action for f in result.findings if f.code == "FF001")
    return (() if verdict.cut is None else verdict.cut.labels), action


class Heads(nn.Module):
    """A mean and a spread, or a prediction after the last layer of any other kind."""

    def __init__(self, end) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.mean, self.spread, self.end = nn.Linear(32, 4), nn.Linear(32, 4), end

    def forward(self, x: Tensor):
        h = self.body(x)
        return self.end(self.mean(h), self.spread(h))


class DeepONet(nn.Module):
    def __init__(self, product: str = "sum") -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16))
        self.trunk = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh())
        self.product = product

    def forward(self, u: Tensor, y: Tensor) -> Tensor:
        b, t = self.branch(u), self.trunk(y)
        return (b * t).sum(-1) if self.product == "sum" else torch.einsum("bi,bi->b", b, t)


class Additive(nn.Module):
    """A hidden layer that is only summed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x)))).mean(-1, keepdim=True)


class Standardized(nn.Module):
    """Inputs brought to scale by constants, then a network of two features."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 1))
        self.register_buffer("mean", torch.arange(6.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - self.mean) / 2.5)


class Coupling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.chunk(2, -1)
        scale, shift = self.net(first).chunk(2, -1)
        scale = torch.tanh(scale)
        return torch.cat([first, second * torch.exp(scale) + shift], -1), scale.sum(-1)


class Equivariant(nn.Module):
    """Messages along differences of positions, weighted by a function of their length."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        r = x[:, :, None] - x[:, None]
        return x + (r * self.weight(r.square().sum(-1, keepdim=True))).mean(2)


X = torch.zeros(2, 6)
ENDS = {
    "two outputs": lambda m, s: (m, s),
    "a dictionary": lambda m, s: {"mean": m, "spread": nn.functional.softplus(s)},
    "scaled and clamped": lambda m, s: (2.5 * m + 1.0, torch.exp(s.clamp(-5, 2))),
    "difference": lambda m, s: m - s,
    "pooled": lambda m, s: m.reshape(-1, 2, 2).mean(1),
    "joined": lambda m, s: torch.cat([m, s], -1),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_norm_goes_on_the_last_hidden_activation(end):
    places, action = advised(seeded(Heads, ENDS[end]), (X,))
    assert places == ("body.3",) and "after body.3" in action


@pytest.mark.parametrize(("product", "place"), [("sum", "branch.1"), ("einsum", "branch.2")])
def test_no_norm_before_a_sum(product, place):
    """A norm of the product would leave 0 of its sum; one of a factor does not."""
    places, _ = advised(seeded(DeepONet, product), (torch.randn(3, 10), torch.randn(3, 2)))
    assert places == (place,)


def test_a_hidden_layer_that_is_only_summed_gets_none():
    places, _ = advised(seeded(Additive), (X,))
    assert places == ("relu",)  # the first of the two: the second is averaged next
    program = ff.audit(seeded(Additive), (X,), rays=0).report.program
    assert [program.node(u).op for u in program.users("relu")] == ["linear"]


def test_raw_inputs_and_narrow_layers_get_none():
    places, action = advised(seeded(Standardized), (X,))
    assert places == () and "No hidden layer of three features" in action
    assert "after" not in action


def test_one_channel_gets_none():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 1, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 3),
    ).eval()
    places, _ = advised(model, (torch.randn(2, 1, 8, 8),))
    assert places == ("1",)


def test_flows_and_equivariant_networks_are_told():
    _, action = advised(seeded(Coupling), (X,))
    assert "flow" in action and "invert" in action
    _, action = advised(seeded(Equivariant), (torch.randn(2, 5, 3),))
    assert "rotate" in action
    _, action = advised(seeded(Heads, ENDS["two outputs"]), (X,))
    assert "flow" not in action and "rotate" not in action
