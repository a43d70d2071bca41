"""What every monitor has in common: it looks every so many steps, and leaves the model as it was."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from farfield.errors import InvalidValueError
from farfield.graph import set_serving, untouched, unwrapped

__all__ = ["Monitor", "serving"]


class Monitor(ABC):
    """Looks at a model every ``every`` steps and gives plain numbers by name."""

    def __init__(self, model: nn.Module, every: int) -> None:
        if every < 1:
            raise InvalidValueError(f"every is a number of steps, at least 1; got {every!r}.")
        inner = unwrapped(model)  # of torch.compile: nothing is compiled for a look
        assert isinstance(inner, nn.Module)
        self.model, self.every = inner, every

    def step(self, step: int) -> dict[str, float]:
        """The scalars at every ``every``-th step, counted from 0; nothing in between."""
        return self.scalars() if step % self.every == 0 else {}

    def scalars(self) -> dict[str, float]:
        """The scalars now."""
        with serving(self.model):
            return self._look()

    @abstractmethod
    def _look(self) -> dict[str, float]:
        """The scalars of a model in evaluation mode."""


@contextmanager
def serving(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards modes, buffers, attributes and random numbers are as they were."""
    modes = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    eager = torch.compiler.set_stance("force_eager")
    with eager, torch.random.fork_rng(devices=sorted(devices, key=str)), untouched(model):
        set_serving(model)
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode
