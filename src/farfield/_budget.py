"""How much a search may cost: seconds, or steps that no busy machine changes."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from farfield.errors import InvalidValueError

__all__ = ["Budget", "Clock", "running"]


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on a search: in seconds, in steps, or both, whichever ends first.

    What a step is stands with whatever takes a budget; it is one evaluation of a batch, a fraction of a second.

    Parameters
    ----------
    seconds
        Wall-clock time.
    steps
        Counted steps: the same search on any machine.

    Examples
    --------
    >>> clock = Budget(steps=10).start()
    >>> half = clock.share(0.5)
    >>> half.spend(4)
    >>> half.left, clock.left, half.over
    (0.2, 0.6, False)
    """

    seconds: float | None = None
    steps: float | None = None

    def __post_init__(self) -> None:
        given = [limit for limit in (self.seconds, self.steps) if limit is not None]
        if not given or any(not limit >= 0 for limit in given):
            raise InvalidValueError(
                f"A budget has seconds=… or steps=… (or both), none of them negative; received seconds="
                f"{self.seconds}, steps={self.steps}."
            )

    def start(self) -> Clock:
        """A clock that runs from now."""
        return Clock(
            math.inf if self.seconds is None else self.seconds, math.inf if self.steps is None else self.steps
        )


class Clock:
    """A running budget; what is spent of a share is spent of the whole."""

    def __init__(self, seconds: float, steps: float, parent: Clock | None = None) -> None:
        self._seconds, self._steps, self._parent = seconds, steps, parent
        self._begun, self._count = time.monotonic(), 0.0
        self._stopped = False

    def spend(self, steps: float = 1) -> None:
        """Count steps."""
        self._count += steps
        if self._parent is not None:
            self._parent.spend(steps)

    def stop(self) -> None:
        """End every share of this clock now. What is left of the clock itself is for what comes after a search."""
        self._stopped = True

    @property
    def is_stopped(self) -> bool:
        """Whether a clock that this one is a share of was stopped."""
        return self._parent is not None and (self._parent._stopped or self._parent.is_stopped)

    @property
    def limit(self) -> Budget:
        """The budget it started with."""
        if math.isinf(self._seconds) and math.isinf(self._steps):
            return Budget(steps=0)
        sides = (None if math.isinf(side) else side for side in (self._seconds, self._steps))
        return Budget(*sides)

    @property
    def spent(self) -> float:
        """Steps counted so far."""
        return self._count

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    @property
    def seconds_left(self) -> float:
        """Seconds until the end; ∞ where only steps are counted."""
        if self.is_stopped:
            return 0.0
        return self._seconds - self.elapsed if math.isfinite(self._seconds) else math.inf

    @property
    def steps_left(self) -> float:
        """Steps until the end; ∞ where only time is."""
        return self._steps - self._count

    @property
    def left(self) -> float:
        """Share of the budget that is left, from 1 to 0."""
        time_left = 0.0 if self.is_stopped else _ratio(self.seconds_left, self._seconds)
        return max(0.0, min(time_left, _ratio(self.steps_left, self._steps)))

    @property
    def over(self) -> bool:
        """Nothing is left."""
        return self.seconds_left <= 0 or self.steps_left <= 0

    def share(self, fraction: float) -> Clock:
        """A clock for this fraction of what is left."""
        seconds = self.seconds_left if math.isinf(self._seconds) else max(0.0, self.seconds_left) * fraction
        steps = self.steps_left if math.isinf(self._steps) else max(0.0, self.steps_left) * fraction
        return Clock(seconds, steps, self)


def running(limit: float | Budget | Clock) -> Clock:
    """A clock for this limit: a number means seconds from now, a clock that runs already goes on."""
    if isinstance(limit, Clock):
        return limit
    return (limit if isinstance(limit, Budget) else Budget(seconds=float(limit))).start()


def _ratio(left: float, whole: float) -> float:
    if math.isinf(whole):
        return 1.0
    return left / whole if whole > 0 else 0.0
