"""Jets of choices and conditions: a comparison is decided by the leading coefficient of the difference."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from farfield.growth._jet import Jet, as_real
from farfield.growth._leading import Lead, difference, lead
from farfield.growth._step import JetValue, Step, jet_rule, register_jet_rule
from farfield.growth.jets.linear import reshaped
from farfield.growth.jets.shape import choose, moved, truth

__all__: list[str] = []

INF = math.inf


def _comparison(decide: Callable[[Tensor], Tensor]) -> Callable[[Step], Jet]:
    def rule(step: Step) -> Jet:
        a, b = as_real(step.operand(0, "input")), as_real(step.operand(1, "other"))
        first: Lead = lead(difference(a, b))
        return truth(decide(first.sign), ~(first.certain | first.zero))

    return rule


register_jet_rule("gt", _comparison(lambda sign: sign > 0))
register_jet_rule("ge", _comparison(lambda sign: sign >= 0))
register_jet_rule("lt", _comparison(lambda sign: sign < 0))
register_jet_rule("le", _comparison(lambda sign: sign <= 0))
register_jet_rule("eq", _comparison(lambda sign: sign == 0))
register_jet_rule("ne", _comparison(lambda sign: sign != 0))


def _below(boundaries: Jet, x: Jet, *, right: bool) -> Jet:
    """How many boundaries lie below each entry, by one comparison for each pair: of sorted ones that stand still."""
    sorted_ = boundaries.is_constant and not bool((boundaries.values.diff(dim=-1) < 0).any())
    entries, shape = reshaped(x, (*x.shape, 1)), boundaries.shape
    rows = reshaped(boundaries, (*shape[:-1], 1, shape[-1])) if len(shape) > 1 else boundaries
    first: Lead = lead(difference(entries, rows))
    count = (first.sign >= 0 if right else first.sign > 0).sum(-1)
    return truth(count, ~(first.certain | first.zero).all(-1) | (not sorted_))


@jet_rule("bucketize")
def _bucketize(step: Step) -> Jet:
    return _below(as_real(step.jet(1)), as_real(step.jet(0)), right=bool(step.attributes["right"]))


@jet_rule("searchsorted")
def _searchsorted(step: Step) -> Jet:
    if step.present(2):
        raise NotImplementedError("boundaries in another order are not followed to infinity")
    return _below(
        as_real(step.jet(0)), as_real(step.operand(1, "input")), right=bool(step.attributes["right"])
    )


@jet_rule("where")
def _where(step: Step) -> Jet:
    return choose(step.jet(0), step.operand(1, "input"), step.operand(2, "other"))


@jet_rule("masked_fill")
def _masked_fill(step: Step) -> Jet:
    return choose(step.jet(1), step.operand(2, "value"), step.jet(0))


@jet_rule("tril", "triu")
def _triangle(step: Step) -> JetValue:
    jet = step.jet(0)
    result = moved(step, [jet])
    if not isinstance(result, Jet):
        return result
    inside = step.compute(torch.ones(jet.shape, device=jet.values.device)) != 0
    return Jet(result.powers, result.values, result.errors, torch.where(inside, jet.full_floor(), -INF))


@jet_rule(
    "logical_not",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_not",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
)
def _logic(step: Step) -> Jet:
    jets = [step.jet(i) for i in range(len(step.operands)) if step.present(i)]
    floors = torch.broadcast_tensors(*(jet.full_floor() for jet in jets))
    doubt = torch.stack(list(floors)).amax(0) > -INF
    tensors = [step.jet(i).at(0.0) if step.present(i) else None for i in range(len(step.operands))]
    return truth(step.compute(*tensors), doubt)


@jet_rule("nan_to_num")
def _nan_to_num(step: Step) -> Jet:
    return step.jet(0)
