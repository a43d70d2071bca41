"""The atlas: every architecture of the libraries, one row each, in worker processes that may die."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farfield._provenance import provenance
from farfield._text import clean
from farfield.atlas._architecture import Architecture
from farfield.atlas._libraries import LIBRARIES, architectures, installed_libraries
from farfield.atlas._row import KINDS, AtlasRow
from farfield.audit._children import Limits, children
from farfield.audit._table import OUTCOMES
from farfield.data._records import can_write_records, write_records
from farfield.engine import Progress, hold_folder, local, parse_memory
from farfield.errors import InvalidValueError, UnknownNameError

__all__ = ["Atlas", "atlas", "read_atlas"]

ROWS, RUN, TABLE = "atlas.jsonl", "run.json", "atlas.parquet"


@dataclass(frozen=True)
class Atlas:
    """The result of :func:`farfield.atlas.atlas`.

    Parameters
    ----------
    rows
        One per architecture, by library and name.
    provenance
        Versions, commit, settings of the last run.
    """

    rows: tuple[AtlasRow, ...]
    provenance: Mapping[str, Any]

    @property
    def counts(self) -> dict[str, int]:
        """How many are BOUNDED, UNBOUNDED, UNKNOWN, and how many have no verdict."""
        found = Counter(row.verdict or "ERROR" for row in self.rows)
        return {name: found[name] for name in OUTCOMES}

    @property
    def coverage(self) -> float | None:
        """Share with a verdict of BOUNDED or UNBOUNDED among those that ``torch.export`` captures."""
        captured = [row for row in self.rows if row.captured]
        decided = sum(row.verdict in ("BOUNDED", "UNBOUNDED") for row in captured)
        return decided / len(captured) if captured else None

    @property
    def causes(self) -> dict[str, int]:
        """How many of those without a verdict are so for each cause, most frequent first."""
        found = Counter(cause for row in self.rows if (cause := row.cause) is not None)
        return dict(found.most_common())

    def __str__(self) -> str:
        said = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        captured = sum(row.captured for row in self.rows)
        share = (
            "" if self.coverage is None else f"; of {captured} captured, {self.coverage:.1%} have a verdict"
        )
        return f"{len(self.rows)} architectures: {said}{share}"

    def summary(self) -> dict[str, Any]:
        """Counts and provenance, plain data."""
        checked = Counter(
            row.checked or "not run" for row in self.rows if row.verdict in ("BOUNDED", "UNBOUNDED")
        )
        return {
            "architectures": len(self.rows),
            "built": sum(row.stage != "build" for row in self.rows),
            "captured": sum(row.captured for row in self.rows),
            "counts": self.counts,
            "coverage": self.coverage,
            "causes": self.causes,
            "checked": dict(checked),
            "seconds": sum(row.seconds or 0.0 for row in self.rows),
            "provenance": dict(self.provenance),
        }

    def write(self, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write ``atlas.jsonl``, ``run.json`` and, with pyarrow installed, ``atlas.parquet``; return the paths."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        lines, run = place / ROWS, place / RUN
        _replace(lines, "".join(map(_line, self.rows)))
        about = self.summary()
        _replace(run, json.dumps(about, ensure_ascii=False, indent=1) + "\n")
        if not can_write_records():
            return lines, run
        table = place / TABLE
        write_records(table, (row.to_dict() for row in self.rows), KINDS, about)
        return lines, table, run


@dataclass(frozen=True, slots=True)
class _AskArchitecture:
    """The task that asks a worker about one architecture."""

    run: str
    search: tuple[str, ...]
    limits: Limits
    time_limit: float

    def __call__(self, item: Architecture) -> dict[str, Any]:
        request = {
            "task": "farfield.atlas._answer:answer",
            "arguments": {"library": item.library, "name": item.name, "family": item.family},
            "search": self.search,
        }
        row = children(self.run, self.limits).ask(request, self.time_limit)
        return row if row.get("stage") != "load" else {**row, "stage": "build"}


def atlas(
    out: str | os.PathLike[str],
    *,
    libraries: Sequence[str] | None = None,
    choose: Callable[[Architecture], bool] | None = None,
    again: Collection[str] = (),
    limit: int | None = None,
    time_limit: float = 120.0,
    memory_limit: int | str = "6GB",
    workers: int = 1,
    progress: Progress | None = None,
) -> Atlas:
    """Audit every architecture of the libraries that are installed, each built small with random weights.

    Each is built, audited and evaluated out to 10⁶ in a worker process with a time and a memory limit; one that takes
    its process with it costs one row. Rows are appended to ``out/atlas.jsonl`` as they come, so a run that
    was stopped goes on where it was.

    Parameters
    ----------
    out
        The folder of the record.
    libraries
        Names of distributions; by default all that are installed.
    choose
        Which architectures; all by default.
    again
        Outcomes that are computed anew where the record has them: ``UNKNOWN``, ``ERROR``, ``BOUNDED``, ``UNBOUNDED``.
    limit
        Architectures of this run at most.
    time_limit, memory_limit
        For one architecture.
    workers
        Worker processes at once.
    progress
        Called with (done, total).

    Raises
    ------
    UnknownNameError
        If there is no such library.
    InvalidValueError
        If none is installed, or a limit is wrong.
    """
    if not time_limit > 0 or workers < 1:
        raise InvalidValueError(f"Limits are positive; got time_limit={time_limit}, workers={workers}.")
    here = installed_libraries()
    for name in libraries or ():
        if name not in LIBRARIES:
            raise UnknownNameError("library of the atlas", name, list(LIBRARIES))
    wanted = [name for name in here if libraries is None or name in libraries]
    if not wanted:
        raise InvalidValueError(f"None of the atlas's libraries is installed here: {', '.join(LIBRARIES)}.")
    place = Path(out).absolute()
    place.mkdir(parents=True, exist_ok=True)
    task = _AskArchitecture(
        run=uuid.uuid4().hex,
        search=(str(Path.cwd()), *filter(None, sys.path)),
        limits=Limits(parse_memory(memory_limit)),
        time_limit=time_limit,
    )
    with hold_folder(place):
        rows = {row.key: row for row in _read(place / ROWS)}
        kept = {key for key, row in rows.items() if (row.verdict or "ERROR") not in again}
        todo = [a for a in _all(wanted, choose) if (a.library, a.name) not in kept][:limit]
        with (
            contextlib.closing(children(task.run, task.limits)),
            (place / ROWS).open("a", encoding="utf-8") as file,
        ):
            for item, fields in local(workers).map(task, todo, progress=progress, ordered=False):
                row = AtlasRow(item.library, item.name, item.family, item.task, **clean(fields))
                rows[row.key] = row
                file.write(_line(row))
                file.flush()
        settings: dict[str, Any] = {
            "time_limit": time_limit,
            "memory_limit": str(memory_limit),
            "workers": workers,
        }
        found = Atlas(tuple(rows[key] for key in sorted(rows)), provenance(settings))
        found.write(place)
    return found


def read_atlas(folder: str | os.PathLike[str]) -> Atlas:
    """The record of a folder; of an architecture that was computed twice, the later row."""
    place = Path(folder)
    rows = {row.key: row for row in _read(place / ROWS)}
    run = place / RUN
    about = json.loads(run.read_text(encoding="utf-8"))["provenance"] if run.is_file() else {}
    return Atlas(tuple(rows[key] for key in sorted(rows)), about)


def _all(libraries: Sequence[str], choose: Callable[[Architecture], bool] | None) -> Iterator[Architecture]:
    found = [a for library in libraries for a in architectures(library) if choose is None or choose(a)]
    # In an order that has nothing to do with their names: what a run that was stopped has done is a fair sample.
    yield from sorted(found, key=lambda a: hashlib.sha256(f"{a.library} {a.name}".encode()).digest())


def _read(path: Path) -> Iterator[AtlasRow]:
    """The rows of a file; a last line that was cut off is left out."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                yield AtlasRow(**json.loads(line))


def _line(row: AtlasRow) -> str:
    return json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False) + "\n"


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8", newline="\n")
    part.replace(path)
