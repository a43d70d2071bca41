"""Jets at infinity: what a tensor does along the ray λu as λ → ∞, as a truncated series in λ.

    v(λ) = Σ_p c_p λ^p + o(λ^floor),        p in ``powers``, largest first.

Powers may be fractional (square roots) and negative (reciprocals); log λ is the infinitesimal power
``LOG_STEP``. Every c_p with p ≥ floor is exact in real arithmetic; computed in float64, it carries an
estimate of its rounding error. ``floor`` is kept per entry: −∞ says that v *is* the sum, ``FLAT`` that the
remainder is smaller than every power (exponentially small), +∞ that nothing is known. A decision that depends
on whether a coefficient vanishes (which side of a ReLU, which token wins a softmax) is taken only outside the
rounding error: see ``farfield.growth._leading``. A coefficient within it raises the entry's floor instead, so
that doubt travels with the numbers it touches and a direction is reported as degenerate rather than guessed.

Errors are propagated as root-sum-squares (rounding errors are close to independent), not as worst cases,
which would drown every deep network; the decision threshold ``TOLERANCE`` leaves a wide margin for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from farfield.growth._rate import LOG_STEP

__all__ = ["ABOVE", "FLAT", "LOG_STEP", "TOLERANCE", "Jet", "constant", "ray"]

ROUNDING = 2.0**-53
TOLERANCE = 64.0
"""A coefficient counts as non-zero when it exceeds this many times its estimated rounding error."""
FLAT = -1e30
"""Floor of a remainder smaller than every power of λ, yet not identically zero."""
ABOVE = 2.0**-40
"""Smaller than any power in use: a bounded unknown is o(λ^ABOVE)."""
MASKS = (math.inf, *(torch.finfo(t).max for t in (torch.float64, torch.float32, torch.bfloat16)))
"""Sizes that stand for infinity: ±∞, and the largest number of a type, which is how attention masks are written."""
MASKED = 512.0
"""The power that stands for infinity."""
HIGHEST = 128.0
"""Powers above this are not followed."""
MOST_POWERS = 40
"""Of one jet; the lowest are dropped into the floor."""
UNTRACED = -1
"""Origin of an entry that is not known to be a copy of anything."""
INF = math.inf


@dataclass(frozen=True, slots=True, eq=False)
class Jet:
    """A tensor-valued truncated series in λ; see the module's docstring.

    Parameters
    ----------
    powers
        Strictly descending.
    values, errors
        Shape ``(len(powers), *shape)``: coefficients and estimates of their rounding errors.
    floor
        Broadcastable to ``shape``: the remainder of that entry is o(λ^floor).
    origin
        A number for every entry, shared by entries that are copies of one another (the largest of a row and
        its place in the row): their difference is exactly 0, not a rounded one. ``None`` where not kept.
    """

    powers: tuple[float, ...]
    values: Tensor
    errors: Tensor
    floor: Tensor
    origin: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor the series stands for."""
        return self.values.shape[1:]

    @property
    def ndim(self) -> int:
        """Number of axes of the tensor the series stands for."""
        return self.values.ndim - 1

    @property
    def is_constant(self) -> bool:
        """Exactly its power-0 coefficient, everywhere."""
        return self.powers == (0.0,) and bool((self.floor == -INF).all())

    def at(self, power: float) -> Tensor:
        """The coefficient of λ^power (zeros where there is none)."""
        if power in self.powers:
            return self.values[self.powers.index(power)]
        return torch.zeros_like(self.values[0])

    def error_at(self, power: float) -> Tensor:
        """The rounding error of the coefficient of λ^power."""
        if power in self.powers:
            return self.errors[self.powers.index(power)]
        return torch.zeros_like(self.errors[0])

    def full_floor(self) -> Tensor:
        """The floor with one entry per entry of the tensor."""
        return self.floor.expand(self.shape)

    def top(self) -> Tensor:
        """Highest power an entry can reach: of a coefficient that is not exactly 0, or of the remainder."""
        with torch.no_grad():
            top = self.full_floor()
            for k in range(len(self.powers) - 1, -1, -1):
                alive = (self.values[k] != 0) | (self.errors[k] != 0)
                top = torch.where(alive & (top < self.powers[k]), self.powers[k], top)
            return top

    def raised(self, floor: Tensor | float) -> Jet:
        """The same series with at least this floor."""
        if not isinstance(floor, Tensor):
            floor = torch.full((), float(floor), dtype=torch.float64, device=self.floor.device)
        old, new = torch.broadcast_tensors(self.floor, floor)
        origin = self.origin
        if origin is not None:
            # What is no longer known to be this entry is no copy of it either.
            origin = torch.where((new > old).expand(self.shape), UNTRACED, origin)
        return replace(self, floor=torch.maximum(old, new), origin=origin)

    def trimmed(self, lowest: float) -> Jet:
        """Without powers below ``lowest`` or below every floor, and without powers that vanish identically.

        Of more than ``MOST_POWERS`` the lowest go too; an entry that reaches a power above ``HIGHEST`` is lost.
        """
        floor = self.floor
        with torch.no_grad():
            least = float(floor.min()) if floor.numel() else -INF
            alive = [k for k, p in enumerate(self.powers) if p >= least and bool(self._moves(k).any())]
            if len(alive) > MOST_POWERS:
                lowest = max(lowest, self.powers[alive[MOST_POWERS - 1]])
            keep = []
            for k in alive:
                power = self.powers[k]
                if HIGHEST < power < MASKED - HIGHEST:
                    floor = torch.where(self._moves(k), INF, floor.expand(self.shape))
                elif power >= lowest:
                    keep.append(k)
                else:
                    floor = torch.where(self._moves(k) & (floor < lowest), lowest, floor.expand(self.shape))
        if len(keep) == len(self.powers) and floor is self.floor:
            return self
        if not keep:
            nothing = torch.zeros_like(self.values[:1])
            return Jet((0.0,), nothing, torch.zeros_like(self.errors[:1]), floor, self.origin)
        powers = tuple(self.powers[k] for k in keep)
        return Jet(powers, self.values[keep], self.errors[keep], floor, self.origin)

    def _moves(self, k: int) -> Tensor:
        """Entries whose k-th coefficient is not exactly 0."""
        return (self.values[k] != 0) | (self.errors[k] != 0)

    def evaluate(self, scale: float) -> Tensor:
        """The sum at λ = ``scale``, remainder left out."""
        weights = [monomial(p, scale) for p in self.powers]
        return torch.stack([w * c for w, c in zip(weights, self.values, strict=True)]).sum(0)


def split_power(power: float) -> tuple[float, float]:
    """(p, q) of the power p + q·LOG_STEP, where p is a multiple of 1/64."""
    whole = round(power * 64) / 64
    return whole, (power - whole) / LOG_STEP


def monomial(power: float, scale: float) -> float:
    """λ^p (log λ)^q for the power p + q·LOG_STEP."""
    whole, logs = split_power(power)
    return float(scale**whole * math.log(scale) ** logs) if logs else float(scale**whole)


def _nothing(shape: torch.Size, device: torch.device) -> Tensor:
    """One power's worth of zeros, as a view of a single number: a constant's error needs no memory."""
    return torch.zeros((1, *(1,) * len(shape)), dtype=torch.float64, device=device).expand(1, *shape)


def _largest(tensor: Tensor) -> float:
    """The largest |entry|, without a copy."""
    if tensor.numel() == 0:
        return 0.0
    low, high = tensor.detach().aminmax()
    return max(abs(float(low)), abs(float(high)))


def constant(tensor: Tensor, *, narrow: bool = False) -> Jet:
    """A value that does not move: its only power is 0 and it is exact.

    Entries of a size among ``MASKS`` become a coefficient of the power ``MASKED``, above every power a network
    reaches, so that comparisons treat them as infinite. Every other number is the number it is, however large.
    ``narrow`` leaves a large weight in its own type, for a rule that converts it block by block.
    """
    narrow = narrow and _largest(tensor) < min(MASKS)
    if tensor.is_floating_point() and not narrow:
        tensor = tensor.to(torch.float64)
    elif tensor.is_complex():
        tensor = tensor.to(torch.complex128)
    zeros = _nothing(tensor.shape, tensor.device)
    floor = torch.full((1,) * tensor.ndim, -INF, dtype=torch.float64, device=tensor.device)
    if not narrow and tensor.is_floating_point() and _largest(tensor) >= min(MASKS):
        masked = torch.isin(
            tensor.detach().abs(), torch.tensor(MASKS, dtype=torch.float64, device=tensor.device)
        )
        finite = torch.where(masked, torch.zeros_like(tensor), tensor)
        high = torch.where(masked, tensor.detach().sign(), torch.zeros_like(tensor))
        return Jet((MASKED, 0.0), torch.stack([high, finite]), zeros.expand(2, *tensor.shape), floor)
    return Jet((0.0,), tensor.unsqueeze(0), zeros, floor)


def ray(direction: Tensor, base: Tensor | None = None) -> Jet:
    """base + λ·direction, exactly."""
    direction = direction.to(torch.float64)
    parts = [direction] if base is None else [direction, base.to(torch.float64)]
    values = torch.stack(parts)
    floor = torch.full((1,) * direction.ndim, -INF, dtype=torch.float64, device=direction.device)
    return Jet((1.0, 0.0)[: len(parts)], values, torch.zeros_like(values).detach(), floor)


def from_terms(terms: dict[float, tuple[Tensor, Tensor]], floor: Tensor) -> Jet:
    """A jet from its coefficients and errors by power."""
    powers = tuple(sorted(terms, reverse=True))
    return Jet(
        powers,
        torch.stack([terms[p][0] for p in powers]),
        torch.stack([terms[p][1] for p in powers]),
        floor,
    )


def aligned(jets: Sequence[Jet]) -> tuple[tuple[float, ...], list[tuple[Tensor, Tensor]]]:
    """The union of the powers, and each jet's values and errors spread over it."""
    powers = tuple(sorted({p for jet in jets for p in jet.powers}, reverse=True))
    spread = []
    for jet in jets:
        if jet.powers == powers:
            spread.append((jet.values, jet.errors))
        else:
            spread.append(
                (
                    torch.stack([jet.at(p) for p in powers]),
                    torch.stack([jet.error_at(p) for p in powers]),
                )
            )
    return powers, spread


def unknown_like(jet: Jet, floor: float = INF) -> Jet:
    """Nothing but a size: zero coefficients and the given floor."""
    return Jet(
        (0.0,),
        torch.zeros((1, *jet.shape), dtype=torch.float64, device=jet.values.device),
        torch.zeros((1, *jet.shape), dtype=torch.float64, device=jet.values.device),
        torch.full((1,) * jet.ndim, floor, dtype=torch.float64, device=jet.values.device),
    )


def as_real(jet: Jet) -> Jet:
    """Booleans and integers as numbers, for arithmetic with others."""
    if jet.values.is_floating_point() or jet.values.is_complex():
        return jet
    return Jet(jet.powers, jet.values.to(torch.float64), jet.errors, jet.floor)


def stored(jet: Jet, dtype: torch.dtype | None) -> Jet:
    """Whole numbers kept in an integer type: what leaves its range wraps around and is not followed.

    64 bits count as enough for what grows.
    """
    if dtype is None or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return jet
    limits = torch.iinfo(dtype)
    with torch.no_grad():
        inside = (jet.at(0.0) >= limits.min) & (jet.at(0.0) <= limits.max)
        if limits.bits < 64:
            inside = inside & (jet.top() <= ABOVE)
        if bool(inside.all()):
            return jet
        size = ABOVE if limits.bits <= 16 else INF
        return jet.raised(torch.where(inside, -INF, size).to(torch.float64))


def broadcast_stacks(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two stacks of coefficients with the tensors' own axes broadcast from the right, as torch does."""
    rank = max(a.ndim, b.ndim)
    a = a.reshape(a.shape[0], *(1,) * (rank - a.ndim), *a.shape[1:])
    b = b.reshape(b.shape[0], *(1,) * (rank - b.ndim), *b.shape[1:])
    return a, b


def select(mask: Tensor, yes: Jet, no: Jet) -> Jet:
    """``yes`` where the mask is true, ``no`` elsewhere."""
    powers, [(va, ea), (vb, eb)] = aligned([yes, no])
    va, vb = broadcast_stacks(va, vb)
    ea, eb = broadcast_stacks(ea, eb)
    values = torch.where(mask, va, vb)
    errors = torch.where(mask, ea, eb)
    fa, fb = torch.broadcast_tensors(yes.floor, no.floor)
    floor = torch.where(mask, fa, fb)
    if yes.origin is None or no.origin is None:
        return Jet(powers, values, errors, floor)
    oa, ob = torch.broadcast_tensors(yes.origin, no.origin)
    return Jet(powers, values, errors, floor, torch.where(mask, oa, ob))


def linear_map(
    jet: Jet,
    apply: Callable[[Tensor], Tensor],
    apply_squared: Callable[[Tensor], Tensor],
    floor: Tensor,
) -> Jet:
    """A linear operator on every coefficient.

    Parameters
    ----------
    apply
        The operator, without its bias.
    apply_squared
        The operator with squared weights, which takes squared errors to squared errors.
    floor
        The floor of the result.
    """
    values = torch.stack([apply(v) for v in jet.values])
    with torch.no_grad():
        squares = [
            apply_squared(e.square() + ROUNDING**2 * v.abs().square())
            for e, v in zip(jet.errors, jet.values, strict=True)
        ]
        errors = torch.stack(squares).abs().sqrt()
    return Jet(jet.powers, values, errors, floor)


def add(a: Jet, b: Jet) -> Jet:
    """The sum, coefficient by coefficient; only the rounding of the result is added to the errors."""
    powers, [(va, ea), (vb, eb)] = aligned([as_real(a), as_real(b)])
    va, vb = broadcast_stacks(va, vb)
    ea, eb = broadcast_stacks(ea, eb)
    values = va + vb
    with torch.no_grad():
        errors = ea + eb + ROUNDING * values.abs()
        lone = (va == 0) | (vb == 0)
        errors = torch.where(lone, ea + eb, errors)
    floor = torch.maximum(*torch.broadcast_tensors(a.floor, b.floor))
    return Jet(powers, values, errors, floor)


def scale(a: Jet, factor: float) -> Jet:
    """c·v for a number c."""
    a = as_real(a)
    if factor == 0.0:
        return constant(torch.zeros(a.shape, dtype=a.values.dtype, device=a.values.device))
    values = a.values * factor
    exact = math.frexp(abs(factor))[0] == 0.5
    errors = a.errors * abs(factor)
    if not exact:
        errors = errors + ROUNDING * values.detach().abs()
    return Jet(a.powers, values, errors, a.floor)


def shift(a: Jet, number: float) -> Jet:
    """v + c for a number c."""
    if number == 0.0:
        return a
    return add(a, constant(torch.full((1,) * a.ndim, number, dtype=torch.float64, device=a.values.device)))


def product_floor(a: Jet, b: Jet, top_a: Tensor, top_b: Tensor) -> Tensor:
    """Floor of a product: each remainder times the other factor's highest power; an exact zero absorbs anything."""

    def reach(top: Tensor, floor: Tensor) -> Tensor:
        top, floor = torch.broadcast_tensors(top, floor)
        total = torch.where((top == -INF) | (floor == -INF), -INF, top + floor)
        return torch.where((top == INF) & (floor > -INF), INF, total)

    return torch.maximum(*torch.broadcast_tensors(reach(top_a, b.floor), reach(top_b, a.floor)))


def convolve(
    a: Jet,
    b: Jet,
    times: Callable[[Tensor, Tensor], Tensor],
    floor: Tensor,
    lowest: float,
) -> Jet:
    """A bilinear operator on two jets: coefficients convolve, and powers below ``lowest`` go into the floor.

    ``times`` must also be valid on squares (products and contractions are), for the errors.
    """
    a, b = as_real(a), as_real(b)
    terms: dict[float, tuple[Tensor, Tensor]] = {}
    dropped: Tensor | None = None
    for p, va, ea in zip(a.powers, a.values, a.errors, strict=True):
        for q, vb, eb in zip(b.powers, b.values, b.errors, strict=True):
            if p + q < lowest:
                with torch.no_grad():
                    lost = times((va != 0).to(torch.float64), (vb != 0).to(torch.float64)) != 0
                    dropped = lost if dropped is None else dropped | lost
                continue
            value = times(va, vb)
            with torch.no_grad():
                sa, sb = va.abs().square(), vb.abs().square()
                loss = ROUNDING**2 * sb
                if times is torch.mul:  # what is multiplied by ±1 is not rounded
                    loss = loss * ((va.abs() != 1.0) & (vb.abs() != 1.0))
                variance = times(sa, eb.square() + loss) + times(ea.square(), sb + eb.square())
            if p + q in terms:
                old_value, old_variance = terms[p + q]
                value = old_value + value
                variance = old_variance + variance + ROUNDING**2 * value.detach().abs().square()
            terms[p + q] = (value, variance)
    if dropped is not None:
        floor = torch.where(dropped & (floor < lowest), lowest, floor.expand(dropped.shape))
    if not terms:
        example = times(a.values[0], b.values[0])
        terms[0.0] = (torch.zeros_like(example), torch.zeros_like(example).abs())
    return from_terms({p: (v, s.abs().sqrt()) for p, (v, s) in terms.items()}, floor)


def multiply(a: Jet, b: Jet, lowest: float) -> Jet:
    """The entrywise product."""
    floor = product_floor(a, b, a.top(), b.top())
    return convolve(a, b, torch.mul, floor, lowest)


def matmul(a: Jet, b: Jet, lowest: float) -> Jet:
    """The matrix product (both at least matrices; see the rule for vectors)."""
    top_a, top_b = a.top().amax(-1, keepdim=True), b.top().amax(-2, keepdim=True)
    floor_a = a.full_floor().amax(-1, keepdim=True)
    floor_b = b.full_floor().amax(-2, keepdim=True)
    floor = product_floor(replace(a, floor=floor_a), replace(b, floor=floor_b), top_a, top_b)
    return convolve(a, b, torch.matmul, floor, lowest)
