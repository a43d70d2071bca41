"""``watch``: monitors on a training loop that stays as it is."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from farfield.errors import InvalidValueError
from farfield.monitor._far_field import FarFieldMonitor
from farfield.monitor._looks import Monitor

__all__ = ["TrainingRecord", "watch"]


@dataclass
class TrainingRecord:
    """What monitors saw: (step, scalars) in order."""

    records: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def look(self, monitors: Sequence[Monitor], step: int) -> dict[str, float]:
        """What the monitors say at this step, all together; kept unless it is nothing."""
        scalars: dict[str, float] = {}
        for monitor in monitors:
            scalars |= monitor.step(step)
        if scalars:
            self.records.append((step, scalars))
        return scalars

    def to_csv(self, path: str | Path) -> None:
        """A row for each look, a column for each scalar."""
        names = list(dict.fromkeys(name for _, scalars in self.records for name in scalars))
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["step", *names])
            writer.writeheader()
            writer.writerows({"step": step, **scalars} for step, scalars in self.records)


@contextmanager
def watch(
    model: nn.Module,
    example: Any = None,
    *,
    every: int = 100,
    monitors: Sequence[Monitor] = (),
    log: Callable[[Mapping[str, float], int], object] | None = None,
) -> Iterator[TrainingRecord]:
    """Look at a model every so many steps of its optimizer, with no line changed inside the training loop.

    Steps are counted where an optimizer that holds one of the model's parameters has made one, in this process; the
    first look is before the first step.

    Parameters
    ----------
    model
        What trains.
    example
        A batch for :class:`FarFieldMonitor`, which is made if ``monitors`` are not given.
    every
        Steps between its looks.
    monitors
        Others instead, each with its own ``every``.
    log
        Called as ``log(scalars, step)``, as the loggers of training frameworks are.

    Examples
    --------
    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> optimizer, x = torch.optim.Adam(model.parameters()), torch.randn(16, 2)
    >>> with watch(model, x, every=5) as seen:
    ...     for _ in range(10):
    ...         optimizer.zero_grad()
    ...         model(x).square().mean().backward()
    ...         _ = optimizer.step()
    >>> [step for step, _ in seen.records]
    [0, 5, 10]
    """
    if example is None and not monitors:
        raise InvalidValueError("watch needs a batch of example inputs, or monitors; it got neither.")
    looking = list(monitors) or [FarFieldMonitor(model, example, every=every)]
    own = {id(parameter) for parameter in model.parameters()}
    seen, steps = TrainingRecord(), 0

    def look() -> None:
        scalars = seen.look(looking, steps)
        if scalars and log is not None:
            log(scalars, steps)

    def count(optimizer: Any, *_: Any) -> None:
        nonlocal steps
        if any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            steps += 1
            look()

    look()
    handle = register_optimizer_step_post_hook(count)
    try:
        yield seen
    finally:
        handle.remove()
