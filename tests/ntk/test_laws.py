"""What holds for every tangent kernel, and products with it."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from farfield.ntk import NTKOperator, empirical_ntk
from ntk_models import CATALOGUE, build, distance, gradients

FEW = settings(max_examples=12)


@st.composite
def networks(draw):
    """A random stack of layers, its inputs and its number of outputs."""
    widths = draw(st.lists(st.integers(1, 6), min_size=2, max_size=4))
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b, bias=draw(st.booleans()))]
        layers += draw(st.sampled_from([[], [nn.LayerNorm(b)], [nn.RMSNorm(b)], [nn.PReLU()]]))
        layers += [draw(st.sampled_from([nn.Tanh(), nn.Softplus(), nn.Identity()]))]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    model = nn.Sequential(*layers).double()
    for p in model.parameters():
        p.data.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(draw(st.integers(1, 6)), widths[0], generator=generator, dtype=torch.float64)
    return model, x


@FEW
@given(networks(), st.sampled_from(["layerwise", "jacobian"]))
def test_symmetric_and_positive(found, method):
    model, x = found
    theta = empirical_ntk(model, x, method=method)
    assert torch.equal(theta, theta.T)
    assert torch.linalg.eigvalsh(theta).min() > -1e-12 * theta.diagonal().max()
    full = empirical_ntk(model, x, outputs="full", method=method)
    n, k = len(x), full.shape[-1]
    flat = full.permute(0, 2, 1, 3).reshape(n * k, n * k)
    assert distance(flat, flat.T) < 1e-13
    assert torch.linalg.eigvalsh(flat).min() > -1e-12 * flat.diagonal().max()
    assert distance(full.diagonal(dim1=2, dim2=3).sum(-1), theta) < 1e-12
    assert distance(full.sum((2, 3)), empirical_ntk(model, x, outputs="sum", method=method)) < 1e-10


@FEW
@given(networks(), st.data())
def test_additive_over_parameters(found, data):
    model, x = found
    names = [name for name, _ in model.named_parameters()]
    chosen = {name for name in names if data.draw(st.booleans())}
    parts = [
        empirical_ntk(model, x, parameters=lambda n, p, s=part: n in s)
        for part in (chosen, set(names) - chosen)
        if part
    ]
    assert distance(sum(parts), empirical_ntk(model, x)) < 1e-12


@FEW
@given(networks(), st.integers(0, 100))
def test_blocks_of_a_larger_kernel(found, seed):
    model, x = found
    y = torch.randn(3, x.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    whole = empirical_ntk(model, torch.cat([x, y]))
    assert distance(empirical_ntk(model, x, y), whole[: len(x), len(x) :]) < 1e-10
    assert distance(empirical_ntk(model, y, x), whole[len(x) :, : len(x)]) < 1e-10


def test_scales_with_the_square_of_the_output():
    model, x, _ = build("mlp")
    theta = empirical_ntk(model, x, parameters=["0", "2"])
    model[-1].weight.data.mul_(3)
    assert distance(empirical_ntk(model, x, parameters=["0", "2"]), 9 * theta) < 1e-12


# ------------------------------------------------------------------ the operator


def dense(model, x, outputs):
    rows = gradients(model, x)
    if outputs == "sum":
        rows = rows.sum(1, keepdim=True)
    elif outputs != "full":
        rows = rows[:, outputs : outputs + 1]
    flat = rows.flatten(0, 1)
    return flat @ flat.T


@pytest.mark.parametrize("name", sorted(CATALOGUE)[::2])
def test_products_with_the_kernel(name):
    model, x, _ = build(name)
    operator = NTKOperator(model, x, batch=3)
    truth = dense(model, x, "full")
    assert operator.shape == tuple(truth.shape) and operator.dtype == torch.float64
    v = torch.randn(len(truth), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    product = operator @ v
    assert float((product - truth @ v).abs().max()) < 1e-10 * float(truth.abs().max() * v.norm())
    assert not product.requires_grad


@pytest.mark.parametrize("outputs", ["full", "sum", 2])
def test_which_outputs_the_operator_acts_on(outputs):
    model, x, _ = build("layer_norm_affine")
    operator, truth = NTKOperator(model, x, outputs=outputs), dense(model, x, outputs)
    eye = torch.eye(len(truth), dtype=torch.float64)
    assert distance(operator @ eye, truth) < 1e-12
    assert distance(operator @ eye[:, :2], truth[:, :2]) < 1e-12
    with torch.inference_mode():
        assert distance(operator @ eye[0], truth[0]) < 1e-12


def test_the_operator_and_the_parameters():
    model, x, _ = build("layer_norm_affine")
    operator = NTKOperator(model, x, parameters="1", outputs="sum")
    eye = torch.eye(4, dtype=torch.float64)
    assert distance(operator @ eye, empirical_ntk(model, x, parameters="1", outputs="sum")) < 1e-12


@FEW
@given(networks(), st.integers(0, 100))
def test_the_operator_is_linear_symmetric_and_positive(found, seed):
    model, x = found
    operator = NTKOperator(model, x)
    generator = torch.Generator().manual_seed(seed)
    u, v = (torch.randn(operator.shape[0], dtype=torch.float64, generator=generator) for _ in range(2))
    scale = float((operator @ u).norm() * v.norm() + (operator @ v).norm() * u.norm()) + 1e-300
    assert abs(float(u @ (operator @ v) - v @ (operator @ u))) < 1e-12 * scale
    assert float(((operator @ (2 * u - v)) - (2 * (operator @ u) - operator @ v)).norm()) < 1e-11 * scale
    assert float(u @ (operator @ u)) > -1e-12 * scale


@pytest.mark.parametrize("outputs", ["trace", "full"])
def test_one_run_on_all_inputs_gives_the_kernel_of_two(outputs, monkeypatch):
    """A plain model is run once, on all inputs; with no room for that, on one input and then on all."""
    from farfield.ntk import _empirical

    model = nn.Sequential(nn.Linear(3, 7), nn.GELU(), nn.Linear(7, 2)).double()
    x, sizes = torch.randn(6, 3, dtype=torch.float64), []
    model.register_forward_pre_hook(lambda m, given: sizes.append(len(given[0])))
    once = empirical_ntk(model, x, outputs=outputs)
    assert sizes == [6]
    monkeypatch.setattr(_empirical, "whole_plan", lambda *given: None)
    assert torch.equal(once, empirical_ntk(model, x, outputs=outputs)) and sizes == [6, 1, 6]


def test_a_run_that_may_not_fit_is_not_begun():
    """Within a small budget the run on all inputs stops before the layer that would exceed it."""
    model, x, rows = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4096)), torch.randn(200, 4), []
    model[2].register_forward_hook(lambda m, given, y: rows.append(len(y)))
    empirical_ntk(model, x, outputs=0, memory="2MB")
    assert max(rows) < 200


def test_arguments_by_name_are_no_obstacle():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.last(torch.relu(input=self.first(input=x)))

    model, x = Named().double(), torch.randn(5, 3, dtype=torch.float64)
    assert distance(empirical_ntk(model, x), empirical_ntk(model, x, method="jacobian")) < 1e-12
