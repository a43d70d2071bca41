"""Squared Hessians: closed forms against autograd, autograd against known ones, estimates against both."""

import pytest
import torch
from torch import nn

from farfield.errors import InvalidValueError
from farfield.lnnet import curvature, estimate_curvature
from farfield.nn import GroupedLayerNorm, LayerNorm, Project
from shape_checking import as_users_run_it


def hessian_square(f, x):
    """Straight from the definition."""
    outputs = f(x[None]).shape[-1]
    return sum(
        (torch.autograd.functional.hessian(lambda z, i=i: f(z[None])[0, i], x) ** 2).sum()
        for i in range(outputs)
    )


def weighted(module, seed):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        module.weight.copy_(torch.randn(module.weight.shape, generator=draw, dtype=torch.float64))
    return module


NORMS = {
    "ln": lambda: nn.LayerNorm(12, eps=0.0, elementwise_affine=False).double(),
    "ln with ε": lambda: nn.LayerNorm(12, eps=0.5, elementwise_affine=False).double(),
    "ln with ε and scale": lambda: weighted(nn.LayerNorm(12, eps=0.3).double(), 1),
    "ours": lambda: LayerNorm(norm_eps=0.0),
    "ours with ε": lambda: LayerNorm(norm_eps=0.2),
    "project": lambda: Project(),
    "project with ε": lambda: Project(norm_eps=0.4),
    "rms": lambda: nn.RMSNorm(12, eps=0.1, elementwise_affine=False).double(),
    "rms with scale": lambda: weighted(nn.RMSNorm(12, eps=1e-3).double(), 2),
    "groups of 12": lambda: GroupedLayerNorm(12, 1, elementwise_affine=False, norm_eps=0.0),
    "groups of 4": lambda: GroupedLayerNorm(12, 3, elementwise_affine=False, norm_eps=0.0),
    "groups of 3 with ε and scale": lambda: weighted(GroupedLayerNorm(12, 4, norm_eps=0.1).double(), 3),
    "groups of 2 with ε": lambda: GroupedLayerNorm(12, 6, elementwise_affine=False, norm_eps=0.1),
}


@pytest.mark.parametrize("name", NORMS)
def test_closed_form_is_the_definition(name):
    f = NORMS[name]()
    x = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    truth = torch.stack([hessian_square(f, row) for row in x]).detach()
    closed = curvature(f, x, method="closed")
    assert closed.shape == (3,)
    torch.testing.assert_close(closed, truth, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(curvature(f, x, method="autograd").detach(), truth, rtol=1e-10, atol=0.0)
    assert torch.equal(curvature(f, x), closed)
    assert torch.equal(curvature(f, x[0]), closed[0])


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 6, 12])
def test_the_formula_of_the_theory(groups):
    x = torch.randn(24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    m = 24 // groups
    variance = x.reshape(groups, m).var(-1, unbiased=False)
    expected = (3 * (m - 2) / (m * variance**2)).sum()
    f = GroupedLayerNorm(24, groups, elementwise_affine=False, norm_eps=0.0)
    torch.testing.assert_close(curvature(f, x), expected, rtol=1e-12, atol=0.0)
    if m == 2:
        assert float(curvature(f, x)) == 0.0


def test_groups_of_four_bend_most_at_equal_spread():
    values = {}
    for m in (2, 3, 4, 6, 8, 12, 24):
        # Each group 1, …, m scaled to unit variance.
        group = torch.arange(m, dtype=torch.float64)
        group = (group - group.mean()) / group.std(unbiased=False)
        f = GroupedLayerNorm(24, 24 // m, elementwise_affine=False, norm_eps=0.0)
        values[m] = float(curvature(f, group.repeat(24 // m)))
    assert max(values, key=values.get) == 4
    assert values[4] == pytest.approx(24 * 3 * 2 / 16, rel=1e-12) and values[2] == 0.0


def test_without_spread_a_norm_bends_without_limit():
    assert not torch.isfinite(curvature(nn.LayerNorm(4, eps=0.0), torch.ones(4)))
    assert torch.isfinite(curvature(nn.LayerNorm(4), torch.ones(4)))


class Quadratic(nn.Module):
    """f_i = xᵀA_i x/2 + b·x: H = Σ‖A_i‖²."""

    def __init__(self):
        super().__init__()
        a = torch.randn(3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        self.a = a + a.mT

    def forward(self, x):
        return torch.einsum("nj,ijk,nk->ni", x, self.a, x) / 2 + x[:, :3]


def test_autograd_on_any_module_and_any_budget():
    f = Quadratic()
    x = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = (f.a**2).sum().expand(2, 3)
    torch.testing.assert_close(curvature(f, x), expected, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(curvature(f, x, memory=4 * 3 * 5 * 8), expected, rtol=1e-12, atol=0.0)
    with as_users_run_it(), pytest.raises(InvalidValueError, match="480 bytes"):
        curvature(f, x, memory=479)
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4)).double()
    truth = hessian_square(net, x[0, 0]).detach()
    torch.testing.assert_close(curvature(net, x[0, 0]).detach(), truth, rtol=1e-10, atol=0.0)
    linear = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4)).double()
    assert float(curvature(linear, x[0, 0])) == 0.0
    assert curvature(f, x[0, :0]).shape == (0,)


def test_the_estimate_is_unbiased_and_knows_its_error():
    f = Quadratic()
    x = torch.zeros(2, 5, dtype=torch.float64)
    found = estimate_curvature(f, x, probes=4000, generator=torch.Generator().manual_seed(4))
    truth = float((f.a**2).sum())
    assert found.probes == 4000 and found.value.shape == found.standard_error.shape == (2,)
    assert bool(((found.value - truth).abs() < 5 * found.standard_error).all())
    assert bool((found.standard_error < 0.02 * truth).all())
    # Half the value, as a probe of one sign instead of two independent ones might give, is far outside.
    assert bool(((found.value - truth / 2).abs() > 20 * found.standard_error).all())
    few = estimate_curvature(f, x[:1], probes=40, generator=torch.Generator().manual_seed(5))
    assert 5 < float(few.standard_error / found.standard_error[0]) < 20
    same = [
        curvature(f, x, method="hutchinson", probes=8, generator=torch.Generator().manual_seed(6))
        for _ in "ab"
    ]
    assert torch.equal(*same)


def test_a_formula_without_its_cross_terms_would_be_seen():
    x = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    m, variance = 12, x.var(unbiased=False)
    wrong = 3 * (m - 1) / (m * variance**2)  # RMSNorm's, on a centered vector
    assert abs(float(wrong / curvature(LayerNorm(norm_eps=0.0), x)) - 1) > 0.05


def test_refusals():
    with as_users_run_it(), pytest.raises(InvalidValueError, match="Sequential"):
        curvature(nn.Sequential(nn.LayerNorm(4)), torch.ones(4), method="closed")
    with as_users_run_it(), pytest.raises(InvalidValueError, match="methods"):
        curvature(nn.LayerNorm(4), torch.ones(4), method="magic")
    with as_users_run_it(), pytest.raises(InvalidValueError, match="floating"):
        curvature(nn.LayerNorm(4), torch.ones(4, dtype=torch.long))
    with as_users_run_it(), pytest.raises(InvalidValueError, match="2 probes"):
        estimate_curvature(nn.LayerNorm(4), torch.ones(4), probes=1)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 1e-8), (torch.float32, 1e8), (torch.float64, 1e-70)]
)
@pytest.mark.parametrize(
    "norm",
    [nn.LayerNorm(6, eps=0.0, elementwise_affine=False), Project(), GroupedLayerNorm(6, 2, norm_eps=0.0)],
)
def test_any_scale_that_the_result_survives(norm, dtype, scale):
    """H has degree −4; the sixth power of the spread leaves the range of numbers long before."""
    x = torch.tensor([0.3, -1.2, 0.7, 2.0, 0.1, -0.4], dtype=torch.float64)
    expected = float(curvature(norm, x)) / scale**4
    assert float(curvature(norm, (x * scale).to(dtype))) == pytest.approx(expected, rel=1e-4, abs=0)


@pytest.mark.parametrize("spread", [1.0, 1e3, 1e6])
def test_pairs_with_epsilon_do_not_cancel(spread):
    """f₁ = a/√(a² + ε) with a = (x₁ − x₂)/2, whose second derivative is −3εa/(a² + ε)^{5/2}: four times over four."""
    a, eps = spread * 0.7310585, 1e-2
    x = torch.tensor([a + 0.3, 0.3 - a], dtype=torch.float64)
    second = 3 * eps * a / (a * a + eps) ** 2.5
    expected = 2 * 4 * (second / 4) ** 2
    found = curvature(GroupedLayerNorm(2, 1, elementwise_affine=False, norm_eps=eps), x)
    assert float(found) == pytest.approx(expected, rel=1e-8, abs=0)


def test_no_points_no_values():
    found = estimate_curvature(nn.Linear(4, 3), torch.zeros(2, 0, 4))
    assert found.value.shape == found.standard_error.shape == (2, 0)
