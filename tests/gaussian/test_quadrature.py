"""Gaussian expectations: right, and right about how right they are."""

import itertools
import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from farfield.errors import InvalidValueError, PrecisionError
from farfield.gaussian import Expectation, gaussian_expectation

Function = Callable[[Tensor], Tensor]


def upper(t: float) -> float:
    """P(z > t)."""
    return float(mp.ncdf(-mp.mpf(t)))


def ramp(t: float) -> float:
    """E max(z − t, 0)."""
    with mp.workdps(40):
        return float(mp.npdf(t) - mp.mpf(t) * mp.ncdf(-mp.mpf(t)))


def absolute_moment(p: float) -> float:
    """E |z|^p."""
    return float(mp.mpf(2) ** (mp.mpf(p) / 2) * mp.gamma((mp.mpf(p) + 1) / 2) / mp.sqrt(mp.pi))


def lorentzian(a: float) -> float:
    """E 1/(z² + a²)."""
    return float(mp.sqrt(mp.pi / 2) / a * mp.exp(mp.mpf(a) ** 2 / 2) * mp.erfc(a / mp.sqrt(2)))


# label → (function, variance, exact value); nobody is told of a kink
KNOWN: dict[str, tuple[Function, float, float]] = {
    **{f"x^{2 * k}": (lambda x, k=k: x ** (2 * k), 1.0, float(mp.fac2(2 * k - 1))) for k in (0, 1, 4, 10, 25)},
    "x^3": (lambda x: x**3, 1.0, 0.0),
    "x^2 wide": (lambda x: x**2, 1e8, 1e8),
    "x^2 narrow": (lambda x: x**2, 1e-8, 1e-8),
    **{f"|x|^{p:g}": (lambda x, p=p: x.abs() ** p, 1.0, absolute_moment(p)) for p in (-0.5, 0.1, 0.5, 1, 1.5, 3)},
    "log|x|": (lambda x: torch.log(x.abs()), 1.0, -(float(mp.euler) + math.log(2)) / 2),
    **{f"cos {a:g}x": (lambda x, a=a: torch.cos(a * x), 1.0, math.exp(-a * a / 2)) for a in (0.1, 1, 5, 30)},
    "cos of variance 900": (torch.cos, 900.0, math.exp(-450)),
    **{f"exp {a:g}x": (lambda x, a=a: torch.exp(a * x), 1.0, math.exp(a * a / 2)) for a in (-3, 0.5, 1, 8, 19)},
    # Scaled so that it overflows eight deviations past its peak: what is cut off is more than rounding.
    "exp cut off": (
        lambda x: 1e200 * torch.exp(12.35 * x),
        1.0,
        float(mp.mpf(10) ** 200 * mp.exp(mp.mpf(12.35) ** 2 / 2)),
    ),
    **{f"x > {t:g}": (lambda x, t=t: (x > t).to(x), 1.0, upper(t)) for t in (-2.5, -1e-4, 0, 1e-9, 1 / 3, 3.002, 8)},
    **{
        f"relu(x - {t:g})": (lambda x, t=t: torch.relu(x - t), 1.0, ramp(t))
        for t in (-2.5, 0, 1e-4, 1e-2, 0.9999, 1 / 3, math.pi, 6)
    },
    "x > 1 wide": (lambda x: (x > 1).to(x), 1e6, upper(1e-3)),
    **{
        f"bump of width {w:g}": (lambda x, w=w: torch.exp(-((x / w) ** 2) / 2), 1.0, w / math.sqrt(1 + w * w))
        for w in (3, 1, 0.1, 1e-2, 1e-3, 1e-5)
    },
    "bump, wide": (lambda x: torch.exp(-(x**2) / 2), 1e10, 1 / math.sqrt(1 + 1e10)),
    **{f"Lorentzian {a:g}": (lambda x, a=a: 1 / (x * x + a * a), 1.0, lorentzian(a)) for a in (1, 0.1, 1e-3)},
    "constant": (lambda x: torch.full_like(x, -7.0), 4.0, -7.0),
    "nothing": (torch.zeros_like, 4.0, 0.0),
    "normal cdf": (torch.special.ndtr, 1e4, 0.5),
    "subnormal": (lambda x: 1e-310 * x**2, 1.0, 1e-310),
}  # fmt: skip


@pytest.mark.parametrize("label", KNOWN)
def test_error_estimate_is_honest(label: str) -> None:
    function, variance, exact = KNOWN[label]
    ours = gaussian_expectation(function, variance=variance)
    assert abs(float(ours.value) - exact) <= float(ours.error), "the true error exceeds the estimate"
    if label not in ("|x|^-0.5", "|x|^0.1", "exp cut off", "subnormal"):
        assert ours.error <= 1e-13 * ours.magnitude + 1e-300, "the estimate is too cautious to be of use"


@settings(max_examples=60)
@given(
    kink=st.floats(-6, 6),
    power=st.sampled_from([0, 1, 2]),
    log_variance=st.floats(-8, 8),
)
def test_unknown_kinks_wherever_they_are(kink: float, power: int, log_variance: float) -> None:
    """(x − t)₊ⁿ with t anywhere, near a panel end or not."""
    variance = 10.0**log_variance
    root = math.sqrt(variance)
    t = kink * root
    ours = gaussian_expectation(lambda x: ((x - t) / root).clamp(min=0) ** power * (x > t), variance=variance)
    with mp.workdps(40):
        u = mp.mpf(t) / mp.sqrt(mp.mpf(variance))
        tail, density = mp.ncdf(-u), mp.npdf(u)
        exact = (tail, density - u * tail, (1 + u * u) * tail - u * density)[power]
        gap = abs(float(exact - mp.mpf(float(ours.value))))
    # Rounding t/√q moves the kink itself by a unit in the last place.
    assert gap <= float(ours.error) + 4e-16 * (1 + abs(kink)) * float(density)
    assert ours.error <= 1e-13 * ours.magnitude + 1e-300


def test_known_kinks_save_work() -> None:
    told = gaussian_expectation(torch.relu, kinks=[0.0])
    shifted = gaussian_expectation(lambda x: torch.relu(x - 0.3), kinks=[0.3])
    untold = gaussian_expectation(lambda x: torch.relu(x - 0.3))
    assert abs(float(told.value) - 1 / math.sqrt(2 * math.pi)) < 1e-15
    assert shifted.evaluations < untold.evaluations
    assert abs(float(shifted.value - untold.value)) < 1e-15


def test_gauss_hermite_trap() -> None:
    """200 Gauss–Hermite nodes: perfect for erf, useless at a kink; panels split there are perfect for both."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    weights = weights / weights.sum()
    z = torch.from_numpy(nodes)

    def textbook(f: Function) -> float:
        return float((f(z) * torch.from_numpy(weights)).sum())

    exact = 1 / math.sqrt(2 * math.pi)
    assert abs(textbook(torch.relu) - exact) > 1e-4
    assert abs(float(gaussian_expectation(torch.relu, kinks=[0.0]).value) - exact) < 1e-14
    square = (2 / math.pi) * math.asin(2 / 3)
    assert abs(textbook(lambda x: torch.erf(x) ** 2) - square) < 1e-14
    assert abs(float(gaussian_expectation(lambda x: torch.erf(x) ** 2).value) - square) < 1e-14


def test_error_falls_geometrically_between_kinks() -> None:
    """Composite Gauss–Legendre on panels ending at the kink: a few nodes more, many digits more."""
    exact = 1 / math.sqrt(2 * math.pi)
    errors = []
    for count in (4, 6, 8, 10):
        x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(count))
        z = torch.arange(9, dtype=torch.float64)[:, None] + (x + 1) / 2
        total = float((z * torch.exp(-z * z / 2) * w / 2).sum()) / math.sqrt(2 * math.pi)
        errors.append(abs(total - exact) + 1e-17)
    rates = [math.log10(a / b) for a, b in itertools.pairwise(errors)]
    assert min(rates[:2]) > 2, errors


def test_several_rows_share_a_partition() -> None:
    together = gaussian_expectation(
        lambda x: torch.stack([x**2, torch.relu(x), torch.cos(40 * x), torch.zeros_like(x)]), variance=1.0
    )
    assert together.value.shape == together.error.shape == together.magnitude.shape == (4,)
    exact = torch.tensor([1.0, 1 / math.sqrt(2 * math.pi), math.exp(-800), 0.0], dtype=torch.float64)
    assert ((together.value - exact).abs() <= together.error).all()


@pytest.mark.parametrize("shape", ["flat", "rows"])
def test_variance_zero_is_evaluation_at_the_origin(shape: str) -> None:
    f = torch.cos if shape == "flat" else lambda x: torch.stack([torch.cos(x), x - 3])
    ours = gaussian_expectation(f, variance=0.0)
    assert ours.value.tolist() == ([1.0] if shape == "flat" else [1.0, -3.0])
    assert ours.error.max() == 0.0
    assert ours.evaluations == 1


@pytest.mark.parametrize(
    ("function", "variance"),
    [
        (torch.exp, 1e4),
        (lambda x: torch.exp(x) ** 2, 400.0),
        (lambda x: torch.exp(x**2), 1.0),
        (lambda x: torch.exp(x**2 / 2), 1.0),
        (lambda x: torch.exp(x.abs() ** 1.9), 1e3),
        (lambda x: 1 / torch.zeros_like(x), 1.0),
        (torch.log, 1.0),
    ],
)
def test_overflow_is_refused(function: Function, variance: float) -> None:
    with pytest.raises(PrecisionError, match="The integrand"):
        gaussian_expectation(function, variance=variance)


@pytest.mark.parametrize("variance", [-1.0, math.inf, math.nan])
def test_variance_is_finite_and_not_negative(variance: float) -> None:
    with pytest.raises(InvalidValueError, match="A variance is a finite number >= 0"):
        gaussian_expectation(torch.relu, variance=variance)


@pytest.mark.parametrize("log_scale", [-150, -100, -20, -6, 6, 20, 100, 150])
def test_huge_and_tiny_scales(log_scale: int) -> None:
    """E|√q z| = √(2q/π) over 300 orders of magnitude, kink told or not."""
    root = 10.0**log_scale
    for kinks in ((), (0.0,)):
        ours = gaussian_expectation(torch.abs, variance=root * root, kinks=kinks)
        assert abs(float(ours.value) / (root * math.sqrt(2 / math.pi)) - 1) < 1e-14


@given(st.floats(0.0, 12.0))
@settings(max_examples=25)
def test_bounded_activations_at_any_scale(log_scale: float) -> None:
    """E Φ(x)² = ¼ + asin(q/(1+q))/2π: the bend of Φ is a sliver of the range and must not be skipped."""
    q = 10.0**log_scale
    ours = gaussian_expectation(lambda x: torch.special.ndtr(x) ** 2, variance=q)
    exact = 0.25 + math.atan2(q, math.sqrt(1 + 2 * q)) / (2 * math.pi)
    assert abs(float(ours.value) - exact) <= float(ours.error) + 2e-16


def test_far_from_converged_says_so() -> None:
    """An oscillation beyond any partition: no digits, and the estimate admits it."""
    ours = gaussian_expectation(torch.cos, variance=1e16)
    assert ours.error > 1e-3
    assert abs(float(ours.value)) <= ours.error


def test_looser_tolerance_is_cheaper_and_still_honest() -> None:
    tight = gaussian_expectation(lambda x: (x > 0.3).to(x))
    loose = gaussian_expectation(lambda x: (x > 0.3).to(x), tolerance=1e-6)
    assert isinstance(loose, Expectation)
    assert loose.evaluations < tight.evaluations
    assert abs(float(loose.value) - upper(0.3)) <= float(loose.error) < 1e-4
