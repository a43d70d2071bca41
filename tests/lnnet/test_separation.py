"""SSR and LSSR: the closed form against optimization and least squares, Proposition 1, XOR."""

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st

from farfield.errors import InvalidValueError
from farfield.lnnet import construct, lssr, ssr
from shape_checking import as_users_run_it

XOR = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
PARITY = torch.tensor([0, 1, 1, 0])


def problem(seed, m=40, d=4, classes=2):
    draw = np.random.default_rng(seed)
    y = draw.integers(0, classes, m)
    x = draw.normal(size=(m, d)) + 0.7 * draw.normal(size=(classes, d))[y]
    return torch.tensor(x), torch.tensor(y)


def reference_ssr(x, y):
    x, y = x.numpy(), y.numpy()

    def squares(part):
        return ((part - part.mean(0)) ** 2).sum()

    return sum(squares(x[y == c]) for c in np.unique(y)) / squares(x)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_ssr_is_its_definition(classes):
    x, y = problem(0, classes=classes)
    assert float(ssr(x, y)) == pytest.approx(reference_ssr(x, y), rel=1e-13)


def test_ssr_does_not_see_where_points_are_nor_their_unit():
    x, y = problem(1)
    assert float(ssr(1e160 * x, y)) == pytest.approx(float(ssr(x, y)), rel=1e-12)
    assert float(ssr(x + 1e6, y)) == pytest.approx(float(ssr(x, y)), rel=1e-8)


@pytest.mark.full
@pytest.mark.parametrize(("seed", "classes"), [(0, 2), (1, 2), (2, 3), (3, 5)])
def test_lssr_is_the_infimum_found_by_optimization(seed, classes):
    """Over maps to one and to three dimensions; and nothing a search finds lies below."""
    x, y = problem(seed, classes=classes)
    closed = float(lssr(x, y))
    a = x.numpy()
    for k in (1, 3):

        def value(flat, k=k):
            return reference_ssr(torch.tensor(a @ flat.reshape(4, k)), y)

        found = min(
            scipy.optimize.minimize(
                value, np.random.default_rng(s).normal(size=4 * k), method="BFGS", options={"gtol": 1e-12}
            ).fun
            for s in range(3)
        )
        assert found >= closed - 1e-13
        assert found == pytest.approx(closed, abs=1e-8)


@pytest.mark.parametrize("classes", [2, 4])
def test_lssr_is_the_generalized_eigenvalue_and_for_two_classes_one_minus_r_squared(classes):
    x, y = problem(4, m=60, d=6, classes=classes)
    a = (x - x.mean(0)).numpy()
    within = a - np.stack([a[y.numpy() == c].mean(0) for c in range(classes)])[y.numpy()]
    truth = scipy.linalg.eigh(within.T @ within, a.T @ a, eigvals_only=True)[0]
    assert float(lssr(x, y)) == pytest.approx(truth, rel=1e-12)
    if classes == 2:
        target = y.double().numpy() - float(y.double().mean())
        residual = target - a @ np.linalg.lstsq(a, target, rcond=None)[0]
        assert float(lssr(x, y)) == pytest.approx(residual @ residual / (target @ target), rel=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 5), st.sampled_from([2, 3, 5]))
def test_no_linear_map_lowers_lssr(seed, k, classes):
    """Proposition 1; and an invertible one leaves it as it is."""
    x, y = problem(seed, m=25, classes=classes)
    if len(y.unique()) < 2:
        return
    draw = torch.Generator().manual_seed(seed)
    phi = torch.randn(4, k, generator=draw, dtype=torch.float64)
    before, after = float(lssr(x, y)), float(lssr(x @ phi, y))
    assert after >= before - 1e-12
    if k >= 4:
        assert after == pytest.approx(before, abs=1e-9)
    assert float(ssr(x, y)) >= before - 1e-12


def test_one_layer_norm_lowers_it_on_xor_from_one_to_zero():
    """With the right affine map before: P3's point. Without, a LayerNorm of the raw features need not help."""
    assert float(lssr(XOR, PARITY)) == pytest.approx(1.0, abs=1e-14)
    s = XOR.sum(1) - 1.0  # −1, 0, 0, 1
    basis = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=torch.float64)
    basis = basis / basis.norm(dim=1, keepdim=True)
    lifted = torch.stack([s, torch.full_like(s, 1.0)], 1) @ basis
    assert float(lssr(lifted, PARITY)) == pytest.approx(1.0, abs=1e-14)
    normed = torch.nn.functional.layer_norm(1e6 * lifted, (3,))
    assert float(lssr(normed, PARITY)) < 1e-24
    net = construct(XOR, PARITY, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert net.depth == 1 and float(lssr(net.circles(XOR)[0], PARITY)) < 0.2


def test_directions_without_spread_count_for_nothing():
    x, y = problem(5, m=30, d=3)
    wide = torch.cat(
        [x, x @ torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))], 1
    )
    wide = torch.cat([wide, torch.full((30, 2), 3.0, dtype=torch.float64)], 1)
    assert float(lssr(wide, y)) == pytest.approx(float(lssr(x, y)), rel=1e-10)
    # Features of very different units are no rank deficiency.
    assert float(lssr(x * torch.tensor([1e-12, 1.0, 1e9]), y)) == pytest.approx(float(lssr(x, y)), rel=1e-6)


def test_more_dimensions_than_points_fit_any_labels():
    x, y = (
        torch.randn(8, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        torch.arange(8) % 2,
    )
    assert 0.0 <= float(lssr(x, y)) < 1e-28


def test_one_class_is_all_within():
    x, _ = problem(6)
    one = torch.zeros(len(x), dtype=torch.long)
    assert float(ssr(x, one)) == pytest.approx(1.0) and float(lssr(x, one)) == pytest.approx(1.0)


def test_refusals():
    with as_users_run_it(), pytest.raises(InvalidValueError, match="All 3 points are equal"):
        lssr(torch.ones(3, 2), torch.tensor([0, 1, 1]))
    with as_users_run_it(), pytest.raises(InvalidValueError, match="shape"):
        ssr(torch.ones(3, 2), torch.tensor([0, 1]))
    with as_users_run_it(), pytest.raises(InvalidValueError, match="not finite"):
        lssr(torch.tensor([[0.0], [float("nan")]]), torch.tensor([0, 1]))


def test_a_wrong_closed_form_would_be_seen():
    """The mean of the generalized eigenvalues instead of the least."""
    x, y = problem(0)
    a = (x - x.mean(0)).numpy()
    within = a - np.stack([a[y.numpy() == c].mean(0) for c in range(2)])[y.numpy()]
    wrong = scipy.linalg.eigh(within.T @ within, a.T @ a, eigvals_only=True).mean()
    assert abs(wrong - float(lssr(x, y))) > 1e-2


def test_units_of_features_that_differ_by_more_than_squares_bear():
    x, y = problem(0, d=3)
    units = torch.tensor([1e-200, 1.0, 1e200], dtype=torch.float64)
    assert float(lssr(x * units, y)) == pytest.approx(float(lssr(x, y)), rel=1e-10)


def test_differences_beyond_the_largest_number():
    x, y = torch.tensor([[1.7e308], [-1.7e308], [0.0]], dtype=torch.float64), torch.tensor([0, 0, 1])
    small = torch.tensor([[1.0], [-1.0], [0.0]], dtype=torch.float64)
    for f in (ssr, lssr):
        assert float(f(x, y)) == pytest.approx(float(f(small, y)), rel=1e-12)


def test_integers_keep_their_digits():
    x, y = torch.tensor([[2**40], [2**40 + 1], [2**40 + 3]]), torch.tensor([0, 1, 1])
    small = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    with as_users_run_it():
        for f in (ssr, lssr):
            assert float(f(x, y)) == pytest.approx(float(f(small, y)), rel=1e-12)


def test_points_without_features_and_complex_ones_are_refused():
    for x in (torch.zeros(3, 0), torch.tensor([[1.0j], [2.0j], [0.0j]])):
        with as_users_run_it(), pytest.raises(InvalidValueError, match="real and finite"):
            lssr(x, torch.tensor([0, 1, 0]))
