"""Tensors made from nothing but sizes and numbers, and random draws.

``zeros``, ``ones``, ``full`` and their ``_like`` and ``new_`` forms are one operator: only the shape of a
``like`` argument matters, so it is not an input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from farfield.graph._node import Node
from farfield.graph.operators._bindings import binding, example, positive, real, unit
from farfield.graph.operators._facts import RANDOM, TRUTH, linear_in, when_floating
from farfield.graph.operators._registry import Binding, Call, Operator, Target, operand

__all__ = ["OPERATORS"]


def _made(value: Any = None) -> Binding:
    """Shape, dtype and device of the result, and what it is filled with."""

    def bind(call: Call) -> dict[str, Any]:
        a = call.arguments
        fill = a.get("fill_value", a.get("s")) if value is None else value
        return {"fill_value": fill, "shape": call.shape, "dtype": call.dtype, "device": a.get("device")}

    return bind


def _drawn(distribution: str) -> Binding:
    def bind(call: Call) -> dict[str, Any]:
        return {
            "distribution": distribution,
            "shape": call.shape,
            "dtype": call.dtype,
            "device": call.arguments.get("device"),
        }

    return bind


def _range(call: Call) -> dict[str, Any]:
    a = call.arguments
    return {
        "start": a.get("start", 0),
        "end": a["end"],
        "step": a.get("step", 1),
        "dtype": call.dtype,
        "device": a.get("device"),
    }


def _typed(call: Call) -> dict[str, Any]:
    return {**call.arguments, "dtype": call.dtype}


def _full(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    fill = operand(node, tensors, 0, "fill_value")
    blank = torch.empty(a["shape"], dtype=a["dtype"], device=a["device"])
    return blank.copy_(fill) if isinstance(fill, torch.Tensor) else blank.fill_(fill)


def _arange(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    ends = (operand(node, tensors, i, name) for i, name in enumerate(("start", "end", "step")))
    numbers = (end.item() if isinstance(end, torch.Tensor) else end for end in ends)
    return torch.arange(*numbers, dtype=a["dtype"], device=a["device"])


def _linspace(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return torch.linspace(a["start"], a["end"], a["steps"], dtype=a["dtype"], device=a["device"])


def _eye(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return torch.eye(a["n"], a.get("m", a["n"]), dtype=a["dtype"], device=a["device"])


def _random(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    draw = torch.rand if a["distribution"] == "uniform" else torch.randn
    return draw(a["shape"], dtype=a["dtype"], device=a["device"])


def _randint(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return torch.randint(a["low"], a["high"], a["shape"], dtype=a["dtype"], device=a["device"])


def _bernoulli(node: Node, tensors: Sequence[Any]) -> Any:
    p = node.attributes.get("p")
    return torch.bernoulli(tensors[0]) if p is None else torch.bernoulli(torch.full_like(tensors[0], p))


def _low_high(call: Call) -> dict[str, Any]:
    a = call.arguments
    return {
        "low": a.get("low", 0),
        "high": a["high"],
        "shape": call.shape,
        "dtype": call.dtype,
        "device": a.get("device"),
    }


OPERATORS = (
    Operator(
        "full",
        "create",
        "every entry equal to fill_value",
        ("fill_value",),
        (
            *(Target(f"aten.{name}", _made()) for name in ("full.default", "full_like.default")),
            Target("aten.new_full.default", _made()),
            Target("aten.scalar_tensor.default", _made()),
            *(Target(f"aten.{name}.default", _made(0)) for name in ("zeros", "zeros_like", "new_zeros")),
            *(Target(f"aten.{name}.default", _made(1)) for name in ("ones", "ones_like", "new_ones")),
            Target("aten.fill.Scalar", lambda call: _made(call.arguments["value"])(call)),
            Target("aten.fill.Tensor", lambda call: _made(call.arguments["value"])(call)),
        ),
        _full,
        (
            example(lambda x: x + torch.full((x.shape[0], 3), 2.5, dtype=x.dtype), real(2, 3)),
            example(lambda x: x + torch.zeros_like(x), real(2, 3)),
            example(lambda x: x + x.new_ones(x.shape), real(2, 3)),
            example(lambda x, v: torch.fill(x, v), real(2, 3), real()),
        ),
        facts=when_floating(linear_in((0,), complex=True)),
    ),
    Operator(
        "empty",
        "create",
        "a tensor whose entries mean nothing until they are written; the interpreter fills it with zeros",
        (),
        (
            *(Target(f"aten.{name}", _made(0)) for name in ("empty.memory_format", "empty_like.default")),
            Target("aten.new_empty.default", _made(0)),
            Target("aten.empty_permuted.default", _made(0)),
        ),
        _full,
        (example(lambda x: torch.empty((x.shape[0], 3), dtype=x.dtype).copy_(x), real(2, 3)),),
        facts=RANDOM,
    ),
    Operator(
        "arange",
        "create",
        "start, start + step, … up to but excluding end",
        ("start", "end", "step"),
        tuple(Target(f"aten.arange.{kind}", _range) for kind in ("default", "start", "start_step")),
        _arange,
        (
            example(lambda x: x + torch.arange(x.shape[0]), real(3)),
            example(lambda x: torch.arange(1, x.shape[0], 2, dtype=x.dtype), real(5)),
        ),
    ),
    Operator(
        "linspace",
        "create",
        "steps evenly spaced numbers from start to end",
        (),
        (Target("aten.linspace.default", _typed),),
        _linspace,
        (example(lambda x: torch.linspace(0, 1, x.shape[0], dtype=x.dtype), real(5)),),
    ),
    Operator(
        "eye",
        "create",
        "1 on the diagonal, 0 elsewhere",
        (),
        (Target("aten.eye.default", _typed), Target("aten.eye.m", _typed)),
        _eye,
        (example(lambda x: torch.eye(x.shape[0], dtype=x.dtype), real(4)),),
        facts=TRUTH,
    ),
    Operator(
        "random",
        "create",
        "independent draws: 'uniform' on [0, 1) or standard 'normal'",
        (),
        (
            *(Target(f"aten.{n}.default", _drawn("uniform")) for n in ("rand", "rand_like")),
            *(Target(f"aten.{n}.default", _drawn("normal")) for n in ("randn", "randn_like")),
        ),
        _random,
        (example(torch.rand_like, real(3)), example(lambda x: torch.randn_like(x), real(3))),
        facts=RANDOM,
    ),
    Operator(
        "randint",
        "create",
        "independent integers in [low, high)",
        (),
        (
            Target("aten.randint.default", _low_high),
            Target("aten.randint.low", _low_high),
            Target("aten.randint_like.default", _low_high),
            Target("aten.randint_like.low_dtype", _low_high),
        ),
        _randint,
        (example(lambda x: torch.randint(2, 7, x.shape), real(3)),),
        facts=RANDOM,
    ),
    Operator(
        "bernoulli",
        "create",
        "1 with probability input (or p), else 0",
        ("input",),
        (
            Target("aten.bernoulli.default", binding(drop=("generator",))),
            Target("aten.bernoulli.p", binding(drop=("generator",))),
        ),
        _bernoulli,
        (example(torch.bernoulli, unit(3)), example(lambda x: torch.bernoulli(x, p=0.3), positive(3))),
        facts=replace(TRUTH, deterministic=False),
    ),
)
