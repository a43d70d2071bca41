"""Activations: one scalar function of each entry, kept under its own name with its own parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from farfield.graph._node import Node
from farfield.graph.operators._bindings import binding, example, real
from farfield.graph.operators._facts import Facts
from farfield.graph.operators._registry import Call, Operator, Target

__all__ = ["OPERATORS"]


def _activation(
    name: str,
    summary: str,
    function: Callable[..., Any],
    *targets: Target,
    keys: tuple[str, ...] = (),
    module: Callable[..., Any] | None = None,
) -> Operator:
    """An activation whose parameters are the attributes ``keys``, passed to ``function`` by name."""

    def compute(node: Node, tensors: Sequence[Any]) -> Any:
        return function(tensors[0], **{key: node.attributes[key] for key in keys})

    call = function if module is None else module
    return Operator(
        name,
        "activation",
        summary,
        ("input",),
        targets,
        compute,
        (example(call, real(5, 7)),),
        facts=Facts(entrywise=True),
    )


def _elu(x: Any, alpha: float, scale: float, input_scale: float) -> Any:
    return torch.where(x > 0, scale * x, scale * alpha * torch.expm1(input_scale * x))


def _prelu(node: Node, tensors: Sequence[Any]) -> Any:
    return (
        torch.prelu(tensors[0], tensors[1])
        if tensors[1].ndim <= 1
        else torch.where(tensors[0] > 0, tensors[0], tensors[1] * tensors[0])
    )


def _rrelu(call: Call) -> dict[str, Any] | None:
    """In eval mode the random slope is its mean; while training it's random: not this operator."""
    a = call.arguments
    if a.get("training"):
        return None
    return {"input": a["input"], "negative_slope": (a["lower"] + a["upper"]) / 2}


OPERATORS = (
    _activation("relu", "max(x, 0)", torch.relu, Target("aten.relu.default")),
    _activation(
        "leaky_relu",
        "x for x > 0, negative_slope · x below",
        functional.leaky_relu,
        Target("aten.leaky_relu.default"),
        Target("aten.rrelu.default", _rrelu),
        keys=("negative_slope",),
        module=lambda x: functional.leaky_relu(x, 0.2) + functional.rrelu(x, 0.1, 0.4),
    ),
    Operator(
        "prelu",
        "activation",
        "x for x > 0, weight · x below, one weight or one per channel (axis 1)",
        ("input", "weight"),
        (Target("aten.prelu.default"), Target("aten._prelu_kernel.default")),
        _prelu,
        (example(functional.prelu, real(2, 3, 4), real(3)), example(functional.prelu, real(2, 3), real(1))),
    ),
    _activation(
        "elu",
        "scale · x for x > 0, scale · alpha · (e^{input_scale · x} − 1) below",
        _elu,
        Target("aten.elu.default"),
        keys=("alpha", "scale", "input_scale"),
        module=lambda x: functional.elu(x, 0.7),
    ),
    _activation("selu", "1.0507 · elu(x, alpha = 1.6733)", functional.selu, Target("aten.selu.default")),
    _activation(
        "celu",
        "max(x, 0) + min(0, alpha · (e^{x/alpha} − 1))",
        functional.celu,
        Target("aten.celu.default"),
        keys=("alpha",),
        module=lambda x: functional.celu(x, 1.3),
    ),
    _activation(
        "gelu",
        "x · Φ(x), or its tanh approximation as the attribute 'approximate' says",
        functional.gelu,
        Target("aten.gelu.default"),
        keys=("approximate",),
        module=lambda x: functional.gelu(x) + functional.gelu(x, approximate="tanh"),
    ),
    _activation("silu", "x · sigmoid(x)", functional.silu, Target("aten.silu.default")),
    _activation("mish", "x · tanh(softplus(x))", functional.mish, Target("aten.mish.default")),
    _activation(
        "softplus",
        "ln(1 + e^{beta · x}) / beta; exactly x where beta · x > threshold",
        functional.softplus,
        Target("aten.softplus.default"),
        keys=("beta", "threshold"),
        module=lambda x: functional.softplus(x, beta=2.0, threshold=1.5),
    ),
    _activation("softsign", "x / (1 + |x|); recognized, torch has no operator for it", functional.softsign),
    _activation("sigmoid", "1 / (1 + e^{−x})", torch.sigmoid, Target("aten.sigmoid.default")),
    _activation(
        "hardtanh",
        "min(max(x, min_val), max_val)",
        functional.hardtanh,
        Target("aten.hardtanh.default"),
        Target("aten.relu6.default", binding(add={"min_val": 0, "max_val": 6})),
        keys=("min_val", "max_val"),
        module=lambda x: functional.hardtanh(x, -0.5, 0.7) + functional.relu6(4 * x),
    ),
    _activation(
        "hardsigmoid", "min(max(x + 3, 0), 6) / 6", functional.hardsigmoid, Target("aten.hardsigmoid.default")
    ),
    _activation(
        "hardswish", "x · min(max(x + 3, 0), 6) / 6", functional.hardswish, Target("aten.hardswish.default")
    ),
    _activation(
        "logsigmoid",
        "ln sigmoid(x)",
        functional.logsigmoid,
        Target("aten.log_sigmoid.default"),
        Target("aten.log_sigmoid_forward.default", item=0),
    ),
    _activation("tanhshrink", "x − tanh x; recognized, torch takes it apart", functional.tanhshrink),
    _activation(
        "softshrink",
        "x ∓ lambd outside [−lambd, lambd], 0 inside",
        functional.softshrink,
        Target("aten.softshrink.default"),
        keys=("lambd",),
    ),
    _activation(
        "hardshrink",
        "x outside [−lambd, lambd], 0 inside",
        functional.hardshrink,
        Target("aten.hardshrink.default"),
        keys=("lambd",),
    ),
    _activation(
        "threshold",
        "x where x > threshold, value elsewhere",
        functional.threshold,
        Target("aten.threshold.default"),
        keys=("threshold", "value"),
        module=lambda x: functional.threshold(x, 0.1, -2.0),
    ),
)
