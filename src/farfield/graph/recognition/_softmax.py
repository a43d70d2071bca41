"""Softmax and the sigmoids by hand: exponentials divided by a sum that contains them."""

from __future__ import annotations

from dataclasses import replace

from farfield.graph._node import Node
from farfield.graph.recognition._view import View, is_float

__all__ = ["match_log", "match_sigmoid", "match_softmax", "match_softplus"]


def match_softmax(view: View, node: Node) -> Node | None:
    """``exp(z) / Σ exp(z)`` along one axis is ``softmax(z)``, whatever was subtracted inside z."""
    if node.op != "div" or None in node.inputs or node.attributes.get("rounding_mode") is not None:
        return None
    top, bottom = node.operands
    weights, total = view.at(top), view.statistic(bottom)
    if weights is None or weights.op != "exp" or total.op != "sum" or not is_float(node.dtype):
        return None
    dim = total.attributes["dim"]
    fits = (
        len(dim) == 1
        and view.same(total.operands[0], top)
        and weights.shape == node.shape
        and view.aligned(bottom, weights, dim)
    )
    if not fits:
        return None
    return replace(
        node,
        op="softmax",
        inputs=weights.inputs,
        attributes={"dim": dim[0], "dtype": None, "recognized": True},
    )


def _one_plus(view: View, name: str | None, op: str) -> Node | None:
    """The node of this operator that a value exceeds by one."""
    node = view.at(name)
    if node is None or node.op != "add" or view.number(node, 1, "other") != 1:
        return None
    inner = view.at(node.inputs[0])
    plain = (
        node.attributes["alpha"] == 1 and inner is not None and inner.op == op and inner.shape == node.shape
    )
    return inner if plain else None


def match_sigmoid(view: View, node: Node) -> Node | None:
    """``1/(1 + e^{−x})``, ``e^x/(1 + e^x)``, ``x/(1 + e^{−x})`` (silu) and ``x/(1 + |x|)`` (softsign)."""
    if not is_float(node.dtype):
        return None
    if node.op == "reciprocal":
        exponent = _exponent(view, node.inputs[0])
        x = _negated(view, exponent)
        return None if x is None else _activation(node, "sigmoid", x)
    if node.op != "div" or None in node.inputs or node.attributes.get("rounding_mode") is not None:
        return None
    top, bottom = node.operands
    size = _one_plus(view, bottom, "abs")
    if size is not None and view.same(size.operands[0], top) and view.node(top).shape == node.shape:
        return _activation(node, "softsign", top)
    exponent = _exponent(view, bottom)
    if exponent is None or view.node(top).shape != node.shape:
        return None
    raised = view.at(top)
    if raised is not None and raised.op == "exp" and view.same(raised.operands[0], exponent):
        return _activation(node, "sigmoid", exponent)
    x = _negated(view, exponent)
    return _activation(node, "silu", top) if x is not None and view.same(x, top) else None


def match_log(view: View, node: Node) -> Node | None:
    """``ln σ(x)`` and ``ln softmax(x)``: as real numbers they go on where the inner function rounds to 0."""
    inner = view.at(node.inputs[0]) if node.op == "log" else None
    if inner is None or not is_float(node.dtype):
        return None
    if inner.op == "sigmoid":
        return _activation(node, "logsigmoid", inner.operands[0])
    if inner.op == "softmax":
        attributes = {**inner.attributes, "recognized": True}
        return replace(node, op="log_softmax", inputs=inner.inputs, attributes=attributes)
    return None


def match_softplus(view: View, node: Node) -> Node | None:
    """``ln(1 + e^x)``, also with a threshold by hand; torch's own operator equals it without one."""
    if node.op == "where":
        return _with_threshold(view, node)
    if node.op == "log1p":
        raised = view.at(node.inputs[0])
        exponent = raised.operands[0] if raised is not None and raised.op == "exp" else None
    elif node.op == "log":
        exponent = _exponent(view, node.inputs[0])
    else:
        return None
    if exponent is None or not is_float(node.dtype):
        return None
    return replace(
        node,
        op="softplus",
        inputs=(exponent,),
        attributes={"beta": 1, "threshold": float("inf"), "recognized": True},
    )


def _with_threshold(view: View, node: Node) -> Node | None:
    """``where(x > t, x, softplus(x))``: the way torch.onnx writes its threshold."""
    if None in node.inputs or not is_float(node.dtype):
        return None
    condition, x, other = node.operands
    test, bent = view.at(condition), view.at(other)
    if test is None or bent is None or test.op != "gt" or bent.op != "softplus":
        return None
    threshold = view.number(test, 1, "other")
    fits = (
        threshold is not None
        and bent.attributes["beta"] == 1
        and 0 <= threshold <= bent.attributes["threshold"]
        and view.same(test.inputs[0], x)
        and view.same(bent.operands[0], x)
        and view.node(x).shape == bent.shape == node.shape
    )
    if not fits:
        return None
    attributes = {"beta": 1, "threshold": threshold, "recognized": True}
    return replace(node, op="softplus", inputs=(x,), attributes=attributes)


def _exponent(view: View, name: str | None) -> str | None:
    """z if the value is 1 + e^z."""
    raised = _one_plus(view, name, "exp")
    return None if raised is None else raised.operands[0]


def _negated(view: View, name: str | None) -> str | None:
    """x if the value is −x."""
    node = view.at(name)
    if node is not None and node.op == "neg":
        return node.operands[0]
    if node is not None and node.op == "mul" and view.number(node, 1, "other") == -1:
        return node.inputs[0]
    return None


def _activation(node: Node, op: str, source: str) -> Node:
    return replace(node, op=op, inputs=(source,), attributes={"recognized": True})
