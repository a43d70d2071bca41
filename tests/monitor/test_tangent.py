"""The divergence indicator against matrices formed by hand, and against training that diverges or does not."""

import math

import pytest
import torch
from torch import nn

from farfield.errors import InvalidValueError
from farfield.monitor import TangentMonitor


def critic(seed=0, norm=False, width=32):
    torch.manual_seed(seed)
    layers = [nn.Linear(3, width), *([nn.LayerNorm(width)] if norm else []), nn.ReLU(), nn.Linear(width, 1)]
    return nn.Sequential(*layers).double()


def gradients(model, x):
    rows = []
    for one in x:
        found = torch.autograd.grad(model(one[None]).sum(), list(model.parameters()))
        rows.append(torch.cat([g.reshape(-1) for g in found]))
    return torch.stack(rows)


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.99])
def test_the_matrix_is_the_one_of_the_paper(discount):
    model, x, after = critic(), torch.randn(12, 3).double(), 2 * torch.randn(12, 3).double()
    found = TangentMonitor(model, x, after, discount=discount).scalars()
    j, k = gradients(model, x), gradients(model, after)
    matrix = discount * k @ j.T - j @ j.T
    expected = float(torch.linalg.eigvals(matrix).real.max())
    assert found["tangent/eigenvalue"] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    scale = float(torch.linalg.eigvalsh(j @ j.T)[-1])
    assert found["tangent/relative"] == pytest.approx(expected / scale, rel=1e-9, abs=1e-9)
    if discount == 0.0:
        assert found["tangent/eigenvalue"] < 1e-9  # −Θ is negative semi-definite: fitting does not diverge


def test_errors_move_as_the_matrix_says():
    """One small step of semi-gradient descent: u ← (I + ηA)u to first order in η."""
    model, x, after = critic(1), torch.randn(6, 3).double(), torch.randn(6, 3).double()
    reward, discount, rate = torch.randn(6).double(), 0.9, 1e-7

    def errors():
        with torch.no_grad():
            return model(x)[:, 0] - reward - discount * model(after)[:, 0]

    j, k = gradients(model, x), gradients(model, after)
    matrix = discount * k @ j.T - j @ j.T
    before = errors()
    with torch.no_grad():
        target = reward + discount * model(after)[:, 0]
    (0.5 * (model(x)[:, 0] - target).square().sum()).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
    # u = Q − target, and target moves with Q(after): du = (Θ(after)·γ − Θ)·u·η.
    torch.testing.assert_close((errors() - before) / rate, matrix @ before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_above_zero_it_diverges_and_below_it_does_not(seed):
    """Rows that lead to larger rows of the same direction, as an optimistic policy's: plain against normed."""
    torch.manual_seed(seed)
    x = torch.randn(24, 3).double()
    after = 1.5 * x
    grown = {}
    for norm in (False, True):
        model = critic(seed, norm)
        watch = TangentMonitor(model, x, after, discount=0.99, every=1)
        sign = watch.scalars()["tangent/relative"]
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(1500):
            with torch.no_grad():
                target = 1.0 + 0.99 * model(after)
            optimizer.zero_grad()
            (model(x) - target).square().mean().backward()
            optimizer.step()
            if not model(x).isfinite().all():
                break
        with torch.no_grad():
            grown[norm] = (sign, float(model(x).abs().nan_to_num(1e30).max()))
    assert grown[False][0] > 0.01 and grown[False][1] > 1e3  # the sum of discounted rewards is at most 100
    assert grown[True][0] < grown[False][0] / 10 and grown[True][1] <= 200


def test_several_inputs_a_policy_that_moves_and_what_is_refused():
    class Q(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, observation, action):
            return (self.net(torch.cat([observation, action], -1)),)

    observation, action = torch.randn(100, 3), torch.randn(100, 2)
    asked = []

    def following():
        asked.append(1)
        return observation + 0.1, torch.tanh(action)

    model = Q().train()
    watch = TangentMonitor(model, (observation, action), following, every=10)
    assert len(watch.step(0)) == 2 and watch.step(1) == {} and len(asked) == 1
    assert model.net[1].training and "not a proof" in str(watch)
    with pytest.raises(InvalidValueError, match="same kind"):
        TangentMonitor(model, (observation, action), (observation, action[:, :1])).scalars()
    with pytest.raises(InvalidValueError, match="discount"):
        TangentMonitor(model, observation, observation, discount=1.5)
    with pytest.raises(InvalidValueError, match="real numbers"):
        TangentMonitor(model, observation.long(), observation.long()).scalars()


@pytest.mark.parametrize("weight", [math.nan, math.inf, 1e200])
def test_a_model_that_has_diverged_does_not_end_the_process(weight):
    """LAPACK may crash on NaN, and divergence is what this monitor is there to see."""
    model, x = critic(), torch.randn(8, 3).double()
    model[0].weight.data.fill_(weight)
    found = TangentMonitor(model, x, 2 * x).scalars()
    assert math.isnan(found["tangent/eigenvalue"]) and math.isnan(found["tangent/relative"])
