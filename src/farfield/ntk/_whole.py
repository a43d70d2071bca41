"""One run of a small, plain model on all its inputs: the plan of its calls and the first half of their gradients.

A plan needs a run on one input, to see what a run on many would hold in memory. Where every call is linear or acts on
each entry alone, the size of its output is known before it is made, and rows can't meet: the run on one input is then
left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from farfield.ntk._calls import TrackedParameters
from farfield.ntk._record import Abandoned, Recorder, hidden

__all__ = ["WholePass", "whole_pass"]


@dataclass
class WholePass:
    """A recorded run on all inputs, to be taken once: its graph is gone after that.

    Parameters
    ----------
    x
        The inputs.
    """

    x: Tensor
    _held: list[tuple[Tensor, Recorder]] = field(default_factory=list)

    def take(self, x: Tensor) -> tuple[Tensor, Recorder] | None:
        """Output and record, if ``x`` is all the inputs and nobody took them before."""
        same = x.data_ptr() == self.x.data_ptr() and x.shape == self.x.shape and x.stride() == self.x.stride()
        return self._held.pop() if same and self._held else None

    def __getstate__(self) -> dict[str, Any]:
        return {"x": self.x[:0], "_held": []}  # another process has no use for this one's graph


def whole_pass(
    model: nn.Module, tracked: TrackedParameters, x: Tensor, room: int
) -> tuple[Tensor, Recorder, WholePass] | None:
    """Run a model on all its inputs within ``room`` bytes; None, soon, where that is not certain to be possible."""
    n = len(x)
    if n < 2:
        return None
    recorder = Recorder(tracked, keep=True, copy=False, trace=True, room=room)
    try:
        with torch.enable_grad(), recorder:
            y = tracked.substitute(model, {}, x)
    except Abandoned:
        return None
    # A model may have caught the exception: its room is less than nothing then.
    if recorder.room is None or recorder.room < 0 or not isinstance(y, Tensor) or y.shape[:1] != (n,):
        return None
    if hidden(recorder, y) or recorder.opaque or not recorder.plain or not recorder.untouched():
        return None
    return y, recorder, WholePass(x, [(y, recorder)])
