"""P2's Theorem 1 and its corollaries: what holds, counted, and counterexamples to what is printed."""

from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from farfield.errors import InvalidValueError
from farfield.geometry import gram, isometry, isometry_gap, normalization_gain, normalized_gram
from farfield.geometry.bounds import corollary2_bound, corollary3_bound, theorem1_bound
from farfield.nn import Center, LayerNorm, Project
from gram_samples import features, unit_grams

SHAPES = [(2, 3), (3, 8), (5, 12), (8, 40)]
ROUNDING = 1e-12  # in log space; the matrices below have condition numbers up to about 1e4


def check_identity(gain):
    """The exact form of Theorem 1, at 8000 Gram matrices with unequal diagonals."""
    for seed, (n, d) in enumerate(SHAPES):
        G = gram(features(seed, 2000, n, d, spread=0.5))
        difference = isometry_gap(G) - isometry_gap(normalized_gram(G)) - gain(G)
        assert float(difference.abs().max()) < ROUNDING


def violations(log_after: torch.Tensor, bound: torch.Tensor) -> int:
    return int((log_after < torch.log(bound) - ROUNDING).sum())


def test_theorem_1_as_an_identity():
    check_identity(normalization_gain)


def test_theorem_1_as_an_identity_rejects_the_papers_equality():
    """Eq. 8 prints "=" where only "≥" holds; the bound's own ratio is not the gain."""

    def printed(G):
        return torch.log(theorem1_bound(G)) + isometry_gap(G)

    with pytest.raises(AssertionError):
        check_identity(printed)


@given(
    st.lists(st.lists(st.integers(-9, 9), min_size=4, max_size=4), min_size=2, max_size=3),
)
def test_theorem_1_in_exact_arithmetic(rows):
    """Integer features: determinants by fractions, logarithms by mpmath, none of farfield's own steps."""
    G = [[Fraction(sum(a * b for a, b in zip(r, s, strict=True))) for s in rows] for r in rows]
    n = len(G)
    if n == 2:
        det = G[0][0] * G[1][1] - G[0][1] ** 2
    else:
        det = sum(
            G[0][i] * (G[1][(i + 1) % 3] * G[2][(i + 2) % 3] - G[1][(i + 2) % 3] * G[2][(i + 1) % 3])
            for i in range(3)
        )
    assume(det > 0)
    squares = [G[i][i] for i in range(n)]
    with mpmath.workdps(40):
        log = lambda q: mpmath.log(mpmath.mpf(q.numerator) / q.denominator)  # noqa: E731
        before = log(det) / n - log(sum(squares) / n)
        after = (log(det) - sum(log(q) for q in squares)) / n
        roots = [mpmath.sqrt(q.numerator) for q in squares]
        spread = sum(r * r for r in roots) / n / (sum(roots) / n) ** 2
        bound = before + mpmath.log(spread)
    M = torch.tensor([[float(v) for v in row] for row in G], dtype=torch.float64)
    condition = float(torch.linalg.cond(M))
    tolerance = 1e-14 + 1e-15 * condition
    assert after >= bound
    assert abs(float(normalization_gain(M)) - float(after - before)) < 1e-13
    assert abs(float(torch.log(theorem1_bound(M))) - float(bound)) < tolerance
    assert abs(float(isometry_gap(normalized_gram(M))) + float(after)) < tolerance


def test_theorem_1_as_a_bound():
    for seed, (n, d) in enumerate(SHAPES):
        for spread in (0.0, 0.3, 0.8):
            G = gram(features(100 + seed, 1000, n, d, spread=spread))
            assert violations(-isometry_gap(normalized_gram(G)), theorem1_bound(G)) == 0
            assert bool((isometry(normalized_gram(G)) >= isometry(G) - ROUNDING).all())


def test_theorem_1_is_not_vacuous():
    """One per cent more than the bound is violated: the check has teeth."""
    lengths = torch.exp(0.05 * features(5, 1000, 3, 1))
    G = unit_grams(5, 1000, 3) * lengths * lengths.mT
    assert violations(-isometry_gap(normalized_gram(G)), theorem1_bound(G)) == 0
    assert violations(-isometry_gap(normalized_gram(G)), 1.01 * theorem1_bound(G)) > 900


def test_the_gain_follows_lengths_of_any_ratio():
    """a² = (1, 1e-20): log AM − log GM = log ½ + 10 log 10, where log1p(a²/mean − 1) is infinite."""
    G = torch.diag(torch.tensor([1.0, 1e-20], dtype=torch.float64))
    expected = torch.log(torch.tensor(0.5 * 1e10, dtype=torch.float64))
    torch.testing.assert_close(normalization_gain(G), expected, rtol=1e-14, atol=0)
    tiny = torch.diag(torch.tensor([1.0, 1.0 + 1e-8], dtype=torch.float64))
    assert abs(float(normalization_gain(tiny)) / 1.25e-17 - 1) < 1e-6
    assert normalization_gain(torch.full((3, 3), 1e300, dtype=torch.float64) / 4) == 0.0


def test_the_gain_is_batched_differentiable_and_refuses_a_zero_row():
    x = features(6, 8, 4, 7, spread=0.5)
    G = gram(x)
    assert torch.equal(normalization_gain(G)[3], normalization_gain(G[3]))
    assert torch.autograd.gradcheck(lambda t: normalization_gain(gram(t)), x[0].clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda t: theorem1_bound(gram(t)), x[0].clone().requires_grad_())
    with pytest.raises(InvalidValueError, match="positive and finite"):
        normalization_gain(torch.diag(torch.tensor([1.0, 0.0])))


# ------------------------------------------------------------------ Corollary 2


def counts_after(layer, cases: int = 2000) -> tuple[int, int, int]:
    """(cases, violations of Corollary 2's bound, falls of isometry) for a layer on the rows of random batches."""
    total = broken = fallen = 0
    for seed, (n, d) in enumerate([(2, 3), (3, 5), (4, 8), (8, 16), (10, 12)]):
        x = features(200 + seed, cases, n, d, spread=0.2)
        after = -isometry_gap(gram(layer(x)))
        broken += violations(after, corollary2_bound(x))
        fallen += int((after < -isometry_gap(gram(x)) - ROUNDING).sum())
        total += cases
    return total, broken, fallen


def test_corollary_2_holds_for_projection():
    assert counts_after(Project()) == (10_000, 0, 0)


@pytest.mark.parametrize("norm_eps", [1e-5, 1e-1, 10.0])
def test_with_an_epsilon_isometry_still_never_falls(norm_eps):
    _, _, fallen = counts_after(Project(norm_eps))
    assert fallen == 0


def test_corollary_2_fails_for_a_centering_layer_norm():
    """As printed ("LayerNorm") it fails, and isometry itself falls: centering is what does it."""
    total, broken, fallen = counts_after(LayerNorm(0.0))
    assert broken > total // 10
    assert 0 < fallen < broken
    _, _, fallen_by_centering = counts_after(Center())
    assert fallen_by_centering > total // 10


def test_corollary_2_smallest_counterexample():
    """Two orthogonal samples, isometry 1, that differ mostly along the mean: centering makes them antipodal."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert isometry(gram(x)) == 1.0
    assert isometry(gram(LayerNorm(0.0)(x))) == 0.0
    assert isometry(gram(Project()(x))) == 1.0


# ------------------------------------------------------------------ Corollary 3


def columns_scaled(x: torch.Tensor) -> torch.Tensor:
    return x / torch.linalg.vector_norm(x, dim=-2, keepdim=True)


def corollary3_as_printed(x: torch.Tensor) -> torch.Tensor:
    """Corollary 3 with ā = (1/n)Σ over the d features, n the batch size."""
    n = x.shape[-2]
    a = torch.linalg.vector_norm(x, dim=-2)
    mean = a.sum(-1) / n
    variance = a.var(-1, correction=0)
    return isometry(gram(x.mT)) * (1.0 + variance / mean**2)


def corollary3_violations(bound) -> tuple[int, int]:
    total = broken = 0
    for seed, (n, d) in enumerate([(6, 2), (12, 3), (40, 5), (64, 8)]):
        x = features(300 + seed, 2000, n, d)
        x = x * torch.exp(0.4 * features(400 + seed, 2000, 1, d))
        after = -isometry_gap(gram(columns_scaled(x).mT))
        broken += violations(after, bound(x))
        total += 2000
    return total, broken


def test_corollary_3_corrected_holds():
    assert corollary3_violations(corollary3_bound) == (8000, 0)


def test_corollary_3_as_printed_fails_for_most_batches():
    total, broken = corollary3_violations(corollary3_as_printed)
    assert broken > total // 2


def test_corollary_3_says_nothing_for_fewer_samples_than_features():
    assert corollary3_bound(features(7, 1, 3, 5))[0] == 0.0
