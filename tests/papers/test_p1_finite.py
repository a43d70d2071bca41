"""P1 at finite width: claims that hold, and can fail."""

import math

import pytest
import torch

from farfield import kernels
from farfield.ntk import empirical_ntk
from farfield.papers.p1 import fig2_finite, width

FIGURE = {
    **fig2_finite.EXPERIMENT.settings, "points": 5, "width": 96, "seeds": 2, "progress": lambda *t: None, "seed": 0,
    "networks": {"no LayerNorm": None, "LayerNorm second": "second"},
}  # fmt: skip
SWEEP = {
    **width.EXPERIMENT.settings, "points": 5, "widths": [64, 256, 1024], "seeds": 24, "progress": lambda *t: None,
    "networks": {"LayerNorm first": "first"}, "seed": 0,
}  # fmt: skip
SHAPE = {"depth": 2, "activation": "relu", "bias_var": 0.3}


def test_networks_are_drawn_as_the_kernels_assume():
    """The mean over many is the kernel of infinite width; one with another variance is noticed."""
    x = torch.tensor([[-2.0], [0.5], [3.0]], dtype=torch.float64)
    for where in (None, "first", [0, 1]):
        draws = torch.stack(
            [empirical_ntk(fig2_finite.network(where, width=256, seed=s, **SHAPE), x) for s in range(40)]
        )
        error = draws.std(0) / math.sqrt(40)
        limit = kernels.mlp(layer_norm=where, **SHAPE).ntk(x)
        # At finite width the mean itself is off by a few times 1/width.
        allowed = 5 * error + 4 / 256 * limit.abs().max()
        assert ((draws.mean(0) - limit).abs() < allowed).all()
        wrong = kernels.mlp(layer_norm=where, **{**SHAPE, "bias_var": 0.6}).ntk(x)
        assert ((draws.mean(0) - wrong).abs() > allowed).any()


def test_the_figures_claims_hold_and_can_fail(monkeypatch):
    found = fig2_finite.run(**FIGURE)
    assert not any(v.surprising for v in found.verdicts)
    assert len(found.figure.panels) == 4
    numbers = found.numbers["LayerNorm second"]
    assert numbers["sup_diagonal_at_infinite_width"] == pytest.approx(3.01)
    original = fig2_finite.network

    def swapped(where, **options):
        return original("second" if where is None else None, **options)

    monkeypatch.setattr(fig2_finite, "network", swapped)
    failed = [v.claim for v in fig2_finite.run(**FIGURE).verdicts if v.surprising]
    assert any("like x²" in claim for claim in failed)
    assert any("stays bounded" in claim for claim in failed)
    assert sum("infinite width" in claim for claim in failed) == 2


def test_the_sweeps_claim_holds_and_can_fail(monkeypatch):
    (verdict,) = width.run(**SWEEP).verdicts
    assert verdict.holds, verdict.measured
    original = width.mlp
    # Against the kernel of another network the distance does not fall.
    monkeypatch.setattr(width, "mlp", lambda **options: original(**{**options, "bias_var": 4.0}))
    (verdict,) = width.run(**SWEEP).verdicts
    assert verdict.surprising


def test_the_slope_and_its_error():
    widths = (10, 100, 1000)
    generator = torch.Generator().manual_seed(0)
    slopes, errors = [], []
    for _ in range(200):
        noise = torch.randn(3, 30, generator=generator, dtype=torch.float64).abs()
        slope, error = width._slope(widths, noise / torch.tensor(widths, dtype=torch.float64)[:, None] ** 0.5)
        slopes.append(slope)
        errors.append(error)
    spread = torch.tensor(slopes).std()
    assert abs(sum(slopes) / 200 + 0.5) < 0.01
    assert 0.8 < float(spread) / (sum(errors) / 200) < 1.25
