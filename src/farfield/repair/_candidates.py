"""Which repair: methods, places and shares beside each other, with what each does to the rows and far from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from farfield._budget import Budget
from farfield.calibration import (
    Batches,
    Call,
    UpperQuantile,
    floating,
    output_tensors,
    rows_of,
    run,
)
from farfield.errors import FarfieldError, InvalidValueError
from farfield.graph import set_serving, untouched
from farfield.repair._protections import observe_inputs
from farfield.repair._repair import Method, repair
from farfield.repair._result import Repair

__all__ = ["Candidate", "Candidates", "compare_repairs"]

_JUDGED = (
    "Errors outside are on the rows you marked. If the model was trained on them, they favor the weakest repair: it "
    "already fits them."
)
_TAILS = (
    "Errors in the tail are on the tenth of your own rows that lies farthest out. The model was most likely trained "
    "on them, so they favor the weakest repair; they say what a repair costs there, not what it gains beyond."
)
_NOT_JUDGED = (
    "No rows were marked as outside, so this says what each repair changes, not which is best; the default is the "
    "three protections together."
)
METHODS: tuple[Method, ...] = ("auto", "features", "cap", "range", "soft")
KEEPS = (0.99, 1.0)


@dataclass(frozen=True)
class Candidate:
    """One repair that could be made.

    Parameters
    ----------
    method, at, keep
        As :func:`repair` takes them; ``at`` says where the cap stands, "" where there is none.
    refused
        Why it can't be made; "" if it can. The numbers below are nan then.
    unchanged, largest_change
        On the calibration rows.
    far, broken
        Largest |output| at a million times the rows, and with the worst single feature broken.
    outside
        Root mean squared error on the rows marked as outside; nan without them.
    tail
        The same on the tenth of the calibration rows that lies farthest out; nan without targets.
    proved
        Width of the certified range of the outputs, the widest one; nan if none was asked for.
    repair
        The repair itself.
    """

    method: str
    at: str
    keep: float
    refused: str = ""
    unchanged: float = math.nan
    largest_change: float = math.nan
    far: float = math.nan
    broken: float = math.nan
    outside: float = math.nan
    tail: float = math.nan
    proved: float = math.nan
    repair: Repair | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the repair itself."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "repair"}


@dataclass(frozen=True)
class Candidates:
    """All of them, and the errors of the model as it was on the rows marked as outside and in the tail."""

    rows: tuple[Candidate, ...]
    outside_before: float
    tail_before: float = math.nan

    @property
    def judged(self) -> bool:
        """Whether rows were marked as outside."""
        return not math.isnan(self.outside_before)

    def __str__(self) -> str:
        lines = [_JUDGED if self.judged else _NOT_JUDGED]
        lines += [_TAILS] if not math.isnan(self.tail_before) else []
        # Columns that nothing was asked of stay away.
        shown = [
            name
            for name in ("largest_change", "far", "broken", "outside", "tail", "proved")
            if not all(math.isnan(getattr(row, name)) for row in self.rows)
        ]
        titles = {"largest_change": "change"}
        lines.append(_line("method", "at", "keep", "same", *(titles.get(name, name) for name in shown)))
        before = {"outside": self.outside_before, "tail": self.tail_before}
        if before.keys() & set(shown):
            as_it_is = (f"{before[name]:.4g}" if name in before else "" for name in shown)
            lines.append(_line("as it is", "", "", "", *as_it_is))
        for row in self.rows:
            if row.refused:
                lines.append(f"{row.method:<9}{row.at:<12}{row.keep:>6} refused: {row.refused}")
                continue
            numbers = (f"{getattr(row, name):.4g}" for name in shown)
            lines.append(_line(row.method, row.at, f"{row.keep:g}", f"{row.unchanged:.2%}", *numbers))
        return "\n".join(lines)

    def best(self) -> Candidate:
        """The smallest error outside; without such rows, the default that can be made."""
        made = [row for row in self.rows if not row.refused]
        if not made:
            raise InvalidValueError("No repair in the table worked; print the table for the reasons.")
        if self.judged:
            return min(made, key=lambda row: row.outside)
        return made[0]


def _line(method: str, at: str, keep: str, *numbers: str) -> str:
    return f"{method:<9}{at:<12}{keep:>6}" + "".join(f"{n:>10}" for n in numbers)


def compare_repairs(
    model: nn.Module,
    data: Any,
    *,
    outside: tuple[Any, Tensor] | None = None,
    targets: Tensor | None = None,
    time_budget: float | Budget | None = None,
    methods: Sequence[Method] = METHODS,
    places: Sequence[str | Sequence[str]] = ("auto",),
    keeps: Sequence[float] = KEEPS,
    progress: Callable[[int, int], None] | None = None,
) -> Candidates:
    """Make every repair of a list and put what they do beside each other.

    Parameters
    ----------
    model, data
        As in :func:`repair`.
    outside
        Rows away from the data, as the model takes them, and their targets: the error of each repair there. Rows that
        the model was trained on favor the weakest repair; the table's caption says so.
    targets
        Of the calibration rows, in their order: the error of each repair on the tenth that lies farthest out, by
        ‖(x − mean)/deviation‖. The table's caption names the bias.
    time_budget
        What a certificate of each repair may cost; none by default.
    methods, places, keeps
        What is tried: names, values of ``at=`` for those that have a cap, and shares.
    progress
        Called with (done, total).

    Examples
    --------
    >>> import torch
    >>> net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    >>> table = compare_repairs(net, torch.randn(200, 3), methods=["auto", "range"], keeps=[0.99])
    >>> [row.method for row in table.rows], table.best().method
    (['auto', 'range'], 'auto')
    """
    wanted = [
        (method, at, keep)
        for method in methods
        for at in (places if method in _CAPPED else places[:1])
        for keep in (keeps if method in _CAPPED else keeps[-1:])
    ]
    beyond = None if outside is None else (Batches(outside[0], model), outside[1])
    if beyond is not None and (count := sum(map(rows_of, beyond[0]))) != len(beyond[1]):
        raise InvalidValueError(f"outside has {count} rows and {len(beyond[1])} targets.")
    own = Batches(data, model)
    tail = None if targets is None else (own, targets, _farthest(own, len(targets)))
    found = []
    for number, (method, at, keep) in enumerate(wanted, 1):
        candidate = _candidate(model, data, method, at, keep)
        if candidate.repair is not None:
            changed = candidate.repair.model
            candidate = replace(
                candidate,
                outside=math.nan if beyond is None else _error(changed, *beyond),
                tail=math.nan if tail is None else _error(changed, *tail),
                proved=math.nan if time_budget is None else _width(candidate.repair, time_budget),
            )
        found.append(candidate)
        if progress is not None:
            progress(number, len(wanted))
    before = math.nan if beyond is None else _error(model, *beyond)
    return Candidates(tuple(found), before, math.nan if tail is None else _error(model, *tail))


_CAPPED = ("auto", "cap", "soft", "norm")


def _candidate(model: nn.Module, data: Any, method: Method, at: Any, keep: float) -> Candidate:
    try:
        made = repair(model, data, method=method, at=at, keep=keep)
    except FarfieldError as error:
        return Candidate(method, at if isinstance(at, str) else ", ".join(at), keep, refused=str(error))
    far = [row.after for row in made.far if row.feature is None]
    broken = [row.after for row in made.far if row.feature is not None]
    return Candidate(
        method,
        ", ".join(i.at for i in made.inserted if i.place == "hidden"),
        keep,
        unchanged=made.change.unchanged,
        largest_change=made.change.largest,
        far=far[-1] if far else math.nan,
        broken=max(broken, default=math.nan),
        repair=made,
    )


def _width(made: Repair, time_budget: float | Budget) -> float:
    certificate = made.certificate(time_budget)
    return float((certificate.upper - certificate.lower).max())


def _farthest(rows: Batches, count: int) -> Callable[[Call], Tensor]:
    """Which rows of a call are of the tenth that lies farthest out."""
    seen, total_rows = observe_inputs(rows)
    if total_rows != count:
        raise InvalidValueError(f"data has {total_rows} rows and {count} targets.")

    def size(call: Call) -> Tensor:
        total = torch.zeros(rows_of(call), dtype=torch.float64)
        for name, tensor in floating(call).items():
            own = seen[str(name)]
            away = (tensor.double() - own.mean) / own.deviation.clamp_min(1e-12)
            total += away.reshape(len(away), -1).square().sum(-1)
        return total.sqrt()

    quantile = UpperQuantile()
    for call in rows:
        quantile.add(size(call))
    limit = quantile.at_least(0.9)
    return lambda call: size(call) >= limit


def _error(
    model: nn.Module, rows: Batches, targets: Tensor, chosen: Callable[[Call], Tensor] | None = None
) -> float:
    """Root mean squared error of the first output, on the rows that are chosen; the model is left as it is."""
    total, count, start = 0.0, 0, 0
    for call in rows:
        with untouched(model):
            set_serving(model)
            value = output_tensors(run(model, call))[0]
        wanted = targets[start : start + len(value)].reshape(value.shape)
        off = (value.double() - wanted.double()).square()
        start += len(value)
        off = off if chosen is None else off[chosen(call)]
        total, count = total + float(off.sum()), count + off.numel()
    return math.sqrt(total / max(count, 1))
