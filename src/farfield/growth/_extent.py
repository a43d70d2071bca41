"""The abstract value of a node: how far each of its two sides can go, and where that is not even known.

An :class:`Extent` claims, for every entry v of a tensor and **every** finite real input, in real arithmetic:

- ``lo`` ≤ v ≤ ``hi`` (either may be infinite);
- v grows upwards no faster than ``upper`` and downwards no faster than ``lower``;
- |v| ≥ ``gap``;

unless ``doubts`` is non-empty, in which case nothing is claimed and each doubt says why. A side that may have
a pole is ``SINGULAR`` and ``poles`` says where. ``assumptions`` are what the claim rests on beyond the
program itself (a norm without ε is undefined on constant rows). Sides are kept apart because
exp(−relu(x)), min(x, 1) and softplus gates are bounded on one side only, and the next operator may need just
that one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from farfield.growth._rate import BOUNDED, CONSTANT, SINGULAR, Rate

__all__ = [
    "ZERO",
    "Extent",
    "Reason",
    "add",
    "as_type",
    "averaged",
    "interval",
    "join",
    "multiply",
    "negate",
    "ratio",
    "reciprocal",
    "scale",
    "shift",
    "square",
    "stretch",
    "undefined",
    "widened",
]

INF = math.inf


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is not known, or holds only under a condition, and at which node."""

    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.text} (at {self.node})"


@dataclass(frozen=True, slots=True)
class Extent:
    """What is known of one node with respect to one set of moving inputs; see the module's docstring.

    Building one tidies it: a finite end of the interval makes that side BOUNDED, a single point CONSTANT.
    """

    lower: Rate = BOUNDED
    upper: Rate = BOUNDED
    lo: float = -INF
    hi: float = INF
    gap: float = 0.0
    doubts: tuple[Reason, ...] = ()
    poles: tuple[Reason, ...] = ()
    assumptions: tuple[Reason, ...] = ()

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        if math.isnan(self.lo) or math.isnan(self.hi):
            raise ValueError(f"an interval needs numbers as ends, got [{self.lo}, {self.hi}]: use ±inf")
        if math.isfinite(self.lo):
            set_field(self, "lower", min(self.lower, BOUNDED))
        if math.isfinite(self.hi):
            set_field(self, "upper", min(self.upper, BOUNDED))
        if self.lo == self.hi and math.isfinite(self.lo):
            set_field(self, "lower", CONSTANT)
            set_field(self, "upper", CONSTANT)
        set_field(self, "gap", max(self.gap, self.lo, -self.hi, 0.0))
        if self.lower < SINGULAR and self.upper < SINGULAR:
            set_field(self, "poles", ())

    @property
    def rate(self) -> Rate:
        """The faster of the two sides."""
        return max(self.lower, self.upper)

    @property
    def known(self) -> bool:
        """Nothing is in doubt and neither side has a pole."""
        return not self.doubts and self.rate < SINGULAR

    @property
    def bounded(self) -> bool:
        """Proved bounded on both sides for every input."""
        return self.known and self.rate.finite

    @property
    def constant(self) -> bool:
        """Does not move with the inputs under study (its value may still be unknown or infinite)."""
        return self.rate == CONSTANT

    @property
    def magnitude(self) -> float:
        """The largest |v| the interval allows."""
        return max(abs(self.lo), abs(self.hi))

    def assuming(self, *assumptions: Reason) -> Extent:
        """The same claim, resting on further assumptions."""
        return replace(self, assumptions=_union((self.assumptions, assumptions)))

    def doubting(self, *doubts: Reason) -> Extent:
        """The claim withdrawn, with the reasons."""
        return replace(self, doubts=_union((self.doubts, doubts)))

    def with_poles(self, *poles: Reason) -> Extent:
        """The same claim, naming where a singular side comes from."""
        return replace(self, poles=_union((self.poles, poles)))


def _union(groups: Iterable[tuple[Reason, ...]]) -> tuple[Reason, ...]:
    return tuple(dict.fromkeys(reason for group in groups for reason in group))


def inherit(value: Extent, *sources: Extent | None) -> Extent:
    """``value`` with the doubts, poles and assumptions of the extents it was computed from."""
    present = [source for source in sources if source is not None]
    return replace(
        value,
        doubts=_union([value.doubts, *(s.doubts for s in present)]),
        poles=_union([value.poles, *(s.poles for s in present)]),
        assumptions=_union([value.assumptions, *(s.assumptions for s in present)]),
    )


def interval(lo: float, hi: float, *sources: Extent | None, gap: float = 0.0) -> Extent:
    """A value confined to [lo, hi] whatever its sources do; constant when every source is.

    An infinite end claims nothing about that side: use it for sides that are BOUNDED without a known number.
    """
    present = [source for source in sources if source is not None]
    rate = CONSTANT if all(source.constant for source in present) else BOUNDED
    return inherit(Extent(rate, rate, lo, hi, gap), *present)


ZERO = Extent(CONSTANT, CONSTANT, 0.0, 0.0)


def undefined(node: str, text: str, *sources: Extent | None) -> Extent:
    """Nothing is claimed, because of what ``text`` says happens at ``node``."""
    return inherit(Extent(SINGULAR, SINGULAR, doubts=(Reason(node, text),)), *sources)


def widened(value: float, *, up: bool) -> float:
    """``value`` moved outward by a few rounding errors, so that float64 arithmetic on bounds stays a bound."""
    if not math.isfinite(value) or value == 0.0:
        return value
    return value + (1 if up else -1) * 4e-15 * abs(value)


def _plus(a: float, b: float, *, up: bool) -> float:
    """a + b on extended reals; a clash of infinities gives the end that claims nothing."""
    total = a + b
    if math.isnan(total):
        return INF if up else -INF
    return widened(total, up=up)


def negate(a: Extent) -> Extent:
    """−v: the sides change places."""
    return replace(a, lower=a.upper, upper=a.lower, lo=-a.hi, hi=-a.lo)


def add(a: Extent, b: Extent, node: str) -> Extent:
    """v + w: each side takes the faster rate; opposite poles can meet as ∞ − ∞."""
    value = Extent(
        max(a.lower, b.lower), max(a.upper, b.upper), _plus(a.lo, b.lo, up=False), _plus(a.hi, b.hi, up=True)
    )
    value = inherit(value, a, b)
    if (a.upper == SINGULAR and b.lower == SINGULAR) or (a.lower == SINGULAR and b.upper == SINGULAR):
        return value.doubting(
            Reason(node, "both terms can be infinite with opposite signs: ∞ − ∞ is undefined")
        )
    return value


def shift(a: Extent, number: float) -> Extent:
    """v + c for a finite number c."""
    return replace(a, lo=_plus(a.lo, number, up=False), hi=_plus(a.hi, number, up=True), gap=0.0)


def scale(a: Extent, number: float) -> Extent:
    """c·v for a finite number c."""
    if number == 0.0:
        return inherit(Extent(CONSTANT, CONSTANT, 0.0, 0.0), a)
    flipped = negate(a) if number < 0 else a
    if abs(number) == 1.0:
        return flipped
    factor = abs(number)
    return replace(
        flipped,
        lo=widened(flipped.lo * factor, up=False),
        hi=widened(flipped.hi * factor, up=True),
        gap=widened(flipped.gap * factor, up=False),
    )


def stretch(a: Extent, count: float) -> Extent:
    """The sum of between 0 and ``count`` values of the same extent; ``inf`` where the count is not known."""
    lo = 0.0 if a.lo >= 0 else widened(a.lo * count, up=False)
    hi = 0.0 if a.hi <= 0 else widened(a.hi * count, up=True)
    return replace(a, lo=lo, hi=hi, gap=0.0)


def averaged(a: Extent) -> Extent:
    """An average of such values: within the same limits, but it may come nearer to 0."""
    return replace(a, gap=0.0)


def join(first: Extent, *others: Extent) -> Extent:
    """A value that is one of several: the weaker claim on every side."""
    group = (first, *others)
    value = Extent(
        max(e.lower for e in group),
        max(e.upper for e in group),
        min(e.lo for e in group),
        max(e.hi for e in group),
        min(e.gap for e in group),
    )
    return inherit(value, *group)


_Part = tuple[Rate, float] | None


def _parts(a: Extent) -> tuple[_Part, _Part]:
    """Rate and largest size of the positive and of the negative part; None where there is no such part."""
    positive = (a.upper, a.hi) if a.hi > 0 else None
    negative = (a.lower, -a.lo) if a.lo < 0 else None
    return positive, negative


def _product(pairs: tuple[tuple[_Part, _Part], ...], floor: Rate) -> tuple[Rate, float, bool]:
    rate, size, empty = floor, 0.0, True
    for left, right in pairs:
        if left is not None and right is not None:
            empty = False
            rate = max(rate, left[0].times(right[0]))
            size = max(size, widened(left[1] * right[1], up=True))
    return rate, size, empty


def multiply(a: Extent, b: Extent, node: str) -> Extent:
    """v·w with signs: the positive side is positive×positive or negative×negative.

    Rates multiply part by part (powers add), so a gate in [0, 1] keeps the sides of what it gates, and a
    factor that is identically 0 removes the product. A pole times something that may vanish is undefined
    (0·∞).
    """
    (ap, an), (bp, bn) = _parts(a), _parts(b)
    floor = CONSTANT if a.constant and b.constant else BOUNDED
    up_rate, up_size, no_up = _product(((ap, bp), (an, bn)), floor)
    low_rate, low_size, no_low = _product(((ap, bn), (an, bp)), floor)
    gap = widened(a.gap * b.gap, up=False) if a.gap > 0 and b.gap > 0 else 0.0
    hi = up_size if not no_up else (-gap if not no_low else 0.0)
    lo = -low_size if not no_low else (gap if not no_up else 0.0)
    value = inherit(Extent(low_rate, up_rate, lo, hi, gap), a, b)
    if SINGULAR in (a.rate, b.rate):
        other = b if a.rate == SINGULAR else a
        if other.gap == 0.0 or other.rate == SINGULAR:
            return value.doubting(Reason(node, "an infinite factor can meet a zero factor: 0·∞ is undefined"))
    return value


def square(a: Extent) -> Extent:
    """v²: non-negative, each side's power doubled."""
    rate = max(a.lower if a.lo < 0 else BOUNDED, a.upper if a.hi > 0 else BOUNDED)
    if a.constant:
        rate = CONSTANT
    top = widened(a.magnitude * a.magnitude, up=True)
    low = widened(a.gap * a.gap, up=False)
    return inherit(Extent(min(rate, BOUNDED), rate.to_the(2.0), low, top), a)


def reciprocal(a: Extent, node: str) -> Extent:
    """1/v: bounded where v keeps a distance from 0; otherwise a pole (one-sided v) or undefined (v may be 0)."""
    rate = CONSTANT if a.constant else BOUNDED
    if a.gap > 0.0:
        size = widened(1.0 / a.gap, up=True)
        hi = size if a.hi > 0 else (-1.0 / -a.lo if math.isfinite(a.lo) else 0.0)
        lo = -size if a.lo < 0 else (1.0 / a.hi if math.isfinite(a.hi) else 0.0)
        gap = widened(1.0 / a.magnitude, up=False) if math.isfinite(a.magnitude) else 0.0
        value = Extent(rate, rate, widened(lo, up=False), widened(hi, up=True), gap)
        return inherit(value, a)
    where = f"the denominator is only known to lie in [{a.lo:.4g}, {a.hi:.4g}] and can vanish"
    if a.lo >= 0.0:
        lo = widened(1.0 / a.hi, up=False) if math.isfinite(a.hi) and a.hi > 0 else 0.0
        return inherit(Extent(rate, SINGULAR, lo, INF), a).with_poles(Reason(node, where))
    if a.hi <= 0.0:
        hi = widened(1.0 / a.lo, up=True) if math.isfinite(a.lo) else 0.0
        return inherit(Extent(SINGULAR, rate, -INF, hi), a).with_poles(Reason(node, where))
    return undefined(node, where, a)


def ratio(a: Extent, b: Extent, node: str) -> Extent:
    """v/w as v·(1/w), so a positive denominator keeps the sides of the numerator."""
    return multiply(a, reciprocal(b, node), node)


def truth(value: Extent) -> bool | None:
    """Whether a value counts as true, for every input; None where that is not the same for all."""
    if value.gap > 0.0:
        return True
    return False if value.lo == value.hi == 0.0 else None


def decided(answer: bool | None, *sources: Extent) -> Extent:
    """A boolean that is known, or one that may be either."""
    return interval(float(answer is True), float(answer is not False), *sources)


def as_type(value: Extent, dtype: torch.dtype | None, *, whole: bool = False) -> Extent:
    """The value stored in this type: nothing changes in floating types, integers are cut and wrap around.

    What leaves the range of an integer type can come out as anything in that range. For 8 and 16 bits that range is
    the claim; a growing value of 32 or 64 bits keeps its rate and loses its interval.

    Parameters
    ----------
    whole
        The value is an integer already: nothing is cut off.
    """
    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        return value
    if dtype == torch.bool:
        return decided(truth(value), value)
    limits = torch.iinfo(dtype)
    least, most = float(limits.min), float(limits.max)
    if value.lo >= least and value.hi <= most and (value.hi < most or limits.bits < 64):
        cut = replace(value, lo=float(math.trunc(value.lo)), hi=float(math.trunc(value.hi)), gap=0.0)
        return value if whole else cut
    if limits.bits > 16 and not value.rate.finite:
        return replace(value, lower=value.rate, upper=value.rate, lo=-INF, hi=INF, gap=0.0)
    # Integers of unknown size (token ids, positions up to a dynamic size) are taken to fit their own type.
    if whole and limits.bits > 16 and (math.isinf(value.lo) or math.isinf(value.hi)):
        return value
    return interval(least, most, value)
