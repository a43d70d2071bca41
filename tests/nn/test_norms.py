"""LayerNorm in its parts: equal to torch's, bounded for every input, and the mean-field parts as their limit."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from farfield.errors import InvalidValueError
from farfield.gaussian import activation, mean_field_constants, moments
from farfield.nn import Center, GroupedLayerNorm, LayerNorm, MeanFieldCenter, MeanFieldProject, Project
from gram_samples import generator

EPS = torch.finfo(torch.float64).eps


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


# ------------------------------------------------------------------ Project ∘ Center = LayerNorm


@pytest.mark.parametrize("norm_eps", [0.0, 1e-5, 1e-1])
@pytest.mark.parametrize("shape", [(2,), (7, 33), (3, 4, 5), (2, 1000)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_layer_norm_is_torchs(norm_eps, shape, scale):
    x = scale * (draw(*shape) + 0.5)
    theirs = nn.functional.layer_norm(x, shape[-1:], eps=norm_eps)
    torch.testing.assert_close(Project(norm_eps)(Center()(x)), theirs, rtol=1e-11, atol=1e-12)
    assert torch.equal(LayerNorm(norm_eps)(x), Project(norm_eps)(Center()(x)))
    module = nn.LayerNorm(shape[-1], eps=norm_eps, elementwise_affine=False)
    torch.testing.assert_close(LayerNorm(norm_eps)(x.float()), module(x.float()), rtol=1e-4, atol=1e-5)


def test_the_order_matters():
    """Center ∘ Project is another layer: a wrong composition would be seen."""
    x = draw(5, 8) + 2.0
    theirs = nn.functional.layer_norm(x, (8,), eps=0.0)
    assert not torch.allclose(Center()(Project()(x)), theirs, atol=0.1)
    assert not torch.allclose(Project()(x), theirs, atol=0.1)


def test_gradients_are_torchs():
    x = (draw(4, 6) + 1.0).requires_grad_()
    for norm_eps in (0.0, 1e-5):
        assert torch.autograd.gradcheck(LayerNorm(norm_eps), x)
        assert torch.autograd.gradcheck(Project(norm_eps), x)
    weights = draw(4, 6, seed=1)
    (ours,) = torch.autograd.grad((LayerNorm()(x) * weights).sum(), x)
    (theirs,) = torch.autograd.grad((nn.functional.layer_norm(x, (6,)) * weights).sum(), x)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 40), st.floats(-3, 3))
def test_center_is_the_linear_projection(seed, d, shift):
    x = draw(3, d, seed=seed) + shift
    y = Center()(x)
    P = torch.eye(d, dtype=torch.float64) - 1.0 / d
    torch.testing.assert_close(y, x @ P, rtol=0, atol=1e-13)
    assert bool((y.sum(-1).abs() < 1e-13 * d).all())
    torch.testing.assert_close(Center()(y), y, rtol=0, atol=1e-14)


# ------------------------------------------------------------------ norm bounds


@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False)
        | st.floats(-1e-300, 1e-300)
        | st.floats(-1e-320, 1e-320),
        min_size=1,
        max_size=30,
    ).filter(any),
    st.sampled_from([0.0, 1e-5, 1.0]),
)
def test_projection_is_bounded_for_every_finite_input(values, norm_eps):
    """From the smallest subnormal to the largest double: ‖Project(x)‖ ≤ √d, with equality for ε = 0."""
    x = torch.tensor(values, dtype=torch.float64)
    y = Project(norm_eps)(x)
    norm, bound = float(torch.linalg.vector_norm(y)), math.sqrt(len(values))
    assert norm <= bound * (1 + 8 * EPS)
    if norm_eps == 0.0:
        assert norm >= bound * (1 - 8 * EPS)


@pytest.mark.parametrize("exponent", [-320, -300, -160, -20, 0, 20, 160, 300])
def test_projection_keeps_the_direction_at_every_scale(exponent):
    """A first version returned inf from 1e-163 down and 0 from 1e154 up."""
    x = draw(5, seed=3)
    y = Project()(x * 10.0**exponent)
    if exponent > -310:  # below, the input itself is rounded to a few digits
        torch.testing.assert_close(y, Project()(x), rtol=1e-13, atol=0)
    assert abs(float(torch.linalg.vector_norm(y)) - math.sqrt(5)) < 1e-14
    small = Project(1e-5)(x * 10.0**exponent)
    if exponent <= -20:
        torch.testing.assert_close(small, x * 10.0**exponent / math.sqrt(1e-5), rtol=1e-12, atol=0)


def test_projection_of_zero():
    zero = torch.zeros(1, 4)
    assert bool(torch.isnan(Project()(zero)).all())
    assert torch.equal(Project(1e-5)(zero), zero)


@given(st.integers(0, 10**6), st.floats(-140, 140))
def test_layer_norm_image(seed, log_scale):
    """Zero sum, norm at most √d, entries at most √(d−1)."""
    x = draw(4, 7, seed=seed) * 10.0**log_scale
    y = LayerNorm(0.0)(x)
    assert bool((y.sum(-1).abs() < 1e-13).all())
    assert bool((torch.linalg.vector_norm(y, dim=-1) <= math.sqrt(7) * (1 + 8 * EPS)).all())
    assert bool((y.abs() <= math.sqrt(6) * (1 + 1e-12)).all())


def test_bad_epsilon():
    for bad in (-1e-5, math.nan):
        for make in (Project, LayerNorm, lambda e: GroupedLayerNorm(4, 2, norm_eps=e)):
            with pytest.raises(InvalidValueError, match="norm_eps"):
                make(bad)


# ------------------------------------------------------------------ grouped


@pytest.mark.parametrize(("d", "groups"), [(24, 6), (24, 1), (24, 12), (10, 5), (9, 3)])
@pytest.mark.parametrize("affine", [False, True])
def test_grouped_is_group_norm_in_two_dimensions(d, groups, affine):
    x = 3.0 * draw(5, d) + 1.0
    ours = GroupedLayerNorm(d, groups, elementwise_affine=affine).double()
    theirs = nn.GroupNorm(groups, d, affine=affine).double()
    if affine:
        with torch.no_grad():
            for p, q in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
                p.copy_(draw(d, seed=7))
                q.copy_(p)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-12)


def test_grouped_normalizes_per_token():
    """On (n, tokens, d) every token by itself: what GroupNorm does not do."""
    x = draw(3, 4, 12)
    layer = GroupedLayerNorm(12, 3, elementwise_affine=False)
    flat = nn.functional.group_norm(x.reshape(12, 12), 3).reshape(3, 4, 12)
    torch.testing.assert_close(layer(x), flat, rtol=1e-12, atol=1e-12)
    mixed = nn.functional.group_norm(x.mT.contiguous(), 3).mT
    assert not torch.allclose(layer(x), mixed, atol=0.1)
    assert torch.equal(layer(x)[1, 2], layer(x[1, 2]))


def test_grouped_edges():
    one_group = GroupedLayerNorm(8, 1, elementwise_affine=False, norm_eps=0.0)
    x = draw(4, 8)
    torch.testing.assert_close(one_group(x), LayerNorm(0.0)(x), rtol=1e-12, atol=1e-13)
    signs = GroupedLayerNorm(8, 4, elementwise_affine=False, norm_eps=0.0)(x)
    torch.testing.assert_close(signs.abs(), torch.ones_like(signs), rtol=1e-12, atol=0)
    with pytest.raises(InvalidValueError, match="5 does not divide 12"):
        GroupedLayerNorm(12, 5)
    with pytest.raises(InvalidValueError, match="divides"):
        GroupedLayerNorm(12, 0)
    with pytest.raises(InvalidValueError, match="one feature each"):
        GroupedLayerNorm(12, 12)


# ------------------------------------------------------------------ mean field


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh", "softplus", "exp", "step"])
@pytest.mark.parametrize("variance", [1.0, 0.5, 2.0])
def test_mean_field_constants_are_the_moments(name, variance):
    m = moments(name, variance=variance)
    x = draw(3, 4)
    centered = MeanFieldCenter(name, variance=variance)(x)
    torch.testing.assert_close(centered, x - m.mean, rtol=1e-14, atol=1e-14)
    projected = MeanFieldProject(name, variance=variance)(x)
    torch.testing.assert_close(projected, x / math.sqrt(m.variance), rtol=1e-14, atol=0)
    half = MeanFieldCenter(name, variance=variance, output_scale=0.5)
    assert half.offset == pytest.approx(0.5 * m.mean, abs=1e-16)
    assert MeanFieldProject(name, variance=variance, output_scale=0.5).scale == pytest.approx(0.5 * m.scale)


def test_mean_field_closed_forms():
    assert MeanFieldCenter("relu").offset == pytest.approx(1 / math.sqrt(2 * math.pi), rel=1e-14)
    assert MeanFieldProject("relu").scale == pytest.approx(math.sqrt(0.5 - 0.5 / math.pi), rel=1e-14)
    assert MeanFieldCenter("tanh").offset == 0.0


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3])
def test_a_constant_activation_has_no_scale(value):
    with pytest.raises(InvalidValueError, match="constant under the Gaussian"):
        MeanFieldProject(lambda x: torch.zeros_like(x) + value)


def statistics_errors(name: str, widths: tuple[int, ...], offset: float, scale: float) -> list[float]:
    """Root-mean-square difference of a layer's own mean and deviation from two constants, by width."""
    errors = []
    for width in widths:
        y = activation(name)(draw(400, width, seed=width))
        mean, deviation = y.mean(-1), y.std(-1, correction=0)
        errors.append(float(((mean - offset) ** 2 + (deviation - scale) ** 2).mean().sqrt()))
    return errors


def check_slope(name: str, offset: float, scale: float) -> None:
    widths = (32, 128, 512, 2048)
    errors = statistics_errors(name, widths, offset, scale)
    slope = math.log(errors[-1] / errors[0]) / math.log(widths[-1] / widths[0])
    assert abs(slope + 0.5) < 0.15, (name, slope)


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh", "sin", "softplus"])
def test_layer_norm_statistics_approach_the_mean_field_with_width(name):
    offset, scale = mean_field_constants(name)
    check_slope(name, offset, scale)
    with pytest.raises(AssertionError):
        check_slope(name, offset + 0.1, scale)
    with pytest.raises(AssertionError):
        check_slope(name, offset, 1.2 * scale)


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh"])
def test_mean_field_parts_approach_layer_norm(name):
    """The whole output, not only the statistics: difference from LayerNorm at slope −½."""
    parts = nn.Sequential(MeanFieldCenter(name), MeanFieldProject(name))
    errors = []
    for width in (64, 256, 1024, 4096):
        y = activation(name)(draw(100, width, seed=width + 1))
        errors.append(float((parts(y) - LayerNorm(0.0)(y)).square().mean().sqrt()))
    slope = math.log(errors[-1] / errors[0]) / math.log(64)
    assert abs(slope + 0.5) < 0.15


# ------------------------------------------------------------------ as modules

MODULES = [
    Center(),
    Project(1e-3),
    LayerNorm(),
    MeanFieldCenter("gelu"),
    MeanFieldProject("gelu"),
    GroupedLayerNorm(6, 2),
]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: type(m).__name__)
def test_copies_pickles_and_dtypes(module):
    x = draw(3, 6)
    module = copy.deepcopy(module).double()
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x), module(x))
        assert repr(twin) == repr(module)
        assert twin.load_state_dict(module.state_dict())
    assert module(x).dtype == torch.float64
    assert copy.deepcopy(module).float()(x.float()).dtype == torch.float32


def test_a_slice_of_layer_norm_is_its_part():
    x = draw(3, 6)
    assert torch.equal(LayerNorm()[:1](x), Center()(x))
    assert isinstance(LayerNorm()[1], Project)
