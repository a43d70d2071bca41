"""Jets of operators that move entries about: the same move for every coefficient, its error and its floor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from farfield.gaussian import scalar_function
from farfield.growth._jet import (
    ABOVE,
    Jet,
    add,
    aligned,
    as_real,
    linear_map,
    select,
    stored,
    unknown_like,
)
from farfield.growth._leading import lead
from farfield.growth._step import JetValue, Step, jet_rule, register_jet_rule
from farfield.growth.jets.elementwise import apply_scalar

__all__ = ["in_type", "moved", "places"]

INF = math.inf


def moved(step: Step, jets: Sequence[Jet], rest: Sequence[Tensor | None] = ()) -> JetValue:
    """Apply the operator to every coefficient, every error and the floor of the given operands."""
    powers, spread = aligned(jets)
    values = [step.compute(*(v[k] for v, _ in spread), *rest) for k in range(len(powers))]
    errors = [step.compute(*(e[k] for _, e in spread), *rest) for k in range(len(powers))]
    floor = step.compute(*(jet.full_floor() for jet in jets), *rest)
    origins = [jet.origin for jet in jets if jet.origin is not None]
    origin = step.compute(*origins, *rest) if len(origins) == len(jets) else None
    if isinstance(floor, Tensor):
        return Jet(powers, torch.stack(values), torch.stack(errors), floor, origin)
    return tuple(
        Jet(
            powers,
            torch.stack([v[i] for v in values]),
            torch.stack([e[i] for e in errors]),
            part,
            None if origin is None else origin[i],
        )
        for i, part in enumerate(floor)
    )


@jet_rule("slice_scatter", "select_scatter")
def _join(step: Step) -> JetValue:
    return moved(step, [step.jet(i) for i in range(len(step.operands))])


@jet_rule("copy")
def _copy(step: Step) -> Jet:
    """The second operand, in the type and shape of the first."""
    source, shape = in_type(step.jet(1), step.node.dtype), step.jet(0).shape
    view = (len(source.powers), *(1,) * (len(shape) - source.ndim), *source.shape)
    values, errors = (t.reshape(view).expand(view[0], *shape) for t in (source.values, source.errors))
    return Jet(source.powers, values, errors, source.full_floor().expand(shape))


@jet_rule("getitem")
def _getitem(step: Step) -> JetValue:
    operand = step.operands[0]
    if isinstance(operand, tuple):
        return operand[int(step.attributes["index"])]
    return moved(step, [step.jet(0)])


@jet_rule("dropout")
def _dropout(step: Step) -> JetValue:
    return step.jet(0) if not step.attributes.get("train") else unknown_like(step.jet(0))


@jet_rule("pad")
def _pad(step: Step) -> Jet:
    jet, a = step.jet(0), step.attributes
    pad, mode, value = list(a["pad"]), a["mode"], float(a.get("value") or 0.0)

    def put(tensor: Tensor, fill: float) -> Any:
        if mode == "constant":
            return torch.nn.functional.pad(tensor, pad, mode, fill)
        return step.compute(tensor)

    powers = jet.powers if 0.0 in jet.powers or value == 0.0 else (*jet.powers, 0.0)
    powers = tuple(sorted(powers, reverse=True))
    values = [put(jet.at(p), value if p == 0.0 else 0.0) for p in powers]
    errors = [put(jet.error_at(p), 0.0) for p in powers]
    floor = put(torch.nan_to_num(jet.full_floor(), neginf=-1e300), -1e300)
    floor = torch.where(floor == -1e300, -INF, floor)
    return Jet(powers, torch.stack(values), torch.stack(errors), floor)


@jet_rule("cast")
def _cast(step: Step) -> Jet:
    return in_type(step.jet(0), step.attributes["dtype"])


def in_type(jet: Jet, dtype: torch.dtype | None) -> Jet:
    """The jet in another type (its own where that is ``None``): a floating type changes nothing, others cut."""
    if dtype is None:
        return jet
    if jet.values.is_floating_point() and not (dtype.is_floating_point or dtype.is_complex):
        if dtype == torch.bool:
            first = lead(jet)
            return truth(first.certain, ~(first.certain | first.zero))
        return stored(apply_scalar(jet, scalar_function("trunc")), dtype)
    return Jet(jet.powers, jet.values.to(dtype), jet.errors, jet.floor, jet.origin)


def places(step: Step, start: int) -> tuple[list[Tensor | None], bool]:
    """Index tensors from the given argument on, and whether all of them are decided."""
    found: list[Tensor | None] = []
    decided = True
    for index in range(start, len(step.operands)):
        if not step.present(index):
            found.append(None)
            continue
        jet = step.jet(index)
        tensor = jet.at(0.0)
        found.append(tensor.long() if tensor.is_floating_point() else tensor)
        decided = decided and bool((jet.floor == -INF).all())
    return found, decided


def _written(step: Step, jets: list[Jet], indices: list[Tensor | None], decided: bool) -> Jet:
    result = moved(step, jets, indices)
    if not isinstance(result, Jet):
        raise TypeError("a write returns one tensor")
    return result if decided else unknown_like(result)


@jet_rule("index_put")
def _index_put(step: Step) -> Jet:
    indices, decided = places(step, 2)
    if step.attributes.get("accumulate"):
        return _accumulated(step, indices) if decided else unknown_like(step.jet(0))
    return _written(step, [step.jet(0), step.jet(1)], indices, decided)


def _accumulated(step: Step, indices: list[Tensor | None]) -> Jet:
    """The sum of what arrives at every place: the floor of one is that of the highest that arrives there."""
    base, source = as_real(step.jet(0)), as_real(step.jet(1))
    nothing = torch.zeros(base.shape, dtype=torch.float64, device=base.values.device)

    def arriving(tensor: Tensor) -> Tensor:
        result: Tensor = step.compute(nothing.to(tensor.dtype), tensor, *indices)
        return result

    floor, arrived = torch.full_like(nothing, -INF), source.full_floor()
    for level in arrived.unique():
        floor = torch.where(arriving((arrived >= level).to(torch.float64)) > 0, level, floor)
    return add(base, linear_map(source, arriving, arriving, floor))


def _real_part(step: Step) -> Jet:
    jet = step.jet()
    return Jet(jet.powers, jet.values.real if jet.values.is_complex() else jet.values, jet.errors, jet.floor)


register_jet_rule("real", _real_part)


@jet_rule("imag")
def _imag(step: Step) -> Jet:
    jet = step.jet()
    return Jet(jet.powers, jet.values.imag, jet.errors, jet.floor)


@jet_rule("conj")
def _conj(step: Step) -> Jet:
    jet = step.jet()
    return Jet(jet.powers, torch.conj_physical(jet.values), jet.errors, jet.floor)


@jet_rule("complex")
def _complex(step: Step) -> Jet:
    powers, [(real, er), (imag, ei)] = aligned([step.jet(0), step.jet(1)])
    floor = torch.maximum(*torch.broadcast_tensors(step.jet(0).floor, step.jet(1).floor))
    return Jet(powers, torch.complex(real, imag), torch.maximum(er, ei), floor)


@jet_rule("view_as_real")
def _view_as_real(step: Step) -> Jet:
    jet = step.jet()
    values = torch.view_as_real(jet.values.resolve_conj())
    return Jet(
        jet.powers,
        values,
        jet.errors.unsqueeze(-1).expand(values.shape),
        jet.full_floor().unsqueeze(-1).expand(values.shape[1:]),
    )


@jet_rule("view_as_complex")
def _view_as_complex(step: Step) -> Jet:
    jet = step.jet()
    return Jet(
        jet.powers,
        torch.view_as_complex(jet.values.contiguous()),
        jet.errors.amax(-1),
        jet.full_floor().amax(-1),
    )


def choose(mask: Jet, yes: Jet, no: Jet) -> Jet:
    """``yes`` where the mask holds; where the mask is undecided, only the size of the larger branch is known."""
    chosen = select(mask.at(0.0).to(torch.bool), yes, no)
    doubt = mask.full_floor() > -INF
    if bool(doubt.any()):
        size = torch.maximum(*torch.broadcast_tensors(yes.top(), no.top()))
        chosen = chosen.raised(torch.where(doubt, size + ABOVE, -INF))
    return chosen


def truth(values: Tensor, doubt: Tensor) -> Jet:
    """A boolean jet; undecided where ``doubt``."""
    return Jet(
        (0.0,),
        values.unsqueeze(0),
        torch.zeros((1, *values.shape), dtype=torch.float64, device=values.device),
        torch.where(doubt, ABOVE, -INF).to(torch.float64),
    )
