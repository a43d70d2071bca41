"""Each layer's map of the state against its formula; what is refused, and how."""

import math
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from farfield import kernels
from farfield.errors import InvalidValueError
from farfield.kernels import (
    Activate,
    Dense,
    Identity,
    KernelState,
    Layer,
    LayerNorm,
    NetworkKernel,
    Residual,
    RMSNorm,
    from_module,
)
from farfield.nn import MLP, Elementwise, GroupedLayerNorm, ScaledLinear
from kernels.finite_networks import PHI

X = torch.tensor([[1.0, 0.3, -0.5], [0.2, 1.4, 0.4], [-0.9, -0.2, 0.6]], dtype=torch.float64)


def _state(*, gaussian: bool = True) -> KernelState:
    """Two inputs by three, nothing special about any of them."""
    theta = torch.tensor([[0.2, 1.0, 2.9], [0.5, 1.7, 3.1]], dtype=torch.float64)
    q1 = torch.tensor([[0.7], [2.0]], dtype=torch.float64)
    q2 = torch.tensor([[0.4, 1.0, 3.0]], dtype=torch.float64)
    ntk = torch.tensor([[1.0, 0.5, -0.3], [2.0, -1.0, 0.1]], dtype=torch.float64)
    return KernelState(theta, q1, q2, ntk, gaussian=gaussian)


def _same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.expand_as(b), b, rtol=1e-13, atol=1e-13)


# ------------------------------------------------------------------ formulas


@pytest.mark.parametrize(("w", "b"), [(1.0, 0.0), (0.3, 2.0), (2.0, 1e-6)])
def test_dense(w, b):
    before = _state(gaussian=False)
    after = Dense(w, b)(before)
    _same(after.nngp, w * before.nngp + b)
    _same(after.ntk, w * before.nngp + b + w * before.ntk)
    _same(after.q1, w * before.q1 + b)
    _same(after.q2, w * before.q2 + b)
    assert after.gaussian


def test_dense_of_a_perfect_pair():
    """K = s and different lengths: a bias opens an angle that is right to its last digits."""
    q1, q2 = (torch.tensor(v, dtype=torch.float64) for v in (1.0, 1.0 + 1e-7))
    state = KernelState(torch.zeros((), dtype=torch.float64), q1, q2)
    theta = float(Dense(1.0, 0.5)(state).theta)
    # tan θ = |√(a₁b) − √(a₂b)|/(√(a₁a₂) + b)
    assert theta == pytest.approx(math.sqrt(0.5) * (math.sqrt(1 + 1e-7) - 1) / 1.5, rel=1e-6)


def _ramp(state: KernelState, left: float) -> tuple[Tensor, Tensor]:
    """E φφ′ and E φ̇φ̇′ of x₊ − left·(−x)₊, by the arc-cosine formulas."""
    theta, s = state.theta, torch.sqrt(state.q1 * state.q2)

    def half(t: Tensor) -> Tensor:
        return (torch.sin(t) + (math.pi - t) * torch.cos(t)) / (2 * math.pi)

    value = s * ((1 + left**2) * half(theta) - 2 * left * half(math.pi - theta))
    return value, ((1 + left**2) * (math.pi - theta) + 2 * left * theta) / (2 * math.pi)


@pytest.mark.parametrize(
    ("name", "left"), [("relu", 0.0), ("abs", -1.0), ("leaky_relu", 0.01), ("identity", 1.0)]
)
@pytest.mark.parametrize("scale", [None, 1.0, -0.7])
def test_activate(name, left, scale):
    before = _state()
    after = Activate(name, scale)(before)
    value, slope = _ramp(before, left)
    c = 2 / (1 + left**2) if scale is None else scale**2
    _same(after.nngp, c * value)
    _same(after.ntk, c * slope * before.ntk)
    _same(after.q1, c * (1 + left**2) / 2 * before.q1)
    sign = -1.0 if scale is not None and scale < 0 else 1.0
    _same(
        torch.as_tensor(after.mean1).expand_as(before.q1),
        sign * math.sqrt(c) * (1 - left) * torch.sqrt(before.q1 / (2 * math.pi)),
    )
    assert not after.gaussian


@pytest.mark.full
@pytest.mark.parametrize("name", PHI)
def test_activate_against_a_million_gaussians(name):
    """Value, slope and mean of every activation of the Monte Carlo tests, from plain samples."""
    value, derivative, second = PHI[name]
    generator = torch.Generator().manual_seed(0)
    q1, q2, theta = 0.6, 1.7, 1.1
    u = torch.randn(2, 1_000_000, generator=generator, dtype=torch.float64)
    x = math.sqrt(q1) * u[0]
    y = math.sqrt(q2) * (math.cos(theta) * u[0] + math.sin(theta) * u[1])
    one = torch.ones(1, 1, dtype=torch.float64)
    after = Activate(name)(KernelState(theta * one, q1 * one, q2 * one, one, gaussian=True))
    for ours, samples in (
        (after.nngp, value(x) * value(y) / second),
        (after.ntk, derivative(x) * derivative(y) / second),
        (torch.as_tensor(after.mean1), value(x) / math.sqrt(second)),
        (torch.as_tensor(after.mean2), value(y) / math.sqrt(second)),
        (after.q2, value(y) ** 2 / second),
    ):
        error = float(samples.std()) / 1e3 + 1e-12
        assert abs(float(ours) - float(samples.mean())) < 5 * error


@pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm()])
def test_norm_before_an_activation(norm):
    before = _state()
    after = norm(before)
    s = torch.sqrt(before.q1 * before.q2)
    _same(after.nngp, before.nngp / s)
    _same(after.ntk, before.ntk / s)
    assert after.gaussian
    assert after.common


@pytest.mark.parametrize(("name", "left"), [("relu", 0.0), ("abs", -1.0), ("leaky_relu", 0.01)])
def test_layer_norm_after_an_activation(name, left):
    before = _state()
    after = LayerNorm()(Activate(name)(before))
    value, slope = _ramp(before, left)
    m = (1 - left) * torch.sqrt(torch.tensor(1 / (2 * math.pi), dtype=torch.float64))
    mean = m * torch.sqrt(before.q1), m * torch.sqrt(before.q2)
    spread = [(1 + left**2) / 2 * q - a * a for q, a in zip((before.q1, before.q2), mean, strict=True)]
    _same(after.nngp, (value - mean[0] * mean[1]) / torch.sqrt(spread[0] * spread[1]))
    _same(after.ntk, slope * before.ntk / torch.sqrt(spread[0] * spread[1]))
    assert after.common


def test_layer_norm_after_relu_as_the_theory_prints_it():
    """With c = 2: m = √(q/π), v = q(1 − 1/π)."""
    before = _state()
    relu = Activate("relu")(before)
    after = LayerNorm()(relu)
    mean = torch.sqrt(before.q1 / math.pi) * torch.sqrt(before.q2 / math.pi)
    size = torch.sqrt(before.q1 * before.q2) * (1 - 1 / math.pi)
    _same(after.nngp, (relu.nngp - mean) / size)


def test_layer_norm_where_means_differ():
    """gelu: mean and spread are no powers of the variance; (K − mm′)/√(vv′) directly."""
    before = _state()
    features = Activate("gelu")(before)
    after = LayerNorm()(features)
    m1, m2 = torch.as_tensor(features.mean1), torch.as_tensor(features.mean2)
    v1, v2 = features.q1 - m1**2, features.q2 - m2**2
    _same(after.nngp, (features.nngp - m1 * m2) / torch.sqrt(v1 * v2))
    _same(after.ntk, features.ntk / torch.sqrt(v1 * v2))


def test_rms_norm_after_an_activation_keeps_the_mean():
    before = _state()
    features = Activate("relu")(before)
    after = RMSNorm()(features)
    _same(after.nngp, features.nngp / torch.sqrt(features.q1 * features.q2))
    _same(
        torch.as_tensor(after.mean1).expand(2, 1),
        torch.full((2, 1), math.sqrt(1 / math.pi), dtype=torch.float64),
    )
    again = LayerNorm()(after)
    _same(again.nngp, LayerNorm()(features).nngp)
    _same(again.ntk, LayerNorm()(features).ntk)


def test_a_second_norm_does_nothing():
    before = _state()
    once = LayerNorm()(before)
    twice = RMSNorm()(LayerNorm()(once))
    _same(twice.nngp, once.nngp)
    _same(twice.ntk, once.ntk)


def test_identity_and_residual():
    before = _state()
    assert Identity()(before) is before
    branch = (Activate("relu"), Dense(0.7, 0.3))
    after = Residual(branch)(before)
    side = before
    for layer in branch:
        side = layer(side)
    _same(after.nngp, before.nngp + side.nngp)
    _same(after.ntk, before.ntk + side.ntk)
    _same(after.q1, before.q1 + side.q1)
    assert after.gaussian
    assert not Residual((Dense(),))(_state(gaussian=False)).gaussian


@pytest.mark.full
def test_residual_against_finite_networks():
    """x ↦ z₁ + W₂φ(LN(z₁)) → LN → φ → readout, two thousand of them."""
    width, count, generator = 512, 400, torch.Generator().manual_seed(0)
    x = X.float()
    layers = (
        Dense(1.2, 0.1), Residual((LayerNorm(), Activate("relu"), Dense(0.8, 0.2))), LayerNorm(), Activate("relu"),
        Dense(1.0, 0.1),
    )  # fmt: skip
    k = NetworkKernel(layers)
    covariances, tangents = [], []

    def norm(z: Tensor) -> Tensor:
        z = z - z.mean(-1, keepdim=True)
        return z / z.square().mean(-1, keepdim=True).sqrt()

    for _ in range(count // 50):
        w1, b1 = (torch.randn(50, *s, generator=generator) for s in ((3, width), (1, width)))
        w2, b2 = (torch.randn(50, *s, generator=generator) for s in ((width, width), (1, width)))
        v = torch.randn(50, 1, width, generator=generator)
        z1 = (math.sqrt(1.2 / 3) * x @ w1 + math.sqrt(0.1) * b1).requires_grad_()
        below = 2**0.5 * norm(z1).relu()
        z2 = math.sqrt(0.8 / width) * below @ w2 + math.sqrt(0.2) * b2
        top = 2**0.5 * norm(z1 + z2).relu()
        out = (v * top).sum() / math.sqrt(width)
        g1, g2 = torch.autograd.grad(out, (z1, z2))
        covariance = (top @ top.mT / width + 0.1).detach()
        covariances.append(covariance)
        first, second = 1.2 * x @ x.T / 3 + 0.1, (0.8 * below @ below.mT / width + 0.2).detach()
        tangents.append(covariance + first * (g1 @ g1.mT) + second * (g2 @ g2.mT))
    for draws, truth in ((covariances, k.nngp(X)), (tangents, k.ntk(X))):
        all_draws = torch.cat(draws).double()
        error = all_draws.std(0) / math.sqrt(count) + 1e-5
        # Beyond chance, the bias of a finite width: a few in 512.
        assert ((all_draws.mean(0) - truth).abs() < 5 * error + 0.01 * truth.max()).all()
        assert not ((all_draws.mean(0) - 1.1 * truth).abs() < 5 * error + 0.01 * truth.max()).all()


def test_flatten_in_the_middle_changes_nothing():
    plain = NetworkKernel((Dense(1.0, 0.1), LayerNorm(), Activate("relu"), Dense()))
    padded = NetworkKernel(
        (
            Identity(),
            Dense(1.0, 0.1),
            Identity(),
            LayerNorm(),
            Identity(),
            Activate("relu"),
            Dense(),
            Identity(),
        )
    )
    assert torch.equal(plain.ntk(X), padded.ntk(X))


def test_two_dense_layers_in_a_row():
    """A linear network: Θ is the sum over its layers."""
    k = NetworkKernel((Dense(2.0, 0.1), Dense(0.5, 0.3)))
    first = 2.0 * X @ X.T / 3 + 0.1
    torch.testing.assert_close(k.nngp(X), 0.5 * first + 0.3, rtol=1e-13, atol=0)
    torch.testing.assert_close(k.ntk(X), 0.5 * first + 0.3 + 0.5 * first, rtol=1e-13, atol=0)


def test_one_dense_layer():
    k = NetworkKernel((Dense(2.0, 0.1),))
    torch.testing.assert_close(k.nngp(X), 2.0 * X @ X.T / 3 + 0.1, rtol=1e-12, atol=0)
    torch.testing.assert_close(k.ntk(X), 2.0 * X @ X.T / 3 + 0.1, rtol=1e-12, atol=0)


def test_raw_norms_are_maps_of_the_inputs():
    centered = X - X.mean(-1, keepdim=True)
    mapped = centered / centered.square().mean(-1, keepdim=True).sqrt()
    rest = (Dense(1.0, 0.1), Activate("relu"), Dense(1.0, 0.1))
    torch.testing.assert_close(
        NetworkKernel((LayerNorm(), *rest)).ntk(X), NetworkKernel(rest).ntk(mapped), rtol=1e-13, atol=0
    )
    scaled = X / X.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(
        NetworkKernel((RMSNorm(), *rest)).ntk(X), NetworkKernel(rest).ntk(scaled), rtol=1e-13, atol=0
    )
    constant = torch.full((1, 3), 0.1, dtype=torch.float64)
    assert torch.equal(
        NetworkKernel((LayerNorm(), *rest)).ntk(constant), NetworkKernel(rest).ntk(0 * constant)
    )
    huge = NetworkKernel((LayerNorm(), *rest)).ntk(1e300 * X)
    torch.testing.assert_close(huge, NetworkKernel((LayerNorm(), *rest)).ntk(X), rtol=1e-13, atol=0)


def test_jumps_have_a_covariance_only():
    k = kernels.mlp(depth=1, activation="step", bias_var=0.1)
    theta = torch.arccos((X @ X.T / 3 + 0.1) / torch.sqrt(torch.outer(*(2 * ((X * X).sum(-1) / 3 + 0.1,)))))
    off = ~torch.eye(3, dtype=torch.bool)
    expected = 2 * (0.5 - theta / (2 * math.pi)) + 0.1
    torch.testing.assert_close(k.nngp(X)[off], expected[off], rtol=1e-12, atol=0)
    with pytest.raises(Exception, match="jumps"):
        k.ntk(X)
    with pytest.raises(Exception, match="jumps"):
        k.diagonal(X)


# ------------------------------------------------------------------ refusals


def test_an_activation_needs_gaussians_below_it():
    for layers in (
        (Dense(), Activate("relu"), Activate("relu"), Dense()),
        (Dense(), Activate("relu"), LayerNorm(), Activate("relu"), Dense()),
        (Dense(), Activate("relu"), Residual((Dense(),)), Activate("relu"), Dense()),
    ):
        with pytest.raises(Exception, match="Put a Dense layer before it"):
            NetworkKernel(layers).ntk(X)
    with pytest.raises(InvalidValueError, match="put a Dense layer before it"):
        NetworkKernel((Activate("relu"), Dense()))


def test_a_network_needs_a_dense_layer():
    for layers in ((), (LayerNorm(),), (Identity(), RMSNorm())):
        with pytest.raises(InvalidValueError, match="Dense layer"):
            NetworkKernel(layers)


@pytest.mark.parametrize(
    "branch",
    [(), (Activate("relu"),), (Dense(), Activate("relu")), (LayerNorm(),), (Residual((Dense(),)),)],
    ids=str,
)
def test_a_branch_ends_in_a_dense_layer(branch: tuple[Layer, ...]):
    with pytest.raises(InvalidValueError, match="residual branch ends in a Dense layer"):
        Residual(branch)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0.0), "weight_var is finite and > 0"),
        ((-1.0, 0.0), "weight_var"),
        ((math.inf, 0.0), "weight_var"),
        ((1.0, -0.1), "bias_var is finite and >= 0"),
        ((1.0, math.nan), "bias_var"),
        ((torch.ones(2), 0.0), "one number"),
    ],
)
def test_variances_are_checked(arguments, message):
    with pytest.raises(InvalidValueError, match=message):
        Dense(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "at least one hidden layer"),
        ({"depth": 2, "layer_norm": [2]}, "0 to 1 here"),
        ({"depth": 1, "layer_norm": "second"}, "0 to 0 here"),
    ],
)
def test_perceptrons_are_checked(options, message):
    with pytest.raises(InvalidValueError, match=message):
        kernels.mlp(**options)


def test_inputs_are_checked():
    k = kernels.mlp(depth=1)
    # Through the function, whose arguments the shape checks of the tests do not see first.
    with pytest.raises(InvalidValueError, match="same features"):
        k._matrix("ntk", X, X[:, :2], "auto", "1GB", None, None, None)
    with pytest.raises(InvalidValueError, match="floating-point"):
        k._rows(torch.ones(2, 2, dtype=torch.long))
    with pytest.raises(InvalidValueError, match="floating-point"):
        k._rows(X[0])
    with pytest.raises(InvalidValueError, match="scale is finite and not 0"):
        Activate("relu", 0.0)
    with pytest.raises(InvalidValueError, match="Nothing is a function of the angle alone"):
        kernels.mlp(depth=2, bias_var=0.1).table("ntk")


def test_raw_norms_of_few_features():
    rest = (Dense(1.0, 0.1), Activate("relu"), Dense())
    with pytest.raises(InvalidValueError, match="one input feature"):
        NetworkKernel((LayerNorm(), *rest)).ntk(X[:, :1])
    for norm, features in ((LayerNorm(), 2), (RMSNorm(), 1)):
        with pytest.warns(UserWarning, match="keeps only a sign"):
            NetworkKernel((norm, *rest)).diagonal(X[:, :features])


def test_the_slope_at_infinity_is_refused_where_unknown():
    with pytest.raises(InvalidValueError, match="slope at infinity is known for"):
        kernels.mlp(depth=1, activation="relu_squared").slope(X, X)
    with pytest.raises(InvalidValueError, match="residual"):
        NetworkKernel((Dense(), Residual((Activate("relu"), Dense())), Dense())).slope(X, X)


# ------------------------------------------------------------------ from modules


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("place", ["none", "first", "every"])
def test_a_library_network_has_the_kernel_of_its_settings(place, order):
    net = MLP(
        3, 1, width=8, depth=2, norm="layer", placement=place, order=order, parametrization="ntk", bias_var=0.1,
        weight_var=1.4,
    )  # fmt: skip
    where = None if place == "none" else place
    k = kernels.mlp(depth=2, layer_norm=where, order=order, weight_var=1.4, bias_var=0.1)
    for module in (net, nn.Sequential(nn.Identity(), net)):
        torch.testing.assert_close(from_module(module).ntk(X), k.ntk(X), rtol=1e-12, atol=1e-12)


def test_a_standard_network_keeps_its_covariance():
    net = MLP(3, 1, width=8, depth=2, norm="layer", placement="second", bias_var=0.1)
    k = kernels.mlp(depth=2, layer_norm="second", bias_var=0.1)
    torch.testing.assert_close(from_module(net).nngp(X), k.nngp(X), rtol=1e-12, atol=0)


def test_a_plain_sequential():
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(3, 8), nn.LayerNorm(8, elementwise_affine=False), nn.GELU(), nn.Dropout(0.5),
        nn.Linear(8, 8, bias=False), Elementwise("abs", scale=-0.5), nn.RMSNorm(8, elementwise_affine=False),
        ScaledLinear(8, 1, weight_var=0.3, bias_var=0.2),
    ).eval()  # fmt: skip
    layers = (
        Dense(2.0, 0.1), LayerNorm(), Activate("gelu", 1.0), Dense(2.0, 0.0), Activate("abs", -0.5), RMSNorm(),
        Dense(0.3, 0.2),
    )  # fmt: skip
    assert torch.equal(from_module(net, weight_var=2.0, bias_var=0.1).ntk(X), NetworkKernel(layers).ntk(X))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.Conv1d(1, 1, 1)), "1 is a Conv1d"),
        (nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4))), r"1\.0 is a BatchNorm1d"),
        (nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1)), "1 is dropout in training mode"),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 4)), "Sequential has no kernel"),
        (nn.Sequential(nn.Linear(3, 4), nn.Softmax(-1)), "1 is a Softmax"),
    ],
)
def test_modules_without_a_kernel_are_named(module, message):
    with pytest.raises(InvalidValueError, match=message):
        from_module(module, weight_var=1.0, bias_var=0.1)


def test_a_linear_layer_is_as_torch_draws_it():
    """1/(3 fan_in), weights and biases: measured on torch's own draws, whatever its initialization is made of."""
    net = nn.Sequential(nn.Linear(3, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 1, bias=False))
    k = from_module(net)
    assert k.layers == (Dense(1 / 3, 1 / 9), LayerNorm(), Activate("relu", 1.0), Dense(1 / 3, 0.0))
    assert "drawn by torch" in str(k) and any("scale 1 and shift 0" in said for said in k.assumed)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weights, biases = zip(
            *((m.weight, m.bias) for m in (nn.Linear(16, 4096) for _ in range(4))), strict=True
        )
    for drawn in (weights, biases):
        found = float(torch.stack(drawn).detach().double().square().mean())
        assert found == pytest.approx(1 / 48, rel=0.03)
    assert from_module(net, weight_var=2.0, bias_var=0.1).layers[0] == Dense(2.0, 0.1)
    assert len(pickle.loads(pickle.dumps(k)).assumed) == 2 and k == NetworkKernel(k.layers)
    with pytest.raises(InvalidValueError, match="or neither for torch's own"):
        from_module(net, weight_var=2.0)


@pytest.mark.full
def test_the_kernel_is_the_covariance_of_torchs_draws():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(
            nn.Linear(3, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
        )
        net = net.double()
        outputs = []
        for _ in range(600):
            for module in net:
                if isinstance(module, nn.Linear):
                    module.reset_parameters()
            outputs.append(net(X).detach()[:, 0])
    drawn = torch.stack(outputs)
    found, expected = drawn.T @ drawn / len(drawn), from_module(net).nngp(X)
    size = expected.diagonal().sqrt()
    # 600 draws know an entry to √(2/600) = 6 % of it, one deviation.
    assert ((found - expected).abs() <= 0.25 * torch.outer(size, size)).all()


def test_weights_that_torch_does_not_draw_are_said():
    net = nn.Sequential(nn.Linear(30, 50), nn.ReLU(), nn.Linear(50, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_module(net)
    nn.init.kaiming_normal_(net[0].weight)
    with pytest.warns(UserWarning, match="The weights of 0 are not as torch draws them"):
        from_module(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_module(net, weight_var=2.0, bias_var=0.0)


class Written(nn.Module):
    """As people write one."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(3, 8), nn.LayerNorm(8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x.flatten(1))))
        x = F.leaky_relu(self.body(x), 0.3)
        return self.head(F.dropout(x, training=False).sigmoid())


def test_a_forward_that_calls_one_layer_after_the_other():
    k = from_module(nn.Sequential(nn.Identity(), Written()), weight_var=1.0, bias_var=0.1)
    kinds = [type(layer) for layer in k.layers]
    assert kinds == [
        Identity,
        Identity,
        Dense,
        LayerNorm,
        Activate,
        Dense,
        Activate,
        Activate,
        Identity,
        Activate,
        Dense,
    ]
    names = [layer.sigma.name for layer in k.layers if isinstance(layer, Activate)]
    assert names[:2] == ["relu", "tanh"] and names[3] == "sigmoid"
    z = torch.tensor([-2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(k.layers[7].sigma(z), F.leaky_relu(z, 0.3))


AFTER = "does not call one layer after the other: "


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda self, x: x + self.first(x), AFTER + "add takes something else"),
        (lambda self, x: (self.first(x), self.body(self.first(x)))[0], AFTER),
        (lambda self, x: [h := self.first(x), self.body(h)], AFTER + "output"),
        (lambda self, x: {"y": self.head(self.first(x))}, AFTER + "output"),
        (lambda self, x: [h := self.first(x), self.body(h)][0], AFTER + "output"),
        (lambda self, x: self.head(self.first(x)) * 2, "calls mul, which is no activation"),
        (lambda self, x: torch.softmax(self.first(x), -1), "calls softmax, which is no activation"),
        (lambda self, x: self.head(self.first(x).t()), "calls t, which is no activation"),
        (lambda self, x: self.head(torch.flatten(self.first(x))), "calls flatten, which is no activation"),
        (lambda self, x: self.head(self.first(x).squeeze()), "calls squeeze, which is no activation"),
        (lambda self, x: self.head(self.body(self.first(x), 5.0)), AFTER),
        (lambda self, x: self.first(x) if x.sum() > 0 else x, "its forward can't be followed"),
    ],
)
def test_forwards_without_a_kernel_say_why(forward, message):
    made = type("Odd", (Written,), {"forward": forward})()
    with pytest.raises(InvalidValueError, match=f"^Odd:? {message}"):
        from_module(made)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Skipped(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def hooked():
    made = nn.Linear(3, 8)
    made.register_forward_hook(lambda module, given, output: 2 * output)
    return made


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(Doubled(3, 8)), "0 is a Doubled with a forward of its own"),
        (Skipped(nn.Linear(3, 3)), "is a Skipped with a forward of its own"),
        (nn.Sequential(hooked()), "0 is a Linear with hooks"),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))), "with parametrizations"),
        (nn.Sequential(GroupedLayerNorm(4, 2), nn.Linear(4, 1)), "0 normalizes the inputs in groups"),
        (nn.Sequential(nn.Linear(3, 3), nn.Flatten(0)), "1 is a Flatten"),
    ],
)
def test_what_a_type_does_not_show_is_refused(module, message):
    with pytest.raises(InvalidValueError, match=message):
        from_module(module)


def test_functions_with_settings_are_torchs_activations():
    def forward(self, x):
        x = F.elu(F.leaky_relu(self.first(x), 0.3), alpha=0.5)
        return self.head(F.gelu(x, approximate="tanh").relu_())

    made = type("Odd", (Written,), {"forward": forward})()
    k = from_module(made)
    found = [(a.sigma.name, a.sigma.parameters) for a in k.layers if isinstance(a, Activate)]
    assert [name for name, _ in found] == ["leaky_relu", "elu", "gelu_tanh", "relu"]
    assert found[0][1] == (("negative_slope", 0.3),) and k == from_module(made)


def test_a_trained_norm_is_said():
    net = nn.Sequential(nn.Linear(30, 50), nn.LayerNorm(50), nn.ReLU(), nn.Linear(50, 1))
    nn.init.constant_(net[1].weight, 5.0)
    with pytest.warns(UserWarning, match="The weights of 1 are not as torch draws them"):
        from_module(net)


def test_layers_are_values():
    for layer in (
        Dense(1.0, 0.5),
        Activate("gelu"),
        LayerNorm(),
        RMSNorm(),
        Residual((Dense(),)),
        Identity(),
    ):
        assert pickle.loads(pickle.dumps(layer)) == layer
        with pytest.raises(AttributeError):
            layer.weight_var = 2.0


def test_a_norm_behind_an_odd_activation_keeps_opposites_apart():
    """θ = π − δ: the chord to the opposite is a sum of small terms, never a difference of large ones."""
    delta = torch.tensor([[1e-9, 1e-7, 1e-5, 1e-3]], dtype=torch.float64)
    q1, q2 = torch.tensor([[0.7]], dtype=torch.float64), torch.tensor([[2.0]], dtype=torch.float64)
    before = KernelState(math.pi - delta, q1, q2, gaussian=False)
    after = math.pi - LayerNorm()(before).theta
    torch.testing.assert_close(after, delta, rtol=0, atol=1e-15)
