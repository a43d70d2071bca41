"""Networks that stay bounded, as estimators: what regressor and classifier share."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from farfield._budget import Budget
from farfield.errors import InvalidValueError
from farfield.learn._far_away import FarAway
from farfield.learn._members import KNEE, evaluate, range_head
from farfield.learn._protected import FarFieldChoice, outer_rows, protected
from farfield.learn._scaling import Array
from farfield.learn._sklearn import (
    Interval,
    StrOptions,
    check_is_fitted,
    check_random_state,
    check_sample_weight,
    validate_data,
)
from farfield.learn._trainer import train
from farfield.learn._training import Training, TrainingResult
from farfield.nn import MLP

__all__ = ["StableMLP"]

_STEPS, _LEAST_EPOCHS, _MOST_EPOCHS = 2000, 40, 120
"""What ``max_epochs="auto"`` means: epochs for about so many steps, within these limits."""
_LEAST_BATCH, _MOST_BATCH, _BATCHES = 64, 256, 16
"""What ``batch_size="auto"`` means: so many equal batches an epoch, of about a size within these limits."""
_VALIDATED = 50
"""Rows from which ``early_stopping="auto"`` holds some of them out: of fewer, a tenth says nothing."""
_DOUBLE = 200
"""Rows up to which training is in float64: cheap, and weights then say what repeated rows say to the last digits."""
_PROXIES = 3
"""Members of each kind that ``far_field="auto"`` trains without the outer rows."""

Loss = Literal["mse", "cross_entropy"]


@dataclass(frozen=True)
class _Task:
    """Rows as a network sees them: inputs (n, features), targets, weights or None, and the loss."""

    inputs: Array
    targets: Array
    outputs: int
    weights: Array | None
    loss: Loss

    def take(self, chosen: Array) -> _Task:
        """Some of the rows."""
        weights = None if self.weights is None else self.weights[chosen]
        return _Task(self.inputs[chosen], self.targets[chosen], self.outputs, weights, self.loss)


@dataclass(eq=False, repr=False)
class StableMLP(FarAway):
    """Settings, training and evaluation."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "far_field": [StrOptions({"norm", "cap", "auto"})],
        "n_members": [Interval(Integral, 1, None, closed="left")],
        "output_range": [StrOptions({"auto"}), "array-like", None],
        "certified_range": ["array-like", None],
        "bias_var": [Interval(Real, 0, None, closed="left")],
        "max_epochs": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left"), None],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "schedule": [StrOptions({"constant", "cosine"})],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "early_stopping": [StrOptions({"auto"}), "boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "patience": [Interval(Integral, 1, None, closed="left")],
        "standardize": ["boolean"],
        "time_budget": [Interval(Real, 0, None, closed="left"), Budget, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }  # activation, norm and placement: farfield.nn.MLP says what they may be

    hidden_layer_sizes: Any = (128, 128)
    activation: Any = "relu"
    norm: Any = "layer"
    placement: Any = "first"
    far_field: Literal["norm", "cap", "auto"] = "norm"
    n_members: int = 5
    output_range: Any = "auto"
    certified_range: Any = None
    bias_var: float = 0.1
    max_epochs: int | Literal["auto"] = "auto"
    batch_size: int | Literal["auto"] | None = "auto"
    learning_rate: float = 5e-3
    schedule: Literal["constant", "cosine"] = "cosine"
    weight_decay: float = 1e-2
    early_stopping: bool | Literal["auto"] = "auto"
    validation_fraction: float = 0.1
    patience: int = 20
    standardize: bool = True
    time_budget: float | Budget | None = None
    random_state: Any = None
    verbose: bool = False

    # -------------------------------------------------------------- training

    def _checked_ranges(self) -> None:
        if self.certified_range is not None and not (
            isinstance(self.output_range, str) and self.output_range == "auto"
        ):
            raise InvalidValueError(
                f"output_range={self.output_range!r} and certified_range={self.certified_range!r} both set the "
                "range: give one of them."
            )

    def _train(
        self, X: Array, targets: Array, outputs: int, weights: Array | None, loss: Loss
    ) -> Tensor | None:
        """Fit the members to standardized inputs and targets; the rows that each of those kept held out."""
        self._forget()
        task = _Task(X, targets, outputs, weights, loss)
        draws = check_random_state(self.random_state)
        seeds = draws.randint(0, 2**31 - 1, size=self.n_members)
        self._choice = self._choose(task, seeds) if self.far_field == "auto" else None
        self._kind = self.far_field if self._choice is None else self._choice.chosen
        done, held = self._train_members(task, seeds, self._kind, verbose=bool(self.verbose))
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
        self.members_ = tuple(self._finished(done.models[k], task, self._kind) for k in kept)
        self.losses_ = done.losses[:, kept].numpy()
        self.validation_losses_ = (
            None if done.validation_losses is None else done.validation_losses[:, kept].numpy()
        )
        self.n_iter_ = max(done.epochs[k] for k in kept)
        spec = next(m for m in done.models[0].modules() if isinstance(m, MLP)).spec
        # In a chain a norm anywhere, a cap or a range cuts every path. A norm of one's own may be a BatchNorm: what
        # is done where this is True is not needed for that, and does little harm.
        self._bounded = (
            self._limits(outputs) is not None
            or self._kind == "cap"
            or (bool(spec.norm_layers) and spec.norm != "batch")
        )
        return None if held is None else held[kept]

    def _train_members(
        self, task: _Task, seeds: Array, kind: str, *, verbose: bool
    ) -> tuple[TrainingResult, Tensor | None]:
        count = len(task.inputs)
        dtype = torch.float64 if count <= _DOUBLE else torch.float32
        norm = None if kind == "cap" else self.norm
        models = [self._member(task, int(seed), norm, dtype) for seed in seeds]
        rows, held = self._rows(count, seeds)
        training = Training(
            epochs=self._epochs(rows.shape[-1], norm),
            batch_size=self._batch(rows.shape[-1], norm),
            optimizer="adamw" if self.weight_decay else "adam",
            lr=float(self.learning_rate),
            schedule=self.schedule,
            weight_decay=float(self.weight_decay),
            loss=task.loss,
            patience=None if held is None else int(self.patience),
        )
        last = rows.shape[-1] % (training.batch_size or count)
        if norm == "batch" and (rows.shape[-1] == 1 or last == 1):
            raise InvalidValueError(
                f"A BatchNorm needs two rows in every batch: {rows.shape[-1]} rows in batches of "
                f"{training.batch_size} leave one alone. Set another batch_size, or norm='layer'."
            )
        y = torch.from_numpy(task.targets)
        done = train(
            models,
            torch.from_numpy(task.inputs).to(dtype),
            y.to(dtype) if y.is_floating_point() else y,
            training=training,
            seeds=[int(seed) for seed in seeds],
            rows=rows,
            validation_rows=held,
            stop_together=True,
            weights=None if task.weights is None else torch.from_numpy(task.weights).to(dtype),
            on_epoch=_printed(training.epochs) if verbose else None,
        )
        return done, held

    def _member(self, task: _Task, seed: int, norm: Any, dtype: torch.dtype) -> nn.Module:
        sizes = tuple(int(width) for width in np.atleast_1d(self.hidden_layer_sizes))
        net = MLP(
            task.inputs.shape[1],
            task.outputs,
            width=sizes,
            activation=self.activation,
            norm=norm,
            placement=self.placement,
            bias_var=float(self.bias_var),
            generator=torch.Generator().manual_seed(seed),
            dtype=dtype,
        ).to(dtype)  # a norm or an activation of one's own has its own
        limits = self._limits(task.outputs)
        if limits is None or _needs_no_head(task, *limits):
            return net
        return nn.Sequential(net, range_head(*(v.to(dtype) for v in limits)))

    def _finished(self, model: nn.Module, task: _Task, kind: str) -> nn.Module:
        """A trained member in float64, with its protections and exact limits of its range."""
        limits = self._limits(task.outputs)
        net = (model if isinstance(model, MLP) else next(model.children())).double()
        if kind == "cap":
            net = protected(net, torch.from_numpy(task.inputs))
        if limits is None:
            return net.eval()
        return nn.Sequential(
            net, range_head(*limits)
        ).eval()  # trained in float32 the head has rounded limits

    def _choose(self, task: _Task, seeds: Array) -> FarFieldChoice:
        """Train both kinds without the outermost tenth of the rows, and compare their errors there."""
        outer = outer_rows(task.inputs)
        if outer is None:
            return FarFieldChoice("norm", {}, 0)
        losses = {}
        for kind in ("norm", "cap"):
            inner = task.take(~outer)
            done, _ = self._train_members(inner, seeds[:_PROXIES], kind, verbose=False)
            members = [
                self._finished(model, inner, kind)
                for k, model in enumerate(done.models)
                if k not in done.diverged
            ]
            losses[kind] = self._row_losses(members, task.take(outer)) if members else np.full(1, np.inf)
        weights = None if task.weights is None else task.weights[outer]
        return FarFieldChoice.between(losses, weights)

    @torch.no_grad()
    def _row_losses(self, members: list[nn.Module], task: _Task) -> Array:
        """The loss of the ensemble at every row, in the network's units."""
        each = torch.stack([evaluate(member, torch.from_numpy(task.inputs)) for member in members])
        targets = torch.from_numpy(task.targets)
        if task.loss == "mse":
            found: Array = (each.mean(0) - targets).square().mean(1).numpy()
        else:
            found = (
                -torch.softmax(each, -1)
                .mean(0)
                .gather(1, targets[:, None])[:, 0]
                .clamp_min(1e-300)
                .log()
                .numpy()
            )
        return found

    def _limits(self, outputs: int) -> tuple[Tensor, Tensor] | None:
        """The range of every output by construction, in the network's units."""
        raise NotImplementedError

    def _epochs(self, count: int, norm: Any) -> int:
        if self.max_epochs != "auto":
            return int(self.max_epochs)
        steps = -(-count // (self._batch(count, norm) or count))
        return min(max(_STEPS // steps, _LEAST_EPOCHS), _MOST_EPOCHS)

    def _batch(self, count: int, norm: Any) -> int | None:
        if self.batch_size != "auto":
            return None if self.batch_size is None else int(self.batch_size)
        size = min(max(count // _BATCHES, _LEAST_BATCH), _MOST_BATCH)
        batches = max(
            round(count / size), 1
        )  # all of a size: a few rows left over cost a step, and say little
        size = -(-count // batches)
        while norm == "batch" and count % size == 1 and size < count:
            size += 1  # one row has no variance
        return size

    def _rows(self, count: int, seeds: Array) -> tuple[Tensor, Tensor | None]:
        """Numbers of the rows each member trains on, and of those it is watched on.

        Members hold out rows in a ring: each shares half of its own with the next one. Every row that is held out is
        then new to two members, whose difference says what new rows would show. (Members that have seen a target
        agree on it, and the one that has not differs from them by its own error.)
        """
        stopping = count >= _VALIDATED if self.early_stopping == "auto" else self.early_stopping
        held = round(self.validation_fraction * count) if stopping else 0
        if not stopping:
            return torch.arange(count), None
        if not 0 < held < count:
            raise InvalidValueError(
                f"Early stopping holds some rows out and keeps some: {self.validation_fraction} of {count} rows are "
                f"{held}. Set another validation_fraction, or early_stopping=False."
            )
        order = np.random.default_rng([int(seeds[0]), 2**32]).permutation(count)
        ring = min(max(held, -(-len(seeds) * held // 2)), count)
        own = np.stack([order[(k * held // 2 + np.arange(held)) % ring] for k in range(len(seeds))])
        rest = np.stack([np.setdiff1d(order, each, assume_unique=True) for each in own])
        return torch.from_numpy(rest), torch.from_numpy(own)

    # -------------------------------------------------------------- evaluation

    def _network_inputs(self, X: Any) -> Tensor:
        """Checked and standardized."""
        check_is_fitted(self, "members_")
        return self._scaled_inputs(validate_data(self, X, dtype=np.float64, reset=False))

    def _scaled_inputs(self, X: Array) -> Tensor:
        # Beyond 1e50 a bounded network no longer changes, and squares would overflow.
        return torch.from_numpy(
            (self.input_scaling_.apply_far if self._bounded else self.input_scaling_.apply)(X)
        )

    @torch.no_grad()
    def _outputs(self, inputs: Tensor) -> Tensor:
        """What every member says, shape (members, n, outputs), in the network's units."""
        found = torch.cat([self._at(piece) for piece in inputs.split(65_536)], 1)
        # An activation that grows fast (exp) overflows before a norm or range bounds it. The answer is then that of a
        # point nearer on the same ray, and bounded as any other.
        near = inputs
        while self._bounded and bool(near[wrong := ~found.isfinite().all(2).all(0)].any()):
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


def _needs_no_head(task: _Task, low: Tensor, high: Tensor) -> bool:
    """Whether a head over this range is the identity at every target: networks are then trained without it."""
    if task.loss != "mse":
        return False
    targets, knee = torch.from_numpy(task.targets), KNEE * (high - low)
    return bool(((targets >= low + knee) & (targets <= high - knee)).all())


def _printed(epochs: int) -> Callable[[int, Tensor, Tensor | None], None]:
    """A line for every twentieth of the epochs: the mean loss of the members, and that on their held-out rows."""

    def line(done: int, losses: Tensor, held: Tensor | None) -> None:
        if done % max(1, epochs // 20) and done != epochs and done != 1:
            return
        words = f"epoch {done} of {epochs}: loss {float(losses.nanmean()):.4g}"
        if held is not None:
            words += f", on held-out rows {float(held.nanmean()):.4g} ({int(held.isfinite().sum())} networks)"
        print(words, flush=True)

    return line
