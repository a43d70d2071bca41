"""A witness of growth: its direction, its exact rate, and the evaluations that confirm it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from farfield.growth._horizon import follow
from farfield.growth._jet import MASKED, Jet, monomial, split_power
from farfield.growth._leading import lead
from farfield.growth._search import Search

__all__ = ["Evidence", "Witness", "confirm", "confirm_recurring", "entry_of"]

RADII = (1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8)
FURTHER = (1e9, 1e10, 1e11, 1e12, 1e15, 1e20, 1e30)
FEW = (1e8, 1e15)
"""For a large program, whose slope per unit of input is often small beside its biases."""
FARTHEST = (1e12, 1e25, 1e50, 1e100)
"""A logarithm needs larger numbers to show itself."""
AGREEMENT = 1e-5
"""Largest relative difference allowed between the claimed and the measured rate."""
SAMPLES = 32
"""Points near a radius, of which the one farthest out counts."""
HIGHEST_SWING = 16
"""Powers of what swings that are followed."""
LARGEST_EXPONENT = 280.0
"""Decimal exponent of the largest numbers looked at."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One evaluation along the ray: λ, f(λu) there, and f(λu)/λ^degree (log |f(λu)|/λ for exponential growth)."""

    radius: float
    value: float
    ratio: float


@dataclass(frozen=True, slots=True, eq=False)
class Witness:
    """A direction along which one entry of an output grows without bound.

    Parameters
    ----------
    directions
        Moving input → direction u, one row (of the shape of one sample; of the whole input where the model
        has no batch axis). Together of unit length.
    slope
        lim f(λu)/λ^degree. For exponential growth: the measured lim log |f(λu)|/λ.
    degree
        The power of λ; a logarithm counts as 0 with ``logarithms`` > 0; infinite for exponential growth.
    logarithms
        Power of log λ beside it.
    output
        Name of the output.
    index
        Which entry of that output (without the batch axis).
    held
        Inputs that stand still, at the first row of their example.
    evidence
        Evaluations of the model at growing λ.
    method
        ``"jet"``: the rate is exact and the evaluations agree with it to 1e-5. ``"measured"``: growth faster
        than any power was observed up to the largest representable numbers; there is no exact rate. ``"recurring"``:
        it swings, ever wider: the evaluations are the farthest out near each radius, ``slope`` is that of the last.
    evaluated
        What was run to confirm it.
    """

    directions: Mapping[str, Tensor]
    slope: float
    degree: float
    logarithms: float
    output: str
    index: tuple[int, ...]
    held: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    method: Literal["jet", "measured", "recurring"]
    evaluated: str

    @property
    def direction(self) -> Tensor:
        """The direction of the (first) moving input."""
        return next(iter(self.directions.values()))

    @property
    def input(self) -> str:
        """Name of the (first) moving input."""
        return next(iter(self.directions))

    def __str__(self) -> str:
        where = f"{self.output}{list(self.index)}" if self.index else self.output
        if self.method == "recurring":
            far = f"{abs(self.slope):.6g}·λ^{self.degree:g}"
            return f"{where} swings out to {far} along a direction of {', '.join(self.directions)}"
        if self.method == "measured":
            return f"{where} grows exponentially along a direction of {', '.join(self.directions)}"
        rate = f"{self.slope:.6g}·λ^{self.degree:g}" if self.degree != 1 else f"{self.slope:.6g}·λ"
        if self.degree == 0:
            rate = f"{self.slope:.6g}·(log λ)^{self.logarithms:g}"
        return f"{where} ≈ {rate} along a direction of {', '.join(self.directions)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "directions": {name: u.tolist() for name, u in self.directions.items()},
            "slope": self.slope,
            "degree": self.degree if math.isfinite(self.degree) else None,
            "logarithms": self.logarithms,
            "output": self.output,
            "index": list(self.index),
            "held": list(self.held),
            "method": self.method,
            "evaluated": self.evaluated,
            "evidence": [{"radius": e.radius, "value": e.value, "ratio": e.ratio} for e in self.evidence],
        }


def confirm(search: Search, flat: Tensor, index: tuple[int, ...], found: Jet | None = None) -> Witness | None:
    """A witness for one direction and entry, if the exact rate and the evaluations agree.

    Parameters
    ----------
    found
        The entry's jet, if the direction was followed already (as a row among others).
    """
    for one in (found, None):
        jet = entry_of(_alone(search, flat), (0, *index)) if one is None else one
        witness = _confirmed(search, flat, index, jet)
        if witness is not None or found is None:
            return witness
    return None


def _alone(search: Search, flat: Tensor) -> Jet:
    """The output's jet along one direction, as the only row of its batch."""
    starts = [
        start[:1] if search.shares_rows(spec) else start
        for spec, start in zip(search.program.inputs, search.starts, strict=True)
    ]
    with torch.no_grad():
        return follow(search.program, search.split(flat), starts, search.output)[0]


def _confirmed(search: Search, flat: Tensor, index: tuple[int, ...], one: Jet) -> Witness | None:
    first = lead(one)
    degree = float(first.power)
    if not (bool(first.certain) and 0.0 < degree < MASKED):
        return None
    slope = float(one.at(degree))
    whole, logs = split_power(degree)
    radii = _radii(whole)
    batches = radii[: len(RADII)], radii[len(RADII) :]  # the farthest only if the others do not settle it
    alone = partial(search.entry, flat, index)
    few = [r for r in FEW if r <= radii[-1]] if search.program.is_large else []
    evidence: list[Evidence] = []
    # A large program at few radii. All as one batch; if its rows should influence each other, once more one by one.
    for at, values in (
        (few, search.entries(flat, index, few) if search.by_rows else map(alone, few)),
        (radii, itertools.chain.from_iterable(search.entries(flat, index, part) for part in batches)),
        (radii, map(alone, radii)),
    ):
        evidence, agreed = _until_agreed(one, degree, slope, at, values)
        if agreed:
            break
    else:
        search.notes.extend(_unconfirmed(degree, slope, evidence))
        return None
    return _witness(search, flat, index, (slope, whole, logs), evidence, "jet")


def _witness(
    search: Search,
    flat: Tensor,
    index: tuple[int, ...],
    rate: tuple[float, float, float],
    evidence: Sequence[Evidence],
    method: Literal["jet", "recurring"],
) -> Witness:
    names = [spec.name for spec in search.program.inputs]
    parts = search.split(flat)
    directions = {name: u[0] for name, u in zip(names, parts, strict=True) if u is not None}
    held = tuple(name for name in names if name not in directions)
    output = search.program.outputs[search.output]
    return Witness(directions, *rate, output, index, held, tuple(evidence), method, search.evaluator.source)


def confirm_recurring(search: Search, flat: Tensor, index: tuple[int, ...], jet: Jet) -> Witness | None:
    """A witness for an entry that comes back to cλ^p for ever larger λ; near every radius some reach c/4."""
    first = lead(jet)
    degree, (whole, logs) = float(first.power), split_power(float(first.power))
    if not bool(first.certain) or not 0.0 < whole <= HIGHEST_SWING or logs:
        return None
    wanted, evidence = abs(float(jet.at(degree))) / 4, []
    for radius in (*RADII, *FURTHER[:4]):
        share = torch.rand(SAMPLES, generator=search.generator, dtype=torch.float64)
        radii = [radius * (1.0 + float(s)) for s in share]
        values = list(search.entries(flat, index, radii)) or [search.entry(flat, index, r) for r in radii]
        pairs = [Evidence(r, v, v / r**whole) for r, v in zip(radii, values, strict=True)]
        best = max(pairs, key=lambda e: abs(e.ratio))
        if not (math.isfinite(best.ratio) and abs(best.ratio) >= wanted):
            return None
        evidence.append(best)
    return _witness(search, flat, index, (evidence[-1].ratio, whole, logs), evidence, "recurring")


def _radii(degree: float) -> list[float]:
    """Radii to confirm at: as far as numbers of this degree can be represented."""
    reach = LARGEST_EXPONENT / max(degree, 1.0)
    if reach < math.log10(RADII[-1]):
        return [10.0 ** (reach * k / len(RADII)) for k in range(1, len(RADII) + 1)]
    return [r for r in (*RADII, *(FURTHER if degree > 0 else FARTHEST)) if math.log10(r) <= reach]


def _until_agreed(
    jet: Jet, degree: float, slope: float, radii: Sequence[float], values: Iterable[float]
) -> tuple[list[Evidence], bool]:
    """Evaluations up to the first radius of 1e8 or more at which they agree with the claim, and whether they do."""
    evidence: list[Evidence] = []
    for radius, value in zip(radii, values, strict=False):
        if not math.isfinite(value):
            break
        evidence.append(Evidence(radius, value, value / monomial(degree, radius)))
        if (radius >= RADII[-1] or radius == radii[-1]) and _agrees(jet, degree, slope, evidence):
            return evidence, True
    return evidence, False


def _unconfirmed(degree: float, slope: float, evidence: Sequence[Evidence]) -> list[str]:
    """Growth that is certain, yet drowned by the other terms as far as float64 goes; nothing where it is not that."""
    if not evidence or abs(slope) * monomial(degree, evidence[-1].radius) > AGREEMENT * abs(
        evidence[-1].value
    ):
        return []
    rate = f"{slope:.3g}·λ^{split_power(degree)[0]:g}"
    beside = f"too small beside its value {evidence[-1].value:.3g} to be confirmed in float64"
    return [f"it grows like {rate} along some direction, which is {beside}"]


def entry_of(jet: Jet, index: tuple[int, ...]) -> Jet:
    return Jet(
        jet.powers,
        torch.stack([values[index] for values in jet.values]),
        torch.stack([errors[index] for errors in jet.errors]),
        jet.full_floor()[index],
    )


def _agrees(jet: Jet, degree: float, slope: float, evidence: Sequence[Evidence]) -> bool:
    """Growth is seen, and the measured rate is the claimed one.

    Where the next term is at least half a power of λ below, the plain ratio f/λ^p must agree to 1e-5. Next to
    a logarithm it converges too slowly to show that by itself (λ + λ/log λ, log λ + λ^{-0.05}): then either
    the known part of the series agrees to 1e-4, or the increase between the two farthest radii is the claimed
    one to 1e-2.
    """
    if len(evidence) < len(FEW):
        return False
    last, before = evidence[-1], evidence[-2]
    growing = abs(last.value) > abs(evidence[max(-4, -len(evidence))].value)
    if not (growing and math.copysign(1.0, last.value) == math.copysign(1.0, slope)):
        return False
    floor = float(jet.floor)
    follows = [
        p for p, c in zip(jet.powers, jet.values, strict=True) if floor <= p < degree and float(c) != 0.0
    ]
    # A degree so high that 1e8 to its power cannot be represented is confirmed nearer, with its lower terms.
    near = last.radius < RADII[-1]
    swift = split_power(degree)[1] == 0.0 and max([*follows, floor]) <= degree - 0.5 and not near
    if abs(last.ratio - slope) <= AGREEMENT * abs(slope):
        return True
    if swift and degree.is_integer():
        return False
    leading = monomial(degree, last.radius)
    known = sum(
        float(c) * monomial(p, last.radius) for p, c in zip(jet.powers, jet.values, strict=True) if p >= floor
    )
    if abs(last.value - known) <= 10 * AGREEMENT * abs(slope) * leading:
        return True
    rise = (last.value - before.value) / (leading - monomial(degree, before.radius))
    return not swift and abs(rise - slope) <= 1e-2 * abs(slope)
