"""Choice by a condition, and the conditions: comparisons and logic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from farfield.graph._node import Node
from farfield.graph.operators._bindings import binding, boolean, example, integer, real
from farfield.graph.operators._facts import MOVES, TRUTH, Facts, when_floating
from farfield.graph.operators._registry import Call, Operator, Target, calling, operand

__all__ = ["OPERATORS"]


def _where(node: Node, tensors: Sequence[Any]) -> Any:
    first, second = operand(node, tensors, 1, "input"), operand(node, tensors, 2, "other")
    result = torch.where(tensors[0], first, second)
    return result if isinstance(first, Tensor) or isinstance(second, Tensor) else result.to(node.dtype)


def _masked_fill(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.masked_fill(tensors[0], tensors[1], operand(node, tensors, 2, "value"))


def _triangle(function: Callable[..., Any]) -> Callable[[Node, Sequence[Any]], Any]:
    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        return function(tensors[0], node.attributes["diagonal"])

    return compute


def _fill(call: Call) -> dict[str, Any]:
    return {"nan": call.arguments["nan"] or 0.0}


_DECISION = replace(TRUTH, entrywise=True)


def _decided(node: Node) -> Facts:
    """Logic gives 0 or 1; bitwise operators on integers give integers."""
    return _DECISION if node.dtype == torch.bool else Facts(entrywise=True)


def _comparison(name: str, sign: str) -> Operator:
    function = getattr(torch, name)

    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        first, second = operand(node, tensors, 0, "input"), operand(node, tensors, 1, "other")
        return function(torch.as_tensor(first), second)

    return Operator(
        name,
        "select",
        f"input {sign} other",
        ("input", "other"),
        (Target(f"aten.{name}.Tensor"), Target(f"aten.{name}.Scalar"), Target(f"_operator.{name}")),
        compute,
        (example(function, integer(3, 4, 5), integer(3, 5)), example(lambda x: function(x, 0.5), real(5))),
        facts=_DECISION,
    )


def _logic(name: str, summary: str, function: Callable[..., Any], count: int, *targets: str) -> Operator:
    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        values = [operand(node, tensors, i, n) for i, n in enumerate(("input", "other")[:count])]
        return function(*values)

    return Operator(
        name,
        "select",
        summary,
        ("input", "other")[:count],
        tuple(Target(f"aten.{t}") for t in targets),
        compute,
        (example(function, *[boolean(3, 4)] * count),),
        facts=_decided,
    )


def _test(name: str, summary: str) -> Operator:
    function = getattr(torch, name)

    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        return function(tensors[0])

    return Operator(
        name,
        "select",
        summary,
        ("input",),
        (Target(f"aten.{name}.default"),),
        compute,
        (example(function, real(3, 4)),),
        facts=_DECISION,
    )


CHOICE = (
    Operator(
        "where",
        "select",
        "input where condition holds, other elsewhere",
        ("condition", "input", "other"),
        tuple(Target(f"aten.where.{kind}") for kind in ("self", "ScalarOther", "ScalarSelf", "Scalar")),
        _where,
        (
            example(lambda c, x, y: torch.where(c, x, y), boolean(3, 4), real(3, 4), real(4)),
            example(lambda c, x: torch.where(c, x, 0.5), boolean(3, 4), real(3, 4)),
            example(lambda c, x: torch.where(c, -1.0, x), boolean(3, 4), real(3, 4)),
        ),
        facts=when_floating(
            Facts(moves=True, linear=((1, 2),), monotone=(0, 1, 1), entrywise=True, complex=True)
        ),
    ),
    Operator(
        "masked_fill",
        "select",
        "value where mask holds, input elsewhere",
        ("input", "mask", "value"),
        (Target("aten.masked_fill.Scalar"), Target("aten.masked_fill.Tensor")),
        _masked_fill,
        (
            example(lambda x, m: x.masked_fill(m, -2.0), real(3, 4), boolean(3, 4)),
            example(lambda x, m, v: x.masked_fill(m, v), real(3, 4), boolean(3, 4), real()),
        ),
        facts=when_floating(
            Facts(moves=True, linear=((0, 2),), monotone=(1, 0, 1), entrywise=True, complex=True)
        ),
    ),
    Operator(
        "tril",
        "select",
        "entries on and below the diagonal, 0 above",
        ("input",),
        (Target("aten.tril.default"),),
        _triangle(torch.tril),
        (example(lambda x: x.tril(1), real(3, 4)),),
        facts=replace(MOVES, fills=True),
    ),
    Operator(
        "triu",
        "select",
        "entries on and above the diagonal, 0 below",
        ("input",),
        (Target("aten.triu.default"),),
        _triangle(torch.triu),
        (example(lambda x: x.triu(1), real(3, 4)),),
        facts=replace(MOVES, fills=True),
    ),
    Operator(
        "nan_to_num",
        "select",
        "nan, posinf and neginf in the place of those three (the largest finite numbers where None)",
        ("input",),
        (Target("aten.nan_to_num.default", binding(compute=_fill)),),
        calling(torch.nan_to_num, "nan", "posinf", "neginf"),
        (example(lambda x: torch.nan_to_num(x.log(), nan=0.5, neginf=-3.0), real(3, 4)),),
        facts=Facts(entrywise=True),
    ),
)

OPERATORS = (
    *CHOICE,
    _comparison("gt", ">"),
    _comparison("lt", "<"),
    _comparison("ge", "≥"),
    _comparison("le", "≤"),
    _comparison("eq", "="),
    _comparison("ne", "≠"),
    _logic("logical_not", "not input", torch.logical_not, 1, "logical_not.default"),
    _logic("logical_and", "input and other", torch.logical_and, 2, "logical_and.default"),
    _logic("logical_or", "input or other", torch.logical_or, 2, "logical_or.default"),
    _logic("logical_xor", "exactly one of input and other", torch.logical_xor, 2, "logical_xor.default"),
    _logic("bitwise_not", "bits of input turned", torch.bitwise_not, 1, "bitwise_not.default"),
    _logic(
        "bitwise_and",
        "bits in both",
        torch.bitwise_and,
        2,
        "bitwise_and.Tensor",
        "bitwise_and.Scalar",
        "__and__.Tensor",
    ),
    _logic(
        "bitwise_or",
        "bits in either",
        torch.bitwise_or,
        2,
        "bitwise_or.Tensor",
        "bitwise_or.Scalar",
        "__or__.Tensor",
    ),
    _logic(
        "bitwise_xor",
        "bits in exactly one",
        torch.bitwise_xor,
        2,
        "bitwise_xor.Tensor",
        "bitwise_xor.Scalar",
        "__xor__.Tensor",
    ),
    _test("isnan", "whether each entry is not a number"),
    _test("isinf", "whether each entry is infinite"),
)
