"""Recurrent layers: gates are bounded, so what is left of the past and of the input is."""

from __future__ import annotations

import math

from farfield.growth._extent import Extent, inherit, interval, join, undefined
from farfield.growth._rate import BOUNDED, CONSTANT, EXPONENTIAL, SINGULAR
from farfield.growth._registry import Site, growth_rule

__all__: list[str] = []

INF = math.inf


def _infinite(site: Site) -> Extent | None:
    for operand in site.everything():
        if operand.rate == SINGULAR:
            return undefined(
                site.name, "a recurrent layer over values that may be infinite", *site.everything()
            )
    return None


def _steps(site: Site) -> float:
    """Number of time steps."""
    producer = site.producers[0]
    if producer is None or len(producer.shape) < 2:
        return INF
    batched = len(producer.shape) == 3
    axis = 1 if batched and site.attributes.get("batch_first") else 0
    return site.length(0, (axis,))


@growth_rule("lstm")
def _lstm(site: Site) -> tuple[Extent, ...]:
    """|h| = |o·tanh(c)| ≤ 1; |c| grows by at most 1 per step from where it starts."""
    if (nothing := _infinite(site)) is not None:
        return nothing, nothing, nothing
    everything = site.everything()
    hidden = interval(-1.0, 1.0, *everything)
    weights = len(site.operands) - 3
    layers = int(site.attributes["num_layers"]) * (2 if site.attributes.get("bidirectional") else 1)
    if weights > layers * (4 if site.attributes.get("has_biases") else 2):
        hidden = interval(-INF, INF, *everything)  # a projection follows: bounded, by its weights
        if any(site.tensors[i] is None for i in range(3, len(site.operands))):
            hidden = undefined(
                site.name, "an LSTM whose projection is not a constant of the model", *everything
            )
    start, steps = site.extent(2), _steps(site)
    least = CONSTANT if all(e.constant for e in everything) else BOUNDED
    cell = Extent(max(least, start.lower), max(least, start.upper), start.lo - steps, start.hi + steps)
    return hidden, hidden, inherit(cell, *everything)


@growth_rule("gru")
def _gru(site: Site) -> tuple[Extent, ...]:
    """h ← (1 − z)·n + z·h averages n ∈ [−1, 1] with the past."""
    if (nothing := _infinite(site)) is not None:
        return nothing, nothing
    hidden = inherit(join(site.extent(1), interval(-1.0, 1.0, *site.everything())), *site.everything())
    return hidden, hidden


@growth_rule("rnn_tanh")
def _rnn_tanh(site: Site) -> tuple[Extent, ...]:
    if (nothing := _infinite(site)) is not None:
        return nothing, nothing
    hidden = interval(-1.0, 1.0, *site.everything())
    return hidden, hidden


@growth_rule("rnn_relu")
def _rnn_relu(site: Site) -> tuple[Extent, ...]:
    """h ← relu(Wx + Uh + b): as fast as the input, for a fixed number of steps with constant weights."""
    if (nothing := _infinite(site)) is not None:
        return nothing, nothing
    everything = site.everything()
    rate = max(site.extent(0).rate, site.extent(1).rate)
    if any(not site.extent(i).constant for i in range(2, len(site.operands)) if site.present(i)):
        rate = EXPONENTIAL
    least = CONSTANT if all(e.constant for e in everything) else BOUNDED
    hidden = inherit(Extent(least, max(least, rate), 0.0, INF), *everything)
    return hidden, hidden
