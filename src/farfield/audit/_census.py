"""A census: verdicts on the structure of very many models, without their weights, one per architecture."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from farfield._provenance import provenance
from farfield._text import clean
from farfield.audit._all import choose_engine, interruptible, worker_limits
from farfield.audit._census_worker import COLUMNS
from farfield.audit._children import Limits, children
from farfield.audit._registry import Registry
from farfield.audit._table import OUTCOMES
from farfield.data._arrow import arrow
from farfield.data._parquet import Piece, parquet_pieces
from farfield.engine import Checkpoint, Engine, Progress, fingerprint, hold_folder
from farfield.errors import InvalidValueError

__all__ = ["Census", "census"]

PIECE = 10_000
"""Rows of a registry that one task reads."""
_FORMAT = 1
_TASKS = "farfield.audit._census_worker"
_PASSING = ("TimeLimit", "WorkerDied", "MemoryError")
"""Errors that another run may not meet."""


@dataclass(frozen=True)
class Census:
    """The result of :func:`farfield.audit.census`.

    Parameters
    ----------
    folder
        Where ``audits/`` lies, a Parquet file for every ten thousand rows of the registry, in its order.
    architectures
        One record each, most frequent first: ``key``, ``architecture``, ``models``, ``verdict``, ``reason``,
        ``error``, ``message``, ``example``, ``seconds``.
    counts
        How many models are BOUNDED, UNBOUNDED, UNKNOWN, and how many have no verdict.
    spot_checks
        Rows that were computed for themselves, beside the verdict of their architecture.
    stages
        What was done: jobs, those found finished, seconds of wall time, and processor seconds of the caller and its
        workers.
    provenance
        Versions, commit, settings.
    """

    folder: Path
    architectures: Sequence[Mapping[str, Any]]
    counts: Mapping[str, int]
    spot_checks: Sequence[Mapping[str, Any]]
    stages: Mapping[str, Mapping[str, float]]
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def models(self) -> int:
        """How many rows there are."""
        return sum(self.counts.values())

    @property
    def files(self) -> list[Path]:
        """The table's files, in order."""
        return sorted((self.folder / "audits").glob("part-*.parquet"))

    def __str__(self) -> str:
        said = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        checked = ""
        if self.spot_checks:
            agree = sum(c["verdict"] == c["own"] for c in self.spot_checks)
            checked = (
                f"; {agree} of {len(self.spot_checks)} rows drawn at random agree with their architecture"
            )
        return f"{self.models:,} models of {len(self.architectures):,} architectures: {said}{checked}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the rows."""
        return {
            "models": self.models,
            "architectures": len(self.architectures),
            "counts": dict(self.counts),
            "spot_checks": [dict(c) for c in self.spot_checks],
            "stages": {name: dict(values) for name, values in self.stages.items()},
            "provenance": dict(self.provenance),
        }


@dataclass(frozen=True, slots=True)
class _CensusJob:
    """One piece of a stage: what is asked of a worker, and what the answer depends on."""

    task: str
    arguments: Mapping[str, Any]
    depends: str


@dataclass(frozen=True, slots=True)
class _Asker:
    """The task that asks a worker process, once more if the system killed it."""

    run: str
    search: tuple[str, ...]
    limits: Limits
    time_limit: float

    def __call__(self, job: _CensusJob) -> dict[str, Any]:
        request = {"task": f"{_TASKS}:{job.task}", "arguments": dict(job.arguments), "search": self.search}
        workers = children(self.run, self.limits)
        row = workers.ask(request, self.time_limit)
        if row.get("error") == "WorkerDied":
            row = workers.ask(request, self.time_limit)
        return row


def census(
    registry: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    inputs: Sequence[str] = (),
    builder: str | None = None,
    spot_check: int = 50_000,
    time_limit: float = 300.0,
    engine: str | Engine = "auto",
    workers: int | None = None,
    memory_limit: int | str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Census:
    """Verdicts on the structure of very many models: no weights are read, and each architecture is decided once.

    From ``config.json`` (or a builder's arguments) and the header of a safetensors file come an architecture's key
    and, for every key that is new, a model on the meta device, its captured program and a verdict. BOUNDED is
    proved for **whatever finite weights**. UNBOUNDED comes with a direction and a rate found with random weights:
    almost all weights grow, the file's own were not read. UNKNOWN says along which path it may grow.
    :func:`audit_all` reads the weights of those that matter.

    A key leaves out how wide layers are, apart from 0, 1 and which of a configuration's widths are equal. That a
    verdict does not depend on more of them is an assumption; one row in ``spot_check`` is built at its own size and
    compared. Where one differs, its architecture's verdict is withdrawn for all.

    Parameters
    ----------
    registry
        A Parquet table with the column ``path`` and, if wanted, ``config`` and ``header`` (JSON texts),
        ``builder``, ``arguments``, ``inputs``. Without ``config`` and ``header``, ``path`` is a safetensors file
        with its ``config.json`` beside it, or their folder. Folders and tables of other kinds are taken as
        :func:`read_registry` does.
    out
        A folder for the table. A run that was stopped goes on where it was.
    inputs, builder
        For entries without their own, where the registry is no Parquet table.
    spot_check
        One row in so many is computed for itself; 0 for none.
    time_limit, memory_limit
        For one architecture, and for a piece of ten thousand rows.
    engine, workers
        As in :func:`audit_all`.
    fresh
        Compute everything again.
    progress
        Called with (done, total) of pieces and architectures, stage after stage.

    Raises
    ------
    InvalidValueError
        If the registry or an option is wrong. A wrong row is a row with its error.
    """
    if not time_limit > 0 or spot_check < 0:
        raise InvalidValueError(f"Got time_limit={time_limit}, spot_check={spot_check}: neither is negative.")
    place = Path(out).absolute()
    place.mkdir(parents=True, exist_ok=True)
    source = Path(registry)
    settings = {"spot_check": spot_check}
    described = provenance({**settings, "time_limit": time_limit, "registry": str(registry)})
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_folder(place))
        table = source if source.suffix == ".parquet" else _as_parquet(source, place, tuple(inputs), builder)
        pieces = parquet_pieces(table, ["path"], rows=PIECE)
        where, at_once = choose_engine(engine, workers, len(pieces))
        limits = worker_limits(memory_limit, at_once, False, place)
        asker = _Asker(uuid.uuid4().hex, (str(Path.cwd()), *filter(None, sys.path)), limits, time_limit)
        stack.enter_context(interruptible(children(asker.run, limits)))
        desk = _CensusDesk(where, asker, place, _store(place, settings, described, fresh), progress)
        return _run(
            desk,
            pieces,
            str(source.absolute() if source.is_dir() else source.absolute().parent),
            spot_check,
            described,
        )


@dataclass
class _CensusDesk:
    """Where stages run, and what they cost."""

    where: Engine
    asker: _Asker
    place: Path
    store: Checkpoint
    progress: Progress | None
    stages: dict[str, dict[str, float]] = field(default_factory=dict)

    def run(self, name: str, jobs: Sequence[_CensusJob]) -> Iterator[tuple[_CensusJob, dict[str, Any]]]:
        """The jobs' answers as they come; those that are finished are read, errors that may pass are asked again."""
        begun, own = time.perf_counter(), time.process_time()
        ready = {job.depends: kept for job in jobs if (kept := self._kept(job)) is not None}
        for job in jobs:
            if job.depends in ready:
                yield job, ready[job.depends]
        todo = [job for job in jobs if job.depends not in ready]
        spent = 0.0
        for job, answer in self.where.map(self.asker, todo, progress=self.progress, ordered=False):
            spent += answer.pop("processor_seconds", 0.0)
            if answer.get("error") not in _PASSING:
                self.store.save(job.depends, answer)
            yield job, answer
        self.stages[name] = {
            "jobs": len(jobs),
            "reused": len(ready),
            "seconds": time.perf_counter() - begun,
            "caller_seconds": time.process_time() - own,
            "worker_seconds": spent,
        }

    def _kept(self, job: _CensusJob) -> dict[str, Any] | None:
        kept: dict[str, Any] | None = self.store.load(job.depends)
        target = job.arguments.get("out")
        return kept if target is None or Path(target).is_file() else None


def _run(
    desk: _CensusDesk, pieces: Sequence[Piece], root: str, spot: int, described: Mapping[str, Any]
) -> Census:
    first: dict[str, tuple[int, int]] = {}
    counts: Counter[str] = Counter()
    drawn: list[tuple[int, int, str]] = []
    jobs = {
        number: _CensusJob(
            "list_keys",
            {
                "piece": asdict(piece),
                "root": root,
                "out": str(_folder(desk.place, "keys") / f"{number:06d}.parquet"),
                "spot": spot,
            },
            fingerprint("keys", piece, root, spot),
        )
        for number, piece in enumerate(pieces)
    }
    numbers = {id(job): number for number, job in jobs.items()}
    for job, answer in desk.run("keys", list(jobs.values())):
        number = numbers[id(job)]
        if "keys" not in answer:
            raise InvalidValueError(
                f"Rows of piece {number} can't be read: {answer.get('error')}: {answer.get('message')}"
            )
        for key, (row, count) in answer["keys"].items():
            counts[key] += count
            first[key] = min(first.get(key, (number, row)), (number, row))
        drawn += [(number, row, key) for row, key in answer["drawn"]]
    found = _decided(desk, pieces, root, {key: first[key] for key in sorted(first)}, "architectures")
    drawn.sort()
    own = _decided(desk, pieces, root, {f"{n} {row}": (n, row) for n, row, _ in drawn}, "spot checks")
    checks = [
        {
            "path": own[f"{n} {row}"]["example"],
            "key": key,
            "verdict": _outcome(found[key]),
            "own": _outcome(own[f"{n} {row}"]),
        }
        for n, row, key in drawn
    ]
    for check in checks:
        if check["verdict"] != check["own"]:
            found[check["key"]] = found[check["key"]] | {
                "verdict": "UNKNOWN",
                "reason": f"sizes matter: {check['verdict']} for {found[check['key']]['example']}, "
                f"{check['own']} for {check['path']}",
                "error": None,
                "message": None,
            }
    verdicts = _write_verdicts(desk.place, found)
    totals: Counter[str] = Counter()
    joins = [
        _CensusJob(
            "join_rows",
            {
                "keys": str(job.arguments["out"]),
                "verdicts": str(verdicts),
                "out": str(_folder(desk.place, "audits") / f"part-{number:06d}.parquet"),
            },
            fingerprint("rows", job.depends, verdicts.name),
        )
        for number, job in jobs.items()
    ]
    for job, answer in desk.run("rows", joins):
        if "counts" not in answer:
            raise InvalidValueError(
                f"{job.arguments['out']} can't be written: {answer.get('error')}: {answer.get('message')}"
            )
        totals.update(answer["counts"])
    return _finished(desk, found, counts, totals, checks, described)


def _finished(
    desk: _CensusDesk,
    found: Mapping[str, Mapping[str, Any]],
    counts: Mapping[str, int],
    totals: Mapping[str, int],
    checks: Sequence[Mapping[str, Any]],
    described: Mapping[str, Any],
) -> Census:
    order = sorted(found, key=lambda key: (-counts[key], key))
    records = [{"key": key, "models": counts[key], **clean(found[key])} for key in order]
    outcome = {name: totals.get(name, 0) for name in OUTCOMES}
    result = Census(desk.place, records, outcome, checks, desk.stages, described)
    lines = "".join(json.dumps(r, ensure_ascii=False, allow_nan=False) + "\n" for r in records)
    (desk.place / "architectures.jsonl").write_text(lines, encoding="utf-8")
    about = json.dumps(result.to_dict(), ensure_ascii=False, indent=1)
    (desk.place / "run.json").write_text(about + "\n", encoding="utf-8")
    return result


def _decided(
    desk: _CensusDesk, pieces: Sequence[Piece], root: str, places: Mapping[str, tuple[int, int]], stage: str
) -> dict[str, dict[str, Any]]:
    """What workers say of the rows at these places."""
    jobs = {
        name: _CensusJob(
            "decide",
            {"piece": asdict(pieces[number]), "place": row, "root": root},
            # By its key, whichever registry it is in; a row that was drawn, for itself.
            fingerprint("decide", name)
            if stage == "architectures"
            else fingerprint("drawn", pieces[number], row, root),
        )
        for name, (number, row) in places.items()
    }
    names = {id(job): name for name, job in jobs.items()}
    found = {names[id(job)]: answer for job, answer in desk.run(stage, list(jobs.values()))}
    return {name: {"example": None, "verdict": None, "reason": None, **found[name]} for name in jobs}


def _outcome(answer: Mapping[str, Any]) -> str:
    return str(answer.get("verdict") or "ERROR")


def _write_verdicts(place: Path, found: Mapping[str, Mapping[str, Any]]) -> Path:
    """The verdicts as a file that workers read; its name is its content's digest."""
    wanted = ("verdict", "reason", "error", "message")
    lines = "".join(
        json.dumps({"key": key, **clean({n: found[key].get(n) for n in wanted})}, ensure_ascii=False) + "\n"
        for key in sorted(found)
    )
    target = _folder(place, "keys") / f"verdicts-{hashlib.sha256(lines.encode()).hexdigest()[:16]}.jsonl"
    target.write_text(lines, encoding="utf-8")
    return target


def _as_parquet(source: Path, place: Path, inputs: tuple[str, ...], builder: str | None) -> Path:
    """A folder or a table of another kind as a Parquet table of the same rows."""
    pyarrow, parquet = arrow()
    target = place / "registry.parquet"
    schema = pyarrow.schema(
        [(name, pyarrow.string()) for name in COLUMNS if name not in ("config", "header")]
    )
    part = target.with_name(f".{target.name}.part")
    with parquet.ParquetWriter(part, schema) as file:
        rows: list[dict[str, Any]] = []
        for entry in Registry(source, inputs, builder, place):
            rows.append({**asdict(entry), "inputs": ";".join(entry.inputs) or None})
            if len(rows) == PIECE:
                file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                rows.clear()
        if rows:
            file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
    if target.is_file() and target.read_bytes() == part.read_bytes():
        part.unlink()  # as it was: its time is part of what finished rows depend on
    else:
        part.replace(target)
    return target


def _folder(place: Path, name: str) -> Path:
    (place / name).mkdir(parents=True, exist_ok=True)
    return place / name


def _store(place: Path, settings: Mapping[str, Any], described: Mapping[str, Any], fresh: bool) -> Checkpoint:
    versions = dict(described["versions"])
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["transformers"] = importlib.metadata.version("transformers")
    digest = fingerprint("census", _FORMAT, dict(settings), versions, described["commit"])
    store = Checkpoint(place / "finished" / digest[:16], digest)
    if fresh:
        store.clear()
    return store
