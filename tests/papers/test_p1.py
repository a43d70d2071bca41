"""P1's experiments: their numbers against closed forms, and claims that can fail."""

import math

import pytest
import torch

from farfield import kernels
from farfield.papers.p1 import fig2

SETTINGS = {**fig2.EXPERIMENT.settings, "points": 7, "progress": lambda done, total: None, "seed": 0}


def test_fig2_has_the_suprema_of_the_closed_forms():
    bias = 0.01
    found = fig2.run(**SETTINGS).numbers
    assert math.isinf(found["no LayerNorm"]["sup_diagonal"])
    for name, truth in (
        ("LayerNorm first", 3 + 3 * bias),
        ("LayerNorm second", 3 + bias),
        ("LayerNorm every", 2 + bias + 1 / (1 + bias)),
    ):
        assert found[name]["sup_diagonal"] == pytest.approx(truth, rel=1e-9)


def test_fig2_without_a_norm_has_the_quadratic_it_claims():
    """Θ(x, x) = 3x² + 6σ_b² for two hidden ReLU layers: K = x² + (k+1)σ_b² at each, summed with slope 1."""
    numbers = fig2.run(**SETTINGS).numbers["no LayerNorm"]
    x, diagonal = (torch.tensor(numbers[k], dtype=torch.float64) for k in ("radii", "diagonal"))
    torch.testing.assert_close(diagonal, 3 * x**2 + 0.06, rtol=1e-12, atol=1e-12)


class Wrong(kernels.NetworkKernel):
    """Says that it is bounded by half of what it reaches, and grows half as fast as it does."""

    def sup_diagonal(self, kind="ntk"):
        return super().sup_diagonal(kind) / 2

    def slope(self, u, x, kind="ntk"):
        return super().slope(u, x, kind) / 2


class Slow(kernels.NetworkKernel):
    """Grows like |x|, not like x²."""

    def diagonal(self, x, kind="ntk"):
        return super().diagonal(x, kind).sqrt()


def test_fig2_claims_hold_and_can_fail(monkeypatch):
    assert not any(v.surprising for v in fig2.run(**SETTINGS).verdicts)
    monkeypatch.setattr(fig2, "mlp", lambda **settings: Wrong(kernels.mlp(**settings).layers))
    failed = [v.claim for v in fig2.run(**SETTINGS).verdicts if v.surprising]
    assert sum("≤ C" in claim for claim in failed) == 3
    assert sum("→ C" in claim for claim in failed) == 3
    assert sum("slope" in claim for claim in failed) == 1


def test_fig2_measures_the_power_of_growth(monkeypatch):
    monkeypatch.setattr(fig2, "mlp", lambda **settings: Slow(kernels.mlp(**settings).layers))
    verdicts = fig2.run(**{**SETTINGS, "networks": {"no LayerNorm": None}}).verdicts
    assert verdicts[0].surprising
