"""Rounding of operators that need a line of their own, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from farfield.certify.arithmetic._state import Drift, RoundingError, Walker, node_shape
from farfield.certify.intervals import Interval
from farfield.graph import Node

__all__ = ["SPECIAL"]

Operands: TypeAlias = "tuple[Drift | None, ...]"


def _sum(walker: Walker, node: Node, operands: Operands) -> Drift:
    return walker.linear(node, operands)


def _negated(walker: Walker, node: Node, operands: Operands) -> Drift:
    """A sign: nothing is rounded."""
    assert operands[0] is not None
    return operands[0]


def _quotient(walker: Walker, node: Node, operands: Operands) -> Drift:
    """a/b: (δ_a + |a/b| δ_b)/(|b| − δ_b), b away from 0 by its range."""
    a = operands[0]
    if node.attributes.get("rounding_mode") is not None or a is None:
        raise RoundingError(f"There is no bound of the rounding: {node.place} divides and cuts off digits.")
    b = operands[1] if len(operands) > 1 else None
    if b is None:
        least = torch.tensor(abs(float(node.attributes["other"])), dtype=torch.float64)
        b = Drift(torch.zeros_like(least), least)
    else:
        name = node.inputs[1]
        assert name is not None
        constant = walker.program.constants.get(name)
        if constant is not None:
            least = constant.detach().double().abs()
        else:
            claim = walker.claims.get(name)
            least = claim.mignitude if isinstance(claim, Interval) else torch.zeros_like(b.size)
    least = least - b.error
    if not bool((least > 0).all()):
        raise RoundingError(f"There is no bound of the rounding: {node.place} may divide by 0.")
    quotient = a.size / least
    once = walker.real.once
    error = (
        a.error / least * (1 + once) + quotient * (b.error / least * (1 + once) + once) + walker.real.smallest
    )
    if not b.exact or a.relative is None or a.coefficients is None:
        return Drift(error, quotient)
    rows = least.expand(a.size.shape).reshape(-1, 1)
    coefficients = a.coefficients / rows
    relative = a.relative / rows * (1 + once) + once * coefficients
    relative[:, -1] += walker.real.smallest
    return Drift(error, quotient, relative, coefficients)


def _clamp(walker: Walker, node: Node, operands: Operands) -> Drift:
    """No entry moves further than its operands did; ends that are numbers are stored in the model's format."""
    given = [o for o in operands if o is not None]
    shape = node_shape(node)
    error = torch.stack([o.error.expand(shape) for o in given]).amax(0)
    numbers = [
        abs(float(v))
        for k, v in node.attributes.items()
        if k in ("min", "max") and isinstance(v, int | float)
    ]
    finite = [v for v in numbers if v < walker.real.largest]
    end = walker.real.unit * max(finite, default=0.0)
    size = walker.claimed_size(node)
    first = given[0]
    size = first.size if size is None else size
    if len(given) == 1 and first.relative is not None and not finite:
        return Drift(error + end, size, first.relative, first.coefficients, first.own)
    return Drift(error + end, size)


def _join(walker: Walker, node: Node, operands: Operands) -> Drift:
    given = [o for o in operands if o is not None]
    shape = node_shape(node)
    numbers = [
        abs(float(v))
        for v in node.attributes.values()
        if isinstance(v, int | float) and not isinstance(v, bool)
    ]
    end = max((v for v in numbers if math.isfinite(v)), default=0.0)
    error = torch.stack([o.error.expand(shape) for o in given]).amax(0) + walker.real.unit * end
    return Drift(error, torch.stack([o.size.expand(shape) for o in given]).amax(0).clamp_min(end))


def _pick(walker: Walker, node: Node, operands: Operands) -> Drift:
    """The largest or smallest of some entries moves no further than the one of them that moves most."""
    x = operands[0]
    assert x is not None
    shape = node_shape(node)
    return Drift(*(t.max().expand(shape).clone() for t in (x.error, x.size)))


def _softmax(walker: Walker, node: Node, operands: Operands) -> Drift:
    """e^{z_i − max}/Σ: errors up to δ move every quotient by at most e^{2δ}, the exponent's rounding included."""
    x, real = operands[0], walker.real
    assert x is not None
    shape, count = node_shape(node), int(node.shape[int(node.attributes["dim"])])
    delta = x.error.amax() + real.once * (2 * x.computed_size.amax())
    factor = torch.expm1(2 * delta.clamp(max=300.0)) + real.gamma(count + 16) + real.function
    one = torch.ones(shape, dtype=torch.float64)
    return Drift((factor * one).clamp(max=1.0 + 8 * real.unit) + real.smallest, one)


def _square(walker: Walker, node: Node, operands: Operands) -> Drift:
    x = operands[0]
    assert x is not None
    size = x.size.square()
    error = x.error * (2 * x.size + x.error) + walker.real.once * x.computed_size.square()
    return Drift(error + walker.real.smallest, size)


def _statistics(walker: Walker, node: Node, operands: Operands) -> Drift:
    """Batch norm by stored statistics: affine, channel by channel."""
    x = operands[0]
    assert x is not None
    shape = node_shape(node)
    if node.attributes.get("training"):
        raise RoundingError(f"There is no bound of the rounding: {node.place} normalizes by its batch.")

    def channel(index: int, default: float) -> Tensor:
        name = node.inputs[index] if index < len(node.inputs) else None
        if name is None:
            return torch.tensor(default, dtype=torch.float64)
        value = walker.program.constants.get(name)
        if value is None:
            raise RoundingError(
                f"There is no bound of the rounding: {node.place} computes its own parameters."
            )
        return value.detach().double().reshape(-1, *[1] * (len(shape) - 2))

    weight, bias, mean, variance = channel(1, 1.0), channel(2, 0.0), channel(3, 0.0), channel(4, 1.0)
    scale = weight.abs() / (variance + float(node.attributes.get("eps") or 0.0)).sqrt()
    size = scale * (x.size + mean.abs()) + bias.abs()
    error = scale * x.error + 4 * walker.real.once * (scale * (x.computed_size + mean.abs()) + bias.abs())
    return Drift((error + walker.real.smallest).expand(shape).clone(), size.expand(shape).clone())


SPECIAL: Mapping[str, Callable[[Walker, Node, Operands], Drift]] = {
    "add": _sum,
    "sub": _sum,
    "neg": _negated,
    "div": _quotient,
    "clamp": _clamp,
    "softmax": _softmax,
    "square": _square,
    "batch_norm": _statistics,
    **dict.fromkeys(("maximum", "minimum"), _join),
    **dict.fromkeys(("amax", "amin", "max_pool", "adaptive_max_pool"), _pick),
}
