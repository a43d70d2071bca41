"""P3's experiments: their parts against plain references, and claims that can fail."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from farfield.errors import InvalidValueError
from farfield.lnnet import curvature, lssr
from farfield.nn import GroupedChannelNorm, GroupedLayerNorm
from farfield.papers.p3 import depth, fig1, fig2, fig4, fig5, lng
from farfield.papers.p3._networks import Convolutions, Encoder
from farfield.papers.p3._random_labels import Fitted, RandomLabels, linear_accuracy, shrunk, whitened


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------ the construction


def test_one_norm_by_hand_separates_xor():
    x, y = fig1.xor()
    hidden = fig1.by_hand()(x).detach()
    assert float(lssr(x, y)) == pytest.approx(1.0, abs=1e-12) and float(lssr(hidden, y)) < 1e-12
    # Along x₁ + 2x₂ no two corners meet, and one norm leaves something of the labels' spread.
    off = fig1.by_hand()
    with torch.no_grad():
        off[0].weight[:, 1] *= 2
    assert float(lssr(off(x).detach(), y)) > 1e-3


def test_ssr_along_a_direction():
    x, y = fig1.xor()
    angles = torch.tensor([0.0, math.pi / 4, math.pi / 2])
    torch.testing.assert_close(fig1.along(x, y, angles), torch.ones(3, dtype=torch.float64))
    line = torch.tensor([[0.0, 0.0], [0.0, 2.0], [0.0, 4.0], [0.0, 6.0]], dtype=torch.float64)
    found = fig1.along(line, torch.tensor([0, 0, 1, 1]), angles)
    assert found[0].isnan() and float(found[2]) == pytest.approx(4 / 20)


def test_the_printed_fold_merges_its_pair_and_whatever_is_mirrored():
    t = torch.tensor([3.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    y = torch.tensor([1, 0, 1, 0])
    folded = fig2.printed_fold(t, y)
    assert folded[1] == folded[3] == pytest.approx(math.sqrt(0.5)) and fig2.places(folded) == 3
    assert fig2.printed_fold(t, torch.arange(4)) is t
    mirrored = fig2.printed_fold(
        torch.tensor([-2.0, -1.0, 1.0, 2.0], dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    )
    assert not fig2._apart(mirrored, torch.tensor([0, 1, 2, 0]), 1e-9)


def test_runs_and_places():
    t = torch.tensor([0.0, 1.0, 2.0, 3.0, 3.0])
    assert fig2.runs(t, torch.tensor([0, 1, 1, 0, 0])) == 3 and fig2.places(t) == 4
    # Two labels in one place are no run of either.
    assert fig2.runs(t, torch.tensor([0, 0, 0, 0, 1])) == 5


def test_depth_claims_can_fail():
    good = [depth.Built(r, c, 100, True, 20, 1e-3, 5, 4) for r in ("paper", "fold") for c in (2, 3)]
    assert all(v.holds for v in depth._verdicts(good))
    wrong = [*good, depth.Built("paper", 2, 50, False, failed="digits")]
    assert [v.holds for v in depth._verdicts(wrong)] == [False, True, True, True, True, True]
    deep = [*good, depth.Built("fold", 2, 60, True, 20, 1e-3, 5, 4)]
    assert [v.holds for v in depth._verdicts(deep)] == [True, True, True, False, True, True]
    deeper = [*good, depth.Built("paper", 2, 60, True, 59, 1e-3, 5, 4)]
    assert [v.holds for v in depth._verdicts(deeper)] == [True, False, True, True, True, True]
    coarse = [*good, depth.Built("fold", 2, 60, True, 10, 1e-3, 5, 6)]
    assert [v.holds for v in depth._verdicts(coarse)] == [True, True, True, True, True, False]


# ------------------------------------------------------------------ random labels


def test_block_means_of_images():
    draw = np.random.default_rng(0)
    color = draw.integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    expected = color.reshape(2, 4, 2, 4, 2, 3).mean((2, 4)).transpose(0, 3, 1, 2).reshape(2, -1) / 255
    np.testing.assert_allclose(shrunk(color, 4).numpy(), expected, atol=1e-6)
    assert shrunk(color[..., 0], 4).shape == (2, 16)


def test_whitening_is_linear_and_leaves_unit_variance():
    x = torch.randn(200, 5, generator=seeded(), dtype=torch.float64)
    x = x @ torch.randn(5, 5, generator=seeded(1), dtype=torch.float64) + 3.0
    x = torch.cat([x, torch.full((200, 1), 7.0, dtype=torch.float64)], 1)
    white = whitened(x)
    gram = white.T @ white / 200
    torch.testing.assert_close(
        gram, torch.diag(torch.tensor([1.0] * 5 + [0.0], dtype=torch.float64)), atol=1e-10, rtol=0
    )
    # Linear and invertible: a regression on either gives the same fit.
    y = torch.randn(200, 1, generator=seeded(2), dtype=torch.float64)
    one = torch.ones(200, 1, dtype=torch.float64)
    fits = []
    for inputs in (x[:, :5], white[:, :5]):
        design = torch.cat([inputs, one], 1)
        fits.append(design @ torch.linalg.lstsq(design, y).solution)
    torch.testing.assert_close(*fits, atol=1e-9, rtol=0)


def test_the_linear_classifier_is_at_its_optimum():
    sklearn = pytest.importorskip("sklearn.linear_model")
    x = torch.randn(300, 6, generator=seeded())
    y = torch.randint(0, 10, (300,), generator=seeded(1))
    found = linear_accuracy(x, y)
    assert found["gradient"] < 1e-7
    theirs = sklearn.LogisticRegression(C=1e10, tol=1e-10, max_iter=5000).fit(x.double().numpy(), y.numpy())
    assert found["softmax"] == pytest.approx(theirs.score(x.double().numpy(), y.numpy()), abs=0.004)
    # Labels that a linear map made are fitted altogether.
    made = (x @ torch.randn(6, 3, generator=seeded(2))).argmax(1)
    assert linear_accuracy(x, made)["softmax"] == 1.0


def fitted(*accuracies):
    values = torch.tensor(accuracies, dtype=torch.float64)
    return Fitted((), values, torch.ones(3, len(values), dtype=torch.float64))


def random_label_verdicts(linear=0.30, plain=0.36, grouped=0.9):
    found = {
        (g, d): fitted(*(a + 0.01 * d * (g > 0) + 0.001 * k for k in range(3)))
        for g, a in ((0, linear), (1, plain), (8, grouped))
        for d in (1, 2)
    }
    problem = RandomLabels("some", torch.zeros(1), torch.zeros(1), torch.zeros(3, 1))
    ceiling = torch.tensor([0.301, 0.302, 0.303], dtype=torch.float64)
    return [v.holds for v in fig4._claims(problem, found, ceiling, (0, 1, 8), (1, 2), 100)]


def test_random_label_claims_can_fail():
    assert random_label_verdicts() == [True] * 5
    assert random_label_verdicts(linear=0.32) == [False, True, True, True, True]
    assert random_label_verdicts(plain=0.28) == [True, False, False, True, True]
    assert random_label_verdicts(grouped=0.36) == [True, True, True, True, False]


# ------------------------------------------------------------------ groups


def test_bending_is_the_curvature_of_the_norm_at_scaled_points():
    x = 5 + 3 * torch.randn(4, 12, generator=seeded(), dtype=torch.float64)
    found = fig5.bends(x, (1, 3, 6))
    scaled = (x - x.mean(1, keepdim=True)) / x.std(1, correction=0, keepdim=True)
    for k, g in enumerate((1, 3, 6)):
        norm = GroupedLayerNorm(12, g, elementwise_affine=False, norm_eps=0.0)
        torch.testing.assert_close(
            found[:, k], curvature(norm, scaled, method="autograd"), rtol=1e-9, atol=1e-9
        )
    assert (
        float(found[0, 0]) == pytest.approx(fig5.equal_spread(12, 1))
        and float(found[:, 2].abs().max()) < 1e-9
    )


def test_bending_claims_can_fail():
    x = torch.randn(20, 16, generator=seeded(), dtype=torch.float64)
    groups = (1, 2, 4, 8)
    values = fig5.bends(x, groups)
    assert all(v.holds for v in fig5._bending({"here": values}, 16, groups, seeded()))
    less = values.clone()
    less[3, 1] = 0.5 * less[3, 0]
    less[3, 2] = 1.5 * less[3, 0]
    assert [v.holds for v in fig5._bending({"here": less}, 16, groups, seeded())] == [True, False, False]


def test_fitting_claims_can_fail():
    groups = (1, 2, 4, 8)
    values = {"Gaussian points": torch.tensor([[3.0, 5.0, 9.0, 0.0]])}

    def judged(*means):
        of = {g: fitted(m, m + 0.01) for g, m in zip(groups, means, strict=True)}
        return [v.holds for v in fig5._fitting({"some": of}, values, groups, 10)]

    assert judged(0.3, 0.5, 0.7, 0.2) == [True] * 4
    assert judged(0.3, 0.7, 0.5, 0.2) == [False, False, True, True]
    assert judged(0.7, 0.5, 0.3, 0.8) == [False, False, False, False]


# ------------------------------------------------------------------ small networks


def test_a_channel_norm_is_torchs_layer_norm_at_every_place():
    x = torch.randn(2, 8, 3, 4, generator=seeded())
    whole = F.layer_norm(x.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2)
    torch.testing.assert_close(GroupedChannelNorm(8, 1)(x), whole)
    halves = torch.cat([GroupedChannelNorm(4, 1)(x[:, :4]), GroupedChannelNorm(4, 1)(x[:, 4:])], 1)
    torch.testing.assert_close(GroupedChannelNorm(8, 2)(x), halves)
    assert not torch.allclose(GroupedChannelNorm(8, 2)(x), whole, atol=1e-2)
    with pytest.raises(InvalidValueError, match="Groups of 3"):
        Convolutions((8, 8, 8), size=3, activation=True, seed=0)


def test_one_seed_gives_one_initialization_for_every_size_of_groups():
    for whole, grouped in (
        [Convolutions((8, 8, 8), size=s, activation=True, seed=1) for s in (0, 4)],
        [Encoder(4, 3, dim=8, heads=2, hidden=8, depth=1, size=s, seed=1) for s in (0, 4)],
    ):
        for (a, p), (b, q) in zip(whole.named_parameters(), grouped.named_parameters(), strict=True):
            assert a == b and torch.equal(p, q)


def test_an_encoder_without_places_would_not_see_the_order_of_tokens():
    net = Encoder(4, 3, dim=8, heads=2, hidden=8, depth=1, size=4, seed=1)
    x = torch.randn(2, 4, 3, generator=seeded())
    assert not torch.allclose(net(x), net(x.flip(1)), atol=1e-4)
    with torch.no_grad():
        net.places.zero_()
    torch.testing.assert_close(net(x), net(x.flip(1)), atol=1e-5, rtol=0)


def test_lng_claims_can_fail():
    def judged(*means):
        of = {
            size: lng._Trained(fitted(m).accuracy, fitted(m, m + 0.01).accuracy, torch.tensor([2.0, 1.0]))
            for size, m in zip((0, 4), means, strict=True)
        }
        return [v.holds for v in lng._claims({"net": of}, (0, 4))], lng._learned({"net": of}).holds

    assert judged(0.5, 0.6) == ([True], True)
    assert judged(0.5, 0.5) == ([False], True) and judged(0.5, 0.4) == ([False], True)
