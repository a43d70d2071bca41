"""Jets of reductions: sums are linear, extremes and orders are lexicographic in the coefficients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from farfield.gaussian import scalar_function
from farfield.growth._jet import (
    ABOVE,
    FLAT,
    ROUNDING,
    Jet,
    add,
    as_real,
    constant,
    linear_map,
    multiply,
    scale,
    unknown_like,
)
from farfield.growth._leading import difference, gap_to_winner, lead, maximum_over, spread_floor, take
from farfield.growth._series import REAL_POWER, power
from farfield.growth._step import JetRule, Step, jet_rule
from farfield.growth.jets.elementwise import apply_scalar
from farfield.growth.jets.shape import in_type, truth

__all__ = ["log_sum_exp", "mean_over", "softmax_over", "sum_over"]

INF = math.inf


def sum_over(jet: Jet, dims: tuple[int, ...], *, keepdim: bool = True) -> Jet:
    """Σ over axes."""
    jet = as_real(jet)
    if not dims or jet.ndim == 0:
        return jet
    floor = jet.full_floor().amax(dims, keepdim=keepdim)
    return linear_map(
        jet, lambda v: v.sum(dims, keepdim=keepdim), lambda v: v.sum(dims, keepdim=keepdim), floor
    )


def mean_over(jet: Jet, dims: tuple[int, ...], *, keepdim: bool = True) -> Jet:
    """The average over axes."""
    count = math.prod(jet.shape[d] for d in dims)
    return scale(sum_over(jet, dims, keepdim=keepdim), 1.0 / count)


def _axes(step: Step) -> tuple[int, ...]:
    dims = step.attributes["dim"]
    return tuple(dims) if isinstance(dims, tuple) else (dims,)


def _squeezed(jet: Jet, dims: tuple[int, ...], keepdim: bool) -> Jet:
    if keepdim or not dims or jet.ndim == 0:
        return jet
    return Jet(
        jet.powers,
        jet.values.squeeze([d + 1 for d in dims]),
        jet.errors.squeeze([d + 1 for d in dims]),
        jet.full_floor().squeeze(list(dims)),
        None if jet.origin is None else jet.origin.squeeze(list(dims)),
    )


def _typed(step: Step) -> Jet:
    """The operand in the type that the reduction is asked for."""
    return in_type(step.jet(), step.attributes.get("dtype"))


@jet_rule("var")
def _var(step: Step) -> Jet:
    jet, dims = step.jet(), _axes(step)
    count = math.prod(jet.shape[d] for d in dims)
    centered = difference(jet, mean_over(jet, dims))
    total = sum_over(multiply(centered, centered, step.lowest), dims)
    freedom = count - float(step.attributes.get("correction", 1))
    if freedom <= 0:
        return _squeezed(unknown_like(total), dims, step.attributes["keepdim"])
    return _squeezed(scale(total, 1.0 / freedom), dims, step.attributes["keepdim"])


@jet_rule("prod")
def _prod(step: Step) -> Jet:
    jet, dims = _typed(step), _axes(step)
    for dim in dims if jet.ndim else ():
        result = take(jet, dim, 0, 1)
        for k in range(1, jet.shape[dim]):
            result = multiply(result, take(jet, dim, k, 1), step.lowest).trimmed(step.lowest)
        jet = result
    return _squeezed(jet, dims, step.attributes["keepdim"])


def _one_by_one(step: Step, jet: Jet, over: Callable[[Jet, int], Jet]) -> Jet:
    """A reduction of one axis after another."""
    dims = _axes(step)
    for dim in dims if jet.ndim else ():
        jet = over(jet, dim)
    return _squeezed(jet, dims, step.attributes["keepdim"])


def _first_winner(jet: Jet, dim: int) -> tuple[Tensor, Tensor]:
    """Index of the largest entry along an axis (kept), and whether another comes within rounding of it."""
    gap, _, index = gap_to_winner(jet, dim)
    first = lead(gap)
    left = ~(first.certain & (first.sign < 0))
    return index, left.sum(dim, keepdim=True) > 1


def _index(step: Step, jet: Jet) -> Jet:
    dim, keepdim = step.attributes["dim"], step.attributes["keepdim"]
    if dim is None:
        jet = Jet(jet.powers, jet.values.flatten(1), jet.errors.flatten(1), jet.full_floor().flatten())
        winner, doubt = _first_winner(jet, 0)
        return truth(winner[0], doubt[0])
    winner, doubt = _first_winner(jet, dim)
    if not keepdim:
        winner, doubt = winner.squeeze(dim), doubt.squeeze(dim)
    return truth(winner, doubt)


def softmax_over(jet: Jet, dim: int) -> Jet:
    """Softmax: entries that trail the largest by a growing amount vanish; among the rest their limits decide.

    A trailing amount that rounding hides makes the whole row unknown, though bounded.
    """
    weights, doubt, floor, _, _ = _weights(jet, dim)
    total = weights.sum(dim, keepdim=True)
    values = weights / total
    with torch.no_grad():
        error = (jet.error_at(0.0).amax(dim, keepdim=True) * 2.0 + 2.0**-52) * values
    floor = torch.where(doubt, ABOVE, floor)
    return Jet((0.0,), values.unsqueeze(0), error.unsqueeze(0), floor)


def _weights(jet: Jet, dim: int) -> tuple[Tensor, Tensor, Tensor, Jet, Jet]:
    """exp(v − max v) at infinity, rows in doubt, the floor of a row, the gaps and the maximum."""
    gap, largest, _ = gap_to_winner(jet, dim)
    first = lead(gap)
    trailing = first.certain & (first.power > 0.0) & (first.sign < 0)
    near = torch.where(first.certain, first.power, first.limit) <= 0.0
    doubt = (~trailing & ~near).any(dim, keepdim=True)
    exponent = torch.where(near, gap.at(0.0), 0.0)
    weights = torch.where(near, exponent.exp(), 0.0)
    with torch.no_grad():
        moving = torch.zeros_like(near)
        for p, v, e in zip(gap.powers, gap.values, gap.errors, strict=True):
            if p < 0.0:
                moving |= (v != 0) | (e != 0)
        gap_floor = gap.full_floor()
        floor = torch.where(gap_floor == -INF, -INF, torch.where(gap_floor <= FLAT, FLAT, 0.0))
        floor = torch.where(near & moving, 0.0, floor)
        slow = trailing & (first.power < REAL_POWER)
        floor = torch.where(trailing, torch.where(slow, 0.0, FLAT), floor)
        floor = spread_floor(floor, (dim,))
    return weights, doubt, floor, gap, largest


def _log_total(weights: Tensor, doubt: Tensor, floor: Tensor, dim: int) -> Jet:
    """Log Σ exp(v − max v), between 0 and log n whatever is in doubt."""
    total = weights.sum(dim, keepdim=True)
    return Jet(
        (0.0,),
        total.log().unsqueeze(0),
        torch.full_like(total, 2.0**-50).unsqueeze(0),
        torch.where(doubt, ABOVE, floor),
    )


def log_sum_exp(jet: Jet, dim: int) -> Jet:
    """Max v + log Σ exp(v − max v), the axis kept."""
    weights, doubt, floor, _, largest = _weights(jet, dim)
    return add(largest, _log_total(weights, doubt, floor, dim))


def log_softmax_over(jet: Jet, dim: int) -> Jet:
    """(v − max v) − log Σ exp(v − max v)."""
    weights, doubt, floor, gap, _ = _weights(jet, dim)
    return difference(gap, _log_total(weights, doubt, floor, dim))


@jet_rule("softmax")
def _softmax(step: Step) -> Jet:
    return softmax_over(step.jet(), step.attributes["dim"]) if step.jet().ndim else constant(torch.ones(()))


@jet_rule("norm")
def _norm(step: Step) -> Jet:
    jet, dims, order = step.jet(), _axes(step), float(step.attributes.get("ord", 2))
    if jet.values.is_complex():
        return unknown_like(sum_over(jet, dims, keepdim=step.attributes["keepdim"]))
    size = apply_scalar(jet, scalar_function("abs"))
    if order == 2.0:
        result = power(sum_over(multiply(jet, jet, step.lowest), dims), 0.5, step.lowest)
    elif order == 1.0:
        result = sum_over(size, dims)
    elif order == INF:
        result = size
        for dim in dims if jet.ndim else ():
            result = maximum_over(result, dim)
    else:
        result = unknown_like(sum_over(jet, dims))
    return _squeezed(result, dims, step.attributes["keepdim"])


@jet_rule("cumsum")
def _cumsum(step: Step) -> Jet:
    jet, dim = as_real(_typed(step)), step.attributes["dim"]
    result = linear_map(
        jet, lambda v: v.cumsum(dim), lambda v: v.cumsum(dim), jet.full_floor().cummax(dim).values
    )
    with torch.no_grad():
        # A running sum rounds every partial sum: their errors add up along the way.
        rounding = ROUNDING * result.values.abs().square().cumsum(dim + 1).sqrt()
    return replace(result, errors=result.errors + rounding)


@jet_rule("any", "all")
def _quantified(step: Step) -> Jet:
    jet, dims = step.jet(), _axes(step)
    doubt = jet.full_floor() > -INF
    if jet.ndim:
        doubt = doubt.to(torch.uint8).amax(dims, keepdim=step.attributes["keepdim"]).bool()
    return truth(step.compute(jet.at(0.0)), doubt)


def _ordered(jet: Jet, dim: int, *, descending: bool) -> tuple[Jet, Tensor, Tensor]:
    """Entries in lexicographic order along an axis, their indices, and where neighbors are within rounding."""
    order = torch.arange(jet.shape[dim], device=jet.values.device)
    order = order.reshape([-1 if d == dim else 1 for d in range(jet.ndim)]).expand(jet.shape)
    with torch.no_grad():
        for k in range(len(jet.powers) - 1, -1, -1):
            keys = jet.values[k].gather(dim, order)
            order = order.gather(dim, keys.argsort(dim=dim, descending=descending, stable=True))
    stacked = order.unsqueeze(0).expand(jet.values.shape)
    arranged = Jet(
        jet.powers,
        jet.values.gather(dim + 1, stacked),
        jet.errors.gather(dim + 1, stacked),
        jet.full_floor().gather(dim, order),
        None if jet.origin is None else jet.origin.gather(dim, order),
    )
    doubt = torch.zeros_like(order, dtype=torch.bool)
    limit = torch.full(arranged.shape, -INF, dtype=torch.float64, device=order.device)
    size = jet.shape[dim]
    if size > 1:
        first = lead(difference(take(arranged, dim, 0, size - 1), take(arranged, dim, 1, size - 1)))
        wrong = first.certain & (first.sign < 0 if descending else first.sign > 0)
        open_ = (~first.certain) | wrong
        level = torch.where(first.certain, -INF, first.limit)
        level = torch.where(wrong, first.power, level)
        head = torch.zeros_like(doubt.narrow(dim, 0, 1))
        edge = torch.full(head.shape, -INF, dtype=torch.float64, device=order.device)
        doubt = torch.cat([open_, head], dim) | torch.cat([head, open_], dim)
        # One doubtful pair can displace its neighbors in turn: the row shares the worst level.
        limit = torch.cat([level, edge], dim).amax(dim, keepdim=True)
        doubt = doubt.any(dim, keepdim=True).expand(order.shape)
    return arranged.raised(limit), order, doubt


@jet_rule("sort")
def _sort(step: Step) -> tuple[Jet, ...]:
    arranged, order, doubt = _ordered(
        step.jet(), step.attributes["dim"], descending=step.attributes["descending"]
    )
    return arranged, truth(order, doubt)


@jet_rule("topk")
def _topk(step: Step) -> tuple[Jet, ...]:
    dim, count = step.attributes["dim"], step.attributes["k"]
    arranged, order, doubt = _ordered(step.jet(), dim, descending=step.attributes["largest"])
    return take(arranged, dim, 0, count), take(truth(order, doubt), dim, 0, count)


@jet_rule("kthvalue", "median")
def _statistic(step: Step) -> tuple[Jet, ...]:
    """The k-th smallest entry, or the lower median."""
    dim, jet = step.attributes["dim"], step.jet()
    place = step.attributes["k"] - 1 if step.node.op == "kthvalue" else (jet.shape[dim] - 1) // 2
    arranged, order, doubt = _ordered(jet, dim, descending=False)
    pair = take(arranged, dim, place, 1), take(truth(order, doubt), dim, place, 1)
    return tuple(_squeezed(part, (dim,), step.attributes["keepdim"]) for part in pair)


_SHORT: dict[str, JetRule] = {
    "sum": lambda step: sum_over(_typed(step), _axes(step), keepdim=step.attributes["keepdim"]),
    "mean": lambda step: mean_over(step.jet(), _axes(step), keepdim=step.attributes["keepdim"]),
    "amax": lambda step: _one_by_one(step, step.jet(), maximum_over),
    "amin": lambda step: scale(_one_by_one(step, scale(step.jet(), -1.0), maximum_over), -1.0),
    "argmax": lambda step: _index(step, step.jet()),
    "argmin": lambda step: _index(step, scale(step.jet(), -1.0)),
    "logsumexp": lambda step: _one_by_one(step, step.jet(), log_sum_exp),
    "log_softmax": lambda step: log_softmax_over(step.jet(), step.attributes["dim"]),
    "argsort": lambda step: _sort(step)[1],
}
"""Rules that are one expression."""
for _name, _short in _SHORT.items():
    jet_rule(_name)(_short)
