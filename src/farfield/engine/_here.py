"""Settings of torch in the calling thread, which other threads and processes do not inherit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

__all__ = ["Here"]

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Here:
    """Gradient mode and default dtype at the place a run was started from."""

    gradients: bool
    inference: bool
    dtype: torch.dtype

    @staticmethod
    def now() -> Here:
        """Those of this thread."""
        return Here(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype())

    def around(self, task: Callable[[Item], Result]) -> Callable[[Item], Result]:
        """The task under this gradient mode."""

        def run(item: Item) -> Result:
            with torch.inference_mode(self.inference), torch.set_grad_enabled(self.gradients):
                return task(item)

        return run
