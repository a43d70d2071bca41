"""Which repair: methods, places and shares beside each other, with what each does to the rows and far from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from farfield.calibration import Batches, output_tensors, rows_of, run
from farfield.errors import FarfieldError, InvalidValueError
from farfield.repair._repair import Method, Repair, repair

__all__ = ["Candidate", "Candidates", "compare_repairs"]

_JUDGED = (
    "Errors outside are on the rows you marked. If the model was trained on them, they favour the weakest repair: it "
    "already fits them."
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
    repair: Repair | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the repair itself."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "repair"}


@dataclass(frozen=True)
class Candidates:
    """All of them, and the error of the model as it was on the rows marked as outside."""

    rows: tuple[Candidate, ...]
    outside_before: float

    @property
    def judged(self) -> bool:
        """Whether rows were marked as outside."""
        return not math.isnan(self.outside_before)

    def __str__(self) -> str:
        lines = [_JUDGED if self.judged else _NOT_JUDGED]
        lines.append(_line("method", "at", "keep", "same", "change", "far", "broken", "outside"))
        if self.judged:
            lines.append(_line("as it is", "", "", "", "", "", "", f"{self.outside_before:.4g}"))
        for row in self.rows:
            if row.refused:
                lines.append(f"{row.method:<9}{row.at:<12}{row.keep:>6} refused: {row.refused}")
                continue
            numbers = (row.largest_change, row.far, row.broken, row.outside)
            lines.append(
                _line(
                    row.method,
                    row.at,
                    f"{row.keep:g}",
                    f"{row.unchanged:.2%}",
                    *(f"{v:.4g}" for v in numbers),
                )
            )
        return "\n".join(lines)

    def best(self) -> Candidate:
        """The smallest error outside; without such rows, the default that can be made."""
        made = [row for row in self.rows if not row.refused]
        if not made:
            raise InvalidValueError("None of the repairs can be made; print the table for the reasons.")
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
        the model was trained on favour the weakest repair; the table's caption says so.
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
    found = []
    for number, (method, at, keep) in enumerate(wanted, 1):
        found.append(_candidate(model, data, method, at, keep, beyond))
        if progress is not None:
            progress(number, len(wanted))
    before = math.nan if beyond is None else _error(model, *beyond)
    return Candidates(tuple(found), before)


_CAPPED = ("auto", "cap", "soft", "norm")


def _candidate(
    model: nn.Module, data: Any, method: Method, at: Any, keep: float, beyond: tuple[Batches, Tensor] | None
) -> Candidate:
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
        outside=math.nan if beyond is None else _error(made.model, *beyond),
        repair=made,
    )


def _error(model: nn.Module, rows: Batches, targets: Tensor) -> float:
    """Root mean squared error of the first output."""
    total, count, start = 0.0, 0, 0
    for call in rows:
        value = output_tensors(run(model, call))[0]
        wanted = targets[start : start + len(value)].reshape(value.shape)
        total += float((value.double() - wanted.double()).square().sum())
        count, start = count + value.numel(), start + len(value)
    return math.sqrt(total / max(count, 1))
