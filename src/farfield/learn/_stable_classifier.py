"""A classifier whose confidence has a proved ceiling, and that grows less sure far away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.learn._members import tempered
from farfield.learn._scaling import Array, Scaling
from farfield.learn._sklearn import (
    ClassifierMixin,
    StrOptions,
    check_classification_targets,
    check_is_fitted,
    compute_sample_weight,
    validate_data,
)
from farfield.learn._stable_mlp import StableMLP

__all__ = ["StableMLPClassifier"]


_LEVEL = 1e-9
"""Probabilities that are nearer to each other than this may be in either order by rounding."""


@dataclass(eq=False, repr=False)
class StableMLPClassifier(ClassifierMixin, StableMLP):  # type: ignore[misc]
    r"""A network with one LayerNorm on every path: its confidence has a ceiling, and falls far from the data.

    A plain network's logits grow without limit, so far from the data some class gets probability 1. Here the logits
    stay in a range by construction, so that no class's probability exceeds ``ceiling_``, which is below 1. Beyond the
    farthest training row (by the norm of the standardized input) logits are divided by how many times as far the
    input lies: far away the predicted class remains, and its probability falls to 1/classes. A bound is not a claim
    of accuracy: an input far from all data still gets a class.

    Parameters are those of :class:`StableMLPRegressor`, with

    output_range
        ``"auto"``: with n different training rows no probability exceeds (n + 1)/(n + classes), what n rows without
        an exception give by Laplace's rule of succession; logits are then within ±ln(n + 1)/2. (low, high): no
        class's probability leaves it; low < 1/classes < high. None: no range; the probabilities that the fitted
        weights allow are then proved by :func:`farfield.certify` at the end of the fit, logits are not divided far
        away, and the ceiling is often 1 to all digits.
    certified_range
        (low, high) of the logits by construction: no probability exceeds 1/(1 + (classes − 1)·e^(low − high)).
    class_weight
        None, ``"balanced"``, or a weight for every label: multiplies the weights of the samples.

    Attributes
    ----------
    classes_
        Labels in the order of the columns of ``predict_proba``.
    output_range_
        Shape (n_classes, 2): the interval that each class's probability never leaves. (0, 1) without norm and range.
    ceiling_
        The largest probability that any class can get, for any input.
    far_field_report_, module_
        As for the regressor; ``module_`` and :meth:`horizon` are of the mean logits.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = StableMLPClassifier(max_epochs=50, n_members=2, random_state=0)
    >>> model = model.fit(x, np.where(x[:, 0] > 0, "right", "left"))
    >>> [str(label) for label in model.predict([[5.0, 0.0], [-5.0, 0.0]])]
    ['right', 'left']
    >>> round(model.ceiling_, 3), model.predict_proba([[1e9, 0.0]]).round(3).tolist()
    (0.99, [[0.5, 0.5]])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **StableMLP._parameter_constraints,
        "class_weight": [StrOptions({"balanced"}), dict, None],
    }

    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> StableMLPClassifier:
        """X of shape (n, features), y of shape (n,) with any labels."""
        self._validate_params()
        self._checked_ranges()
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        if self.class_weight is not None:
            factors = compute_sample_weight(self.class_weight, y)
            sample_weight = factors if sample_weight is None else factors * np.asarray(sample_weight)
        X, y, weights = self._weighted(X, y, sample_weight)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        self.input_scaling_ = Scaling.of(X, standardize=self.standardize, weights=weights)
        self._target_range = np.broadcast_to([0.0, 1.0], (len(self.classes_), 2))
        self._logits = self._built_range(X)
        inputs = self.input_scaling_.apply(X)
        # In units of the largest entry: squares of large numbers overflow.
        unit = max(float(np.abs(inputs).max()), 1e-30)
        farthest = unit * float(np.linalg.norm(inputs / unit, axis=1).max())
        self._radius = None if self._logits is None else max(farthest, 1e-30)
        self._train(inputs, numbers.astype(np.int64), len(self.classes_), weights, "cross_entropy")
        self._prove(by_construction=self._built_in())
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, the mean over the members: shape (n, classes)."""
        return self._probabilities(self._network_inputs(X))

    def _probabilities(self, inputs: Tensor) -> Array:
        return self._tempered(self._outputs(inputs), inputs).numpy()

    def _tempered(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        probabilities = torch.softmax(tempered(outputs, inputs, self._radius), -1).mean(0)
        return probabilities / probabilities.sum(1, keepdim=True)

    def predict(self, X: Any) -> Array:
        """The most probable class; so far away that probabilities differ by rounding alone, the one they tend to."""
        check_is_fitted(self, "members_")
        inputs = self._network_inputs(X)
        outputs = self._outputs(inputs)
        probabilities = self._tempered(outputs, inputs)
        two = probabilities.topk(min(2, probabilities.shape[1]), 1).values
        # Divided by a large distance, the mean of the softmaxes orders the classes as the mean of the logits does.
        level = two[:, 0] - two[:, -1] < _LEVEL
        chosen = torch.where(level, outputs.mean(0).argmax(1), probabilities.argmax(1))
        labels: Array = self.classes_[chosen.numpy()]
        return labels

    @property
    def output_range_(self) -> Array:
        """For each class the interval that its probability never leaves, for any input: shape (classes, 2)."""
        check_is_fitted(self, "members_")
        known = self._network_bounds()
        logits = np.broadcast_to([-np.inf, np.inf], (1, len(self.classes_), 2)) if known is None else known
        if self._logits is not None:
            low, high = self._logits
            logits = np.stack([np.maximum(logits[..., 0], low), np.minimum(logits[..., 1], high)], -1)
        if self._radius is not None:  # logits times something in [0, 1]
            logits = np.stack([np.minimum(logits[..., 0], 0.0), np.maximum(logits[..., 1], 0.0)], -1)
        least, greatest = np.stack([_softmax_bounds(each) for each in logits]).mean(0).T
        # For the rounding of softmax and mean.
        return np.stack([np.maximum(least - 1e-12, 0.0), np.minimum(greatest + 1e-12, 1.0)], -1)

    @property
    def ceiling_(self) -> float:
        """The largest probability that any class can get, for any input."""
        return float(self.output_range_[:, 1].max())

    def _built_range(self, X: Array) -> tuple[float, float] | None:
        """(low, high) of the logits by construction; None without."""
        classes = len(self.classes_)
        if self.certified_range is not None:
            given = np.asarray(self.certified_range, dtype=np.float64)
            if given.shape != (2,) or not np.isfinite(given).all() or not given[0] < given[1]:
                raise InvalidValueError(
                    "certified_range is (low, high) of the logits, finite, low < high; "
                    f"got {self.certified_range!r}. (−5, 5) leaves probabilities up to 0.99995 for two classes."
                )
            return float(given[0]), float(given[1])
        if self.output_range is None or classes == 1:
            return None
        if isinstance(self.output_range, str):
            # Different ones: a row that is repeated is no more evidence, nor is one of a larger weight.
            width = np.log(len(np.unique(X, axis=0)) + 1.0)
        else:
            pair = np.asarray(self.output_range, dtype=np.float64)
            inside = pair.shape == (2,) and bool(0.0 <= pair[0] < 1.0 / classes < pair[1] <= 1.0)
            if not inside or (pair[0] == 0.0 and pair[1] == 1.0):
                raise InvalidValueError(
                    f"output_range is (low, high) of every class's probability, with low < 1/{classes} < high, not "
                    f"both 0 and 1; got {self.output_range!r}."
                )
            with np.errstate(divide="ignore"):
                width = min(
                    np.log((classes - 1) * pair[1]) - np.log(1.0 - pair[1]),
                    np.log(1.0 - pair[0]) - np.log((classes - 1) * pair[0]),
                )
        return -float(width) / 2, float(width) / 2

    def _limits(self, outputs: int) -> tuple[Tensor, Tensor] | None:
        if self._logits is None:
            return None
        low, high = (torch.full((outputs,), v, dtype=torch.float64) for v in self._logits)
        return low, high

    def _output_scaling(self) -> Scaling | None:
        return None

    def _confident_radius(self) -> float | None:
        return self._radius

    def _built_in(self) -> bool:
        return self._logits is not None or len(self.classes_) == 1

    def _class_names(self) -> tuple[str, ...]:
        return tuple(str(label) for label in self.classes_)

    def _far_values(self, X: Array) -> Array:
        return self._probabilities(self._scaled_inputs(X))

    def _far_outputs(self, X: Array) -> Array:
        return self._outputs(self._scaled_inputs(X)).mean(0).numpy()


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
