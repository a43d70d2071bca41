"""Normalizations, softmax among them: each ties its output to a bounded set whatever its input, or doesn't.

Attributes common to ``layer_norm``, ``rms_norm`` and ``l2_normalize``: ``dim`` (axes normalized over, counted
from the front), ``eps``, and ``eps_mode``, which says where the stabilizer sits: ``"inside"`` √(v + eps),
``"outside"`` √v + eps, ``"clamp"`` max(√v, eps).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from farfield.graph._node import Node
from farfield.graph.operators._bindings import binding, example, positive, real
from farfield.graph.operators._facts import Facts, axes_norm, channel_norm
from farfield.graph.operators._registry import Call, Operator, Target

__all__ = ["OPERATORS", "trailing_axes"]


def trailing_axes(rank: int, count: int) -> tuple[int, ...]:
    """The last ``count`` axes."""
    return tuple(range(rank - count, rank))


def _stabilized(square: Tensor, eps: float, mode: str) -> Tensor:
    if mode == "inside":
        return torch.sqrt(square + eps)
    root = torch.sqrt(square)
    return root + eps if mode == "outside" else root.clamp_min(eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _standard(node: Node, x: Tensor) -> bool:
    """Whether torch's own kernel computes this norm: last axes, biased variance, stabilizer inside."""
    a = node.attributes
    last = tuple(a["dim"]) == trailing_axes(x.ndim, len(a["dim"]))
    return last and a["eps_mode"] == "inside" and a.get("correction", 0) == 0


def _layer_norm(node: Node, tensors: Sequence[Any]) -> Any:
    x, weight, bias = tensors
    a = node.attributes
    dim = list(a["dim"])
    if _standard(node, x):
        return functional.layer_norm(x, [x.shape[d] for d in dim], weight, bias, a["eps"])
    centered = x - x.mean(dim, keepdim=True)
    count = math.prod(x.shape[d] for d in dim)
    variance = centered.square().sum(dim, keepdim=True) / (count - a["correction"])
    return _affine(centered / _stabilized(variance, a["eps"], a["eps_mode"]), weight, bias)


def _rms_norm(node: Node, tensors: Sequence[Any]) -> Any:
    x, weight = tensors
    a = node.attributes
    dim = list(a["dim"])
    if _standard(node, x):
        return functional.rms_norm(x, [x.shape[d] for d in dim], weight, a["eps"])
    mean_square = x.square().mean(dim, keepdim=True)
    return _affine(x / _stabilized(mean_square, a["eps"], a["eps_mode"]), weight, None)


def _l2_normalize(node: Node, tensors: Sequence[Any]) -> Any:
    x, a = tensors[0], node.attributes
    p, dim = a["p"], list(a["dim"])
    if p == 2:
        return x / _stabilized(x.abs().square().sum(dim, keepdim=True), a["eps"], a["eps_mode"])
    size = torch.linalg.vector_norm(x, p, dim, keepdim=True)
    return x / (size + a["eps"] if a["eps_mode"] == "outside" else size.clamp_min(a["eps"]))


def _group_norm(node: Node, tensors: Sequence[Any]) -> Any:
    x, weight, bias = tensors
    return functional.group_norm(x, node.attributes["num_groups"], weight, bias, node.attributes["eps"])


def _instance_norm(node: Node, tensors: Sequence[Any]) -> Any:
    x, weight, bias, mean, variance = tensors
    own = node.attributes["use_input_stats"]
    return functional.instance_norm(
        x, None if own else mean, None if own else variance, weight, bias, own, 0.0, node.attributes["eps"]
    )


def _batch_norm(node: Node, tensors: Sequence[Any]) -> Any:
    x, weight, bias, mean, variance = tensors
    own = node.attributes["training"]
    return functional.batch_norm(
        x, None if own else mean, None if own else variance, weight, bias, own, 0.0, node.attributes["eps"]
    )


def _softmax(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.softmax(tensors[0], node.attributes["dim"], dtype=node.attributes.get("dtype"))


def _log_softmax(node: Node, tensors: Sequence[Any]) -> Any:
    return torch.log_softmax(tensors[0], node.attributes["dim"], dtype=node.attributes.get("dtype"))


def _layer_norm_arguments(call: Call) -> dict[str, Any]:
    rank = len(call.arguments["input"].shape)
    shape = call.arguments["normalized_shape"]
    return {"dim": trailing_axes(rank, len(shape)), "correction": 0, "eps_mode": "inside"}


def _rms_norm_arguments(call: Call) -> dict[str, Any]:
    x = call.arguments["input"]
    eps = call.arguments.get("eps")
    if eps is None:
        eps = torch.finfo(x.dtype).eps
    return {
        "dim": trailing_axes(len(x.shape), len(call.arguments["normalized_shape"])),
        "eps": eps,
        "eps_mode": "inside",
    }


def _native_group(call: Call) -> dict[str, Any]:
    return {"num_groups": call.arguments["group"]}


def _layer_norm_facts(node: Node) -> Facts:
    return Facts(norm=axes_norm(node, node.attributes, centered=True))


def _rms_norm_facts(node: Node) -> Facts:
    return Facts(norm=axes_norm(node, node.attributes))


def _l2_facts(node: Node) -> Facts:
    order = float(node.attributes.get("p", 2.0))
    return Facts(norm=axes_norm(node, node.attributes, averaged=False, order=order))


def _group_norm_facts(node: Node) -> Facts:
    return Facts(norm=channel_norm(node, int(node.attributes["num_groups"])))


_BY_STATISTICS = Facts(linear=((0, 2, 3),))
"""(x − mean)·weight/√(var + ε) + bias: linear in x, bias and mean together while weight and variance are fixed."""


def _instance_norm_facts(node: Node) -> Facts:
    own = node.attributes.get("use_input_stats", True)
    return Facts(norm=channel_norm(node, 0)) if own else _BY_STATISTICS


def _batch_norm_facts(node: Node) -> Facts:
    return Facts() if node.attributes.get("training") else _BY_STATISTICS


_STATISTICS = ("input", "weight", "bias", "running_mean", "running_var")
_CUDNN = ("cudnn_enable", "cudnn_enabled", "momentum")
_LN = binding(drop=("cudnn_enable",), compute=_layer_norm_arguments)
_RMS = binding(drop=("dim",), compute=_rms_norm_arguments)
_BN_EVAL = binding(drop=_CUDNN, add={"training": False})
_BN_OWN = binding(drop=(*_CUDNN, "running_mean", "running_var"), add={"training": True})
_BN_FLAG = binding(drop=_CUDNN, compute=lambda call: {"training": bool(call.arguments["training"])})

OPERATORS = (
    Operator(
        "layer_norm",
        "norm",
        "(input − mean) / stabilized deviation over the axes dim, times weight, plus bias",
        ("input", "weight", "bias"),
        (Target("aten.layer_norm.default", _LN), Target("aten.native_layer_norm.default", _LN, item=0)),
        _layer_norm,
        (
            example(lambda x, w, b: functional.layer_norm(x, (4,), w, b), real(3, 4), real(4), real(4)),
            example(lambda x: functional.layer_norm(x, (3, 4), eps=0.1), real(2, 3, 4)),
            example(lambda x: torch.native_layer_norm(x, (4,), None, None, 1e-3)[0], real(3, 4)),
        ),
        facts=_layer_norm_facts,
    ),
    Operator(
        "rms_norm",
        "norm",
        "input / stabilized root of the mean square over the axes dim, times weight",
        ("input", "weight"),
        (Target("aten.rms_norm.default", _RMS), Target("aten._fused_rms_norm.default", _RMS, item=0)),
        _rms_norm,
        (
            example(lambda x, w: functional.rms_norm(x, (4,), w, 1e-3), real(3, 4), real(4)),
            example(lambda x: functional.rms_norm(x, (4,)), real(3, 4)),
        ),
        facts=_rms_norm_facts,
    ),
    Operator(
        "l2_normalize",
        "norm",
        "input / stabilized p-norm over the axes dim (attribute p, 2 as a rule); recognized",
        ("input",),
        (),
        _l2_normalize,
        (
            example(lambda x: functional.normalize(x, dim=-1), real(3, 4)),
            example(lambda x: functional.normalize(x, p=1.0, dim=0, eps=0.1), real(3, 4)),
            example(lambda x: x / (x.norm(dim=1, keepdim=True) + 1e-6), real(3, 4)),
        ),
        facts=_l2_facts,
    ),
    Operator(
        "group_norm",
        "norm",
        "layer_norm inside each of num_groups groups of channels, times weight, plus bias per channel",
        ("input", "weight", "bias"),
        (
            Target("aten.group_norm.default", binding(drop=("cudnn_enabled",))),
            Target(
                "aten.native_group_norm.default",
                binding(drop=("N", "C", "HxW", "group"), compute=_native_group),
                item=0,
            ),
        ),
        _group_norm,
        (
            example(lambda x, w, b: functional.group_norm(x, 2, w, b), real(3, 4, 5), real(4), real(4)),
            example(lambda x: torch.native_group_norm(x, None, None, 3, 4, 5, 2, 1e-3)[0], real(3, 4, 5)),
        ),
        facts=_group_norm_facts,
    ),
    Operator(
        "instance_norm",
        "norm",
        "each channel of each sample centered and scaled over its spatial axes (by running statistics where "
        "use_input_stats is False: then it is affine)",
        _STATISTICS,
        (Target("aten.instance_norm.default", binding(drop=_CUDNN)),),
        _instance_norm,
        (
            example(
                lambda x, w, b: functional.instance_norm(x, weight=w, bias=b), real(2, 3, 5), real(3), real(3)
            ),
            example(
                lambda x, m, v: functional.instance_norm(x, m, v, use_input_stats=False),
                real(2, 3, 5),
                real(3),
                positive(3),
            ),
        ),
        facts=_instance_norm_facts,
    ),
    Operator(
        "batch_norm",
        "norm",
        "(input − running_mean) / √(running_var + eps) · weight + bias per channel: affine in eval mode "
        "(training is False), by the batch's own statistics otherwise",
        _STATISTICS,
        (
            Target("aten.batch_norm.default", _BN_FLAG),
            Target("aten._native_batch_norm_legit_no_training.default", _BN_EVAL, item=0),
            Target("aten._native_batch_norm_legit.default", _BN_FLAG, item=0),
            Target("aten._native_batch_norm_legit.no_stats", _BN_OWN, item=0),
            Target("aten._native_batch_norm_legit_functional.default", _BN_FLAG, item=0),
            Target("aten.native_batch_norm.default", _BN_FLAG, item=0),
            Target("aten._batch_norm_no_update.default", _BN_EVAL, item=0),
        ),
        _batch_norm,
        (
            example(
                lambda x, m, v, w, b: functional.batch_norm(x, m, v, w, b),
                real(4, 3),
                real(3),
                positive(3),
                real(3),
                real(3),
            ),
            example(lambda x: functional.batch_norm(x, None, None, training=True), real(4, 3, 2)),
        ),
        facts=_batch_norm_facts,
    ),
    Operator(
        "softmax",
        "norm",
        "exp(input) / Σ exp(input) along dim",
        ("input",),
        (
            Target("aten.softmax.int", binding(axis=("dim",))),
            Target("aten._softmax.default", binding(axis=("dim",), drop=("half_to_float",))),
            Target("aten._safe_softmax.default", binding(axis=("dim",))),
        ),
        _softmax,
        (
            example(lambda x: torch.softmax(x, -1), real(3, 4)),
            example(lambda x: torch._softmax(x, 0, False), real(3, 4)),
        ),
        facts=Facts(positive=True, range=(0.0, 1.0)),
    ),
    Operator(
        "log_softmax",
        "norm",
        "input − ln Σ exp(input) along dim",
        ("input",),
        (
            Target("aten.log_softmax.int", binding(axis=("dim",))),
            Target("aten._log_softmax.default", binding(axis=("dim",), drop=("half_to_float",))),
        ),
        _log_softmax,
        (example(lambda x: torch.log_softmax(x, 1), real(3, 4)),),
    ),
)
