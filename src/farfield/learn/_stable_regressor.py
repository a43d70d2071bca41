"""A regressor whose predictions have a proved range."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from farfield.errors import InvalidValueError
from farfield.learn._scaling import Array, Scaling
from farfield.learn._sklearn import (
    MultiOutputMixin,
    RegressorMixin,
    check_is_fitted,
    validate_data,
)
from farfield.learn._stable_mlp import StableMLP

__all__ = ["StableMLPRegressor"]


class StableMLPRegressor(MultiOutputMixin, RegressorMixin, StableMLP):  # type: ignore[misc]
    r"""A network with one LayerNorm on every path: bounded for every input, and it knows the bound.

    An ensemble of multilayer perceptrons from different seeds, trained at once. With a norm that cuts every path from
    input to output the predictor is bounded on all of Rⁿ (P1), and ``output_range_`` is an interval, proved for the
    fitted weights, that no prediction leaves. A bound is not a claim of accuracy: far from the data a prediction is
    some value in that interval.

    Parameters
    ----------
    hidden_layer_sizes
        Widths of the hidden layers; one number for one layer.
    activation
        Name, callable or elementwise module.
    norm
        ``"layer"`` or ``"rms"`` (bounded), ``"batch"`` or None (not bounded).
    placement
        ``"first"``, ``"second"``, ``"last"``, ``"every"`` or the hidden layers' indices: where the norms sit, before
        the activation.
    n_members
        Seeds in the ensemble; the prediction is their mean.
    certified_range
        (low, high), or one pair for every output: by construction no prediction leaves it. It is the identity on the
        middle 80 % of the range and bends smoothly beyond, so it should hold the targets with room to spare. None for
        the range that the weights happen to give.
    max_epochs
        ``"auto"``: about 2,000 steps, from 60 to 200 epochs.
    batch_size
        Rows in a step; None for all. ``"auto"``: a sixteenth of the rows, from 64 to 256.
    learning_rate, schedule, weight_decay
        Settings of AdamW, or of Adam if there is no decay. ``schedule`` is ``"cosine"`` (towards 0 at the end) or
        ``"constant"``.
    early_stopping
        Hold out ``validation_fraction`` of the rows, others for every member, and keep each member's best epoch,
        stopping after ``patience`` epochs without one. ``"auto"``: from 1,000 rows on.
    standardize
        Inputs and targets to mean 0 and variance 1 before training.
    time_budget
        Seconds that the proof of ``output_range_`` may take when it is first read. The interval holds whenever the
        search ends; more time makes it tighter.
    random_state
        Seed, RandomState or None.
    verbose
        Whether to show the epochs.

    Attributes
    ----------
    output_range_
        [low, high], or (n_outputs, 2): no input whatever has a prediction outside. (−∞, ∞) without a norm.
    far_field_report_
        Verdict, bound and what was seen far away; ``print`` it.
    horizon_
        Limits along ± every feature; :meth:`horizon` for other directions.
    module_
        The predictor as one torch module in the units of the data.
    members_, losses_, validation_losses_, n_iter_
        Trained networks, losses by epoch and member, the last epoch kept.

    Notes
    -----
    Data of up to 200 rows are trained on in float64, larger ones in float32; predictions are float64 throughout.
    Weights are relative: only their ratios matter, and a row of weight 0 is as if absent.

    References
    ----------
    [P1] §3–4.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = StableMLPRegressor(max_epochs=50, n_members=2, random_state=0, time_budget=1.0)
    >>> model = model.fit(x, np.sin(x[:, 0]))
    >>> low, high = model.output_range_
    >>> bool(low <= model.predict(1e9 * x).min() and model.predict(1e9 * x).max() <= high)
    True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> StableMLPRegressor:
        """X of shape (n, features), y of shape (n,) or (n, outputs)."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, multi_output=True)
        y = np.asarray(y, dtype=np.float64)
        X, y, weights = self._weighted(X, y, sample_weight)
        self.input_scaling_ = Scaling.of(X, standardize=self.standardize, weights=weights)
        self.target_scaling_ = Scaling.of(y, standardize=self.standardize, weights=weights)
        self._single = y.ndim == 1
        self._target_range = np.stack([y.min(0), y.max(0)], -1).reshape(-1, 2)
        self._range = self._given_range(1 if self._single else y.shape[1])
        targets = self.target_scaling_.apply(y).reshape(len(y), -1)
        self._train(self.input_scaling_.apply(X), targets, targets.shape[1], weights, "mse")
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean over the members, shape (n,) or (n, outputs) as the targets had it.

        With ``return_std`` also the standard deviation over the members: how far seeds disagree, which is not the
        error.
        """
        each = self._outputs(self._network_inputs(X)).numpy()
        each = each[..., 0] if self._single else each
        # The mean before the units, as in the bound: with a large offset the mean of rounded numbers may be outside.
        mean = self._inside(self.target_scaling_.invert(each.mean(0)))
        if not return_std:
            return mean
        if len(each) < 2:
            raise InvalidValueError(
                f"Members disagree only if there are several, and {len(each)} was trained: set n_members to 2 "
                "or more."
            )
        return mean, self.target_scaling_.scale * each.std(0, ddof=1)

    @property
    def output_range_(self) -> Array:
        """The interval that no prediction leaves, for any input: shape (2,), or (n_outputs, 2)."""
        check_is_fitted(self, "members_")
        if self._range is not None:
            bound = self._range.copy()
        else:
            offset, scale = (
                v.reshape(-1, 1) for v in (self.target_scaling_.offset, self.target_scaling_.scale)
            )
            bound = offset + scale * self._network_bounds().mean(0)
        result: Array = bound[0] if self._single else bound
        return result

    def _inside(self, values: Array) -> Array:
        """Within the certified range to the last bit: scaling there and back rounds."""
        if self._range is None:
            return values
        low, high = (self._range[0] if self._single else self._range.T).reshape(2, -1)
        clipped = np.clip(values, low, high)
        return clipped.reshape(values.shape)

    def _given_range(self, outputs: int) -> Array | None:
        if self.certified_range is None:
            return None
        given = np.asarray(self.certified_range, dtype=np.float64)
        if given.shape not in ((2,), (outputs, 2)) or not np.isfinite(given).all():
            raise InvalidValueError(
                f"certified_range is (low, high) with finite numbers, or one pair for each of the {outputs} outputs; "
                f"got {self.certified_range!r}."
            )
        limits = np.broadcast_to(given, (outputs, 2)).copy()
        if not (limits[:, 0] < limits[:, 1]).all():
            raise InvalidValueError(
                f"certified_range is (low, high) with low < high, got {self.certified_range!r}."
            )
        for k, ((low, high), (least, greatest)) in enumerate(zip(limits, self._target_range, strict=True)):
            if least < low or greatest > high:
                raise InvalidValueError(
                    f"certified_range [{low:g}, {high:g}] does not hold the targets of output {k}, which go from "
                    f"{least:g} to {greatest:g}: the network could not fit them. Widen it, or drop those rows."
                )
        return limits

    def _limits(self, outputs: int) -> tuple[Tensor, Tensor] | None:
        if self._range is None:
            return None
        scaled = self.target_scaling_.apply(self._range.T if not self._single else self._range[0][:, None])
        low, high = torch.from_numpy(np.asarray(scaled).reshape(2, -1))
        return low, high

    def _output_scaling(self) -> Scaling | None:
        return self.target_scaling_

    def _far_values(self, X: Array) -> Array:
        return np.asarray(self.predict(X)).reshape(len(X), -1)
