"""Proof of unboundedness: a direction, the exact rate of growth along it, and evaluations that confirm it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from farfield.growth._analysis import Analysis
from farfield.growth._climb import climb
from farfield.growth._evaluate import Evaluator
from farfield.growth._horizon import Horizon, chunks, follow, read
from farfield.growth._jet import HIGHEST, MASKED, MASKS, Jet, monomial, split_power
from farfield.growth._leading import lead
from farfield.growth._paths import escape_path
from farfield.growth._rate import SINGULAR, Level, Rate
from farfield.growth._rays import UnseenSizeError, run_jets
from farfield.growth._search import Search, unit

__all__ = ["Evidence", "Witness", "find_witness"]

RADII = (1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8)
FURTHER = (1e9, 1e10, 1e11, 1e12, 1e15, 1e20, 1e30)
FEW = (1e8, 1e15)
"""For a large program, whose slope per unit of input is often small beside its biases."""
FARTHEST = (1e12, 1e25, 1e50, 1e100)
"""A logarithm needs larger numbers to show itself."""
AGREEMENT = 1e-5
"""Largest relative difference allowed between the claimed and the measured rate."""
LARGEST_CONSTANT = 1e60
"""Constants beyond this may end a growth that is only measured."""
HALF = 0.5
"""Powers above this are enough for growth like λ: lower ones cost as much again, and a large program goes without."""
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
        than any power was observed up to the largest representable numbers; there is no exact rate.
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
    method: Literal["jet", "measured"]
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


def find_witness(
    analysis: Analysis,
    starts: Sequence[Tensor],
    output: int,
    *,
    moving: Sequence[str] | None = None,
    evaluator: Evaluator | None = None,
    generator: torch.Generator,
    notes: list[str] | None = None,
) -> Witness | None:
    """Search a direction in which an output grows, and confirm it on the model.

    Where the analysis allows growth faster than every power, that is looked for first, by measurement. Then
    random directions, coordinate axes and sign patterns are followed exactly to infinity; then gradient
    ascent, by autograd through the jet, on the last node that still grows along the escape path. Nothing is
    returned that evaluations in float64 up to λ = 1e8 (and beyond, where lower-order terms are large) do not
    confirm to 1e-5.

    Parameters
    ----------
    analysis
        From :func:`farfield.growth._analysis.analyze_growth`.
    starts
        Example of every input; those that do not move stay at its first row.
    output
        Which output.
    moving
        Inputs to move; all real ones by default.
    evaluator
        Runs the model; the captured program by default.
    generator
        Source of the random directions.
    notes
        Filled with growth that is certain along some direction and that evaluations could not confirm.
    """
    program = analysis.program
    names = tuple(moving) if moving is not None else tuple(s.name for s in program.inputs if s.kind == "real")
    search = Search(
        analysis,
        tuple(starts),
        names,
        output,
        evaluator if evaluator is not None else Evaluator(program),
        generator,
        [] if notes is None else notes,
    )
    if not names:
        return None
    rate = _allowed(search)
    if rate.level == Level.EXPONENTIAL:
        fastest = _measured(search)
        if fastest is not None:
            return fastest
    if rate.degree > HIGHEST:
        return None  # no jet follows such powers
    for candidates in search.guesses():
        try:
            found = _best(search, candidates, HALF) if len(candidates) == 1 else None
            found = found or _best(search, candidates)
        except (RuntimeError, UnseenSizeError):
            if len(candidates) > 1:
                raise
            continue  # others are tried next
        if found is not None:
            return found
    return _climb(search)


def _allowed(search: Search) -> Rate:
    """The fastest growth that the analysis allows."""
    alone = len(search.moving) == 1 and search.moving[0] in search.analysis.alone
    extent = search.analysis.extent(
        search.program.outputs[search.output], search.moving[0] if alone else None
    )
    return extent.rate if extent.known else SINGULAR


def _best(search: Search, flat: Tensor, lowest: float | None = None) -> Witness | None:
    """The fastest growth among candidate directions, if evaluations confirm it.

    Parameters
    ----------
    lowest
        Powers below this are not followed; all that is needed by default.
    """
    try:
        with torch.no_grad():
            jet, _ = follow(search.program, search.split(flat), search.starts, search.output, lowest)
    except (RuntimeError, UnseenSizeError):
        if len(flat) == 1:
            raise
        # Outputs of different sizes (rows that a mask selects) have no place in one tensor.
        return _first(search, flat)
    seen = read(jet)
    for row, index in _ranked(seen):
        witness = confirm(search, flat[row : row + 1], index, _entry_of(jet, (row, *index)))
        if witness is not None:
            return witness
    return None


def _first(search: Search, flat: Tensor) -> Witness | None:
    """The first of the candidate directions in which growth is found, one by one."""
    failure: Exception | None = None
    for row in flat.unsqueeze(1):
        try:
            witness = _best(search, row)
        except (RuntimeError, UnseenSizeError) as error:
            failure = error
            continue
        if witness is not None:
            return witness
    if failure is not None:
        raise failure
    return None


def _ranked(seen: Horizon, limit: int = 3) -> list[tuple[int, tuple[int, ...]]]:
    """Rows and entries that grow, fastest first: highest degree, then largest coefficient."""
    growing = seen.degree > 0.0
    if not bool(growing.any()):
        return []
    degree = torch.where(growing, seen.degree, -1.0)
    score = torch.where(degree == degree.max(), seen.coefficient.abs(), -1.0)
    best = score.reshape(score.shape[0], -1).max(1)
    order = best.values.argsort(descending=True)[:limit]
    shape = score.shape[1:]
    return [
        (int(row), _unravel(int(best.indices[row]), shape)) for row in order if float(best.values[row]) > 0.0
    ]


def _unravel(flat: int, shape: torch.Size) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def confirm(search: Search, flat: Tensor, index: tuple[int, ...], found: Jet | None = None) -> Witness | None:
    """A witness for one direction and entry, if the exact rate and the evaluations agree.

    Parameters
    ----------
    found
        The entry's jet, if the direction was followed already (as a row among others).
    """
    for one in (found, None):
        jet = _entry_of(_alone(search, flat), (0, *index)) if one is None else one
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
    names = [spec.name for spec in search.program.inputs]
    parts = search.split(flat)
    directions = {name: u[0] for name, u in zip(names, parts, strict=True) if u is not None}
    held = tuple(name for name in names if name not in directions)
    return Witness(
        directions,
        slope,
        whole,
        logs,
        search.program.outputs[search.output],
        index,
        held,
        tuple(evidence),
        "jet",
        search.evaluator.source,
    )


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


def _entry_of(jet: Jet, index: tuple[int, ...]) -> Jet:
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


def _climb(search: Search) -> Witness | None:
    """Gradient ascent on the last node of the escape path that still grows, until what follows it grows too."""
    name = search.program.outputs[search.output]
    moving = search.moving[0] if len(search.moving) == 1 else None
    if moving is not None and moving not in search.analysis.alone:
        return None
    path = escape_path(search.analysis, name, moving)
    if path is None or not search.by_rows:
        return None
    for flat in climb(search, path.nodes):
        found = _best(search, flat)
        if found is not None:
            return found
    return None


def _measured(search: Search) -> Witness | None:
    """Growth faster than every power, by evaluation alone."""
    for row in unit(torch.cat([search.normal(8), search.more_guesses()[-18:]])).unsqueeze(1):
        witness = _exponential_along(search, row)
        if witness is not None:
            return witness
    return None


def _is_settled(search: Search, flat: Tensor, radius: float) -> bool:
    """Every node that can be followed to infinity is near its asymptote at this radius already.

    Numbers end at 1e308, exponentials get there soon: exp(x)·sigmoid(800 − x) grows as far as one can see. What is
    seen counts only where nothing that the jets follow is still to come, and no constant is as large as what is seen.
    """
    program = search.program
    numbers = [
        abs(v) for node in program.nodes for v in node.attributes.values() if isinstance(v, int | float)
    ]
    numbers += [
        float(t.abs().max()) for t in program.constants.values() if t.is_floating_point() and t.numel()
    ]
    if any(LARGEST_CONSTANT < number < min(MASKS) for number in numbers):
        return False
    names = [node.name for node in program.nodes if node.role == "operation"]
    starts = [
        s[:1] if search.shares_rows(p) else s for p, s in zip(program.inputs, search.starts, strict=True)
    ]
    with torch.no_grad():
        jets, _ = run_jets(program, chunks(program, search.split(flat), starts)[0], keep=names)
        values = program.evaluate(*search.inputs_at(flat, radius), keep=names)
    for name in names:
        jet, value = jets[name], values[name]
        if not isinstance(jet, Jet) or not jet.values.is_floating_point() or not value.is_floating_point():
            continue
        first, expected = lead(jet), jet.evaluate(radius)
        followed = (jet.full_floor() <= 0.0) | (first.certain & (first.power > jet.full_floor()))
        followed = followed & (first.power < MASKED) & torch.isfinite(value)
        size = torch.maximum(value.abs(), expected.abs()).clamp_min(1.0)
        if bool((followed & ((value - expected).abs() > 0.1 * size)).any()):
            return False
    return True


def _exponential_along(search: Search, flat: Tensor) -> Witness | None:
    radius, table = 0.5, []
    while radius < 1e6:
        value = search.evaluator(search.inputs_at(flat, radius), search.output)
        row = value[0] if search.by_rows else value
        if not bool(torch.isfinite(row).all()):
            break
        table.append((radius, row.flatten()))
        radius *= 2.0**0.5
    if len(table) < 6:
        return None
    # Local exponents d log|f| / d log λ over the last steps: a power keeps them constant, an exponential
    # doubles them with every doubling of λ.
    sizes = torch.stack([row.abs() for _, row in table[-6:]])
    entry = int(sizes[-1].argmax())
    logs = [math.log(max(float(s), 1e-300)) for s in sizes[:, entry]]
    steps = [(b - a) / (0.5 * math.log(2.0)) for a, b in itertools.pairwise(logs)]
    rising = all(b > 1.2 * a for a, b in itertools.pairwise(steps))
    if not (steps[0] > 8.0 and rising and logs[-1] > 100.0 and _is_settled(search, flat, table[-1][0])):
        return None
    names = [spec.name for spec in search.program.inputs]
    parts = search.split(flat)
    directions = {n: u[0] for n, u in zip(names, parts, strict=True) if u is not None}
    evidence = tuple(
        Evidence(r, float(v[entry]), math.log(max(abs(float(v[entry])), 1e-300)) / r) for r, v in table
    )
    shape = search.evaluator(search.inputs_at(flat, 1.0), search.output).shape
    return Witness(
        directions,
        evidence[-1].ratio,
        math.inf,
        0.0,
        search.program.outputs[search.output],
        _unravel(entry, shape[1:] if search.by_rows else shape),
        tuple(n for n in names if n not in directions),
        evidence,
        "measured",
        search.evaluator.source,
    )
