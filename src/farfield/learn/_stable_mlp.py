"""Networks that stay bounded, as estimators: what regressor and classifier share."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from farfield.certify import Certificate, UnboundedError, certify
from farfield.errors import InvalidValueError
from farfield.growth import Horizon, analyse, horizon
from farfield.learn._far_field import FarFieldReport, pairs
from farfield.learn._members import Ensemble, evaluate, range_head
from farfield.learn._scaling import Array, Scaling
from farfield.learn._sklearn import (
    BaseEstimator,
    check_is_fitted,
    check_random_state,
    check_sample_weight,
    validate_data,
)
from farfield.learn._trainer import train
from farfield.learn._training import Training
from farfield.nn import MLP

__all__ = ["StableMLP"]

_STEPS, _LEAST_EPOCHS, _MOST_EPOCHS = 2000, 60, 200
"""What ``max_epochs="auto"`` means: epochs for about so many steps, within these limits."""
_LEAST_BATCH, _MOST_BATCH, _BATCHES = 64, 256, 16
"""What ``batch_size="auto"`` means: so many batches an epoch, of a size within these limits."""
_VALIDATED = 1000
"""Rows from which ``early_stopping="auto"`` holds some of them out."""
_DOUBLE = 200
"""Rows up to which training is in float64: cheap, and weights then say what repeated rows say to the last digits."""
_ROUNDING = 1e-9
"""By how much of its length a proved interval is widened: certificates speak of real arithmetic, and predictions are
evaluated in float64."""
_RADII = (1e0, 1e1, 1e2, 1e4, 1e8)
_DIRECTIONS = 64


class StableMLP(BaseEstimator):  # type: ignore[misc]
    """Settings, training, and what is known of the fitted networks far away."""

    def __init__(
        self,
        hidden_layer_sizes: Any = (128, 128),
        activation: Any = "relu",
        norm: Any = "layer",
        placement: Any = "first",
        n_members: int = 5,
        certified_range: Any = None,
        max_epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] | None = "auto",
        learning_rate: float = 5e-3,
        schedule: Literal["constant", "cosine"] = "cosine",
        weight_decay: float = 1e-2,
        early_stopping: bool | Literal["auto"] = "auto",
        validation_fraction: float = 0.1,
        patience: int = 20,
        standardize: bool = True,
        time_budget: float = 10.0,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.norm = norm
        self.placement = placement
        self.n_members = n_members
        self.certified_range = certified_range
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.standardize = standardize
        self.time_budget = time_budget
        self.random_state = random_state
        self.verbose = verbose

    # -------------------------------------------------------------- training

    def _train(
        self,
        X: Array,
        targets: Array,
        outputs: int,
        weights: Array | None,
        loss: Literal["mse", "cross_entropy"],
    ) -> None:
        """Fit the members to standardised inputs and targets as the network sees them."""
        for name in ("_certificates", "far_field_report_", "horizon_"):
            self.__dict__.pop(name, None)  # of an earlier fit
        if self.n_members < 1:
            raise InvalidValueError(f"An ensemble has at least one member, got n_members={self.n_members}.")
        count = len(X)
        draws = check_random_state(self.random_state)
        seeds = draws.randint(0, 2**31 - 1, size=self.n_members)
        dtype = torch.float64 if count <= _DOUBLE else torch.float32
        models = [self._member(X.shape[1], outputs, int(seed), dtype) for seed in seeds]
        rows, held = self._rows(count, seeds)
        training = Training(
            epochs=self._epochs(rows.shape[-1]),
            batch_size=self._batch(rows.shape[-1]),
            optimizer="adamw" if self.weight_decay else "adam",
            lr=self.learning_rate,
            schedule=self.schedule,
            weight_decay=self.weight_decay,
            loss=loss,
            patience=None if held is None else self.patience,
        )
        last = rows.shape[-1] % (training.batch_size or count)
        if self.norm == "batch" and (rows.shape[-1] == 1 or last == 1):
            raise InvalidValueError(
                f"A BatchNorm needs two rows in every batch: {rows.shape[-1]} rows in batches of "
                f"{training.batch_size} leave one alone. Set another batch_size, or norm='layer'."
            )
        y = torch.from_numpy(targets)
        done = train(
            models,
            torch.from_numpy(X).to(dtype),
            y.to(dtype) if y.is_floating_point() else y,
            training=training,
            seeds=[int(seed) for seed in seeds],
            rows=rows,
            validation_rows=held,
            weights=None if weights is None else torch.from_numpy(weights).to(dtype),
            progress=_line if self.verbose else None,
        )
        kept = [k for k in range(self.n_members) if k not in done.diverged]
        if not kept:
            raise InvalidValueError(
                "Training diverged: the loss of every member stopped being finite. Lower learning_rate "
                f"({self.learning_rate}), or keep standardize=True."
            )
        if len(kept) < self.n_members:
            warnings.warn(
                f"{self.n_members - len(kept)} of {self.n_members} members diverged and were left out; a lower "
                f"learning_rate than {self.learning_rate} avoids it.",
                RuntimeWarning,
                stacklevel=3,
            )
        self.members_ = tuple(done.models[k].double() for k in kept)
        limits = self._limits(outputs)
        if limits is not None:  # trained in float32 the head has rounded limits
            self.members_ = tuple(
                nn.Sequential(next(m.children()), range_head(*limits)).eval() for m in self.members_
            )
        self.losses_ = done.losses[:, kept].numpy()
        self.validation_losses_ = (
            None if done.validation_losses is None else done.validation_losses[:, kept].numpy()
        )
        self.n_iter_ = max(done.epochs[k] for k in kept)

    def _member(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> nn.Module:
        sizes = tuple(int(width) for width in np.atleast_1d(self.hidden_layer_sizes))
        net = MLP(
            inputs,
            outputs,
            width=sizes,
            activation=self.activation,
            norm=self.norm,
            placement=self.placement,
            bias_var=0.01,
            generator=torch.Generator().manual_seed(seed),
            dtype=dtype,
        ).to(dtype)  # a norm or an activation of one's own has its own
        limits = self._limits(outputs)
        return net if limits is None else nn.Sequential(net, range_head(*(v.to(dtype) for v in limits)))

    def _limits(self, outputs: int) -> tuple[Tensor, Tensor] | None:
        """The certified range of every output in the network's units."""
        raise NotImplementedError

    def _epochs(self, count: int) -> int:
        if self.max_epochs != "auto":
            return self.max_epochs
        steps = -(-count // (self._batch(count) or count))
        return min(max(_STEPS // steps, _LEAST_EPOCHS), _MOST_EPOCHS)

    def _batch(self, count: int) -> int | None:
        if self.batch_size != "auto":
            return self.batch_size
        size = min(max(count // _BATCHES, _LEAST_BATCH), _MOST_BATCH)
        while self.norm == "batch" and count % size == 1 and size < count:
            size += 1  # one row has no variance
        return size

    def _rows(self, count: int, seeds: Array) -> tuple[Tensor, Tensor | None]:
        """Numbers of the rows each member trains on, and of those it is watched on: every member its own."""
        stopping = count >= _VALIDATED if self.early_stopping == "auto" else self.early_stopping
        held = round(self.validation_fraction * count) if stopping else 0
        if not stopping:
            return torch.arange(count), None
        if not 0 < held < count:
            raise InvalidValueError(
                f"Early stopping holds some rows out and keeps some: {self.validation_fraction} of {count} rows are "
                f"{held}. Set another validation_fraction, or early_stopping=False."
            )
        order = np.stack([np.random.default_rng([int(seed), 2**32]).permutation(count) for seed in seeds])
        return torch.from_numpy(order[:, held:].copy()), torch.from_numpy(order[:, :held].copy())

    # -------------------------------------------------------------- evaluation

    def _network_inputs(self, X: Any) -> Tensor:
        check_is_fitted(self, "members_")
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return torch.from_numpy(
            (self.input_scaling_.apply_far if self._is_bounded() else self.input_scaling_.apply)(X)
        )

    def _is_bounded(self) -> bool:
        """Whether far inputs are brought nearer: in a chain a norm anywhere, or a range, cuts every path."""
        # Beyond 1e50 nothing changes then, and squares would overflow. A norm of one's own may be a BatchNorm: for
        # that the step back is not needed, and does little harm.
        spec = next(m for m in self.members_[0].modules() if isinstance(m, MLP)).spec
        return self._limits(1) is not None or (bool(spec.norm_layers) and spec.norm != "batch")

    @torch.no_grad()
    def _outputs(self, inputs: Tensor) -> Tensor:
        """What every member says, shape (members, n, outputs), in the network's units."""
        found = torch.cat([self._at(piece) for piece in inputs.split(65_536)], 1)
        # An activation that grows fast (exp) overflows before a norm or range bounds it. The answer is then that of a
        # point nearer on the same ray, and bounded as any other.
        near = inputs
        while self._is_bounded() and bool(near[wrong := ~found.isfinite().all(2).all(0)].any()):
            near = torch.where(wrong[:, None], near / 4, near)
            found[:, wrong] = self._at(near[wrong])
        limits = self._limits(found.shape[2])
        return found if limits is None else found.clamp(*limits)

    def _at(self, inputs: Tensor) -> Tensor:
        return torch.stack([evaluate(member, inputs) for member in self.members_])

    def _weighted(self, X: Array, y: Array, sample_weight: Any) -> tuple[Array, Array, Array | None]:
        """Rows whose weight is not 0, with their weights as shares of the largest: only ratios matter."""
        if sample_weight is None:
            return X, y, None
        weights = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        weights = weights / weights.max()
        kept = weights > 0
        return X[kept], y[kept], weights[kept]

    # -------------------------------------------------------------- far away

    @property
    def module_(self) -> nn.Module:
        """The fitted predictor as one torch module in the units of the data, float64: to audit, certify or export.

        It computes what ``predict`` does (for a classifier: the mean of the members' logits), without the care that
        ``predict`` takes far out: of inputs beyond 1e50, and of torch's LayerNorm where large entries are all but
        equal. ``output_range_`` is about ``predict``.
        """
        check_is_fitted(self, "members_")
        return Ensemble(self.members_, self.input_scaling_, self._output_scaling()).eval()

    def _output_scaling(self) -> Scaling | None:
        raise NotImplementedError

    def certificates(self, time_budget: float | None = None) -> tuple[Certificate, ...]:
        """One for every member, in the network's units: standardised inputs and outputs.

        ``time_budget``: seconds for all together, those of the estimator by default; more time, tighter bounds. The
        tightest so far are kept for ``output_range_``.

        Raises
        ------
        UnboundedError
            If a member is not bounded: no norm cuts every path.
        """
        check_is_fitted(self, "members_")
        known: tuple[Certificate, ...] | None = self.__dict__.get("_certificates")
        if known is None or time_budget is not None:
            each = (self.time_budget if time_budget is None else time_budget) / len(self.members_)
            example = torch.zeros(1, self.n_features_in_, dtype=torch.float64)
            earlier = known or (None,) * len(self.members_)
            known = tuple(
                certify(member, (example,), time_budget=each, resume=before)
                for member, before in zip(self.members_, earlier, strict=True)
            )
            self._certificates = known
            self.__dict__.pop("far_field_report_", None)
        return known

    def _network_bounds(self) -> Array:
        """For every member and output [lower, upper] in the network's units, shape (members, outputs, 2)."""
        try:
            found = self.certificates()
        except UnboundedError:
            outputs = self._outputs(torch.zeros(1, self.n_features_in_, dtype=torch.float64)).shape[2]
            return np.broadcast_to([-np.inf, np.inf], (len(self.members_), outputs, 2)).copy()
        bounds = np.stack(
            [torch.stack([c.lower.reshape(-1), c.upper.reshape(-1)], -1).double().numpy() for c in found]
        )
        slack = _ROUNDING * (bounds[..., 1:] - bounds[..., :1])
        return np.concatenate([bounds[..., :1] - slack, bounds[..., 1:] + slack], -1)

    def horizon(self, directions: Any) -> Horizon:
        """Lim f(λu) as λ → ∞, or its slope, for directions u, shape (m, features), in the units of the data."""
        check_is_fitted(self, "members_")
        given = np.asarray(directions, dtype=np.float64)
        if given.ndim != 2 or given.shape[1] != self.n_features_in_:
            raise InvalidValueError(
                f"Directions have shape (m, {self.n_features_in_}), one row each; got {given.shape}."
            )
        return horizon(self.module_, torch.from_numpy(given))

    @cached_property
    def horizon_(self) -> Horizon:
        """The horizon along every feature: rows 0, 1, 2, 3, … are +feature 0, −feature 0, +feature 1, …."""
        check_is_fitted(self, "members_")
        axes = np.eye(self.n_features_in_)
        return self.horizon(np.stack([axes, -axes], 1).reshape(-1, self.n_features_in_))

    @cached_property
    def far_field_report_(self) -> FarFieldReport:
        """Verdict, bound, and what was seen along 64 random directions out to 1e8 standard deviations."""
        check_is_fitted(self, "members_")
        u = np.random.default_rng(0).normal(size=(_DIRECTIONS, self.n_features_in_))
        u = u / np.linalg.norm(u, axis=1, keepdims=True)
        seen = []
        for radius in _RADII:
            values = self._far_values(self.input_scaling_.offset + radius * u * self.input_scaling_.scale)
            seen.append(pairs(np.stack([values.min(0), values.max(0)], -1)))
        limit = self.horizon(u * self.input_scaling_.scale)
        slopes = limit.slope.abs().nan_to_num(nan=torch.inf)
        slopes[limit.degenerate] = torch.nan
        return FarFieldReport(
            verdict=analyse(
                self.module_, (torch.zeros(1, self.n_features_in_, dtype=torch.float64),)
            ).status.name,
            output_range=pairs(self.output_range_),
            training_range=pairs(self._target_range),
            radii=_RADII,
            seen=tuple(seen),
            largest_slope=tuple(np.nanmax(slopes.reshape(_DIRECTIONS, -1).numpy(), 0).tolist()),
            directions=_DIRECTIONS,
        )

    def _far_values(self, X: Array) -> Array:
        raise NotImplementedError

    @property
    def output_range_(self) -> Array:
        """Filled in by regressor and classifier."""
        raise NotImplementedError


def _line(done: int, total: int) -> None:
    if done == total or done % max(1, total // 100) == 0:
        print(f"\rtraining: epoch {done} of {total}", end="\n" if done == total else "", flush=True)
