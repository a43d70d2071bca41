"""LN-Nets to be trained: nothing in them bends but the norms."""

import torch
from torch import nn

from farfield.lnnet import trainable
from farfield.nn import GroupedLayerNorm


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_linear_layers_and_norms_alone():
    assert {type(m) for m in trainable(5, 10, width=8, depth=3, groups=0, seed=0)} == {nn.Linear}
    grouped = trainable(5, 10, width=8, depth=2, groups=2, seed=0)
    assert [type(m) for m in grouped] == [nn.Linear, GroupedLayerNorm] * 2 + [nn.Linear]
    # Of one seed, the same weights whatever the norms; and no draw from the global generator.
    state = torch.get_rng_state()
    plain = trainable(5, 10, width=8, depth=2, groups=0, seed=0)
    assert torch.equal(plain[0].weight, grouped[0].weight) and torch.equal(torch.get_rng_state(), state)
    x = torch.randn(4, 5, generator=seeded())
    torch.testing.assert_close(plain(2 * x) - plain(0 * x), 2 * (plain(x) - plain(0 * x)), atol=1e-5, rtol=0)
    bent = grouped(2 * x) - grouped(0 * x) - 2 * (grouped(x) - grouped(0 * x))
    assert float(bent.detach().abs().max()) > 1e-2


def test_it_learns_what_no_linear_map_can():
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = torch.tensor([0.0, 1.0, 1.0, 0.0])[:, None]
    net = trainable(2, 1, width=16, depth=1, groups=2, seed=1)
    search = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(300):
        search.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        search.step()
    assert float(loss.detach()) < 0.01  # a linear map is at 0.25


def test_depth_zero_is_the_readout_and_no_seed_draws_from_torch():
    assert [type(m) for m in trainable(3, 2, width=8, depth=0)] == [nn.Linear]
    torch.manual_seed(3)
    first = trainable(3, 2, width=8, depth=1)[0].weight
    torch.manual_seed(3)
    assert torch.equal(trainable(3, 2, width=8, depth=1)[0].weight, first)
