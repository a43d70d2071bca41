"""Fits against dense algebra; solvers against each other; jitter; what is refused."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from farfield import engine
from farfield.errors import InvalidValueError, PrecisionError
from farfield.regression import Covariance, fit
from regression_problems import RBF, Explicit, data, dense, generator, network, queries
from shape_checking import as_users_run_it

CASES = {
    "ntk": (network(), "ntk"),
    "nngp": (network(), "nngp"),
    "plain": (network(None), "ntk"),
    "rbf": (RBF(), "ntk"),
}


def function(kernel, kind):
    return kernel if isinstance(kernel, RBF) else kernel.function(kind)


# ------------------------------------------------------------------ closed forms


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("k", [None, 1, 3])
def test_mean_and_variance_against_dense_algebra(case, noise, k):
    kernel, kind = CASES[case]
    x, y = data(k=k)
    q = queries()
    f = fit(kernel, x, y, kind=kind, noise=noise)
    mean, variance = dense(function(kernel, kind), x, y, q, noise)
    assert f.mean(q).shape == mean.shape
    assert torch.allclose(f.mean(q), mean, rtol=1e-9, atol=1e-9)
    assert torch.allclose(f.variance(q, "posterior"), variance, rtol=1e-8, atol=1e-9)
    assert f.residual < 1e-11 and f.jitter == 0 and f.solver == "cholesky"
    assert f.weights.shape == y.shape and f.energy.shape == y.shape[1:]


def test_energy_is_the_norm_of_the_mean():
    x, y = data(k=2)
    for noise in (0.0, 0.5):
        f = fit(network(), x, y, noise=noise)
        K = network().ntk(x)
        assert torch.allclose(f.energy, torch.einsum("ik,ij,jk->k", f.weights, K, f.weights), rtol=1e-12)
    # Without noise it is yᵀK⁻¹y.
    f = fit(network(), x, y)
    assert torch.allclose(f.energy, (y * torch.linalg.solve(K, y)).sum(0), rtol=1e-9)


@examples(max_examples=40)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 10**6), st.sampled_from([0.0, 1e-3, 1.0]))
def test_interpolation_and_variance_laws(n, d, seed, noise):
    """Through the targets without noise; variances between 0 and the prior's; two outputs are two fits."""
    x, y = data(n, d, 2, seed)
    f = fit(network(), x, y, noise=noise)
    if noise == 0:
        assert (f.mean(x) - y).abs().max() < 1e-7
        assert f.variance(x, "posterior").max() < 1e-7
        assert f.variance(x).max() < 1e-7
    q = queries(6, d, seed + 1)
    variance = f.variance(q, "posterior")
    assert (variance >= 0).all() and (variance <= network().diagonal(q)).all()
    for column in (0, 1):
        alone = fit(network(), x, y[:, column], noise=noise)
        assert torch.allclose(alone.mean(q), f.mean(q)[:, column], rtol=1e-9, atol=1e-9)


def test_variance_over_initializations_against_monte_carlo():
    """f₀ drawn from the NNGP at training and query inputs together, and trained in closed form."""
    x, y = data(12)
    q = queries(5)
    kernel = network()
    for noise in (0.0, 0.2):
        f = fit(kernel, x, y, noise=noise)
        both = torch.cat([q, x])
        root = torch.linalg.cholesky(kernel.nngp(both) + 1e-12 * torch.eye(len(both)))
        draws = root @ torch.randn(len(both), 200_000, generator=generator(1), dtype=torch.float64)
        theta = kernel.ntk(x) + noise * torch.eye(len(x))
        trained = draws[:5] + kernel.ntk(q, x) @ torch.linalg.solve(theta, y[:, None] - draws[5:])
        standard_error = trained.var(1) * math.sqrt(2 / 200_000)
        assert ((trained.var(1) - f.variance(q)).abs() < 5 * standard_error).all()
        assert ((trained.mean(1) - f.mean(q)).abs() < 5 * (trained.var(1) / 200_000).sqrt()).all()
        # The wrong version, a GP's posterior variance, is far outside.
        wrong = f.variance(q, "posterior")
        assert ((trained.var(1) - wrong).abs() > 20 * standard_error).all()


def test_variance_names():
    x, y = data()
    f = fit(network(), x, y)
    assert torch.equal(f.variance(x[:3]), f.variance(x[:3], "initializations"))
    g = fit(network(), x, y, kind="nngp")
    assert torch.equal(g.variance(x[:3]), g.variance(x[:3], "posterior"))
    with pytest.raises(InvalidValueError, match="kind='ntk'"):
        g.variance(x, "initializations")
    with pytest.raises(InvalidValueError, match="'auto' chooses"):
        f.variance(x, "seeds")


def test_mean_is_differentiable_and_keeps_the_dtype():
    x, y = data()
    f = fit(network(), x, y)
    q = queries(4).requires_grad_()
    assert torch.autograd.gradcheck(f.mean, (q,))
    single = f.mean(queries(4).float())
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), f.mean(queries(4).float().double()), rtol=1e-6, atol=1e-6)
    assert f.mean(x[:0]).shape == (0,) and f.variance(x[:0]).shape == (0,)


def test_slope_is_the_growth_of_the_mean():
    x, y = data(k=2)
    u = queries(6)
    f = fit(network(None), x, y)
    far = 1e7
    assert torch.allclose(f.slope(u), f.mean(far * u) / far, rtol=1e-5, atol=1e-6)
    assert f.slope(u).abs().min() > 1e-3
    assert (fit(network(), x, y).slope(u) == 0).all()
    with pytest.raises(InvalidValueError, match="kernels of networks"):
        fit(RBF(), x, y).slope(u)


def test_protocol():
    assert isinstance(RBF(), Covariance)
    assert isinstance(network().function("ntk"), Covariance)
    x, y = data()
    assert torch.equal(
        fit(network().function("nngp"), x, y).weights, fit(network(), x, y, kind="nngp").weights
    )


# ------------------------------------------------------------------ the Cholesky factor


@pytest.mark.parametrize("n", [1, 7, 512, 513, 1300])
def test_blocked_cholesky_against_lapack(n):
    """Block borders included; K stays above the diagonal; a second try starts from it."""
    from farfield.regression._factor import factorize

    x = torch.randn(n, 4, generator=generator(n), dtype=torch.float64)
    K = RBF()(x)
    reference = scipy.linalg.cholesky(K.numpy() + 0.1 * np.eye(n), lower=True)
    matrix, diagonal = K.clone(), K.diagonal().clone()
    factor = factorize(matrix, diagonal, 0.1)
    assert factor is not None
    assert np.abs(torch.tril(matrix).numpy() - reference).max() < 1e-12
    assert torch.equal(torch.triu(matrix, 1), torch.triu(K, 1))
    v = torch.randn(n, 3, generator=generator(1), dtype=torch.float64)
    assert torch.allclose(factor.product(v), K @ v, rtol=1e-12, atol=1e-11)
    assert torch.allclose(factor.solve(K @ v + 0.1 * v), v, rtol=1e-9, atol=1e-9)
    again = factorize(matrix, diagonal, 0.7, again=True)
    assert again is not None
    reference = scipy.linalg.cholesky(K.numpy() + 0.7 * np.eye(n), lower=True)
    assert np.abs(torch.tril(again.matrix).numpy() - reference).max() < 1e-12


def test_blocked_cholesky_notices_what_is_not_positive_definite():
    from farfield.regression._factor import factorize

    x = torch.randn(700, 4, generator=generator(), dtype=torch.float64)
    K = RBF()(x)
    smallest = float(torch.linalg.eigvalsh(K)[0])
    assert factorize(K.clone(), K.diagonal().clone(), -smallest - 1e-6) is None
    assert factorize(K.clone(), K.diagonal().clone(), -smallest + 1e-6) is not None


# ------------------------------------------------------------------ solvers against each other


@pytest.mark.parametrize("noise", [1e-3, 0.1])
@pytest.mark.parametrize("kernel", [network(), network(None), RBF()])
def test_conjugate_gradients_agree_with_cholesky(kernel, noise):
    x, y = data(200, 4, 2)
    q = queries(20, 4)
    exact = fit(kernel, x, y, noise=noise, solver="cholesky")
    other = fit(kernel, x, y, noise=noise, solver="pcg", tolerance=1e-9, rank=60)
    assert other.solver == "pcg" and other.residual <= 1e-9
    scale = exact.mean(q).abs().max()
    assert (other.mean(q) - exact.mean(q)).abs().max() < 1e-5 * scale
    assert torch.allclose(other.variance(q[:3]), exact.variance(q[:3]), rtol=1e-5, atol=1e-6)
    assert torch.allclose(
        other.variance(q[:3], "posterior"), exact.variance(q[:3], "posterior"), rtol=1e-6, atol=1e-9
    )


def test_float32_factor_is_corrected_to_float64():
    x, y = data(300, 4, 2)
    for noise in (0.0, 0.1):
        exact = fit(network(), x, y, noise=noise)
        other = fit(network(), x, y, noise=noise, precision="float32", tolerance=1e-10)
        assert other.residual <= 1e-10 and other.jitter == 0 and other.solver == "cholesky"
        assert torch.allclose(other.weights, exact.weights, rtol=1e-5, atol=1e-6)


def test_preconditioner_saves_iterations():
    """Rank 0 is plain conjugate gradients; the right one at rank 100 needs a fraction of its iterations."""
    x, y = data(400, 3)

    def iterations(rank):
        seen = []
        fit(RBF(), x, y, noise=1e-3, solver="pcg", rank=rank, progress=lambda done, total: seen.append(done))
        return len(seen)

    assert 5 * iterations(100) < iterations(0)


def test_tiles_of_any_size_and_threads_give_the_same_product():
    from farfield.regression._covariance import Work, symmetric_product

    x, _ = data(333, 3)
    v = torch.randn(333, 2, generator=generator(), dtype=torch.float64)
    reference = network().ntk(x) @ v
    for memory in (10_000_000, 300_000, 50_000):
        for workers in (1, 2):
            work = Work(engine.local(workers), memory)
            product = symmetric_product(network().function("ntk"), x, v, work)
            assert torch.allclose(product, reference, rtol=1e-12, atol=1e-11)


def test_long_strips_are_taken_in_parts(monkeypatch):
    from farfield.regression import _covariance as covariance

    for n, side in ((5, 2), (64, 64), (333, 10), (1000, 9)):
        covered = torch.zeros(n, n, dtype=torch.int)
        for start, left, right in covariance._parts(n, side):
            assert right - left <= 32 * side
            covered[start : start + side, left:right] += 1
        assert bool((covered.triu() == 1).triu().sum() == n * (n + 1) // 2), (n, side)
    x, _ = data(333, 3)
    v = torch.randn(333, 2, generator=generator(), dtype=torch.float64)
    monkeypatch.setattr(covariance, "_LONGEST", 2)
    work = covariance.Work(engine.local(2), 50_000)
    assert len(covariance._parts(333, work.side())) > math.ceil(333 / work.side())
    product = covariance.symmetric_product(network().function("ntk"), x, v, work)
    assert torch.allclose(product, network().ntk(x) @ v, rtol=1e-12, atol=1e-11)
    with covariance.kept_product(network().function("ntk"), x, work) as kept:
        assert torch.equal(kept(v), product)


@pytest.mark.parametrize("named", [True, False], ids=["Checkpoint", "folder"])
def test_conjugate_gradients_go_on_from_a_checkpoint(named, tmp_path):
    x, y = data(200, 3)
    options = {"noise": 1e-4, "solver": "pcg", "rank": 5}
    steps = []

    def stop(done, total):
        steps.append(done)
        if done == 20:
            raise KeyboardInterrupt

    folder = engine.Checkpoint(tmp_path, "pcg") if named else tmp_path
    with pytest.raises(KeyboardInterrupt):
        fit(network(), x, y, **options, progress=stop, checkpoint=folder)
    resumed = []
    f = fit(network(), x, y, **options, checkpoint=folder, progress=lambda done, total: resumed.append(done))
    assert resumed[0] == 20
    assert torch.equal(f.weights, fit(network(), x, y, **options).weights)
    files = len(list(tmp_path.iterdir()))
    f.variance(x[:2])
    assert len(list(tmp_path.iterdir())) == files and resumed[-1] == 1000
    # Other targets start afresh.
    fresh = []
    fit(network(), x, 2 * y, **options, checkpoint=folder, progress=lambda done, total: fresh.append(done))
    assert fresh[0] == 0
    if not named:
        with pytest.raises(InvalidValueError, match="another computation"):
            fit(network(), 2 * x, y, **options, checkpoint=folder)


def test_a_stall_says_what_to_do():
    x, y = data(200, 3)
    with pytest.raises(PrecisionError, match=r"stopped at a relative residual .* raise noise= or rank="):
        fit(network(), x, y, noise=1e-6, solver="pcg", rank=1, iterations=5)
    with pytest.raises(PrecisionError, match=r"no progress in 100|rounding errors"):
        fit(network(), x, y, noise=1e-9, solver="pcg", rank=1, tolerance=1e-16, iterations=10_000)
    wrong = Explicit(torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)))
    with pytest.raises(PrecisionError, match="not positive definite"):
        fit(wrong, torch.tensor([[0.0], [1.0]]), torch.tensor([1.0, 1.0]), solver="pcg")


# ------------------------------------------------------------------ jitter and repeated inputs


def test_repeated_inputs_with_one_target_get_jitter():
    """A network's table is off by 1e-14 at angle 0, which is jitter enough; an RBF has none of its own."""
    x, y = data(30)
    twice, targets = torch.cat([x, x[:10]]), torch.cat([y, y[:10]])
    for kernel, least in ((network(), 0.0), (RBF(), 1e-16)):
        f = fit(kernel, twice, targets)
        assert least <= f.jitter <= 1e-6 * kernel.sup_diagonal()
        assert torch.allclose(f.mean(queries()), fit(kernel, x, y).mean(queries()), atol=1e-6)
        assert f.weights.abs().max() < 1e3


def test_repeated_inputs_with_different_targets_are_refused_without_noise():
    x, y = data(30)
    twice, targets = torch.cat([x, x[:10]]), torch.cat([y, y[:10] + torch.arange(10.0) / 10])
    with pytest.raises(InvalidValueError, match=r"9 inputs occur more than once .* up to 0\.9"):
        fit(network(), twice, targets)
    f = fit(network(), twice, targets, noise=0.1)
    mean, _ = dense(network().function("ntk"), twice, targets, queries(), 0.1)
    assert torch.allclose(f.mean(queries()), mean, atol=1e-9)


def test_inputs_a_kernel_cannot_tell_apart():
    """Without biases a LayerNorm network sees directions only: x and 2x are one input with two targets."""
    x, y = data(10)
    with pytest.raises(
        PrecisionError, match=r"smallest eigenvalue is about .* 0 of the inputs repeat .* noise="
    ):
        fit(network(bias_var=0.0), torch.cat([x, 2 * x]), torch.cat([y, y + 1]), tolerance=1e-12)


def test_a_matrix_that_is_no_kernel():
    matrix = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    x, y = torch.tensor([[0.0], [1.0]], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    with pytest.raises(PrecisionError, match=r"not positive definite .* about -1 "):
        fit(Explicit(matrix), x, y)
    with pytest.raises(PrecisionError, match=r"a jitter of 0\.5"):
        fit(Explicit(matrix), x, y, jitter=0.5)
    assert fit(Explicit(matrix), x, y, jitter=2.0).jitter == 2.0
    with pytest.raises(PrecisionError, match="not finite"):
        fit(Explicit(torch.full((2, 2), math.nan, dtype=torch.float64)), x, y)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.ones(39)}, "shapes"),
        ({"x": torch.ones(40)}, "shapes"),
        ({"y": torch.full((40,), math.nan)}, "40 of their entries"),
        ({"noise": -1.0}, "noise is at least 0"),
        ({"jitter": -1.0}, "jitter"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"solver": "lu"}, "solver"),
        ({"precision": "half"}, "precision"),
        ({"kind": "rbf"}, "nngp"),
        ({"memory": "10kB", "solver": "cholesky"}, "GB"),
        ({"memory": "10kB", "solver": "pcg", "rank": 10_000_000}, "rank"),
    ],
)
def test_refusals(change, message):
    x, y = data()
    arguments = {"x": x, "y": y, **change}
    with as_users_run_it(), pytest.raises(InvalidValueError, match=message):
        fit(network(), **arguments)


def test_what_is_no_kernel():
    x, y = data()
    with as_users_run_it(), pytest.raises(InvalidValueError, match="diagonal"):
        fit(lambda a, b=None: a @ a.mT, x, y)
    f = fit(network(), x, y)
    with as_users_run_it(), pytest.raises(InvalidValueError, match=r"\(m, 3\)"):
        f.mean(x[:, :2])


def test_one_frozen_job_goes_through_every_stage():
    import dataclasses
    import inspect

    from farfield.regression import _pcg, _solve
    from farfield.regression._job import FitJob

    x, y = data(20, 2)
    seen = []
    f = fit(RBF(), x, y, noise=1e-3, solver="pcg", keep_tiles=True, progress=lambda *_: seen.append(1))
    assert isinstance(f.job, FitJob) and seen
    with pytest.raises(dataclasses.FrozenInstanceError):
        f.job.noise = 1.0
    # What a later solve does, for a variance, is not reported as part of the fit.
    assert f.job.progress is None and f.job.checkpoint is None and not f.job.keep_tiles
    assert f.system.job == f.job
    for module in (_solve, _pcg):
        for function in (v for v in vars(module).values() if inspect.isfunction(v)):
            if function.__module__ == module.__name__:
                assert len(inspect.signature(function).parameters) <= 6, function
