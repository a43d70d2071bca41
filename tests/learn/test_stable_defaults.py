"""What the estimators do if nobody sets anything: cheap to display, a useful range, early stopping, honest errors."""

import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.utils._param_validation import InvalidParameterError

import farfield
from farfield import Budget
from farfield.errors import InvalidValueError
from farfield.learn import (
    FarFieldChoice,
    StableMLPClassifier,
    StableMLPRegressor,
    Training,
    _far_away,
    train,
)
from farfield.learn._protected import outer_rows, protected
from farfield.learn._spread import Spread
from farfield.nn import MLP

SMALL = {"hidden_layer_sizes": (16,), "max_epochs": 15, "n_members": 2, "random_state": 0}


def problem(n=120):
    draw = np.random.default_rng(0)
    X = draw.normal(size=(n, 3)) * [100.0, 0.1, 3.0] + [5.0, 0.0, -40.0]
    z = (X - X.mean(0)) / X.std(0)
    return X, 50.0 + 3.0 * np.sin(2 * z[:, 0]) + z[:, 1]


def away(X, seed=1):
    u = np.random.default_rng(seed).normal(size=(50, X.shape[1])) * X.std(0)
    return np.concatenate([X.mean(0) + r * u for r in (1e1, 1e3, 1e8, 1e30, 1e200)])


# ------------------------------------------------------------------ displayed


@pytest.fixture
def calls(monkeypatch):
    """How often something expensive was asked for."""
    counted = {"certify": 0, "analyze": 0, "horizon": 0}

    def counting(name, real):
        def wrapped(*args, **kwargs):
            counted[name] += 1
            return real(*args, **kwargs)

        return wrapped

    for name in counted:
        monkeypatch.setattr(_far_away, name, counting(name, getattr(_far_away, name)))
    return counted


@pytest.mark.parametrize("output_range", ["auto", None])
def test_nothing_computes_while_an_estimator_is_displayed(calls, output_range):
    X, y = problem()
    budget = Budget(steps=2)
    regressor = StableMLPRegressor(**SMALL, output_range=output_range, time_budget=budget).fit(X, y)
    classifier = StableMLPClassifier(**SMALL, output_range=output_range, time_budget=budget).fit(X, y > 50)
    assert calls["certify"] == (0 if output_range == "auto" else 4)  # cached by the fits
    before = dict(calls)
    for model in (regressor, classifier):
        assert "output_range_" in model._repr_html_()
        assert repr(model) and dir(model)
    assert calls == before


def test_no_warnings_about_feature_names_from_our_own_calls():
    pandas = pytest.importorskip("pandas")
    X, y = problem()
    frame = pandas.DataFrame(X, columns=["u", "v", "w"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for settings in ({}, {"far_field": "auto"}):
            for kind, target in ((StableMLPRegressor, y), (StableMLPClassifier, y > 50)):
                model = kind(**SMALL, **settings).fit(frame, target)
                assert str(model.far_field_report_) and model._repr_html_() and model.module_
                assert len(model.predict(frame)) == len(frame)


# ------------------------------------------------------------------ the range


def test_the_default_range_is_that_of_the_targets_and_a_quarter_more():
    X, y = problem()
    model = StableMLPRegressor(**SMALL).fit(X, y)
    room = 0.25 * np.ptp(y)
    np.testing.assert_allclose(model.output_range_, [y.min() - room, y.max() + room], rtol=1e-14)
    report = model.far_field_report_
    assert report.relative_width == pytest.approx((1.5,)) and report.proof == "construction"
    assert "the proved range is 1.5 times theirs" in str(report)
    predictions = model.predict(away(X))
    assert model.output_range_[0] <= predictions.min() and predictions.max() <= model.output_range_[1]
    both = StableMLPRegressor(**SMALL).fit(X, np.stack([y, -10 * y], 1))
    assert both.output_range_.shape == (2, 2)
    assert both.far_field_report_.relative_width == pytest.approx((1.5, 1.5))


def test_a_pair_by_either_name_and_not_by_both():
    X, y = problem()
    for name in ("output_range", "certified_range"):
        model = StableMLPRegressor(**SMALL, **{name: (0.0, 100.0)}).fit(X, y)
        assert model.output_range_.tolist() == [0.0, 100.0]
    with pytest.raises(InvalidValueError, match="give one of them"):
        StableMLPRegressor(**SMALL, output_range=(0.0, 100.0), certified_range=(0.0, 100.0)).fit(X, y)


def test_a_proved_range_is_the_same_on_any_machine():
    X, y = problem(60)
    settings = {**SMALL, "n_members": 1, "output_range": None, "time_budget": Budget(steps=5)}
    first, second = (StableMLPRegressor(**settings).fit(X, y).output_range_ for _ in range(2))
    assert np.isfinite(first).all() and (first == second).all()


def test_a_certificate_can_only_tighten_a_range_that_is_built_in():
    X, y = problem(60)
    model = StableMLPRegressor(**{**SMALL, "n_members": 1}).fit(X, y)
    built = model.output_range_
    model.certificates(Budget(steps=3))
    assert built[0] <= model.output_range_[0] < model.output_range_[1] <= built[1]


def test_constant_targets_are_predicted_exactly():
    X, y = problem(60)
    for settings in ({}, {"certified_range": (0.0, 1.0)}):
        model = StableMLPRegressor(**SMALL, **settings).fit(X, np.full(60, 0.1))
        far = np.concatenate([X, away(X)])
        assert (model.predict(far) == 0.1).all()
        assert (model.module_(torch.from_numpy(X)) == 0.1).all()
        assert str(model.far_field_report_)
    model = StableMLPRegressor(**SMALL).fit(X, np.stack([y, np.full(60, -7.0)], 1))
    assert (model.predict(X)[:, 1] == -7.0).all() and np.ptp(model.predict(X)[:, 0]) > 0.1
    assert model.output_range_[1].tolist() == [-7.0, -7.0]


# ------------------------------------------------------------------ training


def test_a_small_noisy_table_is_not_overfitted():
    X, y = load_diabetes(return_X_y=True)
    train, test = np.arange(0, 442) % 3 > 0, np.arange(0, 442) % 3 == 0
    scores = [
        StableMLPRegressor(random_state=0, n_members=2, early_stopping=stopping)
        .fit(X[train], y[train])
        .score(X[test], y[test])
        for stopping in ("auto", False)
    ]
    assert scores[0] > 0.35 and scores[0] > scores[1] + 0.05


@pytest.mark.parametrize(
    "wrong",
    [
        {"early_stopping": "yes"},
        {"n_members": 2.5},
        {"n_members": 0},
        {"time_budget": -1},
        {"far_field": "clip"},
        {"bias_var": -0.1},
        {"output_range": "wide"},
        {"max_epochs": 0},
        {"validation_fraction": 1.5},
        {"schedule": "linear"},
    ],
    ids=str,
)
def test_bad_values_are_refused_by_name(wrong):
    X, y = problem(30)
    for model in (StableMLPRegressor(**wrong), StableMLPClassifier(**wrong)):
        with pytest.raises(InvalidParameterError, match=f"'{next(iter(wrong))}' parameter"):
            model.fit(X, y > 50)


def test_biases_start_with_their_variance():
    X, y = problem(60)
    settings = {
        **SMALL,
        "hidden_layer_sizes": (400,),
        "max_epochs": 1,
        "learning_rate": 1e-12,
        "n_members": 1,
    }
    for variance in (0.01, 4.0):
        net = StableMLPRegressor(**settings, bias_var=variance).fit(X, y).members_[0][0]
        assert float(net[0].bias.detach().var()) == pytest.approx(variance, rel=0.3)
    net = StableMLPRegressor(**settings, bias_var=0).fit(X, y).members_[0][0]
    assert net[0].bias is None


def test_verbose_prints_the_loss(capsys):
    X, y = problem()
    StableMLPRegressor(**SMALL, verbose=True).fit(X, y)
    said = capsys.readouterr().out
    assert "epoch 15 of 15: loss 1." in said and "on held-out rows" in said


def test_networks_that_stop_together():
    x = torch.linspace(-1, 1, 60)[:, None]
    y = x.square() + 0.3 * torch.randn(60, 1, generator=torch.Generator().manual_seed(1))
    nets = [MLP(1, 1, width=16, depth=1, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    held = torch.stack([torch.arange(k, 60, 6) for k in range(3)])
    rows = torch.stack([torch.tensor([i for i in range(60) if i not in h.tolist()]) for h in held])
    seen = []
    done = train(
        nets,
        x,
        y,
        training=Training(epochs=300, lr=0.05, patience=15),
        rows=rows,
        validation_rows=held,
        stop_together=True,
        on_epoch=lambda epoch, losses, held_out: seen.append((epoch, losses, held_out)),
    )
    best = int(done.validation_losses.mean(1).argmin()) + 1
    assert done.epochs == (best,) * 3 and len(seen) == len(done.losses) == best + 15 < 300
    assert [epoch for epoch, *_ in seen] == list(range(1, best + 16))
    torch.testing.assert_close(torch.stack([h for _, _, h in seen]), done.validation_losses)
    alone = train(
        nets, x, y, training=Training(epochs=300, lr=0.05, patience=15), rows=rows, validation_rows=held
    )
    assert len(set(alone.epochs)) > 1


# ------------------------------------------------------------------ errors to expect


def test_floor_and_factor_are_found():
    draw = np.random.default_rng(0)
    v = draw.gamma(2.0, size=(20_000, 2))
    truth = np.array([0.5, 0.0]) + np.array([3.0, 2.0]) * v
    found = Spread.of(np.sqrt(truth) * draw.normal(size=v.shape), v)
    np.testing.assert_allclose(found.floor + found.factor * 2.0, [6.5, 4.0], rtol=0.05)
    np.testing.assert_allclose(found.factor, [3.0, 2.0], rtol=0.15)
    exact = Spread.of(np.zeros((5, 1)), np.ones((5, 1)))
    assert exact.deviation(np.ones((3, 1))).max() == 0.0


def test_deviations_are_scaled_to_hold_nine_tenths_of_the_errors():
    errors = np.where(np.arange(100) % 5 == 0, 1.0, 1e-3)[
        :, None
    ]  # the likelihood alone gives 0.45, and holds 80
    found = Spread.of(errors, np.zeros((100, 1)))
    assert 1.645 * found.deviation(np.zeros((1, 1)))[0, 0] == pytest.approx(1.0)
    gauss = np.random.default_rng(0).normal(size=(9, 1))
    few = Spread.of(gauss, np.zeros((9, 1)))  # 0.9 times 10 rows: all nine
    assert 1.645 * few.deviation(np.zeros((1, 1)))[0, 0] >= np.abs(gauss).max() * (1 - 1e-12)
    light = Spread.of(np.where(np.arange(100) == 0, 100.0, 1.0)[:, None], np.zeros((100, 1)))
    assert 1.645 * light.deviation(np.zeros((1, 1)))[0, 0] == pytest.approx(
        1.0
    )  # the likelihood alone gives 10
    shares = np.where(np.arange(100) % 5 == 0, 0.01, 1.0)
    assert Spread.of(errors, np.zeros((100, 1)), shares).floor[0] < 0.01 < found.floor[0]


@pytest.mark.parametrize("members", [1, 2, 3, 5, 30])
def test_rows_that_are_held_out_are_new_to_two_members(members):
    model = StableMLPRegressor(n_members=members)
    rows, held = model._rows(103, np.arange(members))
    for own, out in zip(rows.tolist(), held.tolist(), strict=True):
        assert sorted(own + out) == list(range(103)) and len(set(out)) == len(out) == 10
    times = np.bincount(held.flatten(), minlength=103)
    assert (times[times > 0] >= min(members, 2)).all()


def test_members_that_have_seen_a_target_say_nothing_of_the_error_on_new_rows(monkeypatch):
    model, targets = StableMLPRegressor(), np.random.default_rng(0).normal(size=(103, 1))
    _, held = model._rows(103, np.arange(5))
    new = np.stack([np.isin(np.arange(103), own) for own in held.numpy()])
    # Whoever has seen a row gives its target, whoever has not gives the mean: those agree with each other.
    each = torch.from_numpy(np.where(new, 0.0, targets[:, 0])[..., None])
    monkeypatch.setattr(model, "_outputs", lambda inputs: each[:, inputs[:, 0].long()])
    found = model._calibrated(np.arange(103.0)[:, None], targets, held.numpy(), None)
    assert found.factor[0] == 0.0 and found.floor[0] > 0.5 * np.mean(targets[new.any(0)] ** 2)


def test_standard_deviations_cover_what_they_say():
    draw = np.random.default_rng(0)
    X = draw.uniform(-2, 2, size=(1500, 2))
    y = np.sin(2 * X[:, 0]) + (0.1 + 0.2 * np.abs(X[:, 1])) * draw.normal(size=1500)
    settings = {"hidden_layer_sizes": (64,), "max_epochs": 40, "random_state": 0}
    model = StableMLPRegressor(**settings).fit(X[:700], y[:700])
    mean, deviation = model.predict(X[700:], return_std=True)
    inside = np.abs(y[700:] - mean) <= 1.645 * deviation
    assert 0.86 < inside.mean() < 0.95
    raw = np.stack(
        [m(torch.from_numpy(model.input_scaling_.apply(X[700:]))).detach() for m in model.members_]
    )
    raw = model.target_scaling_.scale * raw[..., 0].std(0, ddof=1)
    assert (np.abs(y[700:] - mean) <= 1.645 * raw).mean() < 0.6  # what members' spread alone would say
    one = StableMLPRegressor(**{**settings, "n_members": 1}).fit(X[:700], y[:700])
    assert np.ptp(one.predict(X[700:], return_std=True)[1]) < 1e-12 < one.spread_.floor[0]


# ------------------------------------------------------------------ norm or cap


def test_protections_change_nothing_on_the_training_rows():
    inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    net = MLP(4, 2, width=8, depth=2, bias_var=0.1, dtype=torch.float64).eval()
    made = protected(net, inputs)
    torch.testing.assert_close(made(inputs), net(inputs), rtol=0, atol=0)
    far = made(1e6 * inputs)
    assert float(far.detach().abs().max()) <= 3 * float(net(inputs).detach().abs().max())
    torch.testing.assert_close(made(1e9 * inputs), made(1e12 * inputs))


def test_a_cap_is_bounded_without_a_norm_and_without_a_range():
    X, y = problem()
    model = StableMLPRegressor(**SMALL, far_field="cap", output_range=None, time_budget=Budget(steps=2)).fit(
        X, y
    )
    report = model.far_field_report_
    assert report.verdict == "BOUNDED" and report.far_field == "cap" and report.proof == "certificate"
    predictions = model.predict(away(X))
    assert model.output_range_[0] <= predictions.min() and predictions.max() <= model.output_range_[1]
    assert farfield.audit(model.module_, (torch.from_numpy(X[:1]),)).verdict.name == "BOUNDED"


def test_auto_takes_the_kind_with_the_smaller_error_on_the_outer_rows():
    X, y = problem(300)
    report = StableMLPRegressor(**SMALL, far_field="auto").fit(X, y).far_field_report_
    errors = report.choice["errors"]
    assert report.far_field == min(errors, key=errors.get) and report.choice["rows"] == 30
    assert f"took '{report.far_field}'" in str(report) and "30 outermost rows" in str(report)
    few = StableMLPClassifier(**SMALL, far_field="auto").fit(X[:60], y[:60] > 50).far_field_report_
    assert few.far_field == "norm" and "fewer than 100 rows" in str(few)


def test_the_choice_between_two():
    draw = np.random.default_rng(0)
    low, high = draw.uniform(0, 1, 50), draw.uniform(1, 2, 50)
    assert FarFieldChoice.between({"norm": high, "cap": low}, None).chosen == "cap"
    assert FarFieldChoice.between({"norm": low, "cap": low}, None).chosen == "norm"
    lost = FarFieldChoice.between({"norm": np.full(1, np.inf), "cap": low}, None)
    assert lost.chosen == "cap" and lost.errors["norm"] == np.inf and str(lost)
    # A weight of two says what a repeated row says.
    weights = np.where(np.arange(50) < 10, 2.0, 1.0)
    repeated = np.concatenate([np.arange(50), np.arange(10)])
    a = FarFieldChoice.between({"norm": high, "cap": low}, weights)
    b = FarFieldChoice.between({"norm": high[repeated], "cap": low[repeated]}, None)
    assert a.difference == pytest.approx(b.difference) and a.errors["cap"] == pytest.approx(b.errors["cap"])


def test_outer_rows_are_those_farthest_out():
    rows = np.linspace(0, 1, 200)[:, None] * [[3.0, 4.0]]
    assert np.flatnonzero(outer_rows(rows)).tolist() == list(range(180, 200))
    assert outer_rows(rows[:99]) is None


# ------------------------------------------------------------------ confidence


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
def test_far_away_a_class_is_less_probable_than_the_ceiling_and_that_is_below_one(load):
    X, y = load(return_X_y=True)
    model = StableMLPClassifier(**{**SMALL, "max_epochs": 40}).fit(X, y)
    rows, classes = len(np.unique(X, axis=0)), len(set(y))
    assert model.ceiling_ == pytest.approx((rows + 1) / (rows + classes)) and model.ceiling_ < 1
    assert model.score(X, y) > 0.9
    near, far = model.predict_proba(X), model.predict_proba(X.mean(0) + 1e4 * (X - X.mean(0)))
    assert near.max() <= model.ceiling_ and far.max() < 1 / classes + 0.01
    assert (far.argmax(1) == model.predict(X)).mean() > 0.5  # the class remains
    assert f"above {model.ceiling_:.4g}" in str(model.far_field_report_)
    module = model.module_
    logits = module(torch.from_numpy(X)).detach()
    assert farfield.audit(module, (torch.from_numpy(X[:1]),)).verdict.name == "BOUNDED"
    assert logits.abs().max() <= np.log(rows + 1) / 2 + 1e-9


def test_probabilities_in_a_range_that_was_asked_for():
    X, y = problem(200)
    labels = np.digitize(y, [49.0, 51.0])
    model = StableMLPClassifier(**{**SMALL, "max_epochs": 60}, output_range=(0.05, 0.8)).fit(X, labels)
    p = model.predict_proba(np.concatenate([X, away(X)]))
    assert model.ceiling_ == pytest.approx(0.8) and 0.7 < p.max() <= model.ceiling_ and p.min() >= 0.05
    for wrong in ((0.5, 0.9), (0.0, 0.3), (0.0, 1.0), (0.1, 0.5, 0.9)):
        with pytest.raises(InvalidValueError, match="every class's probability"):
            StableMLPClassifier(**SMALL, output_range=wrong).fit(X, labels)


def test_class_weights_are_weights_of_the_samples():
    X, y = problem(40)
    labels = y > 52
    weights = np.where(labels, 3.0, 1.0)
    a = StableMLPClassifier(**SMALL, class_weight={False: 1.0, True: 3.0}).fit(X, labels).predict_proba(X)
    b = StableMLPClassifier(**SMALL).fit(X, labels, sample_weight=weights).predict_proba(X)
    np.testing.assert_allclose(a, b, rtol=1e-12)
    balanced = StableMLPClassifier(**SMALL, class_weight="balanced").fit(X, labels).predict_proba(X)
    assert balanced[:, 1].mean() > StableMLPClassifier(**SMALL).fit(X, labels).predict_proba(X)[:, 1].mean()


def test_a_class_remains_where_probabilities_have_become_level():
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = StableMLPClassifier(random_state=0, max_epochs=20).fit(X, np.where(X[:, 0] > 0, "right", "left"))
    near = model.predict(X)
    assert (near == model.classes_[model.predict_proba(X).argmax(1)]).all()
    far = model.predict(1e6 * X)
    assert set(far) == {"left", "right"}
    for scale in (1e15, 1e17, 1e20):
        assert np.allclose(model.predict_proba(scale * X), 0.5, atol=1e-9)
        assert (model.predict(scale * X) == far).all()
