"""Monitors as a callback of Lightning's Trainer."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from farfield.monitor._looks import Monitor
from farfield.monitor._watch import TrainingRecord

__all__ = ["LightningMonitor"]


class LightningMonitor(Callback):
    """Sends what monitors see to every logger of the trainer; ``seen.records`` keeps it.

    ``Trainer(callbacks=[LightningMonitor(FarFieldMonitor(module.net, batch, every=100))])``. Steps are the trainer's
    ``global_step``; each is looked at once, however many batches it accumulates.
    """

    def __init__(self, *monitors: Monitor) -> None:
        super().__init__()
        self.monitors, self.seen, self._last = monitors, TrainingRecord(), -1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Before the first step."""
        self._look(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a step."""
        self._look(trainer)

    def _look(self, trainer: Any) -> None:
        step = int(trainer.global_step)
        if step == self._last or not trainer.is_global_zero:
            return
        self._last = step
        scalars = self.seen.look(self.monitors, step)
        for logger in trainer.loggers if scalars else ():
            logger.log_metrics(scalars, step=step)
