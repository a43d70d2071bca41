"""Activations as modules: torch's own where there is one, everything else by value, copies and pickles."""

import copy
import pickle

import pytest
import torch
from torch import nn

from farfield.gaussian import _registry as registry
from farfield.gaussian import activation, activation_names, isometry_strength, register_activation
from farfield.nn import MLP, Elementwise, activation_module
from gram_samples import generator

X = torch.linspace(-4.0, 4.0, 41, dtype=torch.float64)

NATIVE = {
    "identity": nn.Identity, "relu": nn.ReLU, "relu6": nn.ReLU6, "leaky_relu": nn.LeakyReLU, "elu": nn.ELU,
    "celu": nn.CELU, "selu": nn.SELU, "gelu": nn.GELU, "gelu_tanh": nn.GELU, "silu": nn.SiLU, "mish": nn.Mish,
    "softplus": nn.Softplus, "softsign": nn.Softsign, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid,
    "logsigmoid": nn.LogSigmoid, "tanhshrink": nn.Tanhshrink, "hardtanh": nn.Hardtanh,
    "hardsigmoid": nn.Hardsigmoid, "hardswish": nn.Hardswish,
}  # fmt: skip


def bent(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) - 0.3 * torch.relu(-x - 1.0)


def relu(x: torch.Tensor) -> torch.Tensor:
    """Somebody's own function of that name, which is not ReLU."""
    return torch.tanh(x)


class Unhashable:
    """A callable that no cache can hold."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(2.0 * x)


@pytest.mark.parametrize("name", activation_names())
def test_the_module_computes_the_activation(name):
    module = activation_module(name)
    torch.testing.assert_close(module(X), activation(name)(X), rtol=1e-8, atol=1e-9)
    assert type(module) is NATIVE.get(name, Elementwise)
    assert activation(module).name == name or isinstance(module, Elementwise)


@pytest.mark.parametrize(
    ("sigma", "expected"),
    [
        (activation("leaky_relu", negative_slope=0.2), nn.LeakyReLU(0.2)),
        (activation("elu", alpha=0.7), nn.ELU(0.7)),
        (activation("celu", alpha=2.0), nn.CELU(2.0)),
        (activation("hardtanh", low=-2.0, high=0.5), nn.Hardtanh(-2.0, 0.5)),
        (activation("gelu_tanh"), nn.GELU(approximate="tanh")),
        (torch.tanh, nn.Tanh()),
        (nn.functional.gelu, nn.GELU()),
    ],
)
def test_parameters_reach_torchs_module(sigma, expected):
    module = activation_module(sigma)
    assert repr(module) == repr(expected)
    assert torch.equal(module(X), expected(X))


def test_a_callable_called_relu_is_not_relu():
    """A name is no proof: this silently became nn.ReLU once."""
    module = activation_module(relu)
    assert isinstance(module, Elementwise)
    assert torch.equal(module(X), torch.tanh(X))
    net = MLP(1, 1, width=3, depth=1, activation=relu, generator=generator(0), dtype=torch.float64)
    assert torch.equal(net[1](X), torch.tanh(X))


def test_a_module_is_returned_as_it_is_and_elementwise_scales():
    module = nn.PReLU().double()
    assert activation_module(module) is module
    scaled = Elementwise("sin", scale=1.5)
    assert torch.equal(scaled(X), 1.5 * torch.sin(X))
    assert repr(scaled) == "Elementwise(sin, scale=1.5)"
    assert repr(Elementwise("sin")) == "Elementwise(sin)"


def test_parameters_of_a_wrapped_module_are_learned_moved_and_saved():
    prelu = nn.PReLU(init=0.1).double()
    module = Elementwise(prelu, scale=2.0)
    assert list(module.state_dict()) == ["function.weight"]
    assert len(list(module.parameters())) == 1
    twin = copy.deepcopy(module)
    minus_one = torch.tensor([-1.0], dtype=torch.float64)
    with torch.no_grad():
        twin.function.weight.fill_(0.9)
        assert float(prelu.weight) == pytest.approx(0.1)
        assert float(twin(minus_one)) == pytest.approx(-1.8)
        assert float(module(minus_one)) == pytest.approx(-0.2)


def test_sigma_describes_a_wrapped_module_as_it_was():
    module = Elementwise(nn.PReLU(init=0.25).double())
    with torch.no_grad():
        module.function.weight.fill_(0.9)
    before, after = (isometry_strength(activation("leaky_relu", negative_slope=a)) for a in (0.25, 0.9))
    assert isometry_strength(module.sigma) == pytest.approx(before, abs=1e-12)
    assert isometry_strength(module.function) == pytest.approx(after, abs=1e-12)


# ------------------------------------------------------------------ copies and pickles


@pytest.mark.parametrize("name", activation_names())
def test_a_registered_activation_is_pickled_by_name(name):
    sigma = activation(name)
    again = pickle.loads(pickle.dumps(sigma))
    assert again is sigma
    assert len(pickle.dumps(sigma)) < 300
    assert copy.deepcopy(sigma) is sigma
    assert copy.copy(sigma) is sigma
    module = Elementwise(sigma, scale=0.5)
    for twin in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert torch.equal(twin(X), module(X))
        assert twin.sigma == sigma


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("leaky_relu", {"negative_slope": 0.3}),
        ("hardtanh", {"low": -2.0, "high": 1.0}),
        ("power_relu", {"n": 3.0}),
    ],
)
def test_parameters_survive_a_pickle(name, parameters):
    sigma = activation(name, **parameters)
    again = pickle.loads(pickle.dumps(sigma))
    assert again == sigma
    assert again.parameters == sigma.parameters
    assert torch.equal(again(X), sigma(X))


def test_a_wrapped_function_is_pickled_with_what_was_found_out():
    sigma = activation(bent)
    again = pickle.loads(pickle.dumps(sigma))
    assert again == sigma
    assert again.kinks == (-1.0, 0.0)
    assert torch.equal(again.derivative(X), sigma.derivative(X))
    assert isometry_strength(again) == isometry_strength(sigma)
    unhashable = pickle.loads(pickle.dumps(activation(Unhashable())))
    assert torch.equal(unhashable(X), torch.sin(2 * X))
    prelu = pickle.loads(pickle.dumps(activation(nn.PReLU().double())))
    assert torch.equal(prelu(X), nn.PReLU().double()(X))


def test_an_impostor_is_not_pickled_as_its_namesake():
    again = pickle.loads(pickle.dumps(activation(relu)))
    assert torch.equal(again(X), torch.tanh(X))


def test_a_lambda_says_why_it_cannot_be_pickled():
    module = Elementwise(lambda x: torch.sin(3.0 * x))
    with pytest.raises(
        pickle.PicklingError, match=r"lambda or a local function.*register_activation.*state_dict"
    ):
        pickle.dumps(module)

    def local(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(3.0 * x)

    with pytest.raises(pickle.PicklingError, match="'local' wraps"):
        pickle.dumps(activation(local))
    # Copying is another matter: it never leaves the process.
    assert torch.equal(copy.deepcopy(module)(X), module(X))


def test_registering_makes_a_lambda_picklable(monkeypatch):
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))
    value = activation(lambda x: torch.sin(3.0 * x))
    own = type(value)(name="sin3", function=value.function, derivative=value.derivative)
    register_activation("sin3", lambda: own)
    assert pickle.loads(pickle.dumps(activation("sin3"))) is own
