"""The search: what it reports is attained, in the domain, and close to the range where that is known."""

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

from farfield import Budget
from farfield.certify._certificate import Certificate
from farfield.certify._float_limit import float_limit
from farfield.certify._search import attained
from farfield.errors import InvalidValueError
from farfield.graph import capture


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normed(d=3, width=16, outputs=1, act=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(d, width),
        nn.LayerNorm(width),
        act(),
        nn.Linear(width, width),
        act(),
        nn.Linear(width, outputs),
    ).eval()


def search(model, example, output="output", steps=120, dynamic=False, **options):
    program = capture(model, example, dynamic_batch=dynamic)
    options.setdefault("generator", seeded())
    return program, attained(program, output, time_budget=Budget(steps=steps), **options)


def confirmed(program, found, output="output", inputs=None):
    """Every reported value is what the reference interpreter says at the reported point, bit for bit."""
    for values, rows in ((found.lower, found.lower_point), (found.upper, found.upper_point)):
        for j, (value, row) in enumerate(zip(values, rows, strict=True)):
            x = found.points[row]
            again = program.evaluate(*(inputs(x) if inputs else (x.reshape(1, -1),)))[output].reshape(-1)[j]
            assert float(again) == float(value)
    assert bool((found.lower <= found.upper).all())


@pytest.mark.parametrize("act", [nn.ReLU, nn.GELU, nn.Tanh])
@pytest.mark.parametrize("dynamic", [True, False])
def test_values_are_attained(act, dynamic):
    model = normed(outputs=4, act=act)
    program, found = search(model, torch.zeros(1, 3), dynamic=dynamic)
    confirmed(program, found)
    assert found.lower.shape == found.upper.shape == (4,)
    assert found.evaluations > 1000


def test_range_of_one_dimension_is_found():
    """Against a grid of 200,001 points over thirteen decades on either side."""
    model = normed(d=1, width=32).double()
    _, found = search(model, torch.zeros(1, 1).double(), steps=700)
    size = torch.logspace(-4, 9, 100_000, dtype=torch.float64)
    grid = torch.cat([-size, torch.zeros(1).double(), size])[:, None]
    with torch.no_grad():
        values = model(grid)
    span = float(values.max() - values.min())
    assert float(found.upper[0]) >= float(values.max()) - 1e-4 * span
    assert float(found.lower[0]) <= float(values.min()) + 1e-4 * span


def test_image_of_a_norm_is_reached():
    """w·LN(x) reaches ±√d‖Pw‖ in the limit, at the horizon; dimension 20 is out of reach of sampling."""
    torch.manual_seed(1)
    head = nn.Linear(20, 1, bias=False).double()
    model = nn.Sequential(nn.LayerNorm(20).double(), head)
    _, found = search(model, torch.zeros(1, 20).double(), steps=600)
    w = head.weight.detach()[0]
    limit = math.sqrt(20) * float((w - w.mean()).norm())
    assert limit * (1 - 1e-6) < float(found.upper[0]) <= limit * (1 + 1e-12)
    assert limit * (1 - 1e-6) < -float(found.lower[0]) <= limit * (1 + 1e-12)


@pytest.mark.parametrize("dynamic", [True, False])
def test_convolutions_and_attention(dynamic):
    torch.manual_seed(0)
    conv = [
        nn.Conv2d(2, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 2),
    ]
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    attention = [layer, nn.LayerNorm(8), nn.Linear(8, 1)]
    for parts, shape in ((conv, (1, 2, 6, 6)), (attention, (1, 3, 8))):
        program, found = search(nn.Sequential(*parts).eval(), torch.zeros(shape), steps=30, dynamic=dynamic)
        confirmed(program, found, inputs=lambda x, shape=shape: (x.reshape(shape),))
        assert bool((found.upper - found.lower > 0.5).all())


class Bump(nn.Module):
    """A peak of height 1 at a point 5·10⁶ away, as wide as it is far."""

    def forward(self, x):
        far = torch.tensor([3e6, 4e6], dtype=x.dtype)
        return torch.exp(-4 * ((x - far) / 5e6).square().sum(-1, keepdim=True))


def test_far_and_near_are_equally_reachable():
    program, found = search(Bump(), torch.zeros(1, 2), steps=600)
    confirmed(program, found)
    assert float(found.upper[0]) > 1 - 1e-8


class Blind(nn.Module):
    """No gradient anywhere, and an operator that has no batching rule."""

    def forward(self, x):
        return torch.bincount((x[0] > 0).long(), minlength=2).to(x.dtype)


def test_a_network_without_gradients_or_batches_is_sampled():
    _, found = search(Blind(), torch.zeros(1, 3), steps=30)
    assert found.lower.tolist() == [0.0, 0.0] and found.upper.tolist() == [3.0, 3.0]


def test_box_and_half_space():
    program, found = search(nn.Linear(2, 1).double(), torch.zeros(1, 2).double())
    assert float(found.upper[0]) > 1e8  # unbounded: as far as the search goes
    weight, bias = program.constants["p_weight"][0].double(), program.constants["p_bias"].double()
    box = {"kind": "box", "lower": [-1.0, 2.0], "upper": [3.0, 2.5]}
    program, found = search(_affine(weight, bias), torch.zeros(1, 2).double(), domain=box)
    ends = torch.tensor([[-1.0, 2.0], [3.0, 2.5]], dtype=torch.float64)
    top = float((weight * ends).amax(0).sum() + bias)
    bottom = float((weight * ends).amin(0).sum() + bias)
    assert math.isclose(float(found.upper[0]), top, rel_tol=1e-12)
    assert math.isclose(float(found.lower[0]), bottom, rel_tol=1e-12)
    confirmed(program, found)
    normal = weight.tolist()
    half = {"kind": "halfspace", "normal": normal, "offset": 0.7}
    program, found = search(_affine(weight, bias), torch.zeros(1, 2).double(), domain=half)
    confirmed(program, found)
    assert math.isclose(float(found.upper[0]), 0.7 + float(bias), rel_tol=1e-6)
    for point in found.points:
        inner = sum(Fraction(a) * Fraction(b) for a, b in zip(normal, point.tolist(), strict=True))
        assert inner <= Fraction(0.7)
    open_box = {"kind": "box", "lower": [-math.inf, 2.0], "upper": [3.0, 2.5]}
    _, found = search(_affine(weight, bias), torch.zeros(1, 2).double(), domain=open_box)
    assert bool((found.points[:, 0] <= 3).all()) and bool((found.points[:, 1] <= 2.5).all())


def _affine(weight, bias):
    model = nn.Linear(2, 1).double()
    with torch.no_grad():
        model.weight.copy_(weight[None])
        model.bias.copy_(bias)
    return model


@pytest.mark.parametrize(
    "domain",
    [
        {"kind": "box", "lower": [0.0], "upper": [1.0]},
        {"kind": "box", "lower": [1.0, 1.0], "upper": [0.0, 2.0]},
        {"kind": "halfspace", "normal": [0.0, 0.0], "offset": 1.0},
        {"kind": "ball"},
    ],
)
def test_wrong_domains_are_refused(domain):
    with pytest.raises(InvalidValueError):
        search(nn.Linear(2, 1), torch.zeros(1, 2), domain=domain)


def test_many_outputs_share_a_few_points():
    model = normed(outputs=100)
    program, found = search(model, torch.zeros(1, 3))
    assert found.points.shape[0] <= 4 and found.lower.shape == (100,)
    confirmed(program, found)
    singles = search(normed(outputs=100)[:-1].append(_first_rows(model, 2)), torch.zeros(1, 3))[1]
    assert float(found.upper.max()) >= float(singles.upper.max()) - 1e-3


def _first_rows(model, count):
    head = nn.Linear(16, count)
    with torch.no_grad():
        head.weight.copy_(model[-1].weight[:count])
        head.bias.copy_(model[-1].bias[:count])
    return head


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix = nn.Embedding(5, 4), nn.Linear(4, 4)

    def forward(self, ids, x, scale):
        return torch.tanh(self.mix(self.embed(ids) + x)).sum(-1) * scale.sum(-1)


def test_integers_are_held_at_the_example_and_inputs_joined():
    ids, x, scale = torch.tensor([[3]]), torch.zeros(1, 1, 4), torch.ones(1, 2)
    box = {"kind": "box", "lower": [-2.0] * 4 + [0.0] * 2, "upper": [2.0] * 4 + [1.0] * 2}
    program, found = search(Tokens(), (ids, x, scale), domain=box, start=[ids, x, scale])
    confirmed(program, found, inputs=lambda p: (ids, p[:4].reshape(1, 1, 4), p[4:].reshape(1, 2)))
    assert found.points.shape[1] == 6
    with pytest.raises(InvalidValueError, match="one tensor for each"):
        search(Tokens(), (ids, x, scale), start=[ids])


def test_more_time_never_finds_less_and_a_seed_repeats():
    model = normed(d=9, width=32)
    short, long = (search(model, torch.zeros(1, 9), steps=s)[1] for s in (0, 240))
    assert float(long.upper[0]) >= float(short.upper[0]) and float(long.lower[0]) <= float(short.lower[0])
    again = search(model, torch.zeros(1, 9), steps=0)[1]
    assert torch.equal(short.upper, again.upper) and torch.equal(short.points, again.points)


def test_witnesses_fit_a_certificate():
    _, found = search(normed(outputs=2), torch.zeros(1, 3))
    lower, upper = found.lower[None], found.upper[None]
    made = Certificate(lower - 1, upper + 1, lower, upper, witnesses=found.witnesses())
    assert Certificate.from_dict(made.to_dict()).witnesses == made.witnesses
    assert len(made.witnesses[0][1]["point"]) == 3


def test_nothing_finite_is_said_so():
    class Nowhere(nn.Module):
        def forward(self, x):
            return x.sum(-1, keepdim=True) * math.nan

    _, found = search(Nowhere(), torch.zeros(1, 2), steps=0)
    assert found.lower_point.tolist() == [-1] and found.witnesses()[0][0]["point"] is None


# ------------------------------------------------------------------ floats


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(torch.float32, 1e18, 1e21), (torch.float64, 1e150, 1e162), (torch.bfloat16, 1e18, 1e21)],
)
def test_float_limit_of_a_layer_norm(dtype, low, high):
    model, example = normed(width=16).to(dtype), torch.zeros(1, 3, dtype=dtype)
    for subject in (model, None):
        limit = float_limit(subject, example, capture(model, example))
        assert low <= limit <= high


def test_no_limit_where_floats_follow_and_modes_are_kept():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Tanh(), nn.Linear(8, 1)).double().train()
    example = torch.zeros(1, 3).double()
    assert float_limit(model, example, capture(model, example)) is None
    assert model.training and model[1].training
    assert float_limit(model, (torch.zeros(1), example), capture(model, example)) is None


class _Decades(nn.Module):
    """Wrong, in its own types, wherever the size of the input is between two powers of ten."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x):
        top = float(x.abs().max())
        size = top * float((x / top).norm())
        off = 1.0 if self.low <= size * 1.001 and size < self.high else 0.0
        return torch.tanh(x).sum(1, keepdim=True) + off


@pytest.mark.parametrize(("low", "high"), [(0, 1), (7, 8), (38, 39), (61, 301), (150, 301), (299, 301)])
def test_float_limit_is_the_decade_of_a_scan_of_all_of_them(low, high):
    right, example = _Decades(math.inf, 0.0), torch.zeros(1, 3, dtype=torch.float64)

    class Sum(nn.Module):
        def forward(self, x):
            return torch.tanh(x).sum(1, keepdim=True)

    program = capture(Sum(), example)
    assert float_limit(right, example, program) is None
    assert float_limit(_Decades(10.0**low, 10.0**high), example, program) == 10.0**low


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_limit_takes_few_evaluations(dtype, monkeypatch):
    """Two hundred; six times as many took longer than a budget of a second has."""
    model, example = normed(width=16).to(dtype), torch.zeros(1, 3, dtype=dtype)
    program, count = capture(model, example), []
    own = type(program).evaluate

    def counted(self, *inputs, **options):
        count.append(1)
        return own(self, *inputs, **options)

    monkeypatch.setattr(type(program), "evaluate", counted)
    assert float_limit(model, example, program) is not None
    assert len(count) <= 200


@pytest.mark.parametrize(("unit", "expected"), [(1e20, (1e172, 1e177)), (1.989e30, (1e183, 1e187))])
def test_float_limit_is_not_where_units_begin_to_matter(unit, expected):
    """Far below its unit an input changes nothing; that the output moves around it is no end of float64."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 1)).double()
    with torch.no_grad():
        model[0].weight /= unit
    example = torch.zeros(1, 3, dtype=torch.float64)
    low, high = expected
    assert low <= float_limit(model, example, capture(model, example)) <= high
