"""Maps that are linear in one tensor once the others are fixed: products, convolutions, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from farfield.graph._node import Node
from farfield.graph.operators._bindings import binding, example, integer, real
from farfield.graph.operators._facts import Facts, linear_in
from farfield.graph.operators._registry import Call, Operator, Target, calling

__all__ = ["OPERATORS"]

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def _matmul(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.matmul(tensors[0], tensors[1])


def _sum_with_product(node: Node, parts: Any) -> str:
    beta, alpha = node.attributes.get("beta", 1), node.attributes.get("alpha", 1)
    product = parts("matmul", parts[1], parts[2])
    scaled = product if alpha == 1 else parts("mul", product, alpha)
    return str(parts("add", scaled, 0 if beta == 0 else parts[0], alpha=1 if beta == 0 else beta))


def _addmm(node: Node, tensors: Sequence[Any]) -> Any:
    beta, alpha = node.attributes.get("beta", 1), node.attributes.get("alpha", 1)
    return beta * tensors[0] + alpha * torch.matmul(tensors[1], tensors[2])


def _convolution(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return _CONVOLUTIONS[tensors[1].ndim - 2](
        tensors[0],
        tensors[1],
        tensors[2],
        list(a["stride"]),
        list(a["padding"]),
        list(a["dilation"]),
        a["groups"],
    )


def _transposed_convolution(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    return _TRANSPOSED[tensors[1].ndim - 2](
        tensors[0],
        tensors[1],
        tensors[2],
        list(a["stride"]),
        list(a["padding"]),
        list(a["output_padding"]),
        a["groups"],
        list(a["dilation"]),
    )


def _embedding(node: Node, tensors: Sequence[Any]) -> Any:
    return functional.embedding(tensors[1], tensors[0])


def _embedding_bag(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    weight, indices, offsets, weights = tensors
    return functional.embedding_bag(
        indices,
        weight,
        offsets,
        mode=_BAGS[a["mode"]],
        per_sample_weights=weights,
        include_last_offset=a["include_last_offset"],
        padding_idx=None if a["padding_idx"] is None or a["padding_idx"] < 0 else a["padding_idx"],
    )


def _broadcast(call: Call) -> dict[str, Any]:
    """One number per spatial axis, where the call gave one for all of them."""
    rank = len(call.arguments["weight"].shape) - 2
    keys = ("stride", "padding", "dilation", "output_padding")
    spread = {}
    for key in keys:
        given = call.arguments.get(key)
        if given is not None:
            given = (given,) if isinstance(given, int) else tuple(given)
            spread[key] = given * rank if len(given) == 1 else given
    return spread


def _bag_facts(node: Node) -> Facts:
    """Sums and means of rows are linear in the rows; maxima are not."""
    return Facts() if _BAGS[node.attributes["mode"]] == "max" else linear_in((0,))


def _addmm_facts(node: Node) -> Facts:
    """Products with coefficient 1 only while alpha and beta are."""
    plain = all(node.attributes.get(name, 1) == 1 for name in ("alpha", "beta"))
    return linear_in((0, 1), (0, 2), products=plain)


_CONV = binding(compute=_broadcast)
_BAGS = ("sum", "mean", "max")
_BAG = binding(drop=("scale_grad_by_freq", "sparse"), add={"padding_idx": None})
_BAG_PADDED = binding(drop=("scale_grad_by_freq", "sparse"))
_TENSORS = ("input", "weight", "bias")

OPERATORS = (
    Operator(
        "linear",
        "linear",
        "input · weightᵀ + bias",
        _TENSORS,
        (Target("aten.linear.default"),),
        calling(functional.linear),
        (
            example(functional.linear, real(2, 3), real(4, 3), real(4)),
            example(functional.linear, real(2, 5, 3), real(4, 3)),
        ),
        facts=linear_in((0, 2), (1, 2), complex=True, products=True),
    ),
    Operator(
        "matmul",
        "linear",
        "input · other over the last two axes, broadcast over the rest (vectors as torch.matmul takes them)",
        ("input", "other"),
        (
            Target("aten.matmul.default"),
            Target("aten.mm.default", binding({"mat2": "other"})),
            Target("aten.bmm.default", binding({"mat2": "other"})),
            Target("aten.mv.default", binding({"vec": "other"})),
            Target("aten.dot.default", binding({"tensor": "other"})),
            Target("_operator.matmul"),
        ),
        _matmul,
        (
            example(torch.matmul, real(2, 5, 3), real(2, 3, 4)),
            example(torch.mm, real(2, 3), real(3, 4)),
            example(torch.bmm, real(2, 2, 3), real(2, 3, 4)),
            example(torch.mv, real(2, 3), real(3)),
            example(torch.dot, real(3), real(3)),
        ),
        facts=linear_in((0,), (1,), complex=True, products=True),
    ),
    Operator(
        "addmm",
        "linear",
        "beta · bias + alpha · input · other",
        ("bias", "input", "other"),
        (
            Target("aten.addmm.default", binding({"input": "bias", "mat1": "input", "mat2": "other"})),
            Target("aten.baddbmm.default", binding({"input": "bias", "batch1": "input", "batch2": "other"})),
            Target("aten.addmv.default", binding({"input": "bias", "mat": "input", "vec": "other"})),
        ),
        _addmm,
        (
            example(torch.addmm, real(4), real(2, 3), real(3, 4)),
            example(
                lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5, alpha=2),
                real(2, 1, 4),
                real(2, 5, 3),
                real(2, 3, 4),
            ),
            example(torch.addmv, real(2), real(2, 3), real(3)),
        ),
        facts=_addmm_facts,
        composed=_sum_with_product,
    ),
    Operator(
        "conv",
        "linear",
        "cross-correlation of input with weight over 1, 2 or 3 spatial axes, plus bias",
        _TENSORS,
        (
            Target("aten.conv1d.default", _CONV),
            Target("aten.conv2d.default", _CONV),
            Target("aten.conv3d.default", _CONV),
            Target(
                "aten.convolution.default", binding(compute=_broadcast, drop=("transposed", "output_padding"))
            ),
        ),
        _convolution,
        (
            example(
                lambda x, w, b: functional.conv1d(x, w, b, stride=2, padding=1),
                real(2, 3, 9),
                real(4, 3, 3),
                real(4),
            ),
            example(
                lambda x, w: functional.conv2d(x, w, padding=1, groups=2), real(2, 4, 5, 5), real(4, 2, 3, 3)
            ),
            example(functional.conv3d, real(1, 2, 4, 4, 4), real(3, 2, 2, 2, 2), real(3)),
        ),
        facts=linear_in((0, 2), (1, 2), products=True),
    ),
    Operator(
        "conv_transpose",
        "linear",
        "the adjoint of conv, plus bias",
        _TENSORS,
        (
            Target("aten.conv_transpose1d.default", _CONV),
            Target("aten.conv_transpose2d.input", _CONV),
            Target("aten.conv_transpose3d.input", _CONV),
            Target("aten.convolution.default#transposed", binding(compute=_broadcast, drop=("transposed",))),
        ),
        _transposed_convolution,
        (
            example(
                lambda x, w, b: functional.conv_transpose1d(x, w, b, stride=2),
                real(2, 3, 5),
                real(3, 4, 3),
                real(4),
            ),
            example(
                lambda x, w: functional.conv_transpose2d(x, w, stride=2, output_padding=1),
                real(1, 3, 4, 4),
                real(3, 2, 3, 3),
            ),
        ),
        facts=linear_in((0, 2), (1, 2), products=True),
    ),
    Operator(
        "embedding",
        "linear",
        "row indices[i] of weight",
        ("weight", "indices"),
        (Target("aten.embedding.default"),),
        _embedding,
        (example(lambda w, i: functional.embedding(i, w), real(6, 4), integer(6, 2, 3)),),
        facts=Facts(moves=True, linear=((0,),), monotone=(1,)),
    ),
    Operator(
        "embedding_bag",
        "linear",
        "rows indices[offsets[i]:offsets[i + 1]] of weight, times per_sample_weights, summed, averaged "
        "or maximized (mode 0, 1, 2)",
        ("weight", "indices", "offsets", "per_sample_weights"),
        (
            Target("aten.embedding_bag.default", _BAG, item=0),
            Target("aten.embedding_bag.padding_idx", _BAG_PADDED, item=0),
            Target("aten._embedding_bag.default", _BAG_PADDED, item=0),
            Target("aten._embedding_bag_forward_only.default", _BAG_PADDED, item=0),
        ),
        _embedding_bag,
        (
            example(lambda w, i: functional.embedding_bag(i, w, mode="mean"), real(6, 4), integer(6, 2, 3)),
            example(
                lambda w, i: functional.embedding_bag(i, w, torch.tensor([0, 2]), mode="sum"),
                real(6, 4),
                integer(6, 5),
            ),
        ),
        facts=_bag_facts,
    ),
)
