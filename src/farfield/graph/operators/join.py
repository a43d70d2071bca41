"""Tensors put together and taken apart along an axis: joining, padding, splitting, slicing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from farfield.graph._node import Node
from farfield.graph.operators._bindings import binding, example, front, real
from farfield.graph.operators._facts import MOVES, Facts, moves_all
from farfield.graph.operators._registry import Call, Operator, Target, calling

__all__ = ["OPERATORS"]


def _narrowed(call: Call) -> dict[str, Any]:
    rank = len(call.arguments["input"].shape)
    a = call.arguments
    return {"dim": front(a["dim"], rank), "start": a["start"], "end": a["start"] + a["length"], "step": 1}


def _stacked_axis(call: Call) -> dict[str, Any]:
    return {"dim": front(call.arguments["dim"], len(call.shape))}


def _cat(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.cat(list(tensors), node.attributes["dim"])


def _stack(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.stack(list(tensors), node.attributes["dim"])


def _split(node: Node, tensors: Sequence[Any]) -> Any:
    size = node.attributes["split_size"]
    return torch.split(tensors[0], list(size) if isinstance(size, tuple) else size, node.attributes["dim"])


def _chunk(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.chunk(tensors[0], node.attributes["chunks"], node.attributes["dim"])


def _getitem(node: Node, tensors: Sequence[Any]) -> Any:
    return tensors[0][node.attributes["index"]]


def _slice(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    index: list[Any] = [slice(None)] * tensors[0].ndim
    index[a["dim"]] = slice(a["start"], a["end"], a["step"])
    return tensors[0][tuple(index)]


def _select(node: Node, tensors: Sequence[Any]) -> Any:
    return tensors[0].select(node.attributes["dim"], node.attributes["index"])


def _pad(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return functional.pad(tensors[0], list(a["pad"]), a["mode"], a["value"])


def _pad_facts(node: Node) -> Facts:
    """Padding copies entries; the number it fills with is added to nothing."""
    filled = node.attributes["mode"] == "constant" and bool(node.attributes["value"])
    constant = node.attributes["mode"] == "constant"
    return Facts(
        moves=not filled, fills=constant, linear=((0,),), monotone=(1,), complex=True, offsets=("value",)
    )


_X = ("input",)

JOINING = (
    Operator(
        "cat",
        "join",
        "the tensors one after another along dim",
        ("*tensors",),
        (
            Target("aten.cat.default", binding(axis=("dim",), of="tensors")),
            Target("aten.concat.default", binding(axis=("dim",), of="tensors")),
        ),
        _cat,
        (example(lambda x, y: torch.cat([x, y], -1), real(2, 3), real(2, 4)),),
        facts=moves_all,
    ),
    Operator(
        "stack",
        "join",
        "the tensors along a new axis at dim",
        ("*tensors",),
        (Target("aten.stack.default", binding(compute=_stacked_axis)),),
        _stack,
        (example(lambda x, y: torch.stack([x, y], -1), real(2, 3), real(2, 3)),),
        facts=moves_all,
    ),
    Operator(
        "pad",
        "join",
        "entries put before and after (pad: last axis first): value for mode 'constant', else 'reflect', "
        "'replicate' or 'circular' copies",
        _X,
        (
            Target("aten.pad.default", binding(compute=lambda call: {"value": call.arguments["value"] or 0})),
            Target("aten.constant_pad_nd.default", binding(add={"mode": "constant"})),
            *(
                Target(
                    f"aten.{kind}_pad{n}d.default",
                    binding({"padding": "pad"}, add={"mode": mode, "value": 0}),
                )
                for kind, mode in (("reflection", "reflect"), ("replication", "replicate"))
                for n in (1, 2, 3)
            ),
        ),
        _pad,
        (
            example(lambda x: functional.pad(x, (1, 2), value=3.0), real(2, 3)),
            example(lambda x: functional.pad(x, (1, 1, 2, 0), mode="reflect"), real(1, 2, 4, 4)),
            example(lambda x: functional.pad(x, (1, 1), mode="circular"), real(1, 2, 4)),
        ),
        facts=_pad_facts,
    ),
)

CUTTING = (
    Operator(
        "split",
        "join",
        "consecutive pieces along dim, of one size or of the sizes listed (split_size)",
        _X,
        (
            Target("aten.split.Tensor", binding(axis=("dim",))),
            Target("aten.split_with_sizes.default", binding({"split_sizes": "split_size"}, axis=("dim",))),
            Target("aten.split.sizes", binding(axis=("dim",))),
        ),
        _split,
        (
            example(lambda x: x.split(2, -1)[1], real(2, 6)),
            example(lambda x: x.split([1, 5], 1)[0], real(2, 6)),
        ),
        returns_tuple=True,
        facts=MOVES,
    ),
    Operator(
        "chunk",
        "join",
        "about equal consecutive pieces along dim",
        _X,
        (Target("aten.chunk.default", binding(axis=("dim",))),),
        _chunk,
        (example(lambda x: x.chunk(2, -1)[0], real(2, 6)),),
        returns_tuple=True,
        facts=MOVES,
    ),
    Operator(
        "unbind",
        "join",
        "every slice along dim",
        _X,
        (Target("aten.unbind.int", binding(axis=("dim",))),),
        calling(torch.unbind, "dim"),
        (example(lambda x: x.unbind(1)[1], real(2, 3)),),
        returns_tuple=True,
        facts=MOVES,
    ),
    Operator(
        "getitem",
        "join",
        "one of the tensors that a node returns",
        _X,
        (Target("_operator.getitem", binding({"other": "index"})),),
        _getitem,
        (example(lambda x: x.topk(2)[1], real(3, 4)),),
        facts=MOVES,
    ),
    Operator(
        "slice",
        "join",
        "entries start:end:step along dim",
        _X,
        (
            Target("aten.slice.Tensor", binding(axis=("dim",))),
            Target("aten.narrow.default", binding(compute=_narrowed, drop=("length",))),
        ),
        _slice,
        (example(lambda x: x[:, 1:-1], real(2, 5)), example(lambda x: x[::2], real(5, 2))),
        facts=MOVES,
    ),
    Operator(
        "select",
        "join",
        "the slice at index along dim, without that axis",
        _X,
        (Target("aten.select.int", binding(axis=("dim",))),),
        _select,
        (example(lambda x: x[:, -1], real(2, 3, 4)),),
        facts=MOVES,
    ),
    Operator(
        "diagonal",
        "join",
        "the diagonal at offset of the axes dim1 and dim2, as a new last axis",
        _X,
        (Target("aten.diagonal.default", binding(axis=("dim1", "dim2"))),),
        calling(torch.diagonal, "offset", "dim1", "dim2"),
        (example(lambda x: x.diagonal(1, -2, -1), real(2, 3, 4)),),
        facts=MOVES,
    ),
)

OPERATORS = (*JOINING, *CUTTING)
