"""The same entries under another shape, order or type: reshaping, permuting, repeating, casting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from farfield.graph._node import Node
from farfield.graph.operators._bindings import binding, example, front, integer, real
from farfield.graph.operators._facts import MOVES, RANDOM, Facts, when_floating
from farfield.graph.operators._registry import Call, Operator, Target, calling, operand

__all__ = ["OPERATORS"]


def _result_shape(call: Call) -> dict[str, Any]:
    return {"shape": call.shape}


def _transposition(call: Call) -> dict[str, Any]:
    rank = len(call.arguments["input"].shape)
    order = list(range(rank))
    if rank:
        first, second = front(call.arguments["dim0"], rank), front(call.arguments["dim1"], rank)
        order[first], order[second] = order[second], order[first]
    return {"dims": tuple(order)}


def _reversal(call: Call) -> dict[str, Any]:
    return {"dims": tuple(reversed(range(len(call.arguments["input"].shape))))}


def _matrix_transposition(call: Call) -> dict[str, Any]:
    rank = len(call.arguments["input"].shape)
    return {"dims": (*range(rank - 2), rank - 1, rank - 2)}


def _squeezed(call: Call) -> dict[str, Any]:
    shape = call.arguments["input"].shape
    dim = call.arguments.get("dim")
    if dim is None:
        axes = tuple(range(len(shape)))
    else:
        axes = tuple(front(d, len(shape)) for d in ((dim,) if isinstance(dim, int) else dim))
    return {"dim": tuple(d for d in axes if d < len(shape) and shape[d] == 1)}


def _unsqueezed(call: Call) -> dict[str, Any]:
    return {"dim": front(call.arguments["dim"], len(call.shape))}


def _expand(node: Node, tensors: Sequence[Any]) -> Any:
    return tensors[0].expand(node.attributes["shape"])


def _squeeze(node: Node, tensors: Sequence[Any]) -> Any:
    return tensors[0].squeeze(node.attributes["dim"])


def _repeat(node: Node, tensors: Sequence[Any]) -> Any:
    return tensors[0].repeat(node.attributes["repeats"])


def _roll(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return torch.roll(tensors[0], a["shifts"], a["dims"] or ())


def _cast(node: Node, tensors: Sequence[Any]) -> Any:
    x = operand(node, tensors, 0, "input")
    return torch.as_tensor(x).to(node.attributes["dtype"])


def _identity(node: Node, tensors: Sequence[Any]) -> Any:
    return tensors[0]


def _unfold(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return tensors[0].unfold(a["dimension"], a["size"], a["step"])


def _pixel_unshuffle(node: Node, tensors: Sequence[Any]) -> Any:
    return functional.pixel_unshuffle(tensors[0], node.attributes["downscale_factor"])


def _only_in_eval(call: Call) -> Mapping[str, Any] | None:
    """Kinds of dropout that do something else while training: unknown then."""
    return None if call.arguments["train"] else call.arguments


_IN_PLACE = replace(MOVES, entrywise=True)


def _dropout_facts(node: Node) -> Facts:
    return RANDOM if node.attributes.get("train") else _IN_PLACE


def _result_dtype(call: Call) -> dict[str, Any]:
    return {"dtype": call.dtype}


_X = ("input",)
_SHAPED = binding(
    compute=_result_shape, drop=("size", "implicit", "start_dim", "end_dim", "dim", "sizes", "other")
)
_CAST = binding(compute=_result_dtype, drop=("other",))

RESHAPING = (
    Operator(
        "reshape",
        "shape",
        "the same entries in row-major order under another shape",
        _X,
        tuple(
            Target(f"aten.{name}", _SHAPED)
            for name in (
                "view.default",
                "reshape.default",
                "_unsafe_view.default",
                "flatten.using_ints",
                "unflatten.int",
                "view_copy.default",
                "_reshape_copy.default",
            )
        ),
        calling(torch.reshape, "shape"),
        (
            example(lambda x: x.view(x.shape[0], -1), real(2, 3, 4)),
            example(lambda x: x.flatten(1), real(2, 3, 4)),
            example(lambda x: x.unflatten(1, (2, 3)), real(2, 6)),
        ),
        facts=MOVES,
    ),
    Operator(
        "permute",
        "shape",
        "axes in the order dims",
        _X,
        (
            Target("aten.permute.default", binding(axes=("dims",))),
            Target("aten.transpose.int", binding(compute=_transposition, drop=("dim0", "dim1"))),
            Target("aten.t.default", binding(compute=_reversal)),
            Target("aten.numpy_T.default", binding(compute=_reversal)),
            Target("aten.mT.default", binding(compute=_matrix_transposition)),
        ),
        calling(torch.permute, "dims"),
        (
            example(lambda x: x.permute(2, 0, 1), real(2, 3, 4)),
            example(lambda x: x.transpose(-1, 0), real(2, 3, 4)),
            example(lambda x: x.t(), real(2, 3)),
            example(lambda x: x.mT, real(2, 3, 4)),
        ),
        facts=MOVES,
    ),
    Operator(
        "expand",
        "shape",
        "axes of length 1, and new leading axes, repeated to the given shape",
        _X,
        (
            Target("aten.expand.default", _SHAPED),
            Target("aten.expand_as.default", _SHAPED),
            Target("aten.broadcast_to.default", _SHAPED),
        ),
        _expand,
        (
            example(lambda x: x.expand(3, 2, 4), real(2, 1)),
            example(lambda x, y: x.expand_as(y), real(1, 4), real(3, 4)),
        ),
        facts=MOVES,
    ),
    Operator(
        "repeat",
        "shape",
        "the tensor tiled repeats times along each axis",
        _X,
        (Target("aten.repeat.default"),),
        _repeat,
        (example(lambda x: x.repeat(2, 1, 3), real(2, 3)),),
        facts=MOVES,
    ),
    Operator(
        "squeeze",
        "shape",
        "the axes dim, of length 1, removed",
        _X,
        (
            Target("aten.squeeze.default", binding(compute=_squeezed)),
            Target("aten.squeeze.dim", binding(compute=_squeezed)),
            Target("aten.squeeze.dims", binding(compute=_squeezed)),
        ),
        _squeeze,
        (example(lambda x: x.squeeze(-1), real(2, 1)), example(lambda x: x.squeeze(), real(2, 1, 3, 1))),
        facts=MOVES,
    ),
    Operator(
        "unsqueeze",
        "shape",
        "an axis of length 1 put at dim",
        _X,
        (Target("aten.unsqueeze.default", binding(compute=_unsqueezed)),),
        calling(torch.unsqueeze, "dim"),
        (example(lambda x: x.unsqueeze(-1), real(2, 3)),),
        facts=MOVES,
    ),
    Operator(
        "flip",
        "shape",
        "entries in reverse order along dims",
        _X,
        (Target("aten.flip.default", binding(axes=("dims",))),),
        calling(torch.flip, "dims"),
        (example(lambda x: x.flip(-1), real(2, 3)),),
        facts=MOVES,
    ),
    Operator(
        "roll",
        "shape",
        "entries moved by shifts along dims, those that fall off returning at the other end",
        _X,
        (Target("aten.roll.default"),),
        _roll,
        (example(lambda x: x.roll(1, -1), real(2, 3)), example(lambda x: x.roll(2), real(2, 3))),
        facts=MOVES,
    ),
    Operator(
        "unfold",
        "shape",
        "windows of the given size and step along dimension, laid out along a new last axis",
        _X,
        (Target("aten.unfold.default", binding(axis=("dimension",))),),
        _unfold,
        (example(lambda x: x.unfold(-1, 3, 2), real(2, 7)),),
        facts=MOVES,
    ),
    Operator(
        "pixel_shuffle",
        "shape",
        "channels moved into space by upscale_factor",
        _X,
        (Target("aten.pixel_shuffle.default"),),
        calling(functional.pixel_shuffle, "upscale_factor"),
        (example(lambda x: functional.pixel_shuffle(x, 2), real(1, 8, 3, 3)),),
        facts=MOVES,
    ),
    Operator(
        "pixel_unshuffle",
        "shape",
        "space moved into channels by downscale_factor",
        _X,
        (Target("aten.pixel_unshuffle.default"),),
        _pixel_unshuffle,
        (example(lambda x: functional.pixel_unshuffle(x, 2), real(1, 2, 4, 4)),),
        facts=MOVES,
    ),
)

COPYING = (
    Operator(
        "cast",
        "shape",
        "the same numbers in another dtype",
        _X,
        (
            Target("aten._to_copy.default", _CAST),
            Target("aten.to.dtype", _CAST),
            Target("aten.to.dtype_layout", _CAST),
            Target("aten.to.other", _CAST),
            Target("aten.type_as.default", _CAST),
        ),
        _cast,
        (
            example(lambda x: (3 * x).to(torch.int64), real(2, 3)),
            example(lambda i: i.double(), integer(5, 3)),
        ),
        facts=when_floating(_IN_PLACE),
    ),
    Operator(
        "identity",
        "shape",
        "the same tensor",
        _X,
        tuple(
            Target(f"aten.{name}.default", binding(drop=("copy",)))
            for name in (
                "clone",
                "contiguous",
                "detach",
                "detach_",  # marked as writing into its tensor, whose values it leaves
                "alias",
                "lift_fresh_copy",
                "lift_fresh",
                "detach_copy",
                "resolve_neg",
                "resolve_conj",
                "positive",
            )
        ),
        _identity,
        (example(lambda x: x.clone(), real(2, 3)),),
        facts=_IN_PLACE,
    ),
    Operator(
        "dropout",
        "shape",
        "the same tensor; where train is True, entries zeroed with probability p, the rest divided by 1 − p",
        _X,
        (
            Target("aten.dropout.default"),
            Target("aten.native_dropout.default", item=0),
            Target("aten.feature_dropout.default", _only_in_eval),
            Target("aten.alpha_dropout.default", _only_in_eval),
            Target("aten.feature_alpha_dropout.default", _only_in_eval),
        ),
        calling(functional.dropout, "p", "train"),
        (example(lambda x: functional.dropout(x, 0.3, training=False), real(2, 3)),),
        facts=_dropout_facts,
    ),
)

OPERATORS = (*RESHAPING, *COPYING)
