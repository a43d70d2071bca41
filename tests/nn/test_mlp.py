"""The MLP builder: every combination, the laws of its weights, determinism, copies, and teaching errors."""

import copy
import dataclasses
import io
import itertools
import json
import math
import pickle

import pytest
import torch
from torch import nn

from farfield.errors import InvalidValueError, UnknownNameError
from farfield.gaussian import moments
from farfield.nn import (
    MLP,
    Elementwise,
    GroupedLayerNorm,
    MeanFieldCenter,
    MeanFieldProject,
    Project,
    ScaledLinear,
)
from gram_samples import generator
from shape_checking import as_users_run_it

NORMS = [None, "layer", "rms", "batch", "grouped", "mean_field", nn.LayerNorm]
PLACEMENTS = ["none", "first", "second", "last", "every", (0, 2), [1]]
PARAMETRIZATIONS = ["standard", "ntk", "mean_field"]


def net(**options) -> MLP:
    defaults = {"width": 6, "depth": 3, "generator": generator(0)}
    return MLP(4, 2, **(defaults | options))


def sphere(n: int, d: int, seed: int = 0) -> torch.Tensor:
    """Points of mean square one."""
    x = torch.randn(n, d, generator=generator(seed), dtype=torch.float64)
    return x / x.square().mean(-1, keepdim=True).sqrt()


# ------------------------------------------------------------------ every combination


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_every_combination_builds_and_runs(norm):
    x = torch.randn(5, 4, generator=generator(1))
    built = 0
    for placement, order, parametrization in itertools.product(PLACEMENTS, ("pre", "post"), PARAMETRIZATIONS):
        options = {"placement": placement, "order": order, "parametrization": parametrization, "groups": 2}
        if norm == "mean_field" and order == "pre":
            with pytest.raises(InvalidValueError, match="order='post'"):
                net(norm=norm, **options)
            continue
        if parametrization != "mean_field":
            options["bias_var"] = 0.1
        f = net(norm=norm, **options)
        y = f(x)
        assert y.shape == (5, 2)
        assert bool(torch.isfinite(y).all())
        y.sum().backward()
        assert all(p.grad is not None for p in f.parameters())
        check_structure(f, norm, placement, order, parametrization)
        built += 1
    assert built in (21, 42)


def check_structure(f: MLP, norm, placement, order: str, parametrization: str) -> None:
    named = {"none": [], "first": [0], "second": [1], "last": [2], "every": [0, 1, 2]}
    layers = tuple(named[placement] if isinstance(placement, str) else placement) if norm is not None else ()
    linear = ScaledLinear if parametrization == "ntk" else nn.Linear
    unit = Elementwise if parametrization == "ntk" else nn.ReLU
    norms = {
        "layer": [nn.LayerNorm], "rms": [Project], "batch": [nn.BatchNorm1d], "grouped": [GroupedLayerNorm],
        "mean_field": [MeanFieldCenter, MeanFieldProject], nn.LayerNorm: [nn.LayerNorm], None: [],
    }[norm]  # fmt: skip
    expected: list[type] = []
    for k in range(3):
        here = norms if k in layers else []
        expected += [linear, *here, unit] if order == "pre" else [linear, unit, *here]
    assert [type(m) for m in f] == [*expected, linear]
    assert f.spec.norm_layers == layers
    assert f.spec.norm == {None: "none", nn.LayerNorm: "custom"}.get(norm, norm)


def test_widths_of_their_own():
    f = MLP(4, 2, width=(5, 3), norm="layer", bias_var=0.1, generator=generator(0))
    assert [tuple(m.weight.shape) for m in f if isinstance(m, nn.Linear)] == [(5, 4), (3, 5), (2, 3)]
    assert f.spec.width == (5, 3) and f.spec.depth == 2 and f.spec.norm_layers == (0, 1)
    same, twice = (
        MLP(4, 2, **w, generator=generator(0)) for w in ({"width": (6, 6)}, {"width": 6, "depth": 2})
    )
    assert all(torch.equal(p, q) for p, q in zip(same.parameters(), twice.parameters(), strict=True))
    with pytest.raises(InvalidValueError, match="one width for every hidden layer"):
        MLP(4, 2, width=(5, 3), depth=3)
    with pytest.raises(InvalidValueError, match="depth says how many"):
        MLP(4, 2, width=5)


def test_no_readout_and_affine_norms():
    f = MLP(4, None, width=6, depth=2, norm="layer", norm_affine=True, norm_eps=1e-3, generator=generator(0))
    assert f(torch.ones(3, 4)).shape == (3, 6)
    assert f[1].weight is not None
    assert f[1].eps == 1e-3
    rms = net(norm="rms", norm_affine=True)
    assert isinstance(rms[1], nn.RMSNorm)
    x = torch.randn(5, 6, generator=generator(2))
    torch.testing.assert_close(rms[1](x), Project(1e-5)(x), rtol=1e-5, atol=1e-6)
    assert net(norm="batch", norm_affine=True)[1].affine
    assert net(norm="grouped", norm_affine=True, groups=3)[1].weight is not None


# ------------------------------------------------------------------ weights


def assert_variance(values: torch.Tensor, expected: float) -> None:
    """Mean zero and this variance, within 5 standard errors."""
    n = values.numel()
    assert abs(float(values.mean())) < 5 * math.sqrt(expected / n)
    assert abs(float(values.square().mean()) / expected - 1) < 5 * math.sqrt(2 / n)


@pytest.mark.parametrize("name", ["relu", "tanh", "gelu"])
@pytest.mark.parametrize("weight_var", [None, 0.7])
def test_variances_of_the_initial_weights(name, weight_var):
    options = {"width": 400, "depth": 2, "activation": name, "weight_var": weight_var, "bias_var": 0.2}
    f = MLP(300, 500, generator=generator(3), **options)
    hidden = 1.0 / moments(name).second if weight_var is None else weight_var
    first, second, readout = (m for m in f if isinstance(m, nn.Linear))
    with torch.no_grad():
        assert_variance(first.weight, (1.0 if weight_var is None else weight_var) / 300)
        assert_variance(second.weight, hidden / 400)
        assert_variance(readout.weight, hidden / 400)
        for layer in (first, second, readout):
            assert_variance(layer.bias, 0.2)
        scaled = MLP(300, 500, parametrization="ntk", generator=generator(4), **options)
        for layer in (m for m in scaled if isinstance(m, ScaledLinear)):
            assert_variance(layer.weight, 1.0)
            assert_variance(layer.bias, 1.0)
            assert layer.weight_var == (1.0 if weight_var is None else weight_var)
        plain = MLP(300, 500, width=400, depth=2, parametrization="mean_field", generator=generator(5))
        for layer, fan_in in zip((plain[0], plain[2], plain[4]), (300, 400, 400), strict=True):
            assert_variance(layer.weight, 1.0 / fan_in)
            assert layer.bias is None
    assert f.spec.weight_var == hidden


def test_the_default_for_relu_is_kaiming():
    assert net().spec.weight_var == pytest.approx(2.0, rel=1e-13)


def test_the_scaled_linear_is_its_formula():
    layer = ScaledLinear(5, 3, weight_var=1.7, bias_var=0.3, generator=generator(0), dtype=torch.float64)
    x = torch.randn(4, 5, generator=generator(1), dtype=torch.float64)
    expected = math.sqrt(1.7 / 5) * x @ layer.weight.T + math.sqrt(0.3) * layer.bias
    torch.testing.assert_close(layer(x), expected, rtol=1e-14, atol=1e-14)
    assert ScaledLinear(5, 3).bias is None
    assert repr(layer) == "ScaledLinear(5, 3, weight_var=1.7, bias_var=0.3)"


def theory_variance(name: str, depth: int, weight_var: float, bias_var: float, mean_square: float) -> float:
    """q⁺ = σ_w²·E φ(√q z)²/E φ(z)² + σ_b², from q = σ_w²·|x|²/n₀ + σ_b²: [P1] App. A."""
    q = weight_var * mean_square + bias_var
    for _ in range(depth):
        q = weight_var * moments(name, variance=q).second / moments(name).second + bias_var
    return q


def output_moment(name: str, depth: int, **variances: float) -> tuple[float, float]:
    """Mean of f(x)² over 80000 independent networks, for one x of mean square 1.2, and its standard error.

    The networks are one network with every parameter drawn anew from N(0, 1), which is what the test above finds
    the builder to draw.
    """
    f = MLP(6, 8, width=24, depth=depth, activation=name, parametrization="ntk", **variances)
    x, g, values = torch.full((6,), math.sqrt(1.2)), generator(depth), []
    with torch.no_grad():
        for _ in range(8):
            draws = {k: torch.randn(10_000, *p.shape, generator=g) for k, p in f.named_parameters()}
            outputs = torch.func.vmap(lambda w: torch.func.functional_call(f, w, (x,)))(draws)
            values.append(outputs.square().mean(-1).double())
    v = torch.cat(values)
    return float(v.mean()), float(v.std()) / math.sqrt(len(v))


@pytest.mark.full
@pytest.mark.parametrize(
    # At depth one, and for the homogeneous relu at any depth, the formula is exact at finite width.
    ("name", "depth"),
    [("relu", 1), ("gelu", 1), ("tanh", 1), ("relu", 2)],
)
def test_output_variance_in_the_ntk_parametrization(name, depth):
    """Within 5 standard errors, which are less than 2%."""
    weight_var, bias_var = 1.3, 0.2
    mean, error = output_moment(name, depth, weight_var=weight_var, bias_var=bias_var)
    theory = theory_variance(name, depth, weight_var, bias_var, mean_square=1.2)
    assert abs(mean - theory) < 5 * error
    assert 5 * error < 0.02 * theory
    for wrong in (
        theory_variance(name, depth, weight_var, 1.2 * bias_var, mean_square=1.2),
        theory_variance(name, depth, 1.03 * weight_var, bias_var, mean_square=1.2),
        theory_variance(name, depth - 1, weight_var, bias_var, mean_square=1.2),
    ):
        assert abs(mean - wrong) > 5 * error


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
@pytest.mark.parametrize("placement", ["first", "every", "last", (0, 2)])
@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_mean_field_norms_use_the_statistics_of_the_layer_they_follow(parametrization, placement, name):
    """Mean 0 and variance 1 behind every one of them, whatever the parametrization does to the pre-activations."""
    width = 1500
    f = MLP(
        width, None, width=width, depth=3, activation=name, norm="mean_field", placement=placement, order="post",
        parametrization=parametrization, bias_var=0.0 if parametrization == "mean_field" else 0.5,
        generator=generator(6),
    )  # fmt: skip
    h = sphere(1, width).float()
    checked = 0
    with torch.no_grad():
        for module in f:
            h = module(h)
            if isinstance(module, MeanFieldProject):
                # Fluctuations of earlier layers add to this layer's own.
                assert abs(float(h.mean())) < 10 / math.sqrt(width)
                assert abs(float(h.square().mean()) - 1.0) < 25 / math.sqrt(width)
                checked += 1
    assert checked == len(f.spec.norm_layers)


# ------------------------------------------------------------------ randomness


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_generator_decides_everything_and_nothing_else_is_touched(parametrization, norm):
    options = {"parametrization": parametrization, "norm": norm, "order": "post", "groups": 2}
    if parametrization != "mean_field":
        options["bias_var"] = 0.1
    before = torch.get_rng_state()
    first, again, other = (net(generator=generator(s), **options) for s in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before)
    for (name, p), q in zip(first.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(p, q), name
    assert not torch.equal(first[0].weight, other[0].weight)


def test_without_a_generator_the_global_one_is_used():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first = net(generator=None)
        torch.manual_seed(3)
        again = net(generator=None)
        third = net(generator=None)
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(again[0].weight, third[0].weight)


# ------------------------------------------------------------------ as a module


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
@pytest.mark.parametrize("name", ["relu", "gelu", "sin", "step"])
def test_copies_pickles_and_saved_states(parametrization, name):
    f = net(activation=name, norm="layer", parametrization=parametrization)
    x = torch.randn(5, 4, generator=generator(1))
    buffer = io.BytesIO()
    torch.save(f, buffer)
    buffer.seek(0)
    twins = [
        copy.deepcopy(f),
        pickle.loads(pickle.dumps(f)),
        torch.load(buffer, weights_only=False),
    ]
    for twin in twins:
        assert torch.equal(twin(x), f(x))
        assert twin.spec == f.spec
        assert repr(twin) == repr(f)
    other = net(activation=name, norm="layer", parametrization=parametrization, generator=generator(9))
    assert not torch.equal(other(x), f(x))
    other.load_state_dict(f.state_dict())
    assert torch.equal(other(x), f(x))
    with torch.no_grad():
        twins[0][0].weight.zero_()
    assert not torch.equal(f[0].weight, twins[0][0].weight)


@pytest.mark.parametrize("norm", NORMS[:-1], ids=str)
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_double_precision(norm, parametrization):
    f = net(
        norm=norm,
        order="post",
        norm_affine=norm != "mean_field",
        parametrization=parametrization,
        dtype=torch.float64,
    )
    assert all(p.dtype == torch.float64 for p in f.parameters())
    assert f(torch.ones(5, 4, dtype=torch.float64)).dtype == torch.float64


def test_a_slice_is_a_network_that_shares_its_weights():
    f = net()
    x = torch.ones(2, 4)
    head, tail = f[:4], f[4:]
    assert type(head) is nn.Sequential
    assert torch.equal(tail(head(x)), f(x))
    assert head[0] is f[0]
    assert f[-1] is f[len(f) - 1]
    assert list(tail.state_dict()) == ["4.weight", "6.weight"]


def test_layers_do_not_share_a_module_that_is_passed_in():
    prelu = nn.PReLU().double()
    for parametrization in ("standard", "ntk"):
        f = net(activation=prelu, parametrization=parametrization, dtype=torch.float64)
        assert len(list(f.parameters())) == 4 + 3
        assert all(p is not prelu.weight for p in f.parameters())
    assert len({id(m) for m in net(activation=nn.ReLU())}) == 7


def test_native_activations():
    for name, kind in (("gelu", nn.GELU), ("silu", nn.SiLU), ("tanh", nn.Tanh), ("leaky_relu", nn.LeakyReLU)):
        assert type(net(activation=name)[1]) is kind
    assert type(net(activation="sin")[1]) is Elementwise


def test_the_spec_is_plain_data():
    f = net(activation=nn.LeakyReLU(0.2), norm="grouped", groups=3, placement=(2, 0), bias_var=0.1)
    spec = dataclasses.asdict(f.spec)
    assert json.loads(json.dumps(spec)) is not None
    assert spec["activation"] == "leaky_relu"
    assert spec["activation_parameters"] == (("negative_slope", 0.2),)
    assert (spec["groups"], spec["norm_layers"], spec["bias_var"]) == (3, (0, 2), 0.1)


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width >= 1.*width=0"),
        ({"depth": 0}, "depth >= 1.*depth=0"),
        ({"placement": "third"}, "one of none, first, second, last, every.*'third'"),
        ({"placement": "third", "norm": "layer"}, "'third'"),
        ({"placement": (3,), "norm": "layer"}, r"0 to 2 here.*\[3\]"),
        ({"placement": (-1,), "norm": "layer"}, r"\[-1\]"),
        ({"placement": "second", "depth": 1, "norm": "layer"}, "hidden layer, 0 to 0"),
        ({"order": "middle"}, "'pre' or 'post'.*'middle'"),
        ({"parametrization": "kaiming"}, "'standard', 'ntk' or 'mean_field'.*'kaiming'"),
        ({"parametrization": "mean_field", "bias_var": 0.1}, "no bias"),
        ({"parametrization": "mean_field", "weight_var": 2.0}, "1/fan_in"),
        ({"norm": "mean_field"}, "order='post'"),
        ({"norm": "mean_field", "order": "post", "norm_affine": True}, "norm_affine=False"),
        ({"norm": "instance"}, "layer, rms, batch, grouped, mean_field.*'instance'"),
        ({"norm": "instance", "placement": "none"}, "'instance'"),
        ({"norm": "grouped", "groups": 4}, "4 does not divide 6"),
        ({"weight_var": 0.0}, "weight_var > 0"),
        ({"weight_var": math.nan}, "weight_var > 0"),
        ({"bias_var": -0.1}, "bias_var >= 0"),
        ({"bias_var": math.inf}, "finite"),
    ],
)
def test_errors_teach(options, message):
    with as_users_run_it(), pytest.raises(InvalidValueError, match=message):
        net(**options)


def test_more_errors():
    with pytest.raises(UnknownNameError, match="Did you mean 'relu'"):
        net(activation="rellu")
    with pytest.raises(InvalidValueError, match="in_features=0"):
        MLP(0, 1, width=2, depth=1)
    with pytest.raises(InvalidValueError, match="out_features=0"):
        MLP(1, 0, width=2, depth=1)
    with pytest.raises(InvalidValueError, match="bias_var >= 0"):
        ScaledLinear(2, 2, bias_var=-1.0)
