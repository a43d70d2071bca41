"""How fast one side of a quantity can grow: an ordered scale with products and powers.

A rate bounds a function of the inputs from one side, for *every* input and not only for large ones:

- ``CONSTANT``: the value does not move with the input at all;
- ``BOUNDED``: at most some finite number;
- a power ``p``: at most C (1 + ‖x‖)^p, with a logarithm counted as an infinitesimal power;
- ``EXPONENTIAL``: finite on every bounded set, no power known;
- ``SINGULAR``: not even bounded on bounded sets (a pole), or infinite (a mask of −∞).

The scale is a total order, so joining two facts is ``max``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = [
    "BOUNDED",
    "CONSTANT",
    "EXPONENTIAL",
    "LINEAR",
    "LOGARITHMIC",
    "LOG_STEP",
    "SINGULAR",
    "Level",
    "Rate",
]

LOG_STEP = 2.0**-20
"""log λ written as a power: monomials λ^p (log λ)^q are ordered like p + q·LOG_STEP while |q| < 2^19."""


class Level(enum.IntEnum):
    """The five kinds of growth, slowest first."""

    CONSTANT = 0
    BOUNDED = 1
    POWER = 2
    EXPONENTIAL = 3
    SINGULAR = 4


@dataclass(frozen=True, order=True, slots=True)
class Rate:
    """One point on the scale of growth.

    Parameters
    ----------
    level
        The kind.
    degree
        The power p + q·LOG_STEP of λ^p (log λ)^q; only with ``Level.POWER``.

    Examples
    --------
    >>> LINEAR.times(LINEAR).degree
    2.0
    >>> max(BOUNDED, LOGARITHMIC) == LOGARITHMIC < LINEAR < EXPONENTIAL
    True
    """

    level: Level
    degree: float = 0.0

    @property
    def finite(self) -> bool:
        """Bounded on the whole space."""
        return self.level <= Level.BOUNDED

    def times(self, other: Rate) -> Rate:
        """The rate of a product of two magnitudes: powers add, kinds dominate."""
        if self.level == other.level == Level.POWER:
            return Rate(Level.POWER, self.degree + other.degree)
        return max(self, other)

    def to_the(self, exponent: float) -> Rate:
        """The rate of |v|^exponent for a positive exponent."""
        if self.level == Level.POWER:
            return Rate(Level.POWER, self.degree * exponent)
        return self

    def logarithm(self) -> Rate:
        """The rate of log(1 + |v|); the logarithm of an unspecified exponential stays one."""
        return LOGARITHMIC if self.level == Level.POWER else self

    def exponential(self) -> Rate:
        """The rate of exp(v): a power, however slow, counts as exponential since its factor is unknown."""
        return EXPONENTIAL if self.level == Level.POWER else self


CONSTANT = Rate(Level.CONSTANT)
BOUNDED = Rate(Level.BOUNDED)
LOGARITHMIC = Rate(Level.POWER, LOG_STEP)
LINEAR = Rate(Level.POWER, 1.0)
EXPONENTIAL = Rate(Level.EXPONENTIAL)
SINGULAR = Rate(Level.SINGULAR)
