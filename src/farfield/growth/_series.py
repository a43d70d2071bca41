"""Powers, exponentials and logarithms of jets: series in λ around the leading term of each entry."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from farfield.growth._jet import (
    ABOVE,
    FLAT,
    LOG_STEP,
    ROUNDING,
    Jet,
    add,
    constant,
    from_terms,
    multiply,
    select,
    split_power,
    unknown_like,
)
from farfield.growth._leading import lead

__all__ = ["at_limit", "exponential", "logarithm", "power"]

INF = math.inf
ORDER = 8
"""Terms kept of (1 + δ)^r before the rest goes into the floor."""
REAL_POWER = 1 / 64
"""Leading powers at least this large make an exponential smaller, or larger, than every power of λ."""


def at_limit(
    jet: Jet, function: Callable[[Tensor], Tensor], mask: Tensor, jumps: tuple[float, ...] = ()
) -> Jet:
    """f(v) for the entries of a jet that have a finite limit c₀, as f(c₀) + o(1); exact where v is exactly
    c₀.

    Parameters
    ----------
    function
        Continuous at every limit, except at the points of ``jumps``.
    mask
        Entries that have a limit; the others come out as f(0).
    """
    center = torch.where(mask, jet.at(0.0), 0.0)
    value = function(center)
    with torch.no_grad():
        error = torch.where(mask, jet.error_at(0.0), 0.0)
        swing = (function(center + error) - function(center - error)).abs()
        rounding = ROUNDING * value.abs()
        lower = torch.zeros_like(mask)
        for p, v, e in zip(jet.powers, jet.values, jet.errors, strict=True):
            if p < 0:
                lower |= (v != 0) | (e != 0)
        floor = torch.where(jet.full_floor() == -INF, -INF, torch.where(jet.full_floor() <= FLAT, FLAT, 0.0))
        floor = torch.where(lower, 0.0, floor)
        for jump in jumps:
            near = (center - jump).abs() <= 64 * (error + ROUNDING * abs(jump))
            moving = lower | (floor > -INF) | (error > 0)
            floor = torch.where(near & moving, ABOVE, floor)
    return Jet((0.0,), value.unsqueeze(0), (swing + rounding).unsqueeze(0), floor)


def power(jet: Jet, exponent: float, lowest: float) -> Jet:
    """v^r entry by entry, from (cλ^p)^r (1 + δ)^r with the binomial series in δ.

    Where v is certainly zero, positive exponents give 0; where it may be, the size of its remainder decides.
    A negative base needs an integer exponent, a vanishing one a positive exponent: other entries are left
    unknown (floor +∞).
    """
    first = lead(jet)
    whole = float(exponent).is_integer()
    result = unknown_like(jet)
    if exponent > 0:
        rest = torch.where(
            first.limit == -INF, -INF, torch.where(first.limit <= FLAT, FLAT, first.limit * exponent)
        )
        nothing = Jet((0.0,), result.values, result.errors, rest)
        result = select(first.sign == 0, nothing, result)
    for k, p in enumerate(jet.powers):
        mask = (first.power == p) & (torch.ones_like(first.certain) if whole else first.sign > 0)
        if bool(mask.any()):
            result = select(mask, _power_at(jet, k, mask, exponent, lowest), result)
    return result.trimmed(lowest)


def _power_at(jet: Jet, k: int, mask: Tensor, exponent: float, lowest: float) -> Jet:
    """v^r for the entries led by the k-th power."""
    p = jet.powers[k]
    whole, logs = split_power(p)
    target = whole * exponent + logs * exponent * LOG_STEP
    if not (whole * exponent * 64).is_integer():
        return unknown_like(jet, target + ABOVE)
    leading = torch.where(mask, jet.values[k], 1.0)
    head = leading**exponent
    with torch.no_grad():
        relative = torch.where(mask, jet.errors[k], 0.0) / leading.abs()
        head_error = head.abs() * (abs(exponent) * relative + 4 * ROUNDING)
    floor = torch.where(mask, jet.full_floor(), -INF) - p
    terms: dict[float, tuple[Tensor, Tensor]] = {}
    for q, value, error in zip(jet.powers[k + 1 :], jet.values[k + 1 :], jet.errors[k + 1 :], strict=True):
        tail = torch.where(mask, value, 0.0) / leading
        with torch.no_grad():
            tail_error = torch.where(mask, error, 0.0) / leading.abs() + (relative + ROUNDING) * tail.abs()
        terms[q - p] = (tail, tail_error)
    below = lowest - target
    series = constant(torch.ones_like(leading))
    if terms:
        delta = from_terms(terms, floor)
        term, factor = delta, exponent
        for n in range(1, ORDER + 1):
            series = add(
                series, Jet(term.powers, factor * term.values, abs(factor) * term.errors, term.floor)
            )
            if term.powers[0] < below or factor == 0.0:
                break
            if n == ORDER:
                series = series.raised(n * max(terms))
                break
            factor *= (exponent - n) / (n + 1)
            term = multiply(term, delta, below)
    else:
        series = series.raised(floor)
    values = series.values * head
    errors = series.errors * head.detach().abs() + series.values.detach().abs() * head_error
    return Jet(tuple(s + target for s in series.powers), values, errors, series.floor + target)


def exponential(jet: Jet) -> Jet:
    """exp(v): the limit, 0 (exponentially fast), or unknown where v grows: faster than every power."""
    first = lead(jet)
    settled = torch.where(first.certain, first.power, first.limit) <= 0.0
    dying = first.certain & (first.power >= REAL_POWER) & (first.sign < 0)
    gone = constant(torch.zeros(jet.shape, dtype=torch.float64, device=jet.values.device)).raised(FLAT)
    sinking = first.certain & (first.power > 0) & (first.power < REAL_POWER) & (first.sign < 0)
    result = select(dying, gone, unknown_like(jet))
    result = select(sinking, gone.raised(0.0), result)
    return select(settled, at_limit(jet, torch.exp, settled), result)


def logarithm(jet: Jet, lowest: float) -> Jet:
    """log(v) for entries that are certainly positive at infinity: log(cλ^p) = p·log λ + log c + o(1)."""
    first = lead(jet)
    result = unknown_like(jet)
    for k, p in enumerate(jet.powers):
        mask = (first.power == p) & (first.sign > 0)
        if not bool(mask.any()):
            continue
        leading = torch.where(mask, jet.values[k], 1.0)
        with torch.no_grad():
            error = torch.where(mask, jet.errors[k], 0.0) / leading.abs() + ROUNDING * leading.log().abs()
            single = torch.ones_like(mask)
            for q, v, e in zip(jet.powers, jet.values, jet.errors, strict=True):
                if q < p:
                    single &= (v == 0) & (e == 0)
            floor = torch.where(single & (jet.full_floor() == -INF), -INF, 0.0)
        whole, logs = split_power(p)
        if logs:
            # log(λ^p (log λ)^q) holds a log log λ, which is o(log λ) and not on the scale of powers.
            floor = torch.full_like(floor, LOG_STEP)
        terms = {0.0: (leading.log(), error)}
        if whole:
            terms[LOG_STEP] = (torch.full_like(leading, whole), torch.zeros_like(error))
        result = select(mask, from_terms(terms, floor), result)
    return result.trimmed(lowest)
