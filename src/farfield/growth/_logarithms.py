"""A program run on numbers that are kept as a sign and a logarithm, far beyond what float64 reaches.

An exponential is at the end of float64 at λ = 700, and what takes it back may come later: exp(x)/(1 + exp(x − 600))
stays below e⁶⁰⁰, and exp(2x)·exp(−x²/1000) falls from x = 1000 on. Here log|f| is followed to λ = 10¹⁰⁰. An entry
that rounding leaves undecided (what cancels, what is too small to be told from 0) is NaN, and so is all that depends
on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from farfield.graph import Node, Program, compose, describe, operator, walk
from farfield.graph._interpret import cast, check_shape, compute_node, learn_sizes
from farfield.growth._search import Search

__all__ = ["Signed", "grows_without_end", "run_signed"]

RADII = tuple(10.0**k for k in (3, 4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 75, 100))
FEWEST = 6
"""Radii that must be reached; a double exponential ends before."""
MARGIN = 1e3
"""By how much the farthest radius exceeds every constant of the program, and the inverse of every one but 0."""
ROUNDING = 1e-6
"""Share of the largest logarithm on the way below which log|f| is put down to rounding."""
CANCELLED = 1e-9
"""Share of the summands below which a sum is put down to rounding."""
LARGEST = 690.0
"""Logarithm up to which a number is an ordinary one."""


@dataclass(frozen=True)
class Signed:
    """sign · exp(log), entry by entry; 0 has the sign 0 and the logarithm −∞."""

    sign: Tensor
    log: Tensor

    @classmethod
    def of(cls, value: Tensor) -> Signed:
        """Ordinary numbers."""
        value = value.to(torch.float64)
        return cls(torch.sign(value), value.abs().log())

    @property
    def shape(self) -> torch.Size:
        """Of the value."""
        return self.log.shape

    def scaled(self, by: float | Tensor = 0.0) -> Tensor:
        """The value times exp(−by), as ordinary numbers."""
        return torch.where(self.sign == 0, 0.0, self.sign * torch.exp(self.log - by))

    def known(self, where: Tensor) -> Signed:
        """NaN elsewhere."""
        return Signed(torch.where(where, self.sign, math.nan), torch.where(where, self.log, math.nan))


Value: TypeAlias = Any
"""Signed numbers; an ordinary tensor of what does not move; a tuple of these, or ``None``."""


def grows_without_end(search: Search, flat: Tensor, entry: int) -> bool:
    """Whether log|f| of one entry keeps rising along a direction, farther than every constant of the program reaches.

    Parameters
    ----------
    flat
        The direction.
    entry
        Place in the flattened output of one row (of the whole output, where directions are whole inputs).
    """
    logs: list[float] = []
    for radius in RADII:
        try:
            value, largest = run_signed(search.program, search.inputs_at(flat, radius), search.output)
        except Exception:  # an operator that has no place here: nothing is shown
            return False
        log = float(value.log.flatten()[entry])
        if not math.isfinite(log) or not math.isfinite(largest):
            break
        if log <= max(ROUNDING * largest, logs[-1] if logs else 0.0):
            return False
        logs.append(log)
    return len(logs) >= FEWEST and RADII[len(logs) - 1] >= MARGIN * _reach(search.program)


def _reach(program: Program) -> float:
    """The largest constant of a program, or the inverse of its smallest."""
    numbers = [
        abs(float(v))
        for node in program.nodes
        for v in node.attributes.values()
        if isinstance(v, int | float)
    ]
    most = max([1.0, *(max(n, 1 / n) for n in numbers if 0 < n < math.inf)])
    for tensor in program.constants.values():
        size = tensor.detach().abs() if tensor.is_floating_point() else tensor.new_zeros(0)
        size = size[(size > 0) & torch.isfinite(size)]
        if size.numel():
            most = max(most, float(size.max()), 1 / float(size.min()))
    return most


def run_signed(program: Program, inputs: Sequence[Tensor], output: int) -> tuple[Signed, float]:
    """One output of a program, and the largest logarithm on the way to it.

    Parameters
    ----------
    inputs
        One tensor per input.
    output
        Which output.
    """
    sizes: dict[str, int] = {}
    given = {}
    for spec, tensor in zip(program.inputs, inputs, strict=True):
        check_shape(spec, tuple(tensor.shape), sizes)
        given[spec.name] = Signed.of(tensor) if tensor.is_floating_point() else tensor
    largest = 0.0

    def step(node: Node, operands: tuple[Value, ...]) -> Value:
        nonlocal largest
        if node.role == "input":
            return given[node.name]
        if node.role == "constant":
            return cast(program.constants[node.name], torch.float64)
        value = _value(node, operands, sizes)
        learn_sizes(node.shape, value, sizes)
        if isinstance(value, Signed):
            finite = value.log[torch.isfinite(value.log)].abs()
            largest = max(largest, float(finite.max()) if finite.numel() else 0.0)
        return value

    name = program.outputs[output]
    found = walk(program.nodes, step, keep=[name])[name]
    return (found if isinstance(found, Signed) else Signed.of(found)), largest


def _value(node: Node, operands: Sequence[Value], sizes: Mapping[str, int]) -> Value:
    if not any(isinstance(o, Signed) for o in operands):
        return compute_node(node, operands, sizes, torch.float64)
    if node.op in _RULES:
        return _RULES[node.op](
            *(_operand(node, operands, i) for i in range(len(operator(node.op).arguments))), node
        )
    facts = describe(node)
    if facts.moves:
        both = [[_part(o, part) for o in operands] for part in ("sign", "log")]
        sign, log = (compute_node(node, parts, sizes, torch.float64) for parts in both)
        return Signed(sign, torch.where(sign == 0, -math.inf, torch.where(sign.abs() == 1, log, math.nan)))
    moving = [i for i, o in enumerate(operands) if isinstance(o, Signed)]
    if group := facts.linear_group(moving):
        return _linear(node, operands, group, sizes)
    if nodes := compose(node):
        made: dict[str, Value] = {n: o for n, o in zip(node.inputs, operands, strict=True) if n}
        for part in nodes:
            made[part.name] = _value(part, [None if n is None else made[n] for n in part.inputs], sizes)
        return made[nodes[-1].name]
    return _plain(node, operands, sizes)


def _operand(node: Node, operands: Sequence[Value], position: int) -> Any:
    """An operand as signed numbers; a number that stands in its place too."""
    found = operands[position] if position < len(operands) else None
    if found is None:
        found = node.attributes.get(operator(node.op).arguments[position])
    if isinstance(found, int | float):
        found = torch.tensor(float(found), dtype=torch.float64)
    return Signed.of(found) if isinstance(found, Tensor) else found


def _part(operand: Value, part: str) -> Any:
    if isinstance(operand, Tensor) and operand.is_floating_point():
        operand = Signed.of(operand)
    return getattr(operand, part) if isinstance(operand, Signed) else operand


def _linear(node: Node, operands: Sequence[Value], group: Sequence[int], sizes: Mapping[str, int]) -> Any:
    """What is linear: every operand of the group divided by the largest entry, the result multiplied by it."""
    arguments = operator(node.op).arguments
    if any(node.attributes.get(name) for i in group for name in arguments[i : i + 1]):
        return _lost(node, operands, sizes)
    inner = {i: o if isinstance(o, Signed) else Signed.of(o) for i in group if (o := operands[i]) is not None}
    top = max(
        float(o.log[torch.isfinite(o.log)].max()) if torch.isfinite(o.log).any() else 0.0
        for o in inner.values()
    )
    small = [inner[i].scaled(top) if i in inner else o for i, o in enumerate(operands)]
    value = compute_node(node, small, sizes, torch.float64)
    sizeable = [o.abs() if isinstance(o, Tensor) and o.is_floating_point() else o for o in small]
    most = compute_node(node, sizeable, sizes, torch.float64).abs()
    signed = Signed.of(value)
    certain = (value.abs() > CANCELLED * most) | ((most == 0) & (top < LARGEST))
    return Signed(signed.sign, signed.log + top).known(certain)


def _lost(node: Node, operands: Sequence[Value], sizes: Mapping[str, int]) -> Any:
    """Undecided, in the shape that the node has."""
    ones = [torch.ones_like(o.log) if isinstance(o, Signed) else o for o in operands]
    value = compute_node(node, ones, sizes, torch.float64)
    if not isinstance(value, Tensor):
        return tuple(Signed.of(part).known(torch.tensor(False)) for part in value)
    return Signed.of(value).known(torch.tensor(False))


def _plain(node: Node, operands: Sequence[Value], sizes: Mapping[str, int]) -> Any:
    """Any other operator, where float64 holds its operands; its 0 is taken as 0 only where its one operand is 0."""
    plain = [o.scaled() if isinstance(o, Signed) else o for o in operands]
    fits = [
        bool((o.log < LARGEST).all() & ((o.sign == 0) | (p != 0)).all())
        for o, p in zip(operands, plain, strict=True)
        if isinstance(o, Signed)
    ]
    value = compute_node(node, plain, sizes, torch.float64) if all(fits) else None
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value if isinstance(value, Tensor) else _lost(node, operands, sizes)
    exact = describe(node).entrywise and len(plain) == 1 and bool((plain[0] == 0)[value == 0].all())
    return Signed.of(value).known(torch.isfinite(value) & ((value != 0) | exact))


def _add(a: Signed, b: Signed, node: Node | None = None) -> Signed:
    alpha = 1 if node is None else node.attributes.get("alpha", 1)
    if alpha != 1:
        b = _mul(b, Signed.of(torch.tensor(float(alpha))))
    top = torch.maximum(a.log, b.log).nan_to_num(0.0, 0.0, 0.0)
    first, second = a.scaled(top), b.scaled(top)
    total, size = Signed.of(first + second), first.abs() + second.abs()
    return Signed(total.sign, total.log + top).known(
        ((first + second).abs() > CANCELLED * size) | (size == 0)
    )


def _mul(a: Signed, b: Signed, node: Node | None = None) -> Signed:
    return Signed(a.sign * b.sign, torch.where(a.sign * b.sign == 0, -math.inf, a.log + b.log))


def _inverse(a: Signed) -> Signed:
    return Signed(a.sign, -a.log).known(a.sign != 0)


def _div(a: Signed, b: Signed, node: Node) -> Signed:
    if node.attributes.get("rounding_mode") is not None:
        return _mul(a, b).known(torch.tensor(False))
    return _mul(a, _inverse(b))


def _exp(a: Signed, node: Node | None = None) -> Signed:
    value = a.scaled()
    return Signed(torch.ones_like(value), value).known(torch.isfinite(value))


def _log(a: Signed, node: Node) -> Signed:
    return Signed.of(a.log).known((a.sign > 0) & torch.isfinite(a.log))


def _pow(a: Signed, exponent: Signed, node: Node) -> Signed:
    power = exponent.scaled()
    whole = (power - power.round()).abs() <= 1e-12 * power.abs()  # it has been through its own logarithm
    power = torch.where(whole, power.round(), power)
    odd = power.remainder(2.0) == 1
    sign = torch.where(a.sign < 0, torch.where(odd, -1.0, 1.0), 1.0)
    fine = torch.isfinite(power) & (a.sign != 0) & ((a.sign > 0) | whole)
    return Signed(sign, a.log * power).known(fine)


def _larger(a: Signed, b: Signed | None, node: Node | None = None) -> Signed:
    if b is None:
        return a
    above = torch.where(a.sign == b.sign, (a.log - b.log) * a.sign >= 0, a.sign > b.sign)
    chosen = Signed(torch.where(above, a.sign, b.sign), torch.where(above, a.log, b.log))
    return chosen.known(~(a.log.isnan() | b.log.isnan()))


def _smaller(a: Signed, b: Signed | None, node: Node | None = None) -> Signed:
    return a if b is None else _negative(_larger(_negative(a), _negative(b)))


def _negative(a: Signed, node: Node | None = None) -> Signed:
    return Signed(-a.sign, a.log)


def _half(a: Signed) -> Signed:
    return Signed(a.sign, a.log - math.log(2.0))


_RULES: Mapping[str, Callable[..., Signed]] = {
    "add": _add,
    "sub": lambda a, b, node: _add(a, _negative(b), node),
    "mul": _mul,
    "div": _div,
    "neg": _negative,
    "abs": lambda a, node: Signed(a.sign.abs(), a.log),
    "square": lambda a, node: _mul(a, a),
    "reciprocal": lambda a, node: _inverse(a),
    "exp": _exp,
    "sinh": lambda a, node: _half(_add(_exp(a), _negative(_exp(_negative(a))))),
    "cosh": lambda a, node: _half(_add(_exp(a), _exp(_negative(a)))),
    "log": _log,
    "pow": _pow,
    "sqrt": lambda a, node: Signed(a.sign, 0.5 * a.log).known(a.sign >= 0),
    "relu": lambda a, node: _larger(a, Signed.of(torch.zeros_like(a.log))),
    "maximum": _larger,
    "minimum": _smaller,
    "clamp": lambda a, low, high, node: _smaller(_larger(a, low), high),
}
