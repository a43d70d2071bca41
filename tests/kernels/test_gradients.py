"""Derivatives by inputs and variances, against central differences."""

import pytest
import torch
from torch import Tensor

from farfield import kernels
from farfield.errors import InvalidValueError
from farfield.kernels import Activate, Dense, Layer, LayerNorm, NetworkKernel, Residual, RMSNorm

KINDS = ("nngp", "ntk")


def _layers(case: str, w: Tensor | float, b: Tensor | float) -> tuple[Layer, ...]:
    dense, relu, norm = Dense(w, b), Activate("relu"), LayerNorm()
    return {
        "plain": (dense, relu, dense, relu, dense),
        "first": (dense, norm, relu, dense, relu, dense),
        "second": (dense, relu, dense, norm, relu, dense),
        "post": (dense, relu, norm, dense, relu, norm, dense),
        "rms": (dense, Activate("abs"), RMSNorm(), dense, relu, dense),
        "residual": (dense, Residual((relu, Dense(0.5, b))), norm, relu, dense),
        "residual-open": (dense, Residual((norm, relu, Dense(0.5, b))), relu, dense),
        "squares": (dense, Activate("relu_squared"), dense),
        "raw": (norm, dense, relu, dense),
        "gelu-first": (dense, norm, Activate("gelu"), dense, Activate("gelu"), dense),
        "gelu": (dense, Activate("gelu"), dense),
        "erf-second": (dense, Activate("erf"), dense, norm, Activate("erf"), dense),
    }[case]


CASES = [
    "plain", "first", "second", "post", "rms", "residual", "residual-open", "squares", "raw", "gelu-first", "gelu",
    "erf-second",
]  # fmt: skip


def _inputs(n: int, seed: int = 0) -> Tensor:
    return torch.randn(
        n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True
    )


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    ("case", "compress"),
    [*((c, True) for c in CASES), *((c, False) for c in ("first", "second", "post", "residual"))],
)
def test_by_both_inputs(case, compress):
    x, y = _inputs(2), _inputs(3, 1)
    k = NetworkKernel(_layers(case, 1.3, 0.2), compress)
    for kind in KINDS:
        assert torch.autograd.gradcheck(k.function(kind), (x, y), eps=1e-6, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_by_one_set_of_inputs(case):
    x = _inputs(3)
    k = NetworkKernel(_layers(case, 1.3, 0.2))
    for kind in KINDS:
        f = k.function(kind)
        assert torch.autograd.gradcheck(lambda x, f=f: f(x), (x,), eps=1e-6, atol=1e-7, rtol=1e-6)
        assert torch.autograd.gradcheck(lambda x, f=f: f.diagonal(x), (x,), eps=1e-6, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(
    ("case", "compress"),
    [*((c, True) for c in CASES), *((c, False) for c in ("first", "second", "post", "residual"))],
)
def test_by_variances(case, compress):
    x, y = _inputs(2).detach(), _inputs(3, 1).detach()
    for kind in KINDS:

        def values(w: Tensor, b: Tensor, kind: str = kind) -> Tensor:
            f = NetworkKernel(_layers(case, w, b), compress).function(kind)
            return torch.cat([f(x, y).flatten(), f(x).flatten(), f.diagonal(y)])

        assert torch.autograd.gradcheck(values, (_number(1.3), _number(0.2)), eps=1e-6, atol=1e-7, rtol=1e-6)


def test_gradcheck_would_notice():
    x, y = _inputs(2), _inputs(3, 1)
    k = kernels.mlp(depth=2, layer_norm="first", bias_var=0.2)

    def wrong(x: Tensor, y: Tensor) -> Tensor:
        return k.ntk(x, y) + 1e-3 * (x * x.detach()).sum()

    assert not torch.autograd.gradcheck(wrong, (x, y), eps=1e-6, atol=1e-7, rtol=1e-6, raise_exception=False)


@pytest.mark.parametrize("case", CASES)
def test_finite_at_duplicates_and_opposites(case):
    base = _inputs(2).detach()
    rows = torch.cat([base, base[:1], base[:1] * (1 + 1e-9), -base[:1], base[1:] + 1e-12]).requires_grad_()
    w, b = _number(1.3), _number(0.2)
    k = NetworkKernel(_layers(case, w, b))
    for kind in KINDS:
        for value in (k.function(kind)(rows), k.function(kind)(rows, rows), k.function(kind)(rows, base)):
            gradients = torch.autograd.grad(value.sum(), (rows, w, b))
            assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("place", [None, "first", "second"])
def test_finite_without_bias(place):
    base = _inputs(2).detach()
    rows = torch.cat([base, base[:1], -base[:1], 2 * base[:1]]).requires_grad_()
    for name in ("relu", "abs", "erf", "tanh") if place == "first" else ("relu", "abs"):
        w = _number(1.3)
        k = kernels.mlp(depth=3, activation=name, layer_norm=place, weight_var=w)
        for kind in KINDS:
            for gradient in torch.autograd.grad(k.function(kind)(rows, rows).sum(), (rows, w)):
                assert torch.isfinite(gradient).all()


def test_near_duplicates_to_the_limit():
    """The NNGP is smooth there: its gradient at distance h is that at a duplicate plus O(h)."""
    x = _inputs(1)
    k = kernels.mlp(depth=3, layer_norm="first", bias_var=0.2)
    (at,) = torch.autograd.grad(k.nngp(x, x.detach()).sum(), x)
    for h in (1e-10, 1e-8, 1e-6):
        (near,) = torch.autograd.grad(k.nngp(x, x.detach() + h).sum(), x)
        assert (near - at).abs().max() < 10 * h + 1e-9


def test_the_gradient_of_the_diagonal_is_exact_there():
    """d/dx k(x, x) has both arguments moving: twice the one-sided derivative of a smooth kernel."""
    x = _inputs(3)
    k = kernels.mlp(depth=2, bias_var=0.2)
    (both,) = torch.autograd.grad(k.nngp(x).diagonal().sum(), x)
    (direct,) = torch.autograd.grad(k.diagonal(x, "nngp").sum(), x)
    (one,) = torch.autograd.grad(k.nngp(x, x.detach()).diagonal().sum(), x)
    assert torch.allclose(both, direct, rtol=1e-12)
    assert torch.allclose(both, 2 * one, rtol=1e-9)


def test_single_precision_gradients():
    x = _inputs(4).detach()
    k = kernels.mlp(depth=3, layer_norm="second", bias_var=0.2)
    low, high = x.float().requires_grad_(), x.float().double().requires_grad_()
    (a,), (b,) = (torch.autograd.grad(k.ntk(v).sum(), v) for v in (low, high))
    assert a.dtype == torch.float32
    assert torch.allclose(a.double(), b, rtol=1e-5, atol=1e-5)


def test_no_graph_where_none_is_asked_for():
    x = _inputs(3)
    k = kernels.mlp(depth=2, layer_norm="first", weight_var=_number(1.3), bias_var=0.2)
    with torch.no_grad():
        assert not k.ntk(x).requires_grad
    assert k.ntk(x.detach()).requires_grad
    assert not kernels.mlp(depth=2, layer_norm="first").ntk(x.detach()).requires_grad


def test_by_a_variance_of_zero_is_refused():
    with pytest.raises(InvalidValueError, match="bias_var to differentiate by"):
        Dense(1.0, _number(0.0))


def test_descent_on_the_marginal_likelihood():
    """An optimizer changes the variances in place; values and gradients follow."""
    x = torch.linspace(-2, 2, 12, dtype=torch.float64)[:, None]
    y = torch.sin(2 * x[:, 0])
    log_w, log_b = (torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.Adam([log_w, log_b], lr=0.1)
    losses = []
    for _ in range(15):
        k = kernels.mlp(depth=2, layer_norm="first", weight_var=log_w.exp(), bias_var=log_b.exp())
        matrix = k.nngp(x) + 1e-3 * torch.eye(12, dtype=torch.float64)
        factor = torch.linalg.cholesky(matrix)
        fit = torch.cholesky_solve(y[:, None], factor)[:, 0] @ y
        loss = 0.5 * fit + factor.diagonal().log().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.5
