"""Certificates against attacks, with zero slack; and unsound variants that the same attacks must expose."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from certify.networks import attack, network
from farfield import Budget
from farfield.certify import _checks as certify_module
from farfield.certify import certify
from farfield.certify._rounding import gamma
from farfield.certify.dual import _assembly as assembly_module
from farfield.certify.dual import _prove as proof_module


def leaks(seed, budget, **sizes):
    model, dim, what = network(seed, **sizes)
    certificate = certify(model, torch.zeros(1, dim, dtype=torch.float64), time_budget=Budget(steps=budget))
    low, high = attack(model, dim, seed)
    above = (high - certificate.upper.reshape(-1)).clamp_min(0).max()
    below = (certificate.lower.reshape(-1) - low).clamp_min(0).max()
    return what, certificate, float(torch.maximum(above, below))


@pytest.mark.parametrize("seed", range(24))
def test_no_input_leaves_the_bounds(seed):
    what, certificate, leak = leaks(seed, 100, largest=64, deepest=4)
    assert leak == 0.0, what
    assert bool(torch.isfinite(certificate.upper - certificate.lower).all()), what


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(25))
def test_five_hundred_networks(block):
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        what, _, leak = leaks(seed, 200)
        assert leak == 0.0, what


def tight_model():
    """A head whose exact maximum is known: one norm, then a linear map."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4, eps=1e-12), nn.Linear(4, 1)).double().eval()


def caught(model, dim, budget=200):
    certificate = certify(model, torch.zeros(1, dim, dtype=torch.float64), time_budget=Budget(steps=budget))
    low, high = attack(model, dim, 1, steps=150)
    return bool((high > certificate.upper.reshape(-1)).any() or (low < certificate.lower.reshape(-1)).any())


def test_a_linear_head_behind_a_norm_is_bounded_exactly():
    model = tight_model()
    head, norm = model[2].weight[0].detach(), model[1]
    certificate = certify(model, torch.zeros(1, 6, dtype=torch.float64), time_budget=Budget(steps=400))
    pulled = head * norm.weight.detach()
    radius = 2.0 * (pulled - pulled.mean()).norm()
    center = head @ norm.bias.detach() + model[2].bias.detach()
    assert float(certificate.upper) >= float(center + radius) * (1 - 1e-12)
    assert float(certificate.upper) <= float(center + radius) + 1e-3 * float(radius)
    assert float(certificate.tightness) < 1.01


def test_a_smaller_ball_is_caught(monkeypatch):
    assert not caught(tight_model(), 6)
    original = assembly_module._Assembly._image

    def shrunk(self, index, block):
        original(self, index, block)
        self.balls = [replace(ball, radius=0.97 * ball.radius) for ball in self.balls]

    monkeypatch.setattr(certify_module, "proof_reader", lambda *a: lambda proof: -math.inf)
    monkeypatch.setattr(assembly_module._Assembly, "_image", shrunk)
    with pytest.raises((AssertionError, ValueError)):
        assert not caught(tight_model(), 6)


def relu_tail():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 1)).double().eval()


@pytest.mark.parametrize("wrong", ["no separable part", "no joint part", "wrong sign of the range"])
def test_unsound_duals_are_caught(monkeypatch, wrong):
    assert not caught(relu_tail(), 6)
    monkeypatch.setattr(
        certify_module, "proof_reader", lambda *a: lambda proof: -math.inf
    )  # or the checker would mend it
    if wrong == "no separable part":
        monkeypatch.setattr(proof_module, "_separable", lambda *a: 0.0)
    elif wrong == "no joint part":
        monkeypatch.setattr(proof_module, "_joint", lambda *a: 0.0)
    else:
        original = proof_module._curve_maxima

        def halved(curve, *rest):
            small = type(curve)(**{**vars(curve), "lo": curve.lo * 0.1, "hi": curve.hi * 0.1})
            return original(small, *rest)

        monkeypatch.setattr(proof_module, "_curve_maxima", halved)
    with pytest.raises((AssertionError, ValueError)):
        assert not caught(relu_tail(), 6)


def test_the_checker_mends_an_unsound_dual(monkeypatch):
    monkeypatch.setattr(proof_module, "_separable", lambda *a: 0.0)
    assert not caught(relu_tail(), 6)


def test_gamma_is_an_error_bound_and_its_negative_is_not():
    torch.manual_seed(0)
    a, b = torch.randn(200, 400, dtype=torch.float64), torch.randn(400, dtype=torch.float64)
    single = (a.float() @ b.float()).double()
    size = (a.abs() @ b.abs()) * gamma(402) * 2.0**29  # the same law in single precision
    exact = a @ b
    assert bool(((single - exact).abs() <= size).all())
    assert bool(((single - exact).abs() > 0).any())
