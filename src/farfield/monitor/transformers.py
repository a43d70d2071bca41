"""Monitors as a callback of transformers' Trainer."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from farfield.monitor._looks import Monitor
from farfield.monitor._watch import TrainingRecord

__all__ = ["TransformersMonitor"]


class TransformersMonitor(TrainerCallback):
    """Sends what monitors see where the trainer's own figures go; ``seen.records`` keeps it.

    ``TransformersMonitor(FarFieldMonitor(model, batch)).attach(trainer)``: a callback by itself has no way to its
    trainer's log, so it is attached to one; given in ``callbacks=`` it only keeps its records.
    """

    def __init__(self, *monitors: Monitor) -> None:
        self.monitors, self.seen = monitors, TrainingRecord()
        self._trainer: Any = None

    def attach(self, trainer: Any) -> TransformersMonitor:
        """Add this callback to a trainer, whose log it then writes to."""
        self._trainer = trainer
        trainer.add_callback(self)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Before the first step."""
        self._look(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After a step of the optimizer."""
        self._look(state)

    def _look(self, state: Any) -> None:
        if not state.is_world_process_zero:
            return
        scalars = self.seen.look(self.monitors, int(state.global_step))
        if scalars and self._trainer is not None:
            self._trainer.log(scalars)
