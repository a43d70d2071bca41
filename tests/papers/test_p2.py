"""P2's experiments: what stands behind them, and that their claims can fail."""

import torch

from farfield.geometry import gram, normalized_gram
from farfield.papers.p2 import _comparison, centering, figC2
from farfield.papers.p2 import _simulation as simulation
from farfield.papers.p2._simulation import Layering, band, degenerate_input, simulate

quiet = {"progress": lambda done, total: None}


def test_degenerate_input_has_rms_one_and_one_large_direction():
    x = degenerate_input(10, 200, 100.0, torch.Generator().manual_seed(0))
    assert torch.allclose(x.square().mean(-1), torch.ones(10, dtype=torch.float64))
    s = torch.linalg.svdvals(x)
    assert s[0] > 20 * s[1]


def test_the_law_sampler_has_the_law_of_explicit_weights():
    """Given X, both samplers must give the same mean and covariance of Z Zᵀ; 4000 draws, 5 standard errors."""
    generator = torch.Generator().manual_seed(3)
    width, n, draws = 24, 3, 4000
    x = degenerate_input(n, width, 3.0, generator)
    samples = {}
    for sampler in ("weights", "law"):
        rows = width if sampler == "weights" else n
        grams = []
        for _ in range(draws):
            noise = torch.randn(rows, width, generator=generator, dtype=torch.float64)
            z = simulation._mix(x, noise, sampler)
            grams.append(gram(torch.relu(z)).flatten())
        samples[sampler] = torch.stack(grams)
    a, b = samples["weights"], samples["law"]
    for power in (1, 2):
        left, right = a**power, b**power
        se = (left.var(0) / draws + right.var(0) / draws).sqrt()
        assert bool(((left.mean(0) - right.mean(0)).abs() < 5 * se).all())


def test_a_sampler_with_the_wrong_law_is_caught():
    """The same comparison with L replaced by its transpose must fail: the oracle can say no."""
    generator = torch.Generator().manual_seed(3)
    width, n, draws = 24, 3, 4000
    x = degenerate_input(n, width, 3.0, generator)
    r = torch.linalg.qr(x.T, mode="r").R
    right = torch.stack(
        [
            gram(
                torch.relu(
                    simulation._mix(x, torch.randn(width, width, generator=generator).double(), "weights")
                )
            ).flatten()
            for _ in range(draws)
        ]
    )
    wrong = torch.stack(
        [
            gram(torch.relu(r @ torch.randn(n, width, generator=generator).double() / width**0.5)).flatten()
            for _ in range(draws)
        ]
    )
    se = (right.var(0) / draws + wrong.var(0) / draws).sqrt()
    assert bool(((right.mean(0) - wrong.mean(0)).abs() > 5 * se).any())


def test_simulation_equals_the_mlp_module():
    """One layer of the simulation is farfield.nn.MLP with P2's parametrization, given the same weights."""
    from farfield.nn import MLP

    width = 64
    net = MLP(
        width, None, width=width, depth=1, norm="layer", order="post", parametrization="mean_field",
        norm_eps=0.0, dtype=torch.float64, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    x = degenerate_input(5, width, 5.0, torch.Generator().manual_seed(1))
    weight = net[0].weight.detach()
    sigma = Layering("relu").norms
    z = simulation._mix(x, weight * width**0.5, "weights")
    from farfield.gaussian import activation

    ours = torch.nn.Sequential(*sigma(activation("relu")))(torch.relu(z))
    assert torch.allclose(ours, net(x), atol=1e-12)


def test_same_seed_same_numbers_other_seed_other_numbers():
    settings = {"n": 4, "width": 32, "depth": 3, "degeneracy": 5.0, "runs": 2, **quiet}
    a = simulate([Layering("relu")], seed=0, **settings)[0].gap
    b = simulate([Layering("relu")], seed=0, **settings)[0].gap
    c = simulate([Layering("relu")], seed=1, **settings)[0].gap
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_band_is_a_t_interval_of_the_logarithms():
    from scipy import stats

    x = torch.rand(10, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    middle, low, high = band(x)
    logs = x.log()
    half = stats.t.ppf(0.975, 9) * stats.sem(logs.numpy(), axis=0)
    assert torch.allclose(middle.log(), logs.mean(0))
    assert torch.allclose(high.log() - middle.log(), torch.as_tensor(half), rtol=1e-3)
    assert torch.allclose(middle.log() - low.log(), torch.as_tensor(half), rtol=1e-3)


def test_claims_can_fail(monkeypatch):
    """Feed a wrong simulation (every curve the same) to experiments that claim a difference."""

    def flat(layerings, *, n, depth, runs, **_):
        x = normalized_gram(torch.eye(n, dtype=torch.float64))
        gap = torch.ones(runs, depth + 1, dtype=torch.float64)
        return [simulation.Trace(gap, gap, (x,) * runs) for _ in layerings]

    sizes = {"n": 4, "width": 16, "depth": 6, "degeneracy": 2.0, "runs": 3, "seed": 0, **quiet}
    monkeypatch.setattr(_comparison, "simulate", flat)
    assert any(v.surprising for v in centering.run(activations=["relu"], **sizes).verdicts)
    assert any(
        v.surprising for v in figC2.run(activations=["tanh"], gains=[0.5, 2.0], at=2, **sizes).verdicts
    )
