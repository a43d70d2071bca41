"""How a node grows, in public words: one of seven kinds, a degree, an interval, or the reason for not knowing."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

from farfield.growth._extent import Extent, Reason
from farfield.growth._jet import split_power
from farfield.growth._rate import SINGULAR, Level, Rate

__all__ = ["Growth", "Kind", "growth_of"]


class Kind(enum.StrEnum):
    """How far a value can go as the inputs do, slowest first; ``UNKNOWN`` stands apart and carries a reason."""

    CONSTANT = "constant"
    BOUNDED = "bounded"
    SUBLINEAR = "sublinear"
    LINEAR = "linear"
    POLYNOMIAL = "polynomial"
    EXPONENTIAL = "exponential"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Growth:
    """An upper bound on a node's growth over all of Rⁿ, in real arithmetic.

    Parameters
    ----------
    kind
        The faster of the two sides.
    lower, upper
        Downwards and upwards, separately.
    degree
        Of ‖x‖^degree, where the kind is SUBLINEAR, LINEAR or POLYNOMIAL; a lone logarithm has degree 0.
    logarithms
        Power of log ‖x‖ beside it.
    interval
        Numbers between which every entry stays; ±∞ where no number is known (a bounded value may have none).
    reason
        Why the kind is UNKNOWN, and at which node.
    assumptions
        What the claim rests on beyond the program itself.
    """

    kind: Kind
    lower: Kind
    upper: Kind
    degree: float | None
    logarithms: float
    interval: tuple[float, float]
    reason: Reason | None
    assumptions: tuple[Reason, ...]

    @property
    def bounded(self) -> bool:
        """Proved bounded for every input."""
        return self.kind in (Kind.CONSTANT, Kind.BOUNDED)

    def __str__(self) -> str:
        if self.kind is Kind.UNKNOWN:
            return f"UNKNOWN: {self.reason}"
        if self.kind is Kind.POLYNOMIAL:
            return f"POLYNOMIAL({self.degree:g})" + (" with logarithms" if self.logarithms else "")
        lo, hi = self.interval
        if self.bounded and (math.isfinite(lo) or math.isfinite(hi)):
            return f"{self.kind.name} [{lo:.4g}, {hi:.4g}]"
        return self.kind.name

    def to_dict(self) -> dict[str, Any]:
        """Plain data; infinities become ``None``."""
        return {
            "kind": self.kind.value,
            "lower": self.lower.value,
            "upper": self.upper.value,
            "degree": self.degree,
            "logarithms": self.logarithms,
            "interval": [value if math.isfinite(value) else None for value in self.interval],
            "reason": None if self.reason is None else {"node": self.reason.node, "text": self.reason.text},
            "assumptions": [{"node": a.node, "text": a.text} for a in self.assumptions],
        }


def kind_of(rate: Rate) -> Kind:
    """The kind a rate belongs to."""
    if rate.level == Level.POWER:
        if rate.degree == 1.0:
            return Kind.LINEAR
        return Kind.SUBLINEAR if rate.degree < 1.0 else Kind.POLYNOMIAL
    return {
        Level.CONSTANT: Kind.CONSTANT,
        Level.BOUNDED: Kind.BOUNDED,
        Level.EXPONENTIAL: Kind.EXPONENTIAL,
        Level.SINGULAR: Kind.UNKNOWN,
    }[rate.level]


def growth_of(extent: Extent) -> Growth:
    """An extent in public words."""
    kind, reason = kind_of(extent.rate), None
    if extent.doubts:
        kind, reason = Kind.UNKNOWN, extent.doubts[0]
    elif extent.rate == SINGULAR:
        reason = extent.poles[0] if extent.poles else Reason("", "a value may be infinite")
    degree, logs = None, 0.0
    if kind in (Kind.SUBLINEAR, Kind.LINEAR, Kind.POLYNOMIAL):
        degree, logs = split_power(extent.rate.degree)
    return Growth(
        kind,
        Kind.UNKNOWN if extent.doubts else kind_of(extent.lower),
        Kind.UNKNOWN if extent.doubts else kind_of(extent.upper),
        degree,
        logs,
        (-math.inf, math.inf) if extent.doubts else (extent.lo, extent.hi),
        reason,
        extent.assumptions,
    )
