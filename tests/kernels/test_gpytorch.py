"""The GPyTorch kernels: GPyTorch's own expectations, and ours to rounding."""

import copy
import pickle
import subprocess
import sys
import unittest

import pytest
import torch

gpytorch = pytest.importorskip("gpytorch")
pytestmark = pytest.mark.filterwarnings(
    "ignore:The last_dim_is_batch argument is deprecated:DeprecationWarning"
)

from gpytorch.kernels import ScaleKernel  # noqa: E402
from gpytorch.priors import GammaPrior, LogNormalPrior  # noqa: E402
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase  # noqa: E402

from farfield import kernels  # noqa: E402
from farfield.errors import InvalidValueError  # noqa: E402
from farfield.kernels.gpytorch import NNGPKernel, NTKKernel  # noqa: E402

BOTH = [NTKKernel, NNGPKernel]
NETWORKS = [
    {"layer_norm": "first"},
    {"layer_norm": None},
    {"layer_norm": [1], "depth": 3},
    {"layer_norm": "last", "order": "post"},
    {"layer_norm": "every", "activation": "gelu"},
    {"layer_norm": "every", "order": "post", "norm": "rms", "activation": "abs"},
]


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense(kernel, *x):
    return kernel(*x).to_dense()


# ------------------------------------------------------------------ GPyTorch's own suite


class TestNTKAsGPyTorchAsks(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return NTKKernel(**kwargs)


class TestNNGPAsGPyTorchAsks(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return NNGPKernel(layer_norm=None, **kwargs)


# ------------------------------------------------------------------ values


@pytest.mark.parametrize("network", NETWORKS, ids=str)
@pytest.mark.parametrize("cls", BOTH)
def test_values_are_the_network_kernels(cls, network):
    """The same numbers as farfield.kernels, to rounding: full, rectangular, diagonal, rows in pairs."""
    kernel = cls(**network).double()
    kernel.weight_var, kernel.bias_var = 1.7, 0.3
    theirs = kernels.mlp(**{"depth": 2, **network}, weight_var=1.7, bias_var=0.3).function(cls.kind)
    x, y = draw(7, 3), draw(5, 3, seed=1)
    for ours, truth in (
        (dense(kernel, x), theirs(x)),
        (dense(kernel, x, y), theirs(x, y)),
        (kernel(x, diag=True), theirs.diagonal(x)),
        (kernel(x[:5], y, diag=True), theirs(x[:5], y).diagonal()),
    ):
        torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
@pytest.mark.parametrize("cls", BOTH)
def test_positive_semidefinite_and_exact_diagonal(cls, network):
    kernel = cls(**network).double()
    x = draw(20, 4)
    x = torch.cat([x, x[:3], x[:3] + 1e-9])
    matrix = dense(kernel, x).detach()
    assert torch.equal(matrix, matrix.mT)
    assert torch.equal(matrix.diagonal(), kernel(x, diag=True))
    assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-10 * float(matrix.diagonal().max())


def test_a_large_matrix_by_the_polynomial_agrees_with_the_layers(monkeypatch):
    from farfield.kernels import gpytorch as module

    kernel, x = NTKKernel(depth=4).double(), draw(40, 3)
    x.requires_grad_()

    def value_and_gradients():
        matrix = dense(kernel, x)
        return [matrix, *torch.autograd.grad((matrix**2).sum(), [x, *kernel.parameters()])]

    layers = value_and_gradients()
    monkeypatch.setattr(module, "_WORTH_A_TABLE", 0)
    for a, b in zip(layers, value_and_gradients(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11 * float(b.detach().abs().max()))


# ------------------------------------------------------------------ batches


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("shapes", [((2,), (2,)), ((2,), ()), ((), (3, 2)), ((3, 1), (2,)), ((2,), (3, 1))])
def test_a_batch_of_hyperparameters_is_a_loop(cls, shapes):
    """Kernel batch × input batch, broadcast, against one kernel at a time; and its diagonal."""
    mine, theirs = (torch.Size(s) for s in shapes)
    kernel = cls(batch_shape=mine).double()
    kernel.weight_var = 0.5 + torch.rand(*mine, 1, 1, generator=torch.Generator().manual_seed(3))
    kernel.bias_var = 0.1 + torch.rand(*mine, 1, 1, generator=torch.Generator().manual_seed(4))
    x, y = draw(*theirs, 4, 3), draw(5, 3, seed=1)
    batch = torch.broadcast_shapes(mine, theirs)
    full, cross, diagonal = dense(kernel, x), dense(kernel, x, y), kernel(x, diag=True)
    assert full.shape == (*batch, 4, 4) and cross.shape == (*batch, 4, 5) and diagonal.shape == (*batch, 4)
    w, b = (v.squeeze((-2, -1)).expand(batch) for v in (kernel.weight_var, kernel.bias_var))
    rows = x.expand(*batch, 4, 3)
    for index in torch.cartesian_prod(*(torch.arange(s) for s in batch)).reshape(-1, len(batch)).tolist():
        k = tuple(index)
        one = kernels.mlp(
            depth=2, layer_norm="first", weight_var=w[k].item(), bias_var=b[k].item(), compress=False
        )
        truth = one.function(cls.kind)
        torch.testing.assert_close(full[k], truth(rows[k]), rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(cross[k], truth(rows[k], y), rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(diagonal[k], truth.diagonal(rows[k]), rtol=1e-11, atol=1e-11)


def test_the_batch_oracle_can_say_no():
    """Hyperparameters of the wrong batch element give another matrix."""
    kernel = NTKKernel(batch_shape=torch.Size([2])).double()
    kernel.weight_var = torch.tensor([0.5, 2.0]).reshape(2, 1, 1)
    both = dense(kernel, draw(4, 3)).detach()
    assert float((both[0] - both[1]).abs().max()) > 0.1


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize("network", NETWORKS[:5], ids=str)
@pytest.mark.parametrize("cls", BOTH)
def test_gradients_to_hyperparameters_and_inputs(cls, network):
    kernel = cls(**network).double()
    x, y = draw(3, 2), draw(4, 2, seed=1)

    def value(raw_weight, raw_bias, a, b):
        parameters = {"raw_weight_var": raw_weight, "raw_bias_var": raw_bias}
        return torch.func.functional_call(kernel, parameters, (a, b), {"diag": False}).to_dense()

    raws = [kernel.raw_weight_var.detach().clone(), kernel.raw_bias_var.detach().clone()]
    inputs = [t.requires_grad_() for t in (*raws, x, y)]
    with gpytorch.settings.lazily_evaluate_kernels(False):
        assert torch.autograd.gradcheck(value, inputs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("cls", BOTH)
def test_gradients_of_the_diagonal_and_of_equal_tensors(cls):
    """Equal rows in two tensors: each gets its gradient, and together they make that of one tensor."""
    kernel, x = cls().double(), draw(4, 3)
    one = x.clone().requires_grad_()
    (whole,) = torch.autograd.grad(dense(kernel, one).sum(), one)
    left, right = x.clone().requires_grad_(), x.clone().requires_grad_()
    halves = torch.autograd.grad(dense(kernel, left, right).sum(), [left, right])
    torch.testing.assert_close(sum(halves), whole, rtol=1e-10, atol=1e-12)
    assert all(float(h.abs().max()) > 0 for h in halves)
    diagonal = torch.autograd.gradcheck(
        lambda v: cls(layer_norm=[1])(v, diag=True), draw(3, 2).requires_grad_()
    )
    assert diagonal


# ------------------------------------------------------------------ Gaussian processes


class Process(gpytorch.models.ExactGP):
    def __init__(self, x, y, kernel):
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def problem(n=30):
    x = draw(n, 2)
    return x, torch.sin(2 * x[:, 0]) + 0.3 * x[:, 1]


def marginal_likelihood(model, x, y):
    return gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model(x), y)


@pytest.mark.parametrize("cls", BOTH)
def test_marginal_likelihood_and_its_gradients_are_the_dense_ones(cls):
    x, y = problem()
    model = Process(x, y, ScaleKernel(cls(depth=3))).double()
    with gpytorch.settings.max_cholesky_size(10_000):
        theirs = marginal_likelihood(model, x, y)
        gradients = torch.autograd.grad(theirs, list(model.parameters()))
    scale, inner, noise = (
        model.covar_module.outputscale,
        model.covar_module.base_kernel,
        model.likelihood.noise,
    )
    network = kernels.mlp(
        depth=3, layer_norm="first", weight_var=inner.weight_var.squeeze(), bias_var=inner.bias_var.squeeze()
    )
    covariance = scale * network.function(cls.kind)(x) + noise * torch.eye(len(x), dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance)
    ours = normal.log_prob(y) / len(y)
    torch.testing.assert_close(theirs, ours, rtol=1e-10, atol=1e-10)
    for a, b in zip(gradients, torch.autograd.grad(ours, list(model.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_training_raises_the_marginal_likelihood_and_prediction_is_bounded(cls, optimizer):
    x, y = problem()
    model = Process(x, y, ScaleKernel(cls())).double()
    model.train()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    if optimizer == "adam":
        steps = torch.optim.Adam(model.parameters(), lr=0.1)
    else:
        steps = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, line_search_fn="strong_wolfe")

    def closure():
        steps.zero_grad()
        loss = -marginal_likelihood(model, x, y)
        loss.backward()
        return loss

    with gpytorch.settings.max_cholesky_size(10_000):
        first = closure().item()
        for _ in range(15 if optimizer == "adam" else 4):
            steps.step(closure)
        assert closure().item() < first - 0.1
        assert all(not torch.equal(p, start[name]) for name, p in model.named_parameters())
        model.eval()
        with torch.no_grad():
            far = model(x * 1e9)
            near = model(x + 1e-12).mean
    assert float(((near - y) ** 2).mean()) < 0.3 * float(y.var())
    ceiling = model.covar_module.outputscale.item() * model.covar_module.base_kernel.network().sup_diagonal(
        cls.kind
    )
    noisy = ceiling * (1 + 1e-9)
    assert float(far.variance.max()) <= noisy
    # |f(x)|² ≤ C yᵀ(K + noise)⁻¹y, since K ⪯ K + noise.
    matrix = dense(model.covar_module, x) + model.likelihood.noise * torch.eye(len(x), dtype=torch.float64)
    energy = (y @ torch.linalg.solve(matrix, y)).item()
    assert float(far.mean.abs().max()) <= (noisy * energy) ** 0.5


def test_priors_enter_the_marginal_likelihood_and_can_be_sampled():
    prior = GammaPrior(2.0, 3.0).double()
    kernel = NTKKernel(weight_var_prior=prior, bias_var_prior=LogNormalPrior(-1.0, 0.5)).double()
    x, y = problem(8)
    with gpytorch.settings.max_cholesky_size(10_000):
        with_priors = marginal_likelihood(Process(x, y, kernel).double(), x, y)
        without = marginal_likelihood(Process(x, y, NTKKernel()).double(), x, y)
    logs = prior.log_prob(kernel.weight_var).sum() + kernel.bias_var_prior.log_prob(kernel.bias_var).sum()
    torch.testing.assert_close(with_priors - without, logs / len(y), rtol=1e-6, atol=1e-8)
    kernel.sample_from_prior("weight_var_prior")
    assert kernel.weight_var.item() != 1.0


def test_bayesian_optimization_with_botorch():
    """A SingleTaskGP fitted, its expected improvement optimized: gradients through the kernel to the candidates."""
    pytest.importorskip("botorch")
    import warnings

    from botorch.acquisition import LogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf

    x = torch.linspace(-2, 2, 9, dtype=torch.float64).unsqueeze(-1)
    y = -((x - 0.6) ** 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # BoTorch's advice on scaling is not under test
        model = SingleTaskGP(x, y, covar_module=ScaleKernel(NNGPKernel(depth=2)))
        fit_gpytorch_mll(
            gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model),
            optimizer_kwargs={"options": {"maxiter": 20}},
        )
        torch.manual_seed(0)
        best, value = optimize_acqf(
            LogExpectedImprovement(model, best_f=y.max()),
            bounds=torch.tensor([[-2.0], [2.0]], dtype=torch.float64),
            q=1, num_restarts=2, raw_samples=16,
        )  # fmt: skip
    assert bool(torch.isfinite(value).all())
    assert 0.3 < float(best) < 0.9


# ------------------------------------------------------------------ what it is


def test_pickle_deepcopy_and_state_dict_keep_the_kernel():
    kernel = NTKKernel(depth=3, layer_norm=[2], weight_var_prior=GammaPrior(2.0, 3.0)).double()
    kernel.weight_var = 2.5
    x = draw(4, 3)
    truth = dense(kernel, x)
    fresh = NTKKernel(depth=3, layer_norm=[2], weight_var_prior=GammaPrior(2.0, 3.0)).double()
    assert not torch.allclose(dense(fresh, x), truth)
    fresh.load_state_dict(kernel.state_dict())
    for other in (pickle.loads(pickle.dumps(kernel)), copy.deepcopy(kernel), fresh):
        assert torch.equal(dense(other, x), truth)


def test_constraints_and_starting_values():
    from gpytorch.constraints import GreaterThan, Interval

    kernel = NTKKernel(
        weight_var_constraint=Interval(0.5, 3.0), bias_var_constraint=GreaterThan(0.2, initial_value=0.7)
    )
    assert kernel.weight_var.item() == pytest.approx(1.0) and kernel.bias_var.item() == pytest.approx(0.7)
    kernel.raw_weight_var.data.fill_(50.0)
    assert kernel.weight_var.item() <= 3.0
    assert 4.0 < NTKKernel(weight_var_constraint=Interval(4.0, 5.0)).weight_var.item() < 5.0


def test_refusals_teach():
    with pytest.raises(InvalidValueError, match="ard_num_dims"):
        NTKKernel(ard_num_dims=3)
    with pytest.raises(InvalidValueError, match="hidden layer"):
        NTKKernel(depth=2, layer_norm=[5])
    with pytest.raises(InvalidValueError, match="last_dim_is_batch"):
        NTKKernel()(draw(3, 2), last_dim_is_batch=True).to_dense()
    with pytest.raises(InvalidValueError, match="Index it first"):
        NTKKernel(batch_shape=torch.Size([2])).network()
    assert NTKKernel(batch_shape=torch.Size([2]))[0].network().sup_diagonal() == pytest.approx(3.3)
    assert not NTKKernel().has_lengthscale and not NTKKernel().is_stationary


def test_importing_the_kernels_does_not_import_gpytorch():
    code = "import sys, farfield.kernels; sys.exit('gpytorch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_gpytorch_the_message_says_what_to_install():
    code = (
        "import sys; sys.modules['gpytorch'] = None\n"
        "from farfield.errors import MissingExtraError\n"
        "try:\n    import farfield.kernels.gpytorch\n"
        'except MissingExtraError as error:\n    sys.exit("farfield[gpytorch]" not in str(error))\n'
        "sys.exit('nothing raised')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
