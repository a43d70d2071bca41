"""P1's toys: what is measured about a network against independent computations, and claims that can fail."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from farfield.data import load
from farfield.growth import Status
from farfield.papers.p1 import fig1

GRID = torch.linspace(-25, 25, 11, dtype=torch.float64)[:, None]
RADII = (5.0, 50.0, 5e4)
KINDS = {
    "standard": ("relu", None, "none"),
    "LN second": ("relu", "layer", "second"),
    "BatchNorm": ("relu", "batch", "every"),
    "SiLU": ("silu", None, "none"),
}


def drawn(kind, count=1):
    models = [fig1.network(kind, width=16, depth=2, weight_var=2.0, seed=s).double() for s in range(count)]
    x = torch.randn(64, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for model in models:
            model.train()(x)  # so that BatchNorm has statistics of its own
    return [model.eval() for model in models]


@pytest.fixture(scope="module")
def samples():
    data = load("quadratic", seed=0)
    return {
        name: fig1._follow("quadratic", name, kind, drawn(kind), data, GRID, RADII, 1.0)
        for name, kind in KINDS.items()
    }


@pytest.mark.parametrize("name", ["standard", "SiLU"])
def test_slopes_are_those_of_the_network_without_biases(samples, name):
    for model, slopes, found in zip(
        drawn(KINDS[name]), samples[name].horizon_slopes, samples[name].slopes, strict=True
    ):
        first, second, last = (m.weight.detach().numpy() for m in model if isinstance(m, nn.Linear))
        truth = [
            (last @ np.maximum(second @ np.maximum(first @ np.array([u]), 0.0), 0.0)).item()
            for u in (1.0, -1.0)
        ]
        np.testing.assert_allclose(slopes, truth, rtol=1e-13)
        np.testing.assert_allclose(found, truth, rtol=1e-9)


def test_batch_norm_in_evaluation_divides_the_slopes_by_constants(samples):
    for model, slopes in zip(drawn(KINDS["BatchNorm"]), samples["BatchNorm"].horizon_slopes, strict=True):
        for u, slope in zip((1.0, -1.0), slopes, strict=True):
            h = np.array([u])
            for layer in model:
                if isinstance(layer, nn.Linear):
                    h = layer.weight.detach().numpy() @ h
                elif isinstance(layer, nn.BatchNorm1d):
                    scale = layer.weight / (layer.running_var + layer.eps).sqrt()
                    h = scale.detach().numpy() * h
                else:
                    h = np.maximum(h, 0.0)
            assert float(slope) == pytest.approx(h.item(), rel=1e-12)


def test_values_are_the_networks_own(samples):
    data = load("quadratic", seed=0)
    for name, kind in KINDS.items():
        s = samples[name]
        for k, model in enumerate(drawn(kind)):
            with torch.no_grad():
                truth = torch.maximum(
                    *(model(side * torch.tensor(RADII).double()[:, None]).abs() for side in (1, -1))
                )
                inside = model(torch.from_numpy(data.id.x))[:, 0].numpy()
            torch.testing.assert_close(s.largest[k], truth[:, 0], rtol=1e-12, atol=0)
            r2 = 1 - np.mean((inside - data.id.y) ** 2) / np.var(data.id.y)
            assert float(s.r2[k]) == pytest.approx(r2, rel=1e-12)


def test_the_far_fields_claims_hold_and_can_fail(samples):
    for name, s in samples.items():
        (verdict,) = fig1._far_field(name, [s], RADII)
        assert verdict.holds, verdict
        broken = [replace(s, statuses=(Status.UNKNOWN, *s.statuses[1:]))]
        if s.bounds is None:
            broken += [replace(s, horizon_slopes=1.00001 * s.horizon_slopes), replace(s, slopes=0 * s.slopes)]
        else:
            broken += [replace(s, margin=s.margin - s.margin.min() - 1e-12)]
        for wrong in broken:
            assert not fig1._far_field(name, [wrong], RADII)[0].holds


def test_a_bounded_network_is_measured_against_its_own_certificate(monkeypatch):
    tiny = torch.tensor(1e-9, dtype=torch.float64)
    wrong = SimpleNamespace(lower=-tiny, upper=tiny, attained_lower=-tiny, attained_upper=tiny)
    monkeypatch.setattr(fig1, "certify", lambda *a, **k: wrong)
    kind = KINDS["LN second"]
    s = fig1._follow("quadratic", "LN", kind, drawn(kind), load("quadratic", seed=0), GRID, RADII, 1.0)
    assert float(s.margin) < 0
    assert not fig1._far_field("LN", [s], RADII)[0].holds


def test_activations_are_alike_only_with_the_same_weights(samples):
    s = samples["SiLU"]
    assert fig1._alike([s])[0].holds
    assert not fig1._alike([replace(s, relu_slopes=s.relu_slopes.flip(1))])[0].holds
    assert fig1._alike([samples["standard"]]) == []


def test_a_useless_network_shows(samples):
    good = replace(samples["standard"], r2=torch.tensor([0.99, 0.96]))
    assert fig1._fits([good]).holds
    assert not fig1._fits([good, replace(good, r2=torch.tensor([0.99, 0.94]))]).holds
