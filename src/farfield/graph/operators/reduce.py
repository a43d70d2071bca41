"""Reductions over axes, running sums, and the order statistics that return a tensor with its indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from farfield.graph._node import Node
from farfield.graph.operators._bindings import all_axes, binding, example, front, real
from farfield.graph.operators._facts import NOTHING, TRUTH, Facts, FactsOf, when_floating
from farfield.graph.operators._registry import Call, Operator, Reference, Target

__all__ = ["OPERATORS"]


def _rank(call: Call) -> int:
    x = call.arguments["input"]
    return len(x.shape) if isinstance(x, Reference) else 0


def _axes(call: Call) -> dict[str, Any]:
    """``dim`` as a tuple of axes from the front (all of them where none is named) and ``keepdim``."""
    return {
        "dim": all_axes(call.arguments.get("dim"), _rank(call)),
        "keepdim": bool(call.arguments.get("keepdim", False)),
    }


def _spread(call: Call) -> dict[str, Any]:
    """As :func:`_axes`, with the variance's correction under its one name."""
    a = call.arguments
    correction = a.get("correction")
    if "unbiased" in a:
        correction = int(a["unbiased"])
    return {**_axes(call), "correction": 1 if correction is None else correction}


def _one_axis(call: Call) -> dict[str, Any]:
    """``dim`` as one axis, ``None`` for a reduction over the flattened tensor."""
    dim = call.arguments.get("dim")
    return {
        "dim": None if dim is None else front(dim, _rank(call)),
        "keepdim": bool(call.arguments.get("keepdim", False)),
    }


_AXES = binding(compute=_axes)
_SPREAD = binding(compute=_spread, drop=("unbiased",))
_CENTER = binding(compute=_axes, drop=("correction",))
_ONE = binding(compute=_one_axis)


def _over_axes(function: Callable[..., Any], *keys: str) -> Callable[[Node, Sequence[Any]], Any]:
    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        a = node.attributes
        x: Tensor = tensors[0]
        options = {key: a[key] for key in keys if a.get(key) is not None}
        if x.ndim == 0:
            return function(x.reshape(1), (0,), False, **options)
        return function(x, a["dim"], a["keepdim"], **options)

    return compute


def _one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction that torch offers over one axis at a time, over several."""

    def reduce(x: Tensor, dim: tuple[int, ...], keepdim: bool, **options: Any) -> Any:
        for axis in sorted(dim, reverse=True):
            x = function(x, axis, keepdim, **options)
        return x

    return reduce


def _norm(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return torch.linalg.vector_norm(tensors[0], a["ord"], a["dim"], a["keepdim"], dtype=a.get("dtype"))


def _norm_order(call: Call) -> dict[str, Any]:
    order = call.arguments.get("p", call.arguments.get("ord", 2))
    return {**_axes(call), "ord": 2 if order is None else order}


def _cumulative(function: Callable[..., Any]) -> Callable[[Node, Sequence[Any]], Any]:
    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        typed = {k: v for k, v in node.attributes.items() if k == "dtype" and v is not None}
        return function(tensors[0], node.attributes["dim"], **typed)

    return compute


def _index_of(function: Callable[..., Any]) -> Callable[[Node, Sequence[Any]], Any]:
    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        a = node.attributes
        return function(tensors[0], a["dim"], a["keepdim"]) if a["dim"] is not None else function(tensors[0])

    return compute


def _topk(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return tuple(torch.topk(tensors[0], a["k"], a["dim"], a["largest"], a["sorted"]))


def _sort(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return tuple(torch.sort(tensors[0], dim=a["dim"], descending=a["descending"], stable=True))


def _argsort(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return torch.argsort(tensors[0], dim=a["dim"], descending=a["descending"], stable=True)


def _pair(function: Callable[..., Any], *keys: str) -> Callable[[Node, Sequence[Any]], Any]:
    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        return tuple(function(tensors[0], *(node.attributes[key] for key in keys)))

    return compute


def _reduction(
    name: str,
    summary: str,
    compute: Callable[[Node, Sequence[Any]], Any],
    targets: tuple[Target, ...],
    *functions: Callable[..., Any],
    facts: FactsOf = NOTHING,
    composed: Callable[[Node, Any], str | None] | None = None,
) -> Operator:
    return Operator(
        name,
        "reduce",
        summary,
        ("input",),
        targets,
        compute,
        tuple(example(f, real(2, 3, 4)) for f in functions),
        facts=facts,
        composed=composed,
    )


_LINEAR = when_floating(Facts(linear=((0,),), monotone=(1,), complex=True))
_RISING = Facts(monotone=(1,))
_SIZE = Facts(range=(0.0, math.inf))

OPERATORS = (
    _reduction(
        "sum",
        "Σ input over the axes dim",
        _over_axes(torch.sum, "dtype"),
        (Target("aten.sum.dim_IntList", _AXES), Target("aten.sum.default", _AXES)),
        lambda x: x.sum(-1),
        lambda x: x.sum(),
        lambda x: (3 * x).sum(-1, dtype=torch.int64),
        facts=_LINEAR,
    ),
    _reduction(
        "mean",
        "average of input over the axes dim",
        _over_axes(torch.mean, "dtype"),
        (
            Target("aten.mean.dim", _AXES),
            Target("aten.mean.default", _AXES),
            *(Target(f"aten.{kind}_mean.correction", _CENTER, item=1) for kind in ("var", "std")),
        ),
        lambda x: x.mean((0, -1), keepdim=True),
        lambda x: x.mean(),
        lambda x: torch.var_mean(x, -1, correction=0)[1],
        facts=_LINEAR,
    ),
    _reduction(
        "var",
        "Σ (input − mean)² / (count − correction) over the axes dim",
        _over_axes(
            lambda x, dim, keep, correction: torch.var(x, dim, keepdim=keep, correction=correction),
            "correction",
        ),
        (
            Target("aten.var.correction", _SPREAD),
            Target("aten.var.dim", _SPREAD),
            Target("aten.var.default", _SPREAD),
            Target("aten.var_mean.correction", _SPREAD, item=0),
        ),
        lambda x: x.var(-1, unbiased=False),
        lambda x: x.var(),
        lambda x: torch.var_mean(x, -1, correction=0)[0],
        facts=_SIZE,
    ),
    _reduction(
        "std",
        "√var",
        _over_axes(
            lambda x, dim, keep, correction: torch.std(x, dim, keepdim=keep, correction=correction),
            "correction",
        ),
        (
            Target("aten.std.correction", _SPREAD),
            Target("aten.std.dim", _SPREAD),
            Target("aten.std.default", _SPREAD),
            Target("aten.std_mean.correction", _SPREAD, item=0),
        ),
        lambda x: x.std(-1, keepdim=True),
        lambda x: x.std((0, 1), correction=0),
        lambda x: torch.std_mean(x, -1)[0],
        facts=_SIZE,
        composed=lambda node, parts: parts("sqrt", parts("var", parts[0], **node.attributes)),
    ),
    _reduction(
        "prod",
        "Π input over the axes dim",
        _over_axes(_one_by_one(torch.prod), "dtype"),
        (Target("aten.prod.dim_int", _AXES), Target("aten.prod.default", _AXES)),
        lambda x: x.prod(1),
        lambda x: x.prod(),
        lambda x: (3 * x).prod(-1, dtype=torch.int32),
    ),
    _reduction(
        "amax",
        "largest entry over the axes dim",
        _over_axes(torch.amax),
        (
            Target("aten.amax.default", _AXES),
            Target("aten.max.default", _AXES),
            Target("aten.max.dim", _AXES, item=0),
        ),
        lambda x: x.amax(-1),
        lambda x: x.max(),
        lambda x: x.max(1).values,
        facts=_RISING,
    ),
    _reduction(
        "amin",
        "smallest entry over the axes dim",
        _over_axes(torch.amin),
        (
            Target("aten.amin.default", _AXES),
            Target("aten.min.default", _AXES),
            Target("aten.min.dim", _AXES, item=0),
        ),
        lambda x: x.amin(-1),
        lambda x: x.min(),
        lambda x: x.min(1, keepdim=True).values,
        facts=_RISING,
    ),
    _reduction(
        "argmax",
        "index of the largest entry along dim (in the flattened tensor where dim is None)",
        _index_of(torch.argmax),
        (Target("aten.argmax.default", _ONE), Target("aten.max.dim", _ONE, item=1)),
        lambda x: x.argmax(-1),
        lambda x: x.argmax(),
        lambda x: x.max(1).indices,
    ),
    _reduction(
        "argmin",
        "index of the smallest entry along dim (in the flattened tensor where dim is None)",
        _index_of(torch.argmin),
        (Target("aten.argmin.default", _ONE), Target("aten.min.dim", _ONE, item=1)),
        lambda x: x.argmin(0),
        lambda x: x.min(1).indices,
    ),
    _reduction(
        "logsumexp",
        "ln Σ exp(input) over the axes dim",
        _over_axes(torch.logsumexp),
        (Target("aten.logsumexp.default", _AXES),),
        lambda x: x.logsumexp(-1),
        lambda x: x.logsumexp((0, 1), keepdim=True),
        facts=_RISING,
    ),
    _reduction(
        "norm",
        "(Σ |input|^ord)^{1/ord} over the axes dim",
        _norm,
        (
            Target("aten.linalg_vector_norm.default", binding(compute=_norm_order)),
            Target("aten.norm.ScalarOpt_dim", binding(compute=_norm_order, drop=("p",))),
            Target("aten.norm.Scalar", binding(compute=_norm_order, drop=("p",))),
        ),
        lambda x: x.norm(dim=-1),
        lambda x: torch.linalg.vector_norm(x, 1, dim=(0, 1), keepdim=True),
        lambda x: x.norm(),
        facts=replace(_SIZE, complex=True),
    ),
    _reduction(
        "any",
        "whether some entry over the axes dim is non-zero",
        _over_axes(_one_by_one(torch.any)),
        (Target("aten.any.default", _AXES), Target("aten.any.dim", _AXES), Target("aten.any.dims", _AXES)),
        lambda x: (x > 0).any(-1),
        lambda x: (x > 0).any(),
        facts=TRUTH,
    ),
    _reduction(
        "all",
        "whether every entry over the axes dim is non-zero",
        _over_axes(_one_by_one(torch.all)),
        (Target("aten.all.default", _AXES), Target("aten.all.dim", _AXES), Target("aten.all.dims", _AXES)),
        lambda x: (x > 0).all(-1),
        facts=TRUTH,
    ),
    _reduction(
        "cumsum",
        "Σ of the entries up to and including each, along dim",
        _cumulative(torch.cumsum),
        (Target("aten.cumsum.default", binding(axis=("dim",))),),
        lambda x: x.cumsum(-1),
        lambda x: (3 * x).cumsum(-1, dtype=torch.int64),
        facts=_LINEAR,
    ),
    _reduction(
        "cumprod",
        "Π of the entries up to and including each, along dim",
        _cumulative(torch.cumprod),
        (Target("aten.cumprod.default", binding(axis=("dim",))),),
        lambda x: x.cumprod(1),
    ),
    _reduction(
        "logcumsumexp",
        "ln of the running Σ exp(input) along dim",
        _cumulative(torch.logcumsumexp),
        (Target("aten.logcumsumexp.default", binding(axis=("dim",))),),
        lambda x: torch.logcumsumexp(x, 1),
        facts=_RISING,
    ),
    Operator(
        "topk",
        "reduce",
        "the k largest (or smallest) entries along dim, and their indices",
        ("input",),
        (Target("aten.topk.default", binding(axis=("dim",))),),
        _topk,
        (
            example(lambda x: x.topk(2).values, real(3, 5)),
            example(lambda x: x.topk(1, dim=0).indices, real(3, 5)),
        ),
        returns_tuple=True,
    ),
    Operator(
        "sort",
        "reduce",
        "the entries in order along dim, and their indices (ties keep their order)",
        ("input",),
        (
            Target("aten.sort.default", binding(axis=("dim",))),
            Target("aten.sort.stable", binding(axis=("dim",))),
        ),
        _sort,
        (example(lambda x: x.sort(-1).values, real(3, 5)),),
        returns_tuple=True,
    ),
    Operator(
        "argsort",
        "reduce",
        "indices that put the entries in order along dim",
        ("input",),
        (
            Target("aten.argsort.default", binding(axis=("dim",))),
            Target("aten.argsort.stable", binding(axis=("dim",))),
        ),
        _argsort,
        (example(lambda x: x.argsort(-1), real(3, 5)),),
    ),
    Operator(
        "kthvalue",
        "reduce",
        "the k-th smallest entry along dim, and its index",
        ("input",),
        (Target("aten.kthvalue.default", binding(axis=("dim",))),),
        _pair(torch.kthvalue, "k", "dim", "keepdim"),
        (example(lambda x: x.kthvalue(2).values, real(3, 5)),),
        returns_tuple=True,
    ),
    Operator(
        "median",
        "reduce",
        "the lower median along dim, and its index",
        ("input",),
        (Target("aten.median.dim", binding(axis=("dim",))),),
        _pair(torch.median, "dim", "keepdim"),
        (example(lambda x: x.median(-1).values, real(3, 5)),),
        returns_tuple=True,
    ),
    Operator(
        "cummax",
        "reduce",
        "the largest entry so far along dim, and its index",
        ("input",),
        (Target("aten.cummax.default", binding(axis=("dim",))),),
        _pair(torch.cummax, "dim"),
        (example(lambda x: x.cummax(-1).values, real(3, 5)),),
        returns_tuple=True,
    ),
    Operator(
        "cummin",
        "reduce",
        "the smallest entry so far along dim, and its index",
        ("input",),
        (Target("aten.cummin.default", binding(axis=("dim",))),),
        _pair(torch.cummin, "dim"),
        (example(lambda x: x.cummin(-1).values, real(3, 5)),),
        returns_tuple=True,
    ),
)
