"""Functions of each entry on its own, and arithmetic of two tensors entry by entry."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from farfield.graph._node import Node
from farfield.graph.operators._bindings import binding, example, positive, real, unit
from farfield.graph.operators._facts import Domain, Facts, FactsOf, when_floating
from farfield.graph.operators._registry import Compute, Operator, Sample, Target, operand

__all__ = ["OPERATORS"]


Composed: TypeAlias = "Callable[[Node, Any], str | None] | None"
ENTRYWISE = Facts(entrywise=True)
_LN2 = math.log(2.0)
_RISING = Facts(entrywise=True, monotone=(1,))
_UNIT = Domain(-1.0, 1.0)
_RISING_INSIDE = replace(_RISING, domain=Domain(-1.0, 1.0, open=True))
_LOGARITHMIC = replace(_RISING, domain=Domain(growth="logarithmic"))
_PI_ABOVE = math.nextafter(math.pi, 4.0)
_SIZE = Facts(entrywise=True, range=(0.0, math.inf))
_POSITIVE = replace(_SIZE, positive=True)
_EXPONENTIAL = replace(_POSITIVE, monotone=(1,), domain=Domain())


def _sum_facts(sign: int) -> Callable[[Node], Facts]:
    """Facts of input ± alpha · other."""

    def of(node: Node) -> Facts:
        alpha = node.attributes.get("alpha", 1)
        second = 0 if isinstance(alpha, complex | str) else sign * ((alpha > 0) - (alpha < 0))
        return when_floating(replace(_SUM, monotone=(1, second)))(node)

    return of


_SUM = Facts(linear=((0, 1),), entrywise=True, complex=True)
_PRODUCT = Facts(linear=((0,), (1,)), entrywise=True, complex=True, products=True)


def _exp_facts(node: Node) -> Facts:
    """Complex exponentials have no sign and no order."""
    return (
        replace(ENTRYWISE, complex=True) if node.dtype is not None and node.dtype.is_complex else _EXPONENTIAL
    )


def _divide_facts(node: Node) -> Facts:
    """Linear in the numerator unless the quotient is rounded."""
    rounded = node.attributes.get("rounding_mode") is not None
    return ENTRYWISE if rounded else Facts(linear=((0,),), entrywise=True, complex=True)


def _apply(function: Callable[[Tensor], Tensor]) -> Compute:
    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        return function(tensors[0])

    return compute


def _unary(
    name: str,
    summary: str,
    function: Callable[[Tensor], Tensor],
    *aliases: str,
    domain: Sample | None = None,
    facts: FactsOf = ENTRYWISE,
    composed: Composed = None,
) -> Operator:
    targets = tuple(Target(t) for t in (f"aten.{name}.default", *aliases))
    sample = real(3, 4) if domain is None else domain
    return Operator(
        name,
        "elementwise",
        summary,
        ("input",),
        targets,
        _apply(function),
        (example(function, sample),),
        facts=facts,
        composed=composed,
    )


def _binary(
    name: str,
    summary: str,
    function: Callable[[Any, Any], Tensor],
    *targets: Target,
    domain: Callable[..., Sample] = real,
    facts: FactsOf = ENTRYWISE,
    composed: Composed = None,
) -> Operator:
    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        return function(operand(node, tensors, 0, "input"), operand(node, tensors, 1, "other"))

    return Operator(
        name,
        "elementwise",
        summary,
        ("input", "other"),
        targets,
        compute,
        (example(function, domain(3, 4), domain(4)), example(lambda x: function(x, 2), domain(3))),
        facts=facts,
        composed=composed,
    )


def _scaled(function: Callable[[Any, Any], Any]) -> Compute:
    """``input ± alpha · other``; alpha is 1 except where the caller gave one."""

    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        first, second = operand(node, tensors, 0, "input"), operand(node, tensors, 1, "other")
        alpha = node.attributes.get("alpha", 1)
        result = function(first, second if alpha == 1 else alpha * second)
        return result if isinstance(result, Tensor) else torch.as_tensor(result)

    return compute


def _divide(node: Node, tensors: Sequence[Any]) -> Any:
    first, second = operand(node, tensors, 0, "input"), operand(node, tensors, 1, "other")
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return torch.div(first, second, rounding_mode=node.attributes.get("rounding_mode"))
    return torch.as_tensor(first / second)


def _power(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.pow(operand(node, tensors, 0, "input"), operand(node, tensors, 1, "exponent"))


def _clamp(node: Node, tensors: Sequence[Any]) -> Any:
    low, high = (
        operand(node, tensors, i, n) if n in node.attributes or tensors[i] is not None else None
        for i, n in ((1, "min"), (2, "max"))
    )
    result = tensors[0]
    if low is not None:
        result = result.clamp_min(low)
    return result if high is None else result.clamp_max(high)


def _lerp(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.lerp(tensors[0], tensors[1], operand(node, tensors, 2, "weight"))


def _hypot(node: Node, parts: Any) -> str | None:
    if not all(isinstance(parts[i], str) for i in (0, 1)):
        return None
    return str(parts("sqrt", parts("add", parts("square", parts[0]), parts("square", parts[1]))))


def _mixed(node: Node, parts: Any) -> str:
    return str(parts("add", parts[0], parts("mul", parts("sub", parts[1], parts[0]), parts[2])))


_SWAP = binding({"input": "other", "other": "input"})

ARITHMETIC = (
    Operator(
        "add",
        "elementwise",
        "input + alpha · other",
        ("input", "other"),
        (Target("aten.add.Tensor"), Target("aten.add.Scalar"), Target("_operator.add")),
        _scaled(lambda a, b: a + b),
        (
            example(lambda x, y: x + y, real(3, 4), real(4)),
            example(lambda x: 2 + x, real(3)),
            example(lambda x, y: torch.add(x, y, alpha=3), real(3), real(3)),
        ),
        facts=_sum_facts(1),
    ),
    Operator(
        "sub",
        "elementwise",
        "input − alpha · other",
        ("input", "other"),
        (
            Target("aten.sub.Tensor"),
            Target("aten.sub.Scalar"),
            Target("aten.rsub.Tensor", _SWAP),
            Target("aten.rsub.Scalar", _SWAP),
            Target("_operator.sub"),
        ),
        _scaled(lambda a, b: a - b),
        (
            example(lambda x, y: x - y, real(3, 4), real(4)),
            example(lambda x: 1 - x, real(3)),
            example(lambda x: torch.rsub(x, 2.5), real(3)),
        ),
        facts=_sum_facts(-1),
    ),
    _binary(
        "mul",
        "input · other",
        lambda a, b: torch.as_tensor(a * b),
        Target("aten.mul.Tensor"),
        Target("aten.mul.Scalar"),
        Target("_operator.mul"),
        facts=when_floating(_PRODUCT),
    ),
    Operator(
        "div",
        "elementwise",
        "input / other, rounded as rounding_mode says (None, 'floor', 'trunc')",
        ("input", "other"),
        (
            Target("aten.div.Tensor"),
            Target("aten.div.Scalar"),
            Target("aten.div.Tensor_mode"),
            Target("aten.div.Scalar_mode"),
            Target("aten.true_divide.Tensor"),
            Target("_operator.truediv"),
        ),
        _divide,
        (
            example(lambda x, y: x / y, real(3, 4), positive(4)),
            example(lambda x: x / 3, real(3)),
            example(lambda x: torch.div(x, 0.3, rounding_mode="floor"), real(3)),
        ),
        facts=_divide_facts,
    ),
    Operator(
        "pow",
        "elementwise",
        "input ** exponent",
        ("input", "exponent"),
        (
            Target("aten.pow.Tensor_Tensor"),
            Target("aten.pow.Tensor_Scalar"),
            Target("aten.pow.Scalar"),
            Target("_operator.pow", binding({"other": "exponent"})),
        ),
        _power,
        (
            example(lambda x, y: x**y, positive(3, 4), real(4)),
            example(lambda x: x**3, real(3)),
            example(lambda x: 2**x, real(3)),
        ),
        facts=Facts(entrywise=True),
    ),
    _binary(
        "maximum",
        "max(input, other)",
        lambda a, b: torch.maximum(a, torch.as_tensor(b, dtype=a.dtype)),
        Target("aten.maximum.default"),
        Target("aten.max.other"),
        Target("aten.fmax.default"),
        facts=Facts(entrywise=True, monotone=(1, 1)),
    ),
    _binary(
        "minimum",
        "min(input, other)",
        lambda a, b: torch.minimum(a, torch.as_tensor(b, dtype=a.dtype)),
        Target("aten.minimum.default"),
        Target("aten.min.other"),
        Target("aten.fmin.default"),
        facts=Facts(entrywise=True, monotone=(1, 1)),
    ),
    _binary(
        "atan2",
        "angle of the point (other, input), in [−π, π]",
        lambda a, b: torch.atan2(a, torch.as_tensor(b, dtype=a.dtype)),
        Target("aten.atan2.default"),
        facts=replace(ENTRYWISE, range=(-_PI_ABOVE, _PI_ABOVE)),
    ),
    _binary(
        "fmod",
        "input − other · trunc(input / other)",
        torch.fmod,
        Target("aten.fmod.Tensor"),
        Target("aten.fmod.Scalar"),
        domain=positive,
    ),
    _binary(
        "remainder",
        "input − other · floor(input / other)",
        torch.remainder,
        Target("aten.remainder.Tensor"),
        Target("aten.remainder.Scalar"),
        domain=positive,
    ),
    _binary(
        "hypot",
        "√(input² + other²)",
        lambda a, b: torch.hypot(a, torch.as_tensor(b, dtype=a.dtype)),
        Target("aten.hypot.default"),
        facts=_SIZE,
        composed=_hypot,
    ),
    Operator(
        "clamp",
        "elementwise",
        "min(max(input, min), max); a bound that is absent does not act",
        ("input", "min", "max"),
        (
            Target("aten.clamp.default"),
            Target("aten.clamp.Tensor"),
            Target("aten.clamp_min.default"),
            Target("aten.clamp_min.Tensor"),
            Target("aten.clamp_max.default"),
            Target("aten.clamp_max.Tensor"),
        ),
        _clamp,
        (
            example(lambda x: x.clamp(-1, 0.5), real(9)),
            example(lambda x: x.clamp_min(0.1), real(9)),
            example(lambda x, y: x.clamp(max=y), real(3, 4), real(4)),
        ),
        facts=Facts(monotone=(1, 1, 1), entrywise=True),
    ),
    Operator(
        "lerp",
        "elementwise",
        "input + weight · (end − input)",
        ("input", "end", "weight"),
        (Target("aten.lerp.Tensor"), Target("aten.lerp.Scalar")),
        _lerp,
        (
            example(lambda x, y: torch.lerp(x, y, 0.3), real(3), real(3)),
            example(torch.lerp, real(3), real(3), unit(3)),
        ),
        facts=Facts(linear=((0, 1),), entrywise=True),
        composed=_mixed,
    ),
)

FUNCTIONS = (
    _unary(
        "neg",
        "−x",
        torch.neg,
        "_operator.neg",
        facts=Facts(linear=((0,),), monotone=(-1,), entrywise=True, complex=True),
    ),
    _unary("abs", "|x| (the modulus of a complex number)", torch.abs, facts=replace(_SIZE, complex=True)),
    _unary("square", "x²", torch.square, facts=_SIZE),
    _unary("sqrt", "√x", torch.sqrt, domain=positive(3, 4), facts=replace(_SIZE, monotone=(1,))),
    _unary(
        "rsqrt",
        "1/√x",
        torch.rsqrt,
        domain=positive(3, 4),
        facts=replace(_POSITIVE, monotone=(-1,)),
        composed=lambda node, p: p("reciprocal", p("sqrt", p[0])),
    ),
    _unary("reciprocal", "1/x", torch.reciprocal, domain=positive(3, 4)),
    _unary("exp", "eˣ", torch.exp, facts=_exp_facts),
    _unary(
        "exp2", "2ˣ", torch.exp2, facts=_EXPONENTIAL, composed=lambda node, p: p("exp", p("mul", p[0], _LN2))
    ),
    _unary(
        "expm1",
        "eˣ − 1",
        torch.expm1,
        facts=replace(_RISING, range=(-1.0, math.inf), domain=Domain()),
        composed=lambda node, p: p("sub", p("exp", p[0]), 1.0),
    ),
    _unary("log", "ln x", torch.log, domain=positive(3, 4), facts=_RISING),
    _unary(
        "log2",
        "ln x / ln 2",
        torch.log2,
        domain=positive(3, 4),
        facts=_RISING,
        composed=lambda node, p: p("div", p("log", p[0]), _LN2),
    ),
    _unary(
        "log10",
        "ln x / ln 10",
        torch.log10,
        domain=positive(3, 4),
        facts=_RISING,
        composed=lambda node, p: p("div", p("log", p[0]), math.log(10.0)),
    ),
    _unary(
        "log1p",
        "ln(1 + x)",
        torch.log1p,
        domain=positive(3, 4),
        facts=replace(_RISING, domain=Domain(-1.0, open=True, growth="logarithmic")),
        composed=lambda node, p: p("log", p("add", p[0], 1.0)),
    ),
    _unary("sign", "−1, 0 or 1", torch.sign, "aten.sgn.default"),
    _unary("sin", "sin x", torch.sin),
    _unary("cos", "cos x", torch.cos),
    _unary("tan", "tan x", torch.tan, domain=unit(3, 4)),
    _unary("asin", "arcsin x", torch.asin, domain=unit(3, 4), facts=replace(_RISING, domain=_UNIT)),
    _unary(
        "acos",
        "arccos x",
        torch.acos,
        domain=unit(3, 4),
        facts=Facts(entrywise=True, monotone=(-1,), domain=_UNIT, range=(0.0, _PI_ABOVE)),
    ),
    _unary("atan", "arctan x", torch.atan),
    _unary("sinh", "sinh x", torch.sinh, facts=replace(_RISING, domain=Domain())),
    _unary("cosh", "cosh x", torch.cosh, facts=_POSITIVE),
    _unary("tanh", "tanh x", torch.tanh),
    _unary("asinh", "ln(x + √(x² + 1))", torch.asinh, facts=_LOGARITHMIC),
    _unary(
        "acosh",
        "ln(x + √(x² − 1))",
        lambda x: torch.acosh(x),
        domain=positive(3, 4),
        facts=replace(_SIZE, monotone=(1,), domain=Domain(1.0, growth="logarithmic")),
    ),
    _unary("atanh", "½ ln((1 + x)/(1 − x))", torch.atanh, domain=unit(3, 4), facts=_RISING_INSIDE),
    _unary("erf", "2/√π ∫₀ˣ e^{−t²} dt", torch.erf, "aten.special_erf.default"),
    _unary("erfc", "1 − erf x", torch.erfc),
    _unary("erfinv", "inverse of erf", torch.erfinv, domain=unit(3, 4), facts=_RISING_INSIDE),
    _unary("lgamma", "ln |Γ(x)|", torch.lgamma, domain=positive(3, 4)),
    _unary("digamma", "Γ′(x)/Γ(x)", torch.digamma, domain=positive(3, 4)),
    _unary("floor", "largest integer ≤ x", torch.floor),
    _unary("ceil", "smallest integer ≥ x", torch.ceil),
    _unary("round", "nearest integer, halves to even", torch.round),
    _unary("trunc", "integer part, towards 0", torch.trunc, "aten.fix.default"),
)

OPERATORS = (*ARITHMETIC, *FUNCTIONS)
