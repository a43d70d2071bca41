"""Extreme eigenvalues against all of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from farfield.errors import InvalidValueError
from farfield.geometry.spectrum import lanczos
from farfield.regression import fit
from regression_problems import RBF, data, generator, network


@examples(max_examples=40)
@given(st.integers(1, 60), st.integers(0, 10**6))
def test_lanczos_to_the_end_finds_both_ends(n, seed):
    A = torch.randn(n, n, generator=generator(seed), dtype=torch.float64)
    A = A + A.mT
    values = torch.linalg.eigvalsh(A)
    found = lanczos(lambda v: A @ v, n, generator(1), steps=n)
    for estimate, true in ((found.smallest, values[0]), (found.largest, values[-1])):
        assert abs(estimate.value - float(true)) <= estimate.error + 1e-12
    assert found.steps <= n


def test_errors_are_honest_before_convergence():
    d = torch.logspace(-6, 0, 400, dtype=torch.float64)
    for steps in (3, 10, 30, 100):
        found = lanczos(lambda v: d * v, 400, generator(2), steps=steps)
        nearest = (d - found.smallest.value).abs().min()
        assert nearest <= found.smallest.error
        assert found.smallest.value >= d[0] - 1e-14  # a Ritz value lies inside the spectrum
        assert found.steps <= steps


def test_a_multiple_of_the_identity():
    found = lanczos(lambda v: 3 * v, 20, generator())
    assert found.steps == 1
    assert found.smallest.value == pytest.approx(3) and found.largest.value == pytest.approx(3)
    with pytest.raises(InvalidValueError, match="at least one"):
        lanczos(lambda v: v, 0, generator())


@pytest.mark.parametrize("noise", [0.0, 1e-2])
def test_smallest_eigenvalue_dense(noise):
    x, y = data(60)
    f = fit(network(), x, y, noise=noise)
    true = float(torch.linalg.eigvalsh(network().ntk(x))[0]) + noise
    found = f.smallest_eigenvalue()
    assert found.method == "dense" and abs(found.value - true) <= found.error + 1e-13


def test_smallest_eigenvalue_by_the_inverse():
    """Above n = 1000, and with eigenvalues down to 1e-7 of the largest."""
    x, y = data(1100, 3)
    kernel = RBF(0.6)
    for noise in (1e-6, 1e-2):
        f = fit(kernel, x, y, noise=noise)
        true = float(torch.linalg.eigvalsh(kernel(x))[0]) + noise
        found = f.smallest_eigenvalue()
        assert found.method == "inverse"
        assert abs(found.value - true) <= found.error
        assert found.error < 1e-3 * true


def test_smallest_eigenvalue_without_a_factor_is_at_least_the_noise():
    x, y = data(300, 3)
    f = fit(network(), x, y, noise=0.1, solver="pcg")
    true = float(torch.linalg.eigvalsh(network().ntk(x))[0]) + 0.1
    found = f.smallest_eigenvalue()
    assert found.value - found.error <= true <= found.value + 1e-9
    assert found.value - found.error >= 0.1 - 1e-12
