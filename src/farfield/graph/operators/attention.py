"""Attention, kept whole: its weights are a softmax, so each row stays in the hull of ``value``'s rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.nn import functional

from farfield.graph._node import Node
from farfield.graph.operators._bindings import boolean, example, real
from farfield.graph.operators._facts import RANDOM, Facts, linear_in
from farfield.graph.operators._registry import Call, Operator, Target

__all__ = ["OPERATORS"]


def _attention(node: Node, tensors: Sequence[Any]) -> Any:
    a = node.attributes
    query, key, value, mask = tensors
    return functional.scaled_dot_product_attention(
        query, key, value, mask, a["dropout_p"], a["is_causal"], scale=a["scale"], enable_gqa=a["enable_gqa"]
    )


def _kernel(call: Call) -> dict[str, Any]:
    """Arguments of the backend kernels that attention becomes once it is decomposed."""
    a = call.arguments
    mask = a.get("attn_mask", a.get("attn_bias"))
    return {
        "query": a["query"],
        "key": a["key"],
        "value": a["value"],
        "attn_mask": mask,
        "dropout_p": a.get("dropout_p", 0.0),
        "is_causal": a.get("is_causal", False),
        "scale": a.get("scale"),
        "enable_gqa": False,
    }


def _attention_facts(node: Node) -> Facts:
    """Random while its weights are dropped; linear in the values where queries and keys stand still."""
    return RANDOM if node.attributes.get("dropout_p") else linear_in((2,))


OPERATORS = (
    Operator(
        "attention",
        "attention",
        "softmax(query · keyᵀ · scale + attn_mask) · value; scale is 1/√(features) where None",
        ("query", "key", "value", "attn_mask"),
        (
            Target("aten.scaled_dot_product_attention.default"),
            Target("aten._scaled_dot_product_flash_attention_for_cpu.default", _kernel, item=0),
            Target("aten._scaled_dot_product_flash_attention.default", _kernel, item=0),
            Target("aten._scaled_dot_product_efficient_attention.default", _kernel, item=0),
            Target("aten._scaled_dot_product_cudnn_attention.default", _kernel, item=0),
            Target("aten._scaled_dot_product_attention_math.default", _kernel, item=0),
        ),
        _attention,
        (
            example(
                functional.scaled_dot_product_attention, real(2, 2, 5, 3), real(2, 2, 4, 3), real(2, 2, 4, 6)
            ),
            example(
                lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
                real(2, 5, 3),
                real(2, 5, 3),
                real(2, 5, 3),
            ),
            example(
                lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, attn_mask=m),
                real(2, 5, 3),
                real(2, 4, 3),
                real(2, 4, 3),
                boolean(5, 4),
            ),
            example(
                lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
                real(2, 4, 5, 3),
                real(2, 2, 5, 3),
                real(2, 2, 5, 3),
                real(5, 5),
            ),
        ),
        facts=_attention_facts,
    ),
)
