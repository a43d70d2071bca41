"""The steps of P2's Theorem 4, each with zero slack, and counterexamples to the printed versions."""

import functools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farfield.errors import InvalidValueError
from farfield.gaussian import activation, activation_names, isometry_strength
from farfield.geometry import isometry_gap, lyapunov, mean_field_gaps, mean_field_step
from farfield.geometry.bounds import (
    correlation_contraction,
    gap_bound_from_lyapunov,
    lyapunov_bound_from_isometry,
    theorem4_bound,
    theorem4_depth,
)
from gram_samples import generator, near_duplicates, unit_grams, weakly_correlated

NAMES = activation_names()
ODD = ("identity", "tanh", "sin", "erf", "softsign", "hardtanh", "tanhshrink", "sign", "he3")


def pair(rho: float) -> torch.Tensor:
    return torch.tensor([[1.0, rho], [rho, 1.0]], dtype=torch.float64)


def star(rho: torch.Tensor) -> torch.Tensor:
    """Pairs with these correlations, shape (k, 2, 2): one layer's map of single correlations."""
    one = torch.ones_like(rho)
    return torch.stack([torch.stack([one, rho], -1), torch.stack([rho, one], -1)], -2)


# ------------------------------------------------------------------ Lemma B.6


def check_contraction(name, bound):
    """|σ̄(ρ)/σ̄(1)| ≤ bound(ρ, β) and γ falls by 1/β, at 2000 correlations; no slack but the step's own error."""
    beta = isometry_strength(name)
    rho = 2.0 * torch.rand(2000, generator=generator(1), dtype=torch.float64) - 1.0
    rho[:200] = torch.sign(rho[:200]) * (1.0 - 10.0 ** torch.linspace(-9, 0, 200, dtype=torch.float64))
    after = mean_field_step(star(rho), name)[:, 0, 1].abs()
    formula = activation(name).closed_form
    rounding = 1e-12 if formula is None or formula.reduced is None else 2e-15
    assert bool((after <= bound(rho, beta) + rounding).all()), name
    inside = rho.abs() < 0.999  # γ amplifies rounding by 1/(1 − ρ)²
    before, behind = rho[inside].abs(), after[inside]
    assert bool((behind / (1 - behind) <= before / (1 - before) / beta * (1 + 1e-8)).all()), name


@pytest.mark.parametrize("name", NAMES)
def test_lemma_b6(name):
    check_contraction(name, correlation_contraction)


@pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "step"])
def test_lemma_b6_rejects_exchanged_weights(name):
    """(β − 1)|ρ| + (2 − β)ρ² in place of (2 − β)|ρ| + (β − 1)ρ²."""
    with pytest.raises(AssertionError):
        check_contraction(name, lambda rho, beta: correlation_contraction(rho, 3.0 - beta))


@given(st.floats(1.0, 2.0), st.floats(0.0, 1.0, exclude_max=True))
def test_the_contraction_implies_gamma_over_beta(beta, rho):
    """In exact rational arithmetic, and the function is that expression to rounding."""
    b, r = Fraction(beta), Fraction(rho)
    after = (2 - b) * r + (b - 1) * r * r
    assert 0 <= after <= r
    assert b * after * (1 - r) <= r * (1 - after)
    for signed in (rho, -rho):
        value = float(correlation_contraction(torch.tensor(signed, dtype=torch.float64), beta))
        assert abs(value - float(after)) <= 4e-16 * rho + 1e-323  # one unit of a subnormal


def test_the_contraction_is_attained():
    """By identity, He₂ and anything with c₁ and c₂ alone: the lemma cannot be sharpened."""
    rho = torch.linspace(-1, 1, 101, dtype=torch.float64)
    for name in ("identity", "he2"):
        after = mean_field_step(star(rho), name)[:, 0, 1].abs()
        torch.testing.assert_close(
            after, correlation_contraction(rho, isometry_strength(name)), rtol=0, atol=1e-15
        )


# ------------------------------------------------------------------ gap ≤ 2γ and γ ≤ 2·I⁻ⁿ


@pytest.mark.parametrize("sharp", [False, True])
def test_gap_bound_from_lyapunov(sharp):
    """Zero slack at 6000 matrices inside the condition, tiny correlations included."""
    inside = 0
    for seed, n in enumerate((2, 3, 5, 10)):
        for size in (1.0, 0.99, 0.5, 1e-4, 1e-12):
            gamma_limit = 1.0 / (2 * n - 2)
            G = weakly_correlated(seed, 300, n, size * gamma_limit / (1 + gamma_limit))
            gamma = lyapunov(G)
            bound = gap_bound_from_lyapunov(gamma, n, sharp=sharp)
            assert torch.equal(torch.isfinite(bound), gamma < gamma_limit)
            assert bool((isometry_gap(G) <= bound).all())
            inside += int((gamma < gamma_limit).sum())
    assert inside == 6000


def test_gap_bound_says_nothing_outside_its_condition():
    """And has to: 2γ does not bound the gap of equicorrelated samples with ρ → −1/(n−1), where γ stays small."""
    for seed, n in enumerate((2, 3, 8)):
        G = unit_grams(seed, 1000, n)
        gamma = lyapunov(G)
        bound = gap_bound_from_lyapunov(gamma, n)
        assert bool((bound[gamma >= 1.0 / (2 * n - 2)] == torch.inf).all())
        assert bool((isometry_gap(G) <= bound).all())
    n = 20
    rho = -1.0 / (n - 1) * (1 - 1e-9)
    G = torch.full((n, n), rho, dtype=torch.float64).fill_diagonal_(1.0)
    assert isometry_gap(G) > 2 * lyapunov(G)
    assert gap_bound_from_lyapunov(lyapunov(G), n) == torch.inf


def test_the_sharp_form_is_sharper_and_nearly_attained():
    gamma = torch.logspace(-9, -2, 50, dtype=torch.float64)
    for n in (2, 5, 20):
        loose, sharp = gap_bound_from_lyapunov(gamma, n), gap_bound_from_lyapunov(gamma, n, sharp=True)
        assert bool((sharp <= loose).all())
    # Equicorrelation ε: Σe² = n(n−1)ε², so the gap tends to half the sharp bound.
    n, epsilon = 5, 1e-6
    G = torch.full((n, n), epsilon, dtype=torch.float64).fill_diagonal_(1.0)
    ratio = float(isometry_gap(G) / gap_bound_from_lyapunov(lyapunov(G), n, sharp=True))
    assert abs(ratio - 0.5) < 1e-4


def test_lyapunov_bound_from_isometry():
    """γ ≤ 2·I⁻ⁿ with zero slack at 10000 Gram matrices, from nearly orthogonal to nearly parallel."""
    for seed, n in enumerate((2, 3, 5, 8, 12)):
        cases = [unit_grams(seed, 500, n), unit_grams(seed + 50, 500, n, d=n)]
        cases += [near_duplicates(seed, 500, n, 0.3), near_duplicates(seed, 500, n, 0.05)]
        G = torch.cat(cases)
        assert bool((lyapunov(G) <= lyapunov_bound_from_isometry(isometry_gap(G), n)).all())


def test_lyapunov_bound_needs_its_factor_and_its_power():
    """Neither I⁻ⁿ without the 2 nor 2·I⁻¹ is a bound."""
    G = unit_grams(3, 1000, 2, d=2)
    gap, gamma = isometry_gap(G), lyapunov(G)
    assert int((gamma > lyapunov_bound_from_isometry(gap, 2) / 2).sum()) > 0
    assert int((gamma > 2.0 * torch.exp(gap)).sum()) > 0


def test_bounds_of_one_sample_and_of_bad_arguments():
    assert gap_bound_from_lyapunov(0.0, 1) == 0.0
    for call in (
        lambda: gap_bound_from_lyapunov(0.1, 0),
        lambda: lyapunov_bound_from_isometry(0.1, 0),
        lambda: theorem4_depth(0.1, 0, 1.5),
    ):
        with pytest.raises(InvalidValueError, match="n >= 1"):
            call()
    for beta in (0.99, 2.01, math.nan):
        with pytest.raises(InvalidValueError, match=r"lies in \[1, 2\]"):
            correlation_contraction(torch.tensor(0.5), beta)
        with pytest.raises(InvalidValueError, match=r"lies in \[1, 2\]"):
            theorem4_bound(pair(0.5), beta, 3)
    for gap in (-1.0, math.nan):
        with pytest.raises(InvalidValueError, match="gap is >= 0"):
            theorem4_depth(gap, 3, 1.5)
    with pytest.raises(InvalidValueError, match="depth is >= 0"):
        theorem4_bound(pair(0.5), 1.5, -1)


# ------------------------------------------------------------------ Theorem 4

DEPTH = 25
INPUTS = {
    "random": unit_grams(1, 1, 4)[0],
    "crowded": unit_grams(2, 1, 6, d=6)[0],
    "near duplicates": near_duplicates(3, 1, 4, 0.05)[0],
    "nearly antipodal": pair(-0.999),
    "dependent": torch.tensor([[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]], dtype=torch.float64),
    "weak": weakly_correlated(5, 1, 8, 1e-3)[0],
}


@functools.cache
def true_gaps(name: str, label: str) -> torch.Tensor:
    return mean_field_gaps(INPUTS[label], name, DEPTH)


def check_theorem_4(bound):
    """The mean-field gap never exceeds the bound, at any layer of any activation and input: no slack."""
    finite = 0
    for name in NAMES:
        beta = isometry_strength(name)
        for label, G in INPUTS.items():
            gaps, limits = true_gaps(name, label), bound(G, beta, DEPTH)
            assert limits.shape == gaps.shape
            assert bool((gaps <= limits).all()), (name, label)
            finite += int(torch.isfinite(limits).sum())
    return finite


@pytest.mark.full
def test_theorem_4_corrected():
    assert check_theorem_4(theorem4_bound) > 1000


@pytest.mark.full
def test_theorem_4_sharp_form():
    def sharp(G, beta, depth):
        return theorem4_bound(G, beta, depth, sharp=True)

    check_theorem_4(sharp)
    assert bool((sharp(INPUTS["weak"], 1.3, 30) <= theorem4_bound(INPUTS["weak"], 1.3, 30)).all())


def test_lemma_b3():
    """(1 − (n−1)m)ⁿ ≤ det G ≤ 1 − m² with m the largest correlation; the left side says something for m < 1/(n−1)."""
    tried = 0
    for G in INPUTS.values():
        n = len(G)
        m = float((G - torch.eye(n, dtype=G.dtype)).abs().max())
        det = math.exp(-n * float(isometry_gap(G)))
        assert det <= (1.0 - m * m) * (1 + 1e-9)
        if (n - 1) * m < 1:
            tried += 1
            assert (1.0 - (n - 1) * m) ** n <= det * (1 + 1e-9)
        # What is made of it: γ ≤ 2/det.
        assert float(lyapunov(G)) <= float(lyapunov_bound_from_isometry(isometry_gap(G), n)) * (1 + 1e-9)
    assert tried >= 1


@pytest.mark.parametrize("with_n", [False, True])
def test_theorem_4_with_a_constant_of_one_is_no_bound(with_n):
    """Eq. 11 is C·n·β^{−ℓ} with C unnamed: C = 1 fails at every layer shown, with n or without."""

    def printed(G, beta, depth):
        decay = torch.tensor(beta, dtype=torch.float64) ** -torch.arange(depth + 1, dtype=torch.float64)
        return len(G) * decay if with_n else decay

    with pytest.raises(AssertionError):
        check_theorem_4(printed)
    G = near_duplicates(3, 1, 8, 1e-4)[0]
    beta = isometry_strength("relu")
    gaps = mean_field_gaps(G, "relu", 25)
    assert bool((gaps > printed(G, beta, 25)).all())
    assert bool((gaps <= theorem4_bound(G, beta, 25)).all())
    close = mean_field_gaps(pair(1.0 - 1e-12), "relu", 25)
    assert bool((close > printed(pair(1.0 - 1e-12), beta, 25)).all())


def test_theorem_4_as_its_proof_ends_is_no_bound_at_the_first_layers():
    """2nγ(G⁰)β^{−ℓ} needs γ small, as the corrected bound says: dependent rows have a finite γ and a gap of ∞."""
    G = 1.5 * torch.eye(3, dtype=torch.float64) - 0.5
    gamma = float(lyapunov(G))
    assert gamma == pytest.approx(1.0)
    assert not float(isometry_gap(G)) <= 2 * 3 * gamma
    assert float(theorem4_bound(G, isometry_strength("relu"), 0)[0]) == math.inf


def test_theorem_4_with_gamma_forgotten_is_no_bound():
    """2β^{−ℓ}, without γ(G⁰), is caught by the same check."""

    def wrong(G, beta, depth):
        decay = torch.tensor(beta, dtype=torch.float64) ** -torch.arange(depth + 1, dtype=torch.float64)
        return torch.minimum(2 * decay, torch.full_like(decay, 2.0))

    with pytest.raises(AssertionError):
        check_theorem_4(wrong)


@pytest.mark.parametrize("name", ODD)
def test_antipodal_pairs_stay_degenerate_under_odd_activations(name):
    """ "Not aligned" is not enough: x and −x are not aligned, and the gap is ∞ at every layer."""
    assert bool((mean_field_gaps(pair(-1.0), name, 40) == torch.inf).all())
    G = torch.tensor([[1.0, -1.0, 0.3], [-1.0, 1.0, -0.3], [0.3, -0.3, 1.0]], dtype=torch.float64)
    assert bool((mean_field_gaps(G, name, 40) == torch.inf).all())
    assert bool((theorem4_bound(G, isometry_strength(name), 40) == torch.inf).all())


@pytest.mark.parametrize("name", NAMES)
def test_parallel_pairs_stay_degenerate_under_every_activation(name):
    assert bool((mean_field_gaps(pair(1.0), name, 40) == torch.inf).all())


def test_antipodal_pairs_are_parted_by_activations_that_are_not_odd():
    for name in ("relu", "gelu", "sigmoid", "softplus", "exp"):
        gaps = mean_field_gaps(pair(-1.0), name, 3)
        assert gaps[0] == torch.inf
        # sigmoid − ½ is odd: centering leaves an odd function, so the pair stays antipodal.
        assert (gaps[1] == torch.inf) == (name == "sigmoid"), name


def test_dependent_but_not_parallel_samples_recover():
    """An infinite first gap with finite γ: the depth from the gap alone is ∞, the bound from γ is not."""
    G = INPUTS["dependent"]
    beta = isometry_strength("relu")
    assert isometry_gap(G) == torch.inf
    assert theorem4_depth(math.inf, 3, beta) == math.inf
    assert bool(torch.isfinite(theorem4_bound(G, beta, 20)[-1]))
    assert bool(torch.isfinite(mean_field_gaps(G, "relu", 1)[1]))


# ------------------------------------------------------------------ Eq. 24


def condition_met(G, beta, depth) -> bool:
    n = G.shape[-1]
    return bool(lyapunov(G) * beta**-depth < 1.0 / (2 * n - 2))


def check_depth_condition(depth):
    """At that depth, rounded up, Theorem 4's condition is met, for 1500 Gram matrices and six strengths."""
    for seed, n in enumerate((2, 3, 6)):
        for G in torch.cat([unit_grams(seed, 60, n), near_duplicates(seed, 23, n, 0.1)]):
            gap = float(isometry_gap(G))
            for beta in (1.016, 1.07, 1.2, 1.27, 1.6, 2.0):
                assert condition_met(G, beta, math.ceil(depth(gap, n, beta)))


def test_depth_condition_corrected():
    check_depth_condition(theorem4_depth)


def test_depth_condition_as_printed_is_too_shallow():
    """Eq. 24 prints 1/β for 1/log β: for tanh that is fourteen times too few layers."""

    def printed(gap, n, beta):
        return (n * gap + math.log(4 * n)) / beta

    with pytest.raises(AssertionError):
        check_depth_condition(printed)
    G = unit_grams(1, 1, 6)[0]
    beta = isometry_strength("tanh")
    depth = math.ceil(printed(float(isometry_gap(G)), 6, beta))
    current = G
    for _ in range(depth):
        current = mean_field_step(current, "tanh")
    # Not only is the bound's condition unmet there: the network's own γ is still too large.
    assert not condition_met(G, beta, depth)
    assert lyapunov(current) > 1.0 / (2 * 6 - 2)


def test_depth_is_infinite_where_nothing_moves():
    assert theorem4_depth(0.5, 4, 1.0) == math.inf
    assert theorem4_depth(math.inf, 4, 1.5) == math.inf
    assert theorem4_depth(0.0, 1, 2.0) == pytest.approx(2.0)
