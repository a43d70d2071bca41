"""Monitors as a callback of Stable-Baselines3's algorithms."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback

from farfield.monitor._looks import Monitor
from farfield.monitor._watch import TrainingRecord

__all__ = ["BaselinesMonitor"]


class BaselinesMonitor(BaseCallback):
    """Records what monitors see in the algorithm's logger; ``seen.records`` keeps it.

    ``model.learn(10_000, callback=BaselinesMonitor(FarFieldMonitor(model.critic, (observation, action))))``.
    Steps are calls of the environment, all copies of it at once.
    """

    def __init__(self, *monitors: Monitor) -> None:
        super().__init__()
        self.monitors, self.seen = monitors, TrainingRecord()

    def _on_training_start(self) -> None:
        self._look(0)

    def _on_step(self) -> bool:
        self._look(self.n_calls)
        return True

    def _look(self, step: int) -> None:
        for name, value in self.seen.look(self.monitors, step).items():
            self.logger.record(name, value)
