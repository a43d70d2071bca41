"""Gradient flow against its differential equation, and at both ends."""

import math

import pytest
import scipy.integrate
import scipy.linalg
import torch

from farfield.errors import InvalidValueError, PrecisionError
from farfield.regression import fit, gradient_flow
from regression_problems import Explicit, data, network, queries


def test_limits():
    x, y = data(k=2)
    q = queries()
    flow = gradient_flow(network(), x, y)
    start, end, exact = flow.at(0.0), flow.at(math.inf), fit(network(), x, y)
    assert (start.mean(q) == 0).all() and start.residual == 1.0
    assert torch.allclose(start.variance(q), network().diagonal(q, "nngp"), rtol=1e-12)
    assert torch.allclose(end.mean(q), exact.mean(q), rtol=1e-9, atol=1e-9)
    assert torch.allclose(end.variance(q), exact.variance(q), rtol=1e-8, atol=1e-9)
    assert torch.allclose(end.variance(q, "posterior"), exact.variance(q, "posterior"), rtol=1e-8, atol=1e-9)
    late = flow.at(1e6)
    assert torch.allclose(late.mean(q), exact.mean(q), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("time", [0.01, 0.3, 5.0])
def test_against_the_differential_equation(time):
    """f˙(x) = −ηΘ(x, X)(f(X) − y) from f = 0, by scipy."""
    x, y = data(15)
    q = queries(6)
    kernel, rate = network(), 0.7
    both = torch.cat([q, x])
    theta = kernel.ntk(both, x).numpy()

    def change(_, f):
        return -rate * theta @ (f[6:] - y.numpy())

    solved = scipy.integrate.solve_ivp(change, (0, time), [0.0] * 21, rtol=1e-10, atol=1e-12)
    ours = gradient_flow(kernel, x, y, learning_rate=rate).at(time)
    assert abs(ours.mean(q).numpy() - solved.y[:6, -1]).max() < 1e-7


def test_variance_against_matrix_exponentials():
    x, y = data(15)
    q = queries(6)
    kernel = network()
    theta, K = kernel.ntk(x), kernel.nngp(x)
    M = torch.linalg.solve(theta, torch.eye(15) - torch.from_numpy(scipy.linalg.expm(-0.8 * theta.numpy())))
    beta = M @ kernel.ntk(x, q)
    expected = kernel.nngp(q) + beta.mT @ K @ beta - beta.mT @ kernel.nngp(x, q) - kernel.nngp(q, x) @ beta
    ours = gradient_flow(kernel, x, y, learning_rate=0.4).at(2.0).variance(q)
    assert torch.allclose(ours, expected.diagonal(), rtol=1e-9)


def test_training_error_falls_and_bounds_hold_at_every_time():
    x, y = data()
    far = torch.cat([radius * queries(60) for radius in (1, 1e3, 1e8)])
    flow = gradient_flow(network(), x, y)
    fits = [flow.at(t) for t in (0.0, 0.1, 1.0, 10.0, 100.0, math.inf)]
    residuals = [f.residual for f in fits]
    assert residuals == sorted(residuals, reverse=True)
    for f in fits:
        for name in ("rkhs", "eigenvalue", "crude"):
            assert f.mean(far).abs().max() <= f.output_bound(name=name)
        assert (f.mean(far).abs() <= f.output_bound(far)).all()


def test_singular_matrices_train_but_have_no_end():
    matrix = torch.ones(2, 2, dtype=torch.float64)
    x, y = torch.tensor([[0.0], [1.0]], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    flow = gradient_flow(Explicit(matrix, 1.0), x, y)
    assert torch.allclose(flow.at(1e3).mean(x), torch.full((2,), 0.5, dtype=torch.float64))
    with pytest.raises(PrecisionError, match="finite time"):
        flow.at(math.inf)
    with pytest.raises(PrecisionError, match="no negative eigenvalues"):
        gradient_flow(Explicit(torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)), x, y)


def test_refusals():
    x, y = data()
    with pytest.raises(InvalidValueError, match="at most 5 inputs fit"):
        gradient_flow(network(), x, y, memory=4 * 8 * 25)
    with pytest.raises(InvalidValueError, match="positive"):
        gradient_flow(network(), x, y, learning_rate=0.0)
    flow = gradient_flow(network(), x, y)
    with pytest.raises(InvalidValueError, match="at least 0"):
        flow.at(-1.0)
    with pytest.raises(InvalidValueError, match="at time ∞"):
        flow.at(1.0).variance(x, "posterior")
