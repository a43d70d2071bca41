"""The far field of a model in training, against the horizon and evaluation; and that looking changes nothing."""

import collections
import math

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.errors import InvalidValueError
from farfield.monitor import FarFieldMonitor


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(x)))


def model_of(seed):
    """Plain, residual and gated networks of several widths and activations."""
    torch.manual_seed(seed)
    width, inputs = 8 * (1 + seed % 4), 1 + seed % 5
    activation = [nn.ReLU(), nn.LeakyReLU(0.1), nn.SiLU(), nn.GELU(), nn.ELU()][seed % 5]
    layers = [nn.Linear(inputs, width), activation]
    if seed % 3 == 0:
        layers.append(Residual(width))
    if seed % 7 == 0:
        layers.append(nn.Dropout(0.5))
    return nn.Sequential(*layers, nn.Linear(width, 1 + seed % 2)), torch.randn(16, inputs)


@pytest.mark.parametrize("seed", range(50))
def test_the_slope_is_the_horizons_and_that_of_evaluation(seed):
    model, x = model_of(seed)
    watch = FarFieldMonitor(model, x, every=1)
    slope = watch.scalars()["far_field/slope"]
    directions = watch._directions
    exact = model.double().eval()
    seen = ff.horizon(exact, directions, example_inputs=directions[:1])
    linear = torch.where(seen.degree >= 1, seen.coefficient.abs(), torch.zeros_like(seen.coefficient))
    assert slope == pytest.approx(float(linear.max()), rel=1e-6, abs=1e-9)
    with torch.no_grad():
        measured = exact(1e8 * directions).abs().max() / 1e8
    assert slope == pytest.approx(float(measured), rel=1e-6, abs=1e-6)


def test_a_norm_on_every_path_is_exactly_flat():
    model = nn.Sequential(nn.Linear(3, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))
    found = FarFieldMonitor(model, torch.randn(8, 3)).step(0)
    assert found["far_field/slope"] == found["far_field/degree"] == 0.0 and found["far_field/bounded"] == 1.0


def test_the_cheap_bound_follows_the_weights():
    """What plain intervals prove of the model as it stands, not as it stood when the monitor was made."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    watch = FarFieldMonitor(model, torch.randn(8, 3))
    assert model.training and all(module.training for module in model)
    first = watch.scalars()["far_field/bound"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    later = watch.scalars()["far_field/bound"]
    fresh = FarFieldMonitor(model, torch.randn(8, 3)).scalars()["far_field/bound"]
    assert later == fresh != first
    with torch.no_grad():
        far = model.eval()(torch.randn(2000, 3) * torch.logspace(-3, 6, 2000)[:, None]).abs().max()
    assert float(far) <= later <= 20 * float(far)
    model[4] = nn.Linear(16, 2)  # other tensors than those that were captured
    assert "far_field/bound" not in watch.scalars()
    assert "far_field/bound" not in FarFieldMonitor(nn.Linear(3, 1), torch.randn(8, 3)).scalars()


def test_growth_faster_than_linear_is_told():
    class Square(nn.Module):
        def forward(self, x):
            return (x * x).sum(-1)

    found = FarFieldMonitor(Square(), torch.randn(8, 3)).scalars()
    assert found["far_field/degree"] == pytest.approx(2.0)

    class Exponential(nn.Module):
        def forward(self, x):
            return torch.exp(x).sum(-1)

    assert FarFieldMonitor(Exponential(), torch.randn(8, 3)).scalars()["far_field/slope"] == math.inf


def test_looking_changes_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
    model[1].eval()  # as some freeze it
    watch = FarFieldMonitor(model, torch.randn(8, 3), every=5)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    assert watch.step(5) and not watch.step(6)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())
    assert all(
        parameter.grad is None and parameter.dtype == torch.float32 for parameter in model.parameters()
    )


def test_several_inputs_and_tokens():
    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.net = nn.Embedding(10, 4), nn.Linear(9, 1)

        def forward(self, observation, action, token):
            return self.net(torch.cat([observation, action, self.table(token)], -1))

    example = (torch.randn(8, 3), torch.randn(8, 2), torch.randint(10, (8,)))
    found = FarFieldMonitor(Critic(), example).scalars()
    assert found["far_field/slope"] > 0 and found["far_field/at_1000"] > found["far_field/at_10"]


def test_wrong_questions_are_named():
    with pytest.raises(InvalidValueError, match="at least 1"):
        FarFieldMonitor(nn.Linear(3, 1), torch.randn(4, 3), every=0)
    with pytest.raises(InvalidValueError, match="real-valued"):
        FarFieldMonitor(nn.Embedding(10, 3), torch.zeros(4, dtype=torch.int64))


class StartingAtZero(nn.Module):
    """A first state that forward makes by itself."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRU(5, 8, batch_first=True), nn.Linear(13, 1)

    def forward(self, x):
        states, _ = self.cell(x, torch.zeros(1, len(x), 8))
        return self.out(torch.cat([states[:, -1], x[:, -1]], -1))


class Projecting(nn.Module):
    """A tensor that is a plain attribute, no buffer."""

    def __init__(self):
        super().__init__()
        self.out, self.basis = nn.Linear(5, 1), torch.randn(5, 5)

    def forward(self, x):
        return self.out(x @ self.basis)


class Conditioned(nn.Module):
    """A large input, integers, and a time without an axis."""

    def __init__(self):
        super().__init__()
        self.kinds, self.out = nn.Embedding(7, 4), nn.Linear(605, 1)

    def forward(self, x, kind, t):
        return self.out(torch.cat([x, self.kinds(kind), t[:, None]], -1))


def test_models_as_people_write_them():
    given = torch.randn(8, 600), torch.randint(0, 7, (8,)), torch.rand(8)
    by_name = collections.UserDict(zip(("x", "kind", "t"), given, strict=True))
    for model, example in (
        (StartingAtZero(), torch.randn(4, 6, 5)),
        (Projecting(), torch.randn(4, 5)),
        (Conditioned(), given),
        (Conditioned(), by_name),
    ):
        assert FarFieldMonitor(model, example).step(0)["far_field/slope"] > 0
        assert all(t.dtype == torch.float32 for t in vars(model).values() if isinstance(t, torch.Tensor))
    assert torch.get_default_dtype() == torch.float32
