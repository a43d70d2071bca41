"""Jets of choices and conditions: a comparison is decided by the leading coefficient of the difference."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from farfield.growth._jet import Jet, as_real
from farfield.growth._leading import Lead, difference, lead
from farfield.growth._step import JetValue, Step, jet_rule, register_jet_rule
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


@jet_rule("where")
def _where(step: Step) -> Jet:
    return choose(step.jet(0), step.operand(1, "input"), step.operand(2, "other"))


@jet_rule("masked_fill")
def _masked_fill(step: Step) -> Jet:
    return choose(step.jet(1), step.operand(2, "value"), step.jet(0))


def _triangle(step: Step) -> JetValue:
    jet = step.jet(0)
    result = moved(step, [jet])
    if not isinstance(result, Jet):
        return result
    inside = step.compute(torch.ones(jet.shape, device=jet.values.device)) != 0
    return Jet(result.powers, result.values, result.errors, torch.where(inside, jet.full_floor(), -INF))


for _name in ("tril", "triu"):
    register_jet_rule(_name, _triangle)


def _logic(step: Step) -> Jet:
    jets = [step.jet(i) for i in range(len(step.operands)) if step.present(i)]
    floors = torch.broadcast_tensors(*(jet.full_floor() for jet in jets))
    doubt = torch.stack(list(floors)).amax(0) > -INF
    tensors = [step.jet(i).at(0.0) if step.present(i) else None for i in range(len(step.operands))]
    return truth(step.compute(*tensors), doubt)


for _name in [
    "logical_not",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_not",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
]:
    register_jet_rule(_name, _logic)


@jet_rule("nan_to_num")
def _nan_to_num(step: Step) -> Jet:
    return step.jet(0)
