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
from farfield.learn._spread import Spread
from farfield.learn._stable_mlp import StableMLP

__all__ = ["StableMLPRegressor"]

_ROOM = 0.25
"""By how much of the targets' range ``output_range="auto"`` widens it on either side."""


class StableMLPRegressor(MultiOutputMixin, RegressorMixin, StableMLP):  # type: ignore[misc]
    r"""A network with one LayerNorm on every path: bounded for every input, and it knows the bound.

    An ensemble of multilayer perceptrons from different seeds, trained at once. With a norm that cuts every path from
    input to output the predictor is bounded on all of Rⁿ (P1). A head on the output keeps it in a useful range: by
    default that of the targets, widened by a quarter of it on either side. ``output_range_`` is the interval that no
    prediction leaves. A bound is not a claim of accuracy: far from the data a prediction is some value in that
    interval.

    Parameters
    ----------
    hidden_layer_sizes
        Widths of the hidden layers; one number for one layer.
    activation
        Name, callable or elementwise module.
    norm
        ``"layer"`` or ``"rms"`` (bounded), ``"batch"`` or None (not bounded without a range).
    placement
        ``"first"``, ``"second"``, ``"last"``, ``"every"`` or the hidden layers' indices: where the norms sit, before
        the activation.
    far_field
        ``"norm"``: networks with ``norm``. ``"cap"``: networks trained without a norm, then protected as
        :func:`farfield.repair` does it: features that leave the training rows go flat and return to their mean, and
        the first hidden layer's norm stays at the largest of the training rows. ``"auto"``: three networks of either
        kind are trained without the outermost tenth of the rows, and the kind with the smaller error there is taken;
        ``far_field_report_`` has the evidence. The fit takes about twice as long.
    n_members
        Seeds in the ensemble; the prediction is their mean.
    output_range
        ``"auto"``: the range of the targets, widened by a quarter of it on either side. (low, high), or one pair for
        every output: that range. By construction no prediction leaves it; the head is the identity on the middle
        80 % and bends smoothly beyond, so a range should hold the targets with room to spare. None: no head; the
        range that the fitted weights allow is then proved at the end of the fit by :func:`farfield.certify`, which
        takes a second or two for each member, and it is usually ten times as wide.
    certified_range
        (low, high): the same as ``output_range=(low, high)``, by the name it has in :class:`farfield.nn.MLP`.
    bias_var
        Variance of the biases before training; 0 for a network without biases.
    max_epochs
        ``"auto"``: about 2,000 steps, from 40 to 120 epochs.
    batch_size
        Rows in a step; None for all. ``"auto"``: a sixteenth of the rows, from 64 to 256.
    learning_rate, schedule, weight_decay
        Settings of AdamW, or of Adam if there is no decay. ``schedule`` is ``"cosine"`` (towards 0 at the end) or
        ``"constant"``.
    early_stopping
        Hold out ``validation_fraction`` of the rows, half of them those of the next member, and keep the epoch with
        the smallest mean loss of the members on their held-out rows, stopping after ``patience`` epochs without a
        smaller one. ``"auto"``: from 50 rows on.
    standardize
        Inputs and targets to mean 0 and variance 1 before training.
    time_budget
        What the proof may cost with ``output_range=None``: seconds for all members together, or a
        :class:`farfield.Budget`. None for 100 steps a member, which give the same bounds on any machine.
    random_state
        Seed, RandomState or None.
    verbose
        Whether to print the loss during training.

    Attributes
    ----------
    output_range_
        [low, high], or (n_outputs, 2): no input whatever has a prediction outside. (−∞, ∞) without a norm and range.
    far_field_report_
        Verdict, bound and what was seen far away; ``print`` it.
    spread_
        How ``return_std`` was calibrated: error variance = floor + factor·(variance over the members), in the
        network's units, fitted on held-out rows. None if no rows were held out.
    module_
        The predictor as one torch module in the units of the data.
    members_, losses_, validation_losses_, n_iter_
        Trained networks, losses by epoch and member, the last epoch kept.

    Notes
    -----
    Data of up to 200 rows are trained on in float64, larger ones in float32; predictions are float64 throughout.
    Weights are relative: only their ratios matter, and a row of weight 0 is as if absent. An output whose targets are
    all equal is predicted exactly.

    There is no ``warm_start`` and no ``partial_fit``: the learning rate has fallen to 0 when training ends, and
    range, scaling and held-out rows belong to the rows of one fit. :class:`NystromNTKRegressor` takes rows in pieces.

    References
    ----------
    [P1] §3–4.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = StableMLPRegressor(max_epochs=50, n_members=2, random_state=0)
    >>> model = model.fit(x, np.sin(x[:, 0]))
    >>> low, high = model.output_range_
    >>> bool(low <= model.predict(1e9 * x).min() and model.predict(1e9 * x).max() <= high)
    True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> StableMLPRegressor:
        """X of shape (n, features), y of shape (n,) or (n, outputs)."""
        self._validate_params()
        self._checked_ranges()
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, multi_output=True)
        y = np.asarray(y, dtype=np.float64)
        X, y, weights = self._weighted(X, y, sample_weight)
        self.input_scaling_ = Scaling.of(X, standardize=self.standardize, weights=weights)
        self.target_scaling_ = Scaling.of(y, standardize=self.standardize, weights=weights)
        self._single = y.ndim == 1
        least, greatest = (np.atleast_1d(v) for v in (y.min(0), y.max(0)))
        self._target_range = np.stack([least, greatest], -1)
        self._constant = least == greatest
        self._units = Scaling(  # an output that never varied is its value, whatever the network says
            np.where(self._constant, least, self.target_scaling_.offset),
            np.where(self._constant, 0.0, self.target_scaling_.scale),
        )
        self._range = self._built_range()
        targets = self.target_scaling_.apply(y).reshape(len(y), -1)
        inputs = self.input_scaling_.apply(X)
        held = self._train(inputs, targets, targets.shape[1], weights, "mse")
        self.spread_ = None if held is None else self._calibrated(inputs, targets, held.numpy(), weights)
        self._prove(by_construction=self._range is not None)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean over the members, shape (n,) or (n, outputs) as the targets had it.

        With ``return_std`` also the standard deviation of the error to expect: a + k·(variance over the members),
        with a and k from rows that members held out, so that mean ± 1.645·std holds about 90 % of new targets
        *from the same distribution*. Far from the data it promises nothing: members that agree on a wrong value have
        a small one. If no rows were held out (``spread_`` is None) it is the spread of the members alone, which is
        much smaller than the error.
        """
        each = self._outputs(self._network_inputs(X)).numpy()
        mean = self._mean(each)
        if not return_std:
            return mean
        if len(each) < 2 and self.spread_ is None:
            raise InvalidValueError(
                "A standard deviation comes from held-out rows or from members that disagree; there are no held-out "
                "rows and one member. Set early_stopping=True, or n_members to 2 or more."
            )
        disagreement = each.var(0, ddof=1) if len(each) > 1 else np.zeros(each.shape[1:])
        deviation = (
            np.sqrt(disagreement) if self.spread_ is None else self.spread_.deviation(disagreement)
        ) * self._units.scale
        return mean, deviation[:, 0] if self._single else deviation

    def _mean(self, each: Array) -> Array:
        # The mean before the units, as in the bound: with a large offset the mean of rounded numbers may be outside.
        mean = self._units.invert(each.mean(0))
        if self._range is not None:
            mean = np.clip(mean, *self._range.T)  # to the last bit: scaling there and back rounds
        return mean[:, 0] if self._single else mean

    def _calibrated(self, inputs: Array, targets: Array, held: Array, weights: Array | None) -> Spread:
        """Errors and disagreement at the rows that were held out, of the members alone to which a row was new."""
        rows = np.unique(held)
        own = np.stack([np.isin(rows, each) for each in held])
        if len(held) > 1 and bool((shared := own.sum(0) > 1).any()):
            rows, own = rows[shared], own[:, shared]
        each = self._outputs(torch.from_numpy(inputs[rows])).numpy()
        new, count = own[..., None], own.sum(0)[:, None]
        mean = (new * each).sum(0) / count
        disagreement = (new * (each - mean) ** 2).sum(0) / np.maximum(count - 1, 1)
        return Spread.of(mean - targets[rows], disagreement, None if weights is None else weights[rows])

    @property
    def output_range_(self) -> Array:
        """The interval that no prediction leaves, for any input: shape (2,), or (n_outputs, 2)."""
        check_is_fitted(self, "members_")
        bound = np.broadcast_to([-np.inf, np.inf], self._target_range.shape).copy()
        known = self._network_bounds()
        if known is not None:
            bound = self._units.offset[:, None] + self._units.scale[:, None] * known.mean(0)
        bound[self._constant] = self._target_range[self._constant]
        if self._range is not None:
            bound = np.stack(
                [np.maximum(bound[:, 0], self._range[:, 0]), np.minimum(bound[:, 1], self._range[:, 1])], -1
            )
        result: Array = bound[0] if self._single else bound
        return result

    def _built_range(self) -> Array | None:
        """(outputs, 2): the range that the head gives, in the units of the targets; None without one."""
        given = self.certified_range if self.certified_range is not None else self.output_range
        if given is None:
            return None
        if isinstance(given, str):
            least, greatest = self._target_range.T
            with np.errstate(over="ignore"):
                room = _ROOM * greatest - _ROOM * least
                largest = np.finfo(np.float64).max
                return np.stack(
                    [np.maximum(least - room, -largest), np.minimum(greatest + room, largest)], -1
                )
        name = "output_range" if self.certified_range is None else "certified_range"
        outputs = len(self._target_range)
        pair = np.asarray(given, dtype=np.float64)
        if pair.shape not in ((2,), (outputs, 2)) or not np.isfinite(pair).all():
            raise InvalidValueError(
                f"{name} is (low, high) with finite numbers, or one pair for each of the {outputs} outputs; "
                f"got {given!r}."
            )
        limits = np.broadcast_to(pair, (outputs, 2)).copy()
        if not (limits[:, 0] < limits[:, 1]).all():
            raise InvalidValueError(f"{name} is (low, high) with low < high, got {given!r}.")
        for k, ((low, high), (least, greatest)) in enumerate(zip(limits, self._target_range, strict=True)):
            if least < low or greatest > high:
                raise InvalidValueError(
                    f"{name} [{low:g}, {high:g}] does not hold the targets of output {k}, which go from "
                    f"{least:g} to {greatest:g}: the network could not fit them. Widen it, or drop those rows."
                )
        return limits

    def _limits(self, outputs: int) -> tuple[Tensor, Tensor] | None:
        if self._range is None:
            return None
        low, high = np.atleast_2d(self.target_scaling_.apply(self._range.T.reshape(2, -1)))
        flat = ~(low < high)  # an output that never varied
        return torch.from_numpy(np.where(flat, -1.0, low)), torch.from_numpy(np.where(flat, 1.0, high))

    def _output_scaling(self) -> Scaling | None:
        return self._units

    def _built_in(self) -> bool:
        return self._range is not None

    def _far_values(self, X: Array) -> Array:
        return self._mean(self._outputs(self._scaled_inputs(X)).numpy()).reshape(len(X), -1)

    _far_outputs = _far_values
