"""Isometry and its gap against determinants, high precision, other scales, and its own laws."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farfield.errors import InvalidValueError
from farfield.geometry import feature_isometry_gap, gram, isometry, isometry_gap, lyapunov
from gram_samples import features, generator, unit_grams, weakly_correlated
from shape_checking import as_users_run_it

DIGITS = 80
EPS = torch.finfo(torch.float64).eps


def mp_gap(matrix) -> float:
    """The gap of exactly these floats, by an 80-digit determinant."""
    with mpmath.workdps(DIGITS):
        n = matrix.shape[-1]
        m = mpmath.matrix(matrix.tolist())
        trace = mpmath.fsum(m[i, i] for i in range(n))
        return mpmath.log(trace / n) - mpmath.log(mpmath.det(m)) / n


def relative_error(value, exact) -> float:
    with mpmath.workdps(DIGITS):
        return float(abs(mpmath.mpf(float(value)) - exact) / abs(exact))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 30])
def test_gap_is_the_log_determinant_formula(n):
    G = gram(features(n, 50, n, 3 * n + 1, spread=0.5))
    sign, logabsdet = torch.linalg.slogdet(G)
    trace = torch.diagonal(G, dim1=-2, dim2=-1).sum(-1)
    assert bool((sign > 0).all())
    torch.testing.assert_close(isometry_gap(G), torch.log(trace / n) - logabsdet / n, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("offdiagonal", [1e-3, 1e-8, 1e-10, 1e-14, 1e-30, 1e-60])
def test_a_tiny_gap_keeps_all_its_digits(offdiagonal):
    """Among them gaps near 1e-20, which log AM − log GM returns as noise of either sign."""
    for seed, n in ((0, 2), (1, 5), (2, 9)):
        G = weakly_correlated(seed, 1, n, offdiagonal)[0]
        exact = mp_gap_of_excess(G) if offdiagonal < 1e-20 else mp_gap(G)
        assert relative_error(isometry_gap(G), exact) < 1e-13
        assert relative_error(isometry_gap(3.0 * G), exact) < 1e-13


def mp_gap_of_excess(matrix):
    """For unit diagonals whose excess would vanish beside 1 even at 80 digits: tr E²/(2n) − tr E³/(3n)."""
    with mpmath.workdps(2 * DIGITS):
        n = matrix.shape[-1]
        e = mpmath.matrix((matrix - torch.eye(n, dtype=torch.float64)).tolist())
        square = e * e
        cube = square * e
        second = mpmath.fsum(square[i, i] for i in range(n))
        third = mpmath.fsum(cube[i, i] for i in range(n))
        return (second / 2 - third / 3) / n


@pytest.mark.parametrize("spread", [1e-2, 1e-5, 1e-9])
def test_a_tiny_gap_of_an_unequal_diagonal_is_good_to_eps_over_its_root(spread):
    g = generator(3)
    G = torch.diag(1.0 + spread * torch.rand(6, generator=g, dtype=torch.float64))
    exact = mp_gap(G)
    assert relative_error(isometry_gap(G), exact) < 20 * EPS / math.sqrt(exact)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-20, 1e20, 1e200, 1e300])
def test_no_scale_over_or_underflows(scale):
    x = features(5, 1, 6, 15, spread=0.5)[0]
    G = gram(x) * scale
    assert relative_error(isometry_gap(G), mp_gap(G)) < 1e-13
    y = x * (scale if abs(math.log10(scale)) < 250 else 1.0)
    torch.testing.assert_close(feature_isometry_gap(y), isometry_gap(gram(x)), rtol=1e-13, atol=0)


@pytest.mark.parametrize("smallest", [1e-3, 1e-8, 1e-12, 1e-15])
def test_a_graded_spectrum_keeps_its_digits(smallest):
    """1 + (λ/mean − 1) would lose the small eigenvalue; a first implementation did."""
    G = torch.diag(torch.tensor([1.0, 0.3, smallest], dtype=torch.float64))
    assert relative_error(isometry_gap(G), mp_gap(G)) < 1e-14


def test_batched_over_any_leading_axes():
    G = gram(features(7, 12, 4, 9))
    one_by_one = torch.stack([isometry_gap(g) for g in G])
    assert torch.equal(isometry_gap(G), one_by_one)
    assert torch.equal(isometry_gap(G.reshape(2, 3, 2, 4, 4)), one_by_one.reshape(2, 3, 2))
    assert isometry_gap(G[:0]).shape == (0,)
    mixed = torch.stack([torch.eye(4, dtype=torch.float64), G[0], torch.ones(4, 4, dtype=torch.float64)])
    gaps = isometry_gap(mixed)
    assert gaps[0] == 0
    assert gaps[1] == one_by_one[0]
    assert gaps[2] == torch.inf


def test_gradients_in_both_branches():
    a = features(11, 1, 4, 6)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: isometry_gap(x @ x.mT), a)
    assert torch.autograd.gradcheck(feature_isometry_gap, a)
    e = (0.03 * features(12, 1, 4, 4)[0]).requires_grad_()
    near = lambda x: isometry_gap(torch.eye(4, dtype=torch.float64) + x + x.mT)  # noqa: E731
    assert bool(near(e) < 0.05)
    assert torch.autograd.gradcheck(near, e)


def test_the_gradient_is_the_known_one():
    """∂gap/∂G = I/tr G − G⁻¹/n."""
    G = gram(features(13, 1, 5, 12))[0].requires_grad_()
    (slope,) = torch.autograd.grad(isometry_gap(G), G)
    expected = torch.eye(5, dtype=torch.float64) / torch.trace(G) - torch.linalg.inv(G) / 5
    torch.testing.assert_close(slope, expected.detach(), rtol=1e-10, atol=1e-13)


def test_a_singular_neighbor_does_not_poison_gradients():
    G = torch.stack([gram(features(13, 1, 3, 8))[0], torch.ones(3, 3, dtype=torch.float64)]).requires_grad_()
    gaps = isometry_gap(G)
    assert gaps[1] == torch.inf
    (slope,) = torch.autograd.grad(gaps[0], G)
    assert bool(torch.isfinite(slope).all())
    assert bool((slope[1] == 0).all())


def test_singular_is_infinite_not_nan():
    singular = [
        torch.ones(4, 4, dtype=torch.float64),
        gram(features(17, 1, 6, 3))[0],
        torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64)),
        torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64),
    ]
    for G in singular:
        assert isometry_gap(G) == torch.inf
        assert isometry(G) == 0.0
        assert isometry_gap(G.float()) == torch.inf


def test_float32_and_determinism():
    G = unit_grams(19, 20, 6)
    torch.testing.assert_close(isometry_gap(G.float()).double(), isometry_gap(G), rtol=1e-4, atol=1e-5)
    assert isometry_gap(G.float()).dtype == torch.float32
    assert torch.equal(isometry_gap(G), isometry_gap(G.clone()))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "positive semi-definite"),
        (-torch.eye(3), "trace is positive"),
        (torch.zeros(3, 3), "zero matrix"),
        (torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (torch.tensor([[1.0, math.nan], [math.nan, 1.0]]), "inf or nan"),
        (torch.tensor([[math.inf, 0.0], [0.0, 1.0]]), "inf or nan"),
        (torch.ones(2, 3), r"square.*got shape \(2, 3\)"),
        (torch.ones(3), "square"),
        (torch.ones(0, 0), "n >= 1"),
        (torch.eye(3, dtype=torch.int64), "floating point, got torch.int64"),
    ],
)
def test_refusals_teach(matrix, message):
    with as_users_run_it(), pytest.raises(InvalidValueError, match=message):
        isometry_gap(matrix)


def test_one_indefinite_matrix_in_a_batch_is_named_by_its_own_eigenvalues():
    good = 1e6 * torch.eye(2, dtype=torch.float64)
    bad = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    with pytest.raises(InvalidValueError, match="eigenvalue of -1 beside one of 3"):
        isometry_gap(torch.stack([good, bad, good]))


def test_a_rounded_gram_matrix_is_not_refused():
    for d in (3, 500):
        x = features(23, 30, 12, d, common=50.0, dtype=torch.float32)
        gaps = isometry_gap(gram(x))
        assert bool((gaps > 0).all())


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9, 1e-12])
def test_features_follow_a_collapse_that_the_gram_matrix_cannot(delta):
    """Rows (1, 0, 0) and (1, δ, 0): det = δ² exactly, while the Gram matrix holds 1 + δ² = 1 from δ = 1e-8 on."""
    x = torch.tensor([[1.0, 0.0, 0.0], [1.0, delta, 0.0]], dtype=torch.float64)
    exact = math.log1p(delta**2 / 2) - math.log(delta)
    assert abs(float(feature_isometry_gap(x)) - exact) < 20 * EPS / delta
    from_gram = float(isometry_gap(gram(x)))
    assert (from_gram == math.inf) == (delta < 1e-7)


def test_feature_gap_agrees_with_the_gram_gap_and_is_batched():
    x = features(29, 200, 5, 11, spread=0.5)
    torch.testing.assert_close(feature_isometry_gap(x), isometry_gap(gram(x)), rtol=1e-11, atol=1e-12)
    assert feature_isometry_gap(x.reshape(10, 20, 5, 11)).shape == (10, 20)
    flat = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    assert feature_isometry_gap(flat) == torch.inf


def test_feature_gap_refusals():
    with pytest.raises(InvalidValueError, match="5 samples in 3 dimensions"):
        feature_isometry_gap(torch.ones(5, 3))
    with pytest.raises(InvalidValueError, match="all zero"):
        feature_isometry_gap(torch.zeros(2, 3))
    with pytest.raises(InvalidValueError, match="not finite"):
        feature_isometry_gap(torch.full((2, 3), torch.nan))
    with as_users_run_it(), pytest.raises(InvalidValueError, match="floating point"):
        feature_isometry_gap(torch.ones(2, 3, dtype=torch.int64))


# ------------------------------------------------------------------ laws


@given(st.integers(1, 8), st.integers(0, 10**6), st.floats(-100, 100))
def test_laws_of_isometry(n, seed, exponent):
    """In (0, 1], blind to scale and to a rotation of the samples, exp of minus the gap."""
    x = features(seed, 1, n, n + 3)[0]
    G = gram(x)
    value, gap = isometry(G), isometry_gap(G)
    assert 0.0 < value <= 1.0
    assert gap >= 0.0
    assert value == torch.exp(-gap)
    torch.testing.assert_close(isometry_gap(G * 10.0**exponent), gap, rtol=1e-9, atol=1e-14)
    q = torch.linalg.qr(torch.randn(n, n, generator=generator(seed), dtype=torch.float64)).Q
    torch.testing.assert_close(isometry_gap(q @ G @ q.mT), gap, rtol=1e-8, atol=1e-13)


@given(st.integers(1, 9), st.floats(1e-200, 1e200))
def test_lemma_a1_holds_for_every_multiple_of_the_identity(n, c):
    """Isometry is 1 iff M = cI; printed: iff M = I. Every c ≠ 1 is a counterexample to the printed one."""
    M = c * torch.eye(n, dtype=torch.float64)
    assert isometry(M) == 1.0
    assert isometry_gap(M) == 0.0


@given(st.integers(2, 8), st.integers(0, 10**6), st.floats(1e-12, 1.0), st.booleans())
def test_lemma_a1_and_for_nothing_else(n, seed, size, diagonal):
    """M = c(I + size·E) with E not a multiple of I: the gap is positive, however small."""
    e = weakly_correlated(seed, 1, n, 0.5 / n)[0] - torch.eye(n, dtype=torch.float64)
    if diagonal:
        e = torch.diag(torch.linspace(-0.5, 0.5, n, dtype=torch.float64))
    M = 2.5 * (torch.eye(n, dtype=torch.float64) + size * e)
    assert isometry_gap(M) > 0.0


def test_lyapunov_values():
    G = torch.tensor([[4.0, 1.0, 0.0], [1.0, 1.0, -0.5], [0.0, -0.5, 1.0]], dtype=torch.float64)
    assert float(lyapunov(G)) == 1.0  # largest |cosine| is ½
    assert lyapunov(torch.eye(4)) == 0.0
    assert lyapunov(torch.eye(1)) == 0.0
    for sign in (1.0, -1.0):
        assert lyapunov(torch.tensor([[1.0, sign], [sign, 1.0]])) == torch.inf
    batch = unit_grams(31, 8, 5)
    assert torch.equal(lyapunov(batch), torch.stack([lyapunov(g) for g in batch]))
    A = features(37, 1, 3, 6)[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: lyapunov(x @ x.mT), A)
