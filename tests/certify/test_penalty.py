"""Bounds one can train: they bound, their gradient is right, and training brings the proved range inside."""

import math

import pytest
import torch
from torch import nn

from farfield.certify.affine import build_network
from farfield.certify.dual._assembly import build_problem
from farfield.certify.dual._dual import Dual, objective
from farfield.certify.intervals import propagate
from farfield.certify.training import _penalty
from farfield.certify.training._chain import UntrainableBoundError, parse_chain
from farfield.certify.training._penalty import OutputRangePenalty
from farfield.errors import InvalidValueError
from farfield.graph import capture
from farfield.nn import MLP, GroupedLayerNorm, LayerNorm, Project, RangeHead
from gram_samples import generator

DOUBLE = torch.float64
EXACT = 1e-9


def mlp(inputs: int = 2, outputs: int = 1, width: int = 10, **options) -> MLP:
    defaults = {"norm": "layer", "placement": "first", "depth": 2, "bias_var": 0.3, "norm_affine": True}
    net = MLP(inputs, outputs, width=width, dtype=DOUBLE, generator=generator(3), **(defaults | options))
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "weight" in name and parameter.ndim == 1:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator(4), dtype=DOUBLE)
    return net


def chain(*modules: nn.Module) -> nn.Sequential:
    net = nn.Sequential(*modules).double()
    with torch.no_grad():
        for k, parameter in enumerate(net.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator(k), dtype=DOUBLE) * 0.5)
    return net


MODELS = {
    "first": lambda: mlp(),
    "every": lambda: mlp(placement="every"),
    "deep": lambda: mlp(depth=3, width=8),
    "last": lambda: mlp(placement="last", depth=2),
    "leaky": lambda: mlp(activation="leaky_relu"),
    "abs, rms": lambda: mlp(activation="abs", norm="rms"),
    "hardtanh": lambda: mlp(activation="hardtanh"),
    "ntk": lambda: mlp(parametrization="ntk", norm_affine=False),
    "two outputs": lambda: mlp(outputs=2),
    "raw norm": lambda: chain(nn.LayerNorm(2), nn.ReLU(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)),
    "plain norm": lambda: chain(nn.Linear(2, 8), LayerNorm(), nn.ReLU(), nn.Linear(8, 1)),
    "projected": lambda: chain(nn.Linear(2, 8), Project(1e-3), nn.ReLU(), nn.Linear(8, 1)),
    "grouped": lambda: chain(nn.Linear(2, 8), GroupedLayerNorm(8, 2), nn.ReLU(), nn.Linear(8, 1)),
    "no activation": lambda: chain(nn.Linear(2, 8), nn.LayerNorm(8), nn.Linear(8, 2)),
    "ends bent": lambda: chain(nn.Linear(2, 8), nn.LayerNorm(8), nn.Linear(8, 2), nn.ReLU()),
    "dropped": lambda: chain(
        nn.Linear(2, 8), nn.Tanh(), nn.LayerNorm(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 1)
    ),
}  # fmt: skip


def everywhere(inputs: int, count: int = 40_000) -> torch.Tensor:
    """Points of all sizes in all directions."""
    directions = torch.randn(count, inputs, generator=generator(7), dtype=DOUBLE)
    sizes = 10 ** (12 * torch.rand(count, 1, generator=generator(8), dtype=DOUBLE) - 6)
    return torch.cat([directions * sizes, torch.zeros(1, inputs, dtype=DOUBLE)])


def escaped(net: nn.Module, lower: torch.Tensor, upper: torch.Tensor) -> bool:
    """Whether some sample lies outside bounds that are exact up to rounding."""
    net.eval()
    with torch.no_grad():
        y = net(everywhere(2))
    return bool((y > upper + EXACT).any()) or bool((y < lower - EXACT).any())


def proved(net: nn.Module, steps: int) -> tuple[float, float]:
    """The range of a first output by the problem that certificates are made of."""
    program = capture(net, torch.zeros(1, 2, dtype=DOUBLE), dynamic_batch=False)
    problem = build_problem(build_network(program, "output", propagate(program)))
    ends = []
    for sign in (-1.0, 1.0):
        goal = objective(problem, 0, sign)
        search = _penalty.MultiplierSearch.begin(problem, goal, 0.02)
        search.follow(problem, goal, steps)
        dual = Dual(problem, goal.divided(search.scale))
        value = _penalty._lagrangian(dual, search.multipliers, search.point)
        ends.append(sign * search.scale * value.item())
    return ends[0], ends[1]


@pytest.mark.parametrize("name", ["first", "deep", "ends bent"])
def test_the_point_that_is_kept_is_the_maximizer_of_the_multipliers_that_are_kept(name):
    """Later steps of Adam, in place, once moved the multipliers of an earlier step: a bound 8e-7 too low."""
    net = MODELS[name]()
    penalty = OutputRangePenalty(net, torch.zeros(1, 2, dtype=DOUBLE), (-1.0, 1.0), warm_up=60)
    penalty.bounds()
    live = penalty.chain.problem(penalty.units)
    for (output, sign), search in penalty._searches.items():
        goal = _penalty._detached_goal(_penalty._goal(live, output, sign)).divided(search.scale)
        dual = Dual(_penalty._detached(live), goal)
        best = 0.5 * torch.linalg.solve(dual.hessian(search.multipliers), dual.linear(search.multipliers))
        assert torch.allclose(search.point, best, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("warm_up", [0, 60])
def test_bounds_hold_everywhere(name, warm_up):
    net = MODELS[name]()
    penalty = OutputRangePenalty(net, torch.zeros(1, 2, dtype=DOUBLE), (-1.0, 1.0), warm_up=warm_up)
    lower, upper = (b.detach() for b in penalty.bounds())
    assert not escaped(net, lower, upper)
    with torch.no_grad():  # weights that jump leave the multipliers behind; the bound still holds
        for parameter in net.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator(1), dtype=DOUBLE)
    lower, upper = (b.detach() for b in penalty.bounds(0))
    assert not escaped(net, lower, upper)


@pytest.mark.parametrize("name", ["first", "every", "abs, rms"])
def test_bounds_agree_with_the_certified_problem(name):
    """Two constructions of the same relaxation, searched alike: within a few per cent of one another."""
    net = MODELS[name]()
    penalty = OutputRangePenalty(net, torch.zeros(1, 2, dtype=DOUBLE), (-1.0, 1.0), warm_up=250)
    lower, upper = (b.item() for b in penalty.bounds())
    low, high = proved(net, 250)
    assert abs(upper - high) < 0.05 * (high - low) and abs(lower - low) < 0.05 * (high - low)


@pytest.mark.parametrize("name", MODELS)
def test_gradient_against_differences(name, monkeypatch):
    """At fixed multipliers, and with the joint maximizer found anew at every weight."""
    net = MODELS[name]()
    penalty = OutputRangePenalty(net, torch.zeros(1, 2, dtype=DOUBLE), (-0.1, 0.1), warm_up=40)
    penalty()
    fixed = {key: dict(search.multipliers) for key, search in penalty._searches.items()}

    def follow(self, problem, goal, steps):
        key = next(k for k, s in penalty._searches.items() if s is self)
        dual = Dual(problem, goal.divided(self.scale))
        hessian, linear = dual.hessian(fixed[key]), dual.linear(fixed[key])
        self.multipliers, self.point = fixed[key], 0.5 * torch.linalg.solve(hessian, linear)

    monkeypatch.setattr(_penalty.MultiplierSearch, "follow", follow)
    parameters = [p for p in net.parameters() if p.requires_grad]
    slopes = torch.autograd.grad(penalty(), parameters, allow_unused=True)
    for k, (parameter, slope) in enumerate(zip(parameters, slopes, strict=True)):
        direction = torch.randn(parameter.shape, generator=generator(k), dtype=DOUBLE)
        values = []
        for step in (1e-6, 0.0, -1e-6):
            with torch.no_grad():
                parameter += step * direction
                values.append(penalty().item())
                parameter -= step * direction
        # A maximum of several pieces has two slopes where they meet; between them, and nowhere else, ours may lie.
        sides = sorted([(values[0] - values[1]) / 1e-6, (values[1] - values[2]) / 1e-6])
        mine = 0.0 if slope is None else float((slope * direction).sum())
        slack = 5e-5 * max(1.0, abs(values[0]), *map(abs, sides))
        assert sides[0] - slack <= mine <= sides[1] + slack, k


def test_parameters_before_a_later_norm_have_no_say():
    net = mlp(placement="every")
    OutputRangePenalty(net, torch.zeros(1, 2, dtype=DOUBLE), (-0.1, 0.1), warm_up=0)().backward()
    assert net[0].weight.grad is None and net[3].weight.grad is None
    assert net[4].weight.grad is not None and net[6].weight.grad is not None


@pytest.mark.parametrize("placement", ["first", "every"])
def test_training_brings_the_proved_range_inside(placement):
    net = mlp(placement=placement, width=12)
    with torch.no_grad():
        net[-1].weight *= 4
    x = torch.randn(64, 2, generator=generator(5), dtype=DOUBLE)
    y = torch.tanh(x[:, :1])
    example, wanted = torch.zeros(1, 2, dtype=DOUBLE), (-1.5, 1.5)
    before = [b.item() for b in OutputRangePenalty(net, example, wanted).bounds()]
    assert before[0] < -1.5 or before[1] > 1.5
    penalty = OutputRangePenalty(net, example, (-1.45, 1.45), weight=0.3)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(250):
        loss = (net(x) - y).square().mean() + penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    low, high = proved(net, 500)
    assert wanted[0] <= low and high <= wanted[1]
    assert float((net(x) - y).square().mean().detach()) < 0.1


# ------------------------------------------------------------------ wrong versions are caught


def test_a_bound_without_its_separable_part_is_caught(monkeypatch):
    monkeypatch.setattr(_penalty, "_lagrangian", lambda dual, m, x: dual.joint(m, x))
    net = mlp()
    lower, upper = OutputRangePenalty(net, torch.zeros(1, 2, dtype=DOUBLE), (-1.0, 1.0)).bounds()
    assert escaped(net, lower.detach(), upper.detach())


def test_a_stale_joint_maximizer_is_caught(monkeypatch):
    """The Lagrangian at any other point than its maximizer is no bound."""
    right = _penalty._lagrangian
    monkeypatch.setattr(_penalty, "_lagrangian", lambda dual, m, x: right(dual, m, torch.full_like(x, 3.0)))
    net = mlp()
    lower, upper = OutputRangePenalty(net, torch.zeros(1, 2, dtype=DOUBLE), (-1.0, 1.0)).bounds()
    assert escaped(net, lower.detach(), upper.detach())


def test_random_multipliers_bound_but_loosely():
    """Sound whatever they are; only the search makes them tight."""
    net = mlp()
    example = torch.zeros(1, 2, dtype=DOUBLE)
    penalty = OutputRangePenalty(net, example, (-1.0, 1.0), warm_up=0)
    penalty.bounds(0)
    with torch.no_grad():
        for search in penalty._searches.values():
            for name, value in search.raw.items():
                noise = torch.randn(value.shape, generator=generator(2), dtype=DOUBLE)
                value.copy_(noise.abs() if name == "n" else value + noise)
    loose = [b.item() for b in penalty.bounds(0)]
    tight = [b.item() for b in OutputRangePenalty(net, example, (-1.0, 1.0), warm_up=400).bounds()]
    assert not escaped(net, torch.tensor(loose[0]), torch.tensor(loose[1]))
    assert loose[1] - loose[0] > 1.5 * (tight[1] - tight[0])


# ------------------------------------------------------------------ the interface


def test_zero_once_inside_and_between_calls():
    net = mlp()
    example = torch.zeros(1, 2, dtype=DOUBLE)
    assert float(OutputRangePenalty(net, example, (-1e3, 1e3), warm_up=20)().detach()) == 0.0
    penalty = OutputRangePenalty(net, example, (-0.1, 0.1), every=3, warm_up=0)
    calls = [penalty().item() for _ in range(7)]
    assert [c > 0 for c in calls] == [True, False, False, True, False, False, True]


def test_float32_models_and_their_modes_are_left_alone():
    net = MLP(3, 1, width=8, depth=1, norm="layer", generator=generator(0))
    net.insert(2, nn.Dropout(0.5))
    penalty = OutputRangePenalty(net, torch.zeros(1, 3), (-0.1, 0.1), warm_up=5)
    penalty().backward()
    assert net.training and net[2].training and net[-1].weight.dtype == torch.float32
    assert net[-1].weight.grad is not None and net[-1].weight.grad.dtype == torch.float32


class Doubled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)), "needs a norm"),
        (nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Softmax(-1)), "Softmax at '2'"),
        (nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), RangeHead(0.0, 1.0)), "RangeHead at '2'"),
        (Doubled(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 1)), "forward or hooks of its own"),
        (nn.Sequential(nn.Unflatten(-1, (1, 2)), nn.LayerNorm((1, 2))), "last axis"),
    ],
    ids=["no norm", "softmax", "head", "own forward", "two axes"],
)
def test_other_models_are_refused(model, match):
    with pytest.raises(UntrainableBoundError, match=match):
        parse_chain(model, torch.zeros(3, 2))


@pytest.mark.parametrize(
    "options",
    [
        {"certified_range": (1.0, 1.0)},
        {"certified_range": (0.0, math.inf)},
        {"steps": 0},
        {"every": 0},
        {"rate": 0.0},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options):
    settings = {"certified_range": (-1.0, 1.0)} | options
    with pytest.raises(InvalidValueError):
        OutputRangePenalty(mlp(), torch.zeros(1, 2, dtype=DOUBLE), **settings)
