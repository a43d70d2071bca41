"""The mean-field map: against real networks of growing width, its monotony, and its asymptotic rate.

Every statement is a check function that takes the oracle, so that deliberately wrong oracles meet the same check.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.gaussian import activation_names, dual, isometry_strength, mean_reduced_dual, moments
from farfield.geometry import gram, isometry_gap, mean_field_gaps, mean_field_step, normalized_gram
from farfield.geometry.bounds import predict_gap, theorem4_bound
from farfield.nn import MLP
from gram_samples import features, generator, near_duplicates, unit_grams, weakly_correlated
from shape_checking import as_users_run_it

NAMES = activation_names()
Step = Callable[[Tensor, str], Tensor]


# ------------------------------------------------------------------ wrong oracles


def step_with_the_whole_dual(G: Tensor, name: str) -> Tensor:
    """σ̂(G)/σ̂(1): centering forgotten."""
    return dual(name, G.clamp(-1, 1)) / dual(name, 1.0)


def step_without_its_diagonal(G: Tensor, name: str) -> Tensor:
    """σ̄(G) without the division that makes its diagonal one."""
    return mean_reduced_dual(name, G.clamp(-1, 1))


def step_at_the_wrong_variance(G: Tensor, name: str) -> Tensor:
    """Pre-activations taken with variance 2."""
    return mean_reduced_dual(name, G.clamp(-1, 1), 2.0) / moments(name, variance=2.0).variance


# ------------------------------------------------------------------ the map itself


def pairs(rho: Tensor) -> Tensor:
    one = torch.ones_like(rho)
    return torch.stack([torch.stack([one, rho], -1), torch.stack([rho, one], -1)], -2)


def test_the_step_is_the_normalized_reduced_dual():
    rho = torch.tensor([-0.75, 0.2, 0.98], dtype=torch.float64)
    G = pairs(rho)
    for name in NAMES:
        expected = pairs(mean_reduced_dual(name, rho) / moments(name).variance)
        torch.testing.assert_close(mean_field_step(G, name), expected, rtol=0, atol=1e-12)


def test_the_step_normalizes_first_and_takes_anything_elementwise():
    x = features(2, 1, 4, 9, spread=1.0)[0]
    G = gram(x)
    assert torch.equal(mean_field_step(G, "relu"), mean_field_step(normalized_gram(G), "relu"))
    for same in (torch.relu, torch.nn.ReLU()):
        assert torch.equal(mean_field_step(G, same), mean_field_step(G, "relu"))
    own = mean_field_step(G, lambda t: torch.tanh(t))
    torch.testing.assert_close(own, mean_field_step(G, "tanh"), rtol=0, atol=2e-12)
    assert mean_field_step(G.float(), "gelu").dtype == torch.float32


def test_zero_and_one_are_fixed_points_exactly():
    """And −1 for an odd activation: rounding neither creates nor parts degenerate pairs."""
    G = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    for name in NAMES:
        assert torch.equal(mean_field_step(G, name), G), name


@pytest.mark.parametrize("name", ["relu", "tanh", "sin", "cos", "gelu", "step", "exp", "erf"])
def test_the_step_is_differentiable_at_and_off_zero(name):
    """At exactly zero too, where a formula with |ρ| in it has the wrong autograd slope."""
    rho = torch.tensor([0.0, 0.3, -0.6], dtype=torch.float64, requires_grad=True)

    def off_diagonal(r: Tensor) -> Tensor:
        return mean_field_step(pairs(r), name)[:, 0, 1]

    assert torch.autograd.gradcheck(off_diagonal, rho, atol=1e-6)
    (slope,) = torch.autograd.grad(off_diagonal(rho).sum(), rho)
    linear_part = moments(name).linear ** 2 / moments(name).variance
    assert abs(float(slope[0]) - linear_part) < 1e-11


def test_refusals():
    G = torch.eye(2, dtype=torch.float64)
    for value in (0.3, 0.1):
        with pytest.raises(InvalidValueError, match="constant under"):
            mean_field_step(G, lambda t, value=value: torch.zeros_like(t) + value)
    with pytest.raises(InvalidValueError, match="depth is >= 0"):
        mean_field_gaps(G, "relu", -1)
    with as_users_run_it(), pytest.raises(InvalidValueError, match="square"):
        mean_field_step(torch.ones(2, 3), "relu")


# ------------------------------------------------------------------ isometry never decreases


def monotony_cases() -> list[Tensor]:
    cases = [unit_grams(n, 300, n) for n in (2, 3, 6)]
    cases += [unit_grams(40 + n, 100, n, d=n) for n in (2, 5)]
    cases += [near_duplicates(7, 100, 4, 0.1), weakly_correlated(8, 100, 5, 1e-6)]
    return cases


CASES = monotony_cases()
GAPS = [isometry_gap(G) for G in CASES]


def check_monotone(step: Step, name: str) -> int:
    """Gap after ≤ gap before, at 1300 Gram matrices: zero slack."""
    total = 0
    for G, before in zip(CASES, GAPS, strict=True):
        after = isometry_gap(step(G, name))
        assert bool((after <= before).all()), name
        total += len(G)
    return total


@pytest.mark.parametrize("name", NAMES)
def test_isometry_never_decreases(name):
    assert check_monotone(mean_field_step, name) == 1300


@pytest.mark.parametrize("name", ["relu", "exp"])
def test_isometry_decreases_under_the_whole_dual(name):
    """Without centering it does decrease: the check is not empty."""
    with pytest.raises(AssertionError):
        check_monotone(step_with_the_whole_dual, name)


# ------------------------------------------------------------------ the asymptotic rate


def measured_rate(name: str, depth: int) -> float:
    """Gap ratio of the last two layers, once correlations are small."""
    gaps = mean_field_gaps(unit_grams(11, 1, 5)[0], name, depth)
    assert 1e-25 < gaps[-1] < 1e-3
    return float(gaps[-1] / gaps[-2])


RATES = {
    "relu": (0.538, 25),
    "step": (0.4053, 20),
    "tanh": (0.866, 60),
    "gelu": (None, 25),
    "sin": (None, 60),
}


def check_rate(rate: Callable[[float], float]) -> None:
    for name, (expected, depth) in RATES.items():
        measured, predicted = measured_rate(name, depth), rate(isometry_strength(name))
        assert abs(measured / predicted - 1) < 0.02, (name, measured, predicted)
        if expected is not None:
            assert abs(measured / expected - 1) < 0.02, name


def test_the_asymptotic_rate_is_two_minus_beta_squared():
    check_rate(lambda beta: (2.0 - beta) ** 2)


@pytest.mark.parametrize(
    "rate",
    [lambda beta: 1.0 / beta, lambda beta: beta**-2, lambda beta: 2.0 - beta, lambda beta: (beta - 1.0) ** 2],
    ids=["the paper's 1/β", "β in place of 2 − β", "not squared", "β − 1 in place of 2 − β"],
)
def test_other_rates_are_caught(rate):
    with pytest.raises(AssertionError):
        check_rate(rate)


def test_the_papers_rate_is_slower_for_every_strength():
    beta = torch.linspace(1.0, 2.0, 1001, dtype=torch.float64)[1:]
    assert bool(((2.0 - beta) ** 2 < 1.0 / beta).all())


# ------------------------------------------------------------------ finite width

WIDTHS = (64, 256, 1024, 4096)
SEEDS = (48, 24, 12, 6)
LAYERS = 2


def inputs() -> Tensor:
    """Six points of mean square one in ten dimensions, correlations from −0.8 to 0.9."""
    x = features(13, 1, 6, 10, common=0.5)[0].float()
    return x / x.square().mean(-1, keepdim=True).sqrt()


def empirical_grams(name: str, width: int, seeds: int) -> Tensor:
    x, outcomes = inputs(), []
    for seed in range(seeds):
        net = MLP(
            10, None, width=width, depth=LAYERS, activation=name, norm="layer", order="post",
            parametrization="mean_field", norm_eps=0.0, generator=generator(1000 * width + seed),
        )  # fmt: skip
        with torch.no_grad():
            h = net(x).double()
        outcomes.append(h @ h.mT / width)
    return torch.stack(outcomes)


@pytest.fixture(scope="module")
def measured() -> dict[str, list[Tensor]]:
    return {
        name: [empirical_grams(name, w, s) for w, s in zip(WIDTHS, SEEDS, strict=True)]
        for name in ("relu", "tanh", "sin")
    }


def slope(errors: list[float]) -> float:
    x = torch.log(torch.tensor(WIDTHS, dtype=torch.float64))
    y = torch.log(torch.tensor(errors, dtype=torch.float64))
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum())


def check_width(step: Step, name: str, grams: list[Tensor]) -> float:
    """Root-mean-square error of all Gram entries falls like width^(−½ ± 0.15)."""
    prediction = normalized_gram(gram(inputs().double()))
    for _ in range(LAYERS):
        prediction = step(prediction, name)
    errors = [float((G - prediction).square().mean().sqrt()) for G in grams]
    assert abs(slope(errors) + 0.5) < 0.15, errors
    return slope(errors)


@pytest.mark.full
@pytest.mark.parametrize("name", ["relu", "tanh", "sin"])
def test_finite_width_approaches_the_mean_field(name, measured):
    check_width(mean_field_step, name, measured[name])


@pytest.mark.full
@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (step_with_the_whole_dual, "relu"),  # for the odd tanh both duals are the same
        (step_without_its_diagonal, "relu"),
        (step_without_its_diagonal, "tanh"),
        (step_at_the_wrong_variance, "sin"),  # for the homogeneous relu the variance cancels
    ],
)
def test_wrong_steps_do_not_converge(wrong, name, measured):
    with pytest.raises(AssertionError):
        check_width(wrong, name, measured[name])


@pytest.mark.full
@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_the_gap_curve_of_a_wide_network_is_the_predicted_one(name, measured):
    G0 = gram(inputs().double())
    predicted = mean_field_gaps(G0, name, LAYERS)
    wide = isometry_gap(measured[name][-1])
    error = float(wide.std() / math.sqrt(len(wide)))
    # The gap is not linear in the entries, so its mean is off by O(1/width) as well.
    assert abs(float(wide.mean() - predicted[-1])) < 5 * error + 20.0 / WIDTHS[-1]
    assert predicted[-1] < predicted[0] - 20 * error


# ------------------------------------------------------------------ predict_gap


def test_prediction_holds_the_curve_the_bound_and_both_rates():
    G = unit_grams(17, 1, 5)[0] * 3.0
    p = predict_gap(G, "relu", 30)
    beta = isometry_strength("relu")
    layers = torch.arange(31, dtype=torch.float64)
    assert p.strength == beta
    assert torch.equal(p.mean_field, mean_field_gaps(G, "relu", 30))
    assert torch.equal(p.bound, theorem4_bound(G, beta, 30))
    torch.testing.assert_close(p.paper_rate, p.mean_field[0] * beta**-layers, rtol=1e-13, atol=0)
    assert torch.equal(p.sharp_rate[-1], p.mean_field[-1])
    torch.testing.assert_close(
        p.sharp_rate[1:] / p.sharp_rate[:-1],
        torch.full((30,), (2 - beta) ** 2, dtype=torch.float64),
        rtol=1e-12,
        atol=0,
    )
    torch.testing.assert_close(p.sharp_rate[-10:], p.mean_field[-10:], rtol=0.02, atol=0)
    assert bool((p.paper_rate[10:] > 10 * p.mean_field[10:]).all())


@pytest.mark.parametrize("name", ["abs", "cos", "gaussian", "he2", "he3"])
def test_prediction_without_a_linear_part_has_no_nan(name):
    """β = 2: the rate is 0, so no line runs back from the last gap, which underflows after nine layers."""
    p = predict_gap(unit_grams(19, 1, 3)[0], name, 15)
    assert p.strength == 2.0
    assert not bool(torch.isnan(torch.stack([p.mean_field, p.bound, p.paper_rate, p.sharp_rate])).any())
    assert bool((p.sharp_rate[:-1] == torch.inf).all())
    assert p.sharp_rate[-1] == p.mean_field[-1]


def test_prediction_of_a_degenerate_batch_and_of_no_layers():
    p = predict_gap(torch.ones(2, 2, dtype=torch.float64), "relu", 3)
    for curve in (p.mean_field, p.bound, p.paper_rate, p.sharp_rate):
        assert bool((curve == torch.inf).all())
    p = predict_gap(unit_grams(19, 1, 3)[0], "identity", 0)
    assert p.mean_field.shape == (1,)
    assert p.strength == 1.0
    assert torch.equal(p.mean_field, p.sharp_rate)


def test_the_identity_moves_nothing():
    gaps = mean_field_gaps(unit_grams(23, 1, 5)[0], "identity", 20)
    assert bool((gaps == gaps[0]).all())
