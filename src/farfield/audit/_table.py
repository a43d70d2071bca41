"""The result of many audits: one row each, as a table in files that other programs read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from farfield.data._records import can_write_records, write_records

__all__ = ["AuditRow", "AuditTable"]


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
        ``BOUNDED``, ``UNBOUNDED`` or ``UNKNOWN``; None where there is an error instead. Bounded is not correct.
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


@dataclass(frozen=True)
class AuditTable:
    """The result of :func:`farfield.audit.audit_all`.

    Parameters
    ----------
    rows
        One per entry, in the order of the registry.
    reused
        How many rows had been finished by an earlier run.
    provenance
        Versions, commit, settings.
    """

    rows: tuple[AuditRow, ...]
    reused: int = 0
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def counts(self) -> dict[str, int]:
        """How many are BOUNDED, UNBOUNDED, UNKNOWN, and how many are an ERROR without a verdict."""
        names = ("BOUNDED", "UNBOUNDED", "UNKNOWN", "ERROR")
        return {name: sum(row.outcome == name for row in self.rows) for name in names}

    @property
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
            "failed": len(self.errors),
            "provenance": dict(self.provenance),
        }

    def write(self, folder: str | PathLike[str]) -> tuple[Path, ...]:
        """Write ``audits.jsonl``, ``run.json`` and, with pyarrow installed, ``audits.parquet``; return the paths."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        rows = [row.to_dict() for row in self.rows]
        lines, run = place / "audits.jsonl", place / "run.json"
        text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
        lines.write_text(text, encoding="utf-8", newline="\n")
        run.write_text(json.dumps(self.run(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        if not can_write_records():
            return lines, run
        table = place / "audits.parquet"
        write_records(table, rows, _KINDS, self.run())
        return lines, table, run
