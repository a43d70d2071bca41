"""Spectra, alignment, distance, and what a linearized network predicts."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from farfield.errors import InvalidValueError
from farfield.ntk import (
    NTKOperator,
    alignment,
    empirical_ntk,
    extreme_eigenvalues,
    kernel_distance,
    linearized_prediction,
    spectrum,
)
from ntk_models import build, gradients


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def positive(n, seed=0, rank=None):
    rows = torch.randn(n, rank or 2 * n, generator=generator(seed), dtype=torch.float64)
    return rows @ rows.T


# ------------------------------------------------------------------ spectra


def test_the_spectrum_of_a_known_matrix():
    values = torch.tensor([8.0, 4.0, 2.0, 2.0], dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(4, 4, generator=generator(), dtype=torch.float64))[0]
    found = spectrum(basis @ torch.diag(values) @ basis.T)
    assert (found.eigenvalues - values).abs().max() < 1e-13
    assert found.condition == pytest.approx(4.0, rel=1e-13)
    # Shares ½, ¼, ⅛, ⅛: an entropy of 1.75 bits.
    assert found.effective_rank == pytest.approx(2**1.75, rel=1e-13)
    assert spectrum(torch.eye(5)).effective_rank == pytest.approx(5.0)


def test_a_singular_kernel_has_no_condition_number():
    found = spectrum(positive(6, rank=3))
    assert found.condition == math.inf and found.effective_rank < 3 + 1e-9
    assert spectrum(positive(6, rank=3).float()).condition == math.inf
    zero = spectrum(torch.zeros(3, 3))
    assert zero.effective_rank == 0 and zero.condition == math.inf


def test_the_spectrum_of_all_outputs():
    model, x, _ = build("layer_norm_affine")
    rows = gradients(model, x).flatten(0, 1)
    truth = torch.linalg.svdvals(rows) ** 2
    found = spectrum(empirical_ntk(model, x, outputs="full"))
    assert (found.eigenvalues - truth).abs().max() < 1e-11 * truth[0]


@pytest.mark.parametrize("seed", range(3))
def test_extreme_eigenvalues_without_the_matrix(seed):
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2)).double()
    x = torch.randn(15, 4, generator=generator(seed), dtype=torch.float64)
    for p in model.parameters():
        p.data.copy_(torch.randn(p.shape, generator=generator(seed + 10), dtype=torch.float64))
    truth = spectrum(empirical_ntk(model, x, outputs="full"))
    found = extreme_eigenvalues(NTKOperator(model, x), steps=40, tolerance=1e-12)
    top, bottom = float(truth.eigenvalues[0]), float(truth.eigenvalues[-1])
    assert abs(found.largest.value - top) <= found.largest.error + 1e-13 * top < 1e-9 * top
    assert abs(found.smallest.value - bottom) <= found.smallest.error + 1e-13 * top
    low, high = found.condition_range
    assert low <= truth.condition * (1 + 1e-9) and truth.condition <= high * (1 + 1e-9)
    assert found.condition == pytest.approx(truth.condition, rel=1e-6)


def test_few_steps_are_honest_about_the_small_end():
    matrix = torch.diag(torch.logspace(-8, 0, 200, dtype=torch.float64))
    found = extreme_eigenvalues(matrix, steps=12)
    assert (found.steps == 12 and found.condition == math.inf) or found.condition_range[1] == math.inf
    assert found.condition_range[0] <= 1e8
    assert abs(found.largest.value - 1) <= found.largest.error


def test_single_precision_knows_what_it_loses():
    matrix = positive(40).float()
    truth = torch.linalg.eigvalsh(matrix.double())
    found = extreme_eigenvalues(matrix, steps=40)
    assert abs(found.largest.value - float(truth[-1])) <= found.largest.error
    assert abs(found.smallest.value - float(truth[0])) <= found.smallest.error
    model, x, _ = build("mlp", torch.float32)
    found = extreme_eigenvalues(NTKOperator(model, x))
    exact = spectrum(empirical_ntk(model.double(), x.double()))
    assert abs(found.largest.value - float(exact.eigenvalues[0])) <= found.largest.error
    assert abs(found.smallest.value - float(exact.eigenvalues[-1])) <= found.smallest.error


# ------------------------------------------------------------------ alignment and distance


def cosine(a, b):
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


@given(st.integers(2, 8), st.integers(1, 3), st.integers(0, 1000), st.booleans())
def test_alignment_is_a_cosine(n, classes, seed, centered):
    kernel, y = positive(n, seed), torch.randn(n, classes, generator=generator(seed + 1), dtype=torch.float64)
    H = np.eye(n) - 1 / n if centered else np.eye(n)
    truth = cosine(H @ kernel.numpy() @ H, H @ y.numpy() @ y.numpy().T @ H)
    found = alignment(kernel, y, centered=centered)
    assert found == pytest.approx(truth, abs=1e-12)
    assert 0 <= found <= 1
    if classes == 1:
        assert alignment(kernel, y[:, 0], centered=centered) == pytest.approx(truth, abs=1e-12)
    assert alignment(7 * kernel, -y, centered=centered) == pytest.approx(truth, abs=1e-12)


def test_centering_takes_away_what_is_constant():
    kernel, y = positive(6), torch.tensor([1.0, 1, 1, -1, -1, 1], dtype=torch.float64)
    assert alignment(kernel + 100, y, centered=True) == pytest.approx(
        alignment(kernel, y, centered=True), abs=1e-10
    )
    assert abs(alignment(kernel + 100, y) - alignment(kernel, y)) > 1e-2


@given(st.integers(1, 6), st.integers(0, 1000))
def test_distance_is_one_minus_the_cosine(n, seed):
    a, b = positive(n, seed), positive(n, seed + 1)
    assert kernel_distance(a, b) == pytest.approx(1 - cosine(a, b), abs=1e-14)
    assert kernel_distance(a, b) == kernel_distance(b, a)
    assert kernel_distance(a, 3 * a) < 1e-30
    # To all digits, where 1 − cos would have none.
    turned = a.clone()
    turned[0, 0] += 1e-9 * float(a.norm())
    assert kernel_distance(a, turned) < 1e-17


def test_refusals():
    kernel, y = positive(4), torch.ones(4)
    for wrong in (kernel[:3], kernel[0], torch.ones(2, 2, dtype=torch.int64), torch.ones(0, 0)):
        with pytest.raises(InvalidValueError, match="of the inputs with themselves"):
            spectrum(wrong)
    for targets in (torch.ones(3), torch.tensor([0, 1, 2, 1]), torch.ones(4, 1, 1)):
        with pytest.raises(InvalidValueError, match="Targets are floating point"):
            alignment(kernel, targets)
    with pytest.raises(InvalidValueError, match="vanish"):
        alignment(kernel, y, centered=True)
    with pytest.raises(InvalidValueError, match="one shape"):
        kernel_distance(kernel, kernel[:2])
    with pytest.raises(InvalidValueError, match="vanishes"):
        kernel_distance(kernel, 0 * kernel)


# ------------------------------------------------------------------ the linearized network


def test_a_linear_model_is_least_squares():
    x, test = (
        torch.randn(9, 3, generator=generator(), dtype=torch.float64),
        torch.ones(2, 3, dtype=torch.float64),
    )
    y = torch.randn(9, 2, generator=generator(1), dtype=torch.float64)
    model = nn.Linear(3, 2).double()
    rows = np.c_[x.numpy(), np.ones(9)]
    start = np.c_[model.weight.detach().numpy(), model.bias.detach().numpy()].T
    for ridge in (0.3, 2.0):
        solved = start + np.linalg.solve(
            rows.T @ rows + ridge * np.eye(4), rows.T @ (y.numpy() - rows @ start)
        )
        truth = np.c_[test.numpy(), np.ones(2)] @ solved
        found = linearized_prediction(model, x, y, test, ridge=ridge).numpy()
        assert np.abs(found - truth).max() < 1e-11
        assert (
            np.abs(found - linearized_prediction(model, x, y, test, ridge=1.02 * ridge).numpy()).max() > 1e-4
        )


def test_without_a_ridge_it_interpolates():
    model, x, _ = build("residual")
    y = torch.randn(4, 2, generator=generator(2), dtype=torch.float64)
    assert (linearized_prediction(model, x, y, x) - y).abs().max() < 1e-9
    assert linearized_prediction(model, x, y, x[:1], batch=1).shape == (1, 2)


def test_refusals_of_the_prediction():
    model, x, _ = build("residual")
    y = torch.zeros(4, 2, dtype=torch.float64)
    with pytest.raises(InvalidValueError, match="shape of the model's output"):
        linearized_prediction(model, x, y[:, :1], x)
    with pytest.raises(InvalidValueError, match="not negative"):
        linearized_prediction(model, x, y, x, ridge=-1.0)
    with pytest.raises(InvalidValueError, match=r"singular.*Give a ridge"):
        linearized_prediction(model, torch.cat([x, x]), torch.cat([y, y]), x)


class Wide(nn.Module):
    """Two hidden layers in the parametrization in which the kernel has a limit."""

    def __init__(self, width, seed):
        super().__init__()
        draw = generator(seed)
        sizes = [2, width, width, 1]
        self.weights = nn.ParameterList(
            torch.randn(b, a, generator=draw, dtype=torch.float64) for a, b in itertools.pairwise(sizes)
        )

    def forward(self, x):
        for k, weight in enumerate(self.weights):
            x = nn.functional.linear(x.tanh() if k else x, weight) / math.sqrt(weight.shape[1])
        return x


def trained(model, x, y, ridge):
    """The same model at the minimum of the squared error plus ridge‖θ − θ₀‖²/2."""
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        max_iter=200,
        tolerance_grad=1e-9,
        tolerance_change=1e-13,
        line_search_fn="strong_wolfe",
    )

    def loss():
        optimizer.zero_grad()
        moved = sum((p - q).square().sum() for p, q in zip(model.parameters(), start, strict=True))
        value = 0.5 * (model(x) - y).square().sum() + 0.5 * ridge * moved
        value.backward()
        return value.detach()

    optimizer.step(loss)
    return model


@pytest.mark.full
def test_wider_networks_train_to_their_linearization():
    """The error falls with width, as does how far the kernel turns."""
    x = torch.randn(6, 2, generator=generator(3), dtype=torch.float64)
    y, test = (2 * x[:, :1]).sin(), torch.randn(20, 2, generator=generator(4), dtype=torch.float64)
    widths, errors, turned = (16, 64, 256), [], []
    for width in widths:
        found = []
        for seed in range(4):
            model = Wide(width, seed)
            before = empirical_ntk(model, x)
            with torch.no_grad():
                start = model(test)
            linear = linearized_prediction(model, x, y, test, ridge=0.05)
            trained(model, x, y, 0.05)
            with torch.no_grad():
                real = model(test)
            error = float((real - linear).norm() / (real - start).norm())
            found.append((error, kernel_distance(before, empirical_ntk(model, x))))
        errors.append(sum(e for e, _ in found) / 4)
        turned.append(sum(t for _, t in found) / 4)
    slope = math.log(errors[2] / errors[0]) / math.log(widths[2] / widths[0])
    assert errors[0] > errors[1] > errors[2] and -0.9 < slope < -0.35, errors
    assert turned[0] > 2 * turned[1] > 4 * turned[2], turned
