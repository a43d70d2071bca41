"""The result of many audits: one row each, as a table in files that other programs read."""

from __future__ import annotations

import dataclasses
import functools
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, overload

from farfield.data._records import can_write_records, write_records

__all__ = ["OUTCOMES", "AuditRow", "AuditTable", "RowFile", "RowWriter"]


@dataclass(frozen=True, slots=True)
class AuditRow:
    """What is known of one checkpoint: a verdict, or an error with its reason. Never neither.

    Parameters
    ----------
    path
        As the registry has it.
    sha256, bytes
        Of the file; None if it could not be read.
    verdict
        ``BOUNDED``, ``UNBOUNDED`` or ``UNKNOWN``; None where there is an error instead. A bound is not a claim of
        accuracy.
    reason
        What cuts every path, the direction and slope of growth, or the place and reason for not knowing.
    findings
        Codes of the rules that fired, gravest first, with spaces between.
    low, high
        Numbers that every entry of every output stays between, for every input; None where no numbers were proved.
    bound_by
        ``certificate``, or ``audit`` where only the growth analysis gave numbers.
    tightness
        Of the certificate: proved over attained width, the loosest entry's.
    parameters, operations
        Size of the model.
    seconds
        Wall time of loading, auditing and certifying it.
    stage, error, message
        Where it failed (``read``, ``load``, ``audit``, ``certify``), the error's type and what it said. A model that
        failed in ``certify`` has its verdict none the less.
    note
        Why a bounded model has no certificate.
    inputs, builder, arguments
        As the registry has them.
    certificate, details
        Files beside the table, where they were asked for.
    """

    path: str
    sha256: str | None = None
    bytes: int | None = None
    verdict: str | None = None
    reason: str | None = None
    findings: str | None = None
    low: float | None = None
    high: float | None = None
    bound_by: str | None = None
    tightness: float | None = None
    parameters: int | None = None
    operations: int | None = None
    seconds: float | None = None
    stage: str | None = None
    error: str | None = None
    message: str | None = None
    note: str | None = None
    inputs: str | None = None
    builder: str | None = None
    arguments: str | None = None
    certificate: str | None = None
    details: str | None = None

    @property
    def outcome(self) -> str:
        """The verdict, or ``ERROR`` where there is none."""
        return self.verdict or "ERROR"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)


_KINDS: dict[str, type] = {
    f.name: int if "int" in str(f.type) else float if "float" in str(f.type) else str
    for f in dataclasses.fields(AuditRow)
}


class RowFile(Sequence[AuditRow]):
    """Rows in a file of JSON lines, read when they are asked for; eight bytes of each are in memory."""

    def __init__(self, path: Path, offsets: Sequence[int]) -> None:
        self.path, self._offsets = path, offsets

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, place: int) -> AuditRow: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[AuditRow, ...]: ...
    def __getitem__(self, place: int | slice) -> AuditRow | tuple[AuditRow, ...]:
        if isinstance(place, slice):
            return tuple(self[k] for k in range(*place.indices(len(self))))
        with self.path.open("rb") as file:
            file.seek(self._offsets[place])
            return AuditRow(**json.loads(file.readline()))

    def __iter__(self) -> Iterator[AuditRow]:
        with self.path.open("rb") as file:
            for line in file:
                yield AuditRow(**json.loads(line))


class RowWriter:
    """Rows written to a file as they come, in whatever order, and sorted when all are there.

    Parameters
    ----------
    path
        Of JSON lines; what was there is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets = array("q")
        self._file = path.open("wb")
        self._sorted = True

    def add(self, number: int, row: AuditRow) -> None:
        """Write the row of the entry with this number; it is on disk when this returns."""
        self._sorted = self._sorted and number == len(self._offsets)
        while number >= len(self._offsets):
            self._offsets.append(-1)
        self._offsets[number] = self._file.tell()
        self._file.write(_line(row))
        self._file.flush()

    def finish(self) -> RowFile:
        """The rows in the order of their numbers."""
        self._file.close()
        if not self._sorted:
            part = self._path.with_name(f"{self._path.name}.part")
            with self._path.open("rb") as old, part.open("wb") as new:
                for number, offset in enumerate(self._offsets):
                    old.seek(offset)
                    self._offsets[number] = new.tell()
                    new.write(old.readline())
            part.replace(self._path)
        return RowFile(self._path, self._offsets)

    def close(self) -> None:
        """Leave what was written as it is."""
        self._file.close()


def _line(row: AuditRow) -> bytes:
    return (json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False) + "\n").encode()


OUTCOMES = ("BOUNDED", "UNBOUNDED", "UNKNOWN", "ERROR")
"""What a model counts as, in every table of verdicts."""


@dataclass(frozen=True)
class AuditTable:
    """The result of :func:`farfield.audit.audit_all`.

    Parameters
    ----------
    rows
        One per entry, in the order of the registry. Read from the file in ``out`` as they are asked for, where that
        was given: a million of them take no memory.
    reused
        How many rows had been finished by an earlier run.
    provenance
        Versions, commit, settings.
    """

    rows: Sequence[AuditRow]
    reused: int = 0
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def counts(self) -> dict[str, int]:
        """How many are BOUNDED, UNBOUNDED, UNKNOWN, and how many are an ERROR without a verdict."""
        found = Counter(row.outcome for row in self.rows)
        return {name: found[name] for name in OUTCOMES}

    @functools.cached_property
    def errors(self) -> tuple[AuditRow, ...]:
        """Rows where something failed, with a verdict or without."""
        return tuple(row for row in self.rows if row.error is not None)

    def __str__(self) -> str:
        said = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return f"{len(self.rows)} models: {said}"

    def run(self) -> dict[str, Any]:
        """What the rows have in common: counts and provenance, plain data."""
        return {
            "models": len(self.rows),
            "counts": self.counts,
            "failed": sum(row.error is not None for row in self.rows),
            "provenance": dict(self.provenance),
        }

    def write(self, folder: str | PathLike[str]) -> tuple[Path, ...]:
        """Write ``audits.jsonl``, ``run.json`` and, with pyarrow installed, ``audits.parquet``; return the paths."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        lines, run = place / "audits.jsonl", place / "run.json"
        if not (isinstance(self.rows, RowFile) and self.rows.path == lines.absolute()):
            with lines.open("wb") as file:
                file.writelines(map(_line, self.rows))
        about = self.run()
        run.write_text(json.dumps(about, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        if not can_write_records():
            return lines, run
        table = place / "audits.parquet"
        write_records(table, (row.to_dict() for row in self.rows), _KINDS, about)
        return lines, table, run
