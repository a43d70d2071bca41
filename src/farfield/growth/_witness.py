"""Proof of unboundedness: where a direction is looked for along which an output grows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from farfield.growth._analysis import Analysis
from farfield.growth._climb import climb
from farfield.growth._confirm import Evidence, Witness, confirm, confirm_recurring, entry_of
from farfield.growth._evaluate import Evaluator
from farfield.growth._horizon import Horizon, follow, read
from farfield.growth._jet import HIGHEST
from farfield.growth._logarithms import grows_without_end
from farfield.growth._paths import escape_path
from farfield.growth._rate import SINGULAR, Level, Rate
from farfield.growth._rays import UnseenSizeError
from farfield.growth._search import Search, unit

__all__ = ["Evidence", "Witness", "find_witness"]

HALF = 0.5
"""Powers above this are enough for growth like λ: lower ones cost as much again, and a large program goes without."""


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
    return _recurring(search) or _climb(search)


def _recurring(search: Search) -> Witness | None:
    """Growth that a sine takes away again and again: λ·sin λ comes back to cλ for ever larger λ."""
    swings = [node for node in search.program.nodes if node.op in ("sin", "cos")]
    if search.program.is_large or all(search.analysis.extent(n.operands[0]).bounded for n in swings):
        return None
    for phase in (1.0, 2.5):
        for flat in unit(search.normal(8)).unsqueeze(1):
            try:
                with torch.no_grad():
                    jet, _ = follow(
                        search.program, search.split(flat), search.starts, search.output, phase=phase
                    )
            except (RuntimeError, UnseenSizeError):
                return None
            for row, index in _ranked(read(jet)):
                witness = confirm_recurring(search, flat, index, entry_of(jet, (row, *index)))
                if witness is not None:
                    return witness
    return None


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
        witness = confirm(search, flat[row : row + 1], index, entry_of(jet, (row, *index)))
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
    if not (steps[0] > 8.0 and rising and logs[-1] > 100.0 and grows_without_end(search, flat, entry)):
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
