"""Attention and rotary positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from farfield.graph.onnx._table import onnx_operator
from farfield.graph.onnx._values import Arguments, UnsupportedOnnxError

__all__: list[str] = []


def _heads(x: Tensor, count: int | None) -> Tensor:
    """(batch, time, features) as (batch, heads, time, features of a head)."""
    if x.ndim == 4:
        return x
    if not count:
        raise UnsupportedOnnxError("Attention without the number of heads")
    return x.reshape(x.shape[0], x.shape[1], count, x.shape[2] // count).transpose(1, 2)


@onnx_operator("Attention")
def _attention(a: Arguments) -> Any:
    flat = a.tensor(0).ndim == 3
    q = _heads(a.tensor(0), a.attribute("q_num_heads"))
    k, v = (_heads(a.tensor(i), a.attribute("kv_num_heads")) for i in (1, 2))
    mask, past, causal = a.optional(3), a.has(4), bool(a.attribute("is_causal", 0))
    if a.outputs > 3 or a.has(6) or (causal and (past or mask is not None)):
        raise UnsupportedOnnxError("Attention with its scores as an output, or causal with a cache or a mask")
    if past:
        k, v = torch.cat([a.tensor(4), k], 2), torch.cat([a.tensor(5), v], 2)
    present = (k, v)
    if q.shape[1] != k.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scale, softcap = a.attribute("scale"), a.attribute("softcap", 0.0)
    if softcap:
        out = _capped(q, k, v, mask, causal, scale, softcap)
    else:
        out = F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale)
    if flat:
        out = out.transpose(1, 2).reshape(out.shape[0], out.shape[2], out.shape[1] * out.shape[3])
    return (out, *present)[: a.outputs] if a.outputs > 1 else out


def _capped(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None, softcap: float
) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap)
    if causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    if mask is not None:
        hidden = torch.full_like(scores, float("-inf"))
        scores = torch.where(mask, scores, hidden) if mask.dtype == torch.bool else scores + mask
    return torch.matmul(torch.softmax(scores, -1), v)


@onnx_operator("RotaryEmbedding")
def _rotary(a: Arguments) -> Any:
    x, cos, sin, places = a.tensor(0), a.tensor(1), a.tensor(2), a.optional(3)
    flat = x.ndim == 3
    heads = _heads(x, a.attribute("num_heads", 0))
    width = a.attribute("rotary_embedding_dim", 0) or heads.shape[-1]
    if places is not None:
        cos, sin = (F.embedding(places, t) for t in (cos, sin))
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned, rest = heads[..., :width], heads[..., width:]
    if a.attribute("interleaved", 0):
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    one, two = cos * first - sin * second, sin * first + cos * second
    paired = a.attribute("interleaved", 0)
    out = torch.stack([one, two], -1).flatten(-2) if paired else torch.cat([one, two], -1)
    out = torch.cat([out, rest], -1)
    return out.transpose(1, 2).reshape(x.shape) if flat else out
