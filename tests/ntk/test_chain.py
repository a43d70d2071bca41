"""The formula for plain chains: the kernel of every other method, and refused for whatever is more than a chain."""

import pytest
import torch
from torch import nn

from farfield import empirical_ntk
from farfield.ntk._chain import chain_kernel

ROOM = 1 << 30


def chain(kind=nn.ReLU, bias=True):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 7, bias=bias),
        kind(),
        nn.Linear(7, 6),
        nn.Linear(6, 4),
        kind(),
        nn.Linear(4, 1, bias=bias),
        kind(),
    ).double()


@pytest.mark.parametrize("kind", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("bias", [True, False])
def test_is_the_kernel_of_the_jacobian(kind, bias):
    model, x = chain(kind, bias), torch.randn(9, 5, dtype=torch.float64)
    z = torch.randn(4, 5, dtype=torch.float64)
    found = empirical_ntk(model, x)
    assert torch.equal(found, found.T)
    for ours, theirs in (
        (found, empirical_ntk(model, x, method="jacobian")),
        (empirical_ntk(model, x, z), empirical_ntk(model, x, z, method="jacobian")),
    ):
        assert (ours - theirs).abs().max() <= 1e-13 * theirs.abs().max()


def _hooked():
    model = chain()
    model[0].register_forward_hook(lambda module, given, out: 2 * out)
    return model


def _frozen():
    model = chain()
    model[0].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "make",
    [
        _hooked, _frozen, lambda: nn.Sequential(nn.Linear(5, 2).double()),
        lambda: nn.Sequential(nn.Linear(5, 1).double(), nn.Softplus()), lambda: nn.Linear(5, 1).double(),
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(5, 1).double()), lambda: chain().float(),
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 1).double())),
    ],
)  # fmt: skip
def test_leaves_the_rest_to_the_others(make):
    assert chain_kernel(make(), torch.randn(3, 5, dtype=torch.float64), None, ROOM) is None


def test_leaves_what_does_not_fit():
    assert chain_kernel(chain(), torch.randn(3, 5, dtype=torch.float64), None, 100) is None


def test_a_layer_used_twice():
    model = nn.Sequential(nn.Linear(5, 5).double(), nn.ReLU())
    model = nn.Sequential(model[0], nn.ReLU(), model[0], nn.Linear(5, 1).double())
    x = torch.randn(3, 5, dtype=torch.float64)
    assert chain_kernel(model, x, None, ROOM) is None
    assert torch.allclose(empirical_ntk(model, x), empirical_ntk(model, x, method="jacobian"))
