"""What every registered activation must satisfy: plain functions that take one Activation and assert.

``enrolled()`` lists the activations the suite runs on, straight from the registry; ``CHECKS`` lists the checks.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Final

import mpmath as mp
import numpy as np
import torch
from torch import Tensor

from farfield.gaussian import (
    Activation,
    Tail,
    activation,
    activation_names,
    dual,
    dual_slope,
    hermite_coefficients,
    isometry_strength,
    mean_reduced_dual,
    moments,
)
from mp_activations import hermite, standard_normal_integrals, twin

__all__ = ["CHECKS", "VARIANTS", "enrolled"]

EPS: Final = torch.finfo(torch.float64).eps

VARIANTS: Final[tuple[tuple[str, dict[str, float]], ...]] = (
    ("leaky_relu", {"negative_slope": 0.2}),
    ("leaky_relu", {"negative_slope": -0.3}),
    ("power_relu", {"n": 1.5}),
    ("power_relu", {"n": 3}),
    ("elu", {"alpha": 0.5}),
    ("celu", {"alpha": 2.0}),
    ("hardtanh", {"low": -2.0, "high": 0.5}),
)


def enrolled() -> dict[str, Activation]:
    """Every registered activation with its default parameters, and a few with others; by a readable label."""
    cases = {name: activation(name) for name in activation_names()}
    for name, parameters in VARIANTS:
        label = f"{name}({', '.join(f'{key}={value:g}' for key, value in parameters.items())})"
        cases[label] = activation(name, **parameters)
    return cases


def _column(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def _line(sigma: Activation) -> Tensor:
    """Points everywhere: dense near the origin, denser at the kinks, then out to ±1e8."""
    far = torch.logspace(1, 8, 200, dtype=torch.float64)
    near = torch.logspace(-12, 0, 80, dtype=torch.float64)
    parts = [torch.linspace(-40, 40, 40_001, dtype=torch.float64), far, -far, near, -near]
    for k in sigma.kinks:
        parts += [k + near, k - near]
    return torch.cat(parts).sort().values


def _peak(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The points x and, around the one where f is largest, two finer grids: f is known there to rounding."""
    for _ in range(2):
        top = int(f(x).argmax())
        low, high = float(x[max(top - 2, 0)]), float(x[min(top + 2, len(x) - 1)])
        x = torch.cat([x, torch.linspace(low, high, 2001, dtype=torch.float64)]).sort().values
    return x


# --- the function ------------------------------------------------------------------------------------------------


def check_formula(sigma: Activation) -> None:
    """The function is the formula written down independently, to a few units in the last place."""
    function = twin(sigma)
    if function is None:
        return
    points = [s * x for x in (1e-9, 1e-3, 0.1, 0.37, 0.9, 1.0, 1.7, 2.9, 3.1, 6.5, 11.0) for s in (-1, 1)]
    for x, y in zip(points, sigma(_column(points)).tolist(), strict=True):
        with mp.workdps(40):
            exact = function(mp.mpf(x))
            # Rounding an argument near x moves σ by σ′·x; left tails are differences of numbers of order 1.
            moved = min(abs(x), 1.0) * abs(float(sigma.derivative(_column([x]))[0]))
            slack = 8 * EPS * (abs(exact) + moved + (1.0 if x < -1 else 0.0))
            assert abs(exact - mp.mpf(y)) <= slack, (x, y, mp.nstr(exact, 20))


def check_derivative(sigma: Activation) -> None:
    """The derivative agrees with autograd and with finite differences, away from the kinks."""
    x = torch.linspace(-11, 11, 2003, dtype=torch.float64) + 1e-4 * math.pi
    stated = sigma.derivative(x)
    size = 1 + stated.abs() + sigma(x).abs()

    leaf = x.clone().requires_grad_()
    y = sigma(leaf)
    if y.requires_grad:
        (slope,) = torch.autograd.grad(y.sum(), leaf)
    else:
        slope = torch.zeros_like(x)
    worst = ((slope - stated).abs() / size).max()
    assert worst < 1e-13, f"autograd differs by {worst:.1e}"

    h = 2e-3
    steps = {s: sigma(x + s * h) for s in (-3, -2, -1, 1, 2, 3)}
    numeric = sum(
        w * (steps[s] - steps[-s]) for s, w in ((1, 45 / 60), (2, -9 / 60), (3, 1 / 60))
    ) / h  # sixth order: error h⁶σ⁗‴/140  # fmt: skip
    away = torch.stack([torch.full_like(x, 1.0), *((x - k).abs() for k in sigma.kinks)]).amin(0) > 0.2
    worst = ((numeric - stated).abs() / size)[away].max()
    assert worst < 1e-11, f"finite differences differ by {worst:.1e}"


def check_dtype(sigma: Activation) -> None:
    """Function and derivative keep the dtype and shape they are given."""
    for dtype in (torch.float32, torch.float64):
        x = torch.linspace(-2, 2, 12, dtype=dtype).reshape(3, 4)
        for f in (sigma, sigma.derivative):
            assert f(x).dtype == dtype
            assert f(x).shape == x.shape


# --- kinks and jumps ---------------------------------------------------------------------------------------------


def check_kinks_complete(sigma: Activation) -> None:
    """Between the kinks σ is analytic: Gauss–Legendre settles on every panel that does not straddle one."""
    fixed = [-9.0 - math.sqrt(2) / 10 + 0.5 * j for j in range(38)]  # no kink a person writes is among them
    shrinking = [k + s * 4.0**-j for k in sigma.kinks for j in range(1, 26) for s in (-1, 1)]
    ends = np.unique([*fixed, *sigma.kinks, *shrinking])

    def panels(count: int) -> Tensor:
        nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(count))
        half, middle = _column(np.diff(ends) / 2)[:, None], _column((ends[1:] + ends[:-1]) / 2)[:, None]
        return (sigma(middle + half * nodes) * weights).sum(-1) / 2

    coarse, fine = panels(24), panels(37)
    worst = ((coarse - fine).abs() / (1 + fine.abs())).argmax()
    gap = float((coarse - fine).abs()[worst] / (1 + fine.abs()[worst]))
    assert gap < 2e-14, f"not analytic in [{ends[worst]:.4f}, {ends[worst + 1]:.4f}]: {gap:.1e}"


def check_kinks_real(sigma: Activation) -> None:
    """At every kink σ really is not analytic: what it is on the right does not continue to the left."""
    for k in sigma.kinks:
        right = np.linspace(k, k + 0.3, 41)[1:]
        fit = np.polynomial.Chebyshev.fit(right, sigma(_column(right)).numpy(), 14)
        left = k - 0.02
        gap = abs(fit(left) - float(sigma(_column([left]))[0]))
        assert gap > 1e-7, f"smooth at {k}: continues to {left} within {gap:.1e}"


def check_jumps(sigma: Activation) -> None:
    """A kink is a jump of the stated height, or no jump at all."""
    heights = dict(sigma.jumps)
    for k in sigma.kinks:
        below, above = sigma(_column([k - 1e-12, k + 1e-12])).tolist()
        assert abs(above - below - heights.get(k, 0.0)) < 1e-8, f"at {k}: {below} to {above}"


# --- growth, range, Lipschitz ------------------------------------------------------------------------------------


def check_tails(sigma: Activation) -> None:
    """Kind, slope and offset of both tails, read off at 1e3 … 1e8."""
    growth = sigma.growth
    assert growth is not None, "a registered activation knows its growth"
    _check_tail(sigma, growth.left, -1.0)
    _check_tail(sigma, growth.right, 1.0)


def _check_tail(sigma: Activation, tail: Tail, side: float) -> None:
    x = side * torch.logspace(3, 8, 51, dtype=torch.float64)
    y = sigma(x)
    ratio = y / x
    if tail.kind == "superlinear":
        assert (torch.sign(ratio) == math.copysign(1.0, tail.slope)).all()
        steeper = torch.isinf(ratio) | (ratio.abs() > 2 * ratio.abs()[0])
        assert steeper[10:].all(), "not superlinear"
        assert ratio.abs()[-1] > 100
        return
    if tail.kind == "sublinear":
        assert (ratio.abs().diff() < 0).all(), "not sublinear"
        assert ratio.abs()[-1] < 0.5 * ratio.abs()[0]
        assert y.abs()[-1] > 2 * y.abs()[0], "a sublinear tail grows"
        return
    assert abs(float(ratio[-1]) - tail.slope) < 1e-7, f"slope {float(ratio[-1])}, not {tail.slope}"
    rest = y - tail.slope * x
    rounding = 8 * EPS * x.abs() * abs(tail.slope)
    if math.isnan(tail.offset):
        assert rest.max() - rest.min() > 0.1, f"it has a limit, {float(rest[-1])}"
        assert (rest.abs() <= 1e3).all()
        return
    distance = (rest - tail.offset).abs()
    # Exponentially fast, or like 1/x for softsign.
    assert (distance <= 1.01 / x.abs() + rounding).all(), f"offset {float(rest[20])}, not {tail.offset}"


def check_recession_gap(sigma: Activation) -> None:
    """The gap is the supremum of the distance to the piecewise-linear map of the two slopes."""
    growth = sigma.growth
    assert growth is not None
    x = _line(sigma)
    if math.isinf(growth.recession_gap):
        kinds = {growth.left.kind, growth.right.kind}
        assert kinds & {"superlinear", "sublinear"}, "tails with offsets have a finite gap"
        return

    def straight(x: Tensor) -> Tensor:
        return growth.left.slope * x.clamp(max=0) + growth.right.slope * x.clamp(min=0)

    x = _peak(lambda x: (sigma(x) - straight(x)).abs() * (x.abs() < 50), x)
    distance = (sigma(x) - straight(x)).abs()
    excess = distance - growth.recession_gap - 2 * EPS * (sigma(x).abs() + straight(x).abs())
    assert (excess <= 0).all(), f"exceeded at {float(x[excess.argmax()])} by {float(excess.max()):.1e}"
    assert distance.max() >= growth.recession_gap - 1e-6, f"only {float(distance.max())} is reached"


def check_bounded(sigma: Activation) -> None:
    """Growth and range agree on whether σ is bounded."""
    assert sigma.growth is not None
    assert sigma.range is not None
    assert sigma.growth.bounded == all(math.isfinite(end) for end in sigma.range)


def check_range(sigma: Activation) -> None:
    """σ never leaves its range and comes as near as one likes to both ends."""
    assert sigma.range is not None, "a registered activation knows its range"
    low, high = sigma.range
    y = sigma(torch.cat([_peak(sigma, _line(sigma)), _peak(lambda x: -sigma(x), _line(sigma))]))
    assert y.min() >= low - 2 * EPS * abs(low), f"falls to {float(y.min())!r}, below {low!r}"
    assert y.max() <= high + 2 * EPS * abs(high), f"rises to {float(y.max())!r}, above {high!r}"
    assert y.min() <= (low + 1e-6 if math.isfinite(low) else -1e5), f"no lower than {float(y.min())!r}"
    assert y.max() >= (high - 1e-6 if math.isfinite(high) else 1e3), f"no higher than {float(y.max())!r}"


def check_lipschitz(sigma: Activation) -> None:
    """No difference quotient exceeds the constant, and some come within 0.1% of it."""
    constant = sigma.lipschitz
    assert constant is not None, "a registered activation knows its Lipschitz constant"
    x = _line(sigma)
    x = x[torch.isfinite(sigma(x))]
    if math.isfinite(constant):
        x = _peak(lambda x: sigma.derivative(x).abs(), x)
        assert sigma.derivative(x).abs().max() <= constant * (1 + 4 * EPS), "the derivative is steeper"
    y = sigma(x)
    steepest = 0.0
    for gap in (1, 2, 17, 5000):
        rise, run = (y[gap:] - y[:-gap]).abs(), x[gap:] - x[:-gap]
        rounding = 4 * EPS * (y[gap:].abs() + y[:-gap].abs())
        if math.isfinite(constant):
            excess = rise - constant * run * (1 + 4 * EPS) - rounding
            assert (excess <= 0).all(), f"exceeded at {float(x[excess.argmax()])}"
        sharp = (run > 0) & (rounding < 1e-5 * rise)
        steepest = max(steepest, float((rise / run)[sharp].max()))
    if math.isinf(constant):
        assert steepest > 1e3, f"no steeper than {steepest}"
    else:
        assert steepest >= constant * (1 - 1e-3), f"no steeper than {steepest}"


def check_homogeneity(sigma: Activation) -> None:
    """σ(ax) = aⁿσ(x) for the stated n, or for none."""
    x = torch.tensor([-7.3, -2.0, -0.4, 0.3, 1.0, 2.6, 9.1], dtype=torch.float64)
    degree = sigma.homogeneity
    if degree is None:
        # The only candidate is the degree read off at one point.
        one, two = sigma(_column([1.0, 2.0])).tolist()
        if one == 0 or two / one <= 0:
            return
        degree = math.log2(two / one)
        gaps = [
            ((sigma(a * x) - a**degree * sigma(x)).abs() / (1 + sigma(a * x).abs())).max() for a in (0.3, 4)
        ]
        assert max(gaps) > 1e-6, f"homogeneous of degree {degree:g}, and does not say so"
        return
    for a in (0.3, 2.0, 7.5):
        torch.testing.assert_close(sigma(a * x), a**degree * sigma(x), rtol=1e-13, atol=0)


# --- integrals ---------------------------------------------------------------------------------------------------

_COUNT: Final = 7


@functools.cache
def _references(sigma: Activation) -> list[Any]:
    return standard_normal_integrals(
        lambda z, y: [abs(y), y * y, *(y * p for p in hermite(_COUNT, z))], sigma, 1.0
    )


def check_moments(sigma: Activation) -> None:
    """Mean, linear part, variance and second moment against 30 digits, and within their own error estimate; at
    other variances against those of x ↦ σ(√q x), which knows nothing of its kinks.
    """
    names = ("mean", "linear", "second", "variance")
    if twin(sigma) is not None:
        size, second, mean, linear, *_ = _references(sigma)
        ours = moments(sigma)
        for name, exact in zip(names, (mean, linear, second, second - mean**2), strict=True):
            gap = abs(float(exact - mp.mpf(getattr(ours, name))))
            assert gap <= 1e-12 * float(size + second), f"{name}: off by {gap:.1e}"
            assert gap <= ours.error, f"{name}: off by {gap:.1e}, said {ours.error:.1e}"
        assert abs(ours.scale**2 - ours.variance) <= 4 * EPS * ours.variance
    for variance in (0.04, 2.9):
        root = math.sqrt(variance)
        ours = moments(sigma, variance=variance)
        blind = Activation("scaled", lambda x, r=root: sigma(r * x), torch.zeros_like)  # type: ignore[misc]
        for name in names:
            gap = abs(getattr(ours, name) - getattr(moments(blind), name))
            assert gap <= 1e-12 * (math.sqrt(ours.second) + ours.second), f"{name} at {variance}: {gap:.1e}"


def check_hermite(sigma: Activation) -> None:
    """The first coefficients against 30 digits, and Parseval: E(σ − Σc_k he_k)² = Eσ² − Σc_k²."""
    ours = hermite_coefficients(sigma, _COUNT)
    if twin(sigma) is not None:
        for k, exact in enumerate(_references(sigma)[2:]):
            size = math.sqrt(float(_references(sigma)[1]))
            assert abs(float(exact - mp.mpf(float(ours[k])))) <= 1e-12 * size, f"c_{k}"
    captured = ours.square().cumsum(0)
    second = moments(sigma).second
    assert captured[-1] <= second * (1 + 1e-13)
    if captured[-1] >= second * (1 - 1e-13):
        return  # a polynomial: what is left is rounding
    rest = dataclasses.replace(
        sigma, function=lambda x: sigma(x) - _series(ours, x), closed_form=None, homogeneity=None
    )
    assert abs(moments(rest).second - float(second - captured[-1])) <= 1e-12 * second


def _series(coefficients: Tensor, x: Tensor) -> Tensor:
    """Σ c_k he_k(x) with he_k = xhe_{k−1}/√k − √((k−1)/k) he_{k−2}."""
    before, now = torch.zeros_like(x), torch.ones_like(x)
    total = coefficients[0] * now
    for k in range(1, len(coefficients)):
        before, now = now, x * now / math.sqrt(k) - math.sqrt((k - 1) / k) * before
        total = total + coefficients[k] * now
    return total


def check_isometry_strength(sigma: Activation) -> None:
    """β lies in [1, 2] and is 2 − c₁²/Var."""
    beta = isometry_strength(sigma)
    assert 1.0 <= beta <= 2.0
    if twin(sigma) is not None:
        _, second, mean, linear, *_ = _references(sigma)
        assert abs(beta - float(2 - linear**2 / (second - mean**2))) < 1e-12


_RHO: Final = ((-1, -0.8, 0.3, 1 - 1e-9, 1), (-1 + 1e-9, 1e-4, 0.97))
_VARIANCES: Final = ((1.0, 1.0), (2.6, 0.4))


def check_closed_form(sigma: Activation) -> None:
    """Every registered formula (dual, slope, reduced dual) against quadrature, ρ = ±1 and its neighbors included."""
    if sigma.closed_form is None:
        return
    plain = dataclasses.replace(sigma, closed_form=None)
    for (q1, q2), grid in zip(_VARIANCES, _RHO, strict=True):
        rho = _column(grid)
        size = math.sqrt(moments(sigma, variance=q1).second * moments(sigma, variance=q2).second)
        spread = math.sqrt(moments(sigma, variance=q1).variance * moments(sigma, variance=q2).variance)
        _agree("dual", dual(sigma, rho, q1, variance2=q2), dual(plain, rho, q1, variance2=q2), size)
        _agree(
            "reduced dual",
            mean_reduced_dual(sigma, rho, q1, variance2=q2),
            mean_reduced_dual(plain, rho, q1, variance2=q2),
            spread,
        )
        ours, theirs = (dual_slope(s, rho, q1, variance2=q2) for s in (sigma, plain))
        assert torch.equal(torch.isinf(ours), torch.isinf(theirs)), "slopes are infinite at other places"
        finite = torch.isfinite(ours)
        _agree("slope", ours[finite], theirs[finite], float(ours[finite].abs().max()))


def _agree(what: str, ours: Tensor, theirs: Tensor, size: float) -> None:
    gap = float((ours - theirs).abs().max()) / size
    assert gap <= 1e-12, f"{what} differs by {gap:.1e}"


CHECKS: Final[dict[str, Callable[[Activation], None]]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_formula,
        check_derivative,
        check_dtype,
        check_kinks_complete,
        check_kinks_real,
        check_jumps,
        check_tails,
        check_recession_gap,
        check_bounded,
        check_range,
        check_lipschitz,
        check_homogeneity,
        check_moments,
        check_hermite,
        check_isometry_strength,
        check_closed_form,
    )
}
