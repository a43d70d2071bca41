"""How networks are trained, and what training leaves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError, UnknownNameError

__all__ = ["Training", "TrainingResult", "chosen_precision", "learning_rate", "optimizer", "row_losses"]


@dataclass(frozen=True)
class Training:
    r"""Settings of a training: plain data.

    Parameters
    ----------
    epochs
        Passes over the training rows, at most.
    batch_size
        Rows in a step; None for all of them.
    optimizer
        ``"adam"``, ``"adamw"`` or ``"sgd"``: torch's own.
    lr
        Learning rate; or one for every model.
    schedule
        ``"constant"``, or ``"cosine"``: lr·(1 + cos(π·epoch/epochs))/2.
    weight_decay, momentum
        Passed to the optimizer; momentum to SGD only.
    loss
        ``"mse"``: squared errors, averaged over outputs. ``"cross_entropy"``: outputs are logits, targets the numbers
        of classes. A model's loss is the mean over its rows.
    patience
        Stop a model after so many epochs without a better loss on the validation rows, and go back to its best; None
        to train to the end and keep the last.
    precision
        ``"float32"``: as the parameters are. ``"bfloat16"``: matrix products in bfloat16 with sums in float32
        (``torch.autocast``), faster where the processor has such instructions; about three digits in every product.
        ``"auto"``: bfloat16 if a trial at the start shows its products faster on this machine, else float32; the
        result says which.

    Examples
    --------
    >>> Training(epochs=100, batch_size=256).lr
    0.001
    """

    epochs: int = 200
    batch_size: int | None = None
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float | tuple[float, ...] = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = 0.0
    momentum: float = 0.0
    loss: Literal["mse", "cross_entropy"] = "mse"
    patience: int | None = None
    precision: Literal["float32", "bfloat16", "auto"] = "float32"

    def __post_init__(self) -> None:
        if self.epochs < 1 or (self.batch_size is not None and self.batch_size < 1):
            raise InvalidValueError(
                "Training takes at least one epoch of batches of at least one row, got "
                f"epochs={self.epochs} and batch_size={self.batch_size}."
            )
        rates = self.lr if isinstance(self.lr, tuple) else (self.lr,)
        if not all(0.0 < rate < math.inf for rate in rates):
            raise InvalidValueError(f"A learning rate is positive and finite, got {self.lr}.")
        if self.patience is not None and self.patience < 1:
            raise InvalidValueError(f"Patience is at least one epoch, or None; got {self.patience}.")
        for kind, name, known in (
            ("optimizer", self.optimizer, ("adam", "adamw", "sgd")),
            ("schedule", self.schedule, ("constant", "cosine")),
            ("loss", self.loss, ("mse", "cross_entropy")),
            ("precision", self.precision, ("float32", "bfloat16", "auto")),
        ):
            if name not in known:
                raise UnknownNameError(kind, name, known)


@dataclass(frozen=True)
class TrainingResult:
    """What training leaves, one of everything for every model that was given.

    Parameters
    ----------
    models
        Trained copies, in evaluation mode.
    losses
        Training loss by epoch, shape (epochs, models). A row holds the means over the epoch, before and between its
        steps; NaN after a model was stopped.
    validation_losses
        At the end of each epoch, the same shape; NaN after a model was stopped. None without validation rows.
    epochs
        How many epochs the kept parameters had: the best, with patience, else the last.
    trained
        How many epochs each model was trained for, until it was stopped.
    precision
        Of the products: ``"float32"`` (as the parameters are) or ``"bfloat16"``.
    """

    models: tuple[nn.Module, ...]
    losses: Tensor
    validation_losses: Tensor | None
    epochs: tuple[int, ...]
    trained: tuple[int, ...]
    precision: Literal["float32", "bfloat16"] = "float32"

    @property
    def diverged(self) -> tuple[int, ...]:
        """Models whose training loss stopped being finite."""
        return tuple(
            k for k, count in enumerate(self.trained) if not bool(self.losses[:count, k].isfinite().all())
        )


def learning_rate(training: Training, epoch: int) -> float:
    """What the learning rates are multiplied by in an epoch."""
    if training.schedule == "constant":
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * epoch / training.epochs))


def optimizer(training: Training, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
    """Torch's optimizer for parameter groups, each with its learning rate: one step for all."""
    if training.optimizer == "sgd":
        return torch.optim.SGD(
            groups, momentum=training.momentum, weight_decay=training.weight_decay, fused=True
        )
    kind = torch.optim.AdamW if training.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, weight_decay=training.weight_decay, fused=True)


def chosen_precision(wanted: str, device: torch.device, width: int) -> Literal["float32", "bfloat16"]:
    """What ``precision="auto"`` is on this machine; the others are themselves."""
    if wanted != "auto":
        return "bfloat16" if wanted == "bfloat16" else "float32"
    return "bfloat16" if _bfloat16_pays(device, width) else "float32"


@cache
def _bfloat16_pays(device: torch.device, width: int) -> bool:
    """Whether three products of a layer's size, as forward and backward passes have them, take less time in bfloat16.

    Asked once in a process for every width: the best of seven rounds each, in turn. Less means by a tenth: the
    conversions cost something too.
    """
    if device.type != "cpu":
        return True
    size = min(max(width, 64), 1024)
    operands = {dtype: torch.ones(3, size, size, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)}
    best = dict.fromkeys(operands, math.inf)
    for _ in range(7):
        for dtype, x in operands.items():
            begin = time.perf_counter()
            torch.bmm(x, x)
            best[dtype] = min(best[dtype], time.perf_counter() - begin)
    return best[torch.bfloat16] < 0.9 * best[torch.float32]


LossAndGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def row_losses(name: str) -> LossAndGradient:
    """(outputs, targets) with axes (models, rows, …) to the loss of every row, (models, rows), and the gradient of
    their sum with respect to the outputs.
    """
    return {"mse": _squared, "cross_entropy": _cross_entropy}[name]


def _squared(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    if output.shape[1:] != target.shape[1:]:
        raise InvalidValueError(
            f"Outputs and targets of a row have one shape; the model gives {tuple(output.shape[2:])}, the targets "
            f"have {tuple(target.shape[2:])}."
        )
    off = output - target
    losses = off.square().flatten(2).mean(2)
    return losses, off * (2.0 / math.prod(off.shape[2:]))


def _cross_entropy(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    target = target.expand(output.shape[:-1])[..., None]
    logs = output.log_softmax(-1)
    losses = -logs.gather(-1, target)[..., 0]
    each = losses.reshape(*output.shape[:2], -1)
    ones = torch.full_like(target, -1.0, dtype=output.dtype)
    return each.mean(2), logs.exp().scatter_add(-1, target, ones) / each.shape[2]
