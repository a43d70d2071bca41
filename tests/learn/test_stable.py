"""Networks as estimators: scikit-learn's contract, and bounds that hold wherever an input lies."""

import json
import pickle

import numpy as np
import pytest
import torch

from shape_checking import as_users_run_it

pytest.importorskip("sklearn")
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import farfield
from farfield.certify import UnboundedError
from farfield.errors import InvalidValueError
from farfield.learn import StableMLPClassifier, StableMLPRegressor
from farfield.learn._members import evaluate
from farfield.learn._stable_classifier import _softmax_bounds

SMALL = {
    "hidden_layer_sizes": (24, 16),
    "max_epochs": 40,
    "n_members": 2,
    "random_state": 0,
    "time_budget": 0.4,
}


FREE = {**SMALL, "output_range": None}
"""No range is built in: what is known comes from certificates of the fitted weights."""


def problem(n=120, d=3, outputs=None):
    """Inputs on scales a thousand apart, targets far from 0."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(n, d)) * [100.0, 0.1, 3.0][:d] + [5.0, 0.0, -40.0][:d]
    z = (X - X.mean(0)) / X.std(0)
    y = 50.0 + 3.0 * np.sin(2 * z[:, 0]) + z[:, 1 % d]
    return X, y if outputs is None else np.stack([y * 10.0**k for k in range(outputs)], 1)


def labels(X):
    return np.where(X[:, 0] > 5.0, "b", np.where(X[:, 2] > -40.0, "a", "c"))


def far(X, seed=1):
    u = np.random.default_rng(seed).normal(size=(50, X.shape[1])) * X.std(0)
    return np.concatenate([X, *(X.mean(0) + r * u for r in (1e1, 1e3, 1e8, 1e30, 1e200, 1e300))])


@parametrize_with_checks([StableMLPRegressor(), StableMLPClassifier()])
def test_scikit_learns_own_checks(estimator, check):
    with as_users_run_it():  # wrong arguments are part of the checks
        check(estimator)


# ------------------------------------------------------------------ bounds


@pytest.mark.parametrize(
    "settings",
    [
        {"norm": "layer", "placement": "first"},
        {"norm": "layer", "placement": "second"},
        {"norm": "layer", "placement": "every", "activation": "gelu"},
        {"norm": "rms", "placement": "last", "activation": "tanh"},
        {"norm": None, "certified_range": (0.0, 100.0)},
        {"norm": "layer", "certified_range": (0.0, 100.0)},
    ],
    ids=str,
)
def test_no_prediction_leaves_the_bound(settings):
    X, y = problem()
    free = "certified_range" not in settings
    model = StableMLPRegressor(**(FREE if free else SMALL), **settings).fit(X, y)
    low, high = model.output_range_
    assert np.isfinite([low, high]).all() and low <= y.min() < y.max() <= high
    predictions = model.predict(far(X))
    assert np.isfinite(predictions).all()
    assert low <= predictions.min() and predictions.max() <= high
    assert model.far_field_report_.verdict == "BOUNDED"
    if "certified_range" in settings:
        assert (low, high) == (0.0, 100.0)
    else:  # the proof is about the network that was fitted, and not too wide to be of use
        assert high - low < 300 * np.ptp(y)


def test_without_a_norm_nothing_is_promised():
    X, y = problem()
    for norm in (None, "batch"):
        model = StableMLPRegressor(**FREE, norm=norm).fit(X, y)
        assert model.output_range_.tolist() == [-np.inf, np.inf]
        report = model.far_field_report_
        assert report.verdict == "UNBOUNDED" and report.largest_slope[0] > 0
        assert "no bound; targets were in" in str(report) and "inf" not in str(report)
        slope = model.horizon(np.eye(3)[:1] * X.std(0)).slope.abs()
        assert 0 < float(slope) < 1e3 * report.largest_slope[0]
        assert np.ptp(model.predict(far(X)[:-150])) > 1e7
        with pytest.raises(UnboundedError):
            model.certificates()


def test_the_bound_is_about_the_fitted_weights():
    X, y = problem()
    model = StableMLPRegressor(**FREE).fit(X, y)
    wide = model.output_range_
    for member in model.members_:  # twice the readout, without asking for the bound again
        member[-1].weight.data *= 1e4
    predictions = model.predict(far(X))
    assert predictions.max() > wide[1] or predictions.min() < wide[0]


def test_more_time_never_widens_the_bound():
    X, y = problem()
    model = StableMLPRegressor(**FREE).fit(X, y)
    before = model.output_range_
    model.certificates(time_budget=2.0)
    after = model.output_range_
    assert before[0] <= after[0] < after[1] <= before[1]


def test_outputs_each_with_its_range():
    X, y = problem(outputs=2)
    ranges = [(0.0, 100.0), (300.0, 700.0)]
    model = StableMLPRegressor(**SMALL, certified_range=ranges).fit(X, y)
    np.testing.assert_array_equal(model.output_range_, ranges)
    predictions = model.predict(far(X))
    assert predictions.shape == (len(far(X)), 2)
    assert (predictions >= model.output_range_[:, 0]).all() and (
        predictions <= model.output_range_[:, 1]
    ).all()
    assert len(model.far_field_report_.output_range) == 2
    free = StableMLPRegressor(**FREE).fit(X, y)
    assert free.output_range_.shape == (2, 2)
    predictions = free.predict(far(X))
    assert (predictions >= free.output_range_[:, 0]).all() and (predictions <= free.output_range_[:, 1]).all()


def test_a_wide_range_costs_no_accuracy():
    X, y = problem(300)
    settings = {**SMALL, "max_epochs": 150}
    scores = [
        StableMLPRegressor(**settings, output_range=limits).fit(X, y).score(X, y)
        for limits in ("auto", (40.0, 60.0), (-1e4, 1e4))
    ]
    assert scores[0] > 0.9 and max(scores) - min(scores) < 0.01, scores


def test_a_range_that_cannot_hold_the_targets_is_refused():
    X, y = problem()
    with pytest.raises(InvalidValueError, match="does not hold the targets"):
        StableMLPRegressor(certified_range=(50.0, 100.0)).fit(X, y)
    for wrong in ((1.0, 0.0), (0.0, np.inf), (0.0, 1.0, 2.0), [(0.0, 1.0)] * 3):
        with pytest.raises(InvalidValueError, match="certified_range is"):
            StableMLPRegressor(certified_range=wrong).fit(X, y)


# ------------------------------------------------------------------ far away


def test_the_horizon_is_where_predictions_go():
    X, y = problem()
    model = StableMLPRegressor(**SMALL).fit(X, y)
    axes = np.stack([np.eye(3), -np.eye(3)], 1).reshape(-1, 3)
    np.testing.assert_allclose(model.horizon().value[:, 0].numpy(), model.predict(1e14 * axes), rtol=1e-9)


def test_the_module_is_the_predictor():
    X, y = problem()
    model = StableMLPRegressor(**SMALL).fit(X, y)
    module = model.module_
    np.testing.assert_allclose(
        module(torch.from_numpy(X)).detach()[:, 0].numpy(), model.predict(X), rtol=1e-12
    )
    assert farfield.audit(module, (torch.from_numpy(X[:1]),)).verdict.name == "BOUNDED"


def test_the_module_keeps_the_digits_of_features_far_from_zero():
    """Times of the day as seconds since 1970: the offset is 1e9 times the scale that matters."""
    draw = np.random.default_rng(0)
    X = 1.7e9 + draw.normal(size=(60, 2))
    y = np.sin(X[:, 0] - 1.7e9)
    model = StableMLPRegressor(**SMALL).fit(X, y)
    found = model.module_(torch.from_numpy(X)).detach().numpy()[:, 0]
    np.testing.assert_allclose(found, model.predict(X), rtol=0, atol=1e-12)


def test_the_report_is_plain_data_and_reads_well():
    X, y = problem()
    report = StableMLPRegressor(**SMALL).fit(X, y).far_field_report_
    assert json.loads(json.dumps(report.to_dict()))["verdict"] == "BOUNDED"
    text = str(report)
    assert "not a claim of accuracy" in text and "targets were in [4" in text and "radius   1e+08" in text
    (low, high), seen = report.output_range[0], np.array(report.seen)
    assert low <= seen.min() and seen.max() <= high


def test_another_fit_forgets_the_first():
    X, y = problem()
    model = StableMLPRegressor(**SMALL).fit(X, y)
    first = model.output_range_, model.far_field_report_
    model.fit(X, 1000.0 * y)
    assert model.output_range_[1] > 100 * first[0][1] / 10
    assert model.far_field_report_ is not first[1]


# ------------------------------------------------------------------ ensembles and data


def test_members_disagree_more_far_away():
    X, y = problem()
    free = {**SMALL, "early_stopping": False}
    model = StableMLPRegressor(**{**free, "n_members": 5, "max_epochs": 150}).fit(X, y)
    assert model.spread_ is None
    mean, near = model.predict(X, return_std=True)
    np.testing.assert_array_equal(mean, model.predict(X))
    _, away = model.predict(X.mean(0) + 30 * (X - X.mean(0)), return_std=True)
    assert near.shape == y.shape and np.median(away) > 2 * np.median(near)
    with pytest.raises(InvalidValueError, match="n_members to 2"):
        StableMLPRegressor(**{**free, "n_members": 1}).fit(X, y).predict(X, return_std=True)


def test_a_member_does_not_depend_on_how_many_there_are():
    X, y = problem()
    free = {**SMALL, "early_stopping": False}
    few, many = (StableMLPRegressor(**{**free, "n_members": k}).fit(X, y) for k in (2, 4))
    for a, b in zip(few.members_, many.members_[:2], strict=True):
        torch.testing.assert_close(a[0][0].weight, b[0][0].weight, rtol=1e-9, atol=1e-9)


def test_early_stopping_keeps_the_best_of_every_member():
    X, y = problem(1200)
    model = StableMLPRegressor(**{**SMALL, "max_epochs": 30}).fit(X, y)
    assert model.validation_losses_.shape == (len(model.losses_), 2) and model.n_iter_ <= 30
    assert StableMLPRegressor(**SMALL, early_stopping=False).fit(X, y).validation_losses_ is None
    with pytest.raises(InvalidValueError, match="holds some rows out"):
        StableMLPRegressor(**SMALL, early_stopping=True, validation_fraction=1e-9).fit(X, y)


def test_large_data_are_trained_in_float32_and_predicted_in_float64():
    X, y = problem(400)
    model = StableMLPRegressor(**SMALL).fit(X, y)
    assert all(p.dtype == torch.float64 for m in model.members_ for p in m.parameters())
    weight = model.members_[0][0][0].weight
    assert torch.equal(weight, weight.float().double())


def test_data_frames_in():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    X, y = problem()
    plain = StableMLPRegressor(**SMALL).fit(X, y).predict(X)
    for frame in (pandas.DataFrame(X, columns=["u", "v", "w"]), polars.DataFrame(X, schema=["u", "v", "w"])):
        model = StableMLPRegressor(**SMALL).fit(frame, y)
        assert model.feature_names_in_.tolist() == ["u", "v", "w"]
        np.testing.assert_allclose(
            model.predict(frame), plain, rtol=1e-12
        )  # columns are summed in another order


def test_pickles_with_what_it_has_proved():
    X, y = problem()
    model = StableMLPRegressor(**SMALL).fit(X, y)
    bound = model.output_range_
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.output_range_, bound)


def test_weights_are_ratios():
    X, y = problem(50)
    w = np.random.default_rng(3).uniform(0.5, 2.0, size=50)
    a, b = (StableMLPRegressor(**SMALL).fit(X, y, sample_weight=s * w).predict(X) for s in (1.0, 1024.0))
    np.testing.assert_allclose(a, b, rtol=1e-9)
    assert not np.allclose(a, StableMLPRegressor(**SMALL).fit(X, y).predict(X), rtol=1e-6)
    with pytest.raises(ValueError, match="non-zero"):
        StableMLPRegressor().fit(X, y, sample_weight=np.zeros(50))


def test_a_diverging_training_says_so():
    X, y = problem()
    with np.errstate(all="ignore"), pytest.raises(InvalidValueError, match="Lower learning_rate"):
        StableMLPRegressor(
            **{**SMALL, "max_epochs": 60}, norm=None, learning_rate=1e200, weight_decay=0.0
        ).fit(X, y)


def test_before_fit():
    for model in (StableMLPRegressor(), StableMLPClassifier()):
        for use in (lambda m: m.output_range_, lambda m: m.module_, lambda m: m.far_field_report_):
            with pytest.raises(NotFittedError):
                use(model)


def test_progress_is_shown(capsys):
    X, y = problem(30)
    StableMLPRegressor(**SMALL, verbose=True).fit(X, y)
    assert "epoch 40 of 40" in capsys.readouterr().out


# ------------------------------------------------------------------ classes


def test_confidence_has_a_ceiling_for_every_input():
    X, _ = problem(200)
    model = StableMLPClassifier(**{**SMALL, "max_epochs": 100}).fit(X, labels(X))
    assert model.score(X, labels(X)) > 0.9
    p = model.predict_proba(far(X))
    bound = model.output_range_
    assert bound.shape == (3, 2)
    assert (p >= bound[:, 0]).all() and (p <= bound[:, 1]).all()
    np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-12)
    assert model.far_field_report_.verdict == "BOUNDED"


def test_a_range_of_logits_is_a_ceiling():
    X, _ = problem(200)
    y = X[:, 0] > 5.0
    model = StableMLPClassifier(**{**SMALL, "max_epochs": 150}, certified_range=(-2.0, 2.0)).fit(X, y)
    ceiling = 1 / (1 + np.exp(-4.0))
    np.testing.assert_allclose(model.output_range_, [[1 - ceiling, ceiling]] * 2, atol=1e-11)
    p = model.predict_proba(far(X))
    assert 0.9 < p.max() <= model.output_range_.max()
    with pytest.raises(InvalidValueError, match="of the logits"):
        StableMLPClassifier(certified_range=(2.0, -2.0)).fit(X, y)


def test_without_a_norm_confidence_reaches_one():
    X, _ = problem(200)
    model = StableMLPClassifier(**FREE, norm=None).fit(X, labels(X))
    np.testing.assert_array_equal(model.output_range_, [[0.0, 1.0]] * 3)
    assert model.predict_proba(1e6 * X).max() == 1.0


def test_softmax_bounds_are_attained():
    draw = np.random.default_rng(0)
    logits = np.sort(draw.normal(size=(4, 2)), 1)
    found = _softmax_bounds(logits)
    for k in range(4):
        for side in (0, 1):
            corner = logits[:, 1 - side].copy()
            corner[k] = logits[k, side]
            assert np.isclose(found[k, side], np.exp(corner[k]) / np.exp(corner).sum(), rtol=1e-12)
    inside = logits[:, 0] + draw.uniform(size=(1000, 4)) * np.ptp(logits, 1)
    p = np.exp(inside) / np.exp(inside).sum(1, keepdims=True)
    assert (p >= found[:, 0]).all() and (p <= found[:, 1]).all()


def test_used_as_any_estimator():
    X, y = problem()
    assert cross_val_score(StableMLPRegressor(**{**SMALL, "max_epochs": 100}), X, y, cv=3).shape == (3,)


# ------------------------------------------------------------------ floating point


@pytest.mark.parametrize(
    ("norm", "widths"),
    [("layer", (2,)), ("layer", (4,)), ("grouped", (2,)), (torch.nn.LayerNorm, (2,))],
    ids=str,
)
def test_where_a_norm_sees_large_equal_entries(norm, widths):
    """A direction u with W u = 1: torch's LayerNorm answers with rounding times |x|."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(100, 6))
    settings = {
        **FREE,
        "hidden_layer_sizes": widths,
        "activation": "identity",
        "n_members": 1,
        "max_epochs": 10,
    }
    model = StableMLPRegressor(**settings, norm=norm).fit(X, X[:, 0])
    weight = model.members_[0][0].weight.detach().numpy()
    u = np.linalg.pinv(weight) @ np.ones(len(weight))
    low, high = model.output_range_
    for size in (1e6, 1e12, 1e14, 1e16, 1e20, 1e49, 1e60, 1e200):
        rays = draw.uniform(1.0, 2.0, size=(500, 1)) * draw.choice([-1.0, 1.0], size=(500, 1)) * u
        predictions = model.predict(model.input_scaling_.invert(size * rays))
        assert low <= predictions.min() and predictions.max() <= high, size


def test_careful_norms_are_the_norms():
    x = torch.randn(50, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer = torch.nn.LayerNorm(12, dtype=torch.float64)
    grouped = farfield.nn.GroupedLayerNorm(12, 3, elementwise_affine=True).double()
    for norm in (layer, grouped):
        with torch.no_grad():
            for p in norm.parameters():
                p.normal_(generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(evaluate(norm, x), norm(x), rtol=1e-12, atol=1e-12)
    # What torch does with all but equal entries, and this does not.
    x = (
        1e50
        * (1 + torch.rand(2000, 1, dtype=torch.float64))
        * (1 + 2.3e-16 * torch.eye(3, dtype=torch.float64)[0])
    )
    layer = torch.nn.LayerNorm(3, elementwise_affine=False)
    assert float(layer(x).norm(dim=1).max()) > 1e3
    y = evaluate(layer, x)
    assert float(y.norm(dim=1).max()) <= 3**0.5 * (1 + 1e-14) and float(y.sum(1).abs().max()) < 1e-14


def test_a_range_is_kept_after_training_in_float32():
    X, _ = problem(300)
    y = X[:, 0] > 5.0
    model = StableMLPClassifier(**{**SMALL, "max_epochs": 100}, certified_range=(-0.3, 0.3)).fit(X, y)
    p = model.predict_proba(far(X))
    assert 0.64 < p.max() <= model.output_range_.max()
    regressor = StableMLPRegressor(**SMALL, certified_range=(0.1, 100.3)).fit(*problem(300))
    found = regressor.module_(1e3 * torch.from_numpy(X)).detach()
    assert float(found.min()) > 0.1 - 1e-12 and float(found.max()) < 100.3 + 1e-12


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_units_do_not_matter(size):
    X, y = problem(60)
    size = 2.0 ** round(np.log2(size))  # so that nothing rounds
    plain = StableMLPRegressor(**SMALL).fit(X, y)
    for model, x in (
        (StableMLPRegressor(**SMALL).fit(size * X, y), size * X),
        (StableMLPRegressor(**SMALL).fit(X, y, sample_weight=np.full(60, size)), X),
    ):
        np.testing.assert_allclose(model.predict(x), plain.predict(X), rtol=1e-9)
    scaled = StableMLPRegressor(**SMALL).fit(X, size * y)
    np.testing.assert_allclose(scaled.predict(X) / size, plain.predict(X), rtol=1e-9)
    np.testing.assert_allclose(
        scaled.predict(X, return_std=True)[1] / size, plain.predict(X, return_std=True)[1], rtol=1e-7
    )
    one = size ** np.array([1.0, 0.0, 0.0])  # one column alone: still nothing is far
    model = StableMLPRegressor(**SMALL).fit(one * X, y)
    np.testing.assert_allclose(model.predict(one * X), plain.predict(X), rtol=1e-9)


def test_columns_and_targets_at_the_end_of_the_numbers():
    X, y = problem(60)
    X[:, 1] = 1.7e308
    model = StableMLPRegressor(**SMALL).fit(X, y)
    assert np.isfinite(model.predict(X)).all() and np.isfinite(model.predict(-X)).all()
    constant = StableMLPRegressor(**SMALL).fit(X, np.full(60, 1e308))
    np.testing.assert_allclose(constant.predict(X), 1e308, rtol=1e-14)
    X[:, 1] = 1.1e20  # its mean is off by some 1e4, which is no input
    assert np.abs(StableMLPRegressor(**SMALL).fit(X, y).input_scaling_.apply(X)).max() < 10


def test_a_large_offset_of_the_targets():
    X, y = problem(60)
    model = StableMLPRegressor(**{**FREE, "n_members": 3, "hidden_layer_sizes": (4,)}).fit(X, 1e12 + 1e-3 * y)
    each = model.target_scaling_.invert(model._network_bounds().mean(0))
    # A member at its bound is inside, whatever rounding does to numbers of this size.
    assert (model.output_range_ == each[0]).all()
    low, high = model._network_bounds()[:, 0].T
    model._outputs = lambda inputs: torch.from_numpy(np.stack([low, high], 1)[:, :, None])
    assert (model.predict(X[:2]) == model.output_range_).all()


def test_norms_and_activations_of_ones_own():
    X, _ = problem()
    for n, settings in (
        (120, {"norm": torch.nn.LayerNorm}),
        (300, {"norm": lambda width: torch.nn.RMSNorm(width).double()}),
        (300, {"activation": torch.nn.PReLU().double()}),
        (120, {"norm": None, "activation": "exp", "certified_range": (0.0, 100.0)}),
    ):
        model = StableMLPRegressor(**{**SMALL, "n_members": 1, "hidden_layer_sizes": (8,)}, **settings)
        model.fit(*problem(n))
        predictions = model.predict(far(X))
        low, high = model.output_range_
        assert low <= predictions.min() and predictions.max() <= high


def test_without_any_place_for_the_norm_nothing_is_brought_nearer():
    X, y = problem()
    model = StableMLPRegressor(**FREE, placement=[]).fit(X, y)
    near, away = (np.abs(model.predict(size * X)).max() for size in (1e40, 1e200))
    np.testing.assert_allclose(away, 1e160 * near, rtol=1e-6)


def test_no_batch_of_one_row_for_batch_norm():
    X, y = problem(65)
    assert np.isfinite(StableMLPRegressor(**SMALL, norm="batch").fit(X, y).predict(X)).all()
    for settings, rows in (({"batch_size": 8, "early_stopping": False}, 65), ({}, 1)):
        with pytest.raises(InvalidValueError, match="needs two rows"):
            StableMLPRegressor(**SMALL, norm="batch", **settings).fit(X[:rows], y[:rows])


def test_directions_are_rows():
    X, y = problem(30)
    model = StableMLPRegressor(**SMALL).fit(X, y)
    with pytest.raises(InvalidValueError, match=r"shape \(m, 3\)"):
        model.horizon([1.0, 0.0, 0.0])
