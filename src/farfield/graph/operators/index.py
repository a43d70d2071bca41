"""Reading and writing entries at places that other tensors name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from farfield.graph._node import Node
from farfield.graph.operators._bindings import binding, boolean, example, integer, positive, real
from farfield.graph.operators._facts import MOVES, TRUTH, Facts, when_floating
from farfield.graph.operators._registry import Call, Operator, Target, calling, operand

__all__ = ["OPERATORS"]


def _at(indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in indices)


def _index(node: Node, tensors: Sequence[Any]) -> Any:
    return tensors[0][_at(tensors[1:])]


def _index_put(node: Node, tensors: Sequence[Any]) -> Any:
    result: Tensor = tensors[0].clone()
    # Through the operator itself: ``result[…] = values`` reads a leading None as a new axis.
    return torch.ops.aten.index_put(result, list(tensors[2:]), tensors[1], node.attributes["accumulate"])


def _index_select(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.index_select(tensors[0], node.attributes["dim"], tensors[1])


def _gather(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.gather(tensors[0], node.attributes["dim"], tensors[1])


def _scatter(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    source = operand(node, tensors, 2, "src")
    reduce = a.get("reduce")
    if reduce is None:
        return torch.scatter(tensors[0], a["dim"], tensors[1], source)
    if reduce in ("add", "multiply"):
        return torch.scatter(tensors[0], a["dim"], tensors[1], source, reduce=reduce)
    return torch.scatter_reduce(
        tensors[0], a["dim"], tensors[1], source, reduce, include_self=a["include_self"]
    )


def _slice_scatter(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    length = tensors[0].shape[
        a["dim"]
    ]  # what slices to the end names the largest integer, to which vmap adds
    end = length if a["end"] is None else min(a["end"], length)
    return torch.slice_scatter(tensors[0], tensors[1], a["dim"], a["start"], end, a["step"])


def _select_scatter(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.select_scatter(tensors[0], tensors[1], node.attributes["dim"], node.attributes["index"])


def _copy(node: Node, tensors: Sequence[Any]) -> Any:
    return tensors[1].to(tensors[0].dtype).expand_as(tensors[0])


def _nonzero(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.nonzero(tensors[0])


def _item(node: Node, tensors: Sequence[Any]) -> Any:
    return tensors[0].reshape(())


def _bucketize(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.bucketize(tensors[0], tensors[1], right=node.attributes["right"])


def _searchsorted(node: Node, tensors: Sequence[Any]) -> Any:
    value = torch.as_tensor(operand(node, tensors, 1, "input"), dtype=tensors[0].dtype)
    found = torch.searchsorted(
        tensors[0].contiguous(), value.contiguous(), right=node.attributes["right"], sorter=tensors[2]
    )
    return found if node.dtype is None else found.to(node.dtype)


def _side(call: Call) -> dict[str, Any]:
    return {"right": bool(call.arguments["right"]) or call.arguments["side"] == "right"}


def _assign(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x = x.clone()
    x[:, i] = v
    return x


def _assign_slice(x: Tensor, v: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1:3] = v
    return x


def _assign_row(x: Tensor, v: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1] = v
    return x


def _overwrite(x: Tensor, v: Tensor) -> Tensor:
    x = x.clone()
    x.copy_(v)
    return x


_WRITES = Facts(moves=True, linear=((0, 1),), monotone=(1, 1), complex=True)


def _scatter_facts(node: Node) -> Facts:
    """Linear where entries are written or added; other reductions are not."""
    a = node.attributes
    added = a.get("reduce") in ("add", "sum") and a.get("include_self", True)
    if a.get("reduce") is not None and not added:
        return Facts()
    return when_floating(Facts(linear=((0, 2),), monotone=(1, 0, 1)))(node)


_AXIS = binding(axis=("dim",))
_SEARCH = binding({"sorted_sequence": "boundaries"}, compute=_side, drop=("out_int32", "side"))
_SUM = binding(axis=("dim",), add={"reduce": "sum", "include_self": True})

READING = (
    Operator(
        "index",
        "index",
        "input[indices]: entries at the places the index tensors name, an absent index taking its whole axis",
        ("input", "*indices"),
        (Target("aten.index.Tensor"), Target("aten._unsafe_index.Tensor")),
        _index,
        (
            example(lambda x, i: x[i], real(5, 3), integer(5, 4)),
            example(lambda x, i: x[:, i], real(2, 5, 3), integer(5, 4)),
            example(lambda x, i, j: x[i, :, j], real(5, 3, 4), integer(5, 6), integer(4, 6)),
        ),
        facts=MOVES,
    ),
    Operator(
        "index_select",
        "index",
        "slices of input at index along dim",
        ("input", "index"),
        (Target("aten.index_select.default", _AXIS),),
        _index_select,
        (example(lambda x, i: x.index_select(-1, i), real(2, 5), integer(5, 3)),),
        facts=MOVES,
    ),
    Operator(
        "gather",
        "index",
        "input at index along dim, the other axes in step",
        ("input", "index"),
        (Target("aten.gather.default", binding(axis=("dim",), drop=("sparse_grad",))),),
        _gather,
        (example(lambda x, i: x.gather(-1, i), real(2, 5), integer(5, 2, 3)),),
        facts=MOVES,
    ),
    Operator(
        "take",
        "index",
        "entries of the flattened input",
        ("input", "index"),
        (Target("aten.take.default"),),
        calling(torch.take),
        (example(torch.take, real(2, 5), integer(10, 3)),),
        facts=MOVES,
    ),
    Operator(
        "nonzero",
        "index",
        "places of the non-zero entries, one row each; how many is known only when it runs",
        ("input",),
        (Target("aten.nonzero.default"),),
        _nonzero,
        (example(lambda m: m.nonzero(), boolean(4, 5)),),
    ),
    Operator(
        "masked_select",
        "index",
        "entries where mask holds, in a row; how many is known only when it runs",
        ("input", "mask"),
        (Target("aten.masked_select.default"),),
        calling(torch.masked_select),
        (example(torch.masked_select, real(4, 5), boolean(4, 5)),),
        facts=MOVES,
    ),
    Operator(
        "item",
        "index",
        "the one entry of a tensor, read out as a number",
        ("input",),
        (Target("aten._local_scalar_dense.default"), Target("aten.item.default")),
        _item,
        (example(lambda x, y: y * x.sum().item(), real(3), real(4)),),
        facts=MOVES,
    ),
    Operator(
        "one_hot",
        "index",
        "1 at the index, 0 elsewhere, along a new last axis",
        ("input",),
        (Target("aten.one_hot.default"),),
        calling(torch.nn.functional.one_hot, "num_classes"),
        (example(lambda i: torch.nn.functional.one_hot(i, 5), integer(5, 4)),),
        facts=TRUTH,
    ),
    Operator(
        "bucketize",
        "index",
        "how many of the sorted boundaries lie below each entry",
        ("input", "boundaries"),
        (Target("aten.bucketize.Tensor", binding(drop=("out_int32",))),),
        _bucketize,
        (example(lambda x: torch.bucketize(x, torch.arange(3.0, dtype=x.dtype)), real(6)),),
        facts=Facts(monotone=(1,)),
    ),
    Operator(
        "searchsorted",
        "index",
        "how many of the sorted boundaries of its row lie below each entry (up to it where right)",
        ("boundaries", "input", "sorter"),
        (Target("aten.searchsorted.Tensor", _SEARCH), Target("aten.searchsorted.Scalar", _SEARCH)),
        _searchsorted,
        (
            example(lambda x: torch.searchsorted(torch.arange(3.0, dtype=x.dtype), x), real(6)),
            example(
                lambda b, x: torch.searchsorted(b.cumsum(-1), x, side="right"), positive(2, 4), real(2, 3)
            ),
            example(lambda b: torch.searchsorted(b.cumsum(-1), 2.0), positive(4)),
        ),
        facts=Facts(monotone=(0, 1)),
    ),
)

WRITING = (
    Operator(
        "index_put",
        "index",
        "input with values written (added where accumulate) at the places the index tensors name",
        ("input", "values", "*indices"),
        (Target("aten.index_put.default"), Target("aten._unsafe_index_put.default")),
        _index_put,
        (example(_assign, real(2, 5), integer(5, 2), real(2, 2)),),
        facts=when_floating(Facts(linear=((0, 1),), complex=True)),
    ),
    Operator(
        "scatter",
        "index",
        "input with src written at index along dim, or combined as reduce says",
        ("input", "index", "src"),
        (
            Target("aten.scatter.src", _AXIS),
            Target("aten.scatter.value", binding({"value": "src"}, axis=("dim",))),
            Target("aten.scatter.reduce", _AXIS),
            Target("aten.scatter.value_reduce", binding({"value": "src"}, axis=("dim",))),
            Target("aten.scatter_add.default", _SUM),
            Target("aten.scatter_reduce.two", _AXIS),
        ),
        _scatter,
        (
            example(lambda x, i, s: x.scatter(1, i, s), real(2, 5), integer(5, 2, 1), real(2, 1)),
            example(lambda x, i: x.scatter(-1, i, 0.5), real(2, 5), integer(5, 2, 3)),
            example(lambda x, i, s: x.scatter_add(-1, i, s), real(2, 5), integer(5, 2, 3), real(2, 3)),
            example(
                lambda x, i, s: x.scatter_reduce(0, i, s, "amax", include_self=False),
                real(2, 5),
                integer(2, 3, 5),
                real(3, 5),
            ),
            example(
                lambda x, i, s: x.scatter_reduce(-1, i, s, "amin"), real(2, 3), integer(3, 2, 5), real(2, 5)
            ),
            example(
                lambda x, i, s: x.scatter_reduce(-1, i, s, "sum", include_self=False),
                real(2, 4),
                integer(3, 2, 5),
                real(2, 5),
            ),
            example(
                lambda x, i, s: x.scatter_reduce(-1, i, s, "mean"), real(2, 3), integer(3, 2, 5), real(2, 5)
            ),
        ),
        facts=_scatter_facts,
    ),
    Operator(
        "slice_scatter",
        "index",
        "input with src written at start:end:step along dim",
        ("input", "src"),
        (Target("aten.slice_scatter.default", _AXIS),),
        _slice_scatter,
        (example(_assign_slice, real(2, 5), real(2, 2)),),
        facts=when_floating(_WRITES),
    ),
    Operator(
        "select_scatter",
        "index",
        "input with src written at index along dim",
        ("input", "src"),
        (Target("aten.select_scatter.default", _AXIS),),
        _select_scatter,
        (example(_assign_row, real(2, 5), real(2)),),
        facts=when_floating(_WRITES),
    ),
    Operator(
        "copy",
        "index",
        "src broadcast to the shape of input; input's own entries don't matter",
        ("input", "src"),
        (Target("aten.copy.default"),),
        _copy,
        (example(_overwrite, real(2, 5), real(5)),),
        facts=when_floating(Facts(moves=True, linear=((1,),), monotone=(0, 1), complex=True)),
    ),
)

OPERATORS = (*READING, *WRITING)
