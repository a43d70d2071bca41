"""Many networks trained at once."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from farfield._provenance import provenance
from farfield.engine import Checkpoint, Progress, fingerprint
from farfield.errors import InvalidValueError
from farfield.learn._by_hand import Piece, WrittenOut
from farfield.learn._pieces import cached, normalized, pieces, rows_in_pieces, take, take_weights
from farfield.learn._stack import Stack, settings, structure
from farfield.learn._training import (
    Training,
    TrainingResult,
    chosen_precision,
    learning_rate,
    optimizer,
    row_losses,
)

__all__ = ["predict_all", "train"]

_THREADED = 2**23
"""Numbers between two layers, in one step, from which on members go to threads of their own."""
_BUFFERS = 2**26
"""Numbers that the buffers of all these threads may hold."""


def train(
    models: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    *,
    training: Training | None = None,
    seeds: Sequence[int] | None = None,
    rows: Tensor | None = None,
    validation_rows: Tensor | None = None,
    weights: Tensor | None = None,
    stop_together: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
    progress: Progress | None = None,
    on_epoch: Callable[[int, Tensor, Tensor | None], None] | None = None,
) -> TrainingResult:
    r"""Train many networks at once, each as if it were alone.

    Networks of one structure are stacked (:class:`Stack`), every step does the products of all of them together, and
    one optimizer makes one step for all. Their losses are added, so no gradient mixes two networks: a member comes
    out as it would by itself, up to the order of sums. A step over many rows goes through them in pieces that fit
    the cache and adds up their gradients, which changes nothing but that order and bounds memory by the piece.

    Parameters
    ----------
    models
        Given with their initial parameters and not changed. A parameter with ``requires_grad=False`` stays.
    x, y
        Rows of inputs, (n, …), and targets, (n, outputs) or, for cross-entropy, (n,) of int64, on the models' device.
        The same for all models; ``rows`` says which of them each one sees.
    training
        Settings; ``Training()`` if None.
    seeds
        One for every model, for the order of mini-batches: epoch e of a model with seed s takes the permutation of
        ``numpy.random.default_rng([s, e])``. By default 0, 1, ….
    rows
        Numbers of the training rows, shape (m,) or (models, m); all by default.
    validation_rows
        The same for the rows that decide when to stop; needed with ``patience``.
    weights
        Of the n rows, non-negative; scaled to mean 1 over a model's training rows. Integers say what repeated rows
        would, with the whole batch.
    stop_together
        With ``patience``: judge all models by the mean of their validation losses, so that they stop, and go back, at
        one epoch. Where each has few validation rows, the mean over models that have others is less noisy.
    checkpoint
        A folder of its own, to which everything is saved now and then, and from which a run that was killed goes on:
        on the same machine with the same number of threads the result is the same to the last bit. It stays when
        training is done.
    checkpoint_seconds
        How often; at the end of an epoch.
    progress
        Called as ``progress(done, total)`` with epochs.
    on_epoch
        Called after every epoch with its number, counted from 1, the models' training losses and their losses on the
        validation rows (None without them): a line of :class:`TrainingResult` as it comes.

    Returns
    -------
    TrainingResult
        Trained copies and the losses of every epoch.

    Examples
    --------
    >>> from farfield.nn import MLP
    >>> x = torch.linspace(-1, 1, 50)[:, None]
    >>> draws = [torch.Generator().manual_seed(k) for k in range(3)]
    >>> nets = [MLP(1, 1, width=16, depth=1, bias_var=0.1, generator=g) for g in draws]
    >>> done = train(nets, x, x.square(), training=Training(epochs=200, lr=0.01))
    >>> bool((done.losses[-1] < 0.05 * done.losses[0]).all())
    True
    """
    training = training or Training()
    models = tuple(models)
    seeds = tuple(range(len(models))) if seeds is None else tuple(int(seed) for seed in seeds)
    _check(models, x, y, training, seeds, rows, validation_rows, weights)
    run = _Run(models, x, y, training, seeds, rows, validation_rows, weights, stop_together)
    store = None
    if checkpoint is not None:
        # By name: what is left out must not look like something else that is given.
        data = {"x": x, "y": y, "rows": rows, "validation_rows": validation_rows, "weights": weights}
        described = [(structure(m), _stable(m), dict(m.state_dict())) for m in models]
        # A state is of the program that wrote it: other versions may take other steps from there.
        versions = provenance({})["versions"]
        together = ("stop_together",) if stop_together else ()
        key = fingerprint("train", training, seeds, data, described, versions, *together)
        store = Checkpoint(checkpoint, key)
    with contextlib.nullcontext() if store is None else store.locked():
        if store is not None:
            run.restore(store.load("state"))
        saved = time.monotonic()
        if progress is not None:
            progress(run.epoch, training.epochs)
        while not run.done:
            run.advance()
            last = run.done
            if store is not None and (last or time.monotonic() - saved >= checkpoint_seconds):
                store.save("state", run.state())
                saved = time.monotonic()
            if progress is not None:
                progress(training.epochs if last else run.epoch, training.epochs)
            if on_epoch is not None:
                on_epoch(
                    run.epoch, run.losses[-1], run.validation_losses[-1] if run.validation_losses else None
                )
    return run.result()


def predict_all(models: Sequence[nn.Module], x: Tensor, *, rows: Tensor | None = None) -> Tensor:
    """Outputs of many networks, shape (models, n, …): those of one structure together, rows in pieces.

    ``rows``, shape (models, m), takes other rows of x for every model.
    """
    models = tuple(models)
    found: list[Tensor | None] = [None] * len(models)
    with torch.no_grad():
        for members in _grouped([(structure(model), settings(model)) for model in models]):
            stack = Stack([models[k] for k in members])
            stack.training = False
            own = None if rows is None else rows[list(members)]
            parts = [stack(inputs) for inputs, _ in pieces(stack, x, own, whole=False)]
            for k, values in zip(members, torch.cat(parts, 1), strict=True):
                found[k] = values
    return torch.stack([values for values in found if values is not None])


# ------------------------------------------------------------------ one run


@dataclass
class _Group:
    """Models of one structure and learning rate."""

    members: tuple[int, ...]
    stack: Stack
    best: dict[str, Tensor] = field(default_factory=dict)


class _Run:
    """The state of a training between two epochs, and the step to the next."""

    def __init__(
        self,
        models: tuple[nn.Module, ...],
        x: Tensor,
        y: Tensor,
        training: Training,
        seeds: tuple[int, ...],
        rows: Tensor | None,
        validation_rows: Tensor | None,
        weights: Tensor | None,
        stop_together: bool = False,
    ) -> None:
        count = len(models)
        self.stop_together = stop_together
        self.models, self.x, self.y, self.training, self.seeds = models, x, y, training, seeds
        self.rows = None if rows is None else rows.to(x.device).expand(count, -1)
        self.validation_rows = (
            None if validation_rows is None else validation_rows.to(x.device).expand(count, -1)
        )
        self.row_count = len(x) if rows is None else rows.shape[-1]
        self.weights = None if weights is None else normalized(weights.to(x.device), self.rows, count)
        rates = training.lr if isinstance(training.lr, tuple) else (training.lr,) * count
        keys = [(structure(model), settings(model), rate) for model, rate in zip(models, rates, strict=True)]
        self.groups = [_Group(members, Stack([models[k] for k in members])) for members in _grouped(keys)]
        self.rates = [rates[group.members[0]] for group in self.groups]
        self.optimizer = optimizer(
            training,
            [
                {"params": [p for p in group.stack.parameters.values() if p.requires_grad], "lr": rate}
                for group, rate in zip(self.groups, self.rates, strict=True)
            ],
        )
        self.loss = row_losses(training.loss)
        widest = max(group.stack.widest for group in self.groups)
        self.precision = chosen_precision(training.precision, x.device, widest)
        self._by_hand = x.ndim == 2 and x.device.type == "cpu" and self.precision == "float32"
        self.epoch = 0
        self.losses: list[Tensor] = []
        self.validation_losses: list[Tensor] = []
        self.best_loss = torch.full((count,), torch.inf, dtype=torch.float64)
        self.best_epoch = torch.zeros(count, dtype=torch.int64)
        self.stopped = torch.zeros(count, dtype=torch.bool)

    @cached_property
    def _with_ones(self) -> Tensor:
        return torch.cat([self.x, self.x.new_ones(len(self.x), 1)], 1)

    @property
    def done(self) -> bool:
        return self.epoch >= self.training.epochs or bool(self.stopped.all())

    def advance(self) -> None:
        """One epoch."""
        factor = learning_rate(self.training, self.epoch)
        for group_settings, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group_settings["lr"] = factor * rate
        total = torch.zeros(len(self.models), dtype=torch.float64)
        for batch, count in self._batches():
            self.optimizer.zero_grad(set_to_none=True)
            for group in self.groups:
                total[list(group.members)] += self._backward(group, batch, count)
            self.optimizer.step()
        mean = total / self.row_count
        mean[self.stopped] = torch.nan  # it goes on with the stack, and nothing of it is kept
        self.losses.append(mean)
        self.epoch += 1
        if self.validation_rows is not None:
            self._validate(self.validation_rows)

    def _backward(self, group: _Group, batch: Tensor | None, count: int) -> Tensor:
        """Add the gradients of a batch's loss; the sums of its rows' losses, one for every member."""
        members = list(group.members)
        group.stack.training = True
        own = None if batch is None else batch[members]
        if group.stack.chain is not None and self._by_hand:
            return self._backward_by_hand(group.stack, group.stack.chain, members, own, count)
        total = torch.zeros(len(members), dtype=torch.float64)
        for inputs, numbers in pieces(group.stack, self.x, own, whole=group.stack.needs_whole_batch):
            output = self._forward(group.stack, inputs)
            losses, gradient = self._row_loss(numbers, members, count, output.detach())
            output.backward(gradient)
            total += losses.sum(1).double().cpu()
        return total

    def _backward_by_hand(
        self, stack: Stack, chain: WrittenOut, members: list[int], rows: Tensor | None, count: int
    ) -> Tensor:
        """The same without autograd, a few members at a time."""
        chain.clear()
        step, together = cached(stack, count)
        x = self._with_ones if chain.wants_ones else self.x

        def own(at: slice) -> Iterator[Piece]:
            for inputs, numbers in rows_in_pieces(x, None if rows is None else rows[at], step):
                yield inputs, partial(self._row_loss, numbers, members[at], count)

        parts = [slice(at, min(at + together, stack.size)) for at in range(0, stack.size, together)]
        # A thread for each of several members is better than several for one of them, if the step is long, there are
        # enough members to keep all busy, and memory for the buffers of each.
        threads = torch.get_num_threads()
        buffers = threads * step * together * stack.widest * (len(chain.layers) + 2)
        large = stack.size * count * stack.widest >= _THREADED and len(parts) >= 2 * threads
        return chain.accumulate_all(parts, own, workers=threads if large and buffers <= _BUFFERS else 1)

    def _row_loss(
        self, numbers: Tensor | slice, members: list[int], count: int, output: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Losses of rows, (members, rows), and the gradient of their sum over ``count``."""
        losses, gradient = self.loss(output, take(self.y, numbers))
        if self.weights is not None:
            weights = take_weights(self.weights, members, numbers)
            losses = losses * weights
            gradient = gradient * weights.reshape(*weights.shape, *(1,) * (gradient.ndim - 2))
        return losses, (gradient / count).to(output.dtype)

    def _forward(self, stack: Stack, inputs: Tensor) -> Tensor:
        if self.precision == "float32":
            return stack(inputs)
        with torch.autocast(inputs.device.type, torch.bfloat16):
            output = stack(inputs)
        return output.to(inputs.dtype if inputs.is_floating_point() else torch.float32)

    def _batches(self) -> Iterator[tuple[Tensor | None, int]]:
        """Numbers of a step's rows, (models, rows of the step) or None for all, and how many."""
        size = self.training.batch_size
        if size is None or size >= self.row_count:
            yield self.rows, self.row_count
            return
        order = torch.from_numpy(
            np.stack([np.random.default_rng([s, self.epoch]).permutation(self.row_count) for s in self.seeds])
        )
        order = order.to(self.x.device)
        order = order if self.rows is None else self.rows.gather(1, order)
        for start in range(0, self.row_count, size):
            batch = order[:, start : start + size]
            yield batch, batch.shape[1]

    @torch.no_grad()
    def _validate(self, rows: Tensor) -> None:
        found = torch.full((len(self.models),), torch.nan, dtype=torch.float64)
        for group in self.groups:
            members = list(group.members)
            group.stack.training = False
            total = torch.zeros(len(members), dtype=torch.float64)
            scale = torch.zeros(len(members), dtype=torch.float64)
            for inputs, numbers in pieces(group.stack, self.x, rows[members], whole=False):
                each = self.loss(group.stack(inputs), take(self.y, numbers))[0].double()
                if self.weights is None:
                    weight = torch.ones_like(each)
                else:
                    weight = take_weights(self.weights, members, numbers).double()
                total += (weight * each).sum(1).cpu()
                scale += weight.sum(1).cpu()
            found[members] = total / scale
        found[self.stopped] = torch.nan
        judged = found.nanmean().expand_as(found) if self.stop_together else found
        better = judged < self.best_loss  # NaN is not
        self.best_loss[better], self.best_epoch[better] = judged[better], self.epoch
        self.validation_losses.append(found)
        if self.training.patience is None:
            return
        for group in self.groups:
            _keep(group, better[list(group.members)])
        self.stopped |= self.epoch - self.best_epoch >= self.training.patience

    def result(self) -> TrainingResult:
        """What the kept parameters make."""
        found: dict[int, nn.Module] = {}
        for group in self.groups:
            state = group.best if self.training.patience is not None and group.best else group.stack.state()
            made = group.stack.write(state, [self.models[k] for k in group.members])
            found.update(zip(group.members, made, strict=True))
        kept = (
            self.best_epoch
            if self.training.patience is not None
            else torch.full_like(self.best_epoch, self.epoch)
        )
        trained = torch.full_like(self.best_epoch, self.epoch)
        if self.training.patience is not None:
            trained[self.stopped] = self.best_epoch[self.stopped] + self.training.patience
        return TrainingResult(
            tuple(found[k] for k in range(len(self.models))),
            torch.stack(self.losses),
            torch.stack(self.validation_losses) if self.validation_losses else None,
            tuple(kept.tolist()),
            tuple(trained.tolist()),
            self.precision,
        )

    # -------------------------------------------------------------- between processes

    def state(self) -> dict[str, Any]:
        """Everything that changes, as tensors and numbers."""
        return {
            "epoch": self.epoch,
            "precision": self.precision,
            "losses": torch.stack(self.losses),
            "validation_losses": torch.stack(self.validation_losses) if self.validation_losses else None,
            "best_loss": self.best_loss,
            "best_epoch": self.best_epoch,
            "stopped": self.stopped,
            "stacks": [{k: v.detach() for k, v in group.stack.state().items()} for group in self.groups],
            "best": [group.best for group in self.groups],
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go back to a saved state, if there is one."""
        if state is None:
            return
        self.epoch, self.precision = (
            state["epoch"],
            state["precision"],
        )  # a trial may end otherwise another time
        self.losses = list(state["losses"])
        self.validation_losses = (
            [] if state["validation_losses"] is None else list(state["validation_losses"])
        )
        self.best_loss, self.best_epoch = state["best_loss"], state["best_epoch"]
        self.stopped = state["stopped"]
        with torch.no_grad():
            for group, values, best in zip(self.groups, state["stacks"], state["best"], strict=True):
                for name, tensor in group.stack.state().items():
                    tensor.copy_(values[name])
                group.best = best
        self.optimizer.load_state_dict(state["optimizer"])


def _keep(group: _Group, better: Tensor) -> None:
    """Remember the parameters of the members that have just done better than before."""
    if not group.best:
        group.best = {name: t.detach().clone() for name, t in group.stack.state().items()}
        return
    every = bool(better.all())
    for name, tensor in group.stack.state().items():
        chosen = slice(None) if every else better.to(tensor.device)
        group.best[name][chosen] = tensor.detach()[chosen]


def _stable(model: nn.Module) -> str | None:
    """A digest of a model's settings, unless some have no content that another process would see too."""
    try:
        return fingerprint(settings(model))
    except InvalidValueError:
        return None


def _grouped(keys: Sequence[Any]) -> list[tuple[int, ...]]:
    """Positions of equal keys together, in the order of their first."""
    groups: dict[Any, list[int]] = {}
    for k, key in enumerate(keys):
        groups.setdefault(key, []).append(k)
    return [tuple(members) for members in groups.values()]


def _check(
    models: tuple[nn.Module, ...],
    x: Tensor,
    y: Tensor,
    training: Training,
    seeds: tuple[int, ...],
    rows: Tensor | None,
    validation_rows: Tensor | None,
    weights: Tensor | None,
) -> None:
    if not models:
        raise InvalidValueError("There is nothing to train: give at least one model.")
    if len(x) != len(y) or len(x) == 0:
        raise InvalidValueError(
            f"There is one target for every row, and at least one; got {len(x)} and {len(y)}."
        )
    if training.loss == "mse" and y.ndim < 2:
        raise InvalidValueError(
            f"Targets of squared errors have shape (n, outputs), got {tuple(y.shape)}; use y[:, None]."
        )
    if len(seeds) != len(models):
        raise InvalidValueError(f"There is one seed for every model, got {len(seeds)} for {len(models)}.")
    if isinstance(training.lr, tuple) and len(training.lr) != len(models):
        raise InvalidValueError(
            f"There is one learning rate, or one for every model; got {len(training.lr)} for {len(models)}."
        )
    for name, numbers in (("rows", rows), ("validation_rows", validation_rows)):
        if numbers is None:
            continue
        if numbers.ndim not in (1, 2) or (numbers.ndim == 2 and len(numbers) not in (1, len(models))):
            raise InvalidValueError(
                f"{name} has shape (m,) or (models, m) with {len(models)} models, got {tuple(numbers.shape)}."
            )
        if numbers.shape[-1] == 0 or int(numbers.min()) < 0 or int(numbers.max()) >= len(x):
            raise InvalidValueError(f"{name} holds at least one number of a row, 0 to {len(x) - 1}.")
    if training.patience is not None and validation_rows is None:
        raise InvalidValueError("patience watches the loss on validation_rows: give them.")
    if weights is not None and (weights.shape != (len(x),) or bool((weights < 0).any())):
        raise InvalidValueError(
            f"Weights are {len(x)} non-negative numbers, got shape {tuple(weights.shape)}."
        )
    drops = next(
        (
            m
            for model in models
            for m in model.modules()
            if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0
        ),
        None,
    )
    if drops is not None:
        raise InvalidValueError(
            f"{drops} draws from the global generator, so no training with it can be repeated. Set p = 0."
        )
