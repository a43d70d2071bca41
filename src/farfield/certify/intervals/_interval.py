"""Two tensors with every possible value between them, and arithmetic that rounds outwards.

Every end computed here is moved outwards by at least one unit in the last place. What that rests on: float64
addition, subtraction, multiplication, division and square root are correctly rounded (IEEE 754); the other
elementary functions of torch (exp, log, tanh, erf, sin, pow, …, from libm or SLEEF) are within 4 units in the last
place, and are widened by a relative 2⁻⁴⁹ and an absolute 2⁻¹⁰²²; a sum of k products, in any order, with or without
fused operations, is within γ_k Σ|a_i b_i| of the exact one, γ_k = k·u/(1 − k·u), u = 2⁻⁵³, unless it underflows,
for which 2⁻¹⁰⁰⁰ is added.

An infinite end says that nothing is known on that side. The values themselves are finite, so 0 · ∞ = 0 here and
∞ − ∞ is no bound; values that can truly be infinite (masks) are followed apart, in ``_infinite``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield._typing import Float
from farfield.errors import InvalidValueError

__all__ = [
    "Interval",
    "add",
    "all_finite",
    "divide",
    "down",
    "gamma",
    "hull",
    "inflate",
    "linear_image",
    "linear_map",
    "meet",
    "mul",
    "negate",
    "point",
    "power",
    "scale",
    "settled",
    "spread",
    "square",
    "sub",
    "tidy",
    "unbounded",
    "up",
    "widen",
]

INF = math.inf
LARGEST = torch.finfo(torch.float64).max
TINY = 2.0**-1022
UNDERFLOW = 2.0**-1000
"""More than what k products can lose below the smallest normal number, for any k that fits a machine."""
RELATIVE = 2.0**-49
UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class Interval:
    """lo ≤ v ≤ hi, entry by entry, for a tensor v of the same shape.

    Parameters
    ----------
    lo, hi
        float64, (*shape*). ``-inf`` and ``inf`` mean that nothing is known on that side. For a complex tensor the
        claim is about both its parts.

    Examples
    --------
    >>> box = Interval(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    >>> box.shape, bool(box.contains(torch.tensor([0.5, 1.0])).all())
    (torch.Size([2]), True)
    """

    lo: Float[Tensor, "*shape"]
    hi: Float[Tensor, "*shape"]

    def __post_init__(self) -> None:
        if self.lo.dtype != torch.float64 or self.hi.dtype != torch.float64 or self.lo.shape != self.hi.shape:
            raise InvalidValueError(
                "An interval has two float64 ends of one shape, received "
                f"{self.lo.dtype} {list(self.lo.shape)} and {self.hi.dtype} {list(self.hi.shape)}. "
                "Convert with .double() and expand."
            )

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor it speaks of."""
        return self.lo.shape

    @property
    def magnitude(self) -> Tensor:
        """The largest |v|, entry by entry: exact."""
        return torch.maximum(self.lo.abs(), self.hi.abs())

    @property
    def mignitude(self) -> Tensor:
        """The smallest |v|, entry by entry: exact."""
        return torch.maximum(self.lo, -self.hi).clamp_min(0.0)

    @property
    def bounded(self) -> bool:
        """Every end is finite."""
        return all_finite(self.lo) and (self.lo is self.hi or all_finite(self.hi))

    @property
    def degenerate(self) -> bool:
        """Both ends agree everywhere: the value is known."""
        return self.lo is self.hi or bool((self.lo == self.hi).all())

    def contains(self, value: Tensor) -> Tensor:
        """Which entries of a tensor lie inside; of a complex one, with both parts."""
        if value.is_complex():
            parts = torch.view_as_real(value.resolve_conj())
            inside = (parts >= self.lo.unsqueeze(-1)) & (parts <= self.hi.unsqueeze(-1))
            return inside.all(-1)
        return (value >= self.lo) & (value <= self.hi)

    def map(self, function: Callable[[Tensor], Tensor]) -> Interval:
        """Both ends through one function that neither rounds nor turns the order: a change of shape, a choice."""
        if self.lo is self.hi:
            end = function(self.lo)
            return Interval(end, end)
        return Interval(function(self.lo), function(self.hi))

    def expand(self, shape: tuple[int, ...] | torch.Size) -> Interval:
        """The same claim, broadcast."""
        return self.map(lambda end: end.expand(shape))


# ------------------------------------------------------------------ rounding


def all_finite(x: Tensor) -> bool:
    """No entry is infinite or NaN: one pass, for a sum shows either; a sum that overflowed is looked at again."""
    return math.isfinite(float(x.sum(dtype=torch.float64))) or bool(torch.isfinite(x).all())


def up(x: Tensor) -> Tensor:
    """The next float64 above."""
    return torch.nextafter(x, x.new_full((), INF))


def down(x: Tensor) -> Tensor:
    """The next float64 below."""
    return torch.nextafter(x, x.new_full((), -INF))


def gamma(terms: int) -> float:
    """γ_k = k·u/(1 − k·u): the relative error of a sum of k products, any order."""
    return terms * UNIT / (1.0 - terms * UNIT) * (1.0 + 2.0**-40)


def _clean(lo: Tensor, hi: Tensor) -> Interval:
    """No bound where the ends met as ∞ − ∞."""
    return Interval(
        lo.nan_to_num(nan=-INF, posinf=INF, neginf=-INF), hi.nan_to_num(nan=INF, posinf=INF, neginf=-INF)
    )


def settled(lo: Tensor, hi: Tensor) -> Interval:
    """Ends of a sum, one step outwards: one that overflowed, or met another overflow, says nothing at all, for what
    follows the overflow may have taken it back.
    """
    lo, hi = down(lo), up(hi)
    return Interval(
        lo.nan_to_num(nan=-INF, posinf=-INF, neginf=-INF).masked_fill(lo >= LARGEST, -INF),
        hi.nan_to_num(nan=INF, posinf=INF, neginf=INF).masked_fill(hi <= -LARGEST, INF),
    )


def tidy(value: Interval, infinite: Tensor | None = None) -> Interval:
    """A lower end of +∞ (an overflow) is the largest number instead, an upper end of −∞ the least; but not where the
    value can truly be infinite.
    """
    if value.lo is value.hi and all_finite(value.lo):
        return value
    lo, hi = value.lo.clamp_max(LARGEST), value.hi.clamp_min(-LARGEST)
    if infinite is not None:
        lo, hi = torch.where(infinite, value.lo, lo), torch.where(infinite, value.hi, hi)
    return Interval(lo, hi)


def widen(lo: Tensor, hi: Tensor, relative: float = RELATIVE, absolute: float | Tensor = TINY) -> Interval:
    """Both ends moved outwards by a relative and an absolute amount: for functions that are not correctly rounded."""
    low = lo - (relative * lo.abs() + absolute)
    high = hi + (relative * hi.abs() + absolute)
    return _clean(down(low), up(high))


def inflate(value: Interval, absolute: Tensor | float) -> Interval:
    """The interval with a margin on either side."""
    return settled(value.lo - absolute, value.hi + absolute)


# ------------------------------------------------------------------ making intervals


def point(value: Tensor | float) -> Interval:
    """The interval of one known tensor. Whole numbers beyond 2⁵³ are widened by one float64 on either side."""
    if not isinstance(value, Tensor):
        value = torch.tensor(float(value), dtype=torch.float64)
    value = value.detach()
    end = value.to(torch.float64)
    if value.dtype == torch.int64 and value.numel() and int(value.abs().max()) > 2**53:
        return Interval(down(end), up(end))
    return Interval(end, end)


def spread(lo: float, hi: float, shape: tuple[int, ...] | torch.Size) -> Interval:
    """One claim for every entry."""
    low, high = (torch.tensor(end, dtype=torch.float64).expand(shape) for end in (lo, hi))
    return Interval(low, high)


def unbounded(shape: tuple[int, ...] | torch.Size) -> Interval:
    """Nothing is known."""
    return spread(-INF, INF, shape)


def hull(first: Interval, *others: Interval) -> Interval:
    """The smallest interval around several, broadcast together: exact."""
    lo, hi = first.lo, first.hi
    for other in others:
        lo, hi = torch.minimum(lo, other.lo), torch.maximum(hi, other.hi)
    return Interval(lo, hi)


def meet(first: Interval, second: Interval) -> Interval:
    """What both allow, broadcast together: exact. Both hold, so it is empty only if one of them is wrong."""
    return Interval(torch.maximum(first.lo, second.lo), torch.minimum(first.hi, second.hi))


# ------------------------------------------------------------------ arithmetic


def negate(a: Interval) -> Interval:
    """−v: exact."""
    if a.lo is a.hi:
        end = -a.lo
        return Interval(end, end)
    return Interval(-a.hi, -a.lo)


def add(a: Interval, b: Interval) -> Interval:
    """v + w, one unit outwards; a sum of one-signed terms keeps its sign, and a mask of −∞ stays one."""
    lo, hi = down(a.lo + b.lo), up(a.hi + b.hi)
    hi = torch.where((a.hi == -INF) | (b.hi == -INF), -INF, hi)
    lo = torch.where((a.lo == INF) | (b.lo == INF), INF, lo)
    lo = torch.where((a.lo >= 0) & (b.lo >= 0), lo.clamp_min(0.0), lo)
    hi = torch.where((a.hi <= 0) & (b.hi <= 0), hi.clamp_max(0.0), hi)
    return _clean(lo, hi)


def sub(a: Interval, b: Interval) -> Interval:
    """v − w."""
    return add(a, negate(b))


def _product(x: Tensor, y: Tensor) -> Tensor:
    """x·y with 0·∞ = 0."""
    return (x * y).nan_to_num(nan=0.0, posinf=INF, neginf=-INF)


def mul(a: Interval, b: Interval) -> Interval:
    """v·w: extremes at the four corners, one unit outwards; the sign is kept where both signs are known."""
    if a.lo is a.hi and b.lo is b.hi:
        corner = _product(a.lo, b.lo)
        lo = hi = corner
    else:
        first, second = _product(a.lo, b.lo), _product(a.lo, b.hi)
        third, fourth = _product(a.hi, b.lo), _product(a.hi, b.hi)
        lo = torch.minimum(torch.minimum(first, second), torch.minimum(third, fourth))
        hi = torch.maximum(torch.maximum(first, second), torch.maximum(third, fourth))
    lo, hi = down(lo), up(hi)
    alike = ((a.lo >= 0) & (b.lo >= 0)) | ((a.hi <= 0) & (b.hi <= 0))
    opposite = ((a.lo >= 0) & (b.hi <= 0)) | ((a.hi <= 0) & (b.lo >= 0))
    return Interval(torch.where(alike, lo.clamp_min(0.0), lo), torch.where(opposite, hi.clamp_max(0.0), hi))


def scale(a: Interval, number: float) -> Interval:
    """c·v for a number c; exact for 1 and −1."""
    if number == 1.0:
        return a
    return negate(a) if number == -1.0 else mul(a, point(number))


def square(a: Interval) -> Interval:
    """v²."""
    small, large = a.mignitude, a.magnitude
    return Interval(down(small * small).clamp_min(0.0), up(large * large))


def divide(a: Interval, b: Interval) -> Interval:
    """v/w for a w that keeps off 0, or only touches it: its sign is then the other end's."""
    negative = b.hi <= 0
    b = Interval(torch.where(negative, -b.hi, b.lo), torch.where(negative, -b.lo, b.hi))
    a = Interval(torch.where(negative, -a.hi, a.lo), torch.where(negative, -a.lo, a.hi))
    crosses = b.lo < 0
    near, far = b.lo.clamp_min(0.0), b.hi

    def quotient(x: Tensor, y: Tensor) -> Tensor:
        # ∞/∞ happens where both are without bound: any quotient of the sign of x, so the end that claims least.
        return torch.where(x == 0, x, x / y)

    lo = down(torch.where(a.lo < 0, quotient(a.lo, near), quotient(a.lo, far)))
    hi = up(torch.where(a.hi > 0, quotient(a.hi, near), quotient(a.hi, far)))
    lo = torch.where(a.lo >= 0, lo.nan_to_num(nan=0.0, posinf=INF, neginf=-INF).clamp_min(0.0), lo)
    hi = torch.where(a.hi <= 0, hi.nan_to_num(nan=0.0, posinf=INF, neginf=-INF).clamp_max(0.0), hi)
    lo, hi = torch.where(crosses, -INF, lo), torch.where(crosses, INF, hi)
    return _clean(lo, hi)


def power(a: Interval, exponent: float) -> Interval:
    """v^r for a number r, on v ≥ 0 unless r is whole, off 0 if r < 0."""
    if exponent == 0.0:
        ones = torch.ones_like(a.lo)
        return Interval(ones, ones)
    if exponent == 1.0:
        return a
    if exponent == 2.0:
        return square(a)
    if exponent < 0.0:
        return divide(point(1.0).expand(a.shape), power(a, -exponent))
    if not float(exponent).is_integer():
        result = widen(a.lo.clamp_min(0.0).pow(exponent), a.hi.clamp_min(0.0).pow(exponent))
        return Interval(result.lo.clamp_min(0.0), result.hi)
    if exponent % 2 == 0:
        result = widen(a.mignitude.pow(exponent), a.magnitude.pow(exponent))
        return Interval(result.lo.clamp_min(0.0), result.hi)
    result = widen(a.lo.pow(exponent), a.hi.pow(exponent))
    lo = torch.where(a.lo >= 0, result.lo.clamp_min(0.0), result.lo)
    return Interval(lo, torch.where(a.hi <= 0, result.hi.clamp_max(0.0), result.hi))


# ------------------------------------------------------------------ linear maps


def linear_image(
    apply: Callable[[Tensor, Tensor], Tensor], weight: Tensor, value: Interval, terms: int
) -> Interval:
    """What Σ_j w_ij v_j can be, for a known w and v in a box: exact up to rounding.

    With center c and radius r, [c·w − r·|w|, c·w + r·|w|]; the second product carries the rounding of both:
    (r + γ|c|)·|w|, itself rounded up. Where ends are infinite, w⁺ and w⁻ are followed apart.

    Parameters
    ----------
    apply
        (x, w) ↦ the map, linear in either argument: a product, a convolution.
    weight
        w; float64.
    value
        v.
    terms
        How many products an entry of the result sums, at most.
    """
    if not value.bounded:
        return _signed_image(apply, weight, value, terms)
    error = gamma(terms + 4)
    if value.lo is value.hi:
        center, radius = value.lo, error * value.lo.abs()
    else:
        center = value.lo / 2 + value.hi / 2
        radius = up(torch.maximum(up(value.hi - center), up(center - value.lo)))
        radius = radius + error * center.abs()
    middle = apply(center, weight)
    reach = apply(up(radius), weight.abs()) * (1.0 + 2.0 * error)
    # An entry that no weight reaches is exactly 0, and stays so.
    reach = torch.where(reach > 0, reach + UNDERFLOW, reach)
    return _exact_zeros(middle - reach, middle + reach, reach)


def _exact_zeros(lo: Tensor, hi: Tensor, reach: Tensor) -> Interval:
    still, ends = reach == 0, settled(lo, hi)
    return Interval(torch.where(still, lo, ends.lo), torch.where(still, hi, ends.hi))


def _signed_image(
    apply: Callable[[Tensor, Tensor], Tensor], weight: Tensor, value: Interval, terms: int
) -> Interval:
    """As :func:`linear_image`, for boxes with infinite ends: lo = lo·w⁺ + hi·w⁻ where all of these are finite."""
    no_lo, no_hi = torch.isinf(value.lo), torch.isinf(value.hi)
    rises, falls = (weight > 0).to(torch.float64), (weight < 0).to(torch.float64)
    below, above = no_lo.to(torch.float64), no_hi.to(torch.float64)
    open_below = apply(below, rises) + apply(above, falls) > 0.5
    open_above = apply(above, rises) + apply(below, falls) > 0.5
    if bool(open_below.all()) and bool(open_above.all()):
        return unbounded(open_below.shape)
    low, high = value.lo.masked_fill(no_lo, 0.0), value.hi.masked_fill(no_hi, 0.0)
    positive, negative = weight.clamp_min(0.0), weight.clamp_max(0.0)
    reach = apply(torch.maximum(low.abs(), high.abs()), weight.abs()) * gamma(2 * terms + 8)
    reach = torch.where(reach > 0, reach + UNDERFLOW, reach)
    lo = apply(low, positive) + apply(high, negative) - reach
    hi = apply(high, positive) + apply(low, negative) + reach
    image = _exact_zeros(lo, hi, reach)
    return Interval(torch.where(open_below, -INF, image.lo), torch.where(open_above, INF, image.hi))


def linear_map(weight: Tensor, value: Interval, bias: Interval | None = None) -> Interval:
    """W v + b over the last axis, for a known W.

    Parameters
    ----------
    weight
        float64, (out, in).
    value
        (..., in).
    bias
        Broadcast against (..., out).

    Examples
    --------
    >>> box = Interval(torch.tensor([-1.0, 0.0]).double(), torch.tensor([1.0, 2.0]).double())
    >>> image = linear_map(torch.tensor([[1.0, -1.0]]).double(), box)
    >>> round(float(image.lo), 6), round(float(image.hi), 6)
    (-3.0, 1.0)
    """
    image = linear_image(torch.nn.functional.linear, weight, value, weight.shape[-1])
    return image if bias is None else add(image, bias)
