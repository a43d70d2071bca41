"""Rollouts: no simulated state leaves a proved set, drifts are never exceeded, and nothing forged is accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.certify import CertificateError, RolloutCertificate, RolloutVerdict, verify_rollout
from farfield.certify.rollout import powers, split_step
from farfield.errors import InvalidValueError
from farfield.graph import capture

F64 = torch.float64
STEPS = ff.Budget(steps=60)


def bounded(inputs, outputs, width=12):
    layers = nn.Linear(inputs, width), nn.LayerNorm(width), nn.Tanh(), nn.Linear(width, outputs)
    return nn.Sequential(*layers).double()


class Leaky(nn.Module):
    def __init__(self, keep, net):
        super().__init__()
        self.keep, self.net = keep, net

    def forward(self, x):
        return self.keep * x + self.net(x)


class Dense(nn.Module):
    """x⁺ = A·x + g(x) with a matrix whose powers grow before they fall."""

    def __init__(self, matrix, net):
        super().__init__()
        self.net = net
        self.register_buffer("matrix", matrix)

    def forward(self, x):
        return x @ self.matrix.T + self.net(x)


class Delays(nn.Module):
    """The newest of three frames comes from all of them; the others move up."""

    def __init__(self, size=2):
        super().__init__()
        self.size, self.net = size, bounded(3 * size, size)

    def forward(self, x):
        return torch.cat([x[:, self.size :], self.net(x)], 1)


class Moving(nn.Module):
    """Places and speeds: the speed leaks, the place follows it and is pulled back."""

    def __init__(self):
        super().__init__()
        self.net = bounded(4, 2)

    def forward(self, x):
        place, speed = x.chunk(2, -1)
        return torch.cat([0.9 * place + 0.1 * speed, 0.8 * speed + self.net(x)], -1)


class Normalized(nn.Module):
    """A difference in standardized units."""

    def __init__(self):
        super().__init__()
        self.net = bounded(2, 2)
        self.register_buffer("mean", torch.tensor([3.0, -1.0], dtype=F64))
        self.register_buffer("scale", torch.tensor([0.3, 7.0], dtype=F64))

    def forward(self, x):
        return x + self.scale * self.net((x - self.mean) / self.scale)


class Driven(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.gate = bounded(2, 2), nn.Linear(1, 2).double()

    def forward(self, x, u):
        return 0.5 * x + self.net(x) + self.gate(u)


def simulated(step, shape, steps, controls=None):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(200, *shape, generator=draw, dtype=F64) * 10 ** (
        2 * torch.rand(200, 1, generator=draw, dtype=F64) - 1
    )
    path = []
    with torch.no_grad():
        for _ in range(steps):
            x = step(x) if controls is None else step(x, controls(draw, len(x)))
            path.append(x)
    return torch.stack(path)


def steps(seed):
    torch.manual_seed(seed)
    return {
        "replaced": (Leaky(0.0, bounded(2, 2)), 2),
        "leaky": (Leaky(0.9, bounded(3, 3)), 3),
        "turned": (Leaky(-0.7, bounded(2, 2)), 2),
        "dense": (Dense(torch.tensor([[0.5, 4.0], [0.0, 0.6]], dtype=F64), bounded(2, 2)), 2),
        "delays": (Delays(), 6),
        "moving": (Moving(), 4),
    }


@pytest.mark.parametrize("name", list(steps(0)))
def test_every_rollout_ends_in_the_box_and_stays(name):
    step, size = steps(0)[name]
    step = step.eval()
    found = ff.certify_rollout(step, torch.zeros(1, size, dtype=F64), time_budget=STEPS)
    assert found.verdict.name == "INVARIANT"
    late = found.steps_until(100.0)
    path = simulated(step, (size,), min(late, 600) + 50)
    assert late <= 4000
    if late <= 600:
        inside = (path[late:] >= found.attractor_lower) & (path[late:] <= found.attractor_upper)
        assert bool(inside.all())
    if name == "replaced":
        assert bool(((path >= found.lower) & (path <= found.upper)).all())
    # What was in the smaller box stays in the larger one.
    entered = ((path >= found.attractor_lower) & (path <= found.attractor_upper)).all(-1)
    seen = torch.cummax(entered.int(), 0).values.bool()
    ever = ((path >= found.lower) & (path <= found.upper)).all(-1)
    assert bool(ever[seen].all()) and bool(seen[-1].all())
    assert bool((found.attained_lower >= found.attractor_lower).all())
    assert verify_rollout(step, found, torch.zeros(1, size, dtype=F64))


def test_a_difference_that_is_added_drifts():
    torch.manual_seed(0)
    step = Normalized().eval()
    found = ff.certify_rollout(step, torch.zeros(1, 2, dtype=F64), time_budget=STEPS)
    assert found.verdict.name == "DRIFTS" and found.attractor_lower is None
    path = simulated(step, (2,), 60)
    assert bool(((path[1:] - path[:-1]).abs() <= found.drift).all())
    assert verify_rollout(step, found, torch.zeros(1, 2, dtype=F64))
    with pytest.raises(CertificateError, match="smaller"):
        verify_rollout(step, replace(found, drift=0.9 * found.drift), torch.zeros(1, 2, dtype=F64))
    with pytest.raises(InvalidValueError, match="drifts"):
        found.steps_until(1.0)


@pytest.mark.parametrize("keep", [1.05, -1.2])
def test_what_grows_is_said_to_escape(keep):
    torch.manual_seed(0)
    step = Leaky(keep, bounded(2, 2)).eval()
    found = ff.certify_rollout(step, torch.zeros(1, 2, dtype=F64), time_budget=STEPS)
    assert found.verdict.name == "ESCAPES" and "eigenvalue" in found.reason
    x = torch.tensor([found.witness["state"]], dtype=F64)
    with torch.no_grad():
        for _ in range(found.witness["steps"]):
            x = step(x)
    assert float(x.abs().max()) == pytest.approx(found.witness["size"], rel=1e-6)


def test_no_bound_of_the_rest_is_no_box():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    found = ff.certify_rollout(Leaky(0.5, net).eval(), torch.zeros(1, 2, dtype=F64), time_budget=STEPS)
    assert found.verdict.name in ("ESCAPES", "UNKNOWN") and found.lower is None
    assert "unbounded" in found.reason


def test_controls_within_their_range():
    torch.manual_seed(0)
    step, example = Driven().eval(), torch.zeros(1, 2, dtype=F64)
    control = torch.zeros(1, 1, dtype=F64)
    free = ff.certify_rollout(step, example, controls=control, time_budget=STEPS)
    assert free.verdict.name in ("ESCAPES", "UNKNOWN")  # a control of any size
    held = ff.certify_rollout(step, example, controls=control, control_range=(-2.0, 1.0), time_budget=STEPS)
    assert held.verdict.name == "INVARIANT"
    late = held.steps_until(100.0)
    path = simulated(
        step, (2,), late + 20, lambda draw, n: 3 * torch.rand(n, 1, generator=draw, dtype=F64) - 2
    )
    assert bool(((path[late:] >= held.attractor_lower) & (path[late:] <= held.attractor_upper)).all())
    assert verify_rollout(step, held, example, controls=control, control_range=(-2.0, 1.0))
    with pytest.raises(CertificateError):
        verify_rollout(step, held, example, controls=control, control_range=(-9.0, 9.0))


def test_nothing_forged_is_accepted(tmp_path):
    torch.manual_seed(0)
    step, example = Leaky(0.8, bounded(2, 2)).eval(), torch.zeros(1, 2, dtype=F64)
    found = ff.certify_rollout(step, example, time_budget=STEPS)
    found.save(tmp_path / "rollout.json")
    read = RolloutCertificate.load(tmp_path / "rollout.json")
    assert verify_rollout(step, read, example) and str(read) == str(found)
    half = (found.attractor_upper - found.attractor_lower) / 4
    first = found.rest[0]
    lowered = replace(first, upper=first.upper - 0.1, attained_upper=first.attained_lower)
    forgeries = [
        replace(found, attractor_upper=found.attractor_upper - half),
        replace(found, attractor_lower=found.attractor_lower + half),
        replace(found, upper=found.upper - half),
        replace(found, upper=torch.full_like(found.upper, torch.nan)),
        replace(found, lower=None),
        replace(found, rest=()),
        replace(found, rest=found.rest[1:]),
        replace(found, verdict=ff.certify.RolloutVerdict.DRIFTS, drift=found.upper),
        replace(found, rest=(lowered, *found.rest[1:])),
        replace(found, model_hash="0" * 64),
    ]
    for forged in forgeries:
        if forged.rest == found.rest[1:] and not found.rest[1:]:
            continue
        with pytest.raises(CertificateError):
            verify_rollout(step, forged, example)
    other = Leaky(0.8, bounded(2, 2)).eval()
    with pytest.raises(CertificateError, match="another step"):
        verify_rollout(other, found, example)


def test_the_split_is_the_step():
    for seed in range(3):
        for step, size in steps(seed).values():
            program = capture(step.eval(), torch.zeros(1, size, dtype=F64), dynamic_batch=False)
            split = split_step(program, program.inputs[0].name, program.outputs[0])
            x = torch.randn(1, size, dtype=F64)
            rest = split.rest.evaluate(x)[split.rest.outputs[0]]
            with torch.no_grad():
                torch.testing.assert_close(x @ split.matrix.T + rest, step(x), rtol=1e-12, atol=1e-12)
    assert split.matrix.abs().max() > 0


@pytest.mark.parametrize("seed", range(6))
def test_powers_add_up_to_no_more(seed):
    draw = torch.Generator().manual_seed(seed)
    matrix = torch.randn(5, 5, generator=draw, dtype=F64)
    matrix = matrix * (0.5, 0.9, 0.97)[seed % 3] / float(torch.linalg.eigvals(matrix).abs().max())
    error = torch.full((5, 5), 1e-12 if seed % 2 else 0.0, dtype=F64)
    found = powers(matrix, error)
    size = torch.rand(5, generator=draw, dtype=F64)
    total, power = torch.zeros(5, dtype=F64), torch.eye(5, dtype=F64)
    for _ in range(20_000):
        total = total + power.abs() @ size
        power = power @ matrix
    assert bool((found.gathered(size) >= total * (1 - 1e-9)).all())
    assert bool((found.gathered(size) <= 5 * total).all())
    assert powers(matrix / float(torch.linalg.eigvals(matrix).abs().max()), error) is None


def test_a_step_returns_its_state():
    with pytest.raises(InvalidValueError, match="next state"):
        ff.certify_rollout(nn.Linear(3, 2), torch.zeros(1, 3), time_budget=STEPS)


class Step(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


SHIFT = torch.diag(torch.full((11,), 1e3, dtype=F64), 1)
STAYS = {
    "a population in raw counts": (lambda x: 2 * torch.relu(x) / (1 + torch.relu(x) / 1e9), 1),
    "a capacity far away": (lambda x: 1.5 * x / (1 + (x / 1e60).abs()), 1),
    "a population that collapses": (lambda x: x.abs() * torch.exp(2 - x.abs() / 1e8), 1),
    "a matrix whose powers end": (lambda x: x @ SHIFT[:3, :3].T + torch.sin(x), 3),
    "a matrix whose powers end late": (lambda x: x @ SHIFT.T + torch.sin(x), 12),
    "a long transient": (
        lambda x: x @ (0.9 * torch.eye(6, dtype=F64) + 0.05 * SHIFT[:6, :6]).T + torch.sin(x),
        6,
    ),
}
GROWS = {
    "a factor above 1": (lambda x: 1.1 * x, 2),
    "a square": (lambda x: x * x + x, 2),
    "a ramp": (lambda x: 1.2 * torch.relu(x) + 0.1, 3),
    "a turn": (lambda x: 1.2 * torch.stack([x[:, 1], -x[:, 0]], 1) + torch.tanh(x), 2),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_grows_for_a_while_does_not_escape(name):
    function, size = STAYS[name]
    found = ff.certify_rollout(Step(function).eval(), torch.zeros(1, size, dtype=F64), time_budget=STEPS)
    assert found.verdict is not RolloutVerdict.ESCAPES, found.reason
    assert ("matrix" in name) <= (found.verdict is RolloutVerdict.INVARIANT)


@pytest.mark.parametrize("name", GROWS)
def test_what_grows_at_every_size_escapes(name):
    function, size = GROWS[name]
    found = ff.certify_rollout(Step(function).eval(), torch.zeros(1, size, dtype=F64), time_budget=STEPS)
    assert found.verdict is RolloutVerdict.ESCAPES
