"""The tabulated dual against the dual itself, for every registered activation."""

import math

import pytest
import torch

from farfield.errors import InvalidValueError, PrecisionError
from farfield.gaussian import activation_names, dual_slope, mean_reduced_dual, moments, tabulate_dual

# Degree of the Chebyshev series in arccos ρ that reaches 1e-12 at variance 1; 32 for all others.
DEGREE = {
    "step": 16,
    "sign": 16,
    "erf": 64,
    "hardtanh": 64,
    "hardswish": 64,
    "softsign": 64,
    "tanhshrink": 64,
}

ROUGH = torch.tensor(
    [-1.0, -1 + 1e-9, -0.99, -0.61, -0.2, 0.0, 1e-7, 0.037, 0.43, 0.88, 0.9991, 1 - 1e-9, 1.0],
    dtype=torch.float64,
)


@pytest.mark.full
@pytest.mark.parametrize("name", activation_names())
def test_table_against_the_dual(name: str) -> None:
    table = tabulate_dual(name)
    assert len(table.coefficients) == DEGREE.get(name, 32) + 1
    assert table.error <= 1e-12
    size = moments(name).variance
    gap = (table.reduced(ROUGH) - mean_reduced_dual(name, ROUGH)).abs().max() / size
    assert gap <= 1e-12
    assert abs(float(table.normalized(torch.tensor(1.0, dtype=torch.float64))) - 1.0) < 1e-12


@pytest.mark.parametrize("variance", [1e-6, 0.05, 12.0])
@pytest.mark.parametrize("name", ["sigmoid", "gelu", "gaussian", "relu"])
def test_other_variances(name: str, variance: float) -> None:
    """Small ones included, where σ̂ − c₀² would have no digits left to tabulate."""
    table = tabulate_dual(name, variance=variance, tolerance=1e-9)
    rho = ROUGH[2:9]
    gap = (table.reduced(rho) - mean_reduced_dual(name, rho, variance)).abs().max()
    assert gap <= 1e-9 * moments(name, variance=variance).variance


def test_in_the_correlation_itself_the_series_would_be_slow() -> None:
    """Why the angle: the same degree in ρ leaves a relu at 1e-3, the angle at 1e-13."""
    nodes = torch.cos(math.pi * (torch.arange(33, dtype=torch.float64) + 0.5) / 33)
    values = mean_reduced_dual("relu", nodes)
    basis = torch.cos(torch.arange(33)[:, None] * torch.arccos(nodes))
    straight = torch.linalg.solve(basis.T, values)
    rho = torch.tensor([-0.999, 0.9995], dtype=torch.float64)
    poor = torch.cos(torch.arccos(rho)[:, None] * torch.arange(33)) @ straight
    truth = mean_reduced_dual("relu", rho)
    assert (poor - truth).abs().max() > 1e-7
    assert (tabulate_dual("relu").reduced(rho) - truth).abs().max() < 1e-13


def test_single_precision_stays_single() -> None:
    rho = torch.linspace(-1, 1, 11)
    value = tabulate_dual("tanh").reduced(rho)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), mean_reduced_dual("tanh", rho), rtol=0, atol=1e-6)


def test_gradient_inside() -> None:
    rho = torch.tensor([-0.9, 0.1, 0.7], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(tabulate_dual("hardtanh").reduced(rho).sum(), rho)
    torch.testing.assert_close(slope, dual_slope("hardtanh", rho.detach()), rtol=0, atol=1e-10)


def test_correlations_past_one_by_rounding_are_clamped() -> None:
    table = tabulate_dual("relu")
    over = torch.tensor([1 + 1e-12, -1 - 1e-12], dtype=torch.float64)
    assert torch.equal(table.reduced(over), table.reduced(over.clamp(-1, 1)))


def test_unresolved_is_refused() -> None:
    with pytest.raises(PrecisionError, match="is not resolved to 1e-30 by a series of degree 256"):
        tabulate_dual("relu", tolerance=1e-30)
    with pytest.raises(InvalidValueError, match="A variance"):
        tabulate_dual("relu", variance=-1.0)
