"""Nyström against exact fits and dense normal equations; streams, merges, bounds."""

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from farfield import engine
from farfield.errors import InvalidValueError
from farfield.regression import Nystrom, fit, landmarks
from regression_problems import RBF, data, generator, network, queries
from shape_checking import as_users_run_it


@pytest.mark.parametrize("k", [None, 2])
@pytest.mark.parametrize("kernel", [network(), network(None), RBF()])
def test_all_inputs_as_landmarks_are_an_exact_fit(kernel, k):
    x, y = data(60, 4, k)
    q = queries(20, 4)
    exact = fit(kernel, x, y, noise=0.1)
    model = Nystrom(kernel, x).partial_fit(x, y).solve(0.1)
    assert model.rank == 60 and model.count == 60
    assert model.weights.shape == y.shape and model.energy.shape == y.shape[1:]
    assert torch.allclose(model.mean(q), exact.mean(q), rtol=1e-7, atol=1e-8)
    assert torch.allclose(model.energy, exact.energy, rtol=1e-7)
    error = ((exact.mean(x) - y) ** 2).mean(0)
    assert torch.allclose(model.training_error, error, rtol=1e-6)


def test_against_dense_normal_equations():
    """numpy least squares on the stacked system, which never squares the condition."""
    x, y = data(500, 3)
    z = landmarks(network().function("ntk"), x, 40)
    phi, L = network().ntk(x, z).numpy(), np.linalg.cholesky(network().ntk(z).numpy())
    stacked = np.vstack([phi, math.sqrt(0.05) * L.T])
    w = np.linalg.lstsq(stacked, np.concatenate([y.numpy(), np.zeros(40)]), rcond=None)[0]
    f = Nystrom(network(), z).partial_fit(x, y).solve(0.05)
    q = queries()
    assert np.abs(f.mean(q).numpy() - network().ntk(q, z).numpy() @ w).max() < 1e-8
    # A wrong penalty, on the weights and not on the function, is another predictor.
    wrong = np.linalg.solve(phi.T @ phi + 0.05 * np.eye(40), phi.T @ y.numpy())
    assert np.abs(f.mean(q).numpy() - network().ntk(q, z).numpy() @ wrong).max() > 1e-3


@examples(max_examples=15)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=6), st.integers(0, 1000))
def test_how_rows_are_divided_shows_in_no_bit(sizes, seed):
    total = sum(sizes) + 1
    x, y = data(total, 2, seed=seed)
    z = x[: min(12, total)]
    whole = Nystrom(network(), z).partial_fit(x, y)
    parts = Nystrom(network(), z)
    for rows, targets in zip(x.split([*sizes, 1]), y.split([*sizes, 1]), strict=True):
        parts.partial_fit(rows, targets)
    assert parts.count == total
    assert torch.equal(parts.solve(0.1).weights, whole.solve(0.1).weights)


def test_solving_in_between_changes_nothing():
    x, y = data(6000, 2)
    model = Nystrom(network(), x[:20])
    model.partial_fit(x[:5500], y[:5500])
    early = model.solve(0.1)
    assert early.count == 5500
    model.partial_fit(x[5500:], y[5500:])
    assert torch.equal(
        model.solve(0.1).weights, Nystrom(network(), x[:20]).partial_fit(x, y).solve(0.1).weights
    )


def test_merge_and_stream():
    x, y = data(9000, 3, 2)
    z = x[:30]
    whole = Nystrom(network(), z).partial_fit(x, y).solve(0.1)
    left = Nystrom(network(), z).partial_fit(x[:2345], y[:2345])
    right = Nystrom(network(), z).partial_fit(x[2345:], y[2345:])
    before = left.solve(0.1).weights
    merged = left.merge(pickle.loads(pickle.dumps(right)))
    assert merged.count == 9000
    assert torch.allclose(merged.solve(0.1).mean(x[:50]), whole.mean(x[:50]), rtol=1e-10, atol=1e-10)
    assert torch.equal(left.solve(0.1).weights, before)
    batches = list(zip(x.split(1200), y.split(1200), strict=True))
    for workers in (1, 2):
        streamed = Nystrom(network(), z).stream(iter(batches), engine=engine.local(workers))
        assert streamed.count == 9000
        assert torch.allclose(streamed.solve(0.1).mean(x[:50]), whole.mean(x[:50]), rtol=1e-10, atol=1e-10)
    assert Nystrom(network(), z).merge(left).count == 2345


def test_a_stream_goes_on_from_a_checkpoint(tmp_path):
    x, y = data(900, 2)
    batches = list(zip(x.split(100), y.split(100), strict=True))
    whole = Nystrom(network(), x[:20]).stream(batches).solve(0.1)

    def broken():
        yield from batches[:5]
        raise OSError("the disk is gone")

    folder = engine.Checkpoint(tmp_path, "stream")
    with pytest.raises(OSError, match="disk"):
        Nystrom(network(), x[:20]).stream(broken(), checkpoint=folder)
    resumed = Nystrom(network(), x[:20]).stream(batches, checkpoint=folder).solve(0.1)
    assert torch.equal(resumed.weights, whole.weights)


def test_bound_holds_far_away_and_for_few_landmarks():
    x, y = data(400, 3, 2)
    for m in (1, 5, 50):
        for noise in (1e-6, 0.1):
            f = Nystrom(network(), x[:m]).partial_fit(x, y).solve(noise)
            far = torch.cat([radius * queries(100) for radius in (1, 1e3, 1e8)])
            assert f.output_bound().shape == (2,)
            assert (f.mean(far).abs() <= f.output_bound()).all()
            assert (f.mean(far).abs() <= f.output_bound(far)).all()
    assert torch.isinf(Nystrom(network(None), x[:5]).partial_fit(x, y).solve(0.1).output_bound()).all()


def test_more_landmarks_are_better_and_greedy_ones_better_than_random():
    x, y = data(600, 3)
    exact = fit(network(), x, y, noise=0.01)
    q = queries(100)
    function = network().function("ntk")

    def error(z):
        f = Nystrom(network(), z).partial_fit(x, y).solve(0.01)
        return float((f.mean(q) - exact.mean(q)).norm() / exact.mean(q).norm())

    errors = [error(landmarks(function, x, m)) for m in (10, 40, 160, 600)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-6
    g = generator()
    uniform = [error(landmarks(function, x, 40, method="uniform", generator=g)) for _ in range(5)]
    assert errors[1] < sorted(uniform)[2]


def test_repeated_landmarks_and_no_noise():
    """K_mm singular: the directions that are not there are left out."""
    x, y = data(300, 3)
    z = torch.cat([x[:20], x[:20]])
    once, twice = (Nystrom(network(), part).partial_fit(x, y).solve(0.01) for part in (x[:20], z))
    assert (once.rank, twice.rank) == (20, 20)
    q = queries()
    assert torch.allclose(once.mean(q), twice.mean(q), atol=1e-6)
    best = Nystrom(network(), x[:20]).partial_fit(x, y).solve(0.0)
    w = np.linalg.lstsq(network().ntk(x, x[:20]).numpy(), y.numpy(), rcond=None)[0]
    assert np.abs(best.mean(q).numpy() - network().ntk(q, x[:20]).numpy() @ w).max() < 1e-6


def test_float32_features():
    x, y = data(2000, 3)
    z = x[:50]
    double = Nystrom(network(), z).partial_fit(x, y).solve(0.1)
    single = Nystrom(network(), z, dtype=torch.float32).partial_fit(x.float(), y).solve(0.1)
    q = queries()
    assert (single.mean(q) - double.mean(q)).abs().max() < 3e-3


def test_pivots_are_those_of_pivoted_cholesky():
    """Against the textbook loop over the whole matrix: the first pivots agree where they are clear."""
    from farfield.regression._pivoted import low_rank

    x = torch.randn(200, 2, generator=generator(3), dtype=torch.float64)
    K = RBF(2.0)(x)
    columns, pivots = low_rank(RBF(2.0), x, 60)
    error = (K - columns @ columns.mT).abs().max()
    rest = K.clone()
    for _ in range(len(pivots)):
        j = int(rest.diagonal().argmax())
        rest = rest - rest[:, [j]] @ rest[[j]] / rest[j, j]
    assert error < 10 * rest.diagonal().max() + 1e-12
    assert torch.allclose((columns @ columns.mT)[pivots], K[pivots], atol=1e-9)
    assert len(set(pivots.tolist())) == len(pivots)


def test_refusals():
    x, y = data(50)
    model = Nystrom(network(), x[:5])
    with pytest.raises(InvalidValueError, match="no rows"):
        model.solve(0.1)
    model.partial_fit(x, y).partial_fit(x[:0], y[:0])
    with pytest.raises(InvalidValueError, match="shape of the first"):
        model.partial_fit(x, y[:, None])
    with pytest.raises(InvalidValueError, match="3 features"):
        model.partial_fit(x[:, :2], y)
    with pytest.raises(InvalidValueError, match="at least 0"):
        model.solve(-1.0)
    for other in (
        Nystrom(network(), x[:6]),
        Nystrom(network(None), x[:5]),
        Nystrom(network(), x[:5], dtype=torch.float32),
    ):
        with pytest.raises(InvalidValueError, match="same kernel, landmarks"):
            model.merge(other)
    with pytest.raises(InvalidValueError, match="at least one"):
        Nystrom(network(), x[:0])
    with as_users_run_it(), pytest.raises(InvalidValueError, match="float32 or float64"):
        Nystrom(network(), x, dtype=torch.int32)
    function = network().function("ntk")
    with pytest.raises(InvalidValueError, match="1 to 50"):
        landmarks(function, x, 51)
    with pytest.raises(InvalidValueError, match="generator"):
        landmarks(function, x, 5, method="uniform")
    with pytest.raises(InvalidValueError, match="'greedy' or 'uniform'"):
        landmarks(function, x, 5, method="best")
