"""The kernels against finite networks: averages over draws, and the error of one draw against width."""

import functools
import math

import pytest
import torch
from torch import Tensor

from farfield import kernels, nn
from kernels.finite_networks import PHI, draw, kernels_of, sampled_kernels

X = torch.tensor([[1.0, 0.3, -0.5], [0.2, 1.4, 0.4], [-0.9, -0.2, 0.6]])
WEIGHT_VAR, BIAS_VAR, DEPTH = 1.2, 0.1, 3
DEPTHS = {"relu_squared": 2}
WHERE = {
    "none": frozenset(),
    "first": frozenset({0}),
    "second": frozenset({1}),
    "last": frozenset({2}),
    "every": frozenset({0, 1, 2}),
}
PLACES = [
    ("none", "pre"),
    *((place, order) for order in ("pre", "post") for place in ("first", "second", "every", "last")),
]


def _analytic(name: str, place: str, order: str) -> tuple[Tensor, Tensor]:
    k = kernels.mlp(
        depth=DEPTHS.get(name, DEPTH),
        activation=name,
        layer_norm=_where(name, place),
        order=order,
        weight_var=WEIGHT_VAR,
        bias_var=BIAS_VAR,
    )
    return k.nngp(X.double()), k.ntk(X.double())


def _where(name: str, place: str) -> frozenset[int]:
    return frozenset(min(k, DEPTHS.get(name, DEPTH) - 1) for k in WHERE[place])


def _scores(draws: Tensor, truth: Tensor) -> Tensor:
    """Deviations of the mean in standard errors; an entry that a norm fixes has float32's rounding as its error."""
    draws = draws.double()
    error = draws.std(0) / math.sqrt(len(draws)) + 1e-6 * truth.diagonal().max()
    return ((draws.mean(0) - truth) / error).abs()


@functools.lru_cache(maxsize=1)
def _draws(name: str, place: str, order: str, width: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(len(name) + 10 * PLACES.index((place, order)))
    where, variances, depth = _where(name, place), (WEIGHT_VAR, BIAS_VAR), DEPTHS.get(name, DEPTH)
    parts = [
        sampled_kernels(
            X, PHI[name], where, order, *variances, width=width, count=100, depth=depth, generator=generator
        )
        for _ in range(count // 100)
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


@pytest.mark.parametrize(("place", "order"), PLACES)
@pytest.mark.parametrize("name", PHI)
def test_within_five_standard_errors(name, place, order):
    # The bias of a finite width, a few parts in it, stays below the standard error while there are more units than
    # networks. Squares of squares have heavy tails: one layer fewer, and more of them.
    heavy = name == "relu_squared"
    nngp, ntk = _draws(name, place, order, width=4096 if heavy else 2048, count=1200 if heavy else 600)
    truths = _analytic(name, place, order)
    for draws, truth in zip((nngp, ntk), truths, strict=True):
        assert _scores(draws, truth).max() < 5
        # And enough of them: a kernel that is wrong by 2 % fails.
        assert _scores(draws, 1.02 * truth).max() > 5
        assert _scores(draws, 0.98 * truth).max() > 5


@pytest.mark.nightly
@pytest.mark.parametrize(("place", "order"), PLACES)
@pytest.mark.parametrize("name", PHI)
def test_with_ten_times_the_draws(name, place, order):
    nngp, ntk = _draws(name, place, order, width=8192, count=2000)
    for draws, truth in zip((nngp, ntk), _analytic(name, place, order), strict=True):
        assert _scores(draws, truth).max() < 5
        assert _scores(draws, (1.03 if name == "relu_squared" else 1.01) * truth).max() > 5


@pytest.mark.parametrize(("place", "order"), [("none", "pre"), ("first", "pre"), ("every", "post")])
@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_error_falls_as_the_root_of_the_width(name, place, order):
    generator = torch.Generator().manual_seed(3)
    truths = _analytic(name, place, order)
    widths, errors = (32, 64, 128, 256, 512), []
    for width in widths:
        weights = draw(24 if width == 512 else 48, 3, width, DEPTH, generator, outputs=1)
        one = kernels_of(weights, X, PHI[name], WHERE[place], order, WEIGHT_VAR, BIAS_VAR)
        errors.append(
            [float((d.double() - t).square().mean().sqrt()) for d, t in zip(one, truths, strict=True)]
        )
    for line in zip(*errors, strict=True):
        assert -0.65 < _log_slope(widths, line) < -0.35


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_error_at_large_widths(name):
    generator = torch.Generator().manual_seed(4)
    widths, errors = (512, 2048, 8192, 32768), []
    truths = _analytic(name, "second", "pre")
    for width in widths:
        one = sampled_kernels(
            X,
            PHI[name],
            WHERE["second"],
            "pre",
            WEIGHT_VAR,
            BIAS_VAR,
            width=width,
            count=64,
            generator=generator,
        )
        errors.append(
            [float((d.double() - t).square().mean().sqrt()) for d, t in zip(one, truths, strict=True)]
        )
    for line, truth in zip(zip(*errors, strict=True), truths, strict=True):
        assert -0.65 < _log_slope(widths, line) < -0.35
        # A kernel wrong by 2 % would be a floor: the last error is below it.
        assert line[-1] < 0.02 * float(truth.max())


def _log_slope(widths: tuple[int, ...], errors: tuple[float, ...]) -> float:
    a = torch.tensor(widths, dtype=torch.float64).log()
    b = torch.tensor(errors, dtype=torch.float64).log()
    return float(((a - a.mean()) * (b - b.mean())).sum() / (a - a.mean()).square().sum())


# ------------------------------------------------------------------ the finite networks themselves


@pytest.mark.parametrize(("place", "order"), PLACES[::2])
@pytest.mark.parametrize("name", PHI)
def test_finite_networks_are_those_of_the_library(name, place, order):
    """Tangent kernel from Jacobians of farfield.nn.MLP, against the layerwise products."""
    generator = torch.Generator().manual_seed(5)
    net = nn.MLP(
        3, 1, width=16, depth=DEPTH, activation=name, norm="layer", placement=WHERE[place], order=order,
        parametrization="ntk", weight_var=WEIGHT_VAR, bias_var=BIAS_VAR, norm_eps=1e-14, generator=generator,
        dtype=torch.float64,
    )  # fmt: skip
    linears = [m for m in net if isinstance(m, nn.ScaledLinear)]
    x = X.double()
    parameters = dict(net.named_parameters())
    jacobians = torch.func.jacrev(lambda p: torch.func.functional_call(net, p, (x,))[:, 0])(parameters)
    full = torch.cat([j.flatten(1) for j in jacobians.values()], -1)
    weights = draw(1, 3, 16, DEPTH, generator, outputs=1, dtype=torch.float64)
    with torch.no_grad():
        for k, linear in enumerate(linears[:-1]):
            weights.matrices[k][0].copy_(linear.weight)
            weights.biases[k][0].copy_(linear.bias)
        weights.readouts[0, 0].copy_(linears[-1].weight[0])
        _, tangent = kernels_of(weights, x, PHI[name], WHERE[place], order, WEIGHT_VAR, BIAS_VAR)
    assert torch.allclose(tangent[0], full @ full.T, rtol=1e-8)


@pytest.mark.parametrize(("place", "order"), [("none", "pre"), ("second", "pre"), ("every", "post")])
def test_networks_without_weights_have_the_same_law(place, order):
    """At width 12, where finite networks are far from the limit: means and spreads of both ways to draw one."""
    generator = torch.Generator().manual_seed(6)
    count, arguments = 20_000, (X.double(), PHI["tanh"], WHERE[place], order, WEIGHT_VAR, BIAS_VAR)
    with_weights = kernels_of(
        draw(count, 3, 12, DEPTH, generator, outputs=2, dtype=torch.float64), *arguments
    )
    without = sampled_kernels(*arguments, width=12, count=count, generator=generator)
    for a, b in zip(with_weights, without, strict=True):
        for power in (1, 2):
            # Of a bounded function: at width 12 the tangent kernel has heavy tails.
            u, v = (torch.atan(d.double() / 4) ** power for d in (a, b))
            error = torch.sqrt((u.var(0) + v.var(0)) / count)
            assert ((u.mean(0) - v.mean(0)) / (error + 1e-6)).abs().max() < 5
