"""Jets of scalar functions: by the sign of the leading coefficient at infinity, exactly at a finite limit."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from farfield.gaussian import ScalarFunction, Tail, scalar_function, scalar_function_names
from farfield.graph import describe
from farfield.growth._jet import (
    ABOVE,
    FLAT,
    Jet,
    add,
    as_real,
    constant,
    multiply,
    scale,
    select,
    shift,
    unknown_like,
)
from farfield.growth._leading import Lead, difference, lead, maximum, minimum
from farfield.growth._series import REAL_POWER, at_limit, exponential, logarithm, power
from farfield.growth._step import JetRule, Step, jet_rule, register_jet_rule

__all__ = ["apply_scalar", "limit_only", "settled", "whole_power"]

INF = math.inf
LARGEST_WHOLE = 16


def settled(first: Lead) -> Tensor:
    """Entries that tend to a finite limit."""
    return torch.where(first.certain, first.power, first.limit) <= 0.0


def apply_scalar(jet: Jet, f: ScalarFunction | None) -> Jet:
    """f(v): the tail that v runs into, or f(lim v); where rounding hides which, only the size is kept.

    ``None``, parameters that the table does not describe, is unknown.
    """
    if f is None:
        return unknown_like(jet)
    first = lead(jet)
    if f.homogeneous:
        sides = select(first.sign > 0, scale(jet, f.right.slope), scale(jet, f.left.slope))
        return sides.raised(torch.where(first.certain, -INF, first.limit))
    near = settled(first)
    result = at_limit(jet, f.function, near, tuple(place for place, *_ in f.jumps))
    if f.right.remainder == "bounded" and f.right.slope != 0.0 and not jet.is_constant:
        result = result.raised(ABOVE)
    far = first.certain & (first.power > 0.0)
    result = select(far & (first.sign > 0), _tail(jet, first, f.right), result)
    result = select(far & (first.sign < 0), _tail(jet, first, f.left), result)
    bounded = f.left.slope == 0.0 and f.right.slope == 0.0
    size = torch.full_like(first.limit, ABOVE) if bounded else first.limit.clamp_min(ABOVE)
    lost = Jet((0.0,), torch.zeros_like(result.values[:1]), torch.zeros_like(result.errors[:1]), size)
    return select(~near & ~far, lost, result)


def _tail(jet: Jet, first: Lead, tail: Tail) -> Jet:
    """slope·v + offset with the floor of the tail's remainder."""
    line = scale(jet, tail.slope)
    if tail.remainder == "bounded":
        return line.raised(ABOVE)
    line = shift(line, tail.offset)
    if tail.remainder == "exact":
        return line
    if tail.remainder == "flat":
        return line.raised(torch.where(first.power >= REAL_POWER, FLAT, 0.0))
    return line.raised(torch.where(first.power >= REAL_POWER, ABOVE - first.power, 0.0))


def whole_power(jet: Jet, exponent: int, lowest: float) -> Jet:
    """v^n by repeated multiplication: no decision about signs or zeros is needed."""
    result: Jet | None = None
    base = jet
    while exponent:
        if exponent & 1:
            result = base if result is None else multiply(result, base, lowest)
        exponent >>= 1
        if exponent:
            base = multiply(base, base, lowest)
    return result if result is not None else constant(torch.ones(jet.shape, dtype=torch.float64))


def _rule(step: Step) -> Jet:
    jet = step.jet()
    if jet.values.is_complex():
        return _modulus(jet, step.lowest) if step.node.op == "abs" else unknown_like(jet)
    found = apply_scalar(jet, describe(step.node).scalar)
    return found if step.phase is None or step.node.op not in ("sin", "cos") else _recurring(step, jet, found)


def _recurring(step: Step, jet: Jet, other: Jet) -> Jet:
    """The value that the sine of aλ + b + o(1) comes back to: what it is at λ = ``phase``."""
    first, phase = lead(jet), step.phase or 0.0
    swings = first.certain & (first.power == 1.0) & (jet.full_floor() <= 0.0)
    for power_of, value, error in zip(jet.powers, jet.values, jet.errors, strict=True):
        if power_of > 0.0 and power_of != 1.0:
            swings = swings & (value == 0) & (error == 0)
    value = step.compute(jet.at(1.0) * phase + jet.at(0.0))
    error = jet.error_at(1.0) * phase + jet.error_at(0.0) + 1e-12
    floor = torch.zeros_like(first.power)
    return select(swings, Jet((0.0,), value[None], error[None], floor), other)


for _name in scalar_function_names():
    register_jet_rule(_name, _rule)


def _modulus(jet: Jet, lowest: float) -> Jet:
    parts = [Jet(jet.powers, p, jet.errors, jet.floor) for p in (jet.values.real, jet.values.imag)]
    total = add(*(multiply(p, p, lowest) for p in parts))
    return power(total, 0.5, lowest)


@jet_rule("prelu")
def _prelu(step: Step) -> Jet:
    x, weight = step.jet(0), step.jet(1)
    if weight.ndim == 1 and weight.shape[0] > 1 and x.ndim > 2:
        shape = (-1, *(1,) * (x.ndim - 2))
        weight = Jet(
            weight.powers,
            weight.values.reshape(len(weight.powers), *shape),
            weight.errors.reshape(len(weight.powers), *shape),
            weight.full_floor().reshape(shape),
        )
    positive, negative = (apply_scalar(side, scalar_function("relu")) for side in (x, scale(x, -1.0)))
    return add(positive, multiply(scale(negative, -1.0), weight, step.lowest))


@jet_rule("add")
def _add(step: Step) -> Jet:
    return add(
        step.operand(0, "input"), scale(step.operand(1, "other"), float(step.attributes.get("alpha", 1)))
    )


@jet_rule("sub")
def _sub(step: Step) -> Jet:
    alpha = float(step.attributes.get("alpha", 1))
    other = step.operand(1, "other")
    return difference(step.operand(0, "input"), other if alpha == 1.0 else scale(other, alpha))


@jet_rule("div")
def _div(step: Step) -> Jet:
    quotient = multiply(
        step.operand(0, "input"), power(step.operand(1, "other"), -1.0, step.lowest), step.lowest
    )
    rounding = step.attributes.get("rounding_mode")
    if rounding:
        return apply_scalar(quotient, scalar_function("floor" if rounding == "floor" else "trunc"))
    return quotient


@jet_rule("pow")
def _pow(step: Step) -> Jet:
    base, exponent = step.operand(0, "input"), step.operand(1, "exponent")
    if exponent.is_constant:
        number = exponent.values[0]
        if bool((number == number.reshape(-1)[0]).all()):
            r = float(number.reshape(-1)[0])
            if r == 0.0:
                return constant(torch.ones(base.shape, dtype=torch.float64, device=base.values.device))
            if r.is_integer() and 0 < r <= LARGEST_WHOLE:
                return whole_power(base, int(r), step.lowest)
            return power(base, r, step.lowest)
    if base.is_constant and bool((base.values > 0).all()):
        return exponential(multiply(exponent, constant(base.values[0].log()), step.lowest))
    return _limit_of_pair(step, base, exponent)


def _limit_of_pair(step: Step, a: Jet, b: Jet) -> Jet:
    """A power of two jets where both have limits and that of the base is positive; unknown elsewhere."""
    a, b = as_real(a), as_real(b)
    # A power is continuous where its base is positive: 0⁰ and 0^(−ε) are nobody's limit.
    above = lead(replace(a, powers=(0.0,), values=a.at(0.0)[None], errors=a.error_at(0.0)[None]))
    near = settled(lead(a)) & settled(lead(b)) & (above.sign > 0)
    left = torch.where(near, a.at(0.0), 1.0)
    right = torch.where(near, b.at(0.0), 1.0)
    value = step.compute(left, right)
    found = constant(value).raised(0.0)
    return select(near, found, unknown_like(found))


@jet_rule("exp")
def _exp(step: Step) -> Jet:
    return unknown_like(step.jet()) if step.jet().values.is_complex() else exponential(step.jet())


@jet_rule("asinh")
def _asinh(step: Step) -> Jet:
    jet = step.jet()
    first = lead(jet)
    far = first.certain & (first.power > 0.0)
    size = logarithm(scale(apply_scalar(jet, scalar_function("abs")), 2.0), step.lowest).raised(0.0)
    signed = select(first.sign < 0, scale(size, -1.0), size)
    near = settled(first)
    result = at_limit(jet, torch.asinh, near)
    return select(near, result, select(far, signed, unknown_like(jet)))


@jet_rule("tan", "lgamma", "digamma", "cosh")
def limit_only(step: Step) -> Jet:
    """The function of a finite limit; nothing is known at infinity."""
    jet = step.jet()
    near = settled(lead(jet))
    return select(near, at_limit(jet, step.compute, near), unknown_like(jet))


@jet_rule("clamp")
def _clamp(step: Step) -> Jet:
    result = step.jet()
    for index, attribute, limit in ((1, "min", maximum), (2, "max", minimum)):
        if step.present(index) or step.attributes.get(attribute) is not None:
            result = limit(result, step.operand(index, attribute))
    return result


@jet_rule("atan2")
def _atan2(step: Step) -> Jet:
    a, b = step.operand(0, "input"), step.operand(1, "other")
    total = add(a, b)
    return unknown_like(total, ABOVE)


@jet_rule("fmod", "remainder")
def _modulo(step: Step) -> Jet:
    a, b = step.operand(0, "input"), step.operand(1, "other")
    total = add(a, b)
    return unknown_like(total, ABOVE if b.is_constant else INF)


_SHORT: dict[str, JetRule] = {
    "neg": lambda step: scale(step.jet(), -1.0),
    "mul": lambda step: multiply(step.operand(0, "input"), step.operand(1, "other"), step.lowest),
    "square": lambda step: multiply(step.jet(), step.jet(), step.lowest),
    "sqrt": lambda step: power(step.jet(), 0.5, step.lowest),
    "reciprocal": lambda step: power(step.jet(), -1.0, step.lowest),
    "log": lambda step: logarithm(step.jet(), step.lowest),
    "maximum": lambda step: maximum(step.operand(0, "input"), step.operand(1, "other")),
    "minimum": lambda step: minimum(step.operand(0, "input"), step.operand(1, "other")),
}
"""Rules that are one expression."""
for _name, _short in _SHORT.items():
    jet_rule(_name)(_short)
