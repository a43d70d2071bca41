"""Softmax and its relatives: sums of exponentials.

softmax_i = 1/(1 + Σ_{j≠i} e^{x_j − x_i}) rises with x_i and falls with every other entry, so its ends are reached at
corners of the box: the least at (lo_i, hi_j), the largest at (hi_i, lo_j).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from farfield.certify.intervals._interval import Interval, down, gamma, point, up, widen
from farfield.certify.intervals._registry import Place, interval_rule
from farfield.certify.intervals.rules.norm import others

__all__ = ["log_odds", "softmaxed"]

INF = math.inf
ROUNDING = 2.0**-46
"""Relative, per result; covers a plain evaluation as well."""


def _log_of_others(x: Tensor, *, above: bool) -> Tensor:
    """Ln Σ_{j≠i} e^{x_j} along the last axis, rounded up or down; −∞ where nothing is left."""
    finite = torch.where(torch.isfinite(x), x, -INF)
    top = finite.amax(-1, keepdim=True)
    top = torch.where(torch.isfinite(top), top, 0.0)
    shifted = x - top
    if above:
        terms = torch.exp(up(shifted)) * (1.0 + 2.0**-48) + 2.0**-1070
        terms = torch.where(x == -INF, 0.0, terms)
        logs = torch.log(others(point(terms)).hi)
        logs = torch.where(logs == -INF, logs, up(logs + top) + 2.0**-48 * (1.0 + _size(logs)))
        return logs.nan_to_num(nan=INF, posinf=INF, neginf=-INF)
    terms = torch.exp(down(shifted)) * (1.0 - 2.0**-48)
    logs = torch.log(others(point(terms)).lo)
    return down(logs + top) - 2.0**-48 * (1.0 + _size(logs))


def _size(x: Tensor) -> Tensor:
    return torch.where(torch.isfinite(x), x.abs(), 0.0)


def log_odds(x: Interval) -> Interval:
    """ln(p_i/(1 − p_i)) = x_i − ln Σ_{j≠i} e^{x_j}, along the last axis; exact up to rounding."""
    rest = _log_of_others(x.hi, above=True)
    lo = torch.where(rest == -INF, INF, down(x.lo - rest))  # every other entry is masked
    hi = up(x.hi - _log_of_others(x.lo, above=False))
    return Interval(
        lo.nan_to_num(nan=-INF, posinf=INF, neginf=-INF), hi.nan_to_num(nan=INF, posinf=INF, neginf=-INF)
    )


def softmaxed(x: Interval) -> Interval:
    """Softmax along the last axis."""
    if x.shape[-1] == 1:
        ones = torch.ones_like(x.lo)
        return Interval(ones, ones)
    odds = log_odds(x)
    result = widen(torch.sigmoid(odds.lo), torch.sigmoid(odds.hi), ROUNDING, 0.0)
    gone = x.hi == -INF  # masked
    return Interval(
        result.lo.clamp(0.0, 1.0).masked_fill(gone, 0.0), result.hi.clamp(0.0, 1.0).masked_fill(gone, 0.0)
    )


def _along(place: Place, function: Callable[[Interval], Interval]) -> Interval:
    x, dim = place.interval(0), int(place.attributes["dim"])
    if x.lo.ndim == 0:
        return function(x.map(lambda end: end.reshape(1))).map(lambda end: end.reshape(()))
    turned = function(x.map(lambda end: end.movedim(dim, -1)))
    return turned.map(lambda end: end.movedim(-1, dim))


@interval_rule("softmax")
def _softmax(place: Place) -> Interval:
    return _along(place, softmaxed)


@interval_rule("log_softmax")
def _log_softmax(place: Place) -> Interval:
    def function(x: Interval) -> Interval:
        if x.shape[-1] == 1:
            return Interval(torch.zeros_like(x.lo), torch.zeros_like(x.lo))
        odds = log_odds(x)
        # Evaluation subtracts a logarithm from x: its rounding follows the size of x.
        size = 2.0**-50 * x.magnitude.amax(-1, keepdim=True).nan_to_num(posinf=0.0)
        ends = [torch.nn.functional.logsigmoid(end) for end in (odds.lo, odds.hi)]
        result = widen(ends[0], ends[1], ROUNDING, size + 2.0**-50)
        return Interval(result.lo, result.hi.clamp_max(0.0))

    return _along(place, function)


def _log_sum(place: Place) -> Interval:
    """Ln Σ e^x rises with every entry."""
    x, dims = place.interval(0), place.attributes["dim"]
    dims = dims if isinstance(dims, tuple) else (dims,)
    count = math.prod(x.shape[d] for d in dims) if x.lo.ndim else 1
    lo, hi = place.compute(x.lo), place.compute(x.hi)
    lo = torch.where(torch.isnan(lo), -INF, lo)
    return widen(lo, torch.where(torch.isnan(hi), INF, hi), 2.0**-49, 8.0 * gamma(count + 4))


for _op in ("logsumexp", "logcumsumexp"):
    interval_rule(_op)(_log_sum)
