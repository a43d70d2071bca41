"""Gram matrices, their unit-diagonal scalings and the soft cosine: laws, limits and refusals."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farfield.errors import InvalidValueError
from farfield.geometry import gram, normalized_gram, soft_cosine
from gram_samples import features, generator
from shape_checking import as_users_run_it

EPS = torch.finfo(torch.float64).eps
seeds = st.integers(0, 10**6)


def random_rows(seed: int, n: int, d: int, log_scale: float) -> torch.Tensor:
    return features(seed, 1, n, d, spread=0.5)[0] * 10.0**log_scale


def assert_a_correlation_matrix(S: torch.Tensor) -> None:
    assert torch.equal(torch.diagonal(S), torch.ones(len(S), dtype=S.dtype))
    torch.testing.assert_close(S, S.mT, rtol=0, atol=2 * EPS)
    assert bool((S.abs() <= 1.0).all())
    assert float(torch.linalg.eigvalsh(S)[0]) > -20 * len(S) * EPS


def test_gram_is_the_inner_products():
    x = features(1, 6, 3, 4)
    torch.testing.assert_close(gram(x), torch.einsum("bid,bjd->bij", x, x), rtol=1e-14, atol=1e-15)


@given(seeds, st.integers(1, 8), st.integers(1, 8), st.floats(-75, 75))
def test_normalized_gram_laws(seed, n, d, log_scale):
    G = gram(random_rows(seed, n, d, log_scale))
    G = (G + G.mT) / 2
    unit = normalized_gram(G)
    assert_a_correlation_matrix(unit)
    assert torch.equal(unit, unit.mT)
    torch.testing.assert_close(normalized_gram(unit), unit, rtol=0, atol=4 * EPS)
    scale = torch.exp(torch.randn(n, generator=generator(seed), dtype=torch.float64) * 3)
    torch.testing.assert_close(normalized_gram(G * scale[:, None] * scale), unit, rtol=1e-13, atol=16 * EPS)


@given(seeds, st.integers(1, 8), st.integers(1, 8), st.floats(-150, 150), st.floats(-3, 3))
def test_soft_cosine_laws(seed, n, d, log_scale, log_bias):
    x = random_rows(seed, n, d, log_scale)
    for bias_var in (0.0, 10.0**log_bias):
        S = soft_cosine(x, bias_var=bias_var)
        assert_a_correlation_matrix(S)
        assert torch.allclose(soft_cosine(x, x, bias_var=bias_var), S, rtol=0, atol=8 * EPS)
    # Scaling the inputs and the bias together changes nothing.
    torch.testing.assert_close(
        soft_cosine(x * 8.0, bias_var=64.0 * 10.0**log_bias),
        soft_cosine(x, bias_var=10.0**log_bias),
        rtol=0,
        atol=16 * EPS,
    )


@given(seeds, st.floats(-1, 1), st.floats(-3, 1))
def test_soft_cosine_is_its_formula(seed, log_scale, log_bias):
    x, y = random_rows(seed, 3, 5, log_scale), random_rows(seed + 1, 4, 5, log_scale)
    b = 10.0**log_bias
    inner = x @ y.mT / 5 + b
    q, r = (x * x).sum(-1) / 5 + b, (y * y).sum(-1) / 5 + b
    torch.testing.assert_close(
        soft_cosine(x, y, bias_var=b), inner / torch.sqrt(q[:, None] * r), rtol=0, atol=1e-14
    )


@given(seeds, st.floats(1e-3, 10.0))
def test_far_away_the_soft_cosine_is_the_cosine(seed, bias_var):
    """At distance λ the difference is at most bias_var·d/λ² times a constant: it falls like λ⁻²."""
    x = features(seed, 1, 4, 6)[0]
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    cosine = soft_cosine(x)
    torch.testing.assert_close(cosine, normalized_gram(gram(x)), rtol=0, atol=1e-14)
    errors = [float((soft_cosine(scale * x, bias_var=bias_var) - cosine).abs().max()) for scale in (1e3, 1e4)]
    assert errors[0] <= 2 * 6 * bias_var / 1e6
    assert errors[1] <= errors[0] / 90 + 8 * EPS
    assert torch.equal(soft_cosine(1e160 * x, bias_var=bias_var), soft_cosine(1e160 * x))


def test_close_by_the_soft_cosine_forgets_the_input():
    x = features(3, 1, 4, 6)[0]
    torch.testing.assert_close(
        soft_cosine(1e-9 * x, bias_var=1.0), torch.ones(4, 4, dtype=torch.float64), rtol=0, atol=1e-15
    )
    assert bool((soft_cosine(torch.zeros(2, 3), bias_var=0.1) == 1.0).all())


def test_batched_and_differentiable():
    x = features(5, 6, 3, 4)
    assert torch.equal(normalized_gram(gram(x))[2], normalized_gram(gram(x[2])))
    torch.testing.assert_close(
        soft_cosine(x, bias_var=0.1)[2], soft_cosine(x[2], bias_var=0.1), rtol=0, atol=4 * EPS
    )
    a = x[0].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: normalized_gram(gram(t)), a)
    assert torch.autograd.gradcheck(lambda t: soft_cosine(t, bias_var=0.3), a)
    assert torch.autograd.gradcheck(lambda t: soft_cosine(t, x[1], bias_var=0.0), a)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.tensor([[1.0, 0.0], [0.0, 0.0]]), "positive and finite.*smallest is 0"),
        (torch.tensor([[1.0, 0.0], [0.0, -1.0]]), "positive and finite"),
        (torch.tensor([[1.0, 0.0], [0.0, math.inf]]), "positive and finite"),
        (torch.tensor([[1.0, 5.0], [5.0, 1.0]]), "ratio reaches 5"),
        (torch.tensor([[1.0, math.nan], [math.nan, 1.0]]), "not finite"),
        (torch.ones(2, 3), "square"),
        (torch.ones(2, 2, dtype=torch.int32), "floating point"),
    ],
)
def test_normalized_gram_refusals(matrix, message):
    with as_users_run_it(), pytest.raises(InvalidValueError, match=message):
        normalized_gram(matrix)


def test_soft_cosine_refusals():
    for bad in (-0.1, math.nan, math.inf):
        with pytest.raises(InvalidValueError, match="variance is finite and >= 0"):
            soft_cosine(torch.ones(2, 2), bias_var=bad)
    zero_row = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    with pytest.raises(InvalidValueError, match="needs a direction"):
        soft_cosine(zero_row)
    with pytest.raises(InvalidValueError, match="finite"):
        soft_cosine(torch.tensor([[math.inf, 0.0]]), bias_var=1.0)
