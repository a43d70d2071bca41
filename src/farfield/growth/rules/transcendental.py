"""Roots, exponentials, logarithms and the functions built from them: where domains and poles matter."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from farfield.growth._extent import (
    Extent,
    Reason,
    inherit,
    interval,
    undefined,
    widened,
)
from farfield.growth._rate import BOUNDED, CONSTANT, LOGARITHMIC, SINGULAR, Rate
from farfield.growth._registry import Site, growth_rule, is_complex

__all__ = ["exponential", "logarithm", "rooted"]

INF = math.inf
SMALLEST = math.ulp(0.0)
"""An exponential is never 0, however little float64 has of it."""


def exponential(value: Extent) -> Extent:
    """e^v: positive; bounded above exactly when v is."""
    least = CONSTANT if value.constant else BOUNDED
    upper = max(least, value.upper.exponential())
    if value.constant and upper < SINGULAR:
        upper = CONSTANT
    return inherit(
        Extent(least, upper, widened(_exp(value.lo), up=False), widened(_exp(value.hi), up=True) or SMALLEST),
        value,
    )


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return INF


def logarithm(value: Extent, node: str) -> Extent:
    """Ln v: needs v ≥ 0; a pole below where v can reach 0."""
    if value.lo < 0.0:
        return undefined(
            node, f"a logarithm of a number only known to lie in [{value.lo:.4g}, {value.hi:.4g}]", value
        )
    least = CONSTANT if value.constant else BOUNDED
    upper = max(least, value.upper.logarithm())
    hi = INF if math.isinf(value.hi) else (widened(math.log(value.hi), up=True) if value.hi > 0 else -INF)
    if value.lo > 0.0:
        return inherit(Extent(least, upper, widened(math.log(value.lo), up=False), hi), value)
    result = inherit(Extent(SINGULAR, upper, -INF, hi), value)
    return result.with_poles(Reason(node, "a logarithm of a number that can reach 0"))


def rooted(value: Extent, node: str) -> Extent:
    """√v: needs v ≥ 0; halves the degree."""
    if value.lo < 0.0:
        return undefined(
            node, f"a square root of a number only known to lie in [{value.lo:.4g}, {value.hi:.4g}]", value
        )
    least = CONSTANT if value.constant else BOUNDED
    hi = widened(math.sqrt(value.hi), up=True) if math.isfinite(value.hi) else INF
    upper = max(least, value.upper.to_the(0.5))
    return inherit(Extent(least, upper, widened(math.sqrt(value.lo), up=False), hi), value)


@growth_rule("sqrt")
def _sqrt(site: Site) -> Extent:
    return rooted(site.extent(0), site.name)


@growth_rule("exp")
def _exp_rule(site: Site) -> Extent:
    x = site.extent(0)
    if not site.complex:
        return exponential(x)
    # |e^z| = e^{Re z}, and what is known of z holds for its real part.
    still = _is_imaginary(site.node.inputs[0], site)
    size = exponential(interval(0.0, 0.0, x) if still else x)
    rate = CONSTANT if x.constant else max(BOUNDED, size.upper)
    return inherit(Extent(rate, rate, -size.hi, size.hi), x)


def _is_imaginary(value: object, site: Site) -> bool:
    """Whether a node, or a number, has the real part 0: products of real numbers with one imaginary one."""
    if not isinstance(value, str):
        return isinstance(value, complex) and value.real == 0.0
    node = site.lookup(value)
    if node.op == "neg":
        return _is_imaginary(node.inputs[0], site)
    if node.op != "mul" or not is_complex(node):
        return False
    pair = [
        node.attributes.get(a) if n is None else n
        for n, a in zip(node.inputs, ("input", "other"), strict=True)
    ]
    return any(
        _is_imaginary(one, site)
        and (isinstance(two, int | float) or (isinstance(two, str) and not is_complex(site.lookup(two))))
        for one, two in (pair, pair[::-1])
    )


@growth_rule("log")
def _log(site: Site) -> Extent:
    return logarithm(site.extent(0), site.name)


@growth_rule("cosh")
def _cosh(site: Site) -> Extent:
    x = site.extent(0)
    size = x.magnitude
    hi = widened(float(torch.cosh(torch.tensor(size, dtype=torch.float64))), up=True)
    least = CONSTANT if x.constant else BOUNDED
    return inherit(Extent(least, max(least, x.rate.exponential()), 1.0, hi), x)


def _rising(value: Extent, function: Callable[[torch.Tensor], torch.Tensor], upper: Rate = BOUNDED) -> Extent:
    """An increasing function, bounded below: the interval is mapped through it."""
    ends = [float(function(torch.tensor(end, dtype=torch.float64))) for end in (value.lo, value.hi)]
    least = CONSTANT if value.constant else BOUNDED
    claim = Extent(least, max(least, upper), widened(ends[0], up=False), widened(ends[1], up=True))
    return inherit(claim, value)


@growth_rule("tan")
def _tan(site: Site) -> Extent:
    x = site.extent(0)
    if x.lo < -1.57 or x.hi > 1.57:
        what = "tan, which has poles at ±π/2, of a number"
        return undefined(site.name, f"{what} only known to lie in [{x.lo:.4g}, {x.hi:.4g}]", x)
    return _rising(x, torch.tan)


@growth_rule("lgamma")
def _lgamma(site: Site) -> Extent:
    x = site.extent(0)
    if x.lo <= 0.0:
        return undefined(site.name, "ln Γ of a number that may reach a pole at 0 or below", x)
    rate = (
        CONSTANT
        if x.constant
        else max(BOUNDED, x.upper.times(LOGARITHMIC) if not x.upper.finite else BOUNDED)
    )
    lo, hi = -0.1214863, INF
    if math.isfinite(x.hi):
        hi = widened(max(math.lgamma(x.lo), math.lgamma(x.hi)), up=True)
    return inherit(Extent(min(rate, BOUNDED), rate, lo, hi), x)


@growth_rule("digamma")
def _digamma(site: Site) -> Extent:
    x = site.extent(0)
    if x.lo <= 0.0:
        return undefined(site.name, "Γ′/Γ of a number that may reach a pole at 0 or below", x)
    return _rising(x, torch.digamma, x.upper.logarithm())
