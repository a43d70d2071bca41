"""P2's figures on images: what is measured layer by layer, the correlation with β, and that claims can fail."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farfield.data import is_here
from farfield.errors import InvalidValueError, UnknownNameError
from farfield.geometry import gram, isometry_gap
from farfield.nn import MLP
from farfield.papers._correlation import chance, pearson, ranks, spearman
from farfield.papers.p2 import fig2, fig7, figC4
from farfield.papers.p2._trained import Stages, floor, images, network, stages, taken_apart


def net(activation="relu", width=40, depth=3, seed=0):
    return network(12, activation, width, depth, seed)


def batch(n=6, seed=1):
    return torch.randn(n, 12, generator=torch.Generator().manual_seed(seed)) + 0.5


# ------------------------------------------------------------------ gaps through the layers


def by_hand(model, x):
    """The same gaps with numpy's determinant, one operation after the other."""

    def gap(h):
        g = h @ h.T
        return np.log(np.trace(g) / len(g)) - np.linalg.slogdet(g)[1] / len(g)

    h = x.double().numpy()
    found = [gap(h)]
    weights = [m.weight.detach().double().numpy() for m in model if isinstance(m, torch.nn.Linear)][:-1]
    for w in weights:
        h = h @ w.T
        found.append(gap(h))
        h = np.maximum(h, 0)
        found.append(gap(h))
        h = h - h.mean(1, keepdims=True)
        found.append(gap(h))
        h = h / np.sqrt((h * h).mean(1, keepdims=True) + 1e-5)
        found.append(gap(h))
    return np.array(found)


def test_stages_are_the_gaps_after_linear_activation_centering_and_projection():
    model, x = net(), batch()
    found = stages(model, x)
    at, curve = found.curve()
    assert np.allclose(curve.numpy(), by_hand(model, x), rtol=1e-9)
    assert at.tolist() == [k / 4 for k in range(13)]
    assert torch.equal(found.norms, curve[4::4])
    assert torch.allclose(found.raised("norm"), found.raised("centering") + found.raised("projection"))


def test_a_network_with_its_parts_in_another_order_is_told_apart():
    model, x = net(), batch()
    other = MLP(
        12, 10, width=40, depth=3, norm="layer", order="pre", parametrization="mean_field",
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    wrong = torch.cat([torch.zeros(1).double(), stages(other, x).gaps.flatten()])
    assert not np.allclose(wrong[1:].numpy(), by_hand(model, x)[1:], rtol=1e-3)


def test_taken_apart_is_the_same_function_and_the_model_stays_as_it_was():
    model, x = net("tanh"), batch()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert torch.allclose(taken_apart(model)(x), torch.nn.Sequential(*list(model)[:-1])(x), atol=1e-6)
    stages(model, x)
    after = model.state_dict()
    assert all(after[k].dtype == torch.float32 and torch.equal(after[k], v) for k, v in before.items())


def test_as_many_rows_as_features_are_refused():
    with pytest.raises(InvalidValueError, match="fewer rows"):
        stages(net(width=6), batch(6))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["relu", "tanh", "sigmoid", "gelu"]), st.floats(0.01, 10.0))
def test_no_projection_raises_the_gap(seed, name, scale):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.exp(torch.randn(6, 1, generator=generator))
    found = stages(net(name, seed=seed), scale * lengths * batch(seed=seed))
    assert float(found.raised("projection").max()) < 1e-9


def test_centering_can_raise_it():
    """Two rows that differ most in their means: centering takes away what tells them apart."""
    x = torch.tensor([[1.2, 1.0, 0.8, 1.01], [1.0, 0.0, -1.0, 0.0]], dtype=torch.float64)
    before, after = (isometry_gap(gram(h)) for h in (x, x - x.mean(1, keepdim=True)))
    assert after > before + 0.5


def test_the_floor_is_the_gap_of_gaussian_rows():
    x = torch.randn(300, 700, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert abs(float(isometry_gap(gram(x))) / floor(300, 700) - 1) < 0.03
    assert abs(float(isometry_gap(gram(x))) / floor(300, 600) - 1) > 0.1


def test_networks_of_a_seed_share_their_weights():
    one, two = net("tanh"), net("gelu")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.data
@pytest.mark.parametrize(("name", "colors"), [("mnist", 1), ("cifar10", 3)])
def test_images_are_standardized_by_color_and_held_out_ones_are_others(name, colors):
    if not is_here(name):
        pytest.skip(f"needs the files of {name}: farfield data fetch {name}")
    data = images(name, rows=400, held_out=50, input_norm="none", seed=3)
    each = data.x.reshape(400, -1, colors)
    assert torch.allclose(each.mean((0, 1)), torch.zeros(colors), atol=1e-4)
    assert torch.allclose(each.std((0, 1)), torch.ones(colors), atol=1e-3)
    assert data.held_out.shape == (50, data.x.shape[1]) and data.held_out_y.shape == (50,)
    assert float(torch.cdist(data.held_out, data.x).min()) > 0.1
    assert 0.02 < float((data.y == 3).double().mean()) < 0.25


# ------------------------------------------------------------------ correlation


@given(st.lists(st.integers(-5, 5), min_size=3, max_size=9), st.integers(0, 99))
def test_correlations_are_scipys(values, seed):
    x = torch.tensor(values, dtype=torch.float64)
    y = torch.randn(len(values), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert np.allclose(ranks(x).numpy(), scipy.stats.rankdata(values) - 1)
    if len(set(values)) > 1:
        assert np.isclose(float(pearson(x, y)), scipy.stats.pearsonr(x, y).statistic, atol=1e-12)
        assert np.isclose(float(spearman(x, y)), scipy.stats.spearmanr(x, y).statistic, atol=1e-12)


def test_ranks_without_ties_would_be_caught():
    x = torch.tensor([1.0, 1.0, 2.0])
    assert ranks(x).tolist() == [0.5, 0.5, 2.0] and x.argsort().argsort().tolist() != [0.5, 0.5, 2.0]


def test_chance_counts_the_orders_that_do_as_well():
    x = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    assert chance(x, 3 * x + 1) == pytest.approx(1 / 24)
    assert chance(x, -x) == 1.0


# ------------------------------------------------------------------ claims can fail


def trace(gaps, start=2.0):
    return Stages(start, torch.tensor(gaps, dtype=torch.float64))


good = trace([[1.9, 1.8, 1.6, 1.5], [1.4, 1.2, 1.0, 0.5]])


def test_fig2_says_when_a_norm_raises_the_gap():
    assert all(v.holds for v in fig2._norm_verdicts("x", [[good], [good]]))
    bad = trace([[1.9, 1.8, 1.6, 1.65], [1.4, 1.2, 1.3, 1.7]])
    assert [v.holds for v in fig2._norm_verdicts("x", [[good, bad]])] == [False, False, False]
    # Centering may raise it, if projection makes up for that.
    mixed = trace([[1.9, 1.8, 1.9, 1.5], [1.4, 1.2, 1.3, 0.5]])
    assert [v.holds for v in fig2._norm_verdicts("x", [[mixed], [mixed]])] == [True, True, True]


def test_figC4_says_when_a_layer_raises_the_gap():
    assert [v.holds for v in figC4.verdicts("x", [good, good, good])] == [True, True, True]
    bad = trace([[1.9, 1.8, 1.6, 1.5], [2.4, 2.2, 1.9, 1.8]])
    assert [v.holds for v in figC4.verdicts("x", [bad, bad, bad])] == [False, False, True]


def test_fig7_finds_the_correlation_that_is_there_and_not_the_opposite():
    betas = torch.tensor([1.02, 1.03, 1.06, 1.07, 1.2, 1.27, 1.28], dtype=torch.float64)
    noise = 0.003 * torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    epochs = torch.linspace(0, 1, 4, dtype=torch.float64)
    losses = 2.0 - epochs * betas[:, None] + noise
    assert all(v.holds for v in fig7.verdicts(betas, losses))
    assert not any(v.holds for v in fig7.verdicts(betas, 2.0 + epochs * betas[:, None] + noise))


def test_settings_of_the_figures_say_what_their_descriptions_say():
    """Sizes stand in the text as well: they must not drift apart."""
    two, seven = fig2.EXPERIMENT, fig7.EXPERIMENT
    assert (
        two.settings["epochs"] == 5
        and "five epochs" in two.description
        and len(two.settings["activations"]) == 7
        and two.settings["runs"] == 5
        and "five networks for each of the seven" in two.description
    )
    # Figure 7 is run at several sizes: its description gives none, and the command for the paper's.
    larger = seven.paper_size
    for name in ("width", "batch_size", "epochs"):
        assert f"--set {name}={larger[name]}" in seven.description
        assert str(seven.settings[name]) not in seven.description.replace("CIFAR-10", "").split("--set")[0]


def test_fig2_says_whether_a_gap_that_stays_is_the_widths_doing():
    falls = torch.tensor([[1.0, 0.5], [1.1, 0.6], [1.0, 0.4]], dtype=torch.float64)
    (holds,) = fig2._width_verdicts("relu", {8: falls}, 64)
    (stays,) = fig2._width_verdicts("relu", {8: falls.flip(1)}, 64)
    assert holds.holds and not stays.holds and "±" in holds.measured


def test_untrained_networks_drawn_from_their_law_have_the_gaps_of_networks_with_weights():
    """The mean over networks of the gap after two layers, 200 of either kind: 5 standard errors."""
    x = torch.randn(6, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1.0
    law = fig2._untrained("relu", [x], 40, 2, range(200))
    own = torch.stack([stages(network(20, "relu", 40, 2, 1000 + s), x.float()).norms for s in range(200)])
    error = (law.var(0) / 200 + own.var(0) / 200).sqrt()
    assert ((law.mean(0) - own.mean(0)).abs() < 5 * error).all()


@pytest.mark.data
def test_the_papers_norm_of_inputs_is_centered_and_of_one_length():
    if not is_here("mnist"):
        pytest.skip("needs the files of mnist: farfield data fetch mnist")
    x = images("mnist", rows=20, held_out=5, input_norm="layer", seed=3).x
    torch.testing.assert_close(x.mean(1), torch.zeros(20), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.square().mean(1), torch.ones(20), atol=1e-5, rtol=0)
    with pytest.raises(UnknownNameError, match="norm of the inputs"):
        images("mnist", rows=20, held_out=5, input_norm="batch", seed=3)


def test_claims_about_activations_and_strength_are_read_from_the_record():
    def batch(rise):
        return {"input": 1.0, "gaps": [[1.0, 1.0 + rise, 0.9, 0.8], [0.9, 0.9 + rise, 0.7, 0.6 - rise]]}

    def record(relu, tanh):
        each = {t: {"32": [[batch(v)]]} for t in ("initialization", "trained") for v in (relu,)}
        other = {t: {"32": [[batch(tanh)]]} for t in ("initialization", "trained")}
        settings = {"activations": ["relu", "tanh"]}
        return {"numbers": {"relu": each, "tanh": other}, "provenance": {"settings": settings}}

    held = {v.claim: v.holds for v in fig2._claims(record(0.2, -0.1))}
    assert held["relu, trained, 32 rows: no activation raises the gap"] is False
    assert held["tanh, initialization, 32 rows: no activation raises the gap"] is True
    # β of ReLU is the larger, and its last gap the smaller: 0.4 against 0.7.
    assert held["trained, 32 rows: the larger β, the smaller the gap after the last LayerNorm"] is True
    assert not fig2._claims(record(-0.2, 0.1))[-1].holds
