"""The estimators: scikit-learn's contract, dense algebra, and bounds with zero slack."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from shape_checking import as_users_run_it

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from farfield import kernels
from farfield.errors import InvalidValueError
from farfield.learn import NNGPRegressor, NTKRegressor, NystromNTKRegressor
from farfield.learn._scaling import Scaling

EXACT = [NTKRegressor, NNGPRegressor]
ALL = [*EXACT, NystromNTKRegressor]
KIND = {NTKRegressor: "ntk", NNGPRegressor: "nngp", NystromNTKRegressor: "ntk"}


def problem(n=40, d=3, outputs=None, seed=0):
    """Inputs on scales a thousand apart, targets far from 0."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(n, d)) * 10.0 ** draw.uniform(-1.5, 1.5, d) + draw.normal(size=d)
    z = (X - X.mean(0)) / (X.std(0) if n > 1 else 1.0)
    y = 7.0 + 3.0 * np.sin(2 * z[:, 0]) + z[:, 1 % d] ** 2
    return X, y if outputs is None else np.stack([y * (k + 1) - k for k in range(outputs)], 1)


def standardized(a):
    return (a - a.mean(0)) / a.std(0)


def matrix(cls, *x, **network):
    settings = {"depth": 2, "layer_norm": "first", "bias_var": 0.1, **network}
    function = kernels.mlp(**settings).function(KIND[cls])
    return function(*(torch.from_numpy(v) for v in x)).numpy()


# ------------------------------------------------------------------ scikit-learn's contract


@parametrize_with_checks([cls() for cls in ALL])
def test_scikit_learns_own_checks(estimator, check):
    with as_users_run_it():  # wrong arguments are part of the checks
        check(estimator)


@pytest.mark.parametrize("cls", ALL)
def test_init_only_stores(cls):
    """No copy, no check, no default filled in: what was given comes back, and cloning keeps it."""
    layers = [0, 1]
    model = cls(layer_norm=layers, depth=7, bias_var=3.0)
    assert model.layer_norm is layers and model.get_params()["depth"] == 7
    assert vars(model) == model.get_params()
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize("cls", ALL)
def test_names_of_columns_are_kept_and_checked(cls):
    pandas = pytest.importorskip("pandas")
    X, y = problem()
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    model = cls().set_params(**({"random_state": 0} if cls is NystromNTKRegressor else {})).fit(frame, y)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    # pandas stores columns, so sums may round otherwise.
    np.testing.assert_allclose(model.predict(frame), clone(model).fit(X, y).predict(X), rtol=1e-9)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a", "c"]])


@pytest.mark.parametrize("cls", ALL)
def test_pickles_predict_the_same(cls):
    X, y = problem()
    model = cls(activation="gelu").fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(model.predict(X), again.predict(X)) and np.array_equal(
        again.output_range_, model.output_range_
    )


@pytest.mark.parametrize("cls", ALL)
def test_not_fitted_is_said(cls):
    for ask in (
        lambda m: m.predict([[1.0]]),
        lambda m: m.output_range([[1.0]]),
        lambda m: m.output_range_,
    ):
        with pytest.raises(NotFittedError):
            ask(cls())


def test_in_a_pipeline_and_a_search():
    X, y = problem()
    search = GridSearchCV(
        make_pipeline(PolynomialFeatures(2), NTKRegressor()), {"ntkregressor__depth": [1, 3]}, cv=3
    )
    search.fit(X, y)
    assert search.best_score_ > 0 and np.isfinite(search.best_estimator_[-1].output_range_).all()


# ------------------------------------------------------------------ values


@pytest.mark.parametrize("cls", EXACT)
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_mean_and_deviation_are_those_of_dense_algebra(cls, noise):
    X, y = problem()
    Q = problem(11, seed=5)[0]
    model = cls(noise=noise, layer_norm="every", depth=3, weight_var=1.3).fit(X, y)
    network = {"depth": 3, "layer_norm": "every", "weight_var": 1.3}
    z, q = standardized(X), (Q - X.mean(0)) / X.std(0)
    system = matrix(cls, z, **network) + noise * np.eye(len(X))
    weights = np.linalg.solve(system, standardized(y))
    cross = matrix(cls, q, z, **network)
    mean, deviation = model.predict(Q, return_std=True)
    np.testing.assert_allclose(mean, y.mean() + y.std() * cross @ weights, rtol=1e-8)
    beta = np.linalg.solve(system, cross.T)
    gp = matrix(NNGPRegressor, q, **network).diagonal()
    if cls is NNGPRegressor:
        variance = gp - (cross.T * beta).sum(0)
    else:
        prior = matrix(NNGPRegressor, z, **network)
        variance = (
            gp + (beta * (prior @ beta)).sum(0) - 2 * (beta * matrix(NNGPRegressor, z, q, **network)).sum(0)
        )
    np.testing.assert_allclose(deviation, y.std() * np.sqrt(variance), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("cls", EXACT)
def test_without_noise_it_interpolates(cls):
    X, y = problem()
    model = cls().fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-6)
    assert float(model.predict(X, return_std=True)[1].max()) < 1e-4 * y.std()
    assert model.score(X, y) > 1 - 1e-9


@pytest.mark.parametrize("cls", ALL)
def test_several_outputs_are_several_fits(cls):
    X, y = problem(outputs=3)
    fixed = {"random_state": 0} if cls is NystromNTKRegressor else {}
    model = cls(**fixed).fit(X, y)
    parts = [cls(**fixed).fit(X, column) for column in y.T]
    np.testing.assert_allclose(model.predict(X), np.stack([p.predict(X) for p in parts], 1), rtol=1e-9)
    np.testing.assert_allclose(model.output_range_, [p.output_range_ for p in parts], rtol=1e-6)
    assert model.output_range(X).shape == (*model.predict(X).shape, 2) == (*y.shape, 2)
    assert cls(**fixed).fit(X, y[:, :1]).predict(X).shape == (len(X), 1)


@pytest.mark.parametrize("cls", ALL)
def test_units_of_the_data_do_not_matter(cls):
    """Standardized inside: other units of inputs and targets give the same predictions in those units."""
    X, y = problem()
    fixed = {"random_state": 0} if cls is NystromNTKRegressor else {}
    model, other = cls(**fixed).fit(X, y), cls(**fixed).fit(X * [1e-3, 1.0, 1e6] - 5.0, 100.0 * y + 3.0)
    np.testing.assert_allclose(
        other.predict(X * [1e-3, 1.0, 1e6] - 5.0), 100.0 * model.predict(X) + 3.0, rtol=1e-7
    )
    raw = cls(standardize=False, **fixed).fit(X, y)
    assert not np.allclose(raw.predict(X * 1.5), model.predict(X * 1.5), rtol=1e-3)


def test_scaling_of_constant_and_far_columns():
    values = np.array([[1.0, 1e15, 5.0], [3.0, 1e15, 5.0]])
    made = Scaling.of(values, standardize=True)
    assert np.array_equal(made.scale, [1.0, 1.0, 1.0]) and np.array_equal(
        made.apply(values)[:, 2], [0.0, 0.0]
    )
    ordinary = np.random.default_rng(0).normal(size=(5, 3)) * [1.0, 1e10, 1e-10]
    assert np.array_equal(made.apply_far(ordinary), made.apply(ordinary))
    largest = np.finfo(np.float64).max
    brought = made.apply_far(np.array([[largest, -largest, 0.0], [1e80, 1e79, -1e80]]))
    np.testing.assert_allclose(brought, 1e50 * np.array([[1, -1, 0], [1, 0.1, -1]]), rtol=1e-12, atol=1e15)


def test_conflicting_targets_need_noise():
    X, y = np.array([[1.0], [1.0], [2.0]]), np.array([0.0, 1.0, 2.0])
    with pytest.raises(InvalidValueError, match="noise"):
        NTKRegressor().fit(X, y)
    assert NTKRegressor(noise=0.1).fit(X, y).predict([[1.0]]) == pytest.approx(0.5, abs=0.2)


# ------------------------------------------------------------------ bounds


def far(X, seed=0):
    """Everywhere: near, along random directions as far as floats go, along single columns, both signs."""
    draw = np.random.default_rng(seed)
    directions = np.concatenate([X[:8], draw.normal(size=(8, X.shape[1])), np.eye(X.shape[1])])
    scales = [1e-3, 1.0, 1e2, 1e4, 1e9, 1e60, 1e160, 1e300]
    return np.concatenate([s * t * directions for s in scales for t in (1.0, -1.0)] + [X])


NETWORKS = [
    {},
    {"layer_norm": "second"},
    {"layer_norm": "every", "activation": "gelu"},
    {"layer_norm": "last", "order": "post", "depth": 3},
    {"noise": 0.1, "bias_var": 1.0},
]


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("settings", NETWORKS, ids=str)
def test_no_prediction_exceeds_its_bound(cls, settings):
    """Zero slack, at every distance floats allow; at each input its own bound, which is no larger."""
    X, y = problem(outputs=2)
    model = cls(**settings).fit(X, y)
    Q = far(X)
    found = model.predict(Q)
    assert np.isfinite(found).all()
    low, high = model.output_range_.T
    assert (low <= found).all() and (found <= high).all()
    here = np.moveaxis(model.output_range(Q), -1, 0)
    assert (here[0] <= found).all() and (found <= here[1]).all()
    spare = 1e-9 * (high - low)
    assert (here[0] >= low - spare).all() and (here[1] <= high + spare).all()


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 25),
    d=st.integers(1, 6),
    noise=st.sampled_from([0.0, 1e-6, 0.3]),
)
@examples(max_examples=25)
def test_bounds_hold_for_random_problems(seed, n, d, noise):
    X, y = problem(n, d, seed=seed)
    model = NTKRegressor(noise=noise).fit(X, y)
    found, (low, high) = model.predict(far(X, seed)), model.output_range_
    assert low <= found.min() and found.max() <= high


def test_the_bound_oracle_can_say_no():
    """Without the targets' offset, or with the formula P1 prints, predictions do exceed the number."""
    X, y = problem()
    y = y + 100.0
    model = NTKRegressor().fit(X, y)
    found = np.abs(model.predict(far(X))).max()
    inner = float(model.posterior_.output_bound())
    assert found <= np.abs(model.output_range_).max()
    assert found > model.target_scaling_.scale * inner, "the offset belongs to the bound"
    smallest = model.posterior_.smallest_eigenvalue().value
    printed = model.kernel_.sup_diagonal() * np.abs(standardized(y)).max() / (smallest * len(y))
    crowd = NTKRegressor(standardize=False).fit(np.eye(40) * 10.0, np.resize([1.0, -1.0], 40))
    smallest = crowd.posterior_.smallest_eigenvalue().value
    printed = crowd.kernel_.sup_diagonal() / (smallest * 40)
    assert np.abs(crowd.predict(np.eye(40) * 10.0)).max() > printed


@pytest.mark.parametrize("cls", EXACT)
def test_growth_without_a_norm(cls):
    """The bound is ∞, and predictions grow along each direction with the slope given, in the data's units."""
    X, y = problem()
    model = cls(layer_norm=None).fit(X, y)
    assert model.output_range_.tolist() == [-np.inf, np.inf] and np.isfinite(model.output_range(X)).all()
    U = np.random.default_rng(1).normal(size=(6, 3)) * X.std(0)
    slopes = model.slope(U)
    np.testing.assert_allclose(
        model.predict(1e8 * U) / 1e8, slopes, rtol=1e-4, atol=1e-5 * np.abs(slopes).max()
    )
    assert np.abs(slopes).min() > 0
    assert not cls().fit(X, y).slope(U).any()


# ------------------------------------------------------------------ Nyström


def test_nystrom_with_every_row_a_landmark_is_exact():
    X, y = problem()
    exact = NTKRegressor(noise=1e-3).fit(X, y)
    model = NystromNTKRegressor(noise=1e-3, n_landmarks=1000).fit(X, y)
    assert len(model.landmarks_) == len(X)
    Q = far(X)
    np.testing.assert_allclose(model.predict(Q), exact.predict(Q), rtol=1e-5)
    np.testing.assert_allclose(model.output_range_, exact.output_range_, rtol=1e-3)


@pytest.mark.parametrize("selection", ["greedy", "uniform"])
def test_nystrom_does_not_care_how_rows_are_divided(selection):
    X, y = problem(300)
    whole = NystromNTKRegressor(n_landmarks=30, random_state=1, selection=selection)
    pieces = clone(whole)
    for part in (slice(0, 100), slice(100, 300)):
        whole.partial_fit(X[part], y[part])
    for start, stop in ((0, 100), (100, 101), (101, 180), (180, 300)):
        pieces.partial_fit(X[start:stop], y[start:stop])
        assert pieces.posterior_.count == stop  # solved in between, which changes nothing later
    assert np.array_equal(whole.predict(X), pieces.predict(X))
    assert whole.score(X, y) > 0.6
    other = clone(whole).set_params(random_state=2).fit(X, y)
    assert not np.array_equal(other.landmarks_, whole.landmarks_)
    assert np.array_equal(clone(other).fit(X, y).landmarks_, other.landmarks_)


def test_nystrom_more_landmarks_more_like_the_exact_fit():
    X, y = problem(400, 1)
    exact = NTKRegressor(noise=1e-3).fit(X, y).predict(X)
    models = [NystromNTKRegressor(n_landmarks=m, random_state=0).fit(X, y) for m in (10, 40, 160)]
    errors = [np.abs(m.predict(X) - exact).mean() for m in models]
    assert errors[0] > 4 * errors[1] > 16 * errors[2], errors


def test_nystrom_fit_forgets_and_partial_fit_remembers():
    X, y = problem(100)
    model = NystromNTKRegressor(n_landmarks=20, random_state=0).fit(X[:50], y[:50])
    first = model.predict(X)
    model.partial_fit(X[50:], y[50:])
    assert model.posterior_.count == 100 and not np.allclose(model.predict(X), first)
    assert np.array_equal(model.fit(X[:50], y[:50]).predict(X), first)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :2], y)


def test_nystrom_refusals():
    X, y = problem()
    for wrong in ({"n_landmarks": 0}, {"precision": "half"}, {"selection": "best"}, {"noise": -1.0}):
        with as_users_run_it(), pytest.raises(InvalidValueError):
            NystromNTKRegressor(**wrong).fit(X, y).predict(X)
    half = NystromNTKRegressor(precision="float32", noise=0.01, random_state=0).fit(X, y).predict(X)
    np.testing.assert_allclose(
        half, NystromNTKRegressor(noise=0.01, random_state=0).fit(X, y).predict(X), rtol=1e-2
    )


# ------------------------------------------------------------------ absent


def test_without_scikit_learn_the_message_says_what_to_install():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import farfield as ff\nfrom farfield.errors import MissingExtraError\n"
        "for name in ('NTKRegressor', 'NNGPRegressor', 'NystromNTKRegressor'):\n"
        "    try:\n        getattr(ff, name)\n        sys.exit('nothing raised')\n"
        "    except MissingExtraError as error:\n        assert 'farfield[sklearn]' in str(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
