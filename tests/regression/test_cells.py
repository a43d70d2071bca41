"""The tight bound: above everything met, within a percent of it for few features, and never above the plain one."""

import pytest
import torch

from farfield import kernels
from farfield.regression import _cells, fit

RADII = (0.1, 1.0, 10.0, 1e3, 1e8)


def problem(seed: int, features: int):
    g = torch.Generator().manual_seed(seed)
    n = int(torch.randint(3, 25, (), generator=g))
    x = torch.randn(n, features, generator=g, dtype=torch.float64)
    y = torch.randn(n, generator=g, dtype=torch.float64) + 2.0
    directions = torch.randn(2000, features, generator=g, dtype=torch.float64)
    far = torch.cat([x, *(radius * directions for radius in RADII)])
    return x, y, far


@pytest.mark.full
@pytest.mark.parametrize("features", [1, 2])
@pytest.mark.parametrize("placement", ["first", "every"])
def test_no_input_exceeds_it_and_a_percent_is_left(features, placement):
    for seed in range(6):
        x, y, far = problem(seed, features)
        kernel = kernels.mlp(depth=2, layer_norm=placement, bias_var=0.1)
        f = fit(kernel, x, y, noise=0.01)
        bound, met = float(f.output_bound(name="tight")), float(f.mean(far).abs().max())
        assert met <= bound <= float(f.output_bound())
        assert bound <= 1.02 * met, seed


def test_few_entries_still_give_a_bound():
    x, y, far = problem(0, 3)
    f = fit(kernels.mlp(depth=2, layer_norm="first", bias_var=0.1), x, y, noise=0.01)
    bounds = [
        float(
            _cells.on_the_sphere(
                f.kernel, x, f.weights[:, None], torch.zeros(1, dtype=torch.float64), n
            ).bound
        )
        for n in (1, 10_000, 1_000_000)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert float(f.mean(far).abs().max()) <= bounds[-1] < 0.5 * bounds[0]


def test_without_slopes_it_would_fail(monkeypatch):
    """That the test can see a wrong bound: values at centers alone are exceeded."""
    x, y, far = problem(1, 2)
    f = fit(kernels.mlp(depth=2, layer_norm="first", bias_var=0.1), x, y, noise=0.01)

    def centers_only(*arguments):
        here = plain(*arguments)[0]
        return here, here

    plain = _cells._bounds
    monkeypatch.setattr(_cells, "_bounds", centers_only)
    found = _cells.on_the_sphere(f.kernel, x, f.weights[:, None], torch.zeros(1, dtype=torch.float64))
    assert float(found.bound) < float(f.mean(far).abs().max())


def test_more_features_take_the_constant_out():
    x, y, far = problem(2, 8)
    f = fit(kernels.mlp(depth=2, layer_norm="first", bias_var=1.0), x, y + 10.0, noise=0.01)
    assert float(f.mean(far).abs().max()) <= float(f.output_bound(name="tight")) < float(f.output_bound())
