"""Jets of attention: softmax of the scores' jets, then a product with the values' jets."""

from __future__ import annotations

import torch

from farfield.growth._jet import Jet, add, constant, matmul, scale, select, unknown_like
from farfield.growth._step import Step, jet_rule
from farfield.growth.jets.linear import transposed
from farfield.growth.jets.reduce import softmax_over

__all__: list[str] = []


def _repeated(jet: Jet, heads: int) -> Jet:
    times = heads // jet.shape[-3]
    return Jet(
        jet.powers,
        jet.values.repeat_interleave(times, -3),
        jet.errors.repeat_interleave(times, -3),
        jet.full_floor().repeat_interleave(times, -3),
    )


@jet_rule("attention")
def _attention(step: Step) -> Jet:
    query, key, value, a = step.jet(0), step.jet(1), step.jet(2), step.attributes
    if a.get("enable_gqa"):
        key, value = _repeated(key, query.shape[-3]), _repeated(value, query.shape[-3])
    factor = query.shape[-1] ** -0.5 if a.get("scale") is None else float(a["scale"])
    scores = scale(matmul(query, transposed(key), step.lowest), factor)
    hidden = torch.zeros(scores.shape[-2:], dtype=torch.bool, device=scores.values.device)
    if a.get("is_causal"):
        hidden = hidden | ~torch.ones_like(hidden).tril()
    blocked = constant(torch.full((), -torch.inf, dtype=torch.float64))
    if step.present(3):
        mask = step.jet(3)
        if mask.values.dtype == torch.bool:
            hidden = hidden | ~mask.at(0.0)
            if not mask.is_constant:
                return unknown_like(matmul(scores, value, step.lowest))
        else:
            scores = add(scores, mask)
    scores = select(hidden, blocked, scores)
    weights = softmax_over(scores, scores.ndim - 1)
    closed = scores.values[0].detach() < 0 if scores.powers[0] == blocked.powers[0] else hidden
    everything = closed.all(-1, keepdim=True)
    if bool(everything.any()):
        weights = select(everything, constant(torch.zeros(())), weights)
    return matmul(weights, value, step.lowest)
