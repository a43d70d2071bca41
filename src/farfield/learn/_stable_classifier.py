"""A classifier whose confidence has a proved ceiling."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.learn._scaling import Array, Scaling
from farfield.learn._sklearn import (
    ClassifierMixin,
    check_classification_targets,
    check_is_fitted,
    validate_data,
)
from farfield.learn._stable_mlp import StableMLP

__all__ = ["StableMLPClassifier"]


class StableMLPClassifier(ClassifierMixin, StableMLP):  # type: ignore[misc]
    r"""A network with one LayerNorm on every path: however far an input lies, its confidence has a ceiling.

    A plain network's logits grow without limit, so far from the data some class gets probability 1. With a norm that
    cuts every path the logits are bounded, and with them every probability: ``output_range_`` has the interval for
    each class, proved for the fitted weights. A bound is not a claim of accuracy: an input
    far from all data still gets a class.

    Parameters are those of :class:`StableMLPRegressor`, with

    certified_range
        (low, high) of the logits by construction: no probability exceeds 1/(1 + (classes − 1)·e^(low − high)).

    Attributes
    ----------
    classes_
        Labels in the order of the columns of ``predict_proba``.
    output_range_
        Shape (n_classes, 2): the interval that each class's probability never leaves. (0, 1) without a norm.
    far_field_report_, horizon_, module_
        As for the regressor; ``module_`` and the horizon are of the mean logits.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = StableMLPClassifier(max_epochs=50, n_members=2, random_state=0, time_budget=1.0)
    >>> model = model.fit(x, np.where(x[:, 0] > 0, "right", "left"))
    >>> [str(label) for label in model.predict([[5.0, 0.0], [-5.0, 0.0]])]
    ['right', 'left']
    >>> bool((model.predict_proba(1e9 * x) <= model.output_range_[:, 1]).all())
    True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> StableMLPClassifier:
        """X of shape (n, features), y of shape (n,) with any labels."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        X, y, weights = self._weighted(X, y, sample_weight)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        self.input_scaling_ = Scaling.of(X, standardize=self.standardize, weights=weights)
        self._target_range = np.broadcast_to([0.0, 1.0], (len(self.classes_), 2))
        self._given = self._given_range()
        self._train(
            self.input_scaling_.apply(X),
            numbers.astype(np.int64),
            len(self.classes_),
            weights,
            "cross_entropy",
        )
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, the mean over the members: shape (n, classes)."""
        probabilities = torch.softmax(self._outputs(self._network_inputs(X)), -1).mean(0)
        return (probabilities / probabilities.sum(1, keepdim=True)).numpy()

    def predict(self, X: Any) -> Array:
        """The most probable class."""
        check_is_fitted(self, "members_")
        labels: Array = self.classes_[self.predict_proba(X).argmax(1)]
        return labels

    @property
    def output_range_(self) -> Array:
        """For each class the interval that its probability never leaves, for any input: shape (classes, 2)."""
        check_is_fitted(self, "members_")
        if self._given is None:
            logits = self._network_bounds()
        else:
            logits = np.broadcast_to(self._given, (1, len(self.classes_), 2))
        low, high = np.stack([_softmax_bounds(each) for each in logits]).mean(0).T
        # For the rounding of softmax and mean.
        return np.stack([np.maximum(low - 1e-12, 0.0), np.minimum(high + 1e-12, 1.0)], -1)

    def _given_range(self) -> Array | None:
        if self.certified_range is None:
            return None
        given = np.asarray(self.certified_range, dtype=np.float64)
        if given.shape != (2,) or not np.isfinite(given).all() or not given[0] < given[1]:
            raise InvalidValueError(
                "certified_range is (low, high) of the logits, finite, low < high; "
                f"got {self.certified_range!r}. (−5, 5) leaves probabilities up to 0.99995 for two classes."
            )
        return given

    def _limits(self, outputs: int) -> tuple[Tensor, Tensor] | None:
        if self._given is None:
            return None
        low, high = (torch.full((outputs,), float(v), dtype=torch.float64) for v in self._given)
        return low, high

    def _output_scaling(self) -> Scaling | None:
        return None

    def _far_values(self, X: Array) -> Array:
        return self.predict_proba(X)


def _softmax_bounds(logits: Array) -> Array:
    """[least, greatest] probability of each class given [low, high] of each logit, shapes (classes, 2)."""
    low, high = logits[:, 0], logits[:, 1]
    found = np.empty_like(logits)
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(len(logits)):
            others = np.arange(len(logits)) != k
            # Where no bound is known e^(∞) = ∞ and e^(−∞) = 0 give 0 and 1.
            found[k, 0] = 1.0 / (1.0 + np.exp(high[others] - low[k]).sum())
            found[k, 1] = 1.0 / (1.0 + np.exp(low[others] - high[k]).sum())
    return found
